package ledger

import (
	"bytes"
	"fmt"
	"testing"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
	"loadstar/server/directory"
)

// TestRollBack returns to an earlier version, both during the run and after its end. The new
// version has the weights and the state of the earlier one. Nothing remains of the open round
// that a merge could use, and nothing that arrives later counts.
func TestRollBack(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		s, ctx := plant(t, at, 3), t.Context()
		for v := range int64(2) {
			s.ask(v, v, 0, 1, 2)
			s.count(one("agent", v, v, named("c", 3)...))
			s.drive(func(d *Drive) error {
				r := Round{Round: v, Version: v, State: RoundMerging, Closed: t0, LastBatch: d.Run.Batch}
				if err := d.Close(r, "machine", false); err != nil {
					return err
				}
				return d.Publish(r, Version{Weights: fmt.Sprint("w", v+1), Limits: []byte{byte(v + 1)}}, fmt.Sprint("server ", v+1))
			})
		}
		s.ask(2, 2, 0, 1, 2)
		s.count(one("agent", 2, 2, "c00000"))
		late := []Arrival{one("agent", 2, 2, "c00001"), one("agent", 2, 2, "c00000")}

		_, err := s.RollBack(ctx, "run", 2, "anna", t0)
		wantIs(t, err, ErrRefused) // the newest
		_, err = s.RollBack(ctx, "run", 9, "anna", t0)
		wantIs(t, err, ErrNotFound)
		_, err = s.RollBack(ctx, "nothing", 1, "anna", t0)
		wantIs(t, err, ErrNotFound)
		v, err := s.RollBack(ctx, "run", 1, "anna", t0)
		testkit.Must(t, err)
		r, err := s.Run(ctx, "run")
		testkit.Must(t, err)
		pgtest.Equal(t, "the run", fmt.Sprintf("%d %d %s %d %s", v, r.Version, r.Server, r.Round, r.State), "3 3 server 1 3 running")
		versions, err := s.Versions(ctx, "run")
		testkit.Must(t, err)
		pgtest.Equal(t, "the new version", fmt.Sprintf("%d %s %v %d", versions[0].Version, versions[0].Weights, versions[0].Limits, *versions[0].From), "3 w1 [1] 1")
		counted, err := s.Counter.Count(ctx, "run", late, sums(late))
		testkit.Must(t, err)
		pgtest.Equal(t, "late results", counted, nil)
		testkit.Must(t, s.Partials(ctx, "run", 1<<60, func(Partial) error { t.Error("a sum is left"); return nil }))
		tasks, err := s.Counter.Tasks(ctx, "agent")
		testkit.Must(t, err)
		pgtest.Equal(t, "tasks", tasks, nil)
		pgtest.Equal(t, "the machine", machine(t, s.Ledger, "run"), "")
		rounds, err := s.Rounds(ctx, "run", 2, 1)
		testkit.Must(t, err)
		pgtest.Equal(t, "the open round", rounds[0].State, RoundAbandoned)
		events, err := s.Events.Audit(ctx, directory.AuditQuery{Actions: []string{"roll back run"}, Limit: 9})
		testkit.Must(t, err)
		pgtest.Equal(t, "events", fmt.Sprintf("%d %s %s", len(events), events[0].Actor, events[0].Detail), "1 anna version 3 has the weights of version 1")

		heads, err := s.Heads(ctx, "run", -1, 9)
		testkit.Must(t, err)
		key, err := s.HeadKey(ctx)
		testkit.Must(t, err)
		var previous []byte
		var told []string
		for _, h := range heads {
			if told = append(told, fmt.Sprintf("%d %s", h.Version, h.Weights)); !h.Valid(key) || !bytes.Equal(h.Previous, previous) {
				t.Errorf("the head of version %d is not signed or does not follow the one before", h.Version)
			}
			previous = h.Hash()
		}
		if len(told) < 3 {
			t.Fatalf("heads %q", told)
		}
		pgtest.Equal(t, "the last heads", fmt.Sprint(told[len(told)-3:]), "[1 w1 2 w2 3 w1]")

		testkit.Must(t, s.StopRun(ctx, "run", "test", t0))
		v, err = s.RollBack(ctx, "run", 0, "anna", t0)
		testkit.Must(t, err)
		r, err = s.Run(ctx, "run")
		testkit.Must(t, err)
		pgtest.Equal(t, "the stopped run", fmt.Sprintf("%d %d %s %s", v, r.Version, r.Server, r.State), "4 4 server stopped")
	})
}
