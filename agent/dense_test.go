package agent

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"loadstar/agent/state"
	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/fed/round"
	"loadstar/series"
)

// TestHostileRows checks that an agent declines plans of dense with settings that would
// need too much memory, before it allocates that memory.
func TestHostileRows(t *testing.T) {
	d := meters(t, 3)
	text := string(dense(nil).text(t))
	levels := make([]string, 7000) // a plan of 64 KB cannot contain more
	for i := range levels {
		levels[i] = fmt.Sprintf("%.5f", float64(i+1)/float64(len(levels)+1))
	}
	for name, x := range map[string]struct{ old, new, want string }{
		"targets":             {"targets: 1", "targets: 1000000", "model.targets is 1000000"},
		"most targets":        {"targets: 1", "targets: 9223372036854775807", "model.targets is 9223372036854775807"},
		"targets of minutes":  {"targets: 1", "targets: 10080\n  interval: 1m", "model.interval is 1m, but the readings are 1h apart"},
		"targets of hours":    {"targets: 1", "targets: 169", "model.targets is 169"},
		"targets of years":    {"targets: 1", "targets: 2000000h", "model.targets is 120000000"},
		"horizon":             {"horizon: 1", "horizon: 10000", "model.horizon is 10000"},
		"horizon and targets": {"targets: 1", "targets: 100\n  horizon: 100", "model.targets is 100"},
		"lookback":            {"lookback: 168h", "lookback: 1000000000", "model.lookback is 1000000000"},
		"a second":            {"targets: 1", "targets: 1\n  interval: 1s", "model.interval is 1s; it must be at least 1m"},
		"a nanosecond":        {"targets: 1", "targets: 1\n  interval: 1ns", "model.interval is 1ns; it must be at least 1m"},
		"a minute":            {"targets: 1", "targets: 1\n  interval: 1m", "model.interval is 1m, but the readings are 1h apart"},
		"a quarter":           {"targets: 1", "targets: 1\n  interval: 15m", "model.interval is 15m, but the readings are 1h apart"},
		"seven hours":         {"targets: 1", "targets: 1\n  interval: 7h", "a day must be a multiple"},
		"quantiles":           {"[0.1, 0.5, 0.9]", "[" + strings.Join(levels, ",") + "]", "training takes"},
		"gaps":                {"gaps: 0.1", "gaps: 1", "model.gaps is 1"},
		"weight decay":        {"weight_decay: {correction: 16}", "weight_decay: {correction: 1e30}", "client.weight_decay times the learning rate"},
		"averaged, too large": {"moments: kept", "moments: averaged\n  batch: 60000", "training takes"},
		"unknown moments":     {"moments: kept", "moments: doubled", "client.moments"},
	} {
		plan := strings.Replace(text, x.old, x.new, 1)
		if name == "horizon and targets" {
			plan = strings.Replace(plan, "  horizon: 1\n", "", 1)
		}
		if name == "averaged, too large" {
			plan = strings.Replace(plan, "  batch: 8\n", "", 1)
		}
		if plan == text || len(plan) > maxPlan {
			t.Fatalf("%s: %d bytes, %q is not in the plan:\n%s", name, len(plan), x.old, text)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := time.Now()
		_, err := newSession([]byte(plan), 9, d, kernels(t), 1, 64<<20, &anyPlan, testSecret)
		took := time.Since(began)
		runtime.ReadMemStats(&after)
		var no *unfit
		if !errors.As(err, &no) || !strings.Contains(no.reason, x.want) {
			t.Errorf("%s: %v, want %q", name, err, x.want)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 48<<20 || took > 20*time.Second {
			t.Errorf("%s: declined after %d MB and %s", name, n>>20, took)
		}
	}
}

// TestOtherStep checks that an agent resolves durations by the interval of its readings, and
// declines a run whose clients have another interval, whatever the model.
func TestOtherStep(t *testing.T) {
	d := meters(t, 3)
	quarters := settings{"model.interval": "15m"}
	for name, plan := range map[string]settings{"dense": dense(quarters), "windows": small("fedavg", quarters)} {
		_, err := newSession(plan.text(t), 9, d, kernels(t), 1, 64<<20, &anyPlan, testSecret)
		var no *unfit
		if want := "model.interval is 15m, but the readings are 1h apart"; !errors.As(err, &no) || no.code != codeData || !strings.Contains(no.reason, want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	s, err := newSession(dense(settings{"model.targets": "3h"}).text(t), 9, d, kernels(t), 1, 64<<20, &anyPlan, testSecret)
	if err != nil || s.Plan.Model.Targets != fed.Steps(3) {
		t.Errorf("3h: %+v, %v", s, err)
	}
}

// TestHostileMoments checks that averaged moments from the server cannot make the state of
// a client infinite or undefined, and that weights stay within the bounds.
func TestHostileMoments(t *testing.T) {
	d := meters(t, 3)
	plan := dense(settings{"client.moments": "averaged", "client.warmup": 0})
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for name, x := range map[string]struct {
		m, v float32
		want string // empty if the update is within the bounds
	}{
		"no moments":                {0, 0, ""},
		"first moments not numbers": {nan, 1, "diverged"},
		"infinite first moments":    {inf, 1, "diverged"},
		"huge first moments":        {1e38, 0, "diverged"},
		"large first moments":       {1e3, 0, "outside the plan's bounds"},
		"second not numbers":        {1e-3, nan, "outside the plan's bounds"},
		"second below zero":         {1e-3, -1, ""},
		"second tiny":               {1e-3, 1e-30, ""},
		"infinite second moments":   {0, inf, "diverged"},
	} {
		s := newStub(t)
		dir := t.TempDir()
		a, err := newAgent(config(t, "a", s.http.URL, dir, d))
		if err != nil {
			t.Fatal(err)
		}
		k := s.task(t, "run", 0, plan, 9, "meter-00")
		shared := round.ReadFloats(nil, s.blobs[k.Weights])
		n := len(shared) / 3
		for i := range n {
			shared[n+i], shared[2*n+i] = x.m, x.v
		}
		k.Weights = s.put(round.AppendFloats(nil, shared))
		a.worklist.add(k)
		if err := a.do(context.Background(), a.worklist.next(context.Background())); err != nil {
			t.Fatal(err)
		}
		results, declines := len(a.worklist.results), ""
		for _, no := range a.worklist.declines {
			declines += no.reason
		}
		a.store.Close()
		if x.want == "" && results != 1 || x.want != "" && (results != 0 || !strings.Contains(declines, x.want)) {
			t.Errorf("%s: %d results, declined %s", name, results, declines)
		}
		store, err := state.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]float32, len(a.session.initial))
		if kept, err := store.Load("run", "meter-00", got); err != nil || !kept.First {
			t.Errorf("%s: %v, the client's state was changed without a count", name, err)
		}
		store.Close()
	}
}

// TestFeatureMemory checks that the memory estimate of dense includes the features of the
// meters in training, and that the cache of features gets the rest of the memory.
func TestFeatureMemory(t *testing.T) {
	d := meters(t, 3)
	text := dense(nil).text(t)
	p, err := recipe.Read(text)
	if err != nil {
		t.Fatal(err)
	}
	q, err := recipe.Frame(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	shared, meter := q.FeatureBytes(d)
	if shared < 20<<10 || meter < 60<<10 {
		t.Errorf("%d and %d bytes of features", shared, meter)
	}
	for _, workers := range []int{1, 3} {
		need := footprint(p, q, workers) + shared + int64(workers)*meter
		if _, err := newSession(text, 9, d, kernels(t), workers, need-1, &anyPlan, testSecret); err == nil || !strings.Contains(err.Error(), "training takes") {
			t.Errorf("%d workers: a byte too few: %v", workers, err)
		}
		s, err := newSession(text, 9, d, kernels(t), workers, need, &anyPlan, testSecret)
		if err != nil {
			t.Fatal(err)
		}
		if m := d.Meter(0); s.Problem.Examples(m, nil).Len(series.Train) == 0 {
			t.Error("no examples")
		}
	}
}
