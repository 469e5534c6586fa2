package report

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/lab/run"
)

func TestReadRun(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "set", "fedavg-7")
	writeRun(t, dir, "fedavg", 7, 3, true, 0.5)
	r, err := ReadRun(dir)
	if err != nil {
		t.Fatal(err)
	}
	if r.Dataset != "set" || !r.Generated || r.Method != "fedavg" || r.Algorithm != "fedavg" || r.Seed != 7 || len(r.Clients) != 5 {
		t.Errorf("run %+v", r)
	}
	if r.bytes != 120e6 || r.rounds != 12 || len(r.losses) != 12 || r.settings["client.steps"] != "4" {
		t.Errorf("%d bytes, %d rounds, %d losses, settings %v", r.bytes, r.rounds, len(r.losses), r.settings)
	}
	if len(r.evaluations) != 6 || r.evaluations[0].round != 2 {
		t.Fatalf("read the evaluations %+v", r.evaluations)
	}
	// The distribution ignores NaN. The other values are 2.5, 2.6 and 2.7.
	if got := r.evaluations[0].spread; math.Abs(got[2]-2.6) > 1e-12 || math.Abs(got[4]-2.7) > 1e-12 {
		t.Errorf("spread %v", got)
	}
	if len(r.excerpts) != 2 {
		t.Fatalf("read %d excerpts", len(r.excerpts))
	}
	s := r.excerpts[1]
	if s.client != hostile || s.interval != 3600 || len(s.actual) != 14*24 {
		t.Errorf("an excerpt of %q has %d values every %d s", s.client, len(s.actual), s.interval)
	}
	if len(s.leads) != 2 || s.leads[0].steps != 1 || s.leads[1].steps != 3 {
		t.Fatalf("leads %+v", s.leads)
	}
	for i, y := range s.actual {
		at := time.Unix(s.start+int64(i)*3600, 0).UTC()
		if want := 10 + 5*math.Sin(float64(at.Hour())); y != want || s.leads[0].values[i] != want+1 || s.leads[1].values[i] != want+3 {
			t.Fatalf("at %v: %v, forecasts %v and %v", at, y, s.leads[0].values[i], s.leads[1].values[i])
		}
	}
	if s.mae != 2 || s.weekMAE != 2 {
		t.Errorf("errors %v and %v", s.mae, s.weekMAE)
	}
}

func TestReadExperiment(t *testing.T) {
	dir := writeExperiment(t)
	runs, baselines, err := ReadExperiment(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(runs) != 12 || len(baselines) != 3 || baselines[0].Dataset != "real" || !math.IsNaN(baselines[2].RelativeMAE) {
		t.Fatalf("read %d runs and the baselines %+v", len(runs), baselines)
	}
	// Passing the same runs twice yields the same groups, because duplicates are ignored.
	sets := groupRuns(append(slices.Clone(runs), runs...), baselines)
	if len(sets) != 2 {
		t.Fatalf("%d datasets", len(sets))
	}
	made, real := sets[0], sets[1]
	if !made.generated || real.generated || len(made.methods) != 3 || len(real.methods) != 4 {
		t.Fatalf("made %+v, real %+v", made, real)
	}
	if first := real.methods[0]; first.name != "persistence" || !first.baseline || first.median() != 1.05 {
		t.Errorf("first method of dataset real: %s, median %v", first.name, first.median())
	}
	best := real.methods[1]
	if best.name != "fedadam-head" || len(best.runs) != 2 || math.Abs(best.median()-1.115) > 1e-9 || best.megabytes() != 24 {
		t.Errorf("best method %s with %d runs, median %v, %v MB", best.name, len(best.runs), best.median(), best.megabytes())
	}
	if got := best.belowOne(); got != 0.4 {
		t.Errorf("below 1: %v", got)
	}
	for _, m := range real.methods {
		if m.baseline != (m.look < 0) {
			t.Errorf("look of %s: %d", m.name, m.look)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadRun(dir); !errors.Is(err, ErrNoRun) {
		t.Errorf("an empty folder: %v", err)
	}
	if _, _, err := ReadExperiment(dir); err == nil || !strings.Contains(err.Error(), "no finished run") {
		t.Errorf("an empty experiment: %v", err)
	}
	if _, _, err := ReadExperiment(filepath.Join(dir, "nowhere")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
	for text, want := range map[string]string{
		"method,unique_id\n": "another version of loadstar",
		"method,unique_id,mae,rmse,nmae,relative_mae,reference\np,a,1,2,3,x,r\n":           "line 2",
		"method,unique_id,mae,rmse,nmae,relative_mae,reference\np,a,1,2,3,4,r\np,b,1,2,\n": "wrong number of fields",
	} {
		path := filepath.Join(dir, "baselines.csv")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, _, err := ReadExperiment(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "summary.json"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadRun(dir); err == nil || errors.Is(err, ErrNoRun) {
		t.Errorf("a broken summary: %v", err)
	}
}

// TestCutWithStride checks that forecasts made every 6 hours cover every hour.
func TestCutWithStride(t *testing.T) {
	var rows []run.Forecast
	start := time.Date(2021, 1, 1, 0, 0, 0, 0, time.UTC)
	for origin := range 40 {
		cutoff := start.Add(time.Duration(6*origin) * time.Hour)
		for h := range 24 {
			rows = append(rows, run.Forecast{Client: "a", Cutoff: cutoff, Time: cutoff.Add(time.Duration(h) * time.Hour), Actual: 1, Forecast: float64(h + 1), LastWeek: math.NaN()})
		}
	}
	s := cut(rows)
	if len(s.leads) != 2 || s.leads[0].steps != 1 || s.leads[0].until != 6 || s.leads[1].steps != 19 || s.leads[1].until != 24 {
		t.Fatalf("leads %+v", s.leads)
	}
	for i := range s.actual {
		at := int((s.start-start.Unix())/3600) + i
		if want := float64(at%6 + 1); at < 40*6 && s.leads[0].values[i] != want {
			t.Fatalf("hour %d: %v, want %v", at, s.leads[0].values[i], want)
		}
		if want := float64(at%6 + 19); at >= 18 && s.leads[1].values[i] != want {
			t.Fatalf("hour %d: %v, want %v", at, s.leads[1].values[i], want)
		}
	}
}

// TestDiverged checks that a method with a diverged run is marked in the tables, with a
// note.
func TestDiverged(t *testing.T) {
	one := func(method string, diverged bool) *Run {
		clients := []run.Client{{Client: "a", RelativeMAE: 0.5}, {Client: "b", RelativeMAE: 0.6}}
		return &Run{Dataset: "d", Method: method, Seed: 3, Clients: clients, diverged: diverged, settings: map[string]string{"name": method, "client.optimizer": method}}
	}
	page := string(written(t, &Report{Runs: []*Run{one("calm", false), one("wild", true)}}))
	if !strings.Contains(page, "wild †") || strings.Contains(page, "calm †") {
		t.Error("the wrong methods are marked")
	}
	if !strings.Contains(page, "† Training diverged: the validation loss ended at ten times its lowest value or more in wild (seed 3).") {
		t.Error("no note on the mark")
	}
}
