package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// undertakerName is what state.json calls the process that buries a node when the supervisor can't.
const undertakerName = "undertaker"

// undertaker is a process of its own that waits for the supervisor's end, however that comes. The kernel then kills a
// node's processes, but those that are frozen die only when somebody thaws them, and nobody else removes the cgroups.
type undertaker struct {
	cmd *exec.Cmd
	// It ends when this pipe closes, which nobody else has.
	lifeline io.WriteCloser
}

// startUndertaker must be called on the main goroutine: see init.
func startUndertaker(self, cgroup string) (*undertaker, error) {
	cmd := exec.Command(self, undertakerName, cgroup)
	// Whoever ends the supervisor's process group or session does not mean this one.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	lifeline, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", undertakerName, err)
	}
	return &undertaker{cmd, lifeline}, nil
}

// end lets it end, when there is nothing left for it to do.
func (u *undertaker) end() {
	u.lifeline.Close()
	_ = u.cmd.Process.Kill()
	_ = u.cmd.Wait()
}

// undertakerMain is the process.
func undertakerMain(cgroup string) error {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP)
	_, _ = io.Copy(io.Discard, os.Stdin)
	return bury(cgroup, time.Now().Add(killGrace))
}
