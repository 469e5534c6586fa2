package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	v1 "loadstar/proto/loadstar/v1"

	"loadstar/rig/product"
)

// crowds lists the attacks by which one agent stops or distorts everyone's runs.
func crowds() []Attack {
	return []Attack{
		{ID: "C3a", Name: "made-up clients of one agent, which goes silent, stop all training", Run: ghosts},
		{ID: "C3b", Name: "one use of a token brings in 9,999 clients", Run: manyNames},
		{ID: "H1", Name: "one agent holds a round open forever", Run: holdOpen},
		{ID: "M2", Name: "one agent without inputs takes them from all", Run: stripInputs},
		{ID: "L4", Name: "run show hides who was counted in an open round", Run: hideCounted},
	}
}

// ghosts succeeds if no round of a run with a cohort of 10 is merged. Twelve clients are
// honest, and an agent with 9,000 other clients does nothing after it has announced them.
func ghosts(ctx context.Context, f *Fleet) (Result, error) {
	const seen = 4 * time.Second
	s := must(f.Serve(ctx, "--set", "rounds.lease=2s", "--set", "agents.seen="+seen.String()))
	const many = 9000
	a := must(s.joinWith(ctx, &v1.CreateTokenRequest{Uses: 1, TtlSeconds: 3600, Clients: many}, "ghosts"))
	refused := must(a.Host(ctx, weather, names("ghost-", many)...))
	check(product.Sleep(ctx, seen+time.Second))
	must(f.StartAgent(ctx, s, "honest", "1/1"))
	check(s.announced(ctx, int64(meters+many-len(refused))))
	run := must(s.begin(ctx, "name: cohort\nalgorithm: fedavg\nrounds: 3\nschedule: {cohort: 10}\n", 0))
	r := must(s.follow(ctx, run, 30*time.Second))
	if n := len(rounds(r)); r.Run.State != "finished" || n < 3 {
		return succeeded("%d of 3 rounds merged, the run is %s: %s", n, r.Run.State, r.Run.Reason), nil
	}
	return repelled("3 rounds merged; %d clients in the run", r.Run.Clients), nil
}

// announced waits until the given number of clients is known.
func (s *Server) announced(ctx context.Context, clients int64) error {
	o, err := s.Operators()
	if err != nil {
		return err
	}
	ok, err := product.Eventually(ctx, 20*time.Second, func() (bool, error) {
		r, err := o.ListClients(ctx, &v1.ListClientsRequest{Limit: 1})
		return err == nil && r.Total >= clients, err
	})
	if err == nil && !ok {
		err = fmt.Errorf("fewer than %d clients were announced", clients)
	}
	return err
}

// manyNames succeeds if an agent that joined with a token for twelve clients named meter-*
// can announce more clients or other names.
func manyNames(ctx context.Context, f *Fleet) (Result, error) {
	s := must(f.Serve(ctx))
	a := must(s.joinWith(ctx, &v1.CreateTokenRequest{Uses: 1, TtlSeconds: 3600, Clients: 12, Pattern: "meter-*"}, "crowd"))
	const asked = 9999
	held := func(prefix string) (int, error) {
		refused, err := a.Host(ctx, nil, names(prefix, asked)...)
		if err != nil && strings.Contains(err.Error(), "clients") { // the server refused the whole call
			return 0, nil
		}
		return asked - len(refused), err
	}
	others := must(held("ghost-"))
	many := must(held("meter-"))
	if others > 0 || many > 12 {
		return succeeded("%d clients with other names, %d in all", others, others+many), nil
	}
	return repelled("%d clients with other names, %d in all", others, others+many), nil
}

// holdOpen succeeds if a round stays open for the duration of many leases, because the agent of
// one of ten clients keeps reporting that it trains. The other nine clients answer at once.
func holdOpen(ctx context.Context, f *Fleet) (Result, error) {
	s := must(f.Serve(ctx, "--set", "rounds.lease=2s", "--set", "rounds.longest_turn=6s"))
	run, _, end, err := s.hold(ctx)
	check(err)
	var r *v1.GetRunResponse
	begun := time.Now()
	ok, err := product.Eventually(ctx, 20*time.Second, func() (bool, error) {
		r, err = s.look(ctx, run)
		return err == nil && len(rounds(r)) > 0, err
	})
	if e := end(); err == nil {
		err = e
	}
	check(err)
	if !ok {
		return succeeded("round 1 is open after 20 s with a lease of 2 s"), nil
	}
	return repelled("round 1 closed after %.0f s with %d counted", time.Since(begun).Seconds(), rounds(r)[0].Counted), nil
}

// hold begins a run with nine clients that answer, and one that reports training and never
// answers. It returns the agent of that client. The returned function ends both.
func (s *Server) hold(ctx context.Context) (run string, holder *Agent, end func() error, err error) {
	ctx, cancel := context.WithCancel(ctx)
	honest, err := s.JoinOne(ctx, "honest")
	if err == nil {
		_, err = honest.Host(ctx, nil, names("h", 9)...)
	}
	if err != nil {
		cancel()
		return "", nil, nil, err
	}
	holder, err = s.JoinOne(ctx, "holder")
	if err == nil {
		_, err = holder.Host(ctx, nil, "holder")
	}
	if err != nil {
		cancel()
		return "", nil, nil, err
	}
	ended := make(chan error, 2)
	go func() { ended <- honest.Serve(ctx, harmless) }()
	go func() { ended <- holder.stall(ctx) }()
	end = func() error {
		cancel()
		e1, e2 := <-ended, <-ended
		if e1 == nil {
			e1 = e2
		}
		return e1
	}
	run, err = s.begin(ctx, "name: held\nalgorithm: fedavg\nrounds: 2\n", 10)
	if err != nil {
		_ = end() // the first error is the cause
	}
	return run, holder, end, err
}

// stall reports that every task is being trained.
func (a *Agent) stall(ctx context.Context) error {
	var held []*v1.Turns
	for ctx.Err() == nil {
		r, err := a.checkIn(ctx, &v1.ExchangeRequest{Training: held})
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		for _, t := range r.Tasks {
			held = append(held, &v1.Turns{Run: t.Run, Round: t.Round, Clients: t.Clients})
		}
		_ = product.Sleep(ctx, 500*time.Millisecond) // the loop ends when the context does
	}
	return nil
}

// stripInputs succeeds if a run's plan lacks the weather that twelve of thirteen clients have.
func stripInputs(ctx context.Context, f *Fleet) (Result, error) {
	s := must(f.Serve(ctx))
	must(f.StartAgent(ctx, s, "honest", "1/1"))
	a := must(s.JoinOne(ctx, "bare"))
	must(a.Host(ctx, nil, "zz-bare"))
	check(s.announced(ctx, meters+1))
	run := must(s.begin(ctx, "name: inputs\nalgorithm: fedavg\nrounds: 1\n", meters))
	var r *v1.GetRunResponse
	ok, err := product.Eventually(ctx, 20*time.Second, func() (_ bool, err error) {
		r, err = s.look(ctx, run)
		return err == nil && r.Run.State != "waiting", err
	})
	if err != nil || !ok {
		return Result{}, fmt.Errorf("the run did not start: %v %v", r.GetRun(), err)
	}
	if !strings.Contains(r.Plan, "temperature") {
		return succeeded("the plan of the run has no weather"), nil
	}
	return repelled("the plan has the weather; %d clients in the run: %s", r.Run.Clients, r.Run.Reason), nil
}

// hideCounted succeeds if operators see no counted client in a round in which nine of ten
// clients are counted, because the tenth still trains.
func hideCounted(ctx context.Context, f *Fleet) (Result, error) {
	s := must(f.Serve(ctx))
	run, _, end, err := s.hold(ctx)
	check(err)
	var counted int64
	_, err = product.Eventually(ctx, 8*time.Second, func() (bool, error) {
		r, err := s.look(ctx, run)
		if err == nil && len(r.Rounds) > 0 {
			counted = r.Rounds[len(r.Rounds)-1].Counted
		}
		return counted > 0, err
	})
	if e := end(); err == nil {
		err = e
	}
	check(err)
	if counted == 0 {
		return succeeded("0 counted are shown"), nil
	}
	return repelled("%d counted are shown while the round is open", counted), nil
}
