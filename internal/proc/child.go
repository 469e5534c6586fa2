// Package proc starts child processes that end when this process ends, finds processes, and measures
// their CPU time and memory. On systems that do not report CPU time, it measures wall-clock time.
package proc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Child is a started process. Its methods are safe for concurrent use.
type Child struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

// Start starts a command and waits for it in the background. On Linux the child has its
// own process group, so a terminal's interrupt reaches only this process. The child
// receives the signal onDeath when this process ends for any reason. On other systems a
// child survives if this process is killed.
//
// The command's output must go to files or writers. A pipe from StdoutPipe could be closed
// while it is still being read.
func Start(cmd *exec.Cmd, onDeath syscall.Signal) (*Child, error) {
	bind(cmd, onDeath)
	c := &Child{cmd: cmd, ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		// Linux sends the signal when the thread that started the child ends, so this thread must
		// not end before the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // State returns the result
			close(c.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return c, nil
}

// Pid returns the process ID.
func (c *Child) Pid() int { return c.cmd.Process.Pid }

// Done is closed when the child has ended.
func (c *Child) Done() <-chan struct{} { return c.ended }

// State returns the child's exit state. Call it only after Done is closed.
func (c *Child) State() *os.ProcessState { return c.cmd.ProcessState }

// Signal sends a signal. It is not an error if the child has ended.
func (c *Child) Signal(s os.Signal) error {
	if err := c.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Kill kills the child and waits until it has ended.
func (c *Child) Kill() error {
	err := c.Signal(os.Kill)
	if err == nil {
		<-c.ended
	}
	return err
}

// Stop sends a signal and waits until the child has ended. After the given time it kills
// the child and returns an error.
func (c *Child) Stop(s os.Signal, within time.Duration) error {
	if err := c.Signal(s); err != nil {
		return errors.Join(err, c.Kill())
	}
	select {
	case <-c.ended:
		return nil
	case <-time.After(within):
		return errors.Join(fmt.Errorf("process %d did not end within %v after signal %v and was killed", c.Pid(), within, s), c.Kill())
	}
}
