package engine

import (
	"bufio"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/cpu"
)

// peerPython is Debian's interpreter, for which python3-torch is installed. Another python3
// that comes earlier in the PATH would not find that package.
const peerPython = "/usr/bin/python3"

//go:embed peer.py
var peerScript string

// Peer is a process that runs PyTorch with the same model. It waits between requests, so
// that its measurements can alternate with those of the engine.
type Peer struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
}

// PeerModels returns the models that the peer has.
func PeerModels() []string { return []string{"bose2023", "dense"} }

// StartPeer starts PyTorch with a model and waits until it is ready.
func StartPeer(model string) (*Peer, error) {
	if !slices.Contains(PeerModels(), model) {
		return nil, fmt.Errorf("the peer has no model %s, only %s", model, strings.Join(PeerModels(), " and "))
	}
	// -I ignores PYTHONPATH and any torch in the working folder.
	cmd := exec.Command(peerPython, "-I", "-c", peerScript, "bench", model)
	cmd.Env = os.Environ()
	if core := openBLASCore(); core != "" && os.Getenv("OPENBLAS_CORETYPE") == "" {
		cmd.Env = append(cmd.Env, "OPENBLAS_CORETYPE="+core)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("the peer needs Debian's python3-torch and libopenblas0: %w", err)
	}
	p := &Peer{cmd: cmd, in: in, out: bufio.NewScanner(out)}
	var hello struct{ Name string }
	if err := p.answer(&hello); err != nil {
		p.Stop()
		if strings.Contains(stderr.String(), "No module named") {
			return nil, errors.New("the peer needs PyTorch: apt-get install python3-torch libopenblas0")
		}
		return nil, fmt.Errorf("the peer did not start: %w\n%s", err, stderr.String())
	}
	p.name = hello.Name
	return p, nil
}

// openBLASCore returns OpenBLAS's name for the CPU. OpenBLAS sometimes misdetects virtual
// machines and would then choose slower code.
func openBLASCore() string {
	switch {
	case cpu.X86.HasAVX512BF16:
		return "COOPERLAKE"
	case cpu.X86.HasAVX512F && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VL:
		return "SKYLAKEX"
	case cpu.X86.HasAVX2:
		return "HASWELL"
	}
	return ""
}

// fair reports whether the peer uses an optimized BLAS.
func (p *Peer) fair() bool { return !strings.Contains(p.name, "reference BLAS") }

// measure measures PyTorch in the same way as Run measures a kernel set.
func (p *Peer) measure(d time.Duration) (r rates, err error) {
	if r.train, err = p.train(d); err != nil {
		return r, err
	}
	if r.infer1, err = p.infer(1, d/2); err != nil {
		return r, err
	}
	r.infer256, err = p.infer(256, d/2)
	return r, err
}

// train returns PyTorch's number of training steps per second of CPU time.
func (p *Peer) train(d time.Duration) (float64, error) {
	return p.ask(fmt.Sprintf("train %g", d.Seconds()))
}

// infer returns the number of windows that PyTorch forecasts per second of CPU time, at the
// given batch size.
func (p *Peer) infer(batch int, d time.Duration) (float64, error) {
	return p.ask(fmt.Sprintf("infer %d %g", batch, d.Seconds()))
}

func (p *Peer) ask(request string) (float64, error) {
	if _, err := fmt.Fprintln(p.in, request); err != nil {
		return 0, fmt.Errorf("peer: %w", err)
	}
	var a struct {
		PerS float64 `json:"per_s"`
	}
	err := p.answer(&a)
	return a.PerS, err
}

func (p *Peer) answer(v any) error {
	if !p.out.Scan() {
		if err := p.out.Err(); err != nil {
			return fmt.Errorf("peer: %w", err)
		}
		return errors.New("peer: the process ended")
	}
	if err := json.Unmarshal(p.out.Bytes(), v); err != nil {
		return fmt.Errorf("peer: %w", err)
	}
	return nil
}

// Stop ends PyTorch's process.
func (p *Peer) Stop() {
	p.in.Close()
	_ = p.cmd.Wait() // all answers have been read
}
