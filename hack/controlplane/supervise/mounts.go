package main

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// covered is the folder of the machine that a node's programs write to whatever their configuration says. What is
// written there goes to a layer in memory.
const covered = "/var"

// onDisk are folders below it that grow: they are in the cluster's folder, below "node".
var onDisk = []string{"/var/lib/kubelet", "/var/log"}

// tunables are settings of the whole machine that the kubelet would change: it gets copies.
var tunables = []string{
	"kernel/keys/root_maxbytes", "kernel/keys/root_maxkeys", "kernel/panic", "kernel/panic_on_oops",
	"vm/overcommit_memory", "vm/panic_on_oom",
}

// layers is where the layer over the covered folder and the copies are: in memory, and seen by nobody outside.
const layers = "/run/leasehold"

// setUpMounts makes the new mount namespace one in which a node's programs find the machine's files, and change none.
func setUpMounts(folder string) error {
	// By its descriptor: the folder may be below one that is covered.
	dir, err := os.Open(folder)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	if err := mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return err
	}
	if err := cover(covered); err != nil {
		return err
	}
	if err := bind(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()), folder); err != nil {
		return err
	}
	for _, path := range onDisk {
		source := filepath.Join(folder, "node", path)
		if err := os.MkdirAll(source, 0o755); err != nil {
			return err
		}
		if err := bind(source, path); err != nil {
			return err
		}
	}
	for _, name := range tunables {
		if err := shield(filepath.Join("/proc/sys", name)); err != nil {
			return err
		}
	}
	// The kubelet's mounts must reach the containers.
	return mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
}

func mount(source, target, kind string, flags uintptr, data string) error {
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		return fmt.Errorf("can't mount %s: %w", target, err)
	}
	return nil
}

// cover puts an overlay over a folder.
func cover(path string) error {
	upper, work := filepath.Join(layers, path, "upper"), filepath.Join(layers, path, "work")
	for _, dir := range []string{upper, work} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return mount("overlay", path, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", path, upper, work))
}

// bind shows a folder at another place, which is made if need be: only in memory.
func bind(source, target string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	return mount(source, target, "", unix.MS_BIND, "")
}

// shield puts a copy over a file.
func shield(path string) error {
	value, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	reading := filepath.Join(layers, path)
	if err := os.MkdirAll(filepath.Dir(reading), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(reading, value, 0o644); err != nil {
		return err
	}
	return mount(reading, path, "", unix.MS_BIND, "")
}
