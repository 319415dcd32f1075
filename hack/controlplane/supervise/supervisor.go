package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// A program that ends by itself once all was ready is started again, but not for ever.
	restartDelay  = 500 * time.Millisecond
	restartsLimit = 5
	restartsReset = time.Minute
	// How long a program may take over an EndSignal other than SIGKILL.
	endGrace = 5 * time.Second
	// How long the kernel may take over what SIGKILL has been sent to, before it is said that it can't end it.
	killGrace = 30 * time.Second
)

// running is a Program's current process.
type running struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

type supervisor struct {
	folder   string
	spec     Spec
	prober   *prober
	node     *namespaces
	detached bool
	ready    bool
	state    string
	running  map[string]*running
	restarts []time.Time
	// events run on the main goroutine, one after the other; nothing else touches the fields above.
	events chan func() error
	done   chan struct{}
}

// errEnd is how an event says that it is over, without anything having gone wrong.
var errEnd = fmt.Errorf("end")

func newSupervisor(folder string, spec Spec, prober *prober) *supervisor {
	return &supervisor{
		folder:  folder,
		spec:    spec,
		prober:  prober,
		running: map[string]*running{},
		events:  make(chan func() error),
		done:    make(chan struct{}),
	}
}

// loop runs until it is told to end, or a program can't be kept up; then everything is ended.
func (s *supervisor) loop() error {
	defer close(s.done)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT)
	ownerGone := make(chan struct{})
	go s.read(ownerGone)

	err := s.startAll()
	timeout := time.After(time.Duration(s.spec.TimeoutSeconds) * time.Second)
	for err == nil {
		select {
		case event := <-s.events:
			err = event()
		case <-ownerGone:
			ownerGone = nil
			if !s.detached {
				err = errEnd
			}
		case <-signals:
			err = errEnd
		case <-timeout:
			if !s.ready {
				err = fmt.Errorf("not ready within %d s; the logs are in %s", s.spec.TimeoutSeconds, s.folder)
			}
		}
	}
	if left := s.endAll(); left != nil && err == errEnd {
		err = left
	} else if left != nil {
		err = fmt.Errorf("%w; %w", err, left)
	}
	if err == errEnd {
		s.writeState("ended")
		return nil
	}
	s.writeState(fmt.Sprintf("failed: %v", err))
	if !s.detached && ownerGone != nil {
		// The owner reads the logs before it lets go of the folder.
		fmt.Printf("failed: %v\n", err)
		<-ownerGone
		return nil
	}
	return err
}

// post hands an event to the main goroutine, unless that has ended.
func (s *supervisor) post(event func() error) {
	select {
	case s.events <- event:
	case <-s.done:
	}
}

// read turns the owner's lines into events, until there are no more.
func (s *supervisor) read(ownerGone chan<- struct{}) {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		verb, name, _ := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		if verb == "ready" {
			s.answerWhenReady()
			continue
		}
		s.post(func() error {
			pid, err := s.command(verb, name)
			if err != nil {
				fmt.Printf("error: %v\n", err)
				return nil
			}
			s.writeState("")
			fmt.Printf("ok %d\n", pid)
			return nil
		})
	}
	close(ownerGone)
}

// answerWhenReady probes again, for owners that have restarted or thawed a program.
func (s *supervisor) answerWhenReady() {
	stop := make(chan struct{})
	timer := time.AfterFunc(time.Duration(s.spec.TimeoutSeconds)*time.Second, func() { close(stop) })
	defer timer.Stop()
	for _, probe := range s.spec.Ready {
		succeeded := false
		s.prober.until(probe, stop, func() { succeeded = true })
		if !succeeded {
			fmt.Printf("error: %v did not succeed within %d s\n", probe, s.spec.TimeoutSeconds)
			return
		}
	}
	fmt.Printf("ok %d\n", os.Getpid())
}

func (s *supervisor) command(verb, name string) (int, error) {
	switch verb {
	case "detach":
		s.detached = true
		return os.Getpid(), nil
	case "forward":
		if s.node == nil {
			return 0, fmt.Errorf("there is no node to open a door of")
		}
		listen, to, _ := strings.Cut(name, " ")
		return os.Getpid(), openForward(s.node.network(), Forward{Listen: listen, To: to, Outward: true})
	}
	var program *Program
	for i := range s.spec.Programs {
		if s.spec.Programs[i].Name == name {
			program = &s.spec.Programs[i]
		}
	}
	if program == nil {
		return 0, fmt.Errorf("no program is called %q", name)
	}
	switch verb {
	case "stop":
		r := s.running[name]
		if r == nil {
			return 0, fmt.Errorf("%s is not running", name)
		}
		delete(s.running, name)
		return r.cmd.Process.Pid, s.end(*program, r)
	case "start":
		if s.running[name] != nil {
			return 0, fmt.Errorf("%s is running", name)
		}
		if err := s.start(*program); err != nil {
			return 0, err
		}
		return s.running[name].cmd.Process.Pid, nil
	}
	return 0, fmt.Errorf("%q is no command: start NAME, stop NAME, ready, forward LISTEN TO, detach", verb)
}

// startAll starts each program once what it comes after is there, and says "ready" when every probe has succeeded.
func (s *supervisor) startAll() error {
	s.writeState("starting")
	if s.spec.Node != nil {
		if err := s.startNode(*s.spec.Node); err != nil {
			return err
		}
	}
	for _, program := range s.spec.Programs {
		if len(program.After) == 0 {
			if err := s.start(program); err != nil {
				return err
			}
			continue
		}
		go func() {
			s.prober.untilAll(program.After, s.done)
			s.post(func() error { return s.start(program) })
		}()
	}
	go func() {
		s.prober.untilAll(s.spec.Ready, s.done)
		s.post(func() error {
			s.ready = true
			s.writeState("ready")
			fmt.Println("ready")
			return nil
		})
	}()
	return nil
}

// startNode makes the node's namespaces and the doors to them. Their end ends all.
func (s *supervisor) startNode(spec NodeSpec) error {
	node, err := newNamespaces(s.folder, spec)
	if err != nil {
		return err
	}
	s.node = node
	s.writeState("")
	go func() {
		<-node.dying
		s.post(func() error { return fmt.Errorf("%s ended, and the node with it", initName) })
	}()
	for _, forward := range spec.Forwards {
		if err := openForward(node.network(), forward); err != nil {
			return err
		}
	}
	return nil
}

// start must be called on the main goroutine: see init.
func (s *supervisor) start(program Program) error {
	log, err := os.OpenFile(filepath.Join(s.folder, program.Name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(program.Path, program.Args...)
	cmd.Dir = s.folder
	cmd.Env = append(os.Environ(), program.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if !program.Inside {
		// Those inside end with the first process there, and can't see that we are their parent: Go would take us for
		// dead.
		cmd.SysProcAttr.Pdeathsig = program.endSignal()
	}
	if program.UID != nil && program.GID != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: *program.UID, Gid: *program.GID}
		cmd.Dir = "/"
	}
	if program.Inside {
		err = s.node.enter(cmd.Start)
	} else {
		err = cmd.Start()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", program.Name, err)
	}
	r := &running{cmd: cmd, ended: make(chan struct{})}
	s.running[program.Name] = r
	s.writeState("")
	go func() {
		_ = cmd.Wait()
		close(r.ended)
		s.post(func() error { return s.lost(program, r) })
	}()
	return nil
}

// lost deals with the end of a process: nothing if it was asked for, else another one, within limits.
func (s *supervisor) lost(program Program, r *running) error {
	if s.running[program.Name] != r {
		return nil
	}
	delete(s.running, program.Name)
	if !s.ready {
		return fmt.Errorf("%s ended while starting (%v)", program.Name, r.cmd.ProcessState)
	}
	now := time.Now()
	for len(s.restarts) > 0 && now.Sub(s.restarts[0]) > restartsReset {
		s.restarts = s.restarts[1:]
	}
	if len(s.restarts) == restartsLimit {
		return fmt.Errorf("%s ended (%v), after %d restarts within a minute", program.Name, r.cmd.ProcessState, restartsLimit)
	}
	s.restarts = append(s.restarts, now)
	s.writeState("")
	time.AfterFunc(restartDelay, func() {
		s.post(func() error {
			if s.running[program.Name] != nil {
				return nil
			}
			return s.start(program)
		})
	})
	return nil
}

// end sends the program's signal and waits for the end, which SIGKILL brings if need be.
func (s *supervisor) end(program Program, r *running) error {
	_ = r.cmd.Process.Signal(program.endSignal())
	// A stopped process takes no signal but SIGKILL.
	_ = r.cmd.Process.Signal(syscall.SIGCONT)
	select {
	case <-r.ended:
		return nil
	case <-time.After(endGrace):
	}
	_ = r.cmd.Process.Kill()
	select {
	case <-r.ended:
		return nil
	case <-time.After(killGrace):
		return fmt.Errorf("%s does not end: %s", program.Name, describeProcess(strconv.Itoa(r.cmd.Process.Pid)))
	}
}

// endAll ends everything, and tells what does not end: one of them.
func (s *supervisor) endAll() (err error) {
	if s.node != nil {
		// At once: a node's programs need no time to end well, and would start others meanwhile.
		s.node.kill()
		err = s.node.end()
	}
	for i := len(s.spec.Programs) - 1; i >= 0; i-- {
		program := s.spec.Programs[i]
		if r := s.running[program.Name]; r != nil {
			delete(s.running, program.Name)
			err = cmp.Or(err, s.end(program, r))
		}
	}
	return err
}

// state is what state.json holds.
type state struct {
	State string         `json:"state"`
	PID   int            `json:"pid"`
	PIDs  map[string]int `json:"pids"`
}

// writeState writes state.json; an empty text keeps the last one, where only process ids have changed.
func (s *supervisor) writeState(text string) {
	if text != "" {
		s.state = text
	}
	now := state{State: s.state, PID: os.Getpid(), PIDs: map[string]int{}}
	for name, r := range s.running {
		now.PIDs[name] = r.cmd.Process.Pid
	}
	if s.node != nil {
		now.PIDs[initName] = s.node.init.Process.Pid
		now.PIDs[undertakerName] = s.node.undertaker.cmd.Process.Pid
	}
	data, err := json.MarshalIndent(now, "", "  ")
	if err != nil {
		return
	}
	path := filepath.Join(s.folder, "state.json")
	if err := os.WriteFile(path+".new", append(data, '\n'), 0o600); err == nil {
		_ = os.Rename(path+".new", path)
	}
}
