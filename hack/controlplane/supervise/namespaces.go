package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

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
	undertaker   *undertaker
	inside, ours []*os.File
	cgroup       string
	// dying is closed when the first process begins to end, and the kernel with it to kill all others.
	dying chan struct{}
	// ended is closed when it has ended, which it does as the last of all.
	ended chan struct{}
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
	cmd := exec.Command(self, initName, folder, string(asked))
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	for _, kind := range kinds {
		cmd.SysProcAttr.Cloneflags |= uintptr(kind.flag)
	}
	// Not one of cmd's own making, which cmd.Wait would close.
	words, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout = theirs
	keeper, err := startUndertaker(self, spec.Cgroup)
	if err == nil {
		if err = cmd.Start(); err != nil {
			keeper.end()
			err = fmt.Errorf("%s: can't make namespaces: %w", initName, err)
		}
	}
	theirs.Close()
	if err != nil {
		words.Close()
		return nil, err
	}
	n := &namespaces{
		init: cmd, undertaker: keeper, cgroup: spec.Cgroup,
		dying: make(chan struct{}), ended: make(chan struct{}),
	}
	defer func() {
		if err != nil {
			n.kill()
			_ = n.end()
		}
	}()
	go func() {
		_ = cmd.Wait()
		close(n.ended)
	}()
	said := bufio.NewReader(words)
	line, _ := said.ReadString('\n')
	go func() {
		// The only other end is the first process's: a killed one lets go of it before it waits for the others to die.
		_, _ = io.Copy(io.Discard, said)
		words.Close()
		close(n.dying)
	}()
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

// kill lets the kernel end all processes inside.
func (n *namespaces) kill() { _ = n.init.Process.Kill() }

// end waits for the end of all that kill has killed, thawing what is frozen, and removes the cgroups.
func (n *namespaces) end() error {
	deadline := time.Now().Add(killGrace)
	err := bury(n.cgroup, deadline)
	select {
	case <-n.ended:
	case <-time.After(time.Until(deadline)):
		pid := strconv.Itoa(n.init.Process.Pid)
		err = cmp.Or(err, fmt.Errorf("%s does not end: %s", initName, describeProcess(pid)))
	}
	if err == nil {
		n.undertaker.end()
	}
	return err
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
	// Never closed: its end is how the supervisor learns of ours.
	fmt.Println("ready")
	for {
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(-1, &status, 0, nil); err == syscall.ECHILD {
			// Orphans come later, and a SIGCHLD when one has ended.
			<-ended
		}
	}
}
