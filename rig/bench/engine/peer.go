package engine

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/cpu"

	"loadstar/rig/bench"
)

//go:embed peer.py
var peerScript string

// Peer is a process that runs PyTorch with the same model. It waits between requests, so
// that its measurements can alternate with those of the engine.
type Peer struct{ *bench.Peer }

// PeerModels returns the models that the peer supports.
func PeerModels() []string { return []string{"bose2023", "dense"} }

// StartPeer starts PyTorch with a model and waits until it is ready. The process ends when ctx
// does.
func StartPeer(ctx context.Context, model string) (*Peer, error) {
	if !slices.Contains(PeerModels(), model) {
		return nil, fmt.Errorf("the peer has no model %s, only %s", model, strings.Join(PeerModels(), " and "))
	}
	var env []string
	if core := openBLASCore(); core != "" && os.Getenv("OPENBLAS_CORETYPE") == "" {
		env = append(env, "OPENBLAS_CORETYPE="+core)
	}
	p, err := bench.StartPeer(ctx, "python3-torch libopenblas0", env, peerScript, "bench", model)
	return &Peer{p}, err
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
func (p *Peer) fair() bool { return !strings.Contains(p.Name, "reference BLAS") }

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
	var a struct {
		PerS float64 `json:"per_s"`
	}
	err := p.Ask(request, &a)
	return a.PerS, err
}
