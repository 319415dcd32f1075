// Command controlplane is etcd, the servers of Kubernetes (those of a node too) and kubectl in one program, chosen by
// the name it is called by (a symlink) or by its first argument.
//
// One program instead of many because they share most of their packages: it builds in half the time and takes a
// third of the room. It exists so that tests run against the real servers without a container engine.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// programs maps a name to what runs under it. Each ends the process itself or returns its exit code, and finds its
// arguments in os.Args.
var programs = map[string]func() int{
	"etcd": func() int {
		etcdmain.Main(os.Args)
		return 0
	},
	"kube-apiserver":          run(apiserver.NewAPIServerCommand),
	"kube-controller-manager": run(controllermanager.NewControllerManagerCommand),
	"kube-proxy":              run(proxy.NewProxyCommand),
	"kube-scheduler":          run(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kubelet":                 run(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
	"kubectl": func() int {
		if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
			kubectlutil.CheckErr(err)
		}
		return 0
	},
}

// run builds the command only when it is asked for: building one registers flags and metrics for good.
func run(build func() *cobra.Command) func() int {
	return func() int { return cli.Run(build()) }
}

func main() {
	name := filepath.Base(os.Args[0])
	if _, ok := programs[name]; !ok && len(os.Args) > 1 {
		name = os.Args[1]
		os.Args = os.Args[1:]
	}
	program, ok := programs[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "controlplane: %q is none of %v\n", name, slices.Sorted(maps.Keys(programs)))
		os.Exit(2)
	}
	os.Exit(program())
}
