package live

import (
	"context"
	"sync"
	"time"
)

// idle is the maximum time between two searches for background work.
const idle = 10 * time.Minute

// firstWorkTime limits the work before the very first forecasts.
const firstWorkTime = 2 * time.Minute

// Run makes forecasts on schedule until ctx ends. It issues when all clients have reported a
// step, or when the delay after the step's end is over. It does not make up for missed steps.
func (s *Service) Run(ctx context.Context) error {
	arrived := make(chan struct{}, 1)
	s.c.Store.Notify(arrived)
	s.firstWork(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { s.background(ctx) })
	defer wg.Wait()
	for ctx.Err() == nil {
		s.Tick()
		timer := time.NewTimer(s.NextIssue().Sub(s.c.Now()))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-arrived:
		}
		timer.Stop()
	}
	return nil
}

// firstWork compares models before the very first forecasts. Otherwise a new agent with a
// history would forecast last week's load for an hour before it used its model.
func (s *Service) firstWork(ctx context.Context) {
	if s.newestCutoff() != 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, firstWorkTime)
	defer cancel()
	for ctx.Err() == nil {
		if did, err := s.Work(ctx); err != nil || !did {
			return // the background retries, and reports the problem
		}
	}
}

// Tick makes the forecasts that are due now, and reports whether there were any. Run
// calls it. Programs with their own clock may call it instead.
func (s *Service) Tick() bool {
	if err := s.trusted(); err != nil {
		s.fail(err)
		return false
	}
	now := s.c.Now()
	cutoff := s.floor(now.Unix())
	s.setBack(cutoff)
	if cutoff <= s.newestCutoff() || now.Before(time.Unix(cutoff, 0).Add(s.c.Delay)) && !s.complete(cutoff) {
		return false
	}
	done := s.begin()
	defer done()
	s.roster.issuing.Lock()
	defer s.roster.issuing.Unlock()
	err := s.issuer.issueAll(now, cutoff)
	s.fail(err)
	if err != nil {
		s.c.Log.Error("cannot make forecasts", "error", err)
		// Try again at the next step. An immediate retry would cause a busy loop if the disk were
		// full.
		s.passed(cutoff)
		return false
	}
	s.wakeWork()
	return true
}

// complete reports whether all clients have reported the step before a cutoff.
func (s *Service) complete(cutoff int64) bool {
	s.roster.issuing.Lock()
	names := s.roster.names
	s.roster.issuing.Unlock()
	for _, name := range names {
		if _, end, ok, err := s.c.Store.Span(name); err != nil || !ok || end < cutoff {
			return false
		}
	}
	return len(names) > 0
}

// NextIssue returns when the next forecasts are due. They are made earlier if all clients have reported.
func (s *Service) NextIssue() time.Time {
	now := s.c.Now()
	cutoff := s.floor(now.Unix())
	if cutoff > s.newestCutoff() {
		if due := time.Unix(cutoff, 0).Add(s.c.Delay); due.After(now) {
			return due
		}
	}
	return time.Unix(cutoff+s.seconds(), 0).Add(s.c.Delay)
}

// background compares models while there is time.
func (s *Service) background(ctx context.Context) {
	for ctx.Err() == nil {
		did, err := s.Work(ctx)
		if err != nil {
			s.c.Log.Error("cannot store the choice of a model", "error", err)
		}
		if did && err == nil {
			continue
		}
		timer := time.NewTimer(idle)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-s.work:
		}
		timer.Stop()
	}
}

// wakeWork tells the background goroutine that there may be work.
func (s *Service) wakeWork() {
	select {
	case s.work <- struct{}{}:
	default:
	}
}

// Work does one piece of background work, such as comparing a new model with the one in
// use. It reports whether it found work. Run calls it between issues.
func (s *Service) Work(ctx context.Context) (bool, error) {
	s.working.Lock()
	defer s.working.Unlock()
	return s.chooser.work(ctx)
}

// IssueNow makes a forecast of a client or group at once from all known readings. It does
// not change what the client has learned.
func (s *Service) IssueNow(ctx context.Context, client string) (*Issued, error) {
	if err := s.trusted(); err != nil {
		return nil, err
	}
	if _, err := s.Client(client); err != nil {
		return nil, err
	}
	return s.issuer.issueNow(ctx, client)
}

// Pin keeps a client's model until Unpin.
func (s *Service) Pin(client string) error { return s.chooser.pin(client, true) }

// Unpin allows a client's model to change again.
func (s *Service) Unpin(client string) error { return s.chooser.pin(client, false) }

// Rollback returns a client to its previous model, and refuses the current one.
func (s *Service) Rollback(client string) error { return s.chooser.leave(client) }
