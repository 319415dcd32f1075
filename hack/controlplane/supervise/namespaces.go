package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// initName is what state.json calls the first process of a node's namespaces, and its log.
const initName = "init"

// NodeSpec asks for namespaces of a node's own, in which programs that say "inside" run. Nothing that they do outlives
// the first process in there, and that one does not outlive the supervisor.
type NodeSpec struct {
	// Address is the node's, as CIDR, on a link that leads nowhere else.
	Address string `json:"address"`
	// Cgroup is the name of a cgroup directory of the node's own at the top of every hierarchy.
	Cgroup string `json:"cgroup"`
	// Forwards are the doors between the two networks: there are no others.
	Forwards []Forward `json:"forwards"`
}

// kinds are the namespaces, in the order of entering: the mount namespace last, since it changes what paths mean.
var kinds = []struct {
	name string
	flag int
}{{"pid", unix.CLONE_NEWPID}, {"net", unix.CLONE_NEWNET}, {"mnt", unix.CLONE_NEWNS}}

// namespaces are those of a node, and the supervisor's own to go back to.
type namespaces struct {
	init         *exec.Cmd
	inside, ours []*os.File
	cgroup       string
	ended        chan struct{}
}

// newNamespaces starts the first process in new ones, and waits until it has set them up. Main goroutine only.
func newNamespaces(folder string, spec NodeSpec) (made *namespaces, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(folder, initName+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	asked, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	sweepCgroups()
	cmd := exec.Command(self, "init", folder, string(asked))
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	for _, kind := range kinds {
		cmd.SysProcAttr.Cloneflags |= uintptr(kind.flag)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("init: can't make namespaces: %w", err)
	}
	n := &namespaces{init: cmd, cgroup: spec.Cgroup, ended: make(chan struct{})}
	defer func() {
		if err != nil {
			n.end()
		}
	}()
	go func() {
		_ = cmd.Wait()
		close(n.ended)
	}()
	line, _ := bufio.NewReader(out).ReadString('\n')
	if strings.TrimSpace(line) != "ready" {
		return nil, fmt.Errorf("%s ended while starting", initName)
	}
	for _, kind := range kinds {
		for path, files := range map[string]*[]*os.File{
			fmt.Sprintf("/proc/%d/ns/%s", cmd.Process.Pid, kind.name): &n.inside,
			fmt.Sprintf("/proc/thread-self/ns/%s", kind.name):         &n.ours,
		} {
			file, err := os.Open(path)
			if err != nil {
				return nil, err
			}
			*files = append(*files, file)
		}
	}
	// Else the thread can't enter a mount namespace: its root and working directory are shared with others.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return nil, fmt.Errorf("unshare: %w", err)
	}
	return n, nil
}

// enter runs do with the main thread inside, so that what it starts is born there: our process keeps the id by which
// the whole machine knows it, and remains our child. Main goroutine only.
func (n *namespaces) enter(do func() error) error {
	if err := setns(n.inside); err != nil {
		return errors.Join(err, setns(n.ours))
	}
	return errors.Join(do(), setns(n.ours))
}

func setns(files []*os.File) error {
	for i, kind := range kinds {
		if err := unix.Setns(int(files[i].Fd()), kind.flag); err != nil {
			return fmt.Errorf("can't enter the %s namespace: %w", kind.name, err)
		}
	}
	return nil
}

// network is the node's.
func (n *namespaces) network() network { return network{n.inside[1]} }

// end ends all processes inside, and removes the cgroups, which nobody else does.
func (n *namespaces) end() {
	_ = n.init.Process.Kill()
	<-n.ended
	removeCgroups(n.cgroup)
}

// initMain is the first process of the namespaces: it sets them up, and then buries the dead.
func initMain(folder, asked string) error {
	runtime.LockOSThread()
	var spec NodeSpec
	if err := json.Unmarshal([]byte(asked), &spec); err != nil {
		return err
	}
	if err := joinCgroups(spec.Cgroup); err != nil {
		return err
	}
	if err := setUpMounts(folder); err != nil {
		return err
	}
	if err := setUpNetwork(spec.Address); err != nil {
		return err
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	fmt.Println("ready")
	os.Stdout.Close()
	for {
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(-1, &status, 0, nil); err == syscall.ECHILD {
			// Orphans come later, and a SIGCHLD when one has ended.
			<-ended
		}
	}
}
