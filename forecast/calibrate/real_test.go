package calibrate_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"loadstar/fed/recipe"
	"loadstar/forecast"
	"loadstar/forecast/calibrate"
	"loadstar/internal/testkit"
	"loadstar/lab/sim"
	"loadstar/nn/kernel"
	"loadstar/series"
	"loadstar/series/read"
)

// trained is a model that was trained on a dataset.
type trained struct {
	problem *recipe.Problem
	dataset *series.Dataset
	kernel  *kernel.Set
	dir     string
}

// train trains a plan's model, or uses a run from the folder LOADSTAR_RUNS.
func train(t *testing.T, group, settings string) *trained {
	t.Helper()
	path, root := testkit.Dataset(t, group)
	desc, err := read.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	m := &trained{dir: filepath.Join(os.Getenv("LOADSTAR_RUNS"), group)}
	if m.dataset, err = read.Open(desc, root); err != nil {
		t.Fatal(err)
	}
	if m.kernel, err = kernel.Default(); err != nil {
		t.Fatal(err)
	}
	plan, err := recipe.Read([]byte("name: test\nalgorithm: fedavg\nmodel: {name: dense, " + settings + "}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("LOADSTAR_RUNS") == "" {
		m.dir = filepath.Join(t.TempDir(), "run")
		if _, err := sim.Run(context.Background(), sim.Config{Plan: plan, Dataset: m.dataset, Dir: m.dir, Kernel: m.kernel, Workers: 2, Memory: 1 << 30}); err != nil {
			t.Fatal(err)
		}
	}
	if m.problem, err = recipe.Frame(plan, m.dataset); err != nil {
		t.Fatal(err)
	}
	return m
}

// weights reads the weights of a client.
func (m *trained) weights(client string) ([]float32, error) {
	w := make([]float32, m.problem.Model.Net().Weights())
	shared, err := os.Open(filepath.Join(m.dir, "shared.safetensors"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = shared.Close() }() // the file was only read
	if _, err := m.problem.Model.ReadWeights(shared, w, m.problem.Partition.Shared()); err != nil {
		return nil, err
	}
	personal, err := os.Open(filepath.Join(m.dir, "personal", url.PathEscape(client)+".safetensors"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = personal.Close() }() // the file was only read
	_, err = m.problem.Model.ReadWeights(personal, w, m.problem.Partition.Personal())
	return w, err
}

// change changes the readings of a meter. test is the first step of the test split.
type change func(load []float32, test int, rng *rand.Rand)

func nothing([]float32, int, *rand.Rand) {}

// removeSingly and removeBlocks remove about 2 % of the readings, one by one or in blocks.
func removeSingly(load []float32, _ int, rng *rand.Rand) {
	for i := range load {
		if rng.Float64() < 0.02 {
			load[i] = float32(math.NaN())
		}
	}
}

func removeBlocks(load []float32, _ int, rng *rand.Rand) {
	for i := 0; i < len(load); i++ {
		if rng.Float64() < 0.02/18.5 {
			for n := 1 + rng.IntN(36); n > 0 && i < len(load); n-- {
				load[i] = float32(math.NaN())
				i++
			}
		}
	}
}

func multiply(by float32) change {
	return func(load []float32, test int, _ *rand.Rand) {
		for i := test; i < len(load); i++ {
			load[i] *= by
		}
	}
}

// result contains the forecasts served to one client in the test split.
type result struct {
	n, inside, pinball, load float64
	served, model, week      float64 // sums of errors
	alarm, falseAlarms       int     // days from the start of the test split to the alarm, or 0
	days                     int     // days on which a false alarm was possible
}

// serve makes forecasts for a client at every step from the start of the validation split, as
// an agent does, and judges the forecasts of the test split.
func (m *trained) serve(i int, c change) (r result, err error) {
	meter := m.dataset.Meter(i)
	w, err := m.weights(meter.ID)
	if err != nil {
		return r, err
	}
	truth := meter.Load
	first, test := m.split(meter)
	if test < 0 {
		return r, nil
	}
	meter.Load = slices.Clone(truth)
	c(meter.Load, test, rand.New(rand.NewPCG(uint64(i), 7)))
	for k := range truth {
		if !series.Missing(meter.Load[k]) && meter.Load[k] != truth[k] {
			truth = meter.Load // the planted change is the real load
			break
		}
	}
	data := m.problem.Examples(meter, nil)
	layout, perDay := m.problem.Framer.Layout(), m.dataset.StepsPerDay()
	predictor := forecast.NewPredictor(m.problem.Model, m.kernel, m.problem.Loss)
	levels, point := predictor.Levels()
	tracker, err := calibrate.New(calibrate.Config{Levels: levels, Point: point, Horizon: layout.Horizon, Targets: layout.Targets, StepsPerDay: perDay, Correct: true})
	if err != nil {
		return r, err
	}
	raw := make([]float64, layout.Targets*len(levels))
	references := make([]float64, layout.Targets)
	days := map[int]*[2]float64{}
	zero := int(meter.Start / m.dataset.Seconds())
	for last := first; last+layout.Targets < len(truth); last++ {
		tracker.Observe(zero+last, float64(meter.Load[last]))
		if data.Ready(last) == series.Unready {
			continue
		}
		if err := predictor.Predict(raw, w, data, last); err != nil {
			return r, err
		}
		for i := range references {
			references[i] = sameTime(meter.Load, last+1+i, last, perDay)
			if layout.Targets == 1 {
				references[i] = float64(meter.Load[last])
			}
		}
		rows := slices.Clone(raw)
		if (zero+last+1)%tracker.Every() == 0 {
			tracker.Issue(zero+last, rows, references)
		} else {
			tracker.Correct(zero+last, rows, references)
		}
		for i := range references {
			load, week := float64(truth[last+1+i]), sameTime(meter.Load, last+1+i, last, 7*perDay)
			if math.IsNaN(load) || math.IsNaN(week) {
				continue
			}
			row, own := rows[i*len(levels):][:len(levels)], raw[i*len(levels)+point]
			if last >= test {
				r.judge(row, point, load)
				r.model += math.Abs(load - own)
				r.week += math.Abs(load - week)
			}
			day := (zero + last + 1 + i) / perDay
			if days[day] == nil {
				days[day] = &[2]float64{}
			}
			days[day][0] += math.Abs(load - own)
			days[day][1] += math.Abs(load - week)
		}
	}
	r.watch(days, (zero+first)/perDay, (zero+test)/perDay+1)
	return r, nil
}

// split returns the first origins of the validation split and of the test split, or -1.
func (m *trained) split(meter series.Meter) (first, test int) {
	data := m.problem.Examples(meter, nil)
	at := func(part series.Part) int {
		found := -1
		_ = data.Each(part, func(last int) error { // the error only ends the loop
			found = last
			return fmt.Errorf("found")
		})
		return found
	}
	return at(series.Validation), at(series.Test)
}

// sameTime returns the newest known load at a distance from a step that is a multiple of back.
func sameTime(load []float32, step, last, back int) float64 {
	for at := step - back; at >= 0; at -= back {
		if at <= last && !series.Missing(load[at]) {
			return float64(load[at])
		}
	}
	return math.NaN()
}

func (r *result) judge(row []float64, point int, load float64) {
	low, high := row[0], row[len(row)-1]
	r.n++
	r.load += math.Abs(load)
	if low <= load && load <= high {
		r.inside++
	}
	r.pinball += max(0.1*(load-low), 0.9*(low-load)) + max(0.9*(load-high), 0.1*(high-load))
	r.served += math.Abs(load - row[point])
}

// watch makes a detector judge the days, of which those from the given day on may be changed.
func (r *result) watch(days map[int]*[2]float64, first, changed int) {
	var d calibrate.Detector
	for day := first; len(days) > 0; day++ {
		sums := days[day]
		if delete(days, day); sums == nil {
			continue
		}
		ready := d.Ready()
		alarm := d.Add(sums[0], sums[1]) != ""
		switch {
		case day < changed && ready:
			if r.days++; alarm {
				r.falseAlarms++
			}
		case day >= changed && alarm && r.alarm == 0:
			r.alarm = day - changed + 1
		}
	}
}

// all makes forecasts for all clients.
func (m *trained) all(t *testing.T, c change) []result {
	t.Helper()
	results := make([]result, m.dataset.Len())
	next := make(chan int)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for i := range next {
				var err error
				if results[i], err = m.serve(i, c); err != nil {
					t.Errorf("client %d: %v", i, err)
				}
			}
		})
	}
	for i := range results {
		next <- i
	}
	close(next)
	wg.Wait()
	return slices.DeleteFunc(results, func(r result) bool { return r.n == 0 })
}

var groups = []string{"hog-core42", "sgsc-core19", "cambridge-core42-2016-17", "robin-core42", "resstock-ca-core42", "resstock-tx-core42", "resstock-vt-core42"}

// coverage summarises the shares of loads inside the intervals of all clients.
func coverage(results []result) (median, mean, within2, within5, worse, pinball float64) {
	var shares []float64
	n := float64(len(results))
	for _, r := range results {
		share := r.inside / r.n
		shares = append(shares, share)
		mean += share / n
		if math.Abs(share-0.8) <= 0.02 {
			within2 += 1 / n
		}
		if math.Abs(share-0.8) <= 0.05 {
			within5 += 1 / n
		}
		if r.served > 1.02*min(r.model, r.week) {
			worse += 1 / n
		}
		pinball += r.pinball / r.load / n
	}
	slices.Sort(shares)
	return shares[len(shares)/2], mean, within2, within5, worse, pinball
}

// TestRealCoverage serves the test split of the core groups every hour, and checks the share of
// loads within P10-P90 and the errors of the served forecasts. LOADSTAR_RUNS names a folder
// with finished runs of plans/day-ahead.yaml, one for each group; without it, the test trains
// the models.
func TestRealCoverage(t *testing.T) {
	if !testkit.Long() {
		t.Skip("trains models for minutes: LOADSTAR_TEST_LONG=1")
	}
	all := map[string][]result{}
	for _, group := range groups {
		m := train(t, group, "targets: 24")
		for _, c := range []struct {
			name string
			change
		}{{"all readings", nothing}, {"2 % missing singly", removeSingly}, {"2 % missing in blocks", removeBlocks}} {
			results := m.all(t, c.change)
			median, mean, within2, within5, worse, pinball := coverage(results)
			t.Logf("%-26s %-22s median %.3f, mean %.3f, within 2 points %3.0f %%, within 5 %3.0f %%, pinball %.4f, served > 1.02 x better %3.0f %%",
				group, c.name, median, mean, 100*within2, 100*within5, pinball, 100*worse)
			if median < 0.78 || median > 0.82 || within5 < 0.9 || math.Abs(mean-0.8) > 0.015 {
				t.Errorf("%s, %s: median %.3f, mean %.3f, %.0f %% of clients within 5 points", group, c.name, median, mean, 100*within5)
			}
			all[c.name] = append(all[c.name], results...)
		}
	}
	for name, results := range all {
		median, mean, within2, within5, worse, pinball := coverage(results)
		t.Logf("all groups, %s: median %.3f, mean %.3f, within 2 points %.1f %%, within 5 %.1f %%, pinball %.4f, served > 1.02 x better %.1f %%", name, median, mean, 100*within2, 100*within5, pinball, 100*worse)
		if within2 < 0.85 || within5 < 0.97 || worse > 0.05 {
			t.Errorf("%s: %.1f %% within 2 points, %.1f %% within 5, %.1f %% worse than the better forecast", name, 100*within2, 100*within5, 100*worse)
		}
	}
}

// TestRealYear serves models that were trained on 30 % of the data, so that most of the data is
// unseen. For all but a few clients, the served forecasts must be at least as good as the
// better of the model's own forecasts and last week's load.
func TestRealYear(t *testing.T) {
	if !testkit.Long() || os.Getenv("LOADSTAR_RUNS") != "" {
		t.Skip("trains models for minutes: LOADSTAR_TEST_LONG=1, without LOADSTAR_RUNS")
	}
	var all []result
	for _, group := range groups {
		results := train(t, group, "targets: 24, split: {train: 0.3, validation: 0.1}").all(t, nothing)
		_, mean, _, within5, worse, _ := coverage(results)
		t.Logf("%-26s mean %.3f, within 5 points %3.0f %%, served > 1.02 x better %3.0f %%", group, mean, 100*within5, 100*worse)
		all = append(all, results...)
	}
	if _, mean, within2, _, worse, _ := coverage(all); math.Abs(mean-0.8) > 0.01 || within2 < 0.95 || worse > 0.05 {
		t.Errorf("mean %.3f, %.1f %% within 2 points, %.1f %% worse than the better forecast", mean, 100*within2, 100*worse)
	}
}

// TestRealDrift plants changes at the start of the test split and counts the days until an
// alarm. A change of level need not raise an alarm, because many models adapt to it.
func TestRealDrift(t *testing.T) {
	if !testkit.Long() {
		t.Skip("trains models for minutes: LOADSTAR_TEST_LONG=1")
	}
	for _, group := range groups[:3] {
		m := train(t, group, "targets: 24")
		for _, by := range []float32{1000, 1.5, 0.6} {
			var days []int
			alarms, before := 0, 0.0
			results := m.all(t, multiply(by))
			for _, r := range results {
				if r.alarm > 0 {
					days = append(days, r.alarm)
				}
				alarms += r.falseAlarms
				before += float64(r.days) / 365
			}
			slices.Sort(days)
			t.Logf("%-26s x %-5v alarm at %d of %d clients, after %v days; %d false alarms before in %.1f years of clients", group, by, len(days), len(results), days, alarms, before)
			if by == 1000 && 3*len(days) < len(results) || float64(alarms) > 3*before {
				t.Errorf("%s x %v: %d alarms, %d false ones in %.1f years", group, by, len(days), alarms, before)
			}
		}
	}
}
