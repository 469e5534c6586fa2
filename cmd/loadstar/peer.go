package main

import (
	"bufio"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/cpu"
)

// peerPython is Debian's own interpreter: python3-torch belongs to it, and another
// python3 earlier in the path would not find it.
const peerPython = "/usr/bin/python3"

//go:embed peer.py
var peerScript string

// peer is PyTorch on the identical model, in a process that waits between
// requests so that measurements can alternate with ours.
type peer struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
}

// startPeer starts PyTorch and waits until it is ready.
func startPeer() (*peer, error) {
	// -I keeps a torch in the working folder or in PYTHONPATH from standing in.
	cmd := exec.Command(peerPython, "-I", "-c", peerScript, "bench")
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
	p := &peer{cmd: cmd, in: in, out: bufio.NewScanner(out)}
	var hello struct{ Name string }
	if err := p.answer(&hello); err != nil {
		p.stop()
		if strings.Contains(stderr.String(), "No module named") {
			return nil, errors.New("the peer needs PyTorch: apt-get install python3-torch libopenblas0")
		}
		return nil, fmt.Errorf("the peer did not start: %w\n%s", err, stderr.String())
	}
	p.name = hello.Name
	return p, nil
}

// openBLASCore names the CPU's kind as OpenBLAS does. It misdetects virtual
// machines at times, and would then run slower code than the CPU can.
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

// fair says whether the peer multiplies matrices with an optimized library.
func (p *peer) fair() bool { return !strings.Contains(p.name, "reference BLAS") }

// train returns training steps per CPU second.
func (p *peer) train(d time.Duration) (float64, error) {
	return p.ask(fmt.Sprintf("train %g", d.Seconds()))
}

// infer returns windows forecast per CPU second, at the given batch size.
func (p *peer) infer(batch int, d time.Duration) (float64, error) {
	return p.ask(fmt.Sprintf("infer %d %g", batch, d.Seconds()))
}

func (p *peer) ask(request string) (float64, error) {
	if _, err := fmt.Fprintln(p.in, request); err != nil {
		return 0, fmt.Errorf("peer: %w", err)
	}
	var a struct {
		PerS float64 `json:"per_s"`
	}
	err := p.answer(&a)
	return a.PerS, err
}

func (p *peer) answer(v any) error {
	if !p.out.Scan() {
		if err := p.out.Err(); err != nil {
			return fmt.Errorf("peer: %w", err)
		}
		return errors.New("peer: it ended")
	}
	if err := json.Unmarshal(p.out.Bytes(), v); err != nil {
		return fmt.Errorf("peer: %w", err)
	}
	return nil
}

// stop ends the process.
func (p *peer) stop() {
	p.in.Close()
	_ = p.cmd.Wait() // its answers have been read
}
