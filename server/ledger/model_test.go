package ledger

import (
	"database/sql"
	"encoding/binary"
	"flag"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
	"loadstar/server/sqlstore"
)

// turn identifies a turn in the model, which has only one run.
type turn struct {
	round  int64
	client string
}

// model is the expected state of one run, in plain maps.
type model struct {
	leases   map[turn]lease
	receipts map[turn]Receipt
	sums     map[int64]int64 // sums that are not merged, by batch
	batch    int64
	round    int64
	version  int64
	merging  int64 // last batch of the round being merged, or -1
	ended    bool
	asked    map[turn]bool // all turns that were ever asked
	revoked  map[string]bool
}

type lease struct {
	agent   string
	no      int64
	version int64
	until   time.Time
}

// game is a ledger and the model that it must match.
type game struct {
	*site
	t       *rapid.T
	model   model
	agents  []string
	clients []string          // ordered by number
	host    map[string]string // agent of each client
}

// check calls rapid.Check with a smaller number of cases, because each case waits for the
// disk. The flag -rapid.checks overrides the number.
func check(t *testing.T, cases int, law func(*rapid.T)) {
	t.Helper()
	const usual = "100"
	if f := flag.Lookup("rapid.checks"); f.Value.String() == usual {
		testkit.Must(t, f.Value.Set(fmt.Sprint(cases)))
		defer f.Value.Set(usual) // restore the default
	}
	rapid.Check(t, law)
}

// TestModel checks that the ledger matches a simple model after random sequences of
// operations on the turns of a run.
func TestModel(t *testing.T) {
	for _, on := range []struct {
		database string
		cases    int
	}{{"sqlite", testkit.Pick(8, 25)}, {"postgres", testkit.Pick(4, 8)}} {
		t.Run(on.database, func(t *testing.T) {
			at := "sqlite:" + filepath.Join(t.TempDir(), "ledger.db")
			if on.database == "postgres" {
				at = cluster.Database(t)
			}
			l := open(t, at)
			games := 0
			check(t, on.cases, func(t *rapid.T) {
				games++
				play(t, l, fmt.Sprintf("game%05d", games))
			})
		})
	}
}

func play(t *rapid.T, l *Ledger, name string) {
	g := &game{t: t, host: map[string]string{}}
	for i := range 3 {
		g.agents = append(g.agents, fmt.Sprintf("%s-%d", name, i))
	}
	join(t, l, g.agents...)
	// Clients of earlier cases in the same database are also members, with lower numbers.
	var before int64
	testkit.Must(t, l.Store.DB.QueryRow("SELECT count(*) FROM clients c JOIN agents a ON a.id = c.agent WHERE c.revoked = 0 AND a.revoked = 0").Scan(&before))
	for i := range 9 {
		c := fmt.Sprintf("%s-%d", name, i)
		g.clients = append(g.clients, c)
		g.host[c] = g.agents[i%3]
		announce(t, l, g.host[c], c)
	}
	g.site = begin(t, l, name)
	g.model = model{
		leases: map[turn]lease{}, receipts: map[turn]Receipt{}, sums: map[int64]int64{}, merging: -1,
		asked: map[turn]bool{}, revoked: map[string]bool{},
	}
	g.drive(func(d *Drive) error { return d.Save("", Round{Round: 0}) })
	first := before
	client := rapid.SampledFrom(g.clients)
	agent := rapid.SampledFrom(g.agents)
	moments := rapid.Map(rapid.IntRange(1, 20), func(n int) time.Time { return after(time.Duration(n) * time.Minute) })
	m := &g.model
	running := func(t *rapid.T) {
		if m.ended {
			t.Skip("the run has ended")
		}
	}
	t.Repeat(map[string]func(*rapid.T){
		"ask": func(t *rapid.T) {
			running(t)
			var members []int64
			until := moments.Draw(t, "until")
			want := map[turn]lease{}
			var gone []int64
			for _, c := range rapid.SliceOfDistinct(client, rapid.ID).Draw(t, "clients") {
				if m.asked[turn{m.round, c}] {
					continue // a round.Machine never asks a client twice in a round
				}
				no := first + int64(slices.Index(g.clients, c))
				members = append(members, no)
				if m.revoked[c] || m.revoked[g.host[c]] {
					gone = append(gone, no)
					continue
				}
				want[turn{m.round, c}] = lease{g.host[c], no, m.version, until}
			}
			g.drive(func(d *Drive) error {
				got, _, err := d.Ask(Asking{Round: m.round, Version: m.version, Members: members, Until: until})
				pgtest.Equal(t, "gone", got, gone)
				return err
			})
			maps.Copy(m.leases, want)
			for x := range want {
				m.asked[x] = true
			}
		},
		"count": func(t *rapid.T) {
			var arrivals []Arrival
			for range rapid.IntRange(1, 5).Draw(t, "arrivals") {
				// Most arrivals are from a client that was asked.
				a := Arrival{Agent: agent.Draw(t, "agent"), Round: rapid.Int64Range(0, m.round).Draw(t, "round"), Version: m.version}
				clients := rapid.SliceOfNDistinct(client, 1, 3, rapid.ID).Draw(t, "shares")
				if rapid.IntRange(0, 3).Draw(t, "right") > 0 {
					a.Agent = g.host[clients[0]]
					clients = slices.DeleteFunc(clients, func(c string) bool { return g.host[c] != a.Agent })
				}
				if x, ok := m.leases[turn{a.Round, clients[0]}]; ok && rapid.IntRange(0, 9).Draw(t, "version") > 0 {
					a.Version = x.version
				}
				for _, c := range clients {
					a.Shares = append(a.Shares, Share{Client: c, Examples: 1, TrainLoss: 0.5})
				}
				arrivals = append(arrivals, a)
			}
			var want []int
			sum := int64(0)
			for i, a := range arrivals {
				due := !m.ended
				for _, s := range a.Shares {
					x, ok := m.leases[turn{a.Round, s.Client}]
					due = due && ok && !x.until.IsZero() && x.agent == a.Agent && x.version == a.Version
				}
				if !due {
					continue
				}
				want = append(want, i)
				for _, s := range a.Shares {
					x := turn{a.Round, s.Client}
					m.receipts[x] = Receipt{m.leases[x].no, a.Round, a.Version, unnumbered, 0.5}
					delete(m.leases, x)
					sum += worth(a.Round, s.Client)
				}
			}
			got, err := l.Counter.Count(t.Context(), name, arrivals, sums(arrivals))
			testkit.Must(t, err)
			pgtest.Equal(t, "counted", got, want)
			if len(want) > 0 {
				batch := l.newest(t, name)
				if batch <= m.batch {
					t.Fatalf("batch %d after %d", batch, m.batch)
				}
				m.batch = batch
				m.sums[m.batch] = sum
				for at, x := range m.receipts {
					if x.Batch == unnumbered {
						x.Batch = batch
						m.receipts[at] = x
					}
				}
			}
		},
		"extend": func(t *rapid.T) {
			who, round, until := agent.Draw(t, "agent"), rapid.Int64Range(0, m.round).Draw(t, "round"), moments.Draw(t, "until")
			clients := rapid.SliceOfDistinct(client, rapid.ID).Draw(t, "clients")
			testkit.Must(t, l.Counter.Extend(t.Context(), who, name, round, clients, until))
			for _, c := range clients {
				if x, ok := m.leases[turn{round, c}]; ok && x.agent == who && !x.until.IsZero() && x.until.Before(until) {
					x.until = until
					m.leases[turn{round, c}] = x
				}
			}
		},
		"decline": func(t *rapid.T) {
			who, round := agent.Draw(t, "agent"), rapid.Int64Range(0, m.round).Draw(t, "round")
			clients := rapid.SliceOfDistinct(client, rapid.ID).Draw(t, "clients")
			testkit.Must(t, l.Counter.Decline(t.Context(), who, name, round, clients, "", ""))
			for _, c := range clients {
				if x, ok := m.leases[turn{round, c}]; ok && x.agent == who {
					x.until = time.Time{}
					m.leases[turn{round, c}] = x
				}
			}
		},
		"withdraw": func(t *rapid.T) {
			running(t)
			now := moments.Draw(t, "now")
			want := map[Lease]bool{}
			maps.DeleteFunc(m.leases, func(at turn, x lease) bool {
				if x.until.After(now) {
					return false
				}
				want[Lease{No: x.no, Round: at.round, Version: x.version, Expired: !x.until.IsZero()}] = true
				return true
			})
			g.drive(func(d *Drive) error {
				got, err := d.Withdraw(now)
				pgtest.Equal(t, "withdrawn", len(got), len(want))
				for _, x := range got {
					if !want[x] {
						t.Errorf("%+v was withdrawn", x)
					}
				}
				return err
			})
		},
		"close": func(t *rapid.T) {
			running(t)
			if m.merging >= 0 {
				t.Skip("the round before is not merged yet")
			}
			carries, abandon := rapid.Bool().Draw(t, "carries"), rapid.Bool().Draw(t, "abandon")
			state := RoundMerging
			if abandon {
				state = RoundAbandoned
			}
			g.drive(func(d *Drive) error {
				if err := d.Close(Round{Round: m.round, Version: m.version, State: state}, "", carries); err != nil {
					return err
				}
				if abandon {
					return d.Save("", Round{Round: m.round + 1})
				}
				return nil
			})
			if !carries {
				clear(m.leases)
			}
			m.merging = m.batch
			if abandon {
				m.merging = -1
				m.round++
				clear(m.sums)
			}
		},
		"publish": func(t *rapid.T) {
			running(t)
			if m.merging < 0 {
				t.Skip("nothing is being merged")
			}
			g.drive(func(d *Drive) error {
				r, ok, err := d.Merging()
				pgtest.Equal(t, "merging", fmt.Sprint(r.Round, r.LastBatch, ok), fmt.Sprint(m.round, m.merging, true))
				if err != nil {
					return err
				}
				r.Version = m.version
				if err := d.Publish(r, Version{Weights: fmt.Sprint("w", m.version+1), Control: ""}, ""); err != nil {
					return err
				}
				return d.Save("", Round{Round: m.round + 1})
			})
			maps.DeleteFunc(m.sums, func(batch, _ int64) bool { return batch <= m.merging })
			m.merging = -1
			m.round++
			m.version++
		},
		"revoke": func(t *rapid.T) {
			if rapid.IntRange(0, 2).Draw(t, "seldom") > 0 {
				t.Skip("not now")
			}
			who := rapid.SampledFrom(slices.Concat(g.clients, g.agents)).Draw(t, "who")
			if m.revoked[who] {
				t.Skip("it is")
			}
			if slices.Contains(g.agents, who) {
				testkit.Must(t, l.Directory.RevokeAgent(t.Context(), who, "operator", t0))
			} else {
				testkit.Must(t, l.Directory.RevokeClient(t.Context(), who, "operator", t0))
			}
			m.revoked[who] = true
			for at, x := range m.leases {
				if x.agent == who || at.client == who {
					x.until = time.Time{}
					m.leases[at] = x
				}
			}
		},
		"stop": func(t *rapid.T) {
			running(t)
			if rapid.IntRange(0, 9).Draw(t, "seldom") > 0 {
				t.Skip("not now")
			}
			testkit.Must(t, l.StopRun(t.Context(), name, "operator", t0))
			m.ended = true
			clear(m.leases)
			clear(m.sums)
		},
		"": g.compare,
	})
	if !m.ended {
		testkit.Must(t, l.StopRun(t.Context(), name, "operator", t0))
	}
}

// compare compares everything that the ledger returns for the run with the model.
func (g *game) compare(t *rapid.T) {
	m, ctx := &g.model, t.Context()
	for _, a := range g.agents {
		var want []string
		for at, x := range m.leases {
			if x.agent == a && x.until.After(t0) {
				want = append(want, fmt.Sprint(Task{Turn{g.run, at.round, at.client}, x.version, x.until}))
			}
		}
		var got []string
		for _, x := range tasks(t, g.Ledger, a, t0) {
			got = append(got, fmt.Sprint(x))
		}
		slices.Sort(got)
		slices.Sort(want)
		pgtest.Equal(t, "tasks of "+a, got, want)
		for round := range m.round + 1 {
			where, err := g.Counter.Standings(ctx, a, g.run, round, g.clients)
			testkit.Must(t, err)
			for _, c := range g.clients {
				want := Standing{}
				if x, ok := m.leases[turn{round, c}]; ok && x.agent == a && !x.until.IsZero() {
					want = Standing{Asked, x.version}
				} else if x, ok := m.receipts[turn{round, c}]; ok && g.host[c] == a {
					want = Standing{Counted, x.Version}
				}
				pgtest.Equal(t, fmt.Sprintf("standing of %s in round %d", c, round), where[c], want)
			}
		}
	}
	pgtest.Equal(t, "batch", g.newest(t, g.run), m.batch)
	receipts := map[turn]Receipt{}
	testkit.Must(t, sqlstore.Query(ctx, g.Store.DB, func(r *sql.Rows) error {
		var at turn
		var x Receipt
		err := r.Scan(&at.client, &x.No, &x.Round, &x.Version, &x.Batch, &x.TrainLoss)
		at.round = x.Round
		receipts[at] = x
		return err
	}, "SELECT client, no, round, version, batch, train_loss FROM receipts WHERE run = $1", g.run))
	pgtest.Equal(t, "receipts", receipts, m.receipts)
	sum, n := int64(0), 0
	testkit.Must(t, g.Partials(ctx, g.run, m.batch, func(p Partial) error {
		sum += int64(binary.LittleEndian.Uint64(p.Numbers))
		n++
		return nil
	}))
	wantSum := int64(0)
	for _, x := range m.sums {
		wantSum += x
	}
	pgtest.Equal(t, "sums", sum, wantSum)
	if n < len(m.sums) {
		t.Errorf("%d sums of %d batches", n, len(m.sums))
	}
}
