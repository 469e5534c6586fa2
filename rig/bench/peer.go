package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// Python is Debian's interpreter, for which the libraries are installed. Another
// python3 that comes earlier in the PATH would not find them.
const Python = "/usr/bin/python3"

// Peer is a Python process that answers each line with a line of JSON.
type Peer struct {
	Name   string
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Scanner
	stderr strings.Builder
}

// StartPeer starts a script and waits until it has reported its name. needs lists the Debian
// packages that the script imports. The process ends when ctx does.
func StartPeer(ctx context.Context, needs string, env []string, script string, args ...string) (*Peer, error) {
	// -I ignores PYTHONPATH and any such library in the working folder.
	p := &Peer{cmd: exec.CommandContext(ctx, Python, append([]string{"-I", "-c", script}, args...)...)}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = &p.stderr
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewScanner(out)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("the peer needs Debian's %s: %w", needs, err)
	}
	var hello struct{ Name string }
	if err := p.answer(&hello); err != nil {
		if strings.Contains(p.stderr.String(), "No module named") {
			return nil, fmt.Errorf("the peer needs a library: apt-get install %s", needs)
		}
		return nil, err
	}
	p.Name = hello.Name
	return p, nil
}

// Ask sends a line and decodes the answer.
func (p *Peer) Ask(request string, answer any) error {
	if _, err := fmt.Fprintln(p.in, request); err != nil {
		return p.failed(err)
	}
	return p.answer(answer)
}

func (p *Peer) answer(v any) error {
	if !p.out.Scan() {
		return p.failed(p.out.Err())
	}
	if err := json.Unmarshal(p.out.Bytes(), v); err != nil {
		return p.failed(err)
	}
	return nil
}

// failed adds the last line that the peer printed as an error.
func (p *Peer) failed(err error) error {
	p.Stop() // all of its output is read after this
	lines := strings.Split(strings.TrimSpace(p.stderr.String()), "\n")
	return errors.Join(fmt.Errorf("the peer ended: %s", lines[len(lines)-1]), err)
}

// Stop ends the process.
func (p *Peer) Stop() {
	p.in.Close()
	_ = p.cmd.Wait() // its answers show whether it worked
}
