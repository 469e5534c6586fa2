package backtest

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/lab/run"
	"loadstar/series"
)

var start = time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)

// fleet returns n meters with 35 days of hourly loads. Within a week, a meter's load is
// constant: the meter's number plus the week's number, both counted from 1. Last week's profile
// is therefore always 1 kW too low.
func fleet(t *testing.T, n int) *series.Dataset {
	t.Helper()
	var all []series.Meter
	for i := range n {
		load := make([]float32, 35*24)
		for k := range load {
			load[k] = float32(i + 1 + k/168 + 1)
		}
		all = append(all, series.Meter{ID: fmt.Sprintf("m%03d", i), Start: start.Unix(), Load: load})
	}
	d, err := series.NewDataset(series.Dataset{Name: "steps", Interval: time.Hour, Clock: time.UTC}, all)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// plan returns a plan of day-ahead forecasts every six hours, whose test split is the last
// tenth of a series: three and a half days.
func plan(t *testing.T) *fed.Plan {
	t.Helper()
	p, err := recipe.Read([]byte("name: p\nalgorithm: fedavg\nmodel: {name: dense, targets: 24, split: {train: 0.7, validation: 0.2}}\nevaluate: {stride: 6}\n"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// folder writes the tables of a run that Beside reads: all clients, and the curves of the named
// clients.
func folder(t *testing.T, d *series.Dataset, drawn ...string) string {
	t.Helper()
	dir := t.TempDir()
	var clients, curves strings.Builder
	const scores = "mean_kw,std_kw,train_examples,targets,loss,mae,rmse,nmae,mape,smape,relative_mae,relative_mae_model,coverage,coverage_calibrated,pinball,pinball_calibrated"
	clients.WriteString("unique_id," + scores + "\n")
	curves.WriteString("unique_id,ds,y,last_week,near,near_P10,near_P90,far,far_P10,far_P90\n")
	for i := range d.Len() {
		fmt.Fprintf(&clients, "%s,1,1,1,1,1,1,1,1,1,1,1,1,,,,\n", d.Meter(i).ID)
	}
	for _, id := range drawn {
		fmt.Fprintf(&curves, "%s,%s,1,1,1,,,1,,\n", id, start.Format(time.RFC3339))
	}
	for name, text := range map[string]string{"clients.csv": clients.String(), "curves.csv": curves.String()} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestBeside compares the tables of last week's profile with values computed by hand, and
// checks that Beside writes them once and then reads them.
func TestBeside(t *testing.T) {
	d, p := fleet(t, 3), plan(t)
	dir := folder(t, d, "m001")
	b, err := Beside(t.Context(), d, p, dir, []string{"naive-week"}, 2)
	if err != nil {
		t.Fatal(err)
	}
	if len(b.Scores) != 3 {
		t.Fatalf("%d scores, want 3", len(b.Scores))
	}
	// The test split, from step 756, is in the fifth week: meter i has a load of i + 6.
	for i, s := range b.Scores {
		if load := float64(i + 6); s.Client != fmt.Sprintf("m%03d", i) || s.MAE != 1 || math.Abs(s.NMAE-1/load) > 1e-12 || s.RelativeMAE != 1 || s.Reference != "last-week" {
			t.Errorf("scores %+v", s)
		}
	}
	want := (1./6 + 1./7 + 1./8) / 3
	if len(b.Profile) != 48 {
		t.Errorf("%d rows of the profile, want 24 hours and 24 steps", len(b.Profile))
	}
	for i, r := range b.Profile {
		if by, at := []string{"hour", "step"}[i/24], i%24+i/24; r.By != by || r.At != at || r.Clients != 3 || math.Abs(r.NMAE-want) > 1e-12 {
			t.Errorf("profile %+v, want %s %d with %v", r, by, at, want)
		}
	}
	// Origins are six hours apart. The near curve contains steps 1 to 6 of each forecast and the
	// far curve steps 19 to 24, so the far curve begins 18 hours later.
	near, far := 0, 0
	for i, c := range b.Curves {
		if c.Client != "m001" || i > 0 && !c.Time.After(b.Curves[i-1].Time) {
			t.Fatalf("curve %+v after %+v", c, b.Curves[max(i-1, 0)])
		}
		for n, v := range map[*int]float64{&near: c.Near, &far: c.Far} {
			if v == 6 {
				*n++
			} else if !math.IsNaN(v) {
				t.Errorf("curve %+v, want 6 kW", c)
			}
		}
	}
	first, last := b.Curves[0], b.Curves[len(b.Curves)-1]
	if near == 0 || near != far || first.Time != start.Add(756*time.Hour) || math.IsNaN(first.Near) || !math.IsNaN(first.Far) || !math.IsNaN(last.Near) || math.IsNaN(last.Far) ||
		last.Time.Sub(first.Time) != time.Duration(near+18-1)*time.Hour {
		t.Errorf("%d near and %d far steps from %+v to %+v", near, far, first, last)
	}

	path := filepath.Join(dir, "baselines", "baselines.csv")
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(before), "m000", "read", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	again, err := Beside(t.Context(), d, p, dir, []string{"naive-week"}, 1)
	if err != nil || again.Scores[0].Client != "read" {
		t.Errorf("%v: the baselines were computed again: %+v", err, again.Scores[0])
	}
	// If another baseline is requested, Beside computes both.
	both, err := Beside(t.Context(), d, p, dir, []string{"naive-week", "naive-day"}, 1)
	if err != nil || len(both.Scores) != 6 || both.Scores[0].Client != "m000" || !reflect.DeepEqual(both.Scores[:3], b.Scores) {
		t.Errorf("%v: %+v", err, both.Scores)
	}
}

// TestBesideLargeFleet checks that baselines are fitted for at most 200 clients of a large
// fleet and for the clients with curves, and that the number of workers does not matter.
func TestBesideLargeFleet(t *testing.T) {
	d, p := fleet(t, 300), plan(t)
	// The sample contains two of every three clients; it omits m002, m005 and so on up to m299.
	var files []string
	for _, workers := range []int{1, 3} {
		dir := folder(t, d, "m000", "m001", "m002", "m299")
		b, err := Beside(t.Context(), d, p, dir, []string{"naive-week"}, workers)
		if err != nil {
			t.Fatal(err)
		}
		scored := map[string]bool{}
		for _, s := range b.Scores {
			scored[s.Client] = true
		}
		drawn := map[string]bool{}
		for _, c := range b.Curves {
			drawn[c.Client] = true
		}
		for _, id := range []string{"m000", "m001", "m002", "m299"} {
			if !scored[id] || !drawn[id] {
				t.Errorf("%s is not scored or has no curve", id)
			}
		}
		for i := range d.Len() {
			if id := d.Meter(i).ID; scored[id] != (i%3 != 2 || id == "m002" || id == "m299") {
				t.Errorf("%s is scored: %t", id, scored[id])
			}
		}
		if len(scored) != besideClients+2 || len(drawn) != 4 {
			t.Errorf("%d clients scored and %d drawn, want 202 and 4", len(scored), len(drawn))
		}
		var all strings.Builder
		for _, name := range []string{"baselines.csv", "profile.csv", "curves.csv"} {
			text, err := os.ReadFile(filepath.Join(dir, "baselines", name))
			if err != nil {
				t.Fatal(err)
			}
			all.Write(text)
		}
		files = append(files, all.String())
	}
	if files[0] != files[1] {
		t.Error("the tables depend on the number of workers")
	}
}

// TestChosen checks which clients are scored.
func TestChosen(t *testing.T) {
	d := fleet(t, 3)
	clients := []run.Client{{Client: "m002"}, {Client: "m000"}, {Client: "unknown"}}
	indices, drawn := chosen(d, clients, []run.Curve{{Client: "m001"}, {Client: "m001"}})
	if !reflect.DeepEqual(indices, []int{0, 1, 2}) || !reflect.DeepEqual(drawn, map[string]bool{"m001": true}) {
		t.Errorf("%v and %v", indices, drawn)
	}
}
