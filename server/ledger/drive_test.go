package ledger

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
	"loadstar/server/directory"
)

// TestBegin checks that members are numbered in the byte order of their names, whatever
// the database's collation.
func TestBegin(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l, ctx := open(t, at), t.Context()
		join(t, l, "a", "b", "revoked")
		names := []string{"a", "B", "é", "Z-1", "z 10", "z 9", "Z1", "e", "É", "\u65e5\u672c", "a b", "ab", "-", "\U0001f4a1", "\ufb01"}
		announce(t, l, "a", names[:7]...)
		announce(t, l, "b", append(names[7:], "out")...)
		announce(t, l, "revoked", "out of reach")
		testkit.Must(t, l.Directory.RevokeClient(ctx, "out", "operator", t0))
		testkit.Must(t, l.Directory.RevokeAgent(ctx, "revoked", "operator", t0))
		s := begin(t, l, "run")
		r, err := l.Run(ctx, "run")
		testkit.Must(t, err)
		pgtest.Equal(t, "fleet", r.Fleet, int64(len(names)))
		s.ask(0, 0, upTo(len(names))...)
		announce(t, l, "a", "later") // announced too late for this run
		rows, err := l.Store.DB.Query("SELECT client FROM members WHERE run = 'run' ORDER BY no")
		testkit.Must(t, err)
		defer rows.Close()
		var got []string
		for rows.Next() {
			var name string
			testkit.Must(t, rows.Scan(&name))
			got = append(got, name)
		}
		testkit.Must(t, rows.Err())
		slices.SortFunc(names, strings.Compare)
		pgtest.Equal(t, "members", strings.Join(got, "|"), strings.Join(names, "|"))
		err = l.Drive(ctx, s.lead, "run", func(d *Drive) error {
			_, err := d.Begin(Run{}, Version{}, directory.Filter{}, t0)
			return err
		})
		if err == nil {
			t.Error("a run began twice")
		}
	})
}

// TestFilter checks that the members are those clients that have the inputs and the interval of
// the run, and whose agents were seen recently. Lacking returns clients that do not qualify.
func TestFilter(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l, ctx := open(t, at), t.Context()
		lead, err := l.Lead(ctx, "test", time.Hour, t0)
		testkit.Must(t, err)
		testkit.Must(t, l.AddRun(ctx, Run{ID: "run", Created: t0}, "operator"))
		join(t, l, "a", "b", "c", "silent", "revoked")
		say := func(agent string, clients []string, step time.Duration, inputs ...string) {
			t.Helper()
			_, err := l.Directory.Announce(ctx, directory.Announcement{Agent: agent, Clients: clients, Inputs: inputs, Step: step, Most: 1000}, t0)
			testkit.Must(t, err)
		}
		say("a", named("a", 700), time.Hour, "wind", "temperature", "load", "wind")
		say("b", []string{"b1", "b2"}, time.Hour, "load", "wind_speed")
		say("c", []string{"c1"}, 15*time.Minute, "load", "temperature", "wind")
		say("silent", named("s", 900), time.Hour, "load", "temperature", "wind")
		say("revoked", named("r", 900), time.Hour, "load")
		testkit.Must(t, l.Directory.RevokeAgent(ctx, "revoked", "operator", t0))
		testkit.Must(t, l.Directory.Seen(ctx, []string{"a", "b", "c"}, after(time.Hour)))
		f := directory.Filter{Seen: after(time.Minute), Inputs: []string{"wind", "temperature"}, Step: time.Hour}
		testkit.Must(t, l.Drive(ctx, lead, "run", func(d *Drive) error {
			kinds, err := d.Kinds(f.Seen)
			testkit.Must(t, err)
			pgtest.Equal(t, "kinds", kinds, []directory.Kind{
				{Inputs: []string{"load", "temperature", "wind"}, Step: time.Hour, Clients: 700},
				{Inputs: []string{"load", "wind_speed"}, Step: time.Hour, Clients: 2},
				{Inputs: []string{"load", "temperature", "wind"}, Step: 15 * time.Minute, Clients: 1},
			})
			n, err := d.Count(f)
			testkit.Must(t, err)
			pgtest.Equal(t, "members", n, 700)
			who, err := d.Lacking(f, 2)
			testkit.Must(t, err)
			pgtest.Equal(t, "first that lacks something", who[0].Name, "b1")
			pgtest.Equal(t, "number", len(who), 2)
			all, err := d.Names(f)
			testkit.Must(t, err)
			pgtest.Equal(t, "names", len(all), 700)
			fleet, err := d.Begin(Run{Plan: "plan", LeftOut: "b1 lacks wind"}, Version{}, f, t0)
			pgtest.Equal(t, "fleet", fleet, 700)
			return err
		}))
		n, err := l.Directory.CountClients(ctx, f.Seen)
		testkit.Must(t, err)
		pgtest.Equal(t, "clients seen lately", n, 703)
		r, err := l.Run(ctx, "run")
		testkit.Must(t, err)
		pgtest.Equal(t, "left out", r.LeftOut, "b1 lacks wind")
		last, err := l.Directory.LastSeen(ctx)
		testkit.Must(t, err)
		pgtest.Equal(t, "last seen", last, after(time.Hour))
		testkit.Must(t, l.Drive(ctx, lead, "run", func(d *Drive) error { // agent a has become silent
			gone, silent, err := d.Ask(Asking{Members: []int64{3, 4, 5000}, Until: after(3 * time.Hour), Seen: after(2 * time.Hour)})
			pgtest.Equal(t, "gone and silent", fmt.Sprint(gone, silent), "[5000] [3 4]")
			return err
		}))
	})
}

func TestAskAndWithdraw(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		s, ctx := plant(t, at, 1300), t.Context()
		s.drive(func(d *Drive) error {
			// The members do not fit in one statement, and 5000 is unknown.
			gone, _, err := d.Ask(Asking{Round: 0, Version: 0, Members: append(upTo(1300), 5000), Until: after(time.Minute)})
			pgtest.Equal(t, "gone", gone, []int64{5000})
			return err
		})
		// A member cannot get a second lease for the same round.
		if err := s.Drive(ctx, s.lead, "run", func(d *Drive) error {
			_, _, err := d.Ask(Asking{Round: 0, Version: 0, Members: []int64{7}, Until: after(time.Hour)})
			return err
		}); err == nil {
			t.Error("the same turn got two leases")
		}
		testkit.Must(t, s.Counter.Extend(ctx, "agent", "run", 0, named("c", 600), after(time.Hour)))
		s.drive(func(d *Drive) error {
			none, err := d.Withdraw(after(time.Minute - time.Millisecond))
			pgtest.Equal(t, "too early", len(none), 0)
			return err
		})
		s.drive(func(d *Drive) error {
			lost, err := d.Withdraw(after(time.Minute))
			pgtest.Equal(t, "withdrawn", len(lost), 700)
			for _, x := range lost {
				if x.No < 600 {
					t.Errorf("%d was extended", x.No)
				}
			}
			return err
		})
		leases, _ := s.balance()
		pgtest.Equal(t, "leases", leases, 600)
	})
}

func TestSave(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		s, ctx := plant(t, at, 2), t.Context()
		s.drive(func(d *Drive) error { return d.Save("one", Round{Round: 3, Version: 2, Opened: t0, Asked: 5}) })
		s.drive(func(d *Drive) error {
			return d.Save("two", Round{Round: 3, Version: 9, Opened: after(time.Hour), Asked: 8, Lost: 2})
		})
		r, err := s.Run(ctx, "run")
		testkit.Must(t, err)
		pgtest.Equal(t, "saved", fmt.Sprint(machine(t, s.Ledger, "run"), r.Round), fmt.Sprint("two", 3))
		rounds, err := s.Rounds(ctx, "run", 0, 9)
		testkit.Must(t, err)
		pgtest.Equal(t, "rounds", rounds, []Round{{Round: 3, Version: 2, State: RoundOpen, Opened: after(time.Hour), Asked: 8, Lost: 2}})
	})
}

// TestClose checks rounds that are merged and rounds that are abandoned, with leases that
// carry over and leases that do not.
func TestClose(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		s, ctx := plant(t, at, 4), t.Context()
		sum := func(batch int64) (got int64) {
			t.Helper()
			testkit.Must(t, s.Partials(ctx, "run", batch, func(p Partial) error {
				got++
				return nil
			}))
			return got
		}
		leases := func() int {
			t.Helper()
			return len(tasks(t, s.Ledger, "agent", t0))
		}
		closeIt := func(round int64, state string, carries bool) error {
			return s.Drive(ctx, s.lead, "run", func(d *Drive) error {
				return d.Close(Round{Round: round, State: state, Closed: t0}, "closed", carries)
			})
		}
		if err := closeIt(0, RoundMerging, true); err == nil {
			t.Error("a round that was never open was closed")
		}
		s.ask(0, 0, 0, 1, 2)
		s.count(one("agent", 0, 0, "c00000"))
		s.count(one("agent", 0, 0, "c00001"))
		testkit.Must(t, closeIt(0, RoundMerging, true))
		pgtest.Equal(t, "carried", leases(), 1)
		wantIs(t, closeIt(0, RoundMerging, true), ErrRefused)

		// From now on, updates count for the next round.
		s.ask(1, 0, 3)
		s.count(one("agent", 0, 0, "c00002"))
		s.drive(func(d *Drive) error {
			r, ok, err := d.Merging()
			pgtest.Equal(t, "merging", fmt.Sprint(r.Round, r.LastBatch, ok), fmt.Sprint(0, 2, true))
			last, err2 := d.LastBatch()
			pgtest.Equal(t, "last batch", last, 2)
			since, _, err3 := d.Receipts(last)
			pgtest.Equal(t, "since", since, []Receipt{{No: 2, Batch: 3, TrainLoss: 0.5}})
			return errors.Join(err, err2, err3)
		})
		pgtest.Equal(t, "sums of the round", sum(2), 2)
		s.drive(func(d *Drive) error {
			return d.Publish(Round{Round: 0, Version: 0, LastBatch: 2}, Version{Weights: "w1", Control: "c1"}, "server 1")
		})
		pgtest.Equal(t, "sums left", sum(99), 1)
		wantIs(t, s.Drive(ctx, s.lead, "run", func(d *Drive) error {
			return d.Publish(Round{Round: 0, Version: 0, LastBatch: 2}, Version{Weights: "w1", Control: "c1"}, "server 1")
		}), ErrRefused)
		r, err := s.Run(ctx, "run")
		testkit.Must(t, err)
		pgtest.Equal(t, "published", fmt.Sprint(r.Version, r.Server, machine(t, s.Ledger, "run"), r.Batch), fmt.Sprint(1, "server 1", "machine", 3))

		testkit.Must(t, closeIt(1, RoundAbandoned, false))
		pgtest.Equal(t, "carried", leases(), 0)
		pgtest.Equal(t, "sums of an abandoned round", sum(99), 0)
		pgtest.Equal(t, "receipts", len(s.receipts()), 3)
		s.drive(func(d *Drive) error {
			_, ok, err := d.Merging()
			pgtest.Equal(t, "merging", ok, false)
			return err
		})
	})
}

// TestRetire checks that Retire keeps the versions that a lease, a sum or an update needs,
// and the blobs that something else refers to.
func TestRetire(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		s, ctx := plant(t, at, 8), t.Context()
		other := begin(t, s.Ledger, "other") // has the same weights and server state
		round := int64(0)
		// publish merges the open round and opens the next one for the given members.
		publish := func(v Version, server string, members ...int64) (blobs []string) {
			t.Helper()
			s.drive(func(d *Drive) error { return d.Close(Round{Round: round, State: RoundMerging, Closed: t0}, "", true) })
			round++
			s.drive(func(d *Drive) error {
				m, _, err := d.Merging()
				if err != nil {
					return err
				}
				if err := d.Publish(m, v, server); err != nil {
					return err
				}
				if _, _, err := d.Ask(Asking{Round: round, Version: round, Members: members, Until: after(time.Hour)}); err != nil {
					return err
				}
				if err := d.Save("", Round{Round: round, Version: round}); err != nil {
					return err
				}
				blobs, err = d.retire(m.Version + 1)
				return err
			})
			slices.Sort(blobs)
			return blobs
		}
		versions := func() (all []int64) {
			t.Helper()
			for v := range int64(9) {
				_, err := s.Version(ctx, "run", v)
				if err == nil {
					all = append(all, v)
				} else if !errors.Is(err, ErrNotFound) {
					t.Fatal(err)
				}
			}
			return all
		}
		s.ask(0, 0, 0)
		// Version 0 stays because member 0 has a lease on it. The initial server state
		// stays because the other run has the same one.
		pgtest.Equal(t, "blobs", publish(Version{Weights: "w1", Control: "c0"}, "server 1", 1, 2), nil)
		s.count(one("agent", 0, 0, "c00000"))
		s.drive(func(d *Drive) error { // now version 0 stays because of member 0's sum
			blobs, err := d.retire(1)
			pgtest.Equal(t, "blobs while a sum is not merged", blobs, nil)
			return err
		})
		pgtest.Equal(t, "versions", versions(), []int64{0, 1})
		// After the merge nothing needs version 0, but its blobs stay because other versions of
		// this run and of the other run refer to them. Version 1 and its server state stay
		// because of its leases.
		pgtest.Equal(t, "blobs", publish(Version{Weights: "w2", Control: ""}, "server 2"), nil)
		pgtest.Equal(t, "versions", versions(), []int64{1, 2})

		// Like a sum, an individual update needs its version.
		arrivals := []Arrival{one("agent", 1, 1, "c00001"), one("agent", 1, 1, "c00002")}
		_, err := s.Counter.Count(ctx, "run", arrivals, func([]int) ([]Partial, []Single, error) {
			return nil, []Single{{Client: "c00001", Version: 1, Numbers: []byte{1}}, {Client: "c00002", Version: 1, Numbers: []byte{2}}}, nil
		})
		testkit.Must(t, err)
		s.drive(func(d *Drive) error {
			blobs, err := d.retire(2)
			pgtest.Equal(t, "blobs while an update is not merged", blobs, nil)
			return err
		})
		pgtest.Equal(t, "blobs", publish(Version{Weights: "w2", Control: "c3"}, "server 2"), []string{"server 1", "w1"})
		pgtest.Equal(t, "versions", versions(), []int64{3})
		pgtest.Equal(t, "blobs", publish(Version{Weights: "w4", Control: "c4"}, "server 4"), []string{"c3", "server 2", "w2"})
		pgtest.Equal(t, "versions", versions(), []int64{4})
		_, err = s.Version(ctx, other.run, 0)
		testkit.Must(t, err)
	})
}

func TestSingles(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		s, ctx := plant(t, at, 600), t.Context()
		s.ask(0, 0, upTo(600)...)
		var want []Single
		names := named("c", 600)
		for part := range slices.Chunk(names, 250) {
			var batch []Arrival
			for _, c := range part {
				batch = append(batch, one("agent", 0, 0, c))
			}
			_, err := s.Counter.Count(ctx, "run", batch, func(counted []int) (_ []Partial, all []Single, _ error) {
				for _, i := range counted {
					all = append(all, Single{Client: part[i], Version: 0, Examples: int64(i), Steps: 4, Loss: 0.1, Numbers: []byte{0, byte(i), 255}})
				}
				want = append(want, all...)
				return []Partial{{Version: 1, Numbers: []byte{2}}, {Version: 0, Numbers: []byte{}}}, all, nil
			})
			testkit.Must(t, err)
		}
		read := func(batch int64) (got []Single) {
			t.Helper()
			testkit.Must(t, s.Singles(ctx, "run", batch, func(x Single) error {
				got = append(got, x)
				return nil
			}))
			return got
		}
		pgtest.Equal(t, "all updates", read(3), want)
		pgtest.Equal(t, "updates up to a batch", read(2), want[:500])
		var partials []string
		testkit.Must(t, s.Partials(ctx, "run", 2, func(p Partial) error {
			partials = append(partials, fmt.Sprint(p.Version, p.Numbers))
			return nil
		}))
		pgtest.Equal(t, "partials up to a batch", partials, []string{"0 []", "1 [2]", "0 []", "1 [2]"})
		stop := errors.New("enough")
		wantIs(t, s.Partials(ctx, "run", 2, func(Partial) error { return stop }), stop)
		wantIs(t, s.Singles(ctx, "run", 2, func(Single) error { return stop }), stop)
	})
}
