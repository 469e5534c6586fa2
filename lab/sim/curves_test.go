package sim

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"testing"
	"time"

	"loadstar/forecast"
	"loadstar/lab/run"
	"loadstar/series"
)

// twoWeeks returns a framer, and a meter with 14 days of hourly loads, of which the last 4 days
// are the test split. The load is 1 kW at midnight and rises by 1 kW every hour. The third day
// from the end has only its first 10 readings.
func twoWeeks(t *testing.T) (*series.Framer, series.Meter) {
	t.Helper()
	load := make([]float32, 14*24)
	for i := range load {
		load[i] = float32(1 + i%24)
		if i >= 12*24+10 && i < 13*24 {
			load[i] = float32(math.NaN())
		}
	}
	load[11*24+23] = 0 // moves the peak of this day to 22:00
	m := series.Meter{ID: "m", Start: time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC).Unix(), Load: load}
	f, err := series.NewFramer(dataset(t, m), series.Layout{Lookback: 4, Horizon: 1, Targets: 3, Inputs: []series.Input{{Name: "load"}}}, series.Split{Train: 5. / 7, Validation: 0})
	if err != nil {
		t.Fatal(err)
	}
	return f, m
}

// TestDetailByHand compares the tables of peaks, calibration and curves with values computed
// by hand.
func TestDetailByHand(t *testing.T) {
	f, m := twoWeeks(t)
	levels := []float64{0.1, 0.5, 0.9}
	var d detail
	d.begin(f, time.Hour, m, levels, false)
	d.beginCurves(1)
	if from := f.BeforeTest(m); from != 240 {
		t.Fatalf("the test split starts at step %d, want 240", from)
	}
	add := func(step, lead int, value, low, high float64) {
		t.Helper()
		at := time.Unix(m.Start, 0).UTC().Add(time.Duration(step) * time.Hour)
		err := d.add(forecast.Forecast{
			Client: "m", Time: at, Cutoff: at.Add(time.Duration(1-lead) * time.Hour), Forecast: value, Actual: float64(m.Load[step]), Levels: []float64{low, value, high},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	// The peaks are 24 kW at step 263, 23 kW at step 286, none on the day with 10 readings,
	// and 24 kW at step 335.
	add(263, 1, 20, 18, 25)   // 4 kW too low; below P90
	add(263, 3, 27, 24, 30)   // 3 kW too high; not above P10, P50, P90
	add(286, 2, 24, 22, 26)   // 1 kW too high; below P50, P90
	add(287, 1, 1, 0.5, 2)    // not a peak, because the load is 0; below all
	add(297, 1, 10.5, 9, 9.5) // the last reading, 10 kW, of a day that has no peak; below P50
	d.peaks.bias = 0.5
	var r run.Results
	addPeaks(&r, []detail{d})
	if got, want := r.Peaks[0], (run.Peak{Client: "m", Bias: 0.5, Targets: 3, Load: 71. / 3, PeakMAE: 8. / 3, PeakBias: 0}); got.Client != want.Client ||
		got.Targets != want.Targets || math.Abs(got.Load-want.Load) > 1e-12 || math.Abs(got.PeakMAE-want.PeakMAE) > 1e-12 || math.Abs(got.PeakBias) > 1e-12 || got.Bias != want.Bias {
		t.Errorf("peaks %+v, want %+v", got, want)
	}

	// Another client has one load at 23:00, above all its quantiles. The shares at 23:00 are
	// the means of the two clients.
	var other detail
	other.begin(f, time.Hour, m, levels, false)
	at := time.Unix(m.Start, 0).UTC().Add(335 * time.Hour)
	if err := other.add(forecast.Forecast{Client: "m", Time: at, Cutoff: at, Forecast: 2, Actual: 24, Levels: []float64{1, 2, 3}}); err != nil {
		t.Fatal(err)
	}
	addCalibration(&r, []detail{d, other}, levels)
	if len(r.Calibration) != 24*3 {
		t.Fatalf("%d rows of calibration, want 72", len(r.Calibration))
	}
	for i, want := range []run.Calibration{
		{Hour: 22, Level: "P10", Clients: 1, Share: 0},
		{Hour: 22, Level: "P50", Clients: 1, Share: 1},
		{Hour: 22, Level: "P90", Clients: 1, Share: 1},
		{Hour: 23, Level: "P10", Clients: 2, Share: (2. / 3) / 2},
		{Hour: 23, Level: "P50", Clients: 2, Share: (2. / 3) / 2},
		{Hour: 23, Level: "P90", Clients: 2, Share: 0.5},
	} {
		if got := r.Calibration[22*3+i]; got != want {
			t.Errorf("calibration %+v, want %+v", got, want)
		}
	}
	if c := r.Calibration[0]; c.Clients != 0 || !math.IsNaN(c.Share) {
		t.Errorf("calibration of an hour without forecasts: %+v", c)
	}

	if len(d.curves) != 96 {
		t.Fatalf("%d rows of curves, want 96", len(d.curves))
	}
	missing := math.NaN()
	for _, want := range []struct {
		step   int
		values []float64 // load, last week, near with interval, far with interval
	}{
		{240, []float64{1, 1, missing, missing, missing, missing, missing, missing}},
		{263, []float64{24, 24, 20, 18, 25, 27, 24, 30}},
		{286, []float64{23, 23, missing, missing, missing, missing, missing, missing}}, // only its second step was forecast
		{287, []float64{0, 24, 1, 0.5, 2, missing, missing, missing}},
		{300, []float64{missing, 13, missing, missing, missing, missing, missing, missing}},
	} {
		c := d.curves[want.step-240]
		got := []float64{c.Actual, c.LastWeek, c.Near, c.NearLow, c.NearHigh, c.Far, c.FarLow, c.FarHigh}
		if !slices.EqualFunc(got, want.values, func(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) }) || c.Time.Unix() != m.Start+int64(want.step)*3600 {
			t.Errorf("step %d: %v at %v, want %v", want.step, got, c.Time, want.values)
		}
	}
}

// TestCurvesOfManyClients simulates more clients than the curves table can hold. The best, the
// median and the worst client must be in the table, so they are scored again. Their curves must
// equal the forecasts of the first scoring. The files are identical with any number of workers,
// and after interruptions near the end, during scoring and writing.
func TestCurvesOfManyClients(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates 300 clients several times")
	}
	const n = 300
	d, b := dataset(t, houses(t, n)...), newRunner(t)
	s := small("fedavg").with(settings{
		"rounds": 2, "partition": "head", "schedule.cohort": 20, "evaluate.forecasts": n, "evaluate.correct": true, "evaluate.fine_tune.steps": 1,
		"model.loss": "pinball", "model.quantiles": []float64{0.1, 0.5, 0.9},
	})
	one := b.run(t, s, d, 1)
	for _, workers := range []int{2, 3} {
		if names := different(one.files, b.run(t, s, d, workers).files); len(names) > 0 {
			t.Errorf("with %d workers these files differ: %v", workers, names)
		}
	}
	for _, name := range []string{"curves", "peaks", "calibration"} {
		for _, end := range []string{".csv", ".parquet"} {
			if one.files[name+end] == "" {
				t.Errorf("%s%s is missing", name, end)
			}
		}
	}

	curves, drawn := rows(t, one.files["curves.csv"]), map[string]bool{}
	for _, c := range curves {
		drawn[c["unique_id"]] = true
	}
	var clients []run.Client
	for _, c := range rows(t, one.files["clients.csv"]) {
		clients = append(clients, run.Client{Client: c["unique_id"], RelativeMAE: field(t, c, "relative_mae")})
	}
	sample := map[string]bool{}
	for i := range clients {
		if sampled(i, n, 100) {
			sample[clients[i].Client] = true
		}
	}
	again := 0
	for _, i := range run.Extremes(clients) {
		if !drawn[clients[i].Client] {
			t.Errorf("no curves of %s", clients[i].Client)
		}
		if !sample[clients[i].Client] {
			again++
		}
	}
	if again == 0 || len(drawn) != 100+again {
		t.Errorf("curves of %d clients, of which %d scored again; want 100 and at least one more", len(drawn), again)
	}

	// The forecasts table contains the same forecasts, with all digits.
	type key struct {
		client, time string
		lead         int
	}
	want := map[key]map[string]string{}
	for _, f := range rows(t, one.files["forecasts.csv"]) {
		cutoff, err := time.Parse(time.RFC3339, f["cutoff"])
		if err != nil {
			t.Fatal(err)
		}
		at, err := time.Parse(time.RFC3339, f["ds"])
		if err != nil {
			t.Fatal(err)
		}
		want[key{f["unique_id"], f["ds"], int(at.Sub(cutoff).Hours()) + 1}] = f
	}
	same := func(curve, forecast string) bool {
		v, err := strconv.ParseFloat(forecast, 64)
		return forecast == "" && curve == "" || err == nil && strconv.FormatFloat(run.Rounded(v), 'g', -1, 64) == curve
	}
	compared := 0
	for _, c := range curves {
		for lead, column := range []string{"near", "far"} {
			f := want[key{c["unique_id"], c["ds"], lead + 1}]
			if f != nil {
				compared++
			}
			if !same(c[column], f["forecast"]) || !same(c[column+"_P10"], f["P10"]) || !same(c[column+"_P90"], f["P90"]) {
				t.Fatalf("curve %v, forecast %v", c, f)
			}
		}
	}
	if compared < 1000 {
		t.Errorf("only %d forecasts compared", compared)
	}

	// Interrupt other runs at points between scoring and the end.
	c := Config{Plan: s.plan(t), Dataset: d, Kernel: kernels(t), Memory: 1 << 20, Workers: 1, Dir: b.folder()}
	const plenty = 1 << 40
	whole := newCountdown(plenty)
	if _, err := Run(whole, c); err != nil {
		t.Fatal(err)
	}
	for _, before := range []int64{1, n / 2, n + 2, 2 * n} {
		c.Dir, c.Resume = b.folder(), false
		if _, err := Run(newCountdown(plenty-whole.left.Load()-before), c); !errors.Is(err, context.Canceled) {
			t.Fatalf("interrupted %d points before the end: %v", before, err)
		}
		if _, err := Run(ctx, with(c)); err != nil {
			t.Fatal(err)
		}
		if names := different(one.files, comparable(t, c.Dir)); len(names) > 0 {
			t.Errorf("interrupted %d points before the end, these files differ: %v", before, names)
		}
	}
}
