package ledger

import (
	"slices"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
	"loadstar/server/directory"
)

// TestNewClients checks that held-out clients are not members of the fleet, that they are asked
// only after the run has finished, and that each of them is counted once.
func TestNewClients(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l, ctx := open(t, at), t.Context()
		join(t, l, "a", "b")
		announce(t, l, "a", "c1", "c2", "c3")
		announce(t, l, "b", "c4", "c5")
		testkit.Must(t, l.AddRun(ctx, Run{ID: "run", Plan: "plan", Created: t0}, "test"))
		lead, err := l.Lead(ctx, "first", time.Hour, t0)
		testkit.Must(t, err)
		drive := func(do func(*Drive) error) {
			t.Helper()
			testkit.Must(t, l.Drive(ctx, lead, "run", do))
		}
		drive(func(d *Drive) error {
			names, err := d.Names(directory.Filter{})
			pgtest.Equal(t, "names", names, []string{"c1", "c2", "c3", "c4", "c5"})
			testkit.Must(t, err)
			testkit.Must(t, d.HoldOut([]string{"c2", "c3", "c5"}))
			fleet, err := d.Begin(Run{Plan: "plan", PlanBlob: "blob", Server: "state"}, Version{Weights: "w"}, directory.Filter{}, t0)
			pgtest.Equal(t, "fleet", fleet, 2)
			return err
		})
		drive(func(d *Drive) error {
			gone, _, err := d.Ask(Asking{Round: 0, Version: 0, Members: []int64{0, 1}, Until: after(time.Hour)})
			pgtest.Equal(t, "gone", gone, nil)
			return err
		})
		tasks, err := l.Counter.Tasks(ctx, "b")
		testkit.Must(t, err)
		if len(tasks) != 1 || tasks[0].Client != "c4" {
			t.Errorf("agent b trains %+v, want c4", tasks)
		}
		open := func(since time.Time, want ...string) {
			t.Helper()
			all, err := l.OpenNewClients(ctx, since, 10)
			testkit.Must(t, err)
			var got []string
			for _, c := range all {
				got = append(got, c.Agent+" "+c.Client)
			}
			if !slices.Equal(got, want) {
				t.Errorf("open are %v, want %v", got, want)
			}
		}
		add := func(agent string, want bool, e Evaluation, clients ...string) {
			t.Helper()
			added, err := l.AddNewClients(ctx, agent, "run", clients, e)
			testkit.Must(t, err)
			if added != want {
				t.Errorf("%s reports %v: added %v, want %v", agent, clients, added, want)
			}
		}
		open(t0)
		add("a", false, Evaluation{1, 9e6}, "c2") // the run has not finished
		drive(func(d *Drive) error { return d.End(Finished, "", after(time.Minute)) })
		open(t0, "a c2", "a c3", "b c5")
		open(after(time.Hour))                                // too long ago
		add("a", false, Evaluation{1, 9e6}, "c1")             // not held out
		add("a", false, Evaluation{1, 9e6}, "c5")             // c5 belongs to another agent
		add("a", false, Evaluation{2, 9e6}, "c2", "c5")       // one of them of another agent
		add("a", false, Evaluation{2, 9e6}, "c2", "c2")       // twice in one report
		add("a", true, Evaluation{1, 1_250_000}, "c2", "c3")  // one of them could not be scored
		add("a", false, Evaluation{1, 1_250_000}, "c2", "c3") // sent again
		open(t0, "b c5")
		add("b", true, Evaluation{1, 750_000}, "c5")
		open(t0)
		n, err := l.NewClients(ctx, "run")
		testkit.Must(t, err)
		pgtest.Equal(t, "new clients", n, NewClients{3, 3, Evaluation{2, 2_000_000}})
		none, err := l.NewClients(ctx, "another")
		testkit.Must(t, err)
		pgtest.Equal(t, "of a run without", none, NewClients{})
	})
}
