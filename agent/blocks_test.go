package agent

import (
	"math/rand/v2"
	"testing"
	"time"

	"loadstar/fed/policy"
	"loadstar/fed/recipe"
	"loadstar/fed/setup"
	"loadstar/series"
)

// TestWholeBlocks checks that a session with blocks has the same training data as the
// simulator, and less data than a session without blocks.
func TestWholeBlocks(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	home := series.Meter{ID: "home", Start: time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC).Unix()}
	for range 100 * 24 {
		home.Load = append(home.Load, r.Float32())
	}
	d := dataset(t, series.Dataset{Name: "home", Interval: time.Hour, Clock: time.UTC}, home)
	m, plan := d.Meter(0), small("fedavg", settings{"model.lookback": 1, "model.targets": 1, "model.inputs": []string{"hour", "day_of_week"}})
	length := func(p *recipe.Problem) int { return p.Examples(m, p.Framer.Ranges(m)).Len(series.Train) }
	allow := policy.None()
	allow.WholeBlocks = true
	s, err := newSession(plan.text(t), 9, d, kernels(t), 1, 1<<30, &allow, testSecret)
	if err != nil {
		t.Fatal(err)
	}
	p, err := recipe.Read(plan.text(t))
	if err != nil {
		t.Fatal(err)
	}
	problem, err := recipe.Frame(p, d)
	if err != nil {
		t.Fatal(err)
	}
	simulated, err := setup.New(p, problem, 9)
	if err != nil {
		t.Fatal(err)
	}
	whole := length(simulated.Problem)
	simulated.Problem.EndAtBlocks()
	if err := simulated.Problem.Open(d); err != nil {
		t.Fatal(err)
	}
	if got, want := length(s.Problem), length(simulated.Problem); got != want || got >= whole || got < whole-28*24 {
		t.Errorf("%d examples, the simulator has %d; %d without blocks", got, want, whole)
	}
}
