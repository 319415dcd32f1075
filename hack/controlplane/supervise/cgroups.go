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
	// How long the kernel may take over taking the dead out of their cgroups.
	cgroupGrace = 10 * time.Second
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

// sweepCgroups removes what supervisors left behind that were killed: directories that the first process of a node is
// not in any more.
func sweepCgroups() {
	for _, hierarchy := range hierarchies() {
		dirs, _ := filepath.Glob(filepath.Join(hierarchy, cgroupPrefix+"*"))
		for _, dir := range dirs {
			procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			if err == nil && len(procs) == 0 {
				_ = removeCgroup(dir)
			}
		}
	}
}

// removeCgroups removes a node's directories once all its processes have ended.
func removeCgroups(name string) {
	if !strings.HasPrefix(name, cgroupPrefix) {
		return
	}
	deadline := time.Now().Add(cgroupGrace)
	for _, hierarchy := range hierarchies() {
		for removeCgroup(filepath.Join(hierarchy, name)) != nil && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
		}
	}
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
