package skill

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// peerPython is Debian's interpreter, for which python3-sklearn is installed. Another
// python3 that comes earlier in the PATH would not find that package.
const peerPython = "/usr/bin/python3"

//go:embed peer.py
var peerScript string

// Peer is a process that fits gradient boosting with scikit-learn.
type Peer struct {
	name   string
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Scanner
	stderr strings.Builder
}

// StartPeer starts scikit-learn on one thread and waits until it is ready. The process ends
// when ctx does.
func StartPeer(ctx context.Context) (*Peer, error) {
	// -I ignores PYTHONPATH and any sklearn in the working folder.
	p := &Peer{cmd: exec.CommandContext(ctx, peerPython, "-I", "-c", peerScript)}
	p.cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1")
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
		return nil, fmt.Errorf("the peer needs Debian's python3-sklearn: %w", err)
	}
	var hello struct{ Name string }
	if err := p.answer(&hello); err != nil {
		p.Stop()
		if strings.Contains(p.stderr.String(), "No module named") {
			return nil, errors.New("the peer needs scikit-learn: apt-get install python3-sklearn")
		}
		return nil, err
	}
	p.name = hello.Name
	return p, nil
}

// Request asks the peer to fit one client. Boosting stops if the last Patience trees did
// not reduce the error on the validation split.
type Request struct {
	Folder    string  `json:"folder"`
	Inputs    int     `json:"inputs"`
	Deviation float64 `json:"deviation"`
	Loss      string  `json:"loss"`
	Rate      float64 `json:"rate"`
	Leaves    int     `json:"leaves"`
	Most      int     `json:"most"` // trees
	Patience  int     `json:"patience"`
}

// Fit is the peer's result for one client. Errors are in kW.
type Fit struct {
	Trees      int     `json:"trees"`
	Validation float64 `json:"validation_mae"`
	Test       float64 `json:"test_mae"`
	CPU        float64 `json:"cpu_s"`
}

// Fit fits one client.
func (p *Peer) Fit(r Request) (f Fit, err error) {
	line, err := json.Marshal(r)
	if err != nil {
		return f, err
	}
	if _, err := fmt.Fprintf(p.in, "%s\n", line); err != nil {
		return f, p.failed(err)
	}
	err = p.answer(&f)
	return f, err
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
	_ = p.cmd.Wait() // its answers tell whether it worked
}
