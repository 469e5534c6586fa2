package operator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"

	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/access"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

// runs handles calls about plans, runs and their rounds.
type runs struct {
	*Config
	numbers  *numbers
	watching chan struct{}
	// explaining admits one explanation at a time, because each one measures the speed of the
	// processor.
	explaining chan struct{}
	heads      heads
}

// StopRun ends a run at its current version.
func (o *runs) StopRun(ctx context.Context, r *v1.StopRunRequest) (*v1.StopRunResponse, error) {
	if err := o.Ledger.StopRun(ctx, r.Run, actor(ctx), time.Now()); err != nil {
		return nil, o.wireError(err)
	}
	return &v1.StopRunResponse{}, nil
}

// ListRuns returns the newest runs, newest first.
func (o *runs) ListRuns(ctx context.Context, r *v1.ListRunsRequest) (*v1.ListRunsResponse, error) {
	runs, err := o.Ledger.Runs(ctx, page(r.Limit, 20))
	if err != nil {
		return nil, o.wireError(err)
	}
	answer := &v1.ListRunsResponse{}
	for _, x := range runs {
		answer.Runs = append(answer.Runs, o.run(ctx, x))
	}
	return answer, nil
}

// GetRun returns a run with its newest rounds.
func (o *runs) GetRun(ctx context.Context, r *v1.GetRunRequest) (*v1.GetRunResponse, error) {
	run, err := o.Ledger.Run(ctx, r.Run)
	if err != nil {
		return nil, o.wireError(err)
	}
	rounds, err := o.Ledger.Rounds(ctx, r.Run, 0, page(r.Rounds, 10))
	if err != nil {
		return nil, o.wireError(err)
	}
	answer := &v1.GetRunResponse{Run: o.run(ctx, run), Plan: run.Plan}
	if answer.Waiting, err = o.waiting(ctx, run, rounds); err != nil {
		return nil, o.wireError(err)
	}
	n, err := o.Ledger.NewClients(ctx, r.Run)
	if err != nil {
		return nil, o.wireError(err)
	}
	if n.HeldOut > 0 {
		answer.NewClients = &v1.NewClients{HeldOut: n.HeldOut, Answered: n.Answered, Scored: n.Evaluation.Clients}
		if n.Evaluation.Clients > 0 {
			answer.NewClients.RelativeMae = n.Evaluation.Mean()
		}
	}
	for _, x := range rounds {
		answer.Rounds = append(answer.Rounds, roundOf(x))
	}
	return answer, nil
}

// WatchRun sends a message for every round that closes, until the run ends.
func (o *runs) WatchRun(ctx context.Context, r *v1.WatchRunRequest, s *connect.ServerStream[v1.WatchRunResponse]) error {
	select {
	case o.watching <- struct{}{}:
		defer func() { <-o.watching }()
	default:
		return connect.NewError(connect.CodeResourceExhausted, errors.New("too many calls watch runs; try again later"))
	}
	run, err := o.Ledger.Run(ctx, r.Run)
	if err != nil {
		return o.wireError(err)
	}
	if err := s.Send(&v1.WatchRunResponse{Run: o.run(ctx, run)}); err != nil {
		return err
	}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	next, checked := run.Round, time.Now()
	said := ""
	for {
		if run, err = o.Ledger.Run(ctx, r.Run); err != nil {
			return o.wireError(err)
		}
		rounds, err := o.Ledger.Rounds(ctx, r.Run, next, maxPage)
		if err != nil {
			return o.wireError(err)
		}
		for i := len(rounds) - 1; i >= 0; i-- {
			if x := rounds[i]; x.State == ledger.RoundMerged || x.State == ledger.RoundAbandoned {
				if err := s.Send(&v1.WatchRunResponse{Run: o.run(ctx, run), Round: roundOf(x)}); err != nil {
					return err
				}
				next = x.Round + 1
			}
		}
		recent, err := o.Ledger.Rounds(ctx, r.Run, 0, usualRounds)
		if err != nil {
			return o.wireError(err)
		}
		switch w, err := o.waiting(ctx, run, recent); {
		case err != nil:
			return o.wireError(err)
		case w != nil && w.Silent > 0 && w.Text != said:
			said = w.Text
			if err := s.Send(&v1.WatchRunResponse{Run: o.run(ctx, run), Waiting: w}); err != nil {
				return err
			}
		}
		if run.State.Ended() {
			return s.Send(&v1.WatchRunResponse{Run: o.run(ctx, run)})
		}
		if time.Since(checked) >= checkEvery {
			if err := still(ctx); err != nil {
				return err
			}
			checked = time.Now()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-o.Closing:
			return connect.NewError(connect.CodeUnavailable, errors.New("the server is stopping; watch again later"))
		case <-tick.C:
		}
	}
}

// still returns an error if the caller of a stream has lost access.
func still(ctx context.Context) error {
	c, ok := access.From(ctx)
	if !ok {
		return access.Allow(ctx, v1.OperatorServiceWatchRunProcedure)
	}
	c, err := c.Again(ctx)
	if err != nil {
		return err
	}
	return access.Allow(access.With(ctx, c), v1.OperatorServiceWatchRunProcedure)
}

// ListTurns returns a page of the turns of a round.
func (o *runs) ListTurns(ctx context.Context, r *v1.ListTurnsRequest) (*v1.ListTurnsResponse, error) {
	turns, err := o.Ledger.Counter.Turns(ctx, r.Run, r.Round, r.After, page(r.Limit, 100))
	if err != nil {
		return nil, o.wireError(err)
	}
	limits, err := o.limitsOf(ctx, r.Run)
	if err != nil {
		return nil, o.wireError(err)
	}
	answer := &v1.ListTurnsResponse{}
	for _, t := range turns {
		answer.Turns = append(answer.Turns, turnOf(t, limits))
	}
	return answer, nil
}

func turnOf(t ledger.TurnRecord, limits map[int64]*v1.Limits) *v1.Turn {
	x := &v1.Turn{
		Run: t.Run, Round: t.Round, Client: t.Client, Agent: t.Agent, State: t.State, Version: t.Version, Reason: t.Reason,
		Examples: t.Examples, Steps: t.Steps, Norm: t.Norm, Counted: millis(t.At),
	}
	// Clipping rounds numbers to float32, so a clipped norm may be a little below the limit.
	const reached = 1 - 1e-6
	l := limits[t.Version].GetNorm()
	x.Clipped = t.State == "counted" && l > 0 && t.Norm >= reached*l
	return x
}

// limitsOf returns the limits of the stored versions of a run.
func (o *runs) limitsOf(ctx context.Context, run string) (map[int64]*v1.Limits, error) {
	versions, err := o.Ledger.Versions(ctx, run)
	if err != nil {
		return nil, err
	}
	all := make(map[int64]*v1.Limits, len(versions))
	for _, v := range versions {
		if all[v.Version], err = terms.DecodeLimits(v.Limits); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (o *runs) run(ctx context.Context, r ledger.Run) *v1.Run {
	x := &v1.Run{
		Id: r.ID, Name: r.Name, State: string(r.State), Reason: r.Reason, Created: millis(r.Created), Started: millis(r.Started),
		Finished: millis(r.Finished), Clients: r.Fleet, Round: r.Round, Version: r.Version, LeftOut: r.LeftOut, Wanted: r.Wanted,
	}
	if n := o.numbers.refusedClients(); r.State == ledger.Waiting && n > 0 {
		x.Reason = strings.TrimPrefix(x.Reason+fmt.Sprintf(", %d refused (loadstar fleet list shows which)", n), ", ")
	}
	if r.Code != "" {
		x.Waits, x.Reason = r.Reason, "waits: "+r.Reason
	}
	h := o.heads.of(r.Plan)
	x.Algorithm, x.Rounds, x.Partition, x.SharedWeights, x.PersonalWeights, x.Generated = h.algorithm, h.rounds, h.partition, h.shared, h.personal, r.Generated
	if h.warning != "" && !r.State.Ended() {
		x.Warnings = []string{h.warning}
	}
	if v, err := o.Ledger.Version(ctx, r.ID, r.Version); err == nil {
		x.Weights = v.Weights
	}
	return x
}

// leastMean is the minimum number of clients for which a mean training loss is shown. The
// losses of a few clients reveal more about their readings than people need.
const leastMean = 10

func roundOf(r ledger.Round) *v1.Round {
	x := &v1.Round{
		Round: r.Round, Version: r.Version, State: r.State, Opened: millis(r.Opened), Closed: millis(r.Closed),
		Asked: r.Asked, Counted: r.Counted, Late: r.Late, Lost: r.Lost, Bytes: r.Bytes, Evaluated: r.Evaluation.Clients,
	}
	if r.Counted >= leastMean {
		x.Loss = r.Loss
	}
	if x.Evaluated > 0 {
		x.RelativeMae = r.Evaluation.Mean()
	}
	return x
}
