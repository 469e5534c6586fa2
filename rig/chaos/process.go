package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"loadstar/rig/product"
)

// part is a process of the system that can be killed and restarted.
type part interface {
	Kind() string
	Name() string
	// Start starts the process and does not wait until it is ready.
	Start() error
	// Kill ends the process with SIGKILL, Stop with SIGTERM. Both wait for its end.
	Kill() error
	Stop() error
	// Log returns the last bytes of the process's log.
	Log(bytes int) string
}

// process is a part that runs the binary under test. Every start appends to the same log.
// If the process ends by itself, it is restarted, as a service supervisor would do.
type process struct {
	kind, name string
	bin, log   string
	args       []string
	env        []string // further variables of the environment

	mu     sync.Mutex
	wanted bool
	child  *product.Process
	ended  chan struct{} // closed after the child's end is recorded
	code   int           // the child's exit code
	exits  []string      // last log lines of processes that ended by themselves
}

const (
	// stopFor is longer than the server's time limit for open calls at shutdown.
	stopFor   = 30 * time.Second
	respawnIn = 500 * time.Millisecond
)

func (p *process) Kind() string { return p.kind }
func (p *process) Name() string { return p.name }

func (p *process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wanted = true
	if p.child != nil {
		return nil
	}
	return p.launch()
}

// launch starts a child process. The caller must hold the lock.
func (p *process) launch() error {
	cmd := exec.Command(p.bin, p.args...)
	cmd.Env = append(os.Environ(), p.env...)
	child, err := product.Start(cmd, p.log)
	if err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	ended := make(chan struct{})
	p.child, p.ended = child, ended
	go func() {
		<-child.Done()
		p.over(child.State(), ended)
	}()
	return nil
}

// over records that the child has ended, and schedules a restart if it should be running.
func (p *process) over(s *os.ProcessState, ended chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer close(ended)
	p.child, p.code = nil, s.ExitCode()
	if !p.wanted {
		return
	}
	p.exits = append(p.exits, fmt.Sprintf("%s: %s", s, product.LastLine(p.Log(2000))))
	time.AfterFunc(respawnIn, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.wanted && p.child == nil {
			if err := p.launch(); err != nil {
				p.exits = append(p.exits, err.Error())
			}
		}
	})
}

// signal sends a signal to the child, if there is one, and returns the channel that is
// closed when it has ended.
func (p *process) signal(s syscall.Signal) (ended chan struct{}, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wanted = false
	if p.child == nil {
		return nil, nil
	}
	if err := p.child.Signal(s); err != nil {
		return nil, err
	}
	return p.ended, nil
}

// Kill implements part.
func (p *process) Kill() error {
	ended, err := p.signal(syscall.SIGKILL)
	if ended != nil {
		<-ended
	}
	return err
}

// Stop implements part. It returns an error if the process ends late or with an error.
func (p *process) Stop() error {
	ended, err := p.signal(syscall.SIGTERM)
	if ended == nil {
		return err
	}
	select {
	case <-ended:
	case <-time.After(stopFor):
		return errors.Join(fmt.Errorf("%s did not end within %s of SIGTERM", p.name, stopFor), p.Kill())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// The signal kills a process that has not installed its signal handler yet. Its exit code
	// is then -1.
	if p.code != 0 && p.code != -1 {
		return fmt.Errorf("%s ended with code %d after SIGTERM: %s", p.name, p.code, product.LastLine(p.Log(2000)))
	}
	return nil
}

// Started reports whether the process should be running.
func (p *process) Started() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.wanted
}

// Exits returns the last log line of each process that ended by itself.
func (p *process) Exits() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exits
}

// Log implements part.
func (p *process) Log(n int) string { return tail(p.log, n) }

// tail returns the last bytes of a file, starting at the beginning of a line.
func tail(path string, n int) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err.Error()
	}
	from := max(info.Size()-int64(n), 0)
	b := make([]byte, info.Size()-from)
	k, _ := f.ReadAt(b, from)
	b = bytes.TrimSpace(b[:k])
	if i := bytes.IndexByte(b, '\n'); from > 0 && i >= 0 {
		b = b[i+1:]
	}
	return string(b)
}
