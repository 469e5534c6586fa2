package leak

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"loadstar/fed"
	"loadstar/fed/setup"
	"loadstar/metric"
	"loadstar/nn"
	"loadstar/series"
)

// In this file's attacks, the server sends weights that nobody has trained.

// allInputs are the inputs of the default plan.
const allInputs = "inputs: [recent, lags, day, profiles, quartiles, level, ranks, calendar]"

// Default returns the way in which clients train in the default plan, at its maximum learning
// rate.
func Default() Way {
	return Way{"fedavg", "optimizer: adam, lr: 0.005, lr_end: 0, warmup: 0", 64, 8, 10}
}

// tensors returns the tensors of a model by name.
func tensors(s *setup.Setup) map[string]nn.Tensor {
	all := map[string]nn.Tensor{}
	for _, l := range s.Problem.Model.Net().Layers() {
		for _, x := range l.Tensors {
			all[x.Name] = x
		}
	}
	return all
}

// inputs returns the position of each input.
func inputs(s *setup.Setup) map[string]int {
	all := map[string]int{}
	for i, name := range s.Problem.InputNames() {
		all[name] = i
	}
	return all
}

// HourlyProfile returns the correlation of the mean load by hour with updates of honest
// weights. Of an update, it uses the change of the head's weight for each hour.
func HourlyProfile(ctx context.Context, t *Target, w Way, updates int) (float64, error) {
	plan := w.plan(1, calendar, "")
	s, err := t.Open(plan)
	if err != nil {
		return 0, err
	}
	m, at, head := t.meter(), inputs(s.Setup()), tensors(s.Setup())["head.weight"]
	shared, _ := s.Setup().InitialWeights()
	row := head.Offset + head.Shape[1] - len(at)
	got, truth, counts := make([]float64, 24), make([]float64, 24), make([]float64, 24)
	for r := range updates {
		u, err := s.Train(ctx, m, fed.Task{Run: "run", Round: r, Version: r, Shared: shared})
		if err != nil {
			return 0, err
		}
		for h := range got {
			got[h] += float64(u.Delta[row+at[fmt.Sprintf("hour.%d", h)]])
		}
	}
	for _, e := range Examples(s.Setup(), m, t.Kernel) {
		for h := range truth {
			if e.Inputs[at[fmt.Sprintf("hour.%d", h)]] > 0 {
				truth[h] += e.Target
				counts[h]++
			}
		}
	}
	for h := range truth {
		truth[h] /= counts[h]
	}
	return metric.Correlation(got, truth), nil
}

// kindsOfDay are weekdays, Saturday and Sunday.
var kindsOfDay = [][]int{{0, 1, 2, 3, 4}, {5}, {6}}

// MadeProfile returns the correlation of the mean load by hour and kind of day with the updates,
// if each unit of the first layer responds to one hour of one kind of day (S3).
func MadeProfile(ctx context.Context, t *Target, w Way, updates int) (float64, error) {
	s, err := t.Open(w.plan(1, allInputs, ""))
	if err != nil {
		return 0, err
	}
	m, at, x := t.meter(), inputs(s.Setup()), tensors(s.Setup())
	shared, _ := s.Setup().InitialWeights()
	clear(shared)
	first, bias, head := x["trunk.0.weight"], x["trunk.0.bias"], x["head.weight"]
	width := first.Shape[1]
	for unit := range first.Shape[0] {
		shared[bias.Offset+unit] = -1
		if unit >= 24*len(kindsOfDay) {
			continue
		}
		shared[bias.Offset+unit] = -3
		shared[first.Offset+unit*width+at[fmt.Sprintf("hour.%d", unit%24)]] = 2
		for _, d := range kindsOfDay[unit/24] {
			shared[first.Offset+unit*width+at[fmt.Sprintf("weekday.%d", d)]] = 2
		}
		shared[head.Offset+head.Shape[1]+unit] = 8 // relative to the median
	}
	for o := range head.Shape[0] {
		shared[x["head.bias"].Offset+o] = -3000 // below all loads, so that all slopes are equal
	}
	total := make([]float64, len(shared))
	for r := range updates {
		u, err := s.Train(ctx, m, fed.Task{Run: "run", Round: r, Version: r, Shared: shared})
		if err != nil {
			return 0, err
		}
		for i, v := range u.Delta {
			total[i] += float64(v)
		}
	}
	truth := t.meanByKind(s.Setup(), m)
	var sums, ratios []float64
	for unit := range truth {
		phase := 2 * math.Pi * float64(unit%24) / 24
		known, value := "cycle.sin1", math.Sin(phase)
		if math.Abs(value) < 0.5 {
			known, value = "cycle.cos1", math.Cos(phase)
		}
		change := func(name string) float64 { return total[first.Offset+unit*width+at[name]] }
		sum := change("profile.target") + change("level.mean")
		sums = append(sums, sum)
		ratio := 0.0
		if b := change(known) / value; b != 0 {
			ratio = max(min(sum/b, 5), -5)
		}
		ratios = append(ratios, ratio)
	}
	return max(math.Abs(metric.Correlation(sums, truth)), math.Abs(metric.Correlation(ratios, truth))), nil // the better one of two guesses
}

// meanByKind returns the mean load of the training data by kind of day and hour.
func (t *Target) meanByKind(s *setup.Setup, m series.Meter) []float64 {
	sums, counts := make([]float64, 24*len(kindsOfDay)), make([]float64, 24*len(kindsOfDay))
	for k, v := range m.Load[:s.Problem.Framer.Train(m)] {
		if series.Missing(v) {
			continue
		}
		at := t.Data.Time(m.Start, k)
		day := (int(at.Weekday()) + 6) % 7
		cell := 24*slices.IndexFunc(kindsOfDay, func(days []int) bool { return slices.Contains(days, day) }) + at.Hour()
		sums[cell] += float64(v)
		counts[cell]++
	}
	for i := range sums {
		sums[i] /= max(counts[i], 1)
	}
	return sums
}

// Days returns the number of whole Fridays that can be reconstructed from updates. All 24 readings
// of such a day are correct to within 0.05 standard deviations. Units of the first layer respond
// to the last hour of a Friday if the week's level is above a threshold, and the thresholds move
// slowly from version to version (S3).
func Days(ctx context.Context, t *Target, w Way, versions int) (found, fridays int, err error) {
	const units, slope, gain, low, high = 6, 0.02, 0.2, -0.8, 1.2
	s, err := t.Open(w.plan(1, allInputs, ""))
	if err != nil {
		return 0, 0, err
	}
	m, at, x := t.meter(), inputs(s.Setup()), tensors(s.Setup())
	initial, _ := s.Setup().InitialWeights()
	first, bias, second, head := x["trunk.0.weight"], x["trunk.0.bias"], x["trunk.2.weight"], x["head.weight"]
	width := first.Shape[1]
	var truth [][]float32
	for _, e := range Examples(s.Setup(), m, t.Kernel) {
		if e.Inputs[at["hour.23"]] == 1 && e.Inputs[at["weekday.4"]] == 1 {
			truth = append(truth, e.Inputs)
		}
	}
	seen := map[int]bool{}
	for v := range versions {
		shared := slices.Clone(initial)
		for u := range units {
			row := shared[first.Offset+u*width:][:width]
			clear(row)
			row[at["hour.23"]], row[at["weekday.4"]], row[at["level.mean"]] = 8*slope, 8*slope, slope
			position := float64(v*(units-1)+u) / float64(versions*(units-1))
			shared[bias.Offset+u] = -16*slope - float32(slope*(low+(high-low)*position))
			for j := range second.Shape[0] {
				shared[second.Offset+j*second.Shape[1]+u] = 0
			}
			for o := range head.Shape[0] {
				shared[head.Offset+o*head.Shape[1]+u] = 0
			}
			shared[head.Offset+head.Shape[1]+u] = gain
		}
		update, err := s.Train(ctx, m, fed.Task{Run: "run", Round: v, Version: v, Shared: shared})
		if err != nil {
			return 0, 0, err
		}
		for u := range units - 1 {
			change := func(i int) float64 {
				return float64(update.Delta[first.Offset+u*width+i]) - float64(update.Delta[first.Offset+(u+1)*width+i])
			}
			one := change(at["cycle.cos1"]) / math.Cos(2*math.Pi*23/24)
			for j, day := range truth {
				worst := 0.0
				for h := range 24 {
					i := at[fmt.Sprintf("recent.%d", h)]
					worst = max(worst, math.Abs(change(i)/one-float64(day[i])))
				}
				if one != 0 && worst < 0.05 {
					seen[j] = true
				}
			}
		}
	}
	return len(seen), len(truth), nil
}

// Windows reads single readings from scores. A stride leaves only a few windows, no two of which
// have the same hour and weekday. The weights make the forecast of one window very different, once
// below and once above all loads. A mean over many scores reduces the noise. Windows returns the
// correlation and the number of windows.
func Windows(t *Target, w Way, stride, rounds int) (float64, int, error) {
	const far = 40
	m := t.meter()
	s, err := t.Open(w.plan(3, "inputs: [recent, calendar], split: {train: 0.7, validation: 0.15}",
		fmt.Sprintf("evaluate: {every: 1, windows: 100000, stride: %d, reference: last-week}\n", stride)))
	if err != nil {
		return 0, 0, err
	}
	names, x := s.Setup().Problem.InputNames(), tensors(s.Setup())
	data := examples(s.Setup(), m)
	var got, truth []float64
	in, y := make([]float32, data.Inputs()), make([]float32, s.Setup().Problem.PerExample())
	for k := range data.Len(series.Validation) {
		last := data.At(series.Validation, k)
		if (last+1)%stride != 0 {
			continue
		}
		data.Gather(in, y, []series.Example{{Last: last}})
		shared := Constant(s.Setup(), 0)
		for i, name := range names {
			if (strings.HasPrefix(name, "hour.") || strings.HasPrefix(name, "weekday.")) && in[i] == 1 {
				shared[x["trunk.0.weight"].Offset+i] = 2
			}
		}
		shared[x["trunk.0.bias"].Offset] = -3
		sum, head := 0.0, x["head.weight"]
		for r := range rounds {
			for _, sign := range []float32{-1, 1} {
				jitter := 1 + float32(r)/float32(rounds) // makes rounding errors average out
				for o := range head.Shape[0] {
					shared[head.Offset+o*head.Shape[1]] = sign * far * jitter
				}
				relative, ok := s.Score(m, fed.Task{Run: "run", Round: r, Version: r, Shared: shared})
				if !ok {
					return 0, 0, nil
				}
				sum -= float64(sign) * relative
			}
		}
		got, truth = append(got, sum), append(truth, float64(y[0]))
	}
	return metric.Correlation(got, truth), len(got), nil
}
