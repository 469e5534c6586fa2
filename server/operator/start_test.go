package operator

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"loadstar/fed"
	"loadstar/internal/testkit"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/directory"
)

// TestListPlans checks that each listed plan describes its purpose and can be started.
func TestListPlans(t *testing.T) {
	d := newFixture(t)
	r, err := d.ListPlans(t.Context(), &v1.ListPlansRequest{})
	testkit.Must(t, err)
	if len(r.Plans) < 10 || r.Plans[0].Name != "day-ahead" {
		t.Fatalf("%d plans: %v", len(r.Plans), r.Plans)
	}
	for _, p := range r.Plans {
		if p.About == "" {
			t.Errorf("%s does not say what it is for", p.Name)
		}
		if _, err := d.StartRun(t.Context(), &v1.StartRunRequest{Plan: p.Plan}); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
		if strings.Contains(p.Plan, "algorithm: local\n") || strings.Contains(p.Plan, "algorithm: pooled\n") {
			t.Errorf("%s is not for fleets", p.Name)
		}
	}
}

func TestExplainPlan(t *testing.T) {
	d := newFixture(t)
	ctx := t.Context()
	d.members("a", "x", "y", "z")
	r, err := d.ExplainPlan(ctx, &v1.ExplainPlanRequest{Plan: "name: p\nalgorithm: fedavg\nrounds: 7\nschedule: {cohort: 2}\nevaluate: {holdout: 0.5}\n"})
	testkit.Must(t, err)
	if r.Name != "p" || r.Rounds != 7 || r.Wanted != 4 || r.Clients != 3 || r.Text != "p with 4 clients and 7 rounds" {
		t.Errorf("%v", r)
	}
	if r, err = d.ExplainPlan(ctx, &v1.ExplainPlanRequest{Plan: "name: p\nalgorithm: fedavg\n", Rounds: 9}); err != nil || r.Rounds != 9 || r.Wanted != 1 || r.Text != "p with 3 clients and 9 rounds" {
		t.Errorf("%v, %v", r, err)
	}
	// The response contains the explained plan.
	s, err := d.StartRun(ctx, &v1.StartRunRequest{Plan: r.Plan})
	testkit.Must(t, err)
	if run, err := d.GetRun(ctx, &v1.GetRunRequest{Run: s.Run}); err != nil || run.Run.Rounds != 9 {
		t.Error(run, err)
	}
	if events, err := d.ledger.Events.Audit(ctx, directory.AuditQuery{Actions: []string{"start run"}, Limit: 10}); err != nil || len(events) != 1 {
		t.Errorf("explaining is no start: %v, %v", events, err)
	}
	for what, q := range map[string]*v1.ExplainPlanRequest{
		"no plan": {Plan: "nonsense: 1"}, "simulator only": {Plan: "algorithm: pooled\n"}, "negative": {Plan: "algorithm: fedavg\n", Rounds: -1},
		"unknown model": {Plan: "name: refused\nalgorithm: fedavg\n"}, "long": {Plan: strings.Repeat("#", maxPlan+1)},
	} {
		_, err := d.ExplainPlan(ctx, q)
		d.code(what, err, connect.CodeInvalidArgument)
	}
}

// explained replaces the program's function, which measures the speed of the processor.
func explained(p *fed.Plan, clients int) (string, error) {
	if p.Name == "refused" {
		return "", errors.New("refused")
	}
	return fmt.Sprintf("%s with %d clients and %d rounds", p.Name, clients, p.Rounds), nil
}
