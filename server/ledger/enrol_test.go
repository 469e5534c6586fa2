package ledger

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
	"loadstar/server/directory"
	"loadstar/server/sqlstore"
)

// entry is the stored state of an agent.
type entry struct {
	Name                  string
	Joined, Expires, Seen time.Time
}

func stored(t *testing.T, l *Ledger, agent string) (e entry) {
	t.Helper()
	var joined, expires, seen int64
	testkit.Must(t, l.Store.DB.QueryRow("SELECT name, joined, expires, seen FROM agents WHERE id = $1", agent).Scan(&e.Name, &joined, &expires, &seen))
	e.Joined, e.Expires, e.Seen = sqlstore.FromMillis(joined), sqlstore.FromMillis(expires), sqlstore.FromMillis(seen)
	return e
}

func TestJoin(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l, ctx := open(t, at), t.Context()
		testkit.Must(t, l.Directory.AddToken(ctx, []byte{0, 1, 255}, directory.Token{Note: "for the depot", Uses: 2, Expires: after(time.Hour)}, "test", t0))
		if err := l.Directory.AddToken(ctx, []byte{0, 1, 255}, directory.Token{Note: "again", Uses: 2, Expires: after(time.Hour)}, "test", t0); err == nil {
			t.Error("a token twice")
		}
		wantIs(t, l.Directory.Join(ctx, []byte{0, 1}, directory.Agent{ID: "x"}, t0), sqlstore.ErrRefused)
		testkit.Must(t, l.Directory.Join(ctx, []byte{0, 1, 255}, directory.Agent{ID: "a", Name: "é", Expires: after(time.Minute)}, t0))
		if err := l.Directory.Join(ctx, []byte{0, 1, 255}, directory.Agent{ID: "a"}, t0); err == nil {
			t.Error("an agent twice")
		}
		// Failed attempts have not used up the token.
		wantIs(t, l.Directory.Join(ctx, []byte{0, 1, 255}, directory.Agent{ID: "late"}, after(time.Hour)), sqlstore.ErrRefused)
		testkit.Must(t, l.Directory.Join(ctx, []byte{0, 1, 255}, directory.Agent{ID: "b"}, after(time.Hour-time.Millisecond)))
		wantIs(t, l.Directory.Join(ctx, []byte{0, 1, 255}, directory.Agent{ID: "c"}, t0), sqlstore.ErrRefused)

		pgtest.Equal(t, "agent", stored(t, l, "a"), entry{Name: "é", Joined: t0, Expires: after(time.Minute), Seen: t0})
		for _, id := range []string{"c", "late", "x"} {
			_, err := l.Directory.Caller(ctx, id)
			wantIs(t, err, sqlstore.ErrNotFound)
		}
		n, err := l.Directory.Agents(ctx)
		testkit.Must(t, err)
		pgtest.Equal(t, "agents", n, 2)
	})
}

// TestJoinReasons checks that the error for a refused token contains the reason and the time.
func TestJoinReasons(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l, ctx := open(t, at), t.Context()
		testkit.Must(t, l.Directory.AddToken(ctx, []byte("once"), directory.Token{Uses: 1, Expires: after(time.Hour)}, "test", t0))
		testkit.Must(t, l.Directory.Join(ctx, []byte("once"), directory.Agent{ID: "reasons"}, after(0)))
		testkit.Must(t, l.Directory.AddToken(ctx, []byte("short"), directory.Token{Uses: 1, Expires: after(time.Minute)}, "test", t0))
		const form = "2006-01-02 15:04 MST"
		for token, want := range map[string]string{
			"nobody's": "does not know the token",
			"once":     "used up: the last agent joined with it at " + after(0).UTC().Format(form),
			"short":    "expired at " + after(time.Minute).UTC().Format(form),
		} {
			err := l.Directory.Join(ctx, []byte(token), directory.Agent{ID: "late"}, after(30*time.Minute))
			if !errors.Is(err, sqlstore.ErrRefused) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %s", token, err, want)
			}
		}
	})
}

// TestJoinConcurrently checks that exactly as many agents can join with a token as it has uses.
func TestJoinConcurrently(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		ledgers := []*Ledger{open(t, at), open(t, at)}
		const uses, tries = 7, 30
		testkit.Must(t, ledgers[0].Directory.AddToken(t.Context(), []byte("token"), directory.Token{Uses: int64(uses), Expires: after(time.Hour)}, "test", t0))
		var joined, refused atomic.Int64
		var wg sync.WaitGroup
		for i := range tries {
			wg.Go(func() {
				err := ledgers[i%2].Directory.Join(t.Context(), []byte("token"), directory.Agent{ID: fmt.Sprint(i)}, t0)
				switch {
				case err == nil:
					joined.Add(1)
				case errors.Is(err, sqlstore.ErrRefused):
					refused.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		wg.Wait()
		n, err := ledgers[0].Directory.Agents(t.Context())
		testkit.Must(t, err)
		if joined.Load() != uses || refused.Load() != tries-uses || n != uses {
			t.Errorf("%d joined, %d were refused; %d agents", joined.Load(), refused.Load(), n)
		}
	})
}

func TestRenewedAndSeen(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l, ctx := open(t, at), t.Context()
		join(t, l, "a", "b", "c")
		testkit.Must(t, l.Directory.Renewed(ctx, "a", directory.Credential{}, after(48*time.Hour)))
		testkit.Must(t, l.Directory.Seen(ctx, []string{"nobody", "a"}, after(9*time.Second)))
		testkit.Must(t, l.Directory.Seen(ctx, []string{"a"}, after(4*time.Second)))
		testkit.Must(t, l.Directory.Seen(ctx, []string{"b"}, after(-time.Second)))
		testkit.Must(t, l.Directory.Seen(ctx, nil, after(time.Hour)))
		for id, want := range map[string]entry{
			"a": {Expires: after(48 * time.Hour), Seen: after(9 * time.Second)},
			"b": {Expires: after(time.Hour), Seen: t0},
		} {
			want.Name, want.Joined = "name of "+id, t0
			pgtest.Equal(t, id, stored(t, l, id), want)
		}
		wantIs(t, l.Directory.Renewed(ctx, "nobody", directory.Credential{}, t0), sqlstore.ErrNotFound)
		testkit.Must(t, l.Directory.RevokeAgent(ctx, "a", "operator", t0))
		wantIs(t, l.Directory.Renewed(ctx, "a", directory.Credential{}, after(time.Hour)), sqlstore.ErrRefused)
	})
}

// TestSeenConcurrently checks that two processes can store check-ins of the same agents at
// the same time.
func TestSeenConcurrently(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		ledgers := []*Ledger{open(t, at), open(t, at)}
		ids := named("a", 600) // enough for two transactions of several statements in SQLite
		join(t, ledgers[0], ids...)
		// shown reports whether process i stores a check-in of agent k.
		shown := func(i, k int) bool { return k%8 != i && (k+i)%3 > 0 }
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				var seen []string
				for k, id := range ids {
					if shown(i, k) {
						seen = append(seen, id)
					}
				}
				rand.Shuffle(len(seen), func(a, b int) { seen[a], seen[b] = seen[b], seen[a] })
				if err := ledgers[i%2].Directory.Seen(t.Context(), seen, after(time.Duration(i+1)*time.Second)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for k := 0; k < len(ids); k += 7 {
			a := stored(t, ledgers[0], ids[k])
			newest := 0
			for i := range 8 {
				if shown(i, k) {
					newest = i + 1
				}
			}
			pgtest.Equal(t, ids[k], a.Seen, after(time.Duration(newest)*time.Second))
		}
	})
}

func TestAnnounceTooMany(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l, ctx := open(t, at), t.Context()
		join(t, l, "a", "b")
		say := func(agent string, clients ...string) error {
			_, err := l.Directory.Announce(ctx, directory.Announcement{Agent: agent, Clients: clients, Step: time.Hour, Most: 3}, t0)
			return err
		}
		testkit.Must(t, say("a", "1", "2"))
		testkit.Must(t, say("a", "2", "3")) // repeated clients do not count twice
		wantIs(t, say("a", "3", "4"), sqlstore.ErrTooMany)
		// The refused announcement stored nothing, and other agents' clients do not count towards
		// the limit.
		testkit.Must(t, say("b", "4", "5", "1"))
		n, err := l.Directory.CountClients(ctx, time.Time{})
		testkit.Must(t, err)
		pgtest.Equal(t, "clients", n, 5)
	})
}

func TestClients(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l, ctx := open(t, at), t.Context()
		join(t, l, "a", "b")
		names := []string{"a", "B", "é", "Z-1", "z 10", "Z", "zz", "\u00df", "☂ 1", "-"}
		announce(t, l, "a", names[:5]...)
		announce(t, l, "b", names[5:]...)
		testkit.Must(t, l.Directory.Seen(ctx, []string{"b"}, after(time.Minute)))
		testkit.Must(t, l.Directory.RevokeClient(ctx, "zz", "operator", t0))
		testkit.Must(t, l.Directory.RevokeAgent(ctx, "a", "operator", t0))
		var got []directory.Client
		for last := ""; ; {
			page, err := l.Directory.Clients(ctx, directory.ClientQuery{After: last, Limit: 3})
			testkit.Must(t, err)
			if len(page) == 0 {
				break
			}
			if len(page) > 3 {
				t.Fatalf("a page of %d", len(page))
			}
			got = append(got, page...)
			last = page[len(page)-1].Name
		}
		var want []directory.Client
		for i, name := range names {
			c := directory.Client{Name: name, Agent: "a", AgentName: "name of a", Announced: t0, Seen: t0, Revoked: true, Inputs: []string{"load"}, Step: time.Hour}
			if i >= 5 {
				c.Agent, c.AgentName, c.Seen, c.Revoked = "b", "name of b", after(time.Minute), name == "zz"
			}
			want = append(want, c)
		}
		// Sort the clients, because the order of names depends on the database.
		byName := func(a, b directory.Client) int { return strings.Compare(a.Name, b.Name) }
		slices.SortFunc(got, byName)
		slices.SortFunc(want, byName)
		pgtest.Equal(t, "clients", got, want)
	})
}

func TestRevoke(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l, ctx := open(t, at), t.Context()
		join(t, l, "a", "b")
		announce(t, l, "a", named("a", 3)...)
		announce(t, l, "b", named("b", 3)...)
		s := begin(t, l, "run")
		s.ask(0, 0, upTo(6)...)
		testkit.Must(t, l.Directory.RevokeAgent(ctx, "a", "operator", after(time.Second)))
		testkit.Must(t, l.Directory.RevokeClient(ctx, "b00001", "operator", after(time.Second)))
		wantIs(t, l.Directory.RevokeAgent(ctx, "a", "operator", t0), sqlstore.ErrNotFound)
		wantIs(t, l.Directory.RevokeAgent(ctx, "nobody", "operator", t0), sqlstore.ErrNotFound)
		wantIs(t, l.Directory.RevokeClient(ctx, "b00001", "operator", t0), sqlstore.ErrNotFound)
		wantIs(t, l.Directory.RevokeClient(ctx, "nobody", "operator", t0), sqlstore.ErrNotFound)

		pgtest.Equal(t, "a's tasks", len(tasks(t, l, "a", t0)), 0)
		// The withdrawn leases can no longer be extended, and their updates no longer
		// count.
		testkit.Must(t, l.Counter.Extend(ctx, "a", "run", 0, named("a", 3), after(5*time.Hour)))
		pgtest.Equal(t, "counted", s.count(one("a", 0, 0, "a00000"), one("b", 0, 0, "b00001"), one("b", 0, 0, "b00000")), []int{2})
		where, err := l.Counter.Standings(ctx, "a", "run", 0, named("a", 3))
		testkit.Must(t, err)
		for c, is := range where {
			if is.State != Closed {
				t.Errorf("%s of a revoked agent is %v", c, is)
			}
		}
		s.drive(func(d *Drive) error {
			lost, err := d.Withdraw(t0)
			slices.SortFunc(lost, func(a, b Lease) int { return int(a.No - b.No) })
			pgtest.Equal(t, "withdrawn", lost, []Lease{{No: 0}, {No: 1}, {No: 2}, {No: 4}})
			return err
		})
		s.drive(func(d *Drive) error {
			gone, _, err := d.Ask(Asking{Round: 1, Version: 0, Members: upTo(6), Until: after(time.Hour)})
			pgtest.Equal(t, "gone", gone, []int64{0, 1, 2, 4})
			return err
		})
	})
}

// TestRevokeConcurrently revokes agents while their clients are asked and counted. Whatever the
// order, a revoked agent has no usable lease afterwards, and none of its updates is counted any
// more.
func TestRevokeConcurrently(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l, ctx := open(t, at), t.Context()
		agents := named("a", 12)
		join(t, l, agents...)
		for _, a := range agents {
			announce(t, l, a, named(a+"-", 40)...)
		}
		s := begin(t, l, "run")
		round := make(chan int64, 1)
		var wg sync.WaitGroup
		stop := make(chan struct{})
		wg.Go(func() { // the coordinator
			for r := int64(0); ; r++ {
				select {
				case <-stop:
					return
				case round <- r:
				default:
				}
				err := l.Drive(ctx, s.lead, "run", func(d *Drive) error {
					if _, _, err := d.Ask(Asking{Round: r, Version: 0, Members: upTo(480), Until: after(time.Hour)}); err != nil {
						return err
					}
					return d.Save("", Round{Round: r})
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() { // a gateway
			for {
				select {
				case <-stop:
					return
				case r := <-round:
					var batch []Arrival
					for _, a := range agents {
						for _, c := range named(a+"-", 40) {
							batch = append(batch, one(a, r, 0, c))
						}
					}
					if _, err := l.Counter.Count(ctx, "run", batch, sums(batch)); err != nil {
						t.Error(err)
					}
				}
			}
		})
		receipts := map[string]int{}
		counted := func(agent string) (n int) {
			t.Helper()
			testkit.Must(t, l.Store.DB.QueryRow("SELECT count(*) FROM receipts WHERE client LIKE $1", agent+"-%").Scan(&n))
			return n
		}
		for _, a := range agents {
			time.Sleep(5 * time.Millisecond)
			testkit.Must(t, l.Directory.RevokeAgent(ctx, a, "operator", t0))
			var n int
			testkit.Must(t, l.Store.DB.QueryRow("SELECT count(*) FROM leases WHERE agent = $1 AND until > 0", a).Scan(&n))
			if n > 0 {
				t.Errorf("revoked, %s has %d leases", a, n)
			}
			receipts[a] = counted(a)
		}
		close(stop)
		wg.Wait()
		for _, a := range agents {
			pgtest.Equal(t, "what was counted of "+a, counted(a), receipts[a])
		}
		s.balance()
	})
}

func TestLead(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l, ctx := open(t, at), t.Context()
		wantIs(t, l.Drive(ctx, Lead{1}, "run", nil), sqlstore.ErrNotFound)
		a, err := l.Lead(ctx, "a", time.Minute, t0)
		testkit.Must(t, err)
		b, err := l.Lead(ctx, "b", time.Minute, after(time.Minute-time.Millisecond))
		wantIs(t, err, sqlstore.ErrRefused)
		pgtest.Equal(t, "a refused lead", b, Lead{})
		again, err := l.Lead(ctx, "a", time.Minute, after(30*time.Second))
		testkit.Must(t, err)
		pgtest.Equal(t, "the same holder's", again, a)
		_, err = l.Lead(ctx, "b", time.Minute, after(time.Minute))
		wantIs(t, err, sqlstore.ErrRefused) // coordinator a still has the lead
		b, err = l.Lead(ctx, "b", time.Minute, after(90*time.Second))
		testkit.Must(t, err)
		if b.Epoch <= a.Epoch {
			t.Errorf("epoch %d after %d", b.Epoch, a.Epoch)
		}
		testkit.Must(t, l.AddRun(ctx, Run{ID: "run", Created: t0}, "operator"))
		nothing := func(*Drive) error { return nil }
		wantIs(t, l.Drive(ctx, a, "run", nothing), ErrDeposed)
		testkit.Must(t, l.Drive(ctx, b, "run", nothing))
		wantIs(t, l.Drive(ctx, b, "another", nothing), sqlstore.ErrNotFound)

		testkit.Must(t, l.Resign(ctx, a)) // has no effect, because a has lost the lead
		_, err = l.Lead(ctx, "a", time.Minute, after(91*time.Second))
		wantIs(t, err, sqlstore.ErrRefused)
		testkit.Must(t, l.Resign(ctx, b))
		// A released lead remains valid until another coordinator takes it.
		testkit.Must(t, l.Drive(ctx, b, "run", nothing))
		c, err := l.Lead(ctx, "c", time.Minute, after(91*time.Second))
		testkit.Must(t, err)
		if c.Epoch <= b.Epoch {
			t.Errorf("epoch %d after %d", c.Epoch, b.Epoch)
		}
		wantIs(t, l.Drive(ctx, b, "run", nothing), ErrDeposed)
	})
}

// TestLeadConcurrently checks that only one of many concurrent callers gets the lead.
func TestLeadConcurrently(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		ledgers := []*Ledger{open(t, at), open(t, at)}
		last := int64(0)
		for turn := range 4 {
			now := after(time.Duration(turn) * time.Hour)
			var leads, refused atomic.Int64
			var epoch atomic.Int64
			var wg sync.WaitGroup
			for i := range 10 {
				wg.Go(func() {
					lead, err := ledgers[i%2].Lead(t.Context(), fmt.Sprint(turn, " ", i), time.Minute, now)
					switch {
					case err == nil:
						leads.Add(1)
						epoch.Store(lead.Epoch)
					case errors.Is(err, sqlstore.ErrRefused):
						refused.Add(1)
					default:
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if leads.Load() != 1 || refused.Load() != 9 {
				t.Errorf("%d lead, %d were refused", leads.Load(), refused.Load())
			}
			if epoch.Load() <= last {
				t.Errorf("epoch %d after %d", epoch.Load(), last)
			}
			last = epoch.Load()
		}
	})
}
