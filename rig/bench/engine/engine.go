// Package engine benchmarks the training engine on one core: training steps, forecasts and
// gathering batches. For comparison, it also measures PyTorch with the same model.
package engine

import (
	"math"
	"runtime"
	"time"

	"loadstar/forecast"
	"loadstar/internal/proc"
	"loadstar/nn/kernel"
	"loadstar/rig/bench"
)

// Result contains the measurements of the engine as medians over all runs.
type Result struct {
	PeakGflops float64      `json:"peak_gflops"`
	Kernels    []Kernel     `json:"kernels"`
	Peer       *PeerFigures `json:"peer,omitempty"`
	// Unfair means that PyTorch multiplies matrices with the slow reference BLAS, so that a
	// comparison would be unfair.
	Unfair bool `json:"-"`
}

// Kernel contains the measurements of one kernel set. A ratio is the median of the ratios
// of the individual runs.
type Kernel struct {
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

// PeerFigures contains the measurements of PyTorch.
type PeerFigures struct {
	Name           string  `json:"name"`
	TrainStepsPerS float64 `json:"train_steps_per_s"`
	Infer1PerS     float64 `json:"infer1_per_s"`
	Infer256PerS   float64 `json:"infer256_per_s"`
}

// rates are the measurements of one engine in one run, per second of CPU time.
type rates struct{ train, infer1, infer256 float64 }

func (r rates) over(q rates) rates {
	return rates{r.train / q.train, r.infer1 / q.infer1, r.infer256 / q.infer256}
}

// Run measures training and forecasts of a model with the peer, unless it is nil, and with
// every kernel set, one after the other. Each measurement is made runs times. A measurement of
// training takes CPU time d, and each of the other measurements takes half of d.
func Run(model string, sets []*kernel.Set, p *Peer, runs int, d time.Duration, progress bench.Progress) (*Result, error) {
	runtime.LockOSThread() // CPU time is measured per thread
	defer runtime.UnlockOSThread()
	m, err := forecast.New(model, forecast.Shape{})
	if err != nil {
		return nil, err
	}
	_, flops := m.Net().Flops(bench.Batch)

	var (
		peaks     []float64
		ours      = make([][]rates, len(sets))
		share     = make([][]float64, len(sets))
		peers     []rates
		ratios    = make([][]rates, len(sets))
		workloads = make([]*bench.Workload, len(sets))
	)
	for i, k := range sets {
		if workloads[i], err = bench.NewWorkload(k, model); err != nil {
			return nil, err
		}
	}
	fastest := kernel.Available()[0]
	for run := range runs {
		var theirs rates
		if p != nil {
			if theirs, err = p.measure(d); err != nil {
				return nil, err
			}
			peers = append(peers, theirs)
		}
		for i, w := range workloads {
			peak := peakRate(fastest, d/10)
			r := measure(w, d)
			peak = (peak + peakRate(fastest, d/10)) / 2
			peaks = append(peaks, peak)
			ours[i] = append(ours[i], r)
			share[i] = append(share[i], r.train*float64(flops)/peak)
			if p != nil {
				ratios[i] = append(ratios[i], r.over(theirs))
			}
		}
		progress(run+1, runs, "")
	}

	b := &Result{PeakGflops: bench.Median(peaks) / 1e9, Unfair: p != nil && !p.fair()}
	for i, w := range workloads {
		r := medianRates(ours[i])
		k := Kernel{
			Name: w.Kernel.Name(), TrainStepsPerS: r.train, Infer1PerS: r.infer1, Infer256PerS: r.infer256,
			AllocsPerStep: allocations(w), PeakShare: bench.Median(share[i]),
		}
		if p != nil {
			q := medianRates(ratios[i])
			k.PeerRatio, k.PeerRatio1, k.PeerRatio256 = &q.train, &q.infer1, &q.infer256
		}
		b.Kernels = append(b.Kernels, k)
	}
	if p != nil {
		r := medianRates(peers)
		b.Peer = &PeerFigures{p.Name, r.train, r.infer1, r.infer256}
	}
	return b, nil
}

func measure(w *bench.Workload, d time.Duration) rates {
	return rates{
		train:    proc.CPURate(d, w.Train),
		infer1:   proc.CPURate(d/2, func() { w.Infer(1) }),
		infer256: 256 * proc.CPURate(d/2, func() { w.Infer(256) }),
	}
}

// allocations returns the number of memory allocations per training step. It returns the
// minimum of several counts, since the runtime itself allocates a few times per second.
func allocations(w *bench.Workload) float64 {
	const steps = 10
	least := math.Inf(1)
	for range 20 {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for range steps {
			w.Train()
		}
		runtime.ReadMemStats(&after)
		least = min(least, float64(after.Mallocs-before.Mallocs)/steps)
	}
	return least
}

// peakRate returns the core's peak rate of fused multiply-adds, in floating-point
// operations per second.
func peakRate(k *kernel.Set, d time.Duration) float64 {
	flops := 0.0
	return proc.CPURate(d, func() { flops = float64(k.FMAPeak(10_000)) }) * flops
}

func medianRates(r []rates) rates {
	pick := func(f func(rates) float64) float64 {
		x := make([]float64, len(r))
		for i := range r {
			x[i] = f(r[i])
		}
		return bench.Median(x)
	}
	return rates{
		pick(func(r rates) float64 { return r.train }),
		pick(func(r rates) float64 { return r.infer1 }),
		pick(func(r rates) float64 { return r.infer256 }),
	}
}
