package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"loadstar/agent/state"
	"loadstar/rig/product"
)

// findings are the results of comparing the ledger with the agents' logs.
type findings struct {
	runs, rounds, receipts int
	// lost is the number of requested turns that were never counted, plus the number of
	// turns that an agent logged as counted but that are not in the ledger. twice is the
	// number of turns that were counted more than once.
	lost, twice int
	// released is the number of rounds that the keeper has released, and again is the number
	// of repeated releases.
	released, again int
	faults          []string
}

func (f *findings) fault(format string, args ...any) {
	const most = 20
	if len(f.faults) < most {
		f.faults = append(f.faults, fmt.Sprintf(format, args...))
	}
}

// settle waits until the agents have logged the verdicts of all counted turns.
func (s *system) settle(ctx context.Context, limit time.Duration) error {
	for end := time.Now().Add(limit); ; {
		counted, err := s.ledger.receipts(ctx)
		if err != nil {
			return err
		}
		heard, err := s.heard()
		if err != nil {
			return err
		}
		missing := 0
		for t := range counted {
			if !heard[t] && !s.revokedClients[t.client] {
				missing++
			}
		}
		if missing == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("of %d counted turns, the agents have not received the verdicts of %d within %s", len(counted), missing, limit)
		}
		if product.Sleep(ctx, 200*time.Millisecond) != nil {
			return ctx.Err()
		}
	}
}

// check compares the ledger with the agents' logs after all runs have ended. A round of a
// synchronous run must count a result of every client that it asked. A round of an
// asynchronous run counts the updates that arrive, and is abandoned if there are none.
func (s *system) check(ctx context.Context, asynchronous map[string]bool) (*findings, error) {
	f := &findings{}
	runs, err := s.ledger.runs(ctx, "")
	if err != nil {
		return nil, err
	}
	f.runs = len(runs)
	rounds, err := s.ledger.rounds(ctx)
	if err != nil {
		return nil, err
	}
	counted, err := s.ledger.receipts(ctx)
	if err != nil {
		return nil, err
	}
	f.addRounds(runs, rounds, counted, asynchronous)
	heard, err := s.heard()
	if err != nil {
		return nil, err
	}
	f.addHeard(heard, counted, s.revokedClients)
	for _, table := range []string{"leases", "partials", "updates"} {
		if n, err := s.ledger.number(ctx, "SELECT count(*) FROM "+table); err != nil {
			return nil, err
		} else if n > 0 {
			f.fault("%d rows are left in %s", n, table)
		}
	}
	return f, nil
}

// addRounds compares runs and rounds with the receipts.
func (f *findings) addRounds(runs []run, rounds []closed, counted map[turn]int, asynchronous map[string]bool) {
	byRound, byRun := map[turn]int64{}, map[string]int64{}
	for t, n := range counted {
		f.receipts += n
		f.twice += n - 1
		byRound[turn{run: t.run, round: t.round}] += int64(n)
		byRun[t.run] += int64(n)
	}
	merged := map[string]int64{}
	for _, r := range rounds {
		f.rounds++
		merged[r.run] += r.counted
		// In a round that evaluates, all clients evaluate, and each is included once.
		if r.evaluated != 0 && r.evaluated != r.counted {
			f.fault("round %d of %s: counted %d clients and evaluated %d", r.round, r.run, r.counted, r.evaluated)
		}
		if asynchronous[r.run] && (r.state == "merged" || r.state == "abandoned" && r.counted == 0) {
			continue
		}
		if r.state != "merged" {
			f.fault("round %d of %s is %s", r.round, r.run, r.state)
		}
		if n := byRound[turn{run: r.run, round: r.round}]; n != r.counted || n != r.asked || r.late+r.lost != 0 {
			f.fault("round %d of %s: asked %d, counted %d, late %d, lost %d, receipts %d", r.round, r.run, r.asked, r.counted, r.late, r.lost, n)
			f.lost += int(max(r.asked-n, 0))
			f.twice += int(max(n-r.asked, 0))
		}
	}
	for _, r := range runs {
		if r.state != "finished" {
			f.fault("run %s is %s: %s", r.id, r.state, r.reason)
		}
		if byRun[r.id] != merged[r.id] {
			f.fault("run %s has %d receipts, and its rounds merged %d", r.id, byRun[r.id], merged[r.id])
		}
	}
}

// addHeard compares the verdicts that agents received with the receipts.
func (f *findings) addHeard(heard map[turn]bool, counted map[turn]int, revoked map[string]bool) {
	for t := range heard {
		if counted[t] == 0 {
			f.lost++
			f.fault("client %s has heard that it was counted in round %d of %s, and has no receipt", t.client, t.round, t.run)
		}
	}
	for t := range counted {
		if !heard[t] && !revoked[t.client] {
			f.fault("client %s was counted in round %d of %s, and its agent never heard", t.client, t.round, t.run)
		}
	}
}

// stop ends all processes except the database with SIGTERM. Agents end when they have
// nothing left to send.
func (s *system) stop(limit time.Duration) error {
	problems := s.drain(time.Now().Add(limit))
	for i := len(s.servers) - 1; i >= 0; i-- {
		if s.servers[i].Kind() != kindPostgres {
			problems = append(problems, s.servers[i].Stop())
		}
	}
	return errors.Join(problems...)
}

// drain stops all agents. It restarts an agent that still has unsent results, and gives it
// more time.
func (s *system) drain(end time.Time) (problems []error) {
	for i, p := range s.hosts {
		for {
			if err := p.Stop(); err != nil {
				problems = append(problems, err)
			}
			n, err := s.unsent(i)
			if err != nil {
				problems = append(problems, err)
			}
			if n == 0 || s.revoked[i] {
				break
			}
			if time.Now().After(end) {
				problems = append(problems, fmt.Errorf("%s still has %d unsent results", p.name, n))
				break
			}
			if err := p.Start(); err != nil {
				problems = append(problems, err)
			}
			time.Sleep(20 * poll)
		}
	}
	return problems
}

// unsent returns the number of results of a stopped agent that have no verdict.
func (s *system) unsent(i int) (int, error) {
	store, err := state.Open(s.agentDir(i))
	if err != nil {
		return 0, err
	}
	all, err := store.Results()
	return len(all), errors.Join(err, store.Close())
}
