package ledger

import (
	"context"
	"database/sql"
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
	"loadstar/server/directory"
	"loadstar/server/sqlstore"
)

// TestCountFleet checks that the counts of a fleet follow announcements and revocations.
func TestCountFleet(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l, ctx := open(t, at), t.Context()
		count := func() directory.FleetCounts {
			t.Helper()
			c, err := l.Directory.CountFleet(ctx, after(time.Minute), after(2*time.Hour))
			testkit.Must(t, err)
			return c
		}
		pgtest.Equal(t, "nobody", count(), directory.FleetCounts{})
		join(t, l, "a", "b", "c")
		announce(t, l, "a", named("a", 3)...)
		announce(t, l, "b", named("b", 2)...)
		testkit.Must(t, l.Directory.Seen(ctx, []string{"a"}, after(time.Hour)))
		testkit.Must(t, l.Directory.Renewed(ctx, "b", directory.Credential{}, after(3*time.Hour)))
		pgtest.Equal(t, "three agents", count(), directory.FleetCounts{Agents: 3, Clients: 5, Quiet: 2, Expiring: 2})
		testkit.Must(t, l.Directory.RevokeClient(ctx, "a00001", "operator", t0))
		testkit.Must(t, l.Directory.RevokeAgent(ctx, "b", "operator", t0))
		pgtest.Equal(t, "after revocations", count(), directory.FleetCounts{Agents: 2, Clients: 2, Quiet: 1, Expiring: 2, Revoked: 1})
		_, err := l.Directory.FreeClients(ctx, "b", "", "operator", t0)
		testkit.Must(t, err)
		announce(t, l, "c", "b00000") // a client of the revoked agent moves to another agent
		pgtest.Equal(t, "after a move", count(), directory.FleetCounts{Agents: 2, Clients: 3, Quiet: 1, Expiring: 2, Revoked: 1})
		behind := -90 * time.Second
		_, err = l.Directory.Announce(ctx, directory.Announcement{Agent: "c", Clients: []string{"b00000"}, Step: time.Hour, Most: 9, Version: "0.3.0", Skew: &behind, Generated: true}, t0)
		testkit.Must(t, err)
		if c := count(); !c.Generated || c.Clients != 3 {
			t.Errorf("%+v", c)
		}
		x, err := l.Directory.AgentState(ctx, "c")
		testkit.Must(t, err)
		if x.Version != "0.3.0" || x.Skew == nil || *x.Skew != behind || !x.Generated || x.Clients != 1 || x.Name != "name of c" || !x.Joined.Equal(t0) || !x.Revoked.IsZero() {
			t.Errorf("%+v", x)
		}
		kinds, err := l.Directory.Kinds(ctx, time.Time{})
		testkit.Must(t, err)
		s := begin(t, l, "run")
		r, err := l.Run(ctx, s.run)
		testkit.Must(t, err)
		if !slices.ContainsFunc(kinds, func(k directory.Kind) bool { return k.Generated }) || !r.Generated {
			t.Errorf("the fleet's data is not marked: %+v, %+v", kinds, r)
		}
		if _, err := l.Directory.AgentState(ctx, "none"); err == nil {
			t.Error("found an agent that never joined")
		}
	})
}

// TestFilters checks that filters of agents and clients compare names byte by byte, whatever
// the database's collation, and that pages are contiguous.
func TestFilters(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l, ctx := open(t, at), t.Context()
		join(t, l, "a-1", "a-2", "b-1")
		announce(t, l, "a-1", "meter-1", "meter-10", "meter_2", "METER-3", "meter%4", "mete")
		announce(t, l, "b-1", "meter-5", "zähler-1", "zähler-2")
		testkit.Must(t, l.Reports.AddReports(ctx, "a-1", []directory.Report{
			{Client: "meter-1", Message: []byte("report"), Day: directory.Today(t0), Findings: []string{"gaps", "flat"}},
			{Client: "meter-10", Message: []byte("report"), Day: directory.Today(t0), Findings: []string{"gaps"}},
			{Client: "mete", Message: []byte("report"), Day: directory.Today(t0) - 1, Findings: []string{"gaps"}},
		}, false, t0))
		testkit.Must(t, l.Reports.AddReports(ctx, "a-1", []directory.Report{{Client: "mete", Message: []byte("report"), Day: directory.Today(t0)}}, false, t0)) // the problem is over
		testkit.Must(t, l.Reports.AddReports(ctx, "b-1", []directory.Report{{Client: "meter-5", Message: []byte("report"), Day: directory.Today(t0), Findings: []string{"gaps"}}}, false, t0))
		for want, q := range map[string]directory.ClientQuery{
			"meter-1 meter-10 meter-5":  {Prefix: "meter-"},
			"meter%4":                   {Prefix: "meter%"},
			"meter_2":                   {Prefix: "meter_"},
			"METER-3":                   {Prefix: "M"},
			"zähler-1 zähler-2":         {Prefix: "zä"},
			"meter-5 zähler-1 zähler-2": {Agent: "b-1"},
			" ":                         {Prefix: "mete", Agent: "none"},
		} {
			var names []string
			q.Limit = 2
			for {
				page, err := l.Directory.Clients(ctx, q)
				testkit.Must(t, err)
				for _, c := range page {
					names = append(names, c.Name)
				}
				if len(page) < q.Limit {
					break
				}
				q.After = page[len(page)-1].Name
			}
			slices.Sort(names)
			if got := strings.Join(names, " "); got != strings.TrimSpace(want) {
				t.Errorf("%+v: %q, want %q", q, got, want)
			}
		}
		for prefix, want := range map[string]string{"": "a-1 a-2 b-1", "a": "a-1 a-2", "name of b": "b-1", "name": "a-1 a-2 b-1", "A": "", "b-1": "b-1"} {
			var ids []string
			for last := ""; ; {
				page, err := l.Directory.AgentStates(ctx, directory.AgentQuery{Name: prefix, After: last, Limit: 2})
				testkit.Must(t, err)
				for _, a := range page {
					ids = append(ids, a.ID)
				}
				if len(page) < 2 {
					break
				}
				last = page[1].ID
			}
			if got := strings.Join(ids, " "); got != want {
				t.Errorf("agents %q: %q, want %q", prefix, got, want)
			}
		}
		for want, q := range map[string]directory.AgentQuery{"a-1 b-1": {Findings: true}, "b-1": {Findings: true, Name: "b"}, "": {Findings: true, Name: "a-2"}} {
			q.Limit = 9
			page, err := l.Directory.AgentStates(ctx, q)
			testkit.Must(t, err)
			var ids []string
			for _, a := range page {
				ids = append(ids, a.ID)
			}
			if got := strings.Join(ids, " "); got != want {
				t.Errorf("%+v: %q, want %q", q, got, want)
			}
		}
		counts, err := l.Reports.FindingsOf(ctx, []string{"a-1", "a-2", "b-1"})
		testkit.Must(t, err)
		pgtest.Equal(t, "clients with findings", counts, map[string]int64{"a-1": 2, "b-1": 1})
		found, err := l.Reports.FindingDays(ctx, 2)
		testkit.Must(t, err)
		pgtest.Equal(t, "findings", found, []directory.FindingDay{{Code: "gaps", Day: directory.Today(t0), Clients: 3}, {Code: "flat", Day: directory.Today(t0), Clients: 1}, {Code: "gaps", Day: directory.Today(t0) - 1, Clients: 1}})
		// Current findings replace those in the last report, but only for clients that the agent
		// hosts.
		testkit.Must(t, l.Reports.AddReports(ctx, "a-1", []directory.Report{
			{Client: "meter-1", Day: directory.Today(t0), Findings: []string{"impossible"}, Interim: true},
			{Client: "meter_2", Day: directory.Today(t0), Interim: true},
			{Client: "meter-5", Day: directory.Today(t0), Findings: []string{"impossible"}, Interim: true},
		}, false, t0))
		current, err := l.Reports.FindingsNow(ctx)
		testkit.Must(t, err)
		pgtest.Equal(t, "findings now", current, []directory.FindingDay{{Code: "gaps", Clients: 2}, {Code: "impossible", Clients: 1}})
		if c, err := l.Directory.Client(ctx, "meter_2"); err != nil || c.Agent != "a-1" || c.Step != time.Hour || !slices.Equal(c.Inputs, []string{"load"}) {
			t.Errorf("%+v, %v", c, err)
		}
		_, err = l.Directory.Client(ctx, "none")
		wantIs(t, err, sqlstore.ErrNotFound)
	})
}

// TestTurnRecords checks that Turns returns the open and the counted turns of a round, in
// pages, and that an open round has the number of counted turns.
func TestTurnRecords(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		s := plant(t, at, 7)
		ctx := t.Context()
		all := func() (names []string, counted int) {
			t.Helper()
			for after := ""; ; {
				page, err := s.Counter.Turns(ctx, s.run, 0, after, 3)
				testkit.Must(t, err)
				for _, x := range page {
					names = append(names, x.Client)
					if x.State == "counted" {
						counted++
						if x.Examples != 10 || x.Steps != 3 || x.TrainLoss != 0.5 || time.Since(x.At) > time.Hour {
							t.Errorf("%+v", x)
						}
					} else if !x.At.IsZero() || x.Examples != 0 {
						t.Errorf("%+v", x)
					}
					if x.Agent == "" || x.Run != s.run {
						t.Errorf("%+v", x)
					}
				}
				if len(page) < 3 {
					return names, counted
				}
				after = page[2].Client
			}
		}
		if names, _ := all(); len(names) != 0 {
			t.Errorf("before the round: %v", names)
		}
		s.ask(0, 0, upTo(7)...)
		names, _ := all()
		if len(names) != 7 || !slices.IsSorted(names) {
			t.Errorf("%v", names)
		}
		first, err := s.Counter.Turns(ctx, s.run, 0, "", 1)
		testkit.Must(t, err)
		agent := first[0].Agent
		s.count(one(agent, 0, 0, names[1], names[4]), one(agent, 0, 0, names[5]))
		again, counted := all()
		pgtest.Equal(t, "clients", again, names)
		pgtest.Equal(t, "counted", counted, 3)
		rounds, err := s.Rounds(ctx, s.run, 0, 1)
		testkit.Must(t, err)
		pgtest.Equal(t, "counted in the open round", rounds[0].Counted, 3)
		for i, name := range names {
			mine, err := s.Counter.TurnsOf(ctx, s.run, name, []int64{0, 1, 2})
			testkit.Must(t, err)
			if len(mine) != 1 || (mine[0].State == "counted") != slices.Contains([]int{1, 4, 5}, i) || mine[0].Round != 0 {
				t.Errorf("%s: %+v", name, mine)
			}
		}
		testkit.Must(t, s.Counter.Decline(ctx, agent, s.run, 0, names[6:], "policy", "client.batch is 1"))
		for what, read := range map[string]func() ([]TurnRecord, error){
			"of the round":  func() ([]TurnRecord, error) { return s.Counter.Turns(ctx, s.run, 0, names[5], 3) },
			"of the client": func() ([]TurnRecord, error) { return s.Counter.TurnsOf(ctx, s.run, names[6], []int64{0}) },
		} {
			if x, err := read(); err != nil || len(x) != 1 || x[0].State != "declined" || x[0].Reason != "client.batch is 1" || x[0].At.IsZero() {
				t.Errorf("declined turn %s: %+v, %v", what, x, err)
			}
		}
		if mine, err := s.Counter.TurnsOf(ctx, s.run, names[0], []int64{3}); err != nil || len(mine) != 0 {
			t.Errorf("%+v, %v", mine, err)
		}
	})
}

// recorder records the statements that pass through it.
type recorder struct {
	sqlstore.Querier
	texts []string
	args  [][]any
}

func (r *recorder) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	r.texts, r.args = append(r.texts, text), append(r.args, args)
	return r.Querier.QueryContext(ctx, text, args...)
}

// TestTurnsByKey checks that the turns of a client are found by their keys, without a scan,
// because a run has a receipt for every client and round.
func TestTurnsByKey(t *testing.T) {
	l, ctx := open(t, "sqlite:"+t.TempDir()+"/ledger.db"), t.Context()
	r := &recorder{Querier: l.Store.Ungated}
	l.Store.Ungated = r
	_, err := l.Counter.TurnsOf(ctx, "run", "client", []int64{1, 2, 3})
	testkit.Must(t, err)
	pgtest.Equal(t, "statements", len(r.texts), 3)
	for i, text := range r.texts {
		var plan string
		testkit.Must(t, sqlstore.Query(ctx, l.Store.DB, func(rows *sql.Rows) error {
			var a, b, c int
			var line string
			err := rows.Scan(&a, &b, &c, &line)
			plan += line
			return err
		}, "EXPLAIN QUERY PLAN "+text, r.args[i]...))
		if !strings.Contains(plan, "(run=? AND round=? AND client=?)") {
			t.Errorf("%s: %s", text, plan)
		}
	}
}
