package experiment

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"loadstar/fed/recipe"
	"loadstar/metric"
	"loadstar/nn/kernel"
)

const tunable = `
# a comment
name: tunable
model: {name: fekri2023, lookback: 4, targets: 2, split: {train: 0.6, validation: 0.2}}
algorithm: fedavg
client: {steps: 3, batch: 8}
rounds: 27
`

func tuning(t *testing.T, dir string, sets ...string) *Tuning {
	t.Helper()
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	u := &Tuning{Dir: dir, Plan: []byte(tunable), Seeds: []uint64{1, 2}, Dataset: houses(t), Kernel: k, Parallel: 2}
	for _, s := range sets {
		a, err := ParseAxis(s)
		if err != nil {
			t.Fatal(err)
		}
		u.Axes = append(u.Axes, a)
	}
	return u
}

// timeless removes measured times.
func timeless(r *Tuned) *Tuned {
	r.CPU = 0
	for i := range r.Candidates {
		r.Candidates[i].CPU = 0
	}
	return r
}

func printed(t *testing.T, r *Tuned) string {
	t.Helper()
	var to strings.Builder
	if err := timeless(r).Print(&to); err != nil {
		t.Fatal(err)
	}
	return to.String()
}

func TestTune(t *testing.T) {
	sets := []string{"client.lr=0.0001,0.01,1e30", "client.steps=3,4"}
	dir := t.TempDir()
	whole, err := tuning(t, dir, sets...).Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(whole.Candidates) != 7 || len(whole.Stages) != 1 {
		t.Fatalf("%d plans, %d stages; want 7 in one", len(whole.Candidates), len(whole.Stages))
	}
	best, given := whole.Candidates[0], whole.Candidates[0]
	for i, c := range whole.Candidates {
		if i > 0 && c.Loss < whole.Candidates[i-1].Loss {
			t.Errorf("plan %d has a lower loss than the one before it", i)
		}
		if c.Given {
			given = c
		}
		if diverges := c.Values != nil && c.Values[0] == "1e30"; diverges != math.IsInf(float64(c.Loss), 1) {
			t.Errorf("plan %v: loss %v", c.Values, c.Loss)
		}
	}
	if best.Loss > given.Loss || given.Change != 0 {
		t.Errorf("best %v, given %v with change %v", best.Loss, given.Loss, given.Change)
	}
	text, err := os.ReadFile(filepath.Join(dir, "best.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := recipe.Read(text)
	if err != nil {
		t.Fatal(err)
	}
	if !best.Given && (p.Client.Steps != best.plan.Client.Steps || p.Client.Rate != best.plan.Client.Rate || p.Name != "tunable") {
		t.Errorf("best.yaml is not the best plan:\n%s", text)
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "unfinished")); len(left) > 0 {
		t.Errorf("%d finished trainings left their state", len(left))
	}

	// A search that is interrupted after each training run yields the same results.
	dir = t.TempDir()
	var (
		stops int
		again *Tuned
	)
	for again == nil {
		ctx, cancel := context.WithCancel(t.Context())
		u := tuning(t, dir, sets...)
		u.Progress = func(_, done, _ int) {
			if done > stops {
				cancel()
			}
		}
		r, err := u.Run(ctx)
		cancel()
		if err == nil {
			again = r
		} else if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		} else if stops++; stops > 100 {
			t.Fatal("the search does not end")
		}
	}
	if stops < 3 {
		t.Fatalf("interrupted only %d times", stops)
	}
	if a, b := printed(t, whole), printed(t, again); a != b {
		t.Errorf("interrupted and resumed:\n%s\nin one go:\n%s", b, a)
	}
	if string(again.Plan) != string(whole.Plan) {
		t.Errorf("the best plan differs:\n%s\n%s", again.Plan, whole.Plan)
	}
}

func TestTuneBudget(t *testing.T) {
	sets := []string{"client.lr=0.0001,0.001,0.003,0.01,0.03", "client.steps=2,4"}
	u := tuning(t, t.TempDir(), sets...)
	all, err := u.candidates()
	if err != nil {
		t.Fatal(err)
	}
	given, rest := all[0], all[1:]
	given.CPU = 60
	// An average plan costs as much as the given one, because it has 3 steps, too.
	for _, c := range []struct {
		budget time.Duration
		early  int
	}{{12 * time.Minute, 0}, {9 * time.Minute, 1}} {
		u.Budget = c.budget
		if early, err := u.plan(given, rest); err != nil || early != c.early {
			t.Errorf("budget %s: %d short stages, %v; want %d", c.budget, early, err, c.early)
		}
	}
	u.Budget = 3 * time.Minute
	if _, err := u.plan(given, rest); err == nil || !strings.Contains(err.Error(), "larger budget") {
		t.Errorf("a budget that is too small: %v", err)
	}

	// A short stage promotes a third of the plans.
	u.Budget = 0
	results, err := openTrials(u.Dir, u.Dataset.Fingerprint(), u.Kernel.Name())
	if err != nil {
		t.Fatal(err)
	}
	if err := u.stage(t.Context(), results, rest, 0, 1); err != nil {
		t.Fatal(err)
	}
	last := metric.Number(0)
	for _, c := range rest {
		if c.Rounds != 9 || c.Loss < last {
			t.Errorf("plan %v: %d rounds, loss %v after %v", c.Values, c.Rounds, c.Loss, last)
		}
		last = c.Loss
	}
}

func TestTuneRefuses(t *testing.T) {
	for set, want := range map[string]string{
		"model.targets=2,4": "cannot be compared",
		"seed=1,2":          "cannot be compared",
		"client.rate=0.1":   "client.rate",
		"client.steps=3":    "no plan other than the given one",
	} {
		_, err := tuning(t, t.TempDir(), set).Run(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--set %s: %v; want %q", set, err, want)
		}
	}
	for _, s := range []string{"client.lr", "=1", "client.lr=", "client.lr=1,,2"} {
		if _, err := ParseAxis(s); err == nil {
			t.Errorf("%q was accepted", s)
		}
	}
	a, err := ParseAxis("model.inputs=[load, hour],[load]")
	if err != nil || len(a.Values) != 2 {
		t.Errorf("lists: %v, %v", a, err)
	}
}
