package serve

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"loadstar/fed/recipe"
	"loadstar/forecast/issue"
	"loadstar/nn/kernel"
	"loadstar/series"
)

const youngPlan = "{name: young, algorithm: fedavg, model: {name: dense, interval: 1h, targets: 24h, inputs: [recent, lags, day, profiles, quartiles, level, ranks, calendar, holidays, temperature, wind, lead]}}"

// youngModel returns a young model with random weights.
func youngModel(t testing.TB) *Model {
	t.Helper()
	p, err := recipe.Read([]byte(youngPlan))
	if err != nil {
		t.Fatal(err)
	}
	if p, err = recipe.Resolve(p, time.Hour); err != nil {
		t.Fatal(err)
	}
	q, err := recipe.Frame(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	shared := make([]float32, q.Partition.SharedLen())
	q.Partition.Cut(q.Model.InitialWeights(3), shared, make([]float32, q.Partition.PersonalLen()))
	random := rand.New(rand.NewPCG(2, 2))
	for i := range shared {
		shared[i] += float32(0.01 * random.NormFloat64())
	}
	m, err := newYoung("young@1", p, shared, k, func(days float64) float64 { return 1 + 1/days })
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// lastHours returns a dataset with only the last hours of readings before its end.
func lastHours(t testing.TB, d *series.Dataset, hours int) *series.Dataset {
	t.Helper()
	var meters []series.Meter
	for i := range d.Len() {
		m := d.Meter(i)
		_, end := d.Span()
		meters = append(meters, m.Cut(end-int64(hours)*hourSeconds, end, d.Seconds()))
	}
	out, err := series.NewDataset(fields(d), meters)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// youngIssue makes a forecast for the first meter at a cutoff.
func youngIssue(t testing.TB, m *Model, d *series.Dataset, s *issue.State, cutoff int64) issue.Forecast {
	t.Helper()
	tails, err := NewTails(d, cutoff, m.Reach(d.Interval)+1)
	if err != nil {
		t.Fatal(err)
	}
	frame, err := m.Frame(tails)
	if err != nil {
		t.Fatal(err)
	}
	meter, err := tails.Meter(0)
	if err != nil {
		t.Fatal(err)
	}
	return s.Issue(meter, issue.Models{Generic: frame.Forecaster(meter, m.Anyone())}, cutoff)
}

// TestYoung makes forecasts from the first day on, with and without weather and country, for
// steps of 5, 15, 30 and 60 minutes.
func TestYoung(t *testing.T) {
	m := youngModel(t)
	for _, x := range []sample{
		{meters: 1, days: 60, weather: true, ahead: 3},
		{meters: 1, days: 60},
		{meters: 1, days: 60, interval: 30 * time.Minute, weather: true},
		{meters: 1, days: 60, interval: 15 * time.Minute},
		{meters: 1, days: 60, interval: 5 * time.Minute},
	} {
		for _, hours := range []int{19, 20, 24, 72, 30 * 24} {
			d := lastHours(t, x.dataset(t), hours)
			_, end := d.Span()
			n := d.StepsPerDay()
			f := youngIssue(t, m, d, newState(t, d, n), end)
			for i, row := range f.Rows {
				if young := row.Source == issue.Generic; young != (hours >= 20) || young && (!slices.IsSorted(row.Values) || row.Quality != issue.Estimated) {
					t.Fatalf("%+v with %d hours, row %d: %+v", x, hours, i, row)
				}
			}
			if hours >= 20 && f.Model != "young@1" {
				t.Errorf("model %q", f.Model)
			}
		}
	}
	if m.Suits(2*time.Hour) || m.Suits(7*time.Minute) || m.Suits(0) {
		t.Error("a model of hours suits steps that do not divide one")
	}
}

// TestYoungGaps checks which gaps a young model fills.
func TestYoungGaps(t *testing.T) {
	m := youngModel(t)
	for _, x := range []struct {
		hours, from, to int // hours of readings, and the range of missing ones
		want            issue.Source
		reason          issue.Reason
	}{
		{72, 30, 40, issue.Generic, issue.InputFilled},
		{72, 72 - 6, 72, issue.Generic, issue.InputFilled},
		{72, 72 - 7, 72, issue.Day, issue.ShortHistory},
		{72, 10, 40, issue.Day, issue.ShortHistory},
	} {
		d := lastHours(t, sample{meters: 1, days: 60}.dataset(t), x.hours)
		meter := d.Meter(0)
		meter.Load = slices.Clone(meter.Load)
		for i := x.from; i < x.to; i++ {
			meter.Load[i] = float32(math.NaN())
		}
		d, err := d.With([]series.Meter{meter})
		if err != nil {
			t.Fatal(err)
		}
		_, end := d.Span()
		if row := youngIssue(t, m, d, newState(t, d, 24), end).Rows[12]; row.Source != x.want || row.Reason != x.reason {
			t.Errorf("%+v: %+v", x, row)
		}
	}
}

// TestYoungNoFuture plants loads after the cutoff. It also compares a state that was replayed
// over a week with a state whose issues were made one by one.
func TestYoungNoFuture(t *testing.T) {
	m := youngModel(t)
	for _, step := range []time.Duration{time.Hour, 15 * time.Minute} {
		whole := lastHours(t, sample{meters: 1, days: 80, interval: step, weather: true, ahead: 3}.dataset(t), 40*24)
		_, end := whole.Span()
		cutoff := end - 9*daySeconds + 3*int64(step/time.Second)
		meter := whole.Meter(0)
		first := meter.Start
		meter.Load = slices.Clone(meter.Load)
		for i := (cutoff - meter.Start) / whole.Seconds(); i < int64(len(meter.Load)); i++ {
			meter.Load[i] = 1e5
		}
		planted, err := whole.With([]series.Meter{meter})
		if err != nil {
			t.Fatal(err)
		}
		anyone := m.Anyone()
		var got []string
		for _, d := range []*series.Dataset{whole, planted} {
			s := newState(t, d, d.StepsPerDay())
			if err := NewReplay(d, nil, m).Advance(s, 0, nil, &anyone, cutoff); err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprint(youngIssue(t, m, d, s, cutoff)))
		}
		live := newState(t, whole, whole.StepsPerDay())
		for at := first + whole.Seconds(); at < cutoff; at += whole.Seconds() {
			if mod(at, int64(live.Every(whole.StepsPerDay()))*whole.Seconds()) == 0 {
				youngIssue(t, m, whole, live, at)
			}
		}
		got = append(got, fmt.Sprint(youngIssue(t, m, whole, live, cutoff)))
		if got[0] != got[1] {
			t.Errorf("%s: loads after the cutoff change the forecast", step)
		}
		if got[0] != got[2] {
			t.Errorf("%s: a replayed state gives another forecast", step)
		}
	}
}

// TestYoungHours checks that quarter-hourly forecasts have the same energy as hourly ones.
func TestYoungHours(t *testing.T) {
	m := youngModel(t)
	quarter := lastHours(t, sample{meters: 1, days: 60, interval: 15 * time.Minute}.dataset(t), 20*24)
	x := quarter.Meter(0)
	x.Load = hoursOf(x.Load, 4)
	about := fields(quarter)
	about.Interval = time.Hour
	hourly, err := series.NewDataset(about, []series.Meter{x})
	if err != nil {
		t.Fatal(err)
	}
	_, end := quarter.Span()
	a, b := youngIssue(t, m, hourly, newState(t, hourly, 24), end), youngIssue(t, m, quarter, newState(t, quarter, 96), end)
	for h, row := range a.Rows {
		mean := 0.0
		for _, r := range b.Rows[4*h : 4*h+4] {
			mean += r.Values[1] / 4
		}
		if math.Abs(mean-row.Values[1]) > 1e-6*math.Abs(mean) {
			t.Fatalf("hour %d: %g kW from quarters, %g kW from hours", h, mean, row.Values[1])
		}
	}
}

func TestDivide(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		const width, n = 3, 4
		hours := make([]float64, 24*width)
		for i := range hours {
			hours[i] = random.ExpFloat64()
		}
		for row := range slices.Chunk(hours, width) {
			slices.Sort(row)
		}
		out := make([]float64, len(hours)*n)
		divide(out, hours, width, n)
		least, most := slices.Min(hours), slices.Max(hours)
		for h := range 24 {
			var sum [width]float64
			for k := range n {
				row := out[(h*n+k)*width:][:width]
				if !slices.IsSorted(row) || row[0] < least || row[width-1] > most {
					t.Fatalf("step %d of hour %d: %v", k, h, row)
				}
				for i, v := range row {
					sum[i] += v
				}
			}
			for i := range sum {
				if math.Abs(sum[i]/n-hours[h*width+i]) > 1e-12 {
					t.Fatalf("hour %d: mean %g, want %g", h, sum[i]/n, hours[h*width+i])
				}
			}
		}
	}
}
