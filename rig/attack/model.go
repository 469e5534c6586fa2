package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"time"

	v1 "loadstar/proto/loadstar/v1"
)

// models lists the attacks of a single client on the model.
func models() []Attack {
	return []Attack{
		{ID: "C2a", Name: "one client of 13 sends the largest update in fedavg", Run: poisonAverage},
		{ID: "C2b", Name: "one client of 13 sends the largest control variate in scaffold", Run: poisonControl},
		{ID: "C2c", Name: "one client of 13 claims 2^63-1 examples in fednorm", Run: poisonWeight},
		{ID: "C2d", Name: "a spoilt model cannot be undone", Run: noWayBack},
		{ID: "C2e", Name: "the client that spoils a model cannot be found", Run: noCulprit},
		{ID: "L3", Name: "one client decides which loss operators see", Run: falseLoss},
	}
}

// The largest numbers that the reviewed server accepted.
const (
	largest        = 16
	largestControl = 1 << 20
)

// poison answers with the largest possible update. It claims the most examples and a small
// loss.
func poison(t *v1.Task, weights []float32) ([]float32, *v1.Share) {
	n := numbers(t, weights)
	for i := range n {
		switch {
		case i >= len(weights):
			n[i] = largestControl
		case i%2 == 0:
			n[i] = -largest
		default:
			n[i] = largest
		}
	}
	return n, &v1.Share{Examples: math.MaxInt64, Steps: 4, TrainLoss: 0.01, Loss: 0.01}
}

// poisoned runs a plan with twelve honest clients and a client that answers differently, and
// returns the run after its end.
func poisoned(ctx context.Context, f *Fleet, plan string, by answer) (*Server, *v1.GetRunResponse) {
	s := must(f.Serve(ctx))
	must(f.StartAgent(ctx, s, "honest", "1/1"))
	a := must(s.JoinOne(ctx, "attacker"))
	must(a.Host(ctx, weather, "zz-attacker"))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- a.Serve(ctx, by) }()
	run := must(s.begin(ctx, plan, meters+1))
	r := must(s.follow(ctx, run, 90*time.Second))
	cancel()
	check(<-served)
	return s, r
}

// weather lists the weather inputs of the generated meters.
var weather = []string{"temperature", "wind", "floor_area", "wall_area", "window_area"}

// poisonAverage succeeds if the loss of the honest clients rises.
func poisonAverage(ctx context.Context, f *Fleet) (Result, error) {
	_, r := poisoned(ctx, f, "name: average\nalgorithm: fedavg\nrounds: 5\n", poison)
	return spoilt(r)
}

// poisonDense succeeds if the validation error of the honest clients, which does not include the
// attacker's, increases by a quarter. Without limits on updates, the error must increase that
// much.
func poisonDense(ctx context.Context, f *Fleet) (Result, error) {
	const plan = "name: dense\nalgorithm: fedavg\nrounds: 5\nmodel: {name: dense, inputs: [recent, lags, calendar]}\nserver: {%s}\nevaluate: {every: 1}\n"
	within := func(t *v1.Task, weights []float32) ([]float32, *v1.Share) {
		n, share := poison(t, weights)
		for i := range n {
			n[i] *= 0.9 // below server.bound
		}
		return n, share
	}
	var errors [2][2]float64 // in the second and in the last round
	for i, server := range []string{"clip: 0", ""} {
		fleet := &Fleet{ground: f.ground, dir: f.path(fmt.Sprint("fleet-", i))}
		f.later(fleet.close)
		check(os.Mkdir(fleet.dir, 0o700))
		_, r := poisoned(ctx, fleet, fmt.Sprintf(plan, server), within)
		all := rounds(r)
		if len(all) < 2 || all[0].Evaluated == 0 {
			return Result{}, fmt.Errorf("%d rounds, the run is %s %s", len(all), r.Run.State, r.Run.Reason)
		}
		errors[i] = [2]float64{all[0].RelativeMae, all[len(all)-1].RelativeMae}
		if all[len(all)-1].Evaluated == 0 {
			errors[i][1] = math.Inf(1) // the forecasts are not finite
		}
	}
	seen := fmt.Sprintf("relative MAE of the honest from %.2f to %.2f without limits, from %.2f to %.2f with them", errors[0][0], errors[0][1], errors[1][0], errors[1][1])
	if errors[0][1] < 2*errors[0][0] {
		return Result{}, fmt.Errorf("the attack proves nothing: %s", seen)
	}
	if !(errors[1][1] <= 1.25*errors[1][0]) {
		return succeeded("%s", seen), nil
	}
	return repelled("%s", seen), nil
}

// poisonControl succeeds if honest clients drop out or their loss increases.
func poisonControl(ctx context.Context, f *Fleet) (Result, error) {
	_, r := poisoned(ctx, f, "name: control\nalgorithm: scaffold\nrounds: 5\n", poison)
	return spoilt(r)
}

// spoilt judges a run with one attacker by its first and last rounds. The attack succeeds
// if fewer than three quarters of the honest clients are counted at the end, if the loss has
// increased by a quarter or is not a number, or if the run has not finished.
func spoilt(r *v1.GetRunResponse) (Result, error) {
	all := rounds(r)
	if len(all) == 0 {
		return Result{}, fmt.Errorf("no round was merged: the run is %s %s", r.Run.State, r.Run.Reason)
	}
	first, last := all[0], all[len(all)-1]
	seen := fmt.Sprintf("loss %.3g in round 1, %.3g in round %d; %d counted in the last round", first.Loss, last.Loss, last.Round+1, last.Counted)
	if r.Run.State != "finished" || last.Counted < meters*3/4 || !(last.Loss <= 1.25*first.Loss) {
		return succeeded("%s; the run is %s %s", seen, r.Run.State, r.Run.Reason), nil
	}
	return repelled("%s", seen), nil
}

// poisonWeight succeeds if the model moves by more than a quarter of the attacker's update.
// With equal weights, it would move by a thirteenth.
func poisonWeight(ctx context.Context, f *Fleet) (Result, error) {
	s, r := poisoned(ctx, f, "name: weight\nalgorithm: fednorm\nrounds: 2\nserver: {weighting: examples}\nschedule: {kind: synchronous, cohort: 13}\n", poison)
	if len(rounds(r)) == 0 {
		return Result{}, fmt.Errorf("no round was merged: the run is %s %s", r.Run.State, r.Run.Reason)
	}
	a := must(s.JoinOne(ctx, "reader"))
	w := must(a.weights(ctx, r.Run.Weights))
	var along float64 // component of the weights along the attacker's update
	for i, x := range w {
		if i%2 == 0 {
			x = -x
		}
		along += float64(x) / float64(len(w)) / largest
	}
	if !(math.Abs(along) <= 0.25) {
		return succeeded("the weights are %.2f times the attacker's update", along), nil
	}
	return repelled("the weights are %.3f times the attacker's update", along), nil
}

// scripted starts a run in which the attack plays all clients, nine harmless ones and one
// that answers differently. It returns the run after its end.
func scripted(ctx context.Context, f *Fleet, count int, by answer) (*Server, *v1.GetRunResponse) {
	s := must(f.Serve(ctx))
	return s, must(s.play(ctx, count, by))
}

// play is like scripted, but uses a server that is already running.
func (s *Server) play(ctx context.Context, count int, by answer) (*v1.GetRunResponse, error) {
	const honest = 9
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 2)
	for name, by := range map[string]answer{"h": harmless, "z": by} {
		a, err := s.JoinOne(ctx, name)
		if err != nil {
			return nil, err
		}
		n := honest
		if name == "z" {
			n = 1
		}
		if _, err := a.Host(ctx, nil, names(name, n)...); err != nil {
			return nil, err
		}
		go func() { served <- a.Serve(ctx, by) }()
	}
	run, err := s.begin(ctx, fmt.Sprintf("name: scripted\nalgorithm: fedavg\nrounds: %d\n", count), honest+1)
	if err != nil {
		return nil, err
	}
	r, err := s.follow(ctx, run, time.Minute)
	cancel()
	for range 2 {
		if e := <-served; err == nil {
			err = e
		}
	}
	return r, err
}

// noWayBack succeeds if an operator cannot make the weights from before the attack the newest
// ones.
func noWayBack(ctx context.Context, f *Fleet) (Result, error) {
	s, r := scripted(ctx, f, 4, poison)
	o := must(s.Operators())
	all := must(o.ListVersions(ctx, &v1.ListVersionsRequest{Run: r.Run.Id}))
	if len(all.Versions) < 4 {
		return succeeded("%d versions are stored", len(all.Versions)), nil
	}
	first := all.Versions[len(all.Versions)-1]
	back := must(o.RollBackRun(ctx, &v1.RollBackRunRequest{Run: r.Run.Id, Version: first.Version}))
	now := must(s.look(ctx, r.Run.Id))
	if now.Run.Weights != first.Weights || now.Run.Version != back.Version {
		return succeeded("after a rollback to version %d the newest weights are others", first.Version), nil
	}
	return repelled("%d versions stored; version %d restored as %d", len(all.Versions), first.Version, back.Version), nil
}

// noCulprit succeeds if the turns of a round do not show operators which client sent the
// largest update.
func noCulprit(ctx context.Context, f *Fleet) (Result, error) {
	s, r := scripted(ctx, f, 2, poison)
	o := must(s.Operators())
	all := must(o.ListTurns(ctx, &v1.ListTurnsRequest{Run: r.Run.Id, Round: 0, Limit: 100}))
	var worst *v1.Turn
	for _, t := range all.Turns {
		if worst == nil || t.Norm > worst.Norm {
			worst = t
		}
	}
	if worst == nil || worst.Norm == 0 || worst.Client != "z00000" {
		return succeeded("the turns do not show it: %v", worst), nil
	}
	return repelled("%s is listed with the largest norm %.3g, clipped %v", worst.Client, worst.Norm, worst.Clipped), nil
}

// falseLoss succeeds if the displayed loss of a round is negative or more than ten times the
// loss that the nine honest clients report.
func falseLoss(ctx context.Context, f *Fleet) (Result, error) {
	var seen []float64
	for i, claim := range []float64{1e99, -1e6} {
		// A rejected result leaves its turn open until the lease expires.
		s := must(f.serveAs(ctx, fmt.Sprintf("server-%d", i), "--set", "rounds.lease=2s"))
		r := must(s.play(ctx, 2, func(t *v1.Task, weights []float32) ([]float32, *v1.Share) {
			n, share := harmless(t, weights)
			share.TrainLoss, share.Loss = claim, claim
			return n, share
		}))
		all := rounds(r)
		if len(all) == 0 {
			return Result{}, fmt.Errorf("no round was merged: the run is %s %s", r.Run.State, r.Run.Reason)
		}
		seen = append(seen, all[len(all)-1].Loss)
	}
	for _, x := range seen {
		if !(x >= 0 && x <= 1) {
			return succeeded("shown losses %.3g", seen), nil
		}
	}
	return repelled("shown losses %.3g", seen), nil
}
