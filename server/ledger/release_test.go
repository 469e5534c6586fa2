package ledger

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
	"loadstar/server/directory"
)

// trained returns a ledger with a run whose newest version is 3. Earlier versions are
// deleted unless they have already been released.
func trained(t *testing.T, at string, release ...int64) *site {
	t.Helper()
	s := plant(t, at, 3)
	for v := range int64(3) {
		s.ask(v, v, 0, 1, 2)
		s.count(one("agent", v, v, named("c", 3)...))
		s.drive(func(d *Drive) (err error) {
			r := Round{Round: v, Version: v, State: RoundMerging, Closed: t0, LastBatch: d.Run.Batch}
			if r.Evaluation, err = d.Evaluation(); err != nil {
				return err
			}
			if err := d.Close(r, "machine", false); err != nil {
				return err
			}
			if err := d.Publish(r, Version{Weights: fmt.Sprint("w", v+1)}, "server"); err != nil {
				return err
			}
			blobs, err := d.retire(v + 1)
			if kept := slices.Contains(release, v); slices.Contains(blobs, fmt.Sprint("w", v)) == kept {
				t.Errorf("version %d: %v are deleted", v, blobs)
			}
			return err
		})
		if slices.Contains(release, v+1) {
			s.release("day", 0)
		}
	}
	return s
}

func (s *site) release(name string, version int64) Release {
	s.t.Helper()
	s.released++
	r, err := s.AddRelease(context.Background(), Release{
		ID: fmt.Sprint(name, s.released), Name: name, Run: s.run, Version: version, Role: "personal", Actor: "operator", Created: t0.Add(time.Duration(s.released) * time.Second),
	})
	testkit.Must(s.t, err)
	return r
}

// offered returns the releases that are offered to agents.
func (s *site) offered() string {
	s.t.Helper()
	all, err := s.Releases(context.Background())
	testkit.Must(s.t, err)
	var names []string
	for _, r := range Offered(all) {
		names = append(names, fmt.Sprintf("%s=%s", r.String(), r.Weights))
	}
	return strings.Join(names, " ")
}

// TestReleases checks that a release keeps the weights of its version, that an earlier version
// can be released again, and that withdrawn releases are no longer offered.
func TestReleases(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		s, ctx := trained(t, at, 1, 2), t.Context()
		pgtest.Equal(t, "offered", s.offered(), "day@1=w1 day@2=w2")
		// Version 2 is released, and version 0 was deleted.
		_, err := s.AddRelease(ctx, Release{ID: "x", Name: "day", Run: "run", Version: 7})
		wantIs(t, err, ErrRefused)
		_, err = s.AddRelease(ctx, Release{ID: "x", Name: "day", Run: "no run"})
		wantIs(t, err, ErrNotFound)
		newest := s.release("day", 0)
		pgtest.Equal(t, "newest", fmt.Sprint(newest.Version, newest.Weights, newest.PlanBlob, newest.Number), "3w3p3")
		_, err = s.AddRelease(ctx, Release{ID: "x", Name: "day", Run: "run", Version: 3, Role: "personal"})
		wantIs(t, err, ErrRefused) // the weights are those of day@3
		again := s.release("day", 1)
		pgtest.Equal(t, "again", fmt.Sprint(again.Version, again.Weights, again.Number), "1w14")
		pgtest.Equal(t, "parent", again.Parent, newest.ID)
		pgtest.Equal(t, "offered", s.offered(), "day@2=w2 day@3=w3 day@4=w1")
		s.release("week", 3)
		testkit.Must(t, s.WithdrawRelease(ctx, "day@4", "operator", t0))
		testkit.Must(t, s.WithdrawRelease(ctx, newest.ID, "operator", t0))
		pgtest.Equal(t, "offered", s.offered(), "day@1=w1 day@2=w2 week@1=w3")
		wantIs(t, s.WithdrawRelease(ctx, "day@4", "operator", t0), ErrRefused)
		wantIs(t, s.WithdrawRelease(ctx, "day@9", "operator", t0), ErrNotFound)
		// Withdrawn releases keep their blobs and numbers.
		r := s.release("day", 1)
		pgtest.Equal(t, "after withdrawals", fmt.Sprint(r.Number, r.Weights), "5w1")
		blobs, err := s.Blobs(ctx)
		testkit.Must(t, err)
		pgtest.Equal(t, "blobs", blobs, []string{"p", "server", "w1", "w2", "w3"})
		events, err := s.Events.Audit(ctx, directory.AuditQuery{Limit: 100})
		testkit.Must(t, err)
		actions := map[string]int{}
		for _, e := range events {
			actions[e.Action]++
		}
		pgtest.Equal(t, "audit", fmt.Sprint(actions["release model"], actions["withdraw release"]), "6 2")
		for i := range maxNames - 2 {
			s.release(fmt.Sprint("name", i), 0)
		}
		_, err = s.AddRelease(ctx, Release{ID: "x", Name: "one too many", Run: "run"})
		wantIs(t, err, ErrRefused)
	})
}

// TestEvaluation checks that a round has the sum of the evaluations of the results that it
// merges.
func TestEvaluation(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		s := trained(t, at)
		rounds, err := s.Rounds(t.Context(), "run", 0, 10)
		testkit.Must(t, err)
		for _, r := range rounds {
			var want Evaluation
			for _, c := range named("c", 3) {
				want.Add(scored(r.Round, c))
			}
			pgtest.Equal(t, fmt.Sprint("round ", r.Round), r.Evaluation, want)
		}
	})
}

// TestAdoptReleases checks that a region has the hub's releases.
func TestAdoptReleases(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		s := region(t, at, 1)
		hub := func(numbers ...int64) (all []Release) {
			for _, n := range numbers {
				all = append(all, Release{ID: fmt.Sprint("id", n), Name: "day", Number: n, Run: "run", Weights: fmt.Sprint("w", n), PlanBlob: "p"})
			}
			return all
		}
		for _, x := range []struct {
			list []Release
			want string
		}{{hub(1, 2), "day@1=w1 day@2=w2"}, {hub(2, 3), "day@2=w2 day@3=w3"}, {hub(1, 3), "day@1=w1 day@3=w3"}, {nil, ""}} {
			testkit.Must(t, s.Relay.AdoptReleases(t.Context(), s.lead, x.list, t0))
			pgtest.Equal(t, "offered", s.offered(), x.want)
		}
	})
}

// TestReports checks that reports count once per client and day, even if sent repeatedly, and
// only for the agent's own clients.
func TestReports(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		s, ctx := plant(t, at, 50), t.Context()
		join(t, s.Ledger, "other")
		today := directory.Today(t0)
		report := func(i int, day int64, release string) directory.Report {
			return directory.Report{
				Client: fmt.Sprintf("c%05d", i), Day: day, Message: []byte(fmt.Sprint("report ", day)), Release: release,
				RelativeMAE: 0.5 + float64(i)/100, Coverage: 0.8, Fallback: math.NaN(), Drift: i == 0, WantsRound: i < 5,
			}
		}
		add := func(agent string, pending bool, all ...directory.Report) {
			t.Helper()
			testkit.Must(t, s.Reports.AddReports(ctx, agent, all, pending, t0))
		}
		for i := range 49 {
			release := "r1"
			if i >= 40 {
				release = ""
			}
			add("agent", i == 7, report(i, today-1, release), report(i, today-1, "r2"))
			add("agent", false, report(i, today-2, release)) // older than the stored one
			add("other", false, report(i, today, release))   // another agent's client
			add("agent", false, report(i, today-200, release), report(i, today+2, release))
		}
		add("agent", false, report(3, today, "r1"))
		days, err := s.Reports.ReportDays(ctx, "r1", 7)
		testkit.Must(t, err)
		if len(days) != 2 || days[0].Day != today || days[0].Clients != 1 || days[1].Clients != 40 || days[1].Total != 49 || days[1].Drifting != 1 || days[1].Wanting != 5 {
			t.Fatalf("%+v", days)
		}
		// The median of 0.50 to 0.89.
		if d := days[1]; math.Abs(d.RelativeMAE-0.7) > 0.05 || math.Abs(d.Coverage-0.8) > 0.02 || !math.IsNaN(d.Fallback) {
			t.Errorf("%+v", d)
		}
		days, err = s.Reports.ReportDays(ctx, "", 1)
		testkit.Must(t, err)
		pgtest.Equal(t, "days", len(days), 1)
		messages, err := s.Reports.Reports(ctx, []string{"c00003", "c00004", "none"})
		testkit.Must(t, err)
		pgtest.Equal(t, "newest reports", messages, map[string][]byte{"c00003": []byte(fmt.Sprint("report ", today)), "c00004": []byte(fmt.Sprint("report ", today-1))})
		pending, err := s.Relay.PendingReports(ctx, 10)
		testkit.Must(t, err)
		if len(pending) != 1 || pending[0].Client != "c00007" {
			t.Fatalf("pending: %+v", pending)
		}
		testkit.Must(t, s.Relay.ReportsSent(ctx, s.lead, pending))
		pending, err = s.Relay.PendingReports(ctx, 10)
		testkit.Must(t, err)
		pgtest.Equal(t, "pending", len(pending), 0)
		testkit.Must(t, s.Reports.DropOldReports(ctx, t0.Add(89*24*time.Hour)))
		days, err = s.Reports.ReportDays(ctx, "", 90)
		testkit.Must(t, err)
		pgtest.Equal(t, "days after 89 days", len(days), 1)
	})
}
