package simulate

import (
	"testing"
	"time"
)

func TestRun(t *testing.T) {
	calls := 0
	b, err := Run(t.Context(), Config{
		Model:  "dense",
		Fleets: []Fleet{{Clients: 2}, {Clients: 4, Cohort: 2}, {Clients: 8, Cohort: 2}}, Runs: 1, Workers: 1, Length: time.Millisecond,
	}, func(done, total int, _ string) {
		if done != calls || total != 3 {
			t.Errorf("call %d reports %d of %d", calls, done, total)
		}
		calls++
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(b.Fleets) != 3 || b.Workers != 1 || !(b.IdleCost > 0) || b.RSS <= 0 {
		t.Errorf("%+v", b)
	}
	for _, f := range b.Fleets {
		if !(f.StepsPerS > 0 && f.EnginePerS > 0 && f.RoundMillis > 0) || f.Share != f.StepsPerS/f.EnginePerS {
			t.Errorf("%+v", f)
		}
	}
	for i, want := range Usual() {
		if i > 0 && want.Cohort != 100 {
			t.Errorf("the cost of idle clients needs equal cohorts: %+v", want)
		}
	}
}
