package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"loadstar/forecast"
	"loadstar/nn"
	"loadstar/nn/kernel"
)

// The workload is that of bose2023: one client's local steps.
const (
	benchModel = "bose2023"
	benchBatch = 64
)

func newBenchEngine() *cobra.Command {
	var (
		asJSON, withPeer bool
		runs             int
		seconds          float64
		only             string
	)
	cmd := &cobra.Command{
		Use:   "engine",
		Short: "Measure the training engine on one core, for each kernel set",
		Long: `Measure the training engine on one core, for each kernel set that the CPU has:
training steps (forward, backward, Adam) of the bose2023 model at batch 64,
forecasts at batch 1 and 256, memory allocations per step, and the share of the
core's own peak of fused multiply-adds that training reaches.

Rates are per second of CPU time. Everything is measured in turn, several times
over, and the figures are medians; ratios are medians of the ratios within each
turn, so that a machine that changes its speed does not distort them.

With --peer the same model runs in PyTorch on one thread, in alternation. It needs
Debian's python3-torch and libopenblas0.`,
		Example: "  loadstar bench engine --peer\n  loadstar bench engine --json --kernel avx2",
		RunE: func(cmd *cobra.Command, _ []string) error {
			sets := kernel.Available()
			if only != "" {
				k, err := kernel.Select(only)
				if err != nil {
					return usageError{fmt.Errorf("--kernel: %w", err), "bench engine "}
				}
				sets = []*kernel.Set{k}
			}
			d, err := benchTime(runs, seconds)
			if err != nil {
				return usageError{err, "bench engine "}
			}
			var p *peer
			if withPeer {
				var err error
				if p, err = startPeer(); err != nil {
					return err
				}
				defer p.stop()
			}
			b, err := benchEngine(sets, p, runs, d, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), b)
			}
			return b.print(cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&withPeer, "peer", false, "measure PyTorch in alternation")
	cmd.Flags().IntVar(&runs, "runs", 7, "how many times to measure everything")
	cmd.Flags().Float64Var(&seconds, "seconds", 0.5, "CPU seconds of each measurement of training; others take half")
	cmd.Flags().StringVar(&only, "kernel", os.Getenv(kernel.Env), "measure this kernel set alone (default $"+kernel.Env+", or all that the CPU has)")
	return cmd
}

// benchTime checks the flags that every benchmark has.
func benchTime(runs int, seconds float64) (time.Duration, error) {
	if runs < 1 || !(seconds > 0 && seconds < 3600) {
		return 0, errors.New("--runs is at least 1, and --seconds above 0 and below 3600")
	}
	return time.Duration(seconds * float64(time.Second)), nil
}

// engineBench is the result of bench engine.
type engineBench struct {
	PeakGflops float64       `json:"peak_gflops"`
	Kernels    []kernelBench `json:"kernels"`
	Peer       *peerBench    `json:"peer,omitempty"`

	fair bool
}

type kernelBench struct {
	Name           string   `json:"name"`
	TrainStepsPerS float64  `json:"train_steps_per_s"`
	Infer1PerS     float64  `json:"infer1_per_s"`
	Infer256PerS   float64  `json:"infer256_per_s"`
	AllocsPerStep  float64  `json:"allocs_per_step"`
	PeakShare      float64  `json:"peak_share"`
	PeerRatio      *float64 `json:"peer_ratio,omitempty"`
	PeerRatio1     *float64 `json:"peer_infer1_ratio,omitempty"`
	PeerRatio256   *float64 `json:"peer_infer256_ratio,omitempty"`
}

type peerBench struct {
	Name           string  `json:"name"`
	TrainStepsPerS float64 `json:"train_steps_per_s"`
	Infer1PerS     float64 `json:"infer1_per_s"`
	Infer256PerS   float64 `json:"infer256_per_s"`
}

// rates are one turn's measurements of one engine.
type rates struct{ train, infer1, infer256 float64 }

func (r rates) over(q rates) rates {
	return rates{r.train / q.train, r.infer1 / q.infer1, r.infer256 / q.infer256}
}

// benchEngine measures the sets, and the peer unless it is nil, in turn.
func benchEngine(sets []*kernel.Set, p *peer, runs int, d time.Duration, progress io.Writer) (*engineBench, error) {
	runtime.LockOSThread() // threadTime is the thread's
	defer runtime.UnlockOSThread()
	m, err := forecast.New(benchModel, forecast.Shape{})
	if err != nil {
		return nil, err
	}
	_, flops := m.Net().Flops(benchBatch)

	var (
		peaks     []float64
		ours      = make([][]rates, len(sets))
		share     = make([][]float64, len(sets))
		peers     []rates
		ratios    = make([][]rates, len(sets))
		workloads []*workload
	)
	for _, k := range sets {
		workloads = append(workloads, newWorkload(m, k))
	}
	fastest := kernel.Available()[0]
	bar := newProgress(progress, runs)
	defer bar.stop()
	for run := range runs {
		var theirs rates
		if p != nil {
			if theirs, err = measurePeer(p, d); err != nil {
				return nil, err
			}
			peers = append(peers, theirs)
		}
		for i, w := range workloads {
			peak := peakRate(fastest, d/10)
			r := w.measure(d)
			peak = (peak + peakRate(fastest, d/10)) / 2
			peaks = append(peaks, peak)
			ours[i] = append(ours[i], r)
			share[i] = append(share[i], r.train*float64(flops)/peak)
			if p != nil {
				ratios[i] = append(ratios[i], r.over(theirs))
			}
		}
		bar.set(run+1, "")
	}

	b := &engineBench{PeakGflops: median(peaks) / 1e9, fair: p == nil || p.fair()}
	for i, w := range workloads {
		r := medianRates(ours[i])
		k := kernelBench{
			Name: w.k.Name(), TrainStepsPerS: r.train, Infer1PerS: r.infer1, Infer256PerS: r.infer256,
			AllocsPerStep: w.allocations(), PeakShare: median(share[i]),
		}
		if p != nil {
			q := medianRates(ratios[i])
			k.PeerRatio, k.PeerRatio1, k.PeerRatio256 = &q.train, &q.infer1, &q.infer256
		}
		b.Kernels = append(b.Kernels, k)
	}
	if p != nil {
		r := medianRates(peers)
		b.Peer = &peerBench{p.name, r.train, r.infer1, r.infer256}
	}
	return b, nil
}

func measurePeer(p *peer, d time.Duration) (r rates, err error) {
	if r.train, err = p.train(d); err != nil {
		return r, err
	}
	if r.infer1, err = p.infer(1, d/2); err != nil {
		return r, err
	}
	r.infer256, err = p.infer(256, d/2)
	return r, err
}

// workload is what one kernel set is measured on.
type workload struct {
	k             *kernel.Set
	ws            *nn.Workspace
	w, g, m, v    []float32
	x, y          []float32
	many, outputs []float32
	step          int
}

func newWorkload(model *forecast.Model, k *kernel.Set) *workload {
	net := model.Net()
	n, window := net.Weights(), net.Lookback()*net.Inputs()
	rng := rand.New(rand.NewPCG(1, 1))
	normal := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		return x
	}
	return &workload{
		k: k, ws: net.NewWorkspace(k, benchBatch),
		w: model.InitialWeights(1), g: make([]float32, n), m: make([]float32, n), v: make([]float32, n),
		x: normal(benchBatch * window), y: normal(benchBatch),
		many: normal(256 * window), outputs: make([]float32, 256),
	}
}

func (w *workload) train() {
	w.step++
	w.ws.Gradient(w.g, w.w, w.x, w.y, nn.MSE{})
	w.k.Adam(w.w, w.g, w.m, w.v, kernel.AdamStep{Rate: 0.001, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Step: w.step})
}

func (w *workload) infer(batch int) {
	w.ws.Predict(w.outputs[:batch], w.w, w.many[:batch*len(w.many)/256])
}

func (w *workload) measure(d time.Duration) rates {
	return rates{
		train:    rate(d, w.train),
		infer1:   rate(d/2, func() { w.infer(1) }),
		infer256: 256 * rate(d/2, func() { w.infer(256) }),
	}
}

// allocations counts them over enough steps to see one in ten. Something else in the
// process allocates a few times a second: so the least of some counts.
func (w *workload) allocations() float64 {
	const steps = 10
	least := math.Inf(1)
	for range 20 {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for range steps {
			w.train()
		}
		runtime.ReadMemStats(&after)
		least = min(least, float64(after.Mallocs-before.Mallocs)/steps)
	}
	return least
}

// rate returns calls of f per second of this thread's CPU time. It looks at the
// clock, which costs a system call, about a hundred times in all.
func rate(d time.Duration, f func()) float64 {
	for range 3 {
		f()
	}
	start, calls, spent := threadTime(), 0, time.Duration(0)
	for burst := 1; spent < d; {
		for range burst {
			f()
		}
		calls += burst
		spent = threadTime() - start
		if spent < d/100 {
			burst *= 2
		}
	}
	return float64(calls) / spent.Seconds()
}

// peakRate returns the multiply-adds per second that the core does at best, as
// floating-point operations.
func peakRate(k *kernel.Set, d time.Duration) float64 {
	flops := 0.0
	return rate(d, func() { flops = float64(k.FMAPeak(10_000)) }) * flops
}

func median(x []float64) float64 {
	s := slices.Sorted(slices.Values(x))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

func medianRates(r []rates) rates {
	pick := func(f func(rates) float64) float64 {
		x := make([]float64, len(r))
		for i := range r {
			x[i] = f(r[i])
		}
		return median(x)
	}
	return rates{
		pick(func(r rates) float64 { return r.train }),
		pick(func(r rates) float64 { return r.infer1 }),
		pick(func(r rates) float64 { return r.infer256 }),
	}
}

func (b *engineBench) print(w io.Writer) error {
	fmt.Fprintf(w, "%s, batch %d, one core; its FMA peak is %.0f GFLOP/s\n\n", benchModel, benchBatch, b.PeakGflops)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "KERNELS\tTRAIN/S\tOF PEAK\tALLOCS/STEP\tINFER 1/S\tINFER 256/S\t")
	for _, k := range b.Kernels {
		fmt.Fprintf(t, "%s\t%.0f\t%.1f %%\t%g\t%.0f\t%.0f\t\n", k.Name, k.TrainStepsPerS, 100*k.PeakShare, k.AllocsPerStep, k.Infer1PerS, k.Infer256PerS)
	}
	if b.Peer != nil {
		fmt.Fprintf(t, "peer\t%.0f\t\t\t%.0f\t%.0f\t\n", b.Peer.TrainStepsPerS, b.Peer.Infer1PerS, b.Peer.Infer256PerS)
		for _, k := range b.Kernels {
			fmt.Fprintf(t, "%s/peer\t%.1f x\t\t\t%.1f x\t%.1f x\t\n", k.Name, *k.PeerRatio, *k.PeerRatio1, *k.PeerRatio256)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if b.Peer != nil {
		fmt.Fprintf(w, "\nThe peer is %s, one thread.\n", b.Peer.Name)
	}
	if !b.fair {
		fmt.Fprintln(w, "It multiplies with the reference BLAS, which is slow: install libopenblas0 for a fair comparison.")
	}
	return nil
}
