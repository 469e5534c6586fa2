package operator

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"loadstar/internal/textfmt"

	"connectrpc.com/connect"

	"loadstar/fed"
	"loadstar/fed/policy"
	"loadstar/fed/recipe"
	"loadstar/plans"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

// notHere returns an error if this server is a region, because only a hub drives runs.
func (o *runs) notHere(verb string) error {
	if o.Hub == "" {
		return nil
	}
	return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("this server is a region; %s the run at its hub, %s", verb, o.Hub))
}

// ownData reports whether plans that need data on the server are allowed. If no coordinator has
// led yet, it is unknown whether there is data, so such a run may fail when it begins.
func (o *runs) ownData(ctx context.Context) (bool, error) {
	data, known, err := o.Ledger.LeadersData(ctx)
	return data != "" || !known, o.wireError(err)
}

// plan reads a submitted plan, and refuses the plan if no fleet can train it.
func (o *runs) plan(ctx context.Context, text string) (*fed.Plan, error) {
	if len(text) > maxPlan {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("the plan is too long (over 1 MiB)"))
	}
	p, err := recipe.Read([]byte(text))
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	data, err := o.ownData(ctx)
	if err != nil {
		return nil, err
	}
	if err := terms.Federated(p, data); err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	if recipe.Private(p) && o.Keepers != nil {
		if err := o.Keepers(p.Privacy.Keepers); err != nil {
			return nil, connect.NewError(connect.CodeInvalidArgument, err)
		}
	}
	return p, nil
}

// warnings returns the reasons why agents may decline a plan. The fleet's size is 0 if unknown.
// The coordinator sets the schedule's cohort and deadline in the same way.
func (o *runs) warnings(p *fed.Plan, fleet int64) []string {
	w := policy.Warn(p, 0)
	if w == "" && fleet > 0 {
		p, _ = recipe.Sized(p, int(fleet))
		q := *p
		q.Schedule.Cohort = cmp.Or(q.Schedule.Cohort, int(fleet))
		terms.SetDeadline(&q.Schedule, o.Deadline)
		w = policy.Warn(&q, int(fleet))
	}
	if w == "" {
		return nil
	}
	return []string{w}
}

// ListPlans lists those built-in plans that a fleet can train.
func (o *runs) ListPlans(ctx context.Context, _ *v1.ListPlansRequest) (*v1.ListPlansResponse, error) {
	data, err := o.ownData(ctx)
	if err != nil {
		return nil, err
	}
	answer := &v1.ListPlansResponse{}
	for _, f := range plans.All() {
		p, err := recipe.Read([]byte(f.Text))
		if err != nil {
			return nil, o.wireError(err)
		}
		if terms.Federated(p, data) == nil {
			answer.Plans = append(answer.Plans, &v1.PlanFile{Name: f.Name, About: f.About, Plan: f.Text})
		}
	}
	return answer, nil
}

// ExplainPlan explains a plan for the current fleet.
func (o *runs) ExplainPlan(ctx context.Context, r *v1.ExplainPlanRequest) (*v1.ExplainPlanResponse, error) {
	if err := o.notHere("explain and start"); err != nil {
		return nil, err
	}
	if o.Explain == nil {
		return nil, connect.NewError(connect.CodeUnimplemented, errors.New("this server cannot explain plans; run loadstar plan explain"))
	}
	p, err := o.plan(ctx, r.Plan)
	if err != nil {
		return nil, err
	}
	text := r.Plan
	switch {
	case r.Rounds < 0 || r.Rounds > math.MaxInt32:
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("%d is not a number of rounds", r.Rounds))
	case r.Rounds > 0 && r.Rounds != int64(p.Rounds):
		p.Rounds = int(r.Rounds)
		b, err := recipe.Write(p)
		if err != nil {
			return nil, o.wireError(err)
		}
		text = string(b)
		if _, err := recipe.Read(b); err != nil {
			return nil, connect.NewError(connect.CodeInvalidArgument, err)
		}
	}
	counts, err := o.numbers.fleet(ctx)
	if err != nil {
		return nil, o.wireError(err)
	}
	answer := &v1.ExplainPlanResponse{Plan: text, Name: p.Name, Rounds: int64(p.Rounds), Wanted: max(wanted(p), 1), Clients: counts.Clients, Warnings: o.warnings(p, counts.Clients)}
	select {
	case o.explaining <- struct{}{}:
		defer func() { <-o.explaining }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if answer.Text, err = o.Explain(p, int(max(counts.Clients, answer.Wanted))); err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	return answer, nil
}

// StartRun starts a run, or queues it until there are enough clients.
func (o *runs) StartRun(ctx context.Context, r *v1.StartRunRequest) (*v1.StartRunResponse, error) {
	if err := o.notHere("start"); err != nil {
		return nil, err
	}
	if r.Clients < 0 {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("the number of clients is negative"))
	}
	p, err := o.plan(ctx, r.Plan)
	if err != nil {
		return nil, err
	}
	counts, err := o.numbers.fleet(ctx)
	if err != nil {
		return nil, o.wireError(err)
	}
	run := ledger.Run{
		ID: strings.ToLower(rand.Text()[:8]), Name: p.Name, Plan: r.Plan, Wanted: max(r.Clients, wanted(p)),
		Created: time.Now(),
	}
	if err := o.Ledger.AddRun(ctx, run, actor(ctx)); err != nil {
		return nil, o.wireError(err)
	}
	o.Wake(run.ID)
	answer := &v1.StartRunResponse{Run: run.ID, Warnings: o.warnings(p, max(counts.Clients, r.Clients))}
	for _, w := range answer.Warnings {
		o.Log.Warn("a run may be declined", "run", run.ID, "reason", w)
	}
	if n := o.numbers.refusedClients(); n > 0 && r.Clients > 0 {
		answer.Warnings = append(answer.Warnings, textfmt.Count(n, "client")+" refused, because another agent has the name or it is revoked; refused clients do not count, and loadstar fleet list shows them")
	}
	return answer, nil
}

// wanted returns the minimum number of clients with which a plan's run starts.
func wanted(p *fed.Plan) int64 { return training(p, max(p.Schedule.Cohort, p.Schedule.Buffer)) }

// training returns the minimum number of clients with which n clients train, after the plan has
// held out its share.
func training(p *fed.Plan, n int) int64 {
	all := int(float64(n) / (1 - p.Evaluate.Holdout))
	for all-recipe.Dealt(p.Evaluate.Holdout, all) < n {
		all++
	}
	return int64(all)
}
