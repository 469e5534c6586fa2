package year

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"loadstar/fed/recipe"
	"loadstar/fed/serve"
	"loadstar/internal/testkit"
	"loadstar/lab/sim"
	"loadstar/nn/kernel"
	"loadstar/series"
	"loadstar/series/read"
)

const dayAhead = `name: day-ahead
model: {name: dense, targets: 24}
algorithm: fedavg
`

// data returns meters of the sample or, in the long test, of the Cambridge data from 2016 and
// 2017.
func data(t *testing.T, meters int) *series.Dataset {
	t.Helper()
	path, root := testkit.Sample(t), ""
	if testkit.Long() {
		path, root = testkit.Dataset(t, "cambridge-core42-2016-17")
	}
	description, err := read.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	d, err := read.Open(description, root)
	if err != nil {
		t.Fatal(err)
	}
	var chosen []series.Meter
	for i := range d.Len() {
		m := d.Meter(i)
		// Tests need clients that accept a good model. For these two, last week's load is as
		// good as the model in May.
		if !testkit.Long() && (m.ID == "cam_b9" || m.ID == "cam_b34") {
			continue
		}
		if len(chosen) < meters {
			chosen = append(chosen, m)
		}
	}
	if d, err = d.With(chosen); err != nil {
		t.Fatal(err)
	}
	return d
}

// before returns the readings before a time.
func before(t *testing.T, d *series.Dataset, at int64) *series.Dataset {
	t.Helper()
	var meters []series.Meter
	for i := range d.Len() {
		m := d.Meter(i)
		m.Load = m.Load[:min(max((at-m.Start)/d.Seconds(), 0), int64(len(m.Load)))]
		meters = append(meters, m)
	}
	w := d.Weather
	w.Columns = slices.Clone(w.Columns)
	for i := range w.Columns {
		w.Columns[i] = w.Columns[i][:min((at-w.Start)/d.Seconds(), int64(len(w.Columns[i])))]
	}
	out, err := series.NewDataset(series.Dataset{Name: d.Name, Interval: d.Interval, Clock: d.Clock, Country: d.Country, Weather: w, StaticNames: d.StaticNames}, meters)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// train trains a model on a dataset with a plan, and returns its folder.
func train(t *testing.T, d *series.Dataset, plan, dir string) string {
	t.Helper()
	p, err := recipe.Read([]byte(plan))
	if err != nil {
		t.Fatal(err)
	}
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(dir, "day-ahead")
	began := time.Now()
	if _, err := sim.Run(t.Context(), sim.Config{Plan: p, Dataset: d, Dir: dir, Kernel: k, Workers: 2, Save: time.Hour}); err != nil {
		t.Fatal(err)
	}
	t.Logf("trained on %d meters in %.0f s", d.Len(), time.Since(began).Seconds())
	if _, err := os.Stat(filepath.Join(dir, serve.ScalingName)); err != nil {
		f, err := serve.Open(dir, d, k)
		if err != nil {
			t.Fatal(err)
		}
		q, err := recipe.Frame(f.Model.Plan, d)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for i := range d.Len() {
			names = append(names, d.Meter(i).ID)
		}
		var b bytes.Buffer
		err = serve.WriteScaling(&b, q, d.Interval, names, func(i int) (recipe.Scaling, error) { return q.Scaling(d.Meter(i), nil), nil })
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, serve.ScalingName), b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// start is the time at which agents begin; models are trained on the readings before it.
var start = testkit.Pick(time.Date(2016, 5, 2, 0, 0, 0, 0, time.UTC), time.Date(2017, 1, 2, 0, 0, 0, 0, time.UTC)).Unix()

var shared struct {
	once  sync.Once
	data  *series.Dataset
	model string
	dir   string
}

func TestMain(m *testing.M) {
	if os.Getenv(childDir) != "" {
		if err := child(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code := m.Run()
	if shared.dir != "" {
		os.RemoveAll(shared.dir)
	}
	os.Exit(code)
}

// fixture returns a few meters and a model that was trained on their readings before start.
// Tests share it.
func fixture(t *testing.T) (*series.Dataset, string) {
	t.Helper()
	shared.once.Do(func() {
		d := data(t, 6)
		dir, err := os.MkdirTemp("", "loadstar-year")
		if err != nil {
			t.Fatal(err)
		}
		shared.dir = dir
		shared.model = train(t, before(t, d, start), dayAhead+"rounds: 60\n", dir)
		shared.data = d
	})
	if shared.data == nil {
		t.Fatal("the model could not be trained")
	}
	return shared.data, shared.model
}

// TestYear runs a year of live forecasting or, in the usual test, some weeks with a few
// clients.
func TestYear(t *testing.T) {
	if testing.Short() {
		t.Skip("trains a model and runs it for weeks of virtual time")
	}
	meters, weeks := 42, testkit.Pick(8, 51)
	if n, err := strconv.Atoi(os.Getenv("LOADSTAR_YEAR_WEEKS")); err == nil {
		weeks = n
	}
	settled := start + 14*86400
	var (
		d     *series.Dataset
		model string
	)
	if testkit.Long() {
		d = data(t, meters)
		model = train(t, before(t, d, start), dayAhead, t.TempDir())
	} else {
		d, model = fixture(t)
	}
	var log bytes.Buffer
	planted := start + int64(weeks)*7*86400*3/5
	c := Config{
		Data: d, Model: model, Start: start, End: start + int64(weeks)*7*86400, H: 48, Settled: settled, Canary: testkit.Pick(97, 197), Dir: t.TempDir(),
		Log: slog.New(slog.NewTextHandler(&log, nil)),
		Plants: []Plant{
			{Client: d.Meter(0).ID, From: planted, Factor: 1000, Kind: "kW became W"},
			{Client: d.Meter(1).ID, From: planted, Factor: 2, Kind: "the load doubled"},
		},
	}
	r, err := Run(context.Background(), c)
	if err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
	var coverage, ratio []float64
	for _, x := range r.Clients {
		if slices.ContainsFunc(c.Plants, func(p Plant) bool { return p.Client == x.Name }) {
			t.Logf("%-12s planted: alarm after %.1f days, finding after %.1f days (-1: never)", x.Name, days(x.Alarm, planted), days(x.Finding, planted))
			if found := days(x.Finding, planted); x.Name == c.Plants[0].Client && (found < 0 || found > 3) {
				t.Errorf("a wrong unit was found after %.1f days, want at most 3", found)
			}
			continue
		}
		if x.Steps == 0 { // the client refused the model, so last week's load was used
			t.Logf("%-12s coverage %.1f %%, without a model", x.Name, 100*x.Coverage)
			coverage = append(coverage, x.Coverage)
			continue
		}
		best := min(x.Model, x.Week)
		coverage, ratio = append(coverage, x.Coverage), append(ratio, x.Served/best)
		t.Logf("%-12s coverage %.1f %%, MAE %.3f, model alone %.3f, week %.3f, ratio %.3f, alarms %d", x.Name, 100*x.Coverage, x.Served, x.Model, x.Week, x.Served/best, x.Alarms)
	}
	sort.Float64s(coverage)
	sort.Float64s(ratio)
	t.Logf("%d issues in %.0f s, rows %v, fallback %.2f %%, %d canaries", r.Issues, r.Elapsed.Seconds(), r.Rows, 100*r.Fallback, r.Canaries)
	t.Logf("coverage median %.1f %%, from %.1f to %.1f %%; within 75-85 %%: %.0f %%", 100*coverage[len(coverage)/2], 100*coverage[0], 100*coverage[len(coverage)-1],
		100*share(coverage, func(v float64) bool { return v >= 0.75 && v <= 0.85 }))
	t.Logf("served MAE at most 1.02 of the better for %.0f %% of clients, worst %.3f", 100*share(ratio, func(v float64) bool { return v <= 1.02 }), ratio[len(ratio)-1])
	least, most := testkit.Pick(0.70, 0.78), testkit.Pick(0.92, 0.82)
	if v := coverage[len(coverage)/2]; v < least || v > most {
		t.Errorf("the median client's coverage is %.1f %%, want %.0f to %.0f", 100*v, 100*least, 100*most)
	}
	if v := share(coverage, func(v float64) bool { return v >= 0.75 && v <= 0.85 }); testkit.Long() && v < 0.9 {
		t.Errorf("coverage is 75 to 85 %% for %.0f %% of clients, want 90", 100*v)
	}
	if v := share(ratio, func(v float64) bool { return v <= testkit.Pick(1.1, 1.02) }); v < 0.95 {
		t.Errorf("the served MAE is at most 1.02 of the better for %.0f %% of clients, want 95", 100*v)
	}
	if r.Canaries < 5 || r.Fallback > testkit.Pick(0.5, 0.1) {
		t.Errorf("%d checks with readings of the future, %.1f %% fallbacks", r.Canaries, 100*r.Fallback)
	}
	for _, line := range strings.Split(log.String(), "\n") {
		if !strings.Contains(line, "level=INFO") && line != "" {
			t.Log(line)
		}
	}
}

func days(at, from int64) float64 {
	if at == 0 {
		return -1
	}
	return float64(at-from) / 86400
}

func share(x []float64, is func(float64) bool) float64 {
	n := 0
	for _, v := range x {
		if is(v) {
			n++
		}
	}
	return float64(n) / float64(len(x))
}
