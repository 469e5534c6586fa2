package outlook

import (
	"bytes"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/fed/recipe"
	"loadstar/forecast/issue"
	"loadstar/lab/sim"
	"loadstar/nn/kernel"
	"loadstar/series"
	"loadstar/series/synth"
)

// buildings returns synthetic meters with weather. The readings of the last meter end a day
// earlier.
func buildings(t testing.TB, n, days int) *series.Dataset {
	t.Helper()
	zone, err := time.LoadLocation("America/Chicago")
	if err != nil {
		t.Fatal(err)
	}
	g, err := synth.New(synth.Config{Seed: 5, Meters: n, Start: time.Date(2018, 1, 10, 0, 0, 0, 0, zone), Days: days, Zone: "America/Chicago", Faults: synth.Faults{Gap: 0.01}})
	if err != nil {
		t.Fatal(err)
	}
	var meters []series.Meter
	for i := range n {
		load := make([]float32, g.Len())
		g.Building(i, load)
		if i == n-1 {
			load = load[:len(load)-24]
		}
		meters = append(meters, series.Meter{ID: string(rune('a' + n - i)), Start: g.Time(0).Unix(), Load: load})
	}
	d, err := series.NewDataset(series.Dataset{
		Name: "buildings", Generated: true, Interval: time.Hour, Clock: zone, Country: synth.Country,
		Weather: series.Weather{Start: g.Time(0).Unix(), Names: []string{"temperature", "wind"}, Columns: [][]float32{g.Weather().Temperature, g.Weather().Wind}},
	}, meters)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// trained returns the folder of a model that was trained for a few rounds, and the kernel set.
func trained(t testing.TB, d *series.Dataset) (dir string, k *kernel.Set) {
	t.Helper()
	p, err := recipe.Read([]byte("name: tiny\nalgorithm: fedavg\nmodel: {name: dense, targets: 24}\nrounds: 3\nclient: {warmup: 2}\nevaluate: {every: 0}"))
	if err != nil {
		t.Fatal(err)
	}
	if k, err = kernel.Default(); err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(t.TempDir(), "run")
	if _, err := sim.Run(t.Context(), sim.Config{Plan: p, Dataset: d, Dir: dir, Kernel: k, Workers: 2, Memory: 1 << 24}); err != nil {
		t.Fatal(err)
	}
	return dir, k
}

// rows returns the forecasts as CSV.
func rows(t testing.TB, dir string, k *kernel.Set, c Config) (string, *Summary) {
	t.Helper()
	var err error
	if c.Model, err = Open(dir, c.Dataset, k); err != nil {
		t.Fatal(err)
	}
	defer c.Model.Close()
	var out bytes.Buffer
	c.H, c.Now = max(c.H, 24), time.Unix(2e9, 0)
	s, _, err := Write(t.Context(), c, Stdout, &out, "")
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), s
}

// TestNoFuture plants impossible loads after the cutoff. No byte of the forecasts may change,
// although the states in the run's folder contain readings after the cutoff.
func TestNoFuture(t *testing.T) {
	d := buildings(t, 4, 70)
	dir, k := trained(t, d)
	_, end := d.Span()
	for _, back := range []int64{30, 24 * 9} {
		cutoff := end - back*3600
		want, s := rows(t, dir, k, Config{Dataset: d, At: cutoff, Workers: 3})
		if n, fallbacks := s.Values(); n != 96 || fallbacks > 24 {
			t.Fatalf("%d rows, %d of them fallbacks", n, fallbacks)
		}
		for _, v := range []float32{1e6, float32(math.NaN()), -1e6} {
			var meters []series.Meter
			for i := range d.Len() {
				m := d.Meter(i)
				m.Load = slices.Clone(m.Load)
				for at := int((cutoff - m.Start) / 3600); at < len(m.Load); at++ {
					m.Load[at] = v
				}
				meters = append(meters, m)
			}
			other, err := d.With(meters)
			if err != nil {
				t.Fatal(err)
			}
			if got, _ := rows(t, dir, k, Config{Dataset: other, At: cutoff, Workers: 1}); got != want {
				t.Errorf("%d hours before the end, loads of %g after the cutoff change the forecasts", back, v)
			}
		}
	}
}

// TestOwnCutoffs checks that meters are in the order of their names, each with the end of its
// own readings as its cutoff.
func TestOwnCutoffs(t *testing.T) {
	d := buildings(t, 3, 60)
	dir, k := trained(t, d)
	m, err := Open(dir, d, k)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var names []string
	s, err := Run(t.Context(), Config{Model: m, Dataset: d, H: 24, Workers: 2, Now: time.Unix(2e9, 0)}, func(f issue.Forecast) error {
		names = append(names, f.Client)
		i := slices.IndexFunc([]int{0, 1, 2}, func(i int) bool { return d.Meter(i).ID == f.Client })
		if want := endOf(d, d.Meter(i)); f.Cutoff != want || f.Rows[0].Time != want {
			t.Errorf("meter %s: cutoff %d, first row %d, want %d", f.Client, f.Cutoff, f.Rows[0].Time, want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(names, []string{"b", "c", "d"}) || s.To.Sub(s.From) < 23*time.Hour {
		t.Errorf("order %v, cutoffs from %s to %s", names, s.From, s.To)
	}
	// The sum is over steps for which all meters have a forecast, or as many as possible.
	if s.Sum == nil || s.Sum.Meters != 2 && s.Sum.Meters != 3 {
		t.Errorf("sum %+v", s.Sum)
	}
}

// TestStops checks that Run returns its callback's error and leaves no goroutine behind.
func TestStops(t *testing.T) {
	d := buildings(t, 4, 60)
	dir, k := trained(t, d)
	m, err := Open(dir, d, k)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	seen := 0
	_, err = Run(t.Context(), Config{Model: m, Dataset: d, H: 24, Workers: 2}, func(issue.Forecast) error {
		seen++
		return bytes.ErrTooLarge
	})
	if err != bytes.ErrTooLarge || seen != 1 {
		t.Errorf("%v after %d forecasts", err, seen)
	}
}

// TestBacktest checks that all meters are scored, and that the model forecasts fewer steps if
// readings are removed.
func TestBacktest(t *testing.T) {
	d := buildings(t, 3, 90)
	dir, k := trained(t, d)
	m, err := Open(dir, d, k)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	s, err := Backtest{Model: m, Dataset: d, Workers: 2}.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Clients) != 3 || s.Issues < 3*4*6 || s.Coverage <= 0.3 || s.Coverage > 1 || s.Sources[0].Name != "model" || s.Sources[0].Share < 0.9 {
		t.Errorf("scores %+v", s)
	}
	for name, x := range map[string]*SumScore{"energy": s.Energy, "sum": s.Sum, "peak": s.Peak} {
		if x == nil || x.Clients != 3 || x.N == 0 || !(x.RelativeMAE > 0 && x.RelativeMAE < 1.5) || math.Abs(x.Bias) > 0.2 || !(x.Coverage > 0.3 && x.Coverage <= 1) {
			t.Errorf("%s: %+v", name, x)
		}
	}
	// As a rival, last week's loads have the same errors as the reference, which they are. At
	// least some of their peaks must be within an hour of the actual peaks.
	week := func(client string, cutoff int64) []float64 {
		for _, c := range s.Clients {
			if c.ID == client {
				_, week := c.day(cutoff, d)
				return week
			}
		}
		return nil
	}
	energy, sum, peak := s.Rival(d, Rival{
		Day: func(client string, cutoff int64) (float64, float64, int) {
			x := week(client, cutoff)
			highest, at := top(x)
			return total(x), highest, at
		},
		Sum: func(cutoff int64) []float64 {
			x := make([]float64, 24)
			for _, c := range s.Clients {
				for i, v := range week(c.ID, cutoff) {
					x[i] += v
				}
			}
			return x
		},
	})
	for name, x := range map[string][2]*SumScore{"energy": {energy, s.Energy}, "sum": {sum, s.Sum}, "peak": {peak, s.Peak}} {
		if math.Abs(x[0].RelativeMAE-1) > 1e-9 || x[0].N != x[1].N || x[0].Clients != 3 || x[0].MAE <= x[1].MAE/2 {
			t.Errorf("last week's %s: %+v", name, x[0])
		}
	}
	if peak.Near < peak.Hit || peak.Near == 0 || peak.Above != 0 || s.Peak.Near < s.Peak.Hit || s.Peak.Above <= 0 {
		t.Errorf("hours of last week %+v, of the run %+v", peak, s.Peak)
	}
	gaps, err := Backtest{Model: m, Dataset: d, Workers: 2, Remove: Removal{Share: 0.3, Block: 24, Seed: 1}}.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if gaps.Sources[0].Share >= s.Sources[0].Share || len(gaps.Reasons) == 0 || gaps.Rows < s.Rows*8/10 {
		t.Errorf("with gaps: %+v", gaps)
	}
}

// TestWeatherError checks the size of the temperature errors, and that they affect the
// forecasts.
func TestWeatherError(t *testing.T) {
	d := buildings(t, 1, 90)
	change := WeatherError{Degrees: 2}.replay(d)
	var squares [24]float64
	const n = 4000
	for cutoff := range int64(n) {
		ahead := make([]float32, 24)
		change(cutoff*3600, "temperature", ahead)
		for i, v := range ahead {
			squares[i] += float64(v) * float64(v) / n
		}
		wind := []float32{7}
		if change(cutoff*3600, "wind", wind); wind[0] != 7 {
			t.Fatal("the wind changed")
		}
	}
	for i, want := range map[int]float64{0: 1, 23: 2} {
		if got := math.Sqrt(squares[i]); math.Abs(got-want) > 0.08*want {
			t.Errorf("step %d has a deviation of %g, want %g", i, got, want)
		}
	}
	for text, want := range map[string]WeatherError{"0": {}, "2.5": {Degrees: 2.5}, "yesterday": {Yesterday: true}} {
		if got, err := ParseWeatherError(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"-1", "x", "NaN", "21"} {
		if _, err := ParseWeatherError(text); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
	dir, k := trained(t, d)
	m, err := Open(dir, d, k)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var maes []float64
	for _, w := range []WeatherError{{}, {Degrees: 1e-9}, {Degrees: 5}, {Yesterday: true}} {
		s, err := Backtest{Model: m, Dataset: d, Weather: w}.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		maes = append(maes, s.MAE)
	}
	// If the weather is changed, every cutoff has its own frame. Separate frames alone must
	// have no effect.
	if math.Abs(maes[1]/maes[0]-1) > 1e-6 || maes[2] == maes[1] || maes[3] == maes[1] {
		t.Errorf("errors %v", maes)
	}
}

func TestRemoval(t *testing.T) {
	d := buildings(t, 2, 400)
	for _, r := range []Removal{{Share: 0.02, Seed: 1}, {Share: 0.02, Block: 6, Seed: 2}, {Share: 0.1, Block: 24, Seed: 3}} {
		out, err := r.apply(d)
		if err != nil {
			t.Fatal(err)
		}
		before, after := 0, 0
		for i := range d.Len() {
			for at, v := range d.Meter(i).Load {
				if !series.Missing(v) {
					before++
					if w := out.Meter(i).Load[at]; !series.Missing(w) {
						after++
					}
				}
			}
		}
		if share := 1 - float64(after)/float64(before); math.Abs(share-r.Share) > 0.3*r.Share {
			t.Errorf("%+v removed %.4f", r, share)
		}
	}
}

// BenchmarkForecast measures forecasts of 48 hours with stored states.
func BenchmarkForecast(b *testing.B) {
	d := buildings(b, 20, 120)
	dir, k := trained(b, d)
	m, err := Open(dir, d, k)
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	p, err := newProducer(Config{Model: m, Dataset: d, H: 48})
	if err != nil {
		b.Fatal(err)
	}
	for i := 0; b.Loop(); i++ {
		if _, err := p.forecast(b.Context(), i%d.Len()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "clients/s")
}

// TestPaths checks that scenarios do not change the other columns, and do not depend on the number
// of workers.
func TestPaths(t *testing.T) {
	d := buildings(t, 3, 100)
	dir, k := trained(t, d)
	at := d.Meter(0).Start/86400*86400 + 90*86400 + 5*3600 // not a time of recorded issues
	plain, _ := rows(t, dir, k, Config{Dataset: d, At: at, Workers: 1, FitSteps: 1})
	with, summary := rows(t, dir, k, Config{Dataset: d, At: at, Workers: 2, FitSteps: 1, Paths: 20})
	again, _ := rows(t, dir, k, Config{Dataset: d, At: at, Workers: 1, FitSteps: 1, Paths: 20})
	if with != again || summary.Shapeless != 0 {
		t.Errorf("the scenarios depend on the number of workers, or %d meters have none", summary.Shapeless)
	}
	before, after := strings.Split(plain, "\n"), strings.Split(with, "\n")
	for i, line := range before {
		if !strings.HasPrefix(after[i], line) || i > 0 && line != "" && strings.Count(after[i], ",") != strings.Count(line, ",")+20 || strings.HasSuffix(after[i], ",") {
			t.Fatalf("%s became %s", line, after[i])
		}
	}
	early := d.Meter(0).Start + 9*86400
	if _, summary = rows(t, dir, k, Config{Dataset: d, At: early, Workers: 1, FitSteps: 1, Paths: 20}); summary.Shapeless != 3 {
		t.Errorf("%d meters have no scenarios after 9 days, want 3", summary.Shapeless)
	}
}
