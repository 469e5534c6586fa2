package fleet

import (
	"errors"
	"strings"
	"testing"
	"time"

	"loadstar/fed/round"
	v1 "loadstar/proto/loadstar/v1"
)

// TestUsage checks that settings out of range are rejected before any process is started.
func TestUsage(t *testing.T) {
	good := Config{Agents: 8, Cohort: 0.7, Sizes: []string{"24k"}, Turns: 1, Seconds: 1, Rate: 100}
	for want, change := range map[string]func(*Config){
		"--turns must be at least 1":  func(c *Config) { c.Turns = 0 },
		"--seconds above 0":           func(c *Config) { c.Seconds = 0 },
		"--agents must be 8 to 25000": func(c *Config) { c.Agents = maxAgents + 1 },
		"at most 0.91":                func(c *Config) { c.Cohort = 0.92 },
		"--rate above 0":              func(c *Config) { c.Rate = 0 },
		"--pace must not be negative": func(c *Config) { c.Pace = -1 },
		"--rate must be at least 667": func(c *Config) { c.Agents = 10_000 },
		"8 to 1000000":                func(c *Config) { c.Agents, c.Short = maxShort+1, true },
		`not "1m"`:                    func(c *Config) { c.Sizes = []string{"24k", "1m"} },
		`not "sqlite:x"`:              func(c *Config) { c.Database = "sqlite:x" },
	} {
		c := good
		change(&c)
		_, err := Run(t.Context(), c, nil)
		if u := (*UsageError)(nil); !errors.As(err, &u) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	soak := SoakConfig{Agents: 8, Length: time.Second, Size: "24k", Rate: 1}
	if _, err := Soak(t.Context(), soak, nil); err == nil || !strings.Contains(err.Error(), "--for at least 2s") {
		t.Error(err)
	}
	if err := good.check(); err != nil {
		t.Error(err)
	}
	private := PrivateConfig{Agents: 8, Turns: 1, Seconds: 1, Rate: 100, Members: []int{1, 9}}
	if _, err := Private(t.Context(), private, nil); err == nil || !strings.Contains(err.Error(), "--members must be 2 to 100000") {
		t.Error(err)
	}
}

// TestPrivateCosts checks that a keeper releases rounds of the benchmark's plan, and that plan
// explain would print the size of their results.
func TestPrivateCosts(t *testing.T) {
	m, err := settled(privatePlan(formChecked, 40), 40)
	if err != nil {
		t.Fatal(err)
	}
	if up := m.Setup().Traffic().Up; !m.Checks() || up != m.MaskedBytes() || up <= 8*int64(m.Shared) {
		t.Errorf("results have %d bytes, their traffic is %d, checks: %v", m.MaskedBytes(), up, m.Checks())
	}
	if cost, err := agentCost(m); err != nil || !(cost > 0) {
		t.Errorf("an agent takes %g ms, %v", cost, err)
	}
	if m, err = settled(privatePlan(formMasked, 40), 40); err != nil {
		t.Fatal(err)
	}
	steps := 0
	costs, err := keeperCosts(t.Context(), m, []int{2, 40}, func(int, int, string) { steps++ })
	if err != nil || len(costs) != 2 || !(costs[1] > 0) || steps == 0 {
		t.Errorf("a keeper takes %v s, %v", costs, err)
	}
}

func TestEngine(t *testing.T) {
	if testing.Short() {
		t.Skip("writes to a disk")
	}
	if _, err := Engine(t.Context(), Backends{}, "1m", 8, time.Second); err == nil || !strings.Contains(err.Error(), "--size must be 24k, 95k or 170k") {
		t.Error(err)
	}
	r, err := Engine(t.Context(), Backends{}, "24k", 8, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if !(r.Count > 0 && r.CountCPU > 0) {
		t.Errorf("%+v", r)
	}
}

// TestResult checks that a server would accept the random results of virtualResult.
func TestResult(t *testing.T) {
	for size, shared := range map[string]int{"24k": 5760, "95k": 23256, "170k": 42181} {
		m, err := termsOf(size, 8)
		if err != nil {
			t.Fatal(err)
		}
		if m.Shared != shared {
			t.Errorf("%s: the shared part has %d weights, want %d", size, m.Shared, shared)
		}
		numbers := virtualResult(m, 3).Numbers
		if len(numbers) != len(round.AppendFloats(nil, make([]float32, shared))) {
			t.Errorf("%s: %d bytes for %d weights", size, len(numbers), shared)
		}
	}
}

// TestAgree checks that the benchmark notices a verdict that the ledger does not confirm.
func TestAgree(t *testing.T) {
	a, b := turnKey{0, "a"}, turnKey{0, "b"}
	const counted, closed, open = v1.Outcome_OUTCOME_COUNTED, v1.Outcome_OUTCOME_CLOSED, v1.Outcome_OUTCOME_ACCEPTED
	for want, c := range map[string]struct {
		receipts map[turnKey]bool
		told     map[turnKey]v1.Outcome
	}{
		"":                              {map[turnKey]bool{a: true}, map[turnKey]v1.Outcome{a: counted, b: closed}},
		"the ledger has no receipt":     {map[turnKey]bool{a: true}, map[turnKey]v1.Outcome{a: counted, b: counted}},
		"the ledger has a receipt":      {map[turnKey]bool{a: true}, map[turnKey]v1.Outcome{a: closed}},
		"its agent sent no result":      {map[turnKey]bool{a: true, b: true}, map[turnKey]v1.Outcome{a: open}},
		"round 0, client b: its agent ": {map[turnKey]bool{}, map[turnKey]v1.Outcome{a: open, b: counted}},
	} {
		if err := agree(c.receipts, c.told); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestMedian(t *testing.T) {
	if m := median([]Figures{{CPU: 3, Fsyncs: -1}, {CPU: 1, Fsyncs: -1}, {CPU: 2, Fsyncs: -1}}); m.CPU != 2 || m.Fsyncs != -1 || m.Calls != 0 {
		t.Errorf("%+v", m)
	}
}
