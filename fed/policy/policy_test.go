package policy

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"loadstar/fed"
	"loadstar/fed/recipe"
)

func read(t *testing.T, text string) *fed.Plan {
	t.Helper()
	p, err := recipe.Read([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return p
}

// TestPlans checks that the trial policy accepts all plans in the repository, for every fleet
// size that they support, and that the default policy accepts the product's own plans.
func TestPlans(t *testing.T) {
	files, err := filepath.Glob("../../plans/*.yaml")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d plans, %v", len(files), err)
	}
	trial, usual := Trial(), Default()
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		p := read(t, string(text))
		for _, fleet := range []int{0, max(p.Schedule.Cohort, 2), 10_000} {
			if reasons := trial.Check(p, fleet); len(reasons) > 0 {
				t.Errorf("%s with %d clients: %q", f, fleet, reasons)
			}
		}
		if strings.HasSuffix(f, "-ahead.yaml") {
			if reasons := usual.Check(p, 10); len(reasons) > 0 {
				t.Errorf("%s: %q", f, reasons)
			}
			if reason := usual.CheckClient(p, 365*24*7/10); reason != "" {
				t.Errorf("%s: a client with a year of readings: %s", f, reason)
			}
		}
	}
}

// keysOf returns the policy keys that occur in the reasons for declining a plan.
func keysOf(reasons []string) string {
	var keys []string
	for _, r := range reasons {
		_, key, _ := strings.Cut(r, "(policy.")
		keys = append(keys, strings.TrimSuffix(key, ")"))
	}
	return strings.Join(keys, " ")
}

// TestDefault checks the requirements of the default policy beyond those of the trial policy.
func TestDefault(t *testing.T) {
	usual := Default()
	for plan, want := range map[string]string{
		"algorithm: fedavg": "",
		"algorithm: fedsgd": "full_passes optimizers most_step",
		"algorithm: fedavg\nclient: {epochs: 1, batch: 64}":                     "full_passes most_step",
		"algorithm: fedavg\nclient: {optimizer: sgd}":                           "optimizers most_step",
		"algorithm: fedavg\nclient: {optimizer: amsgrad}":                       "",
		"algorithm: fedavg\nclient: {epsilon: 1000}":                            "most_epsilon",
		"algorithm: fedavg\nclient: {lr: 1e-12}":                                "least_lr",
		"algorithm: fedavg\nclient: {lr: 0.01, lr_end: 1e-9}":                   "least_lr",
		"algorithm: fedavg\nclient: {lr: 0.01, decay: {factor: 0.1, every: 1}}": "least_lr",
		"algorithm: fedavg\nschedule: {cohort: 9}":                              "least_cohort least_merge",
		"algorithm: fedbuff\nschedule: {cohort: 20, buffer: 9}":                 "least_merge",
		"algorithm: fedadam":                                                    "most_step",
		"algorithm: fedavgm":                                                    "",
		"algorithm: fedavgm\nserver: {dampening: 0}":                            "most_step",
		"algorithm: fedavg\nserver: {lr: 1.1}":                                  "most_step",
		"algorithm: fedavg\nserver: {clip: 0}":                                  "most_step",
		"algorithm: fedavg\nserver: {coordinate: 1.6}":                          "most_step",
		"algorithm: fedavg\nserver: {robust: trim}":                             "",
		"algorithm: fedavg\nstart: server-data":                                 "most_step",
		"algorithm: fedavg\nclient: {moments: averaged}":                        "most_step",
	} {
		if got := keysOf(usual.Check(read(t, plan), 40)); got != want {
			t.Errorf("%s: %q, want %q", plan, got, want)
		}
	}
	plan := read(t, "algorithm: fedavg\nclient: {batch: 512}")
	for examples, want := range map[int]string{1999: "least_client_examples", 8*512 - 1: "full_passes", 8 * 512: ""} {
		var reasons []string
		if reason := usual.CheckClient(plan, examples); reason != "" {
			reasons = append(reasons, reason)
		}
		if got := keysOf(reasons); got != want {
			t.Errorf("%d examples: %q, want %q", examples, got, want)
		}
	}
}

func TestCheck(t *testing.T) {
	usual := Trial()
	silent := usual
	silent.ShareLosses = false
	merged := usual
	merged.LeastMerge = 5
	few := usual
	few.Algorithms = []string{"fedprox", "fedadam"}
	for _, c := range []struct {
		policy Policy
		plan   string
		fleet  int
		want   string // keys of the reasons
	}{
		{usual, "algorithm: fedavg", 0, ""},
		{usual, "algorithm: fedavg", 1, "least_cohort least_fleet"},
		{usual, "algorithm: fedavg\nclient: {batch: 2, steps: 1}", 9, "least_batch least_steps least_examples"},
		{usual, "algorithm: fedavg\nclient: {batch: 1, steps: 1000}", 9, "least_batch"},
		{usual, "algorithm: fedavg\nclient: {batch: 64, steps: 1}", 9, "least_steps"},
		{usual, "algorithm: fedavg\nclient: {batch: 32, steps: 9, resample: round}", 9, "least_examples"},
		{usual, "algorithm: fedavg\nclient: {batch: 1, epochs: 1}", 9, "least_batch"},
		{usual, "algorithm: fedavg\nclient: {batch: 32, epochs: 1}", 9, ""},
		{usual, "algorithm: fedsgd\nclient: {batch: 1}", 9, ""}, // one gradient over all examples
		{usual, "algorithm: fedavg\nmodel: {lookback: 1}", 9, "least_lookback"},
		{usual, "algorithm: fedavg\nevaluate: {windows: 1}", 9, "least_examples"},
		{silent, "algorithm: fedavg\nevaluate: {windows: 1}", 9, ""},
		{silent, "algorithm: fednorm", 99, "share_losses"},
		{usual, "algorithm: fedavg\nschedule: {cohort: 1}", 9, "least_cohort"},
		{usual, "algorithm: fedavg\nschedule: {cohort: 8, deadline: 1m, quorum: 0.1}", 9, "least_cohort"},
		{usual, "algorithm: fedavg\nschedule: {cohort: 8, deadline: 1m}", 9, "least_cohort"},
		{usual, "algorithm: fedavg\nschedule: {cohort: 8, deadline: 1m, quorum: 0.2}", 9, ""},
		{usual, "algorithm: fedasync\nschedule: {cohort: 1}", 9, "least_cohort"},
		{merged, "algorithm: fedasync", 9, "least_merge"},
		{merged, "algorithm: fednorm", 99, "least_merge"},
		{merged, "algorithm: fedbuff\nschedule: {buffer: 4}", 9, "least_merge"},
		{merged, "algorithm: fedavg\nschedule: {cohort: 8, deadline: 1m, quorum: 0.5}", 9, "least_merge"},
		{merged, "algorithm: fedavg\nschedule: {cohort: 5}", 9, ""},
		{few, "algorithm: fedavg", 9, "algorithms"},
		{few, "algorithm: fedadam", 9, ""},
		{None(), "algorithm: fedavg\nmodel: {lookback: 1}\nclient: {batch: 1, steps: 1}\nschedule: {cohort: 1}", 1, ""},
	} {
		if got := keysOf(c.policy.Check(read(t, c.plan), c.fleet)); got != c.want {
			t.Errorf("%s with %d clients: %q, want %q", c.plan, c.fleet, got, c.want)
		}
	}
}

func TestCheckClient(t *testing.T) {
	usual := Trial()
	for _, c := range []struct {
		plan     string
		examples int
		ok       bool
	}{
		{"algorithm: fedavg", 63, false},
		{"algorithm: fedavg", 64, true},
		{"algorithm: fedavg\nclient: {epochs: 1, batch: 64}", 65, false}, // the last batch contains one example
		{"algorithm: fedavg\nclient: {epochs: 1, batch: 64}", 3*64 + 31, false},
		{"algorithm: fedavg\nclient: {epochs: 1, batch: 64}", 3*64 + 32, true},
		{"algorithm: fedavg\nclient: {epochs: 1, batch: 64}", 128, true},
		{"algorithm: fedavg\nclient: {epochs: 1, batch: 64}", 4*64 + 1, true},            // one small batch among five
		{"algorithm: perfedavg\nclient: {query: 0.5, epochs: 1, batch: 64}", 130, false}, // an epoch has 65 examples
		{"algorithm: perfedavg\nclient: {query: 0.5, epochs: 1, batch: 65}", 130, true},
		{"algorithm: fedsgd\nclient: {batch: 64}", 65, true}, // the batch only limits memory
		{"algorithm: perfedavg\nclient: {query: 0.2}", 319, false},
		{"algorithm: perfedavg\nclient: {query: 0.2}", 320, true},
		{"algorithm: perfedavg\nclient: {query: 0.9999}", 320, false},
	} {
		if got := usual.CheckClient(read(t, c.plan), c.examples); (got == "") != c.ok {
			t.Errorf("%s with %d examples: %q", c.plan, c.examples, got)
		}
	}
}

func TestSet(t *testing.T) {
	p := Default()
	for _, text := range []string{"least_batch=16", "algorithms=[fedavg, fedprox]", "share_losses=false"} {
		if err := p.Set(text); err != nil {
			t.Error(err)
		}
	}
	if p.LeastBatch != 16 || !slices.Equal(p.Algorithms, []string{"fedavg", "fedprox"}) || p.ShareLosses || p.LeastSteps != Default().LeastSteps {
		t.Errorf("%+v", p)
	}
	if got := p.String(); !strings.Contains(got, "least_batch 16, ") || !strings.Contains(got, "algorithms fedavg fedprox, ") || !strings.HasSuffix(got, "share_losses false") {
		t.Error(got)
	}
	for text, want := range map[string]string{
		"least": "KEY=VALUE", "least_bach=1": "least_batch", "least_batch=-1": "0 or more", "least_batch=few": "few", "optimizers=[adma]": "adam", "least_lr=-1": "0 or more", "algorithms=[fedavh]": "fedavg",
		"least_batch=1}\n{": "",
	} {
		before := p.String()
		if err := p.Set(text); err == nil || !strings.Contains(err.Error(), want) || p.String() != before {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := p.Set("trial"); err != nil || p.String() != Trial().String() {
		t.Errorf("%v, %s", err, p)
	}
	if err := p.Set("none"); err != nil || p.String() != None().String() {
		t.Errorf("%v, %s", err, p)
	}
}
