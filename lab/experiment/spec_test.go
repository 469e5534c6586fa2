package experiment

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"loadstar/fed"
	"loadstar/forecast"
	"loadstar/series"
)

const inherited = `
title: try
parts:
  - name: rates
    datasets: [a, b]
    clients: 3
    seeds: [1, 2]
    baselines: [persistence]
    plan: {client: {steps: 2}, rounds: 10, evaluate: {every: 10}}
    methods:
      - name: FedAvg
        plan: {algorithm: fedavg}
      - name: FedSGD
        plan: {algorithm: fedsgd, client: null}
        quick: {client: null}
    grid:
      - {key: server.lr, values: [0.1, 1]}
      - {key: partition, names: [P1, P2], values: [none, head]}
    quick: {datasets: [b], clients: 2, values: 1, plan: {rounds: 4, client: {steps: 1}, evaluate: {every: 2}}}
  - name: fleet
    as: rates
    plan: {model: {scaling: fleet}, rounds: 20}
    quick: {methods: [FedAvg]}
  - name: winners
    best: [rates]
    datasets: [c]
    against: Mine
    plan: {rounds: 30}
    methods:
      - name: FedAvg
      - {name: Mine, plan: {algorithm: local}}
    grid:
      - {key: client.lr, values: [0.5]}
`

func read(t *testing.T, text string, quick bool) *Spec {
	t.Helper()
	s, err := ReadSpec([]byte(text), quick)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// plansOf returns a part's plans by name.
func plansOf(t *testing.T, p *Part, best map[string]point) map[string]variant {
	t.Helper()
	all, err := p.plans(best)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]variant{}
	for _, v := range all {
		out[v.name()] = v
	}
	return out
}

func TestInherit(t *testing.T) {
	s := read(t, inherited, false)
	rates, fleet := &s.Parts[0], &s.Parts[1]
	if !reflect.DeepEqual(fleet.Datasets, []string{"a", "b"}) || fleet.Clients != 3 || len(fleet.Seeds) != 2 || len(fleet.Baselines) != 1 {
		t.Errorf("part fleet: %+v", fleet)
	}
	got := plansOf(t, fleet, nil)
	if len(got) != 8 {
		t.Fatalf("%d plans, want 8", len(got))
	}
	if p := got["FedAvg 0.1 P2"].plan; p.Server.Rate != 0.1 || p.Partition != "head" || p.Model.Scaling != "fleet" || p.Rounds != 20 || p.Client.Steps != 2 {
		t.Errorf("method FedAvg: %+v", p)
	}
	if p := plansOf(t, rates, nil)["FedSGD 1 P1"].plan; p.Model.Scaling != "client" || p.Rounds != 10 {
		t.Errorf("method FedSGD of the earlier part: %+v", p)
	}
}

func TestQuick(t *testing.T) {
	s := read(t, inherited, true)
	rates, fleet := &s.Parts[0], &s.Parts[1]
	if !reflect.DeepEqual(rates.Datasets, []string{"b"}) || rates.Clients != 2 || !reflect.DeepEqual(rates.Seeds, []uint64{1}) {
		t.Errorf("part rates: %+v", rates)
	}
	got := plansOf(t, rates, nil)
	if len(got) != 2 {
		t.Fatalf("%d plans, want 2", len(got))
	}
	if p := got["FedAvg 0.1 P1"].plan; p.Rounds != 4 || p.Client.Steps != 1 || p.Evaluate.Every != 2 {
		t.Errorf("method FedAvg: %+v", p)
	}
	if p := got["FedSGD 0.1 P1"].plan; p == nil || p.Rounds != 4 {
		t.Errorf("method FedSGD: %+v", p)
	}
	// The quick settings are inherited, except for the methods.
	if got := plansOf(t, fleet, nil); len(got) != 1 || got["FedAvg 0.1 P1"].plan.Rounds != 4 {
		t.Errorf("plans of part fleet: %v", got)
	}
}

func TestBest(t *testing.T) {
	s := read(t, inherited, false)
	rates, winners := &s.Parts[0], &s.Parts[2]
	scored := func(at string, loss float64) Result {
		f := map[string]Figure{"validation_loss": {loss}}
		return Result{Part: "rates", Dataset: "a", Method: "FedAvg", At: strings.Fields(at), Figures: f}
	}
	lost := scored("1 P1", 0)
	lost.Figures = result([]*outcome{{plan: &fed.Plan{}}})
	other := scored("0.1 P1", 0.1)
	other.Dataset = "b"
	best, err := winners.choose("c", []Result{scored("0.1 P1", 3), scored("0.1 P2", 2), other, lost, scored("1 P2", 4)})
	if err != nil {
		t.Fatal(err)
	}
	if want := rates.points()[1]; !reflect.DeepEqual(best, map[string]point{"FedAvg": want}) {
		t.Fatalf("best %v, want %v", best, want)
	}
	got := plansOf(t, winners, best)
	if p := got["FedAvg 0.5"].plan; p.Server.Rate != 0.1 || p.Partition != "head" || p.Rounds != 30 || p.Client.Steps != 2 || p.Client.Rate != 0.5 {
		t.Errorf("method FedAvg: %+v", p)
	}
	if p := got["Mine 0.5"].plan; p.Algorithm != "local" || p.Rounds != 30 {
		t.Errorf("method Mine: %+v", p)
	}
	if _, err := winners.choose("c", []Result{lost}); err == nil || !strings.Contains(err.Error(), "diverged") {
		t.Errorf("all runs diverged: %v", err)
	}
}

func TestSpecErrors(t *testing.T) {
	const methods = "methods: [{name: A, plan: {algorithm: fedavg}}]"
	for _, c := range []struct{ text, want string }{
		{"title: none", "the experiment has no parts"},
		{"parts: [{name: p, datasets: [d]}]", "part p: a part needs a name, datasets and methods"},
		{"parts: [{name: p, " + methods + "}]", "part p: a part needs a name, datasets and methods"},
		{"parts: [{name: p, as: q}]", "part p: as: there is no earlier part q"},
		{"parts: [{name: p, best: [q]}]", "part p: best: there is no earlier part q"},
		{"pictures: q\nparts: [{name: p, datasets: [d], methods: [{name: m, plan: {algorithm: fedavg}}]}]", "pictures: there is no part q"},
		{"parts: [{name: p, datasets: [d], " + methods + "}, {name: p, as: p}]", "part p: an earlier part has the same name"},
		{"parts: [{name: p, datasets: [d], against: B, " + methods + "}]", "part p: against: the part has no method B"},
		{"parts: [{name: p, datasets: [d], quick: {methods: [B]}, " + methods + "}]", "part p: quick: the part has no method B"},
		{"parts: [{name: p, datasets: [d], grid: [{key: rounds}], " + methods + "}]", "axis rounds has 0 values and 0 names"},
		{"parts: [{name: p, datasets: [d], grid: [{key: rounds, values: [1], names: [a, b]}], " + methods + "}]", "axis rounds has 1 values and 2 names"},
		{"parts: [{name: p, datasets: [d], grid: [{key: server.tau, values: [1]}], " + methods + "}]", "method A 1: line 3: server.tau is not a setting of fedavg"},
		{"parts: [{name: p, datasts: [d]}]", "datasts is not known; did you mean datasets"},
	} {
		_, err := ReadSpec([]byte(c.text), true)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.text, err, c.want)
		}
	}
}

// TestPapers checks that the experiments of all papers in the repository can be read, with and
// without the changes for quick checks.
func TestPapers(t *testing.T) {
	files, err := filepath.Glob("../../papers/*/experiment.yaml")
	if err != nil || len(files) != 5 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		whole, quick := read(t, string(text), false), read(t, string(text), true)
		for i, p := range whole.Parts {
			if p.Title == "" {
				t.Errorf("%s: part %s has no title", f, p.Name)
			}
			for _, d := range p.Datasets {
				if _, err := os.Stat("../../datasets/" + d + ".yaml"); err != nil {
					t.Errorf("%s: part %s: %v", f, p.Name, err)
				}
			}
			if p.Data != "" {
				continue // the part trains nothing
			}
			n, err := p.rounds()
			if err != nil {
				t.Fatal(err)
			}
			if p.Data != "" { // the part has no plans
				continue
			}
			checkReference(t, f, &p)
			checkReference(t, f, &quick.Parts[i])
			less, err := quick.Parts[i].rounds()
			if err != nil {
				t.Fatal(err)
			}
			if less*4 > n {
				t.Errorf("%s: part %s has %d rounds, and its quick form has %d", f, p.Name, n, less)
			}
		}
	}
}

// checkReference checks that errors in a paper's experiments are relative to the last value,
// like the papers' MASE and our recorded figures.
func checkReference(t *testing.T, file string, p *Part) {
	t.Helper()
	variants, err := p.plans(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range variants {
		m := v.plan.Model
		layout := series.Layout{Horizon: m.Horizon.Steps(), Targets: m.Targets.Steps()}
		if r := forecast.Reference(v.plan.Evaluate.Reference).For(layout); r != forecast.LastValue || v.plan.Evaluate.Correct {
			t.Errorf("%s: part %s, method %s: errors are relative to %s, blend %t", file, p.Name, v.method, r, v.plan.Evaluate.Correct)
		}
	}
}

// Experiments train without limits on updates, unless they set them.
func TestExperimentsHaveNoLimits(t *testing.T) {
	for clip, plan := range map[float64]Fragment{
		0: {"algorithm": "fedavg", "server": map[string]any{"lr": 1}},
		2: {"algorithm": "fedavg", "server": map[string]any{"clip": 2}},
	} {
		p := &Part{Name: "part", Datasets: []string{"d"}, Plan: plan, Methods: []Method{{Name: "m"}}}
		all, err := p.plans(nil)
		if err != nil || all[0].plan.Server.Clip != clip {
			t.Errorf("%v: %v, %v", plan, all, err)
		}
	}
}
