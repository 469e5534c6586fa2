package demo

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	v1 "loadstar/proto/loadstar/v1"
)

// train runs the plan with the fleet, and kills an agent during training.
func (x *show) train(ctx context.Context) error {
	began := time.Now()
	r, err := x.fleet.StartRun(ctx, &v1.StartRunRequest{Plan: string(fleetPlan(x.Rounds)), Clients: int64(x.Clients)})
	if err != nil {
		return fmt.Errorf("cannot start training: %w", err)
	}
	victim := x.victim()
	died := make(chan struct{})
	victim.wire.onDeath = func() { close(died) }
	victim.wire.dieAt.Store(int64(x.Rounds / 3))
	k := &x.result.Killed
	k.Agent, k.Clients = victim.name, len(victim.clients)
	var fell time.Time
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-died:
			died = nil
			fell = time.Now()
			k.Round = x.Rounds/3 + 1
			x.story.say("%s is killed in round %d; the round continues without its %d clients", victim.name, k.Round, k.Clients)
			if err := victim.end(); err != nil {
				return err
			}
		case <-ticker.C:
		}
		now, err := x.fleet.GetRun(ctx, &v1.GetRunRequest{Run: r.Run, Rounds: int32(x.Rounds)})
		if err != nil {
			return err
		}
		done := merged(now.Rounds)
		x.story.bar(done, x.Rounds, fmt.Sprintf(" training%s", lastError(now.Rounds)))
		if !fell.IsZero() && !k.Back && (done >= k.Round || now.Run.State == "finished") {
			victim.wire.dieAt.Store(-1)
			if err := victim.start(ctx); err != nil {
				return err
			}
			k.Back, k.Seconds = true, time.Since(fell).Seconds()
			x.story.say("%s is back after %.0f s and continues where it stopped", victim.name, k.Seconds)
		}
		switch now.Run.State {
		case "finished":
			return x.trained(ctx, now, time.Since(began))
		case "failed", "stopped":
			return fmt.Errorf("training has %s: %s", now.Run.State, now.Run.Reason)
		}
	}
}

// victim returns the agent that is killed.
func (x *show) victim() *site { return x.sites[min(2, x.Agents-1)] }

// merged returns the number of rounds that have ended.
func merged(rounds []*v1.Round) (n int) {
	for _, r := range rounds {
		if r.State == "merged" || r.State == "abandoned" {
			n++
		}
	}
	return n
}

// lastError describes the newest validation error of the shared weights.
func lastError(rounds []*v1.Round) string {
	for _, r := range rounds { // newest first
		if r.Evaluated > 0 {
			return fmt.Sprintf(", %+.0f %% compared with last week", 100*(r.RelativeMae-1))
		}
	}
	return ""
}

// trained reports what the ledger contains about a finished run, and releases its model.
func (x *show) trained(ctx context.Context, now *v1.GetRunResponse, took time.Duration) (err error) {
	x.result.Rounds = len(now.Rounds)
	if x.result.Receipts, err = x.fleet.receipts(ctx, now.Run.Id, now.Rounds, &x.result.Killed, x.victim().clients); err != nil {
		return err
	}
	r := x.result.Receipts
	x.story.say("%d rounds in %.0f s: %d updates counted", len(now.Rounds), took.Seconds(), r.Counted)
	if n := r.Asked - r.Counted; n > 0 {
		x.story.note("%d of %d arrived after their round had closed, or not at all", n, r.Asked)
	}
	x.story.note("updates in the ledger: %d counted twice, %d counted without a receipt", r.Twice, r.Missing)
	if k := x.result.Killed; k.Back {
		x.story.note("%s missed %d updates and was counted %d times afterwards", k.Agent, k.Missed, k.CountedAfter)
	}
	release, err := x.fleet.CreateRelease(ctx, &v1.CreateReleaseRequest{Run: now.Run.Id})
	if err != nil {
		return fmt.Errorf("cannot release the model: %w", err)
	}
	x.result.Release = fmt.Sprintf("%s@%d", release.Release.Release.Name, release.Release.Release.Number)
	return nil
}

// release waits until every agent has the model, and lets the buildings decide whether they
// use it.
func (x *show) release(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, s := range x.sites {
		g.Go(func() error {
			for len(s.service.Models()) == 0 {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(pollEvery):
				}
			}
			for {
				did, err := s.service.Work(ctx)
				if err != nil || !did || ctx.Err() != nil {
					return err
				}
			}
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, s := range x.sites {
		for _, m := range s.service.Models() {
			x.result.Serving += len(m.Serving)
		}
	}
	x.story.say("model %s released: %d of %d buildings use it", x.result.Release, x.result.Serving, x.Clients)
	if n := x.Clients - x.result.Serving; n > 0 {
		x.story.note("%d stay with the model in the binary, which was better for them", n)
	}
	return nil
}

// lapse delivers the readings of the remaining days, and makes the other methods' forecasts for
// these days.
func (x *show) lapse(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return x.paper.others(ctx, x.kernel, alonePlan(), filepath.Join(x.dir, "alone")) })
	g.Go(func() error { return x.arrive(ctx) })
	return g.Wait()
}

// arrive moves the clock from issue to issue. At each issue, agents get the new readings and
// make forecasts.
func (x *show) arrive(ctx context.Context) error {
	from, done, total := x.stage.arrive, 0, x.paper.cutoffs()+1
	for cutoff := x.paper.first; from < x.stage.end; cutoff += every {
		cutoff := min(cutoff, x.stage.end)
		x.clock.set(cutoff)
		g, ctx := errgroup.WithContext(ctx)
		for i, s := range x.sites {
			g.Go(func() error {
				d, err := x.stage.part(i, x.Agents, 0, x.stage.end)
				if err != nil {
					return err
				}
				if err := s.deliver(ctx, d, from, cutoff); err != nil {
					return err
				}
				if err := s.announce(ctx, cutoff+daySeconds, cutoff+beyond*daySeconds); err != nil {
					return err
				}
				if !s.service.Tick() {
					return fmt.Errorf("%s made no forecasts: %w", s.name, s.service.Ready())
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
		from = cutoff
		done++
		x.story.bar(done, total, fmt.Sprintf(" %s arrives", time.Unix(cutoff, 0).In(x.stage.all.Clock).Format("2 January")))
	}
	x.story.say("%d days that no model was trained on: forecast, scored, tracked", testDays)
	return nil
}

// judge compares the methods and checks the bytes that were sent.
func (x *show) judge(context.Context) error {
	r := &x.result
	r.Generated, r.Seed, r.Agents, r.TestDays, r.CutoffHours = true, x.Seed, x.Agents, testDays, every/3600
	r.Today = time.Unix(x.stage.end, 0).In(x.stage.all.Clock).Format(time.DateOnly)
	r.Methods, r.Steps, r.Clients = x.paper.compare()
	if r.Clients == 0 {
		return fmt.Errorf("no forecast could be compared with a reading")
	}
	r.Coverage = x.paper.coverage()
	for _, s := range x.sites {
		r.RawReadingsFound += s.wire.found.Load()
		r.Searched += s.wire.bytes.Load()
		if n := s.wire.unread.Load(); n > 0 {
			return fmt.Errorf("%s sent %d encoded bodies, which cannot be searched for readings", s.name, n)
		}
		r.AgentPages = append(r.AgentPages, "http://"+s.address+"/")
	}
	r.SentMB = float64(r.Searched) / 1e6 / float64(x.Clients)
	if x.Keep != "" {
		r.Folder, r.Continue = x.dir, x.goOn()
	}
	return nil
}
