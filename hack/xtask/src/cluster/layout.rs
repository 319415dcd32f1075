//! What the servers of a cluster are given: their certificates and their arguments.

use std::path::Path;

use anyhow::Result;

use super::{Component, Options};
use crate::controlplane::Programs;
use crate::node::{self, Node};
use crate::pki::{self, Authority, Subject};
use crate::supervisor::{Probe, Program, Spec};

/// What a cluster is made of: its folder and its ports.
pub(super) struct Layout<'a> {
    pub(super) dir: &'a Path,
    pub(super) name: &'a str,
    pub(super) etcd: u16,
    pub(super) peer: u16,
    pub(super) api: u16,
    pub(super) node: Option<Node<'a>>,
}

impl Layout<'_> {
    pub(super) fn endpoint(&self) -> String {
        format!("https://127.0.0.1:{}", self.api)
    }

    fn file(&self, name: &str) -> String {
        self.dir.join(name).to_string_lossy().into_owned()
    }

    /// Two authorities, so that no certificate for the API opens etcd.
    pub(super) fn write_certificates(&self) -> Result<()> {
        let etcd = Authority::new("etcd-ca")?;
        pki::write_private(&self.dir.join("etcd-ca.crt"), etcd.pem())?;
        etcd.issue(&Subject::Server(&["localhost", "127.0.0.1"]))?
            .write(self.dir, "etcd")?;
        etcd.issue(&Subject::Client("kube-apiserver", None))?
            .write(self.dir, "etcd-client")?;

        let api = Authority::new("kubernetes-ca")?;
        pki::write_private(&self.dir.join("ca.crt"), api.pem())?;
        let names = [
            "localhost",
            "127.0.0.1",
            node::ADDRESS,
            "10.96.0.1",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        ];
        api.issue(&Subject::Server(&names))?
            .write(self.dir, "apiserver")?;
        let admin = api.issue(&Subject::Client("kubernetes-admin", Some("system:masters")))?;
        admin.write(self.dir, "admin")?;
        pki::write_kubeconfig(
            &self.dir.join("kubeconfig"),
            &self.endpoint(),
            self.name,
            api.pem(),
            "admin",
            &admin,
        )?;
        let manager = api.issue(&Subject::Client("system:kube-controller-manager", None))?;
        let path = self.dir.join("controller-manager.kubeconfig");
        pki::write_kubeconfig(
            &path,
            &self.endpoint(),
            self.name,
            api.pem(),
            "controller-manager",
            &manager,
        )?;
        pki::write_signing_key(self.dir, "service-account")?;
        match &self.node {
            Some(node) => node.write(self.name, &api),
            None => Ok(()),
        }
    }

    pub(super) fn spec(&self, programs: &Programs, options: &Options, owned: bool) -> Result<Spec> {
        let program = |component: Component, args: Vec<String>, after: Vec<Probe>| Program {
            name: component.name(),
            path: programs.path(component.name()),
            args,
            after,
            inside: self.node.is_some(),
            ..Program::default()
        };
        let readyz = format!("{}/readyz", self.endpoint());
        let account = format!(
            "{}/api/v1/namespaces/default/serviceaccounts/default",
            self.endpoint()
        );
        let mut etcd = self.etcd_args();
        if !options.fsync {
            etcd.push("--unsafe-no-fsync".to_owned());
        }
        etcd.extend(options.etcd_args.iter().cloned());
        let (mut api, mut manager) = (self.api_args(), self.manager_args());
        let mut servers = vec![Probe::Url(readyz.clone()), Probe::Url(account)];
        let mut more = Vec::new();
        if let Some(node) = &self.node {
            // Of a flag that is given twice the last one counts.
            api.extend(node.api_args());
            manager.extend(Node::manager_args());
            more = node.programs(programs)?;
            servers.push(node.ready());
        }
        api.extend(options.apiserver_args.iter().cloned());
        let mut started = vec![
            program(Component::Etcd, etcd, vec![]),
            program(Component::ApiServer, api, vec![]),
            program(
                Component::ControllerManager,
                manager,
                vec![Probe::Url(readyz)],
            ),
        ];
        started.extend(more);
        Ok(Spec {
            node: self.node.as_ref().map(|node| node.spec(self.api)),
            programs: started,
            ready: servers,
            tls: Some([
                self.file("ca.crt"),
                self.file("admin.crt"),
                self.file("admin.key"),
            ]),
            remove_folder: owned,
        })
    }

    fn etcd_args(&self) -> Vec<String> {
        let (client, peer) = (
            format!("https://127.0.0.1:{}", self.etcd),
            format!("https://127.0.0.1:{}", self.peer),
        );
        vec![
            "--name=leasehold".to_owned(),
            format!("--data-dir={}", self.file("etcd")),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=leasehold={peer}"),
            "--client-cert-auth".to_owned(),
            format!("--trusted-ca-file={}", self.file("etcd-ca.crt")),
            format!("--cert-file={}", self.file("etcd.crt")),
            format!("--key-file={}", self.file("etcd.key")),
            "--peer-client-cert-auth".to_owned(),
            format!("--peer-trusted-ca-file={}", self.file("etcd-ca.crt")),
            format!("--peer-cert-file={}", self.file("etcd.crt")),
            format!("--peer-key-file={}", self.file("etcd.key")),
        ]
    }

    fn api_args(&self) -> Vec<String> {
        vec![
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", self.api),
            format!("--etcd-servers=https://127.0.0.1:{}", self.etcd),
            format!("--etcd-cafile={}", self.file("etcd-ca.crt")),
            format!("--etcd-certfile={}", self.file("etcd-client.crt")),
            format!("--etcd-keyfile={}", self.file("etcd-client.key")),
            format!("--tls-cert-file={}", self.file("apiserver.crt")),
            format!("--tls-private-key-file={}", self.file("apiserver.key")),
            format!("--client-ca-file={}", self.file("ca.crt")),
            "--anonymous-auth=false".to_owned(),
            // Lists are added to one another, unlike other flags that are given twice.
            format!(
                "--authorization-mode={}",
                if self.node.is_some() {
                    "Node,RBAC"
                } else {
                    "RBAC"
                }
            ),
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
            format!(
                "--service-account-key-file={}",
                self.file("service-account.pub")
            ),
            format!(
                "--service-account-signing-key-file={}",
                self.file("service-account.key")
            ),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            // There are no nodes to reach it from, and loopback addresses are refused in endpoints.
            "--endpoint-reconciler-type=none".to_owned(),
            "--profiling=false".to_owned(),
        ]
    }

    fn manager_args(&self) -> Vec<String> {
        let kubeconfig = self.file("controller-manager.kubeconfig");
        vec![
            format!("--kubeconfig={kubeconfig}"),
            // No port of its own: the default service account shows that it works.
            "--secure-port=0".to_owned(),
            "--leader-elect=false".to_owned(),
            "--use-service-account-credentials".to_owned(),
            format!(
                "--service-account-private-key-file={}",
                self.file("service-account.key")
            ),
            format!("--root-ca-file={}", self.file("ca.crt")),
            // At the default rate the default service account comes five seconds late.
            "--kube-api-qps=200".to_owned(),
            "--kube-api-burst=400".to_owned(),
            "--profiling=false".to_owned(),
        ]
    }
}
