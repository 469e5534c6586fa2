package ledger

import (
	"fmt"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
	"loadstar/server/directory"
)

func TestRuns(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l, ctx := open(t, at), t.Context()
		_, err := l.Run(ctx, "a")
		wantIs(t, err, ErrNotFound)
		for i, id := range []string{"b", "a", "c"} {
			testkit.Must(t, l.AddRun(ctx, Run{ID: id, Name: "é", Plan: "seed: 1", Wanted: 9, Created: after(time.Duration(i/2) * time.Second)}, "operator"))
		}
		if err := l.AddRun(ctx, Run{ID: "a", Created: t0}, "operator"); err == nil {
			t.Error("a run was added twice")
		}
		b, err := l.Run(ctx, "b")
		testkit.Must(t, err)
		pgtest.Equal(t, "a new run", b, Run{ID: "b", Name: "é", Plan: "seed: 1", State: Waiting, Wanted: 9, Created: t0})

		ids := func(all []Run, err error) (s string) {
			t.Helper()
			testkit.Must(t, err)
			for _, r := range all {
				s += r.ID
			}
			return s
		}
		pgtest.Equal(t, "runs", ids(l.Runs(ctx, 10)), "cab")
		pgtest.Equal(t, "the newest runs", ids(l.Runs(ctx, 2)), "ca")
		active := func() []Activity {
			t.Helper()
			all, err := l.Active(ctx)
			testkit.Must(t, err)
			return all
		}
		pgtest.Equal(t, "active runs", active(), []Activity{{"a", Waiting, 0}, {"b", Waiting, 0}, {"c", Waiting, 0}})

		join(t, l, "agent")
		announce(t, l, "agent", "x")
		lead, err := l.Lead(ctx, "test", time.Hour, t0)
		testkit.Must(t, err)
		testkit.Must(t, l.Drive(ctx, lead, "a", func(d *Drive) error {
			_, err := d.Begin(Run{Plan: "settled", PlanBlob: "blob", Server: "s"}, Version{Weights: "w", Control: "c"}, directory.Filter{}, after(time.Minute))
			return err
		}))
		testkit.Must(t, l.Drive(ctx, lead, "c", func(d *Drive) error { return d.End(Failed, "no clients", after(time.Minute)) }))
		a, err := l.Run(ctx, "a")
		testkit.Must(t, err)
		pgtest.Equal(t, "a run", a, Run{
			ID: "a", Name: "é", Plan: "settled", PlanBlob: "blob", State: Running, Wanted: 9, Fleet: 1,
			Created: t0, Started: after(time.Minute), Server: "s",
		})
		pgtest.Equal(t, "active runs", active(), []Activity{{"a", Running, 0}, {"b", Waiting, 0}})
		v, err := l.Version(ctx, "a", 0)
		testkit.Must(t, err)
		pgtest.Equal(t, "version 0", v, Version{Weights: "w", Control: "c"})
		_, err = l.Version(ctx, "a", 1)
		wantIs(t, err, ErrNotFound)
		_, err = l.Version(ctx, "b", 0)
		wantIs(t, err, ErrNotFound)
		c, err := l.Run(ctx, "c")
		testkit.Must(t, err)
		pgtest.Equal(t, "a failed run", fmt.Sprint(c.State, c.Reason, c.Finished), fmt.Sprint(Failed, "no clients", after(time.Minute)))
	})
}

func TestStopRun(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		s, ctx := plant(t, at, 4), t.Context()
		other := begin(t, s.Ledger, "other")
		for _, x := range []*site{s, other} {
			x.ask(0, 0, 0, 1, 2, 3)
			arrivals := []Arrival{one("agent", 0, 0, "c00001")}
			_, err := s.Counter.Count(ctx, x.run, arrivals, func([]int) ([]Partial, []Single, error) {
				return []Partial{{Numbers: make([]byte, 8)}}, []Single{{Client: "c00001", Numbers: []byte{1}}}, nil
			})
			testkit.Must(t, err)
		}
		testkit.Must(t, s.StopRun(ctx, "run", "operator", after(time.Minute)))
		wantIs(t, s.StopRun(ctx, "run", "operator", t0), ErrRefused)
		wantIs(t, s.StopRun(ctx, "nothing", "operator", t0), ErrNotFound)
		r, err := s.Run(ctx, "run")
		testkit.Must(t, err)
		if r.State != Stopped || !r.State.Ended() || !r.Finished.Equal(after(time.Minute)) {
			t.Errorf("a stopped run: %+v", r)
		}
		pgtest.Equal(t, "counted after its end", s.count(one("agent", 0, 0, "c00002")), nil)
		pgtest.Equal(t, "tasks, all of the other run", len(tasks(t, s.Ledger, "agent", t0)), 3)
		where, err := s.Counter.Standings(ctx, "agent", "run", 0, named("c", 4))
		testkit.Must(t, err)
		pgtest.Equal(t, "standings", where, map[string]Standing{"c00001": {State: Counted}})
		for _, table := range []string{"leases", "partials", "updates"} {
			var n, others int
			testkit.Must(t, s.Store.DB.QueryRow("SELECT count(*) FROM "+table+" WHERE run = 'run'").Scan(&n))
			testkit.Must(t, s.Store.DB.QueryRow("SELECT count(*) FROM "+table+" WHERE run = 'other'").Scan(&others))
			if n != 0 || others == 0 {
				t.Errorf("%s: %d of the run that ended, %d of the other", table, n, others)
			}
		}
	})
}

func TestRounds(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		s, ctx := plant(t, at, 4), t.Context()
		for r := range int64(5) {
			s.ask(r, 0, 0, 1)
			s.count(one("agent", r, 0, "c00000"))
			s.drive(func(d *Drive) error {
				return d.Close(Round{Round: r, State: RoundAbandoned, Closed: after(time.Minute), Asked: 2, Counted: 1, Late: 1, Lost: 3, Loss: 0.25}, "machine", false)
			})
		}
		got, err := s.Rounds(ctx, "run", 2, 2)
		testkit.Must(t, err)
		want := []Round{
			{Round: 4, State: RoundAbandoned, Opened: t0, Closed: after(time.Minute), Asked: 2, Counted: 1, Late: 1, Lost: 3, Loss: 0.25, Bytes: 100, LastBatch: 5},
			{Round: 3, State: RoundAbandoned, Opened: t0, Closed: after(time.Minute), Asked: 2, Counted: 1, Late: 1, Lost: 3, Loss: 0.25, Bytes: 100, LastBatch: 4},
		}
		pgtest.Equal(t, "rounds", got, want)
		all, err := s.Rounds(ctx, "run", 2, 100)
		testkit.Must(t, err)
		pgtest.Equal(t, "rounds from 2 on", len(all), 3)
	})
}

func TestAudit(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l, ctx := open(t, at), t.Context()
		join(t, l, "a")
		announce(t, l, "a", "x")
		testkit.Must(t, l.AddRun(ctx, Run{ID: "run", Name: "name", Created: after(2 * time.Second)}, "operator"))
		testkit.Must(t, l.StopRun(ctx, "run", "operator", after(3*time.Second)))
		testkit.Must(t, l.Directory.RevokeClient(ctx, "x", "operator", after(4*time.Second)))
		testkit.Must(t, l.Directory.RevokeAgent(ctx, "a", "operator", after(5*time.Second)))
		// Failed operations add no event.
		wantIs(t, l.StopRun(ctx, "run", "operator", after(6*time.Second)), ErrRefused)
		wantIs(t, l.Directory.RevokeAgent(ctx, "a", "operator", after(6*time.Second)), ErrNotFound)
		testkit.Must(t, l.Events.AddEvent(ctx, directory.Event{At: after(-time.Second), Actor: "operator", Action: "sign in", Subject: "é", Detail: "from home"}))
		got, err := l.Events.Audit(ctx, directory.AuditQuery{Limit: 100})
		testkit.Must(t, err)
		want := []directory.Event{
			{At: after(5 * time.Second), Actor: "operator", Action: "revoke agent", Subject: "a", Detail: ""},
			{At: after(4 * time.Second), Actor: "operator", Action: "revoke client", Subject: "x", Detail: ""},
			{At: after(3 * time.Second), Actor: "operator", Action: "stop run", Subject: "run", Detail: ""},
			{At: after(2 * time.Second), Actor: "operator", Action: "start run", Subject: "run", Detail: "name"},
			{At: t0, Actor: "agent a", Action: "join", Subject: "a", Detail: "name of a, token 746f6b656e206f66"},
			{At: t0, Actor: "test", Action: "create token", Subject: "746f6b656e206f66", Detail: "agents 1, until 2023-11-14T23:13:20Z"},
			{At: after(-time.Second), Actor: "operator", Action: "sign in", Subject: "é", Detail: "from home"},
		}
		for i := range got {
			if i > 0 && got[i].ID >= got[i-1].ID {
				t.Errorf("%s is not before %s", got[i].ID, got[i-1].ID)
			}
		}
		page, err := l.Events.Audit(ctx, directory.AuditQuery{Before: got[1].ID, Actors: []string{"operator", "nobody"}, Limit: 2})
		testkit.Must(t, err)
		pgtest.Equal(t, "the second page of an actor", page, got[2:4])
		page, err = l.Events.Audit(ctx, directory.AuditQuery{Actions: []string{"join"}, Limit: 2})
		testkit.Must(t, err)
		pgtest.Equal(t, "an action", page, got[4:5])
		plain := func(all []directory.Event) []directory.Event {
			for i := range all {
				all[i].ID = ""
			}
			return all
		}
		pgtest.Equal(t, "events", plain(got), want)
		got, err = l.Events.Audit(ctx, directory.AuditQuery{Limit: 2})
		testkit.Must(t, err)
		pgtest.Equal(t, "the newest events", plain(got), want[:2])

		// Events within one millisecond keep their order.
		for i := range 40 {
			testkit.Must(t, l.Events.AddEvent(ctx, directory.Event{At: after(time.Hour), Detail: fmt.Sprint(i)}))
		}
		got, err = l.Events.Audit(ctx, directory.AuditQuery{Limit: 40})
		testkit.Must(t, err)
		for i, e := range got {
			if e.Detail != fmt.Sprint(39-i) {
				t.Fatalf("event %s is number %d from the end", e.Detail, i)
			}
		}
	})
}
