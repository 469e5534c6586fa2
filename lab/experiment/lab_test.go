package experiment

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/lab/run"
	"loadstar/nn/kernel"
	"loadstar/series"
	"loadstar/series/synth"
)

const tiny = `
title: tiny
parts:
  - name: rates
    datasets: [houses]
    plan:
      model: {name: fekri2023, lookback: 4, targets: 2, split: {train: 0.6, validation: 0.2}}
      client: {steps: 3, batch: 8}
      rounds: 4
      evaluate: {every: 2, forecasts: 4}
    methods:
      - {name: SGD, plan: {algorithm: fedavg, client: {optimizer: sgd}}}
    grid:
      - {key: client.lr, values: [0.1, 1.0e+30]}
  - name: compared
    datasets: [houses]
    clients: 3
    seeds: [1, 2]
    baselines: [persistence]
    best: [rates]
    against: Adam
    plan:
      model: {name: fekri2023, lookback: 4, targets: 2, split: {train: 0.6, validation: 0.2}}
      client: {steps: 3, batch: 8}
      rounds: 2
      evaluate: {every: 2, forecasts: 4, reference: last-value}
    methods:
      - name: SGD
      - {name: Adam, plan: {algorithm: fedavg}}
      - {name: Twin, plan: {algorithm: fedavg}}
`

func houses(t *testing.T) *series.Dataset {
	t.Helper()
	g, err := synth.New(synth.Config{Seed: 3, Meters: 4, Days: 20, Zone: "UTC"})
	if err != nil {
		t.Fatal(err)
	}
	meters := make([]series.Meter, 4)
	for i := range meters {
		load := make([]float32, g.Len())
		g.Building(i, load)
		meters[i] = series.Meter{ID: fmt.Sprintf("house-%d", i), Start: g.Time(0).Unix(), Load: load}
	}
	d, err := series.NewDataset(series.Dataset{Name: "houses", Generated: true, Interval: time.Hour, Clock: time.UTC}, meters)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestLab(t *testing.T) {
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	d := houses(t)
	var done, of int
	lab := Lab{
		Dir: t.TempDir(), Kernel: k, Parallel: 2,
		Open:     func(string) (*series.Dataset, error) { return d, nil },
		Progress: func(d, o int) { done, of = d, o },
	}
	s := read(t, tiny, false)
	first, err := lab.Run(context.Background(), s)
	if err != nil {
		t.Fatal(err)
	}
	if want := 2*4 + 3*2*2; done != want || of != want {
		t.Errorf("%d of %d rounds, want %d", done, of, want)
	}
	var names []string
	for _, r := range first {
		names = append(names, strings.Join(append([]string{r.Part, r.Method}, r.At...), " "))
		if !r.Generated {
			t.Errorf("%s is not marked as synthetic", r.Method)
		}
	}
	if want := []string{"rates SGD 0.1", "rates SGD 1e+30", "compared persistence", "compared SGD", "compared Adam", "compared Twin"}; !reflect.DeepEqual(names, want) {
		t.Fatalf("results are %q, want %q", names, want)
	}
	trained, lost, persistence, sgd, adam, twin := first[0].Figures, first[1].Figures, first[2].Figures, first[3].Figures, first[4].Figures, first[5].Figures
	if lost["diverged"].Mean() != 1 || !math.IsNaN(lost["relative_mae_mean"].Mean()) || lost["relative_mae_mean"].String() != "-" {
		t.Errorf("figures of the run with learning rate 1e30: %v", lost)
	}
	if trained["validation_loss"].Mean() <= 0 || trained["steps"].Mean() != 4*4*3 {
		t.Errorf("figures of the run with learning rate 0.1: %v", trained)
	}
	if persistence["relative_mae_mean"].Mean() != 1 {
		t.Errorf("figures of persistence: %v", persistence)
	}
	if sgd["best client.lr"].Mean() != 0.1 {
		t.Errorf("figures of SGD: %v", sgd)
	}
	if sgd["mae"].Low() >= sgd["mae"].High() {
		t.Errorf("two seeds have the same MAE: %v", sgd["mae"])
	}
	// With three clients and two seeds, the shares are multiples of 1/6 and add up to 1.
	if sum := sgd["dm_better"].Mean() + sgd["dm_worse"].Mean() + sgd["dm_same"].Mean(); math.Abs(sum-1) > 1e-9 {
		t.Errorf("figures of SGD: %v", sgd)
	}
	if _, ok := adam["dm_same"]; ok {
		t.Error("Adam is tested against itself")
	}
	// Adam and its twin win for the same clients, and a client's best method also counts as
	// near the best.
	for seed := range 2 {
		if a, b := adam["won_rmse"][seed], twin["won_rmse"][seed]; a != b || a+sgd["won_rmse"][seed] != 3 || adam["near_rmse"][seed] < a {
			t.Errorf("won in %v, %v and %v clients", adam["won_rmse"], twin["won_rmse"], sgd["won_rmse"])
		}
	}
	if f := adam["dm_chance"]; len(f) != 1 || !(f[0] >= 0 && f[0] <= 1) {
		t.Errorf("two seeds differ significantly for the share %v of clients", f)
	}
	if twin["dm_same"].Mean() != 1 || !slices.Equal(twin["mae"], adam["mae"]) {
		t.Errorf("equal plans have the figures %v and %v", twin, adam)
	}

	// A second call runs only the trials whose runs are missing.
	kept := filepath.Join(lab.Dir, "compared", "houses", "Adam-1", "summary.json")
	before, err := os.Stat(kept)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(lab.Dir, "compared", "houses", "SGD-2")); err != nil {
		t.Fatal(err)
	}
	again, err := lab.Run(context.Background(), s)
	if err != nil {
		t.Fatal(err)
	}
	if table(t, again) != table(t, first) {
		t.Errorf("second result:\n%s\nfirst result:\n%s", table(t, again), table(t, first))
	}
	if after, err := os.Stat(kept); err != nil || !after.ModTime().Equal(before.ModTime()) {
		t.Error("a finished run was run again", err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	lab.Dir = t.TempDir()
	if _, err := lab.Run(ctx, s); err == nil {
		t.Error("a cancelled experiment has results")
	}
}

// TestErrors checks that each forecast has one error, regardless of its number of steps.
func TestErrors(t *testing.T) {
	l := Lab{Dir: t.TempDir()}
	variants, err := read(t, tiny, false).Parts[0].plans(nil)
	if err != nil {
		t.Fatal(err)
	}
	trial := Trial{Plan: variants[0].plan, Dataset: houses(t), Part: "p"}
	f, err := run.Create(filepath.Join(l.Dir, trial.folder()), []byte("plan"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at := func(hour int) time.Time { return time.Unix(int64(hour)*3600, 0).UTC() }
	rows := []run.Forecast{
		{Client: "a", Cutoff: at(1), Time: at(1), Actual: 1, Forecast: 4},
		{Client: "a", Cutoff: at(1), Time: at(2), Actual: 1, Forecast: -3},
		{Client: "a", Cutoff: at(2), Time: at(2), Actual: 1, Forecast: 3},
		{Client: "a", Cutoff: at(2), Time: at(3), Actual: math.NaN(), Forecast: 3},
		{Client: "a", Cutoff: at(3), Time: at(3), Actual: math.NaN(), Forecast: 3},
		{Client: "b", Cutoff: at(3), Time: at(3), Actual: 1, Forecast: 0},
	}
	if err := f.OpenTables(run.Offsets{}); err != nil {
		t.Fatal(err)
	}
	if err := f.Finish(run.Results{Forecasts: rows}, &run.Summary{}); err != nil {
		t.Fatal(err)
	}
	got, err := l.errors(trial)
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string][]float64{"a": {math.Sqrt(12.5), 2}, "b": {1}}; !reflect.DeepEqual(got.byClient, want) || got.bias != (3-4+2-1)/4.0 {
		t.Errorf("errors are %+v, want %v", got, want)
	}
}

// TestDieboldMariano compares two methods on four clients. The first method's errors are, by
// client, smaller, larger, equal, and for different targets.
func TestDieboldMariano(t *testing.T) {
	small, large := make([]float64, 200), make([]float64, 200)
	for i := range small {
		small[i] = 1 + math.Sin(float64(i))/2
		large[i] = 2 + math.Cos(float64(3*i))/2
	}
	ours := map[string][]float64{"better": small, "worse": large, "equal": small, "other": small}
	theirs := map[string][]float64{"better": large, "worse": small, "equal": small, "other": small[:9]}
	if better, worse, same := dieboldMariano(ours, theirs); better != 1 || worse != 1 || same != 2 {
		t.Errorf("better %v, worse %v, same %v; want 1, 1, 2", better, worse, same)
	}
}

func table(t *testing.T, results []Result) string {
	t.Helper()
	var b strings.Builder
	if err := WriteTSV(&b, results); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
