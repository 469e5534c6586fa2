package engine

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"loadstar/internal/proc"
	"loadstar/nn/kernel"
	"loadstar/rig/bench"
	"loadstar/series"
)

// Windows contains the cost of gathering batches, in microseconds of CPU time. Each number
// is a median over all runs.
type Windows struct {
	Meters       int     `json:"meters"`
	Kernel       string  `json:"kernel"`
	GatherMicros float64 `json:"gather_us"`
	StepMicros   float64 `json:"step_us"`
	Share        float64 `json:"share"`
	FindMicros   float64 `json:"find_us"`
}

// RunWindows measures gathering a batch from random meters, a training step on that batch, and
// finding a meter's examples. Each measurement is made runs times, and takes CPU time d.
func RunWindows(fleet *series.Dataset, runs int, d time.Duration) (*Windows, error) {
	runtime.LockOSThread() // CPU time is measured per thread
	defer runtime.UnlockOSThread()
	k, err := kernel.Default()
	if err != nil {
		return nil, err
	}
	var inputs []series.Input // the inputs of bose2023
	for _, name := range []string{"load", "time_of_day", "day_of_week", "temperature", "wind", "floor_area", "wall_area", "window_area"} {
		inputs = append(inputs, series.Input{Name: name})
	}
	frame, err := series.NewFramer(fleet, series.Layout{Lookback: 12, Horizon: 1, Targets: 1, Inputs: inputs}, series.DefaultSplit)
	if err != nil {
		return nil, err
	}
	var windows []*series.Windows
	for i := range fleet.Len() {
		meter := fleet.Meter(i)
		if w := frame.Windows(meter, frame.Ranges(meter)); w.Len(series.Train) > 0 {
			windows = append(windows, w)
		}
	}
	if len(windows) == 0 {
		return nil, fmt.Errorf("no meter of %s has a complete window", fleet.Name)
	}
	rng := rand.New(rand.NewPCG(2, 2))
	w, err := bench.NewWorkload(k, bench.Model)
	if err != nil {
		return nil, err
	}
	examples := make([]series.Example, bench.Batch)
	gather := func() {
		from := windows[rng.IntN(len(windows))]
		for i := range examples {
			examples[i].Last = from.At(series.Train, rng.IntN(from.Len(series.Train)))
		}
		from.Gather(w.X, w.Y, examples)
	}
	find := func() {
		meter := fleet.Meter(rng.IntN(fleet.Len()))
		frame.Windows(meter, frame.Ranges(meter))
	}
	var gathers, steps, shares, finds []float64
	for range runs {
		g, s := 1e6/proc.CPURate(d, gather), 1e6/proc.CPURate(d, w.Train)
		gathers, steps, shares = append(gathers, g), append(steps, s), append(shares, g/s)
		finds = append(finds, 1e6/proc.CPURate(d, find))
	}
	return &Windows{fleet.Len(), k.Name(), bench.Median(gathers), bench.Median(steps), bench.Median(shares), bench.Median(finds)}, nil
}
