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
	"loadstar/nn/kernel"
	"loadstar/series"
)

// Target is a home under attack.
type Target struct {
	Data *series.Dataset
	// Meters are the indices of the homes. Attacks on a single home use the first one.
	Meters []int
	Kernel *kernel.Set
	Open   Open
}

func (t *Target) meter() series.Meter { return t.Data.Meter(t.Meters[0]) }

// open offers a plan to the target. It also returns the setup of an undefended host, from which
// the attacker's knowledge and the truth are computed.
func (t *Target) open(plan string) (s Session, known *setup.Setup, err error) {
	if s, err = t.Open(plan); err != nil {
		return nil, nil, err
	}
	truth, err := Undefended(t.Data, t.Kernel)(plan)
	if err != nil {
		return nil, nil, err
	}
	return s, truth.Setup(), nil
}

// Way is the part of a plan that determines how clients train, which an attacker can choose in
// addition to model and split.
type Way struct {
	Algorithm    string
	Client       string // the settings in the section client, except batch and steps
	Batch, Steps int    // 0 if an update is a full pass
	Cohort       int
}

// Still returns a way in which the weights of clients do not move.
func Still() Way { return Way{"fedavg", "optimizer: sgd, lr: 1.0e-12, lr_end: 0, warmup: 0", 32, 2, 2} }

// FullPass returns the way of plans that use the gradient over all examples of a client.
func FullPass() Way { return Way{Algorithm: "fedsgd", Cohort: 2} }

// Descent returns the way of plain gradient descent.
func Descent(rate float64, batch, steps int) Way {
	return Way{"fedavg", fmt.Sprintf("optimizer: sgd, lr: %e, lr_end: 0, warmup: 0", rate), batch, steps, 2}
}

// Allowed returns the way of a plan that the default policy accepts if the batch is at most an
// eighth of the client's examples. The weights move as little as the policy allows.
func Allowed(batch, steps int) Way {
	return Way{"fedavg", "optimizer: adam, lr: 1.0e-5, lr_end: 0, warmup: 0, moments: reset", batch, steps, 10}
}

// headAlone makes all layers but the head personal.
const headAlone = "partition: \"trunk.0,trunk.1,trunk.2,trunk.3,correction.0,correction.1,correction.2\"\n"

// plan returns a plan of the model dense.
func (w Way) plan(seed uint64, model, more string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "name: leak\nseed: %d\nalgorithm: %s\nrounds: 1000\n%s", seed, w.Algorithm, more)
	fmt.Fprintf(&b, "model: {name: dense, interval: 1h, targets: 1h, %s}\nschedule: {cohort: %d}\n", model, w.Cohort)
	if w.Steps > 0 {
		fmt.Fprintf(&b, "client: {%s, batch: %d, steps: %d}\n", w.Client, w.Batch, w.Steps)
	}
	if !strings.Contains(more, "server:") {
		b.WriteString("server: {clip: 1000}\n")
	}
	if !strings.Contains(more, "evaluate:") {
		b.WriteString("evaluate: {every: 0}\n")
	}
	return b.String()
}

const calendar = "inputs: [calendar], loss: mse"

// Losses (S1) solves the losses of rounds with known batches for each hour's loss.
func Losses(ctx context.Context, t *Target, w Way, rounds int) (float64, error) {
	const seed = 11
	plan := w.plan(seed, calendar, "")
	s, known, err := t.open(plan)
	if err != nil {
		return 0, err
	}
	m := t.meter()
	truth := Errors(Examples(known, m, t.Kernel))
	shared, _ := s.Setup().InitialWeights()
	var a []Entry
	var b []float64
	for r := range rounds {
		u, err := s.Train(ctx, m, fed.Task{Run: "run", Round: r, Version: r, Shared: shared})
		if err != nil {
			return 0, err
		}
		for _, k := range PublicBatches(seed, r, m.ID, len(truth), w.Batch, w.Steps) {
			a = append(a, Entry{r, k, 1})
		}
		b = append(b, u.TrainLoss*float64(w.Batch*w.Steps))
	}
	x := LeastSquares(a, len(truth), b, 3000)
	for i := range x {
		x[i] = math.Sqrt(max(x[i], 0))
		truth[i] = math.Sqrt(truth[i])
	}
	return metric.Correlation(x, truth), nil
}

// Weights (S2) solves the published weights of a run for the readings. A steep quantile loss
// makes all forecasts sink below the loads. From then on, each version is a sum of the readings
// in known batches. If strict is set, versions that are not such a sum are omitted. If single
// is set, the attacker sees the first home's updates instead of means.
func Weights(ctx context.Context, t *Target, w Way, rate float64, rounds int, strict, single bool) (float64, error) {
	const seed, quantile, lags = 7, 0.001, 24
	plan := w.plan(seed, fmt.Sprintf("inputs: [recent, level], loss: pinball, quantiles: [%g]", quantile), headAlone+"server: {clip: 1000, weighting: uniform}\n")
	s, known, err := t.open(plan)
	if err != nil {
		return 0, err
	}
	meters := t.Meters
	if single {
		meters = meters[:1]
	}
	var homes []home
	columns := 0
	for _, i := range meters {
		m := t.Data.Meter(i)
		data := examples(known, m)
		n := data.Len(series.Train)
		homes = append(homes, home{m, n, data.At(series.Train, 0), columns})
		columns += 2*n + lags - 1 // readings, levels
	}
	positions := make([]int, lags+1)
	for lag := range positions {
		name := fmt.Sprintf("recent.%d", lag)
		if lag == lags {
			name = "level.mean"
		}
		if positions[lag], err = position(known, name); err != nil {
			return 0, err
		}
	}
	shared, _ := s.Setup().InitialWeights()
	var a []Entry
	var b []float64
	bias, lift := len(shared)-1, rate*quantile*float64(w.Steps)
	scale := rate * quantile / float64(w.Batch) / float64(len(homes))
	for r := range rounds {
		sum := make([]float64, len(shared))
		for _, h := range homes {
			u, err := s.Train(ctx, h.meter, fed.Task{Run: "run", Round: r, Version: r, Shared: shared})
			if err != nil {
				return 0, err
			}
			for i, v := range u.Delta {
				sum[i] += float64(v) / float64(len(homes))
			}
		}
		before := slices.Clone(shared)
		for i := range shared {
			shared[i] = float32(float64(shared[i]) + sum[i])
		}
		// If all forecasts are below the loads, the bias moves by the same amount in every round.
		if moved := float64(shared[bias]) - float64(before[bias]); strict && math.Abs(moved-lift) > 0.02*lift {
			continue
		}
		for lag, at := range positions {
			for _, h := range homes {
				for _, x := range PublicBatches(seed, r, h.meter.ID, h.examples, w.Batch, w.Steps) {
					level := h.column + h.examples + lags - 1 + x
					if lag < lags {
						a = append(a, Entry{len(b), h.column + x + lags - 1 - lag, 1}, Entry{len(b), level, -1})
					} else {
						a = append(a, Entry{len(b), level, 1})
					}
				}
			}
			b = append(b, (float64(shared[at])-float64(before[at]))/scale)
		}
	}
	x := LeastSquares(a, columns, b, 500)
	worst := math.Inf(1)
	for _, h := range homes {
		var truth []float64
		for k := range h.examples + lags - 1 {
			truth = append(truth, float64(h.meter.Load[h.first-lags+1+k]))
		}
		worst = min(worst, math.Abs(metric.Correlation(x[h.column:][:len(truth)], truth)))
	}
	return worst, nil
}

// home is a home whose readings are unknowns in a system of equations.
type home struct {
	meter                   series.Meter
	examples, first, column int
}

// split returns settings that end the training data after a number of hours.
func (t *Target) split(hours int) string {
	return fmt.Sprintf(", split: {train: %.7f, validation: 0.1}", (float64(hours)+0.5)/float64(len(t.meter().Load)))
}

// Cuts (N1) compares the losses of plans whose training data ends an hour later each time. It
// uses a few seeds for each plan, because the data of two plans is scaled differently.
func Cuts(ctx context.Context, t *Target, w Way, from, hours, rounds int) (float64, error) {
	const seeds = 3
	m := t.meter()
	var got, truth []float64
	var last [seeds]float64
	for h := range hours + 1 {
		var p, output [seeds]float64
		var newest Example
		for i := range seeds {
			plan := w.plan(uint64(i+1), calendar+t.split(from+h), "")
			s, known, err := t.open(plan)
			if err != nil {
				return 0, err
			}
			shared, _ := s.Setup().InitialWeights()
			loss := 0.0
			for r := range rounds {
				u, err := s.Train(ctx, m, fed.Task{Run: "run", Round: r, Version: r, Shared: shared})
				if err != nil {
					return 0, err
				}
				loss += u.TrainLoss / float64(rounds)
			}
			all, squares := Examples(known, m, t.Kernel), 0.0
			for _, e := range all {
				squares += e.Output * e.Output
			}
			newest = all[len(all)-1]
			p[i], output[i] = -(float64(len(all))*loss-squares)/2, newest.Output
		}
		if h > 0 {
			got, truth = append(got, newReading(p[:], last[:], output[:])), append(truth, newest.Target)
		}
		last = p
	}
	return metric.Correlation(got, truth), nil
}

// newReading returns the reading by which the sums of products of outputs and readings differ,
// for several seeds. The scale factor of the older readings is unknown, but is the same for all
// seeds.
func newReading(now, before, output []float64) float64 {
	var a11, a12, a22, b1, b2 float64
	for i := 1; i < len(now); i++ {
		old, change, o := before[i]-before[0], now[i]-now[0]-before[i]+before[0], output[i]-output[0]
		a11, a12, a22 = a11+old*old, a12+old*o, a22+o*o
		b1, b2 = b1+old*change, b2+o*change
	}
	return (a11*b2 - a12*b1) / (a11*a22 - a12*a12)
}

// Updates (N2, N3) compares the updates of plans whose training data ends an hour later each
// time. With several homes, the attacker sees the published means of all cohorts that lack one
// home. It returns the correlation for each home. scale is the factor that converts an update
// of weights to a gradient.
func Updates(ctx context.Context, t *Target, w Way, scale float64, from, hours, rounds int) ([]float64, error) {
	got, truth := make([][]float64, len(t.Meters)), make([][]float64, len(t.Meters))
	last := make([][]float64, len(t.Meters))
	for h := range hours + 1 {
		plan := w.plan(5, calendar+t.split(from+h), headAlone+"server: {clip: 1000, weighting: uniform}\n")
		s, known, err := t.open(plan)
		if err != nil {
			return nil, err
		}
		published, err := t.published(ctx, s, from+h, rounds)
		if err != nil {
			return nil, err
		}
		first, err := position(known, "hour.0")
		if err != nil {
			return nil, err
		}
		hour := slices.Index(known.Problem.InputNames(), "hour.0")
		for i, index := range t.Meters {
			all := Examples(known, t.Data.Meter(index), t.Kernel)
			sums := make([]float64, 24)
			newest := all[len(all)-1]
			at := slices.Index(newest.Inputs[hour:hour+24], 1)
			for k := range sums {
				sums[k] = float64(len(all)) * scale * alone(published, i, first+k) / 2
				for _, e := range all {
					sums[k] += e.Output * float64(e.Inputs[hour+k])
				}
			}
			if before := last[i]; before != nil {
				num, den := 0.0, 0.0
				for k := range sums {
					if k != at {
						num, den = num+sums[k]*before[k], den+before[k]*before[k]
					}
				}
				got[i], truth[i] = append(got[i], sums[at]-num/den*before[at]), append(truth[i], newest.Target)
			}
			last[i] = sums
		}
	}
	all := make([]float64, len(got))
	for i := range got {
		all[i] = metric.Correlation(got[i], truth[i])
	}
	return all, nil
}

// published returns the mean change of the weights in one round, for each cohort that lacks one of
// the homes, or for the only home.
func (t *Target) published(ctx context.Context, s Session, run, rounds int) ([][]float64, error) {
	shared, _ := s.Setup().InitialWeights()
	own := make([][]float64, len(t.Meters))
	for i, index := range t.Meters {
		own[i] = make([]float64, len(shared))
		for r := range rounds {
			u, err := s.Train(ctx, t.Data.Meter(index), fed.Task{Run: fmt.Sprint("run-", run), Round: r, Shared: shared})
			if err != nil {
				return nil, err
			}
			for j, v := range u.Delta {
				own[i][j] += float64(v) / float64(rounds)
			}
		}
	}
	if len(own) == 1 {
		return own, nil
	}
	cohorts := make([][]float64, len(own))
	for lacking := range own {
		for j, v := range shared {
			mean := 0.0
			for i := range own {
				if i != lacking {
					mean += own[i][j] / float64(len(own)-1)
				}
			}
			cohorts[lacking] = append(cohorts[lacking], float64(float32(float64(v)+mean))-float64(v)) // weights are float32
		}
	}
	return cohorts, nil
}

// alone computes one number of a home's own update from the updates of the cohorts.
func alone(cohorts [][]float64, home, at int) (sum float64) {
	if len(cohorts) == 1 {
		return cohorts[0][at]
	}
	for _, c := range cohorts {
		sum += c[at]
	}
	return sum - float64(len(cohorts)-1)*cohorts[home][at]
}

// Seeds (N4) solves the losses of plans with different seeds for the mean load by hour and weekday.
// It uses the best of several numbers of iterations, because fewer iterations are better if there
// is noise.
func Seeds(ctx context.Context, t *Target, w Way, plans int, iterations ...int) (float64, error) {
	m := t.meter()
	cells := map[string]int{}
	var sums, counts []float64
	var a []Entry
	var b []float64
	var cellOf []int // by example
	for r := range plans {
		plan := w.plan(uint64(1000+r), calendar, "")
		s, known, err := t.open(plan)
		if err != nil {
			return 0, err
		}
		shared, _ := s.Setup().InitialWeights()
		u, err := s.Train(ctx, m, fed.Task{Run: "run", Shared: shared})
		if err != nil {
			return 0, err
		}
		all := Examples(known, m, t.Kernel)
		if r == 0 {
			for _, e := range all {
				key := fmt.Sprint(e.Inputs)
				if _, ok := cells[key]; !ok {
					cells[key], sums, counts = len(cells), append(sums, 0), append(counts, 0)
				}
				sums[cells[key]] += e.Target
				counts[cells[key]]++
				cellOf = append(cellOf, cells[key])
			}
		}
		row, squares := make([]float64, len(cells)), 0.0
		for i, e := range all {
			row[cellOf[i]] -= 2 * e.Output
			squares += e.Output * e.Output
		}
		for cell, v := range row {
			a = append(a, Entry{r, cell + 1, v})
		}
		a = append(a, Entry{r, 0, 10}) // the sum of squared loads, the same for all plans
		b = append(b, float64(len(all))*u.TrainLoss-squares)
	}
	strongest := 0.0
	for _, n := range iterations {
		x := LeastSquares(a, len(sums)+1, b, n)
		means := make([]float64, len(sums))
		for i := range means {
			means[i] = sums[i] / counts[i]
		}
		if c := metric.Correlation(x[1:], means); math.Abs(c) > math.Abs(strongest) {
			strongest = c
		}
	}
	return strongest, nil
}

// scoredBy returns a plan that scores validation data, which ends after a number of hours.
func (t *Target) scoredBy(w Way, train float64, hours, stride int) string {
	return w.plan(3, fmt.Sprintf("inputs: [recent, calendar], split: {train: %g, validation: %.7f}", train, (float64(hours)+0.5)/float64(len(t.meter().Load))),
		fmt.Sprintf("evaluate: {every: 1, windows: 100000, stride: %d, reference: last-week}\n", stride))
}

// mean computes the mean of the scored loads from the scores of two constant forecasts.
func (t *Target) mean(s Session, run string) (float64, bool) {
	const low, high = -12, 12
	m := t.meter()
	below, ok1 := s.Score(m, fed.Task{Run: run, Shared: Constant(s.Setup(), low)})
	above, ok2 := s.Score(m, fed.Task{Run: run, Shared: Constant(s.Setup(), high)})
	return MeanOf(low, high, below, above), ok1 && ok2
}

// Strides (S4) scores one window at a time, using a stride that fits no other window. It
// returns the correlation, and the number of readings on which the correlation is based.
func Strides(t *Target, w Way, hours int) (float64, int, error) {
	m := t.meter()
	var got, truth []float64
	for h := range hours {
		stride := len(m.Load)*7/10 + len(m.Load)/100 + h
		plan := t.scoredBy(w, 0.7, len(m.Load)*15/100, stride)
		s, known, err := t.open(plan)
		if err != nil {
			return 0, 0, err
		}
		mean, ok := t.mean(s, "run")
		if !ok {
			continue
		}
		got, truth = append(got, mean), append(truth, target(known, m, stride-1))
	}
	if len(got) < 3 {
		return 0, len(got), nil
	}
	return metric.Correlation(got, truth), len(got), nil
}

// target returns the target of the example at an origin.
func target(s *setup.Setup, m series.Meter, last int) float64 {
	data := examples(s, m)
	x, y := make([]float32, data.Inputs()), make([]float32, s.Problem.PerExample())
	data.Gather(x, y, []series.Example{{Last: last}})
	return float64(y[0])
}

// Scores (N5) compares the scores of validation data that ends an hour later each time.
func Scores(t *Target, w Way, from, hours int) (float64, error) {
	m := t.meter()
	var got, truth []float64
	last, lastLen := 0.0, 0
	for h := range hours + 1 {
		plan := t.scoredBy(w, 0.7, from+h, 1)
		s, known, err := t.open(plan)
		if err != nil {
			return 0, err
		}
		data := examples(known, m)
		n := data.Len(series.Validation)
		mean, ok := t.mean(s, "run")
		if !ok {
			mean = 0
		}
		sum := mean * float64(n)
		if h > 0 && n == lastLen+1 {
			got, truth = append(got, sum-last), append(truth, target(known, m, data.At(series.Validation, n-1)))
		}
		last, lastLen = sum, n
	}
	return metric.Correlation(got, truth), nil
}
