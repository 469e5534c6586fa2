package forecast

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"gonum.org/v1/gonum/mat"

	"loadstar/internal/testkit"
	"loadstar/metric"
	"loadstar/series"
	"loadstar/series/read"
)

// dataset returns meters with hourly load and weather.
func dataset(t testing.TB, clock *time.Location, start time.Time, loads ...[]float32) *series.Dataset {
	t.Helper()
	rng := rand.New(rand.NewPCG(8, 8))
	temperature := make([]float32, len(loads[0])+48)
	for i := range temperature {
		temperature[i] = float32(10 + 8*math.Sin(float64(i)/24) + rng.NormFloat64())
	}
	var meters []series.Meter
	for i, l := range loads {
		meters = append(meters, series.Meter{ID: fmt.Sprint("m", i), Start: start.Unix(), Load: l})
	}
	d, err := series.NewDataset(series.Dataset{
		Name: "test", Interval: time.Hour, Clock: clock,
		Weather: series.Weather{Start: start.Unix(), Names: []string{"temperature"}, Columns: [][]float32{temperature}},
	}, meters)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func ramp(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(i)
	}
	return x
}

// fitted returns a baseline fitted to the first meter.
func fitted(t testing.TB, d *series.Dataset, b Baseline, horizon, targets int) Baseline {
	t.Helper()
	f, err := series.NewFramer(d, series.Layout{Lookback: 1, Horizon: horizon, Targets: targets, Inputs: []series.Input{{Name: "load"}}}, series.DefaultSplit)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Fit(Client{Frame: f, Meter: d.Meter(0)}); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestNaiveByHand uses a load that equals the number of its step, so a forecast shows
// which step's load it repeats.
func TestNaiveByHand(t *testing.T) {
	start := time.Date(2021, 5, 1, 0, 0, 0, 0, time.UTC)
	d := dataset(t, time.UTC, start, ramp(24*30))
	for _, c := range []struct {
		model            string
		horizon, targets int
		last             int
		want             []float64
	}{
		{"persistence", 1, 1, 200, []float64{200}},
		{"persistence", 4, 2, 200, []float64{200, 200}},
		{"naive-day", 1, 1, 200, []float64{177}},                                // 201 - 24
		{"naive-day", 23, 3, 200, []float64{199, 200, 177}},                     // 223 and 224 minus one day; 225 minus two, because 201 is not known
		{"naive-week", 1, 1, 200, []float64{33}},                                // 201 - 168
		{"naive-week", 168, 2, 200, []float64{200, 33}},                         // 368 minus one week; 369 minus two
		{"naive-day", 49, 1, 200, []float64{177}},                               // 249 minus three days
		{"rolling-median", 1, 1, 700, []float64{701 - 24*14.5}},                 // 701 minus 1 to 28 days
		{"rolling-median", 24, 2, 700, []float64{724 - 24*14.5, 725 - 24*15.5}}, // 724 minus 1 to 28 days; 725 minus 2 to 29, because 701 is not known
		{"rolling-median", 1, 1, 71, []float64{24}},                             // 48, 24 and 0
		{"rolling-median", 1, 1, 47, []float64{12}},                             // 24 and 0
	} {
		b, err := NewBaseline(c.model)
		if err != nil {
			t.Fatal(err)
		}
		out := make([]float64, c.targets)
		if !fitted(t, d, b, c.horizon, c.targets).Forecast(out, c.last) || fmt.Sprint(out) != fmt.Sprint(c.want) {
			t.Errorf("%s, horizon %d at %d: %v, want %v", c.model, c.horizon, c.last, out, c.want)
		}
		if b.Forecast(out, -1) {
			t.Errorf("%s forecasts without history", c.model)
		}
	}
	if _, err := NewBaseline("oracle"); err == nil || !strings.Contains(err.Error(), "naive-week") {
		t.Errorf("unknown baseline: %v, want an error that lists the known ones", err)
	}
}

// TestRolling checks that only days of the same type are used if this lowers the error on
// validation data.
func TestRolling(t *testing.T) {
	start := time.Date(2021, 5, 3, 0, 0, 0, 0, time.UTC) // a Monday
	office, home := make([]float32, 24*700), make([]float32, 24*700)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range office {
		day := i / 24
		office[i] = 1
		if day%7 < 5 {
			office[i] = 10
		}
		home[i] = rng.Float32() // the same on all days of the week
	}
	saturday := 24 * (7*95 + 5)
	var before []float64
	for d := 1; d <= 28; d++ {
		before = append(before, float64(home[saturday-24*d]))
	}
	for _, c := range []struct {
		name, model string
		load        []float32
		want        float64
	}{
		{"office", "rolling-median", office, 1},
		{"office", "rolling-mean", office, 1},
		{"home", "rolling-median", home, median(before)},
		{"home", "rolling-mean", home, mean(before)},
	} {
		b, err := NewBaseline(c.model)
		if err != nil {
			t.Fatal(err)
		}
		out := make([]float64, 1)
		if !fitted(t, dataset(t, time.UTC, start, c.load), b, 1, 1).Forecast(out, saturday-1) || math.Abs(out[0]-c.want) > 1e-9 {
			t.Errorf("%s of the %s: %g, want %g", c.model, c.name, out[0], c.want)
		}
	}
}

// TestNaiveDayKeepsClockTime forecasts the load at noon on the day when the clocks in
// Berlin go forward. The previous noon was 23 hours earlier.
func TestNaiveDayKeepsClockTime(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	start := time.Date(2021, 3, 1, 0, 0, 0, 0, time.UTC)
	d := dataset(t, berlin, start, ramp(24*31))
	noon := int(time.Date(2021, 3, 28, 12, 0, 0, 0, berlin).Sub(start).Hours())
	b, err := NewBaseline("naive-day")
	if err != nil {
		t.Fatal(err)
	}
	out := make([]float64, 1)
	if !fitted(t, d, b, 1, 1).Forecast(out, noon-1) || out[0] != float64(noon-23) {
		t.Errorf("the forecast repeats step %g, want %d", out[0], noon-23)
	}
}

// TestRidgeAgainstQR compares the regression with a least-squares solution that gonum's QR
// decomposition computes from the scaled features, extended by rows of √λ.
func TestRidgeAgainstQR(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	load := make([]float32, 24*90)
	for i := range load {
		load[i] = float32(5 + 3*math.Sin(float64(i)*math.Pi/12) + math.Sin(float64(i)*math.Pi/84) + rng.NormFloat64())
		if rng.IntN(100) == 0 {
			load[i] = float32(math.NaN())
		}
	}
	d := dataset(t, time.UTC, time.Date(2021, 5, 1, 0, 0, 0, 0, time.UTC), load)
	for _, rich := range []bool{false, true} {
		for _, lambda := range []float64{1, 25} {
			r := &Ridge{Rich: rich, Lambda: lambda}
			fitted(t, d, r, 2, 3)
			for target := range 3 {
				ahead := 2 + target
				var xs [][]float64
				var ys []float64
				for _, last := range r.examples(series.Train) {
					if !r.fill(last, ahead) {
						t.Fatalf("the example at %d is not complete", last)
					}
					xs, ys = append(xs, append([]float64(nil), r.x...)), append(ys, r.c.load(last+ahead))
				}
				if len(xs) < 400 {
					t.Fatalf("only %d examples", len(xs))
				}
				slopes, intercept := ridgeByQR(t, xs, ys, lambda)
				if math.Abs(intercept-r.models[target].intercept) > 1e-6*math.Abs(intercept) {
					t.Errorf("rich %v, λ %g: intercept %g, want %g", rich, lambda, r.models[target].intercept, intercept)
				}
				for i, want := range slopes {
					if got := r.models[target].slopes[i]; math.Abs(got-want) > 1e-6*(1+math.Abs(want)) {
						t.Errorf("rich %v, λ %g: slope %d is %g, want %g", rich, lambda, i, got, want)
					}
				}
			}
		}
	}
}

func ridgeByQR(t *testing.T, xs [][]float64, ys []float64, lambda float64) (slopes []float64, intercept float64) {
	t.Helper()
	n, p := len(xs), len(xs[0])
	mean, scale := make([]float64, p), make([]float64, p)
	var my float64
	for i, x := range xs {
		my += ys[i] / float64(n)
		for j, v := range x {
			mean[j] += v / float64(n)
		}
	}
	for _, x := range xs {
		for j, v := range x {
			scale[j] += (v - mean[j]) * (v - mean[j]) / float64(n)
		}
	}
	a, b := mat.NewDense(n+p, p, nil), mat.NewVecDense(n+p, nil)
	for j := range p {
		scale[j] = 1 / math.Sqrt(scale[j])
		a.Set(n+j, j, math.Sqrt(lambda))
	}
	for i, x := range xs {
		for j, v := range x {
			a.Set(i, j, (v-mean[j])*scale[j])
		}
		b.SetVec(i, ys[i]-my)
	}
	var qr mat.QR
	qr.Factorize(a)
	var beta mat.VecDense
	if err := qr.SolveVecTo(&beta, false, b); err != nil {
		t.Fatal(err)
	}
	intercept = my
	for j := range p {
		s := beta.AtVec(j) * scale[j]
		slopes = append(slopes, s)
		intercept -= s * mean[j]
	}
	return slopes, intercept
}

// TestRidgeLearnsALine checks that, apart from the effect of the small penalty, ridge exactly
// forecasts a load that is a linear function of its past.
func TestRidgeLearnsALine(t *testing.T) {
	load := make([]float32, 2000)
	for i := range load {
		load[i] = float32(10 + 5*math.Sin(float64(i)/7))
	}
	d := dataset(t, time.UTC, time.Unix(0, 0), load)
	b := fitted(t, d, &Ridge{Lambda: 1e-9}, 1, 2)
	out := make([]float64, 2)
	for last := 1700; last < 1990; last++ {
		if !b.Forecast(out, last) || math.Abs(out[0]-float64(load[last+1])) > 1e-3 || math.Abs(out[1]-float64(load[last+2])) > 1e-3 {
			t.Fatalf("at %d: %v, want %g and %g", last, out, load[last+1], load[last+2])
		}
	}
}

func TestBacktest(t *testing.T) {
	gap := ramp(200)
	gap[195] = float32(math.NaN())
	d := dataset(t, time.UTC, time.Unix(0, 0), ramp(200), gap, []float32{1})
	b := Backtest{Dataset: d, Horizon: 3, Targets: 1, Lookback: 1, Split: series.DefaultSplit, Part: series.Test, Reference: LastValue}
	var rows []Forecast
	scores, err := b.Run(t.Context(), "persistence", func(f Forecast) error { rows = append(rows, f); return nil })
	if err != nil {
		t.Fatal(err)
	}
	// Targets 180 to 199 are each 3 above the last known value. The gap removes target
	// 195, and also target 198, because its forecast needs the load at 195.
	for i, n := range []int{20, 18, 0} {
		s := scores[i]
		if s.Overall.N() != n || n > 0 && (s.Overall.MAE() != 3 || s.Overall.RelativeMAE() != 1 || s.Overall.Bias() != -3) {
			t.Errorf("client %s: %d targets, MAE %g, relative MAE %g, want %d, 3, 1", s.ID, s.Overall.N(), s.Overall.MAE(), s.Overall.RelativeMAE(), n)
		}
	}
	first := Forecast{Client: "m0", Cutoff: time.Unix(178*3600, 0).UTC(), Time: time.Unix(180*3600, 0).UTC(), Forecast: 177, Actual: 180, Reference: 177}
	if len(rows) != 38 || !reflect.DeepEqual(rows[0], first) {
		t.Errorf("%d forecasts, the first %+v; want 38, %+v", len(rows), rows[0], first)
	}
	b.Workers = 3
	again, err := b.Run(t.Context(), "ridge", nil)
	if err != nil {
		t.Fatal(err)
	}
	b.Workers = 1
	alone, err := b.Run(t.Context(), "ridge", nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range alone {
		if a, b := alone[i].Overall.MAE(), again[i].Overall.MAE(); a != b && (a == a || b == b) {
			t.Errorf("client %d: one worker gives %g, three give %g", i, a, b)
		}
	}
	stop := errors.New("enough")
	if _, err := b.Run(t.Context(), "persistence", func(Forecast) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("the caller's error became %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Run(ctx, "persistence", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled backtest returned %v", err)
	}
}

// TestBacktestWindows checks for every baseline that a window needs a complete history and that
// only origins on the stride are scored.
func TestBacktestWindows(t *testing.T) {
	const n = 24 * 100
	rng := rand.New(rand.NewPCG(5, 5))
	load := make([]float32, n)
	for i := range load {
		load[i] = float32(3 + math.Sin(float64(i)*math.Pi/12) + 0.1*rng.NormFloat64())
	}
	const gap = n - 200 // in the test split, which starts at n-240
	load[gap] = float32(math.NaN())
	d := dataset(t, time.UTC, time.Unix(0, 0), load)
	for _, stride := range []int{0, 6} {
		var want []int // origins
		for last := n - 241; last < n-3; last++ {
			if (last+1)%max(stride, 1) == 0 && (last+3 < gap || last-167 > gap) {
				want = append(want, last)
			}
		}
		for _, name := range Baselines() {
			b := Backtest{Dataset: d, Horizon: 1, Targets: 3, Stride: stride, Split: series.DefaultSplit, Part: series.Test}
			var got []int
			scores, err := b.Run(t.Context(), name.Name, func(f Forecast) error {
				if f.Cutoff.Equal(f.Time) {
					got = append(got, int(f.Cutoff.Unix()/3600)-1)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, want) || scores[0].Skipped != 0 || scores[0].Overall.N() != 3*len(want) {
				t.Errorf("%s, stride %d: origins %v, %d skipped, want %v", name.Name, stride, got, scores[0].Skipped, want)
			}
		}
	}
}

// TestBacktestWithoutTraining checks that a client whose training split has no complete
// week is skipped, and that the other clients are scored.
func TestBacktestWithoutTraining(t *testing.T) {
	const n = 24 * 120
	gaps, whole := ramp(n), ramp(n)
	for i := 0; i < n*8/10; i += 100 {
		gaps[i] = float32(math.NaN())
	}
	d := dataset(t, time.UTC, time.Unix(0, 0), gaps, whole)
	b := Backtest{Dataset: d, Horizon: 1, Targets: 1, Split: series.DefaultSplit, Part: series.Test}
	scores, err := b.Run(t.Context(), "ridge", nil)
	if err != nil {
		t.Fatal(err)
	}
	if scores[0].Skipped != n/10 || scores[0].Overall.N() != 0 || scores[1].Overall.N() != n/10 {
		t.Errorf("%d skipped, %d and %d scored; want %d, 0, %d", scores[0].Skipped, scores[0].Overall.N(), scores[1].Overall.N(), n/10, n/10)
	}
}

// TestSameTimeWithinHistory forecasts just after the clocks in Berlin go back. The same clock
// time a week earlier is then 169 hours earlier, and the load at that time is missing. The load
// 168 hours earlier replaces it.
func TestSameTimeWithinHistory(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	start := time.Date(2021, 10, 1, 0, 0, 0, 0, time.UTC)
	target := int(time.Date(2021, 10, 31, 12, 0, 0, 0, berlin).Sub(start).Hours())
	load := ramp(24 * 32)
	b := &seasonalNaive{days: 7}
	out := make([]float64, 1)
	for _, want := range []int{target - 169, target - 168} {
		d := dataset(t, berlin, start, load)
		if !fitted(t, d, b, 1, 1).Forecast(out, target-1) || out[0] != float64(want) {
			t.Errorf("the forecast repeats step %g, want %d", out[0], want)
		}
		load[target-169] = float32(math.NaN())
	}
}

// TestRidgeChoosesLambda checks that a large penalty is chosen for a load without any
// structure, and a small one for a load that is a function of its past.
func TestRidgeChoosesLambda(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 6))
	noise, wave := make([]float32, 600), make([]float32, 600)
	for i := range noise {
		noise[i], wave[i] = float32(rng.NormFloat64()), float32(math.Sin(float64(i)/7))
	}
	for _, c := range []struct {
		load []float32
		want float64
	}{{noise, lambdas[len(lambdas)-1]}, {wave, lambdas[0]}} {
		d := dataset(t, time.UTC, time.Unix(0, 0), c.load)
		chosen, fixed := &Ridge{}, &Ridge{Lambda: c.want}
		fitted(t, d, chosen, 1, 1)
		fitted(t, d, fixed, 1, 1)
		if !slices.Equal(chosen.models[0].slopes, fixed.models[0].slopes) {
			t.Errorf("the regression does not have λ %g", c.want)
		}
	}
}

// TestPersistenceOfCoreGroups compares the mean one-hour persistence error of the core
// groups with independently computed values.
func TestPersistenceOfCoreGroups(t *testing.T) {
	if testing.Short() {
		t.Skip("it reads all core groups")
	}
	for _, c := range []struct {
		dataset string
		clients int
		want    float64
		digits  float64
	}{
		{"cambridge-core42", 42, 6.66, 0.01},
		{"hog-core42", 42, 11.7, 0.1},
		{"robin-core42", 42, 6.80, 0.01},
		{"resstock-ca-core42", 42, 0.78, 0.01},
		{"resstock-tx-core42", 42, 0.69, 0.01},
		{"resstock-vt-core42", 42, 0.80, 0.01},
		{"sgsc-core19", 19, 0.35, 0.01},
	} {
		t.Run(c.dataset, func(t *testing.T) {
			path, root := testkit.Dataset(t, c.dataset)
			desc, err := read.Load(path)
			if err != nil {
				t.Fatal(err)
			}
			d, err := read.Open(desc, root)
			if err != nil {
				t.Fatal(err)
			}
			run := func(workers int) metric.Spread {
				b := Backtest{Dataset: d, Horizon: 1, Targets: 1, Lookback: 1, Split: series.DefaultSplit, Part: series.All, Workers: workers}
				scores, err := b.Run(t.Context(), "persistence", nil)
				if err != nil {
					t.Fatal(err)
				}
				var all []metric.Scores
				for i := range scores {
					all = append(all, scores[i].Overall.Scores())
				}
				return metric.NewFleet(all)["mae"]
			}
			one, two := run(1), run(2)
			if one != two {
				t.Errorf("%s: one worker gives %v, two give %v", c.dataset, one, two)
			}
			t.Logf("%s: MAE %.4f kW over %d clients", c.dataset, one.Mean, one.Count)
			if one.Count != c.clients || math.Abs(float64(one.Mean)-c.want) > 0.6*c.digits {
				t.Errorf("%s: MAE %.4f kW over %d clients, want %g over %d", c.dataset, one.Mean, one.Count, c.want, c.clients)
			}
		})
	}
}
