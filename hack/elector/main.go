// Command elector is a stock client-go leader elector on one Lease: the peer with which tests share a Lease.
//
// It says "leading" and "stopped" on standard output. While it leads it notes start, beat and end in the tests'
// journal, as `leasehold run`'s commands do, under the token 0: client-go has none. SIGTERM makes it release.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

func main() {
	namespace := flag.String("namespace", "default", "of the Lease")
	lease := flag.String("lease", "", "name of the Lease")
	id := flag.String("id", "elector", "who contends")
	journal := flag.String("journal", "", "file of the tests' journal")
	duration := flag.Duration("lease-duration", 4*time.Second, "how long others wait for a silent leader")
	deadline := flag.Duration("renew-deadline", 3*time.Second, "how long a leader tries to renew")
	period := flag.Duration("retry-period", 500*time.Millisecond, "how long between tries")
	flag.Parse()

	if err := run(*namespace, *lease, *id, *journal, *duration, *deadline, *period); err != nil {
		fmt.Fprintln(os.Stderr, "elector:", err)
		os.Exit(1)
	}
}

func run(namespace, lease, id, journal string, duration, deadline, period time.Duration) error {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	notes, err := os.OpenFile(journal, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	// A line is one write, so lines of several processes do not mix.
	note := func(word string) error {
		uptime, err := os.ReadFile("/proc/uptime")
		if err != nil {
			return err
		}
		up, _, _ := strings.Cut(string(uptime), " ")
		_, err = fmt.Fprintf(notes, "%s %s 0 %s\n", word, id, up)
		return err
	}

	stopped, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	// The release comes after the work: the elector's context ends once the work has.
	contending, release := context.WithCancel(context.Background())
	defer release()
	leading := make(chan error, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Name: lease, Namespace: namespace},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: id},
		},
		LeaseDuration:   duration,
		RenewDeadline:   deadline,
		RetryPeriod:     period,
		ReleaseOnCancel: true,
		Name:            lease,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(led context.Context) { leading <- lead(led, stopped, release, note) },
			OnStoppedLeading: func() { fmt.Println("stopped") },
		},
	})
	if err != nil {
		return err
	}
	go func() {
		<-stopped.Done()
		select {
		case <-time.After(duration):
			// Nobody leads here: nothing to wait for.
			release()
		case <-contending.Done():
		}
	}()
	elector.Run(contending)
	select {
	case err := <-leading:
		return err
	default:
		return errors.New("it never led")
	}
}

// lead works until the lead is lost or the process is told to stop, and only then lets go.
func lead(led, stopped context.Context, release func(), note func(string) error) error {
	defer release()
	fmt.Println("leading")
	if err := note("start"); err != nil {
		return err
	}
	for {
		select {
		case <-led.Done():
			return note("end")
		case <-stopped.Done():
			return note("end")
		case <-time.After(50 * time.Millisecond):
			if err := note("beat"); err != nil {
				return err
			}
		}
	}
}
