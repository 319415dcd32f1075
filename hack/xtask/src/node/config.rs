//! The files by which a node's programs are told how to be.

use std::path::Path;

use serde_json::json;

use super::{ADDRESS, CONTAINERD_SOCKET, NAME, Node, PAUSE};

/// The addresses of Pods.
const POD_CIDR: &str = "10.244.0.0/24";

/// containerd's configuration, in the form of its versions 1.6 and 1.7.
pub(super) fn containerd(node: &Node<'_>, cni: &Path) -> String {
    format!(
        r#"version = 2
root = "{root}"
state = "/run/containerd"
oom_score = 0
# Others want devices, or folders of the machine's.
disabled_plugins = [
  "io.containerd.internal.v1.opt",
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]

[grpc]
address = "{CONTAINERD_SOCKET}"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE}"
# Without CAP_SYS_RESOURCE no process may be spared from the OOM killer.
restrict_oom_score_adj = true
disable_apparmor = true

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{bin}"
conf_dir = "{conf}"
"#,
        root = node.file("containerd"),
        bin = cni.display(),
        conf = node.file("cni"),
    )
}

/// The Pods' network: a link for each Pod and a route to it. Without a bridge all traffic is routed, and answers of
/// services come back the way they went.
pub(super) fn network() -> String {
    let ipam = json!({
        "type": "host-local",
        "dataDir": "/run/cni",
        "ranges": [[{ "subnet": POD_CIDR }]],
        "routes": [{ "dst": "0.0.0.0/0" }],
    });
    let ptp = json!({ "type": "ptp", "ipMasq": false, "ipam": ipam });
    json!({ "cniVersion": "1.0.0", "name": "node", "plugins": [ptp] }).to_string()
}

/// The kubelet's configuration.
pub(super) fn kubelet(node: &Node<'_>) -> String {
    let file = |name: &str| node.file(name);
    let configuration = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "0.0.0.0",
        "authentication": {
            "anonymous": { "enabled": false },
            "webhook": { "enabled": true },
            "x509": { "clientCAFile": node.dir.join("ca.crt") },
        },
        "authorization": { "mode": "Webhook" },
        "tlsCertFile": file("kubelet-server.crt"),
        "tlsPrivateKeyFile": file("kubelet-server.key"),
        "containerRuntimeEndpoint": format!("unix://{CONTAINERD_SOCKET}"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", node.cgroup),
        "failCgroupV1": false,
        "failSwapOn": false,
        // The machine may lack the capability to lower one.
        "oomScoreAdj": 0,
        // Images can't be pulled: none is ever collected.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "50Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
        // A dead kubelet is noticed while a test waits.
        "nodeStatusUpdateFrequency": "2s",
        "nodeLeaseDurationSeconds": 10,
        "resolvConf": file("resolv.conf"),
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "serializeImagePulls": false,
    });
    configuration.to_string()
}

/// kube-proxy's configuration.
pub(super) fn proxy(node: &Node<'_>) -> String {
    let configuration = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "bindAddress": ADDRESS,
        "hostnameOverride": NAME,
        "clusterCIDR": POD_CIDR,
        "clientConnection": { "kubeconfig": node.file("kube-proxy.kubeconfig") },
        // Those are settings of the whole machine.
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
        "oomScoreAdj": 0,
    });
    configuration.to_string()
}
