package ledger

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
	"loadstar/server/directory"
)

// driver is a simple coordinator that has no state of its own, so another one can replace
// it at any time.
type driver struct {
	t    *testing.T
	l    *Ledger
	lead Lead
	run  string
}

// step runs the next transaction that the run needs, calls last before the commit, and
// returns the name of the step.
func (c *driver) step(last func() error) (did string, err error) {
	ctx := c.t.Context()
	var merging Round
	var isMerging bool
	var since []Receipt
	var run Run
	err = c.l.Drive(ctx, c.lead, c.run, func(d *Drive) (err error) {
		run = d.Run
		if merging, isMerging, err = d.Merging(); err != nil {
			return err
		}
		batch, err := d.LastBatch()
		if err != nil {
			return err
		}
		since, _, err = d.Receipts(batch)
		return err
	})
	if err != nil {
		return "", err
	}
	at := machine(c.t, c.l, c.run)
	var do func(d *Drive) error
	switch {
	case run.State.Ended():
		return "done", nil
	case run.State == Waiting:
		did = "begin"
		do = func(d *Drive) error {
			if _, err := d.Begin(Run{Plan: "settled"}, Version{Weights: "w0", Control: "c0"}, directory.Filter{}, t0); err != nil {
				return err
			}
			return d.saveMachine("at 0")
		}
	case isMerging:
		did = "publish"
		var sum int64 // computed outside the transaction, because it may take a long time
		err := c.l.Partials(ctx, c.run, merging.LastBatch, func(p Partial) error {
			sum += int64(binary.LittleEndian.Uint64(p.Numbers))
			return nil
		})
		if err != nil {
			return did, err
		}
		do = func(d *Drive) error {
			return d.Publish(merging, Version{Weights: fmt.Sprint("w", merging.Version+1, " ", sum), Control: fmt.Sprint("c", merging.Version+1)}, "server")
		}
	case run.Version == 2:
		did = "end"
		do = func(d *Drive) error { return d.End(Finished, "", t0) }
	case at == fmt.Sprint("at ", run.Version):
		did = "open"
		do = func(d *Drive) error {
			if _, err := d.retire(run.Version); err != nil {
				return err
			}
			if _, _, err := d.Ask(Asking{Round: run.Version, Version: run.Version, Members: upTo(5), Until: after(time.Hour)}); err != nil {
				return err
			}
			return d.Save("open", Round{Round: run.Version, Version: run.Version, Opened: t0, Asked: 5})
		}
	case len(since) < 4:
		return "wait", nil
	default:
		did = "close"
		do = func(d *Drive) error {
			return d.Close(Round{Round: run.Round, State: RoundMerging, Closed: t0, Asked: 5, Counted: 4, Late: 1, Loss: 0.5}, fmt.Sprint("at ", run.Version+1), false)
		}
	}
	return did, c.l.Drive(ctx, c.lead, c.run, func(d *Drive) error {
		if err := do(d); err != nil {
			return err
		}
		return last()
	})
}

// TestCoordinatorCrashes checks that a run ends in the same state as without crashes if the
// coordinator dies in any transaction, before or after the commit. Another coordinator
// takes over, and the first one can no longer write.
func TestCoordinatorCrashes(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l, ctx := open(t, at), t.Context()
		join(t, l, "agent")
		announce(t, l, "agent", named("c", 5)...)
		killed := errors.New("killed")
		holders := 0
		next := func(run string) *driver {
			t.Helper()
			holders++
			lead, err := l.Lead(ctx, fmt.Sprint("holder ", holders), time.Minute, after(time.Duration(holders)*time.Hour))
			testkit.Must(t, err)
			return &driver{t, l, lead, run}
		}
		// play runs a run to its end, with a crash at the given step. It returns the number
		// of transactions and the outcome of the run.
		play := func(run string, crashAt int, before bool) (steps int, came string) {
			t.Helper()
			testkit.Must(t, l.AddRun(ctx, Run{ID: run, Wanted: 5, Created: t0}, "operator"))
			c := next(run)
			for {
				state := ""
				last := func() error { return nil }
				if steps == crashAt && before {
					state = pgtest.Dump(t, l.Store.DB, tables...)
					last = func() error { return killed }
				}
				did, err := c.step(last)
				if did == "done" {
					break
				}
				if did == "wait" {
					r, err := l.Run(ctx, run)
					testkit.Must(t, err)
					for _, clients := range [][]string{{"c00004", "c00000"}, {"c00001"}, {"c00003"}} {
						batch := []Arrival{one("agent", r.Round, r.Version, clients...)}
						if _, err := l.Counter.Count(ctx, run, batch, sums(batch)); err != nil {
							t.Fatal(err)
						}
					}
					continue
				}
				if state != "" {
					wantIs(t, err, killed)
					pgtest.Equal(t, "after a kill before "+did, pgtest.Dump(t, l.Store.DB, tables...), state)
				} else {
					testkit.Must(t, err)
				}
				if steps == crashAt {
					old := c
					c = next(run)
					state := pgtest.Dump(t, l.Store.DB, tables...)
					_, err := old.step(func() error { return nil })
					wantIs(t, err, ErrDeposed)
					pgtest.Equal(t, "after a deposed coordinator's try", pgtest.Dump(t, l.Store.DB, tables...), state)
				}
				steps++
			}
			r, err := l.Run(ctx, run)
			testkit.Must(t, err)
			r.ID = ""
			rounds, err := l.Rounds(ctx, run, 0, 100)
			testkit.Must(t, err)
			if !l.Store.SQLite { // with PostgreSQL, all runs share one sequence of batch numbers
				r.Batch = 0
				for i := range rounds {
					rounds[i].LastBatch = 0
				}
			}
			came = fmt.Sprintf("%+v %+v", r, rounds)
			for v := range int64(4) {
				blobs, err := l.Version(ctx, run, v)
				came += fmt.Sprint("\n", v, blobs, err == nil)
			}
			return steps, came
		}
		steps, want := play("whole", -1, false)
		pgtest.Equal(t, "transactions", steps, 1+3*2+1)
		if !strings.Contains(want, "State:finished") {
			t.Fatal(want)
		}
		for at := range steps {
			for _, before := range []bool{true, false} {
				_, came := play(fmt.Sprint("killed at ", at, before), at, before)
				pgtest.Equal(t, fmt.Sprintf("killed at %d, before the commit: %t", at, before), came, want)
			}
		}
	})
}

// TestDeposedDuringTransaction checks that a transaction of the old leader that is in progress
// during a takeover still commits, before the first transaction of the new leader.
func TestDeposedDuringTransaction(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		s, ctx := plant(t, at, 3), t.Context()
		second := open(t, at)
		took := make(chan Lead, 1)
		s.drive(func(d *Drive) error {
			go func() {
				lead, err := second.Lead(ctx, "second", time.Hour, after(2000*time.Hour))
				if err != nil {
					t.Error(err)
				}
				took <- lead
			}()
			select {
			case lead := <-took:
				t.Error("another coordinator took over during a transaction")
				took <- lead
			case <-time.After(100 * time.Millisecond):
			}
			return d.Save("the first's", Round{Round: 0})
		})
		lead := <-took
		wantIs(t, s.Drive(ctx, s.lead, "run", func(d *Drive) error { return d.Save("too late", Round{}) }), ErrDeposed)
		testkit.Must(t, second.Drive(ctx, lead, "run", func(d *Drive) error {
			state, err := d.Machine()
			pgtest.Equal(t, "machine", state, "the first's")
			return err
		}))
	})
}
