package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	cgroups = "/sys/fs/cgroup"
	// cgroupPrefix begins the names of our directories, and of no others.
	cgroupPrefix = "leasehold-"
	// The hierarchy that holds processes still: a frozen one takes no signal, not even SIGKILL, before it is thawed.
	freezer = "freezer"
	// How often it is tried to thaw and to remove what is left.
	buryEvery = 10 * time.Millisecond
	// How long the start of a node may be held up by what an earlier one left behind.
	sweepGrace = 5 * time.Second
)

// needed are the controllers without which no kubelet starts.
var needed = []string{"cpu", "cpuacct", "cpuset", "devices", "freezer", "memory", "pids", "systemd"}

// hierarchies are the machine's: those of version 1, and what there is of version 2 beside them.
func hierarchies() []string {
	dirs, _ := filepath.Glob(filepath.Join(cgroups, "*", "cgroup.procs"))
	for i, procs := range dirs {
		dirs[i] = filepath.Dir(procs)
	}
	return dirs
}

// joinCgroups makes a directory of this name in each hierarchy, with this process in it: then sweepCgroups leaves it.
func joinCgroups(name string) error {
	for _, controller := range needed {
		if _, err := os.Stat(filepath.Join(cgroups, controller, "tasks")); err != nil {
			return fmt.Errorf("a node needs cgroup v1 with the hierarchy %s: %w", controller, err)
		}
	}
	for _, hierarchy := range hierarchies() {
		if err := joinCgroup(hierarchy, name); err != nil {
			return err
		}
	}
	return nil
}

func joinCgroup(hierarchy, name string) error {
	dir := filepath.Join(hierarchy, name)
	for {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		// A new cpuset takes nobody in before it has these.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			if value, err := os.ReadFile(filepath.Join(hierarchy, file)); err == nil {
				_ = os.WriteFile(filepath.Join(dir, file), value, 0o644)
			}
		}
		err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0o644)
		// Another supervisor may have swept it away in this moment, since it was empty.
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
			return err
		}
	}
}

// sweepCgroups removes what is left of nodes whose supervisor and undertaker were killed: directories that the first
// process of a node is not in any more.
func sweepCgroups() {
	names := map[string]bool{}
	for _, hierarchy := range hierarchies() {
		dirs, _ := filepath.Glob(filepath.Join(hierarchy, cgroupPrefix+"*"))
		for _, dir := range dirs {
			names[filepath.Base(dir)] = true
		}
	}
	deadline := time.Now().Add(sweepGrace)
	// All of them in turn: one that can't end keeps none of the others.
	for {
		for name := range names {
			// Asked anew each time: another supervisor may be about to start a node there.
			if isInUse(name) || buryNow(name) == nil {
				delete(names, name)
			}
		}
		if len(names) == 0 || time.Now().After(deadline) {
			return
		}
		time.Sleep(buryEvery)
	}
}

// isInUse says whether the first process of a node is in the directories of this name.
func isInUse(name string) bool {
	for _, hierarchy := range hierarchies() {
		procs, _ := os.ReadFile(filepath.Join(hierarchy, name, "cgroup.procs"))
		if len(procs) > 0 {
			return true
		}
	}
	return false
}

// bury lets a node's processes, which the end of the first one in there has killed, die also where they are frozen,
// and removes the node's directories. What is frozen anew meanwhile is thawed anew: nothing can be frozen any more once
// the directories are gone.
func bury(name string, deadline time.Time) error {
	for {
		err := buryNow(name)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w%s", err, describeProcesses(name))
		}
		time.Sleep(buryEvery)
	}
}

// buryNow tries it once.
func buryNow(name string) (err error) {
	if !strings.HasPrefix(name, cgroupPrefix) {
		return nil
	}
	thaw(filepath.Join(cgroups, freezer, name))
	for _, hierarchy := range hierarchies() {
		if failed := removeCgroup(filepath.Join(hierarchy, name)); failed != nil {
			err = failed
		}
	}
	return err
}

// thaw thaws a directory of the freezer and those below it: a frozen one holds those below it too.
func thaw(dir string) {
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			_ = os.WriteFile(filepath.Join(path, "freezer.state"), []byte("THAWED"), 0o644)
		}
		return nil
	})
}

// describeProcesses tells which processes there are in a node's directories, and in what state: D is one that the
// kernel does not let die.
func describeProcesses(name string) string {
	var found []string
	seen := map[string]bool{}
	for _, hierarchy := range hierarchies() {
		_ = filepath.WalkDir(filepath.Join(hierarchy, name), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.Name() != "cgroup.procs" {
				return nil
			}
			procs, _ := os.ReadFile(path)
			for _, pid := range strings.Fields(string(procs)) {
				if !seen[pid] {
					seen[pid] = true
					found = append(found, describeProcess(pid))
				}
			}
			return nil
		})
	}
	if len(found) == 0 {
		return ""
	}
	return ", since these processes do not end: " + strings.Join(found, ", ")
}

// describeProcess gives the id, the name and the state of a process.
func describeProcess(pid string) string {
	// `7 (name) S 1 …`
	stat, _ := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	end := strings.LastIndex(string(stat), ") ")
	if end < 0 {
		return pid
	}
	return string(stat[:end+3])
}

// removeCgroup removes a directory and those below it, as far as they hold no process.
func removeCgroup(dir string) error {
	below, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range below {
		if entry.IsDir() {
			if err := removeCgroup(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
