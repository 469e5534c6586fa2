package explain

import (
	"strings"
	"testing"

	"loadstar/fed"
	"loadstar/fed/recipe"
)

func read(t *testing.T, text string) *fed.Plan {
	t.Helper()
	return readText(t, "name: test\nmodel: {name: bose2023}\n"+text)
}

func readText(t *testing.T, text string) *fed.Plan {
	t.Helper()
	p, err := recipe.Read([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestFleet checks the predicted numbers for the bose2023 model: 5,760 of its 42,181
// weights are shared if its head is personal.
func TestFleet(t *testing.T) {
	const shared, all = 5760, 42181
	for name, c := range map[string]struct {
		plan    string
		clients int
		want    func(e *Explanation) bool
	}{
		"cohort": {"algorithm: fedavg\npartition: head\nrounds: 10\nschedule: {cohort: 20}\nclient: {steps: 4}", 100, func(e *Explanation) bool {
			return e.Shared == shared && e.Up == 4*shared && e.PerRound == 20 && e.Turns == 200 && e.Traffic == 200*8*shared &&
				e.StepsATurn == 4 && e.Steps == 800 && e.FractionBits > 0 && e.ServerBytes >= 3*4*shared
		}},
		"over-selection": {"algorithm: fedavg\nschedule: {cohort: 20, over_selection: 0.1}", 100, func(e *Explanation) bool {
			return e.PerRound == 22
		}},
		"unknown fleet": {"algorithm: fedavg\nschedule: {cohort: 20}", 0, func(e *Explanation) bool {
			return e.Data == nil && e.PerRound == 20 && e.FractionBits == 0 && e.ServerBytes == 0
		}},
		"unknown fleet and cohort": {"algorithm: fedavg", 0, func(e *Explanation) bool { return e.PerRound == 0 && e.Traffic == 0 }},
		"buffer":                   {"algorithm: fedbuff\nschedule: {buffer: 7}", 50, func(e *Explanation) bool { return e.PerRound == 7 }},
		"control variates": {"algorithm: scaffold\npartition: none", 10, func(e *Explanation) bool {
			return e.Control && e.Up == 2*4*all && strings.Contains(strings.Join(e.Needs, ", "), "control variates")
		}},
		"masks": {"algorithm: fedavg\npartition: head\nprivacy: {mode: private, keepers: [a]}", 50, func(e *Explanation) bool {
			return e.Down == 4*shared && e.Up == 8*(shared+640+1+5) // tallies, the weight and sizes are included
		}},
		"moments kept": {"algorithm: fedavg\npartition: head\nclient: {moments: kept}", 10, func(e *Explanation) bool {
			return e.Up == 4*shared && e.Down == 4*shared && !e.Averaged && e.KeptBytes == 4*(all-shared+2*all+1)
		}},
		"moments averaged": {"algorithm: fedavg\npartition: head\nclient: {moments: averaged}", 10, func(e *Explanation) bool {
			return e.Up == 3*4*shared && e.Down == 3*4*shared && e.Averaged && e.KeptBytes == 4*(3*(all-shared)+1)
		}},
		"alone": {"algorithm: local", 10, func(e *Explanation) bool {
			return e.Alone && e.Up == 0 && e.Traffic == 0 && e.ServerBytes == 0 && e.KeptBytes >= 4*all
		}},
		"holdout": {"algorithm: fedavg\nevaluate: {holdout: 0.2}", 50, func(e *Explanation) bool {
			return e.Data.Holdout == 10 && e.Data.Training == 40 && e.PerRound == 40
		}},
	} {
		e, err := Fleet(read(t, c.plan), c.clients)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !c.want(e) {
			t.Errorf("%s: %+v", name, e)
		}
		if !(e.StepsPerS > 0) || e.Parameters != all {
			t.Errorf("%s: %g steps per second, %d parameters", name, e.StepsPerS, e.Parameters)
		}
	}
	if _, err := Fleet(read(t, "algorithm: fedavg\nschedule: {cohort: 20}"), 10); err == nil {
		t.Error("a cohort larger than the fleet was accepted")
	}
}

// TestRows explains a plan whose examples are rows of features.
func TestRows(t *testing.T) {
	p, err := recipe.Read([]byte("algorithm: fedavg\nmodel: {name: dense, targets: 24}"))
	if err != nil {
		t.Fatal(err)
	}
	e, err := Fleet(p, 10)
	if err != nil {
		t.Fatal(err)
	}
	if e.Features < 100 || e.Outputs != 3 || e.Targets != 24 || len(e.Inputs) == 0 || e.Personal == 0 || !(e.StepsPerS > 0) {
		t.Errorf("%+v", e)
	}
	if want := 4 * int64(e.Personal+2*e.Parameters+1); e.KeptBytes != want {
		t.Errorf("a client stores %d bytes, want %d", e.KeptBytes, want)
	}
	p.Evaluate.Keep, p.Evaluate.FineTune.Choose = "best", "validation"
	best, err := Fleet(p, 10)
	if err != nil {
		t.Fatal(err)
	}
	if more := best.SimulatorBytes - e.SimulatorBytes; more < 10*4*int64(e.Parameters)/2 {
		t.Errorf("best weights take %d bytes", more)
	}
}

// TestServerState checks that the server's memory includes the state of the algorithm.
func TestServerState(t *testing.T) {
	plain, err := Fleet(read(t, "algorithm: fedavg\npartition: head"), 10)
	if err != nil {
		t.Fatal(err)
	}
	adaptive, err := Fleet(read(t, "algorithm: fedavgadaptive\npartition: head"), 10)
	if err != nil {
		t.Fatal(err)
	}
	// The state of fedavgadaptive has a float64 vector per client.
	if more := adaptive.ServerBytes - plain.ServerBytes; more < 10*8*5760 {
		t.Errorf("fedavgadaptive needs %d bytes more than fedavg", more)
	}
}
