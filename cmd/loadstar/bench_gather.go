package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"loadstar/forecast"
	"loadstar/nn/kernel"
	"loadstar/series"
)

func newBenchWindows() *cobra.Command {
	var (
		asJSON     bool
		runs       int
		seconds    float64
		data, root string
	)
	cmd := &cobra.Command{
		Use:   "windows",
		Short: "Measure what gathering a batch costs beside training on it",
		Long: `Measure, on one core and in turn, gathering a batch of 64 windows of 12 steps by 8
inputs at random times out of random meters, and a training step of the bose2023 model
on such a batch. Also what finding a meter's examples costs, which is done once per
meter. Medians, in microseconds of CPU time.

The meters are those of --data, which must have weather and floor, wall and window
areas, or else 1,000 hourly years of random numbers.`,
		Example: "  loadstar bench windows\n  loadstar bench windows --data fleet.prepared",
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := benchTime(runs, seconds)
			if err != nil {
				return usageError{err, "bench windows "}
			}
			fleet, closer, err := benchFleet(1000)
			if data != "" {
				fleet, closer, err = openDataset(data, root)
			}
			if err != nil {
				return err
			}
			defer closer.Close()
			b, err := benchWindows(fleet, runs, d)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), b)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: gather %.1f us, step %.0f us (%s): %.1f %% of a step; finding a meter's examples %.0f us\n",
				count(b.Meters, "meter"), b.GatherMicros, b.StepMicros, b.Kernel, 100*b.Share, b.FindMicros)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().StringVar(&data, "data", "", "dataset to gather from")
	cmd.Flags().StringVar(&root, "root", "", rootUsage)
	cmd.Flags().IntVar(&runs, "runs", 7, "how many times to measure everything")
	cmd.Flags().Float64Var(&seconds, "seconds", 0.2, "CPU seconds of each measurement")
	return cmd
}

type windowsBench struct {
	Meters       int     `json:"meters"`
	Kernel       string  `json:"kernel"`
	GatherMicros float64 `json:"gather_us"`
	StepMicros   float64 `json:"step_us"`
	Share        float64 `json:"share"`
	FindMicros   float64 `json:"find_us"`
}

func benchWindows(fleet *series.Dataset, runs int, d time.Duration) (*windowsBench, error) {
	runtime.LockOSThread() // threadTime is the thread's
	defer runtime.UnlockOSThread()
	k, err := kernel.Default()
	if err != nil {
		return nil, err
	}
	m, err := forecast.New(benchModel, forecast.Shape{})
	if err != nil {
		return nil, err
	}
	var inputs []series.Input // those of bose2023
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
	w := newWorkload(m, k)
	lasts := make([]int, benchBatch)
	gather := func() {
		from := windows[rng.IntN(len(windows))]
		for i := range lasts {
			lasts[i] = from.At(series.Train, rng.IntN(from.Len(series.Train)))
		}
		from.Gather(w.x, w.y, lasts)
	}
	find := func() {
		meter := fleet.Meter(rng.IntN(fleet.Len()))
		frame.Windows(meter, frame.Ranges(meter))
	}
	var gathers, steps, shares, finds []float64
	for range runs {
		g, s := 1e6/rate(d, gather), 1e6/rate(d, w.train)
		gathers, steps, shares = append(gathers, g), append(steps, s), append(shares, g/s)
		finds = append(finds, 1e6/rate(d, find))
	}
	return &windowsBench{fleet.Len(), k.Name(), median(gathers), median(steps), median(shares), median(finds)}, nil
}

// benchFleet makes hourly years of random numbers.
func benchFleet(meters int) (*series.Dataset, io.Closer, error) {
	rng := rand.New(rand.NewPCG(1, 1))
	year := func() []float32 {
		x := make([]float32, 8760)
		for i := range x {
			x[i] = rng.Float32()
		}
		return x
	}
	all := make([]series.Meter, meters)
	for i := range all {
		all[i] = series.Meter{ID: fmt.Sprint(i), Load: year(), Static: []float32{rng.Float32(), rng.Float32(), rng.Float32()}}
	}
	d, err := series.NewDataset(series.Dataset{
		Name: "bench", Generated: true, Interval: time.Hour, Clock: time.UTC, StaticNames: []string{"floor_area", "wall_area", "window_area"},
		Weather: series.Weather{Names: []string{"temperature", "wind"}, Columns: [][]float32{year(), year()}},
	}, all)
	return d, io.NopCloser(nil), err
}
