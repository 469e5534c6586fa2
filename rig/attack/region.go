package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/fed/round"
	"loadstar/fed/setup"
	"loadstar/internal/protocol"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/rig/product"
)

// regions lists the attacks of a region's server on its hub. To the hub, a region is an agent that
// returns sums.
func regions() []Attack {
	return []Attack{{ID: "X7", Name: "a region claims results of others' clients, or more than it has", Run: lyingRegion}}
}

// lie is a sum with a false claim.
type lie struct {
	what    string
	clients []string // the clients that the sum claims to contain
	updates int      // the number of updates in the sum
}

// lyingRegion succeeds if the hub counts a sum that claims to contain a client of another agent
// that is still training, that names a client twice, or that contains more updates than
// clients. An honest sum of the same clients must be counted afterwards.
func lyingRegion(ctx context.Context, f *Fleet) (Result, error) {
	s := must(f.Serve(ctx))
	region := must(s.JoinOne(ctx, "region"))
	own := names("r", 9)
	must(region.Host(ctx, nil, own...))
	victim := must(s.JoinOne(ctx, "victim"))
	must(victim.Host(ctx, nil, "victim"))
	training, stop := context.WithCancel(ctx)
	var wait sync.WaitGroup
	wait.Go(func() { _ = victim.stall(training) }) // if the victim ends, the round still lacks its result
	defer wait.Wait()
	defer stop()
	run := must(s.begin(ctx, "name: region\nalgorithm: fedavg\nrounds: 1\n", int64(len(own)+1)))
	var task *v1.Task
	if ok, err := product.Eventually(ctx, 20*time.Second, func() (bool, error) {
		r, err := region.checkIn(ctx, &v1.ExchangeRequest{})
		if err == nil && len(r.Tasks) > 0 {
			task = r.Tasks[0]
		}
		return task != nil, err
	}); err != nil || !ok {
		return Result{}, fmt.Errorf("the region gets no task: %w", err)
	}
	if len(task.Clients) != len(own) {
		return Result{}, fmt.Errorf("the task has the clients %v", task.Clients)
	}
	lies := []lie{
		{"another agent's client", append(slices.Clone(own), "victim"), len(own) + 1},
		{"a client in the place of one of its own", append(slices.Clone(own[1:]), "victim"), len(own)},
		{"a client twice", append(slices.Clone(own[1:]), own[1]), len(own)},
		{"a client that does not exist", append(slices.Clone(own[1:]), "nobody"), len(own)},
		{"ten updates of nine clients", own, len(own) + 1},
		{"no update", own, 0},
	}
	for _, l := range lies {
		if counted := region.claim(ctx, s, run, task, l); counted > 0 {
			return succeeded("%s: %d clients are counted", l.what, counted), nil
		}
	}
	if counted := region.claim(ctx, s, run, task, lie{"the truth", own, len(own)}); counted != int64(len(own)) {
		return Result{}, fmt.Errorf("an honest sum counts for %d clients", counted)
	}
	return repelled("none of %d false sums is counted, an honest one is", len(lies)), nil
}

// claim pushes a sum and returns how many clients the hub has counted in the round afterwards.
func (a *Agent) claim(ctx context.Context, s *Server, run string, t *v1.Task, l lie) int64 {
	r := must(s.look(ctx, run))
	plan := must(recipe.Read([]byte(r.Plan)))
	problem := must(recipe.Frame(plan, nil))
	parts := must(setup.New(plan, problem, int(t.Fleet)))
	weights := must(a.weights(ctx, t.Weights))
	examples := 100
	if most := int(t.GetLimits().GetExamples()); most > 0 {
		examples = min(examples, most)
	}
	fold := round.NewFold(parts.Rules)
	if l.updates == 0 { // an empty sum still has the form of a sum
		check(fold.Add(&fed.Update{Version: int(t.Version), Examples: 1, Delta: make([]float32, len(weights))}, weights))
	}
	for range l.updates {
		delta, _ := harmless(t, weights)
		check(fold.Add(&fed.Update{Version: int(t.Version), Examples: examples, Claimed: 100, Delta: delta}, weights))
	}
	b := must(round.AppendSums(nil, &fold.Sums()[0]))
	q := &v1.Result{Run: t.Run, Round: t.Round, Version: t.Version, Form: v1.Form_FORM_SUM, Checksum: protocol.Checksum(b), Size: int64(len(b))}
	for _, c := range l.clients {
		q.Shares = append(q.Shares, &v1.Share{Client: c, Examples: 100, Steps: 4, TrainLoss: 0.1, Loss: 0.1})
	}
	for rest := b; ; { // in chunks
		q.Chunk = rest[:min(len(rest), 1<<20)]
		p, err := a.push(ctx, q)
		if err != nil {
			return 0 // the server refused the call
		}
		rest = rest[len(q.Chunk):]
		q.Offset += int64(len(q.Chunk))
		if p.Outcome == v1.Outcome_OUTCOME_REJECTED || p.Outcome == v1.Outcome_OUTCOME_CLOSED {
			return 0
		}
		if len(rest) == 0 {
			break
		}
	}
	// The verdict on a result that the gateway accepts comes with a later check-in.
	var counted int64
	pushed := []*v1.Turns{{Run: t.Run, Round: t.Round, Clients: l.clients}}
	must(product.Eventually(ctx, 10*time.Second, func() (bool, error) {
		if _, err := a.checkIn(ctx, &v1.ExchangeRequest{Pushed: pushed}); err != nil {
			pushed = nil // the sum names a client of another agent
		}
		r, err := s.look(ctx, run)
		if err == nil && len(r.Rounds) > 0 {
			counted = r.Rounds[len(r.Rounds)-1].Counted
		}
		return counted > 0, err
	}))
	return counted
}
