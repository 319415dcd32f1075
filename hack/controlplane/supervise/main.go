// Command supervise starts the programs that a folder's spec.json names, keeps them up, and lets none outlive it.
//
//   - Started with a pipe as standard input, it ends everything when that pipe closes, that is when its owner ends
//     in whatever way, unless the owner has written "detach" before.
//   - Killed itself, even by SIGKILL, the kernel ends its programs (PR_SET_PDEATHSIG), and of a node the undertaker
//     ends what is frozen and removes the cgroups. Should that be killed as well, the next node's supervisor does so.
//   - What the kernel can't end within half a minute (a process in the state D) is named in state.json, and left.
//   - While it lives it holds a lock on the folder's file "lock", so that no process id is ever taken on trust.
//
// With a node in the spec, programs that say "inside" run in namespaces of their own: see namespaces.go.
//
// It writes "ready" or "failed: why" to standard output, and one line in answer to each line it reads: "start NAME",
// "stop NAME", "ready" (answered when all probes succeed again), "forward LISTEN TO" (opens a door out of a node), "detach". The state
// of its programs is in state.json at all times.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Spec is what is asked for; Rust's xtask::supervisor writes it.
type Spec struct {
	Programs []Program `json:"programs"`
	// Node, if any, is what programs run inside of that say so.
	Node *NodeSpec `json:"node"`
	// Ready are the probes that must have succeeded, each once, before "ready" is said.
	Ready []Probe `json:"ready"`
	// TLS holds the files used by probes of URLs.
	TLS TLSFiles `json:"tls"`
	// TimeoutSeconds bounds the time to "ready".
	TimeoutSeconds int `json:"timeoutSeconds"`
	// RemoveFolder says that the folder goes when an owner that has not detached ends.
	RemoveFolder bool `json:"removeFolder"`
}

// Program is one process to keep up. Its output goes to NAME.log.
type Program struct {
	Name string   `json:"name"`
	Path string   `json:"path"`
	Args []string `json:"args"`
	Env  []string `json:"env"`
	// Inside says that it runs in the node's namespaces.
	Inside bool `json:"inside"`
	// After are the probes that must succeed before the program is started.
	After []Probe `json:"after"`
	// UID and GID are set where the program must not run as the supervisor's user.
	UID *uint32 `json:"uid"`
	GID *uint32 `json:"gid"`
	// EndSignal is sent, and by the kernel when the supervisor is killed; SIGKILL when it is zero.
	EndSignal int `json:"endSignal"`
}

func (p Program) endSignal() syscall.Signal {
	if p.EndSignal == 0 {
		return syscall.SIGKILL
	}
	return syscall.Signal(p.EndSignal)
}

// The kernel's parent-death signal follows the thread that started a child, so every child is started by the main
// goroutine, held on the main thread, which lasts as long as the process.
func init() { runtime.LockOSThread() }

func main() {
	if len(os.Args) == 4 && os.Args[1] == initName {
		fmt.Fprintln(os.Stderr, initMain(os.Args[2], os.Args[3]))
		os.Exit(1)
	}
	if len(os.Args) == 3 && os.Args[1] == undertakerName {
		if err := undertakerMain(os.Args[2]); err != nil {
			os.Exit(1)
		}
		return
	}
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: supervise FOLDER")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Printf("failed: %v\n", err)
		os.Exit(1)
	}
}

func run(folder string) error {
	// A session of its own: a Ctrl-C or a hang-up at the owner's terminal reaches the owner alone.
	_, _ = syscall.Setsid()
	// The owner may stop reading once it is told that all is ready.
	signal.Ignore(syscall.SIGPIPE, syscall.SIGHUP)
	// Stopped, it would never see the owner's pipe close: the owner's end lets it go on. (The signal comes too when
	// only the thread ends that started us, and does nothing to a process that runs.)
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGCONT), 0, 0, 0); err != nil {
		return fmt.Errorf("can't ask for a signal at the owner's end: %w", err)
	}

	lock, err := os.OpenFile(filepath.Join(folder, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("another supervisor holds %s", lock.Name())
	}

	data, err := os.ReadFile(filepath.Join(folder, "spec.json"))
	if err != nil {
		return err
	}
	var spec Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		return fmt.Errorf("spec.json: %w", err)
	}
	prober, err := newProber(spec.TLS)
	if err != nil {
		return err
	}
	s := newSupervisor(folder, spec, prober)
	err = s.loop()
	if s.spec.RemoveFolder && !s.detached {
		_ = os.RemoveAll(folder)
	}
	return err
}
