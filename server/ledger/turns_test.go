package ledger

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
)

// tasks returns an agent's leases that have not expired.
func tasks(t pgtest.T, l *Ledger, agent string, now time.Time) []Task {
	t.Helper()
	all, err := l.Counter.Tasks(context.Background(), agent)
	testkit.Must(t, err)
	return slices.DeleteFunc(all, func(x Task) bool { return !x.Until.After(now) })
}

func TestTasks(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l := open(t, at)
		join(t, l, "a", "b")
		announce(t, l, "a", "a1", "a2", "a3")
		announce(t, l, "b", "b1")
		first, second := begin(t, l, "r1"), begin(t, l, "r2")
		second.ask(0, 0, 0)
		first.ask(1, 0, 2)
		first.ask(0, 0, 1, 0, 3)
		task := func(run string, round int64, client string) Task {
			return Task{Turn: Turn{run, round, client}, Until: after(time.Hour)}
		}
		all := []Task{task("r1", 0, "a1"), task("r1", 0, "a2"), task("r1", 1, "a3"), task("r2", 0, "a1")}
		pgtest.Equal(t, "a's", tasks(t, l, "a", t0), all)
		pgtest.Equal(t, "b's", tasks(t, l, "b", t0), []Task{task("r1", 0, "b1")})
		pgtest.Equal(t, "nobody's", len(tasks(t, l, "c", t0)), 0)
		pgtest.Equal(t, "just in time", len(tasks(t, l, "a", after(time.Hour-time.Millisecond))), 4)
		pgtest.Equal(t, "too late", len(tasks(t, l, "a", after(time.Hour))), 0)
	})
}

func TestExtendAndDecline(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l, ctx := open(t, at), t.Context()
		join(t, l, "a", "b")
		names := named("a", 1100) // enough for more than two statements
		announce(t, l, "a", names...)
		announce(t, l, "b", "b")
		s := begin(t, l, "run")
		s.ask(0, 0, upTo(1101)...)
		s.ask(1, 0, 0)
		until := func(client string, round int64) time.Duration {
			t.Helper()
			var ms int64
			testkit.Must(t, l.Store.DB.QueryRow("SELECT until FROM leases WHERE run = 'run' AND round = $1 AND client = $2", round, client).Scan(&ms))
			return time.UnixMilli(ms).Sub(t0)
		}
		testkit.Must(t, l.Counter.Extend(ctx, "a", "run", 0, append(names[:1050:1050], "b", "nobody"), after(2*time.Hour)))
		pgtest.Equal(t, "extended", until(names[0], 0), 2*time.Hour)
		pgtest.Equal(t, "extended", until(names[1049], 0), 2*time.Hour)
		pgtest.Equal(t, "not named", until(names[1050], 0), time.Hour)
		pgtest.Equal(t, "another round's", until(names[0], 1), time.Hour)
		pgtest.Equal(t, "another agent's", until("b", 0), time.Hour)
		testkit.Must(t, l.Counter.Extend(ctx, "a", "run", 0, names[:1], after(90*time.Minute)))
		pgtest.Equal(t, "never shorter", until(names[0], 0), 2*time.Hour)
		testkit.Must(t, l.Counter.Extend(ctx, "a", "another", 0, names[:1], after(3*time.Hour)))
		testkit.Must(t, l.Counter.Extend(ctx, "a", "run", 0, nil, after(3*time.Hour)))
		pgtest.Equal(t, "of another run", until(names[0], 0), 2*time.Hour)

		testkit.Must(t, l.Counter.Decline(ctx, "a", "run", 0, append(names[3:600:600], "b"), "data", "no readings"))
		testkit.Must(t, l.Counter.Extend(ctx, "a", "run", 0, names, after(5*time.Hour))) // a declined lease cannot be extended
		pgtest.Equal(t, "another agent's", until("b", 0), time.Hour)
		pgtest.Equal(t, "tasks", len(tasks(t, l, "a", t0)), 1101-597)
		where, err := l.Counter.Standings(ctx, "a", "run", 0, names[2:4])
		testkit.Must(t, err)
		pgtest.Equal(t, "standings", fmt.Sprint(where[names[2]].State, where[names[3]].State), fmt.Sprint(Asked, Closed))
		pgtest.Equal(t, "a declined turn counts", s.count(one("a", 0, 0, names[3]), one("a", 0, 0, names[2], names[4])), nil)
		s.drive(func(d *Drive) error {
			lost, err := d.Withdraw(t0)
			pgtest.Equal(t, "withdrawn", len(lost), 597)
			return err
		})
	})
}

func TestStandings(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		s, ctx := plant(t, at, 1200), t.Context()
		join(t, s.Ledger, "other")
		s.ask(4, 3, upTo(1000)...)
		names := named("c", 1200)
		s.count(one("agent", 4, 3, names[:600]...))
		want := map[string]Standing{}
		for i, c := range names[:1000] {
			want[c] = Standing{Asked, 3}
			if i < 600 {
				want[c] = Standing{Counted, 3}
			}
		}
		stand := func(agent, run string, round int64, clients ...string) map[string]Standing {
			t.Helper()
			got, err := s.Counter.Standings(ctx, agent, run, round, clients)
			testkit.Must(t, err)
			return got
		}
		pgtest.Equal(t, "standings", stand("agent", "run", 4, append(names, names[:3]...)...), want)
		pgtest.Equal(t, "nobody's", stand("agent", "run", 4), nil)
		pgtest.Equal(t, "another agent's", stand("other", "run", 4, names[0], names[700]), nil)
		pgtest.Equal(t, "another round's", stand("agent", "run", 3, names[0], names[700]), nil)
		pgtest.Equal(t, "another run's", stand("agent", "another", 4, names[0], names[700]), nil)

		// An agent that takes over a client also sees the client's earlier turns.
		testkit.Must(t, s.Directory.RevokeAgent(ctx, "agent", "operator", t0))
		_, err := s.Directory.FreeClients(ctx, "agent", "", "operator", t0)
		testkit.Must(t, err)
		announce(t, s.Ledger, "other", names[0], names[700])
		pgtest.Equal(t, "taken over", stand("other", "run", 4, names[0], names[700]), map[string]Standing{names[0]: {Counted, 3}})
	})
}

func TestCount(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l, ctx := open(t, at), t.Context()
		join(t, l, "a", "b")
		announce(t, l, "a", named("a", 9)...)
		announce(t, l, "b", "b")
		s := begin(t, l, "run")
		a := func(i int) string { return fmt.Sprintf("a%05d", i) }
		s.ask(0, 0, 0, 1, 2, 3, 4, 5, 6, 9)
		s.ask(1, 4, 7)
		for _, c := range []struct {
			name     string
			arrivals []Arrival
			want     []int
		}{
			{"nothing", nil, nil},
			{"of nobody", []Arrival{one("a", 0, 0)}, nil},
			{"another's turn", []Arrival{one("b", 0, 0, a(0))}, nil},
			{"another's name", []Arrival{one("", 0, 0, a(0))}, nil},
			{"another version", []Arrival{one("a", 0, 1, a(0)), one("a", 0, -1, a(0))}, nil},
			{"another round", []Arrival{one("a", 1, 0, a(0)), one("a", 1, 4, a(0))}, nil},
			{"not asked", []Arrival{one("a", 0, 0, a(8)), one("a", 0, 0, "nobody")}, nil},
			{"a sum with one that is not asked", []Arrival{one("a", 0, 0, a(0), a(8))}, nil},
			{"a sum with another's", []Arrival{one("a", 0, 0, a(0), "b")}, nil},
			{"twice in a batch", []Arrival{one("a", 0, 0, a(0)), one("a", 0, 0, a(0))}, []int{0}},
			{"again", []Arrival{one("a", 0, 0, a(0))}, nil},
			{"a sum with one that is counted", []Arrival{one("a", 0, 0, a(0), a(1)), one("b", 0, 0, "b")}, []int{1}},
			{"sums that overlap, and two rounds", []Arrival{one("a", 0, 0, a(8)), one("a", 0, 0, a(1), a(2)), one("a", 0, 0, a(2), a(3)), one("a", 0, 0, a(3), a(4)), one("a", 1, 4, a(7))}, []int{1, 3, 4}},
		} {
			leases, receipts := s.balance()
			var folded []int
			got, err := l.Counter.Count(ctx, "run", c.arrivals, func(counted []int) ([]Partial, []Single, error) {
				folded = slices.Clone(counted)
				return sums(c.arrivals)(counted)
			})
			testkit.Must(t, err)
			pgtest.Equal(t, c.name, got, c.want)
			pgtest.Equal(t, c.name+": folded", folded, c.want)
			n := 0
			for _, i := range c.want {
				n += len(c.arrivals[i].Shares)
			}
			nowLeases, nowReceipts := s.balance()
			pgtest.Equal(t, c.name+": leases", nowLeases, leases-n)
			pgtest.Equal(t, c.name+": receipts", nowReceipts, receipts+n)
		}
		want := []Receipt{
			{No: 0, Batch: 1, TrainLoss: 0.5},
			{No: 9, Batch: 2, TrainLoss: 0.5},
			{No: 1, Batch: 3, TrainLoss: 0.5},
			{No: 2, Batch: 3, TrainLoss: 0.5},
			{No: 3, Batch: 3, TrainLoss: 0.5},
			{No: 4, Batch: 3, TrainLoss: 0.5},
			{No: 7, Round: 1, Version: 4, Batch: 3, TrainLoss: 0.5},
		}
		pgtest.Equal(t, "receipts", s.receipts(), want)
		rounds, err := l.Rounds(ctx, "run", 0, 9)
		testkit.Must(t, err)
		pgtest.Equal(t, "bytes and updates of the open round", fmt.Sprint(rounds[0].Bytes, rounds[0].Counted), "500 7")
		_, err = l.Counter.Count(ctx, "nothing", nil, nil)
		wantIs(t, err, ErrNotFound)
	})
}

// TestCountNothing checks that a call of Count that counts no arrival changes nothing.
func TestCountNothing(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		s, ctx := plant(t, at, 3), t.Context()
		testkit.Must(t, s.AddRun(ctx, Run{ID: "waiting", Created: t0}, "operator"))
		s.ask(0, 0, 0, 1)
		before := pgtest.Dump(t, s.Store.DB, tables...)
		arrivals := []Arrival{one("agent", 0, 0, "c00000"), one("agent", 0, 0, "c00001")}
		same := func(what string) {
			t.Helper()
			pgtest.Equal(t, what, pgtest.Dump(t, s.Store.DB, tables...), before)
		}
		broken := errors.New("broken")
		counted, err := s.Counter.Count(ctx, "run", arrivals, func([]int) ([]Partial, []Single, error) { return nil, nil, broken })
		wantIs(t, err, broken)
		pgtest.Equal(t, "counted by a fold that fails", counted, nil)
		same("a fold that fails")

		// Count fails if fold returns two sums of one version.
		_, err = s.Counter.Count(ctx, "run", arrivals, func([]int) ([]Partial, []Single, error) {
			return []Partial{{Version: 0, Numbers: []byte{1}}, {Version: 0, Numbers: []byte{2}}}, nil, nil
		})
		if err == nil {
			t.Error("two sums of one version")
		}
		same("two sums of one version")

		ctx, cancel := context.WithCancel(ctx)
		_, err = s.Counter.Count(ctx, "run", arrivals, func(counted []int) ([]Partial, []Single, error) {
			cancel()
			return sums(arrivals)(counted)
		})
		wantIs(t, err, context.Canceled)
		same("a cancelled count")

		counted, err = s.Counter.Count(t.Context(), "waiting", arrivals, sums(arrivals))
		testkit.Must(t, err)
		pgtest.Equal(t, "counted for a run that waits", counted, nil)
		same("a run that waits")
		pgtest.Equal(t, "counted in the end", s.count(arrivals...), []int{0, 1})
	})
}

// TestCountConcurrently checks that every turn counts exactly once if it is repeatedly passed
// to many concurrent counters, both individually and in sums. Meanwhile the coordinator must
// see each receipt once, in the order of batches.
func TestCountConcurrently(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		const turns, workers = 200, 5
		s := plant(t, at, turns)
		second := open(t, at)
		s.ask(0, 0, upTo(turns)...)
		s.ask(1, 0, upTo(turns)...)
		names := named("c", turns)
		var all []Arrival
		for _, c := range names {
			all = append(all, one("agent", 0, 0, c))
		}
		for part := range slices.Chunk(names, 7) {
			all = append(all, one("agent", 1, 0, part...))
		}
		for i := 0; i+3 <= turns; i += 5 { // sums that overlap with the other arrivals
			all = append(all, one("agent", 1, 0, names[i:i+3]...))
		}
		var given atomic.Int64
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(1, uint64(w)))
				mine := slices.Clone(all)
				rng.Shuffle(len(mine), func(i, k int) { mine[i], mine[k] = mine[k], mine[i] })
				for part := range slices.Chunk(mine, 1+rng.IntN(40)) {
					l := []*Ledger{s.Ledger, second}[rng.IntN(2)]
					counted, err := l.Counter.Count(t.Context(), "run", part, sums(part))
					if err != nil {
						t.Error(err)
						return
					}
					for _, i := range counted {
						given.Add(int64(len(part[i].Shares)))
					}
				}
			})
		}
		done := make(chan struct{})
		var watched sync.WaitGroup
		watched.Go(func() {
			seen, last := 0, int64(0)
			for end := false; !end; {
				select {
				case <-done:
					end = true
				default:
				}
				err := second.Drive(t.Context(), s.lead, "run", func(d *Drive) error {
					since, _, err := d.Receipts(last)
					for _, x := range since {
						if x.Batch < last {
							t.Errorf("batch %d after %d", x.Batch, last)
						}
						last = x.Batch
					}
					if last != d.Run.Batch {
						t.Errorf("receipts up to batch %d of %d", last, d.Run.Batch)
					}
					seen += len(since)
					return err
				})
				if err != nil {
					t.Error(err)
					return
				}
				// Without this pause, SQLite would always admit the same writer.
				time.Sleep(5 * time.Millisecond)
			}
			if int64(seen) != given.Load() {
				t.Errorf("the coordinator saw %d receipts, want %d", seen, given.Load())
			}
		})
		wg.Wait()
		close(done)
		watched.Wait()
		leases, receipts := s.balance()
		if int64(receipts) != given.Load() || leases+receipts != 2*turns || receipts < turns {
			t.Errorf("%d leases, %d receipts, %d given", leases, receipts, given.Load())
		}
		for _, x := range s.receipts()[:10] {
			if x.Version != 0 {
				t.Errorf("%+v", x)
			}
		}
	})
}

// TestStandingsConcurrently checks that a turn never appears as closed while it is being
// counted.
func TestStandingsConcurrently(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		const turns = 600
		s := plant(t, at, turns)
		second := open(t, at)
		s.ask(0, 0, upTo(turns)...)
		names := named("c", turns)
		done := make(chan struct{})
		var wg sync.WaitGroup
		var looks atomic.Int64
		for w := range 2 {
			wg.Go(func() {
				l := []*Ledger{s.Ledger, second}[w%2]
				before := map[string]Standing{}
				for end := false; !end; {
					select {
					case <-done:
						end = true
					default:
					}
					where, err := l.Counter.Standings(t.Context(), "agent", "run", 0, names)
					if err != nil {
						t.Error(err)
						return
					}
					for _, c := range names {
						if where[c].State < max(before[c].State, Asked) {
							t.Errorf("%s is %v, but was %v", c, where[c], before[c])
							return
						}
					}
					before = where
					looks.Add(1)
				}
				for _, c := range names {
					if before[c].State != Counted {
						t.Errorf("%s is %v in the end", c, before[c])
						return
					}
				}
			})
		}
		for part := range slices.Chunk(names, 15) {
			var batch []Arrival
			for _, c := range part {
				batch = append(batch, one("agent", 0, 0, c))
			}
			s.count(batch...)
		}
		close(done)
		wg.Wait()
		t.Logf("%d reads", looks.Load())
	})
}

// TestNoDeadlock checks that no operation fails because of a deadlock. It runs all operations
// on the same leases concurrently and in random order: agents extend and decline; gateways
// count; the coordinator withdraws, closes and asks; and an operator revokes.
func TestNoDeadlock(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		const turns = 600
		s, ctx := plant(t, at, turns), t.Context()
		names := named("c", turns)
		var round atomic.Int64
		s.ask(0, 0, upTo(turns)...)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		forever := func(do func(rng *rand.Rand) error) {
			seed := rand.Uint64()
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(seed, 1))
				for {
					select {
					case <-stop:
						return
					default:
					}
					if err := do(rng); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		some := func(rng *rand.Rand, n int) []string {
			all := slices.Clone(names)
			rng.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
			return all[:n]
		}
		for range 3 {
			forever(func(rng *rand.Rand) error {
				return s.Counter.Extend(ctx, "agent", "run", round.Load(), some(rng, 550), after(time.Hour+time.Duration(rng.IntN(1e9))*time.Millisecond))
			})
		}
		forever(func(rng *rand.Rand) error {
			return s.Counter.Decline(ctx, "agent", "run", round.Load(), some(rng, 50), "", "")
		})
		for range 2 {
			forever(func(rng *rand.Rand) error {
				var batch []Arrival
				for _, c := range some(rng, 64) {
					batch = append(batch, one("agent", round.Load(), 0, c))
				}
				_, err := s.Counter.Count(ctx, "run", batch, sums(batch))
				return err
			})
		}
		forever(func(rng *rand.Rand) error {
			return s.Drive(ctx, s.lead, "run", func(d *Drive) error {
				_, err := d.Withdraw(t0)
				return err
			})
		})
		forever(func(rng *rand.Rand) error {
			c := names[rng.IntN(turns)]
			err := s.Directory.RevokeClient(ctx, c, "operator", t0)
			if errors.Is(err, ErrNotFound) {
				return nil
			}
			return err
		})
		for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); {
			r := round.Load()
			s.drive(func(d *Drive) error {
				if err := d.Close(Round{Round: r, State: RoundAbandoned}, "", false); err != nil {
					return err
				}
				if _, _, err := d.Ask(Asking{Round: r + 1, Version: 0, Members: upTo(turns), Until: after(time.Hour)}); err != nil {
					return err
				}
				return d.Save("", Round{Round: r + 1})
			})
			round.Add(1)
		}
		close(stop)
		wg.Wait()
		t.Logf("%d rounds", round.Load())
	})
}
