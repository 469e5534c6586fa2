package ledger

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
)

// adopt adopts a hub's task and returns the clients that cannot take part.
func (s *site) adopt(a Adoption) []string {
	s.t.Helper()
	gone, _, err := s.Relay.Adopt(context.Background(), s.lead, a, t0)
	testkit.Must(s.t, err)
	return gone
}

// region returns a ledger with a run that a hub drives, and with an agent that hosts the
// given number of clients.
func region(t *testing.T, at string, clients int) *site {
	t.Helper()
	l := open(t, at)
	join(t, l, "agent")
	announce(t, l, "agent", named("c", clients)...)
	lead, err := l.Lead(t.Context(), "region", time.Hour, t0)
	testkit.Must(t, err)
	return &site{l, t, lead, "run", 0}
}

// handed returns a task of the hub's run for the given clients.
func handed(round, version int64, clients ...string) Adoption {
	return Adoption{
		Run: Run{ID: "run", Name: "name", Plan: "plan", PlanBlob: "p", Fleet: 9}, Round: round, Version: version,
		Blobs: Version{Weights: fmt.Sprint("w", version), Control: ""}, Clients: clients, Until: after(time.Hour),
	}
}

func TestAdopt(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		s, ctx := region(t, at, 200), t.Context()
		names := named("c", 200)
		testkit.Must(t, s.Directory.RevokeClient(ctx, names[3], "operator", t0))
		pgtest.Equal(t, "gone", s.adopt(handed(4, 2, append(names, "nobody")...)), []string{names[3], "nobody"})
		r, err := s.Run(ctx, "run")
		testkit.Must(t, err)
		pgtest.Equal(t, "run", r, Run{
			ID: "run", Name: "name", Plan: "plan", PlanBlob: "p", State: Running, Fleet: 9, Created: t0, Started: t0, Remote: true,
		})
		v, err := s.Version(ctx, "run", 2)
		testkit.Must(t, err)
		pgtest.Equal(t, "version", v, Version{Weights: "w2", Control: ""})
		wantIs(t, s.StopRun(ctx, "run", "operator", t0), ErrRefused)
		leased, err := s.Relay.Leased(ctx)
		testkit.Must(t, err)
		pgtest.Equal(t, "leases", len(leased), 199)
		pgtest.Equal(t, "lease", leased[0], Task{Turn{"run", 4, names[0]}, 2, after(time.Hour)})

		// Repeat the task after one client was counted and one declined. No client gets a
		// second turn.
		s.count(one("agent", 4, 2, names[0]))
		testkit.Must(t, s.Counter.Decline(ctx, "agent", "run", 4, names[1:2], "", ""))
		before := pgtest.Dump(t, s.Store.DB, tables...)
		pgtest.Equal(t, "gone", s.adopt(handed(4, 2, names[:5]...)), []string{names[3]})
		pgtest.Equal(t, "a repeated task", pgtest.Dump(t, s.Store.DB, tables...), before)

		lapsed, err := s.Relay.WithdrawExpired(ctx, s.lead, t0)
		testkit.Must(t, err)
		pgtest.Equal(t, "lapsed", lapsed, []Task{{Turn: Turn{"run", 4, names[1]}, Version: 2}})
		lapsed, err = s.Relay.WithdrawExpired(ctx, s.lead, after(time.Hour))
		testkit.Must(t, err)
		pgtest.Equal(t, "lapsed", len(lapsed), 197)
		_, _, err = s.Relay.Adopt(ctx, Lead{99}, handed(5, 2, names...), t0)
		wantIs(t, err, ErrDeposed)
		_, err = s.Relay.WithdrawExpired(ctx, Lead{99}, t0)
		wantIs(t, err, ErrDeposed)
	})
}

// TestRelay checks the ledger of a region that sends its counted results to a hub, which
// counts some of them.
func TestRelay(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		s, ctx := region(t, at, 20), t.Context()
		names := named("c", 20)
		s.adopt(handed(0, 0, names[:10]...))
		s.adopt(handed(1, 1, names[10:]...))
		gather := func(ready ...int64) {
			t.Helper()
			testkit.Must(t, s.Relay.Gather(ctx, s.lead, "run", ByRound, func(round int64) bool { return slices.Contains(ready, round) }))
		}
		sendings := func() []Sending {
			t.Helper()
			all, err := s.Relay.Sendings(ctx, "run")
			testkit.Must(t, err)
			for i := range all {
				testkit.Must(t, s.Relay.Parts(ctx, "run", &all[i]))
				var got, want int64
				for _, p := range all[i].Parts {
					got += int64(binary.LittleEndian.Uint64(p))
				}
				var evaluation Evaluation
				for _, x := range all[i].Shares {
					want += worth(all[i].Round, x.Client)
					evaluation.Add(scored(all[i].Round, x.Client))
				}
				pgtest.Equal(t, "evaluation of "+all[i].ID, all[i].Evaluation, evaluation)
				if got != want || all[i].Single {
					t.Errorf("sending %s: its sum is off by %d", all[i].ID, got-want)
				}
			}
			return all
		}
		turnStates := func(round int64, clients ...string) (is []TurnState) {
			t.Helper()
			where, err := s.Counter.Standings(ctx, "agent", "run", round, clients)
			testkit.Must(t, err)
			for _, c := range clients {
				is = append(is, where[c].State)
			}
			return is
		}
		s.count(one("agent", 0, 0, names[0], names[1]), one("agent", 0, 0, names[2]))
		s.count(one("agent", 1, 1, names[10]))
		s.count(one("agent", 0, 0, names[3]))
		open, err := s.Relay.Ungathered(ctx, "run")
		testkit.Must(t, err)
		pgtest.Equal(t, "ungathered", len(open), 5)
		gather()
		pgtest.Equal(t, "sendings", len(sendings()), 0)
		gather(0)
		first := sendings()
		pgtest.Equal(t, "sendings", len(first), 1)
		pgtest.Equal(t, "parts", len(first[0].Parts), 2)
		pgtest.Equal(t, "shares", first[0].Shares, one("", 0, 0, names[:4]...).Shares)
		open, err = s.Relay.Ungathered(ctx, "run")
		testkit.Must(t, err)
		pgtest.Equal(t, "ungathered", open, []Task{{Turn: Turn{"run", 1, names[10]}, Version: 1}})

		// Later results go into a new sending, and existing sendings do not change.
		s.count(one("agent", 0, 0, names[4]))
		gather(0, 1)
		gather(0, 1)
		all := sendings()
		pgtest.Equal(t, "sendings", len(all), 3)
		if !slices.ContainsFunc(all, func(x Sending) bool { return fmt.Sprint(x) == fmt.Sprint(first[0]) }) {
			t.Errorf("the first sending changed: %v", all)
		}
		pgtest.Equal(t, "states", turnStates(0, names[0], names[4], names[5]), []TurnState{Held, Held, Asked})
		testkit.Must(t, s.Relay.Decided(ctx, s.lead, "run", first[0].ID, true))
		for _, x := range all {
			if x.Round == 1 {
				testkit.Must(t, s.Relay.Decided(ctx, s.lead, "run", x.ID, false))
			}
		}
		pgtest.Equal(t, "states", turnStates(0, names[0], names[4], names[5]), []TurnState{Counted, Held, Asked})
		pgtest.Equal(t, "states", turnStates(1, names[10], names[11]), []TurnState{Closed, Asked})
		left := sendings()
		pgtest.Equal(t, "sendings", len(left), 1)
		pgtest.Equal(t, "the last", left[0].Shares, one("", 0, 0, names[4]).Shares)
		testkit.Must(t, s.Relay.Decided(ctx, s.lead, "run", first[0].ID, true)) // the second call has no effect
		pgtest.Equal(t, "sendings", len(sendings()), 1)
		wantIs(t, s.Relay.Decided(ctx, Lead{99}, "run", left[0].ID, true), ErrDeposed)
		wantIs(t, s.Relay.Gather(ctx, Lead{99}, "run", ByRound, nil), ErrDeposed)
	})
}

// TestClosed checks what happens when the hub closes the turn of one client in a sending.
// Batches without this client are sent again, and the other clients in its batch train again.
func TestClosed(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		s, ctx := region(t, at, 200), t.Context()
		names := named("c", 200)
		s.adopt(handed(3, 1, names...))
		s.count(one("agent", 3, 1, names[:100]...))
		s.count(one("agent", 3, 1, names[100:150]...), one("agent", 3, 1, names[150:198]...))
		s.count(one("agent", 3, 1, names[198]))
		testkit.Must(t, s.Relay.Gather(ctx, s.lead, "run", ByRound, func(int64) bool { return true }))
		sendings := func() []Sending {
			t.Helper()
			all, err := s.Relay.Sendings(ctx, "run")
			testkit.Must(t, err)
			return all
		}
		all := sendings()
		pgtest.Equal(t, "sendings", len(all), 1)
		wantIs(t, s.Relay.Closed(ctx, Lead{99}, "run", &all[0], names), ErrDeposed)
		testkit.Must(t, s.Relay.Closed(ctx, s.lead, "run", &all[0], names[40:90]))
		left := sendings()
		pgtest.Equal(t, "sendings", len(left), 1)
		pgtest.Equal(t, "what is left", left[0].Shares, one("", 3, 1, names[100:199]...).Shares)
		if left[0].ID == all[0].ID {
			t.Error("another sum has the same id")
		}
		testkit.Must(t, s.Relay.Parts(ctx, "run", &left[0]))
		var got, want int64
		for _, p := range left[0].Parts {
			got += int64(binary.LittleEndian.Uint64(p))
		}
		for _, c := range names[100:199] {
			want += worth(3, c)
		}
		pgtest.Equal(t, "its sum", got, want)
		where, err := s.Counter.Standings(ctx, "agent", "run", 3, []string{names[0], names[40], names[198], names[199]})
		testkit.Must(t, err)
		pgtest.Equal(t, "standings", where, map[string]Standing{names[0]: {Closed, 1}, names[40]: {Closed, 1}, names[198]: {Held, 1}, names[199]: {Asked, 1}})

		// The hub still waits for the clients that shared a batch with a closed one.
		pgtest.Equal(t, "gone", s.adopt(handed(3, 1, names[0], names[198], names[199])), names[:1])
		testkit.Must(t, s.Relay.Closed(ctx, s.lead, "run", &left[0], names[198:199]))
		left = sendings()
		pgtest.Equal(t, "what is left", left[0].Shares, one("", 3, 1, names[100:198]...).Shares)
		testkit.Must(t, s.Relay.Closed(ctx, s.lead, "run", &left[0], names[100:198]))
		pgtest.Equal(t, "sendings", len(sendings()), 0)
		var n int
		testkit.Must(t, s.Store.DB.QueryRow("SELECT count(*) FROM partials").Scan(&n))
		pgtest.Equal(t, "sums", n, 0)
	})
}

// TestRelayMasks checks that a sending of a private run has the masks of its results and no others.
// The hub would reject a sum with a part that it has counted, so the region never counts such a part
// again. A round's statements are stored while it has leases, and are not replaced.
func TestRelayMasks(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		s, ctx := region(t, at, 9), t.Context()
		names := named("c", 9)
		private := func(round int64, privacy string, clients ...string) {
			t.Helper()
			a := handed(round, 0, clients...)
			a.Privacy = []byte(privacy)
			s.adopt(a)
		}
		wantPrivacy := func(round int64, want string) {
			t.Helper()
			p, err := s.PrivateRound(ctx, "run", round)
			if want == "" {
				wantIs(t, err, ErrNotFound)
				return
			}
			testkit.Must(t, err)
			pgtest.Equal(t, "statements", string(p.Privacy), want)
		}
		private(0, "first", names[:6]...)
		private(0, "second", names[:6]...)
		wantPrivacy(0, "first")
		sendings := func(by Grouping) (all []Sending) {
			t.Helper()
			testkit.Must(t, s.Relay.Gather(ctx, s.lead, "run", by, func(int64) bool { return true }))
			all, err := s.Relay.Sendings(ctx, "run")
			testkit.Must(t, err)
			for i := range all {
				testkit.Must(t, s.Relay.Parts(ctx, "run", &all[i]))
			}
			return all
		}
		s.count(masked("agent", 0, 1, "01", names[0], names[1]), masked("agent", 0, 0, "02", names[2]))
		s.count(masked("agent", 0, 2, "03", names[3]))
		all := sendings(ByRound)
		pgtest.Equal(t, "sendings", len(all), 1)
		three := []Mask{{"agent", 0, 1, strings.Repeat("02", 16)}, {"agent", 1, 2, strings.Repeat("01", 16)}, {"agent", 2, 1, strings.Repeat("03", 16)}}
		pgtest.Equal(t, "masks", all[0].Masks, three)

		// The hub has closed a client. Its batch is dropped with the masks, the other one is sent again.
		testkit.Must(t, s.Relay.Closed(ctx, s.lead, "run", &all[0], names[1:2]))
		all = sendings(ByRound)
		pgtest.Equal(t, "sendings", len(all), 1)
		pgtest.Equal(t, "masks", all[0].Masks, three[2:])
		testkit.Must(t, s.Relay.Decided(ctx, s.lead, "run", all[0].ID, true))
		wantMasks := func(what string, want ...Mask) {
			t.Helper()
			left, err := s.Counter.Masks(ctx, "run", 99)
			testkit.Must(t, err)
			pgtest.Equal(t, what, left, want)
		}
		wantMasks("masks after the verdicts", three[2])
		pgtest.Equal(t, "a counted part with another client", s.count(masked("agent", 0, 2, "09", names[4])), nil)

		// With ByBatch, each batch is a sending.
		s.count(masked("agent", 0, 3, "04", names[4]))
		private(1, "third", names[6:]...)
		wantPrivacy(0, "first") // a client still trains
		s.count(masked("agent", 0, 4, "05", names[5]))
		all = sendings(ByBatch)
		pgtest.Equal(t, "sendings", len(all), 2)
		pgtest.Equal(t, "masks", [][]Mask{all[0].Masks, all[1].Masks}, [][]Mask{{{"agent", 3, 1, strings.Repeat("04", 16)}}, {{"agent", 4, 1, strings.Repeat("05", 16)}}})
		private(1, "third", names[6:]...)
		wantPrivacy(0, "")
		wantPrivacy(1, "third")
		wantMasks("masks of undecided results in an earlier round", all[0].Masks[0], all[1].Masks[0])
		for _, x := range all {
			testkit.Must(t, s.Relay.Decided(ctx, s.lead, "run", x.ID, true))
		}
		private(1, "third", names[6:]...)
		wantMasks("masks of decided results in an earlier round")
	})
}

// TestEndIdleRuns checks that a run ends when the hub sends no more tasks for it, and
// resumes with a new task.
func TestEndIdleRuns(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		s, ctx := region(t, at, 3), t.Context()
		names := named("c", 3)
		adopt := func(round, version int64, clients ...string) []string {
			t.Helper()
			_, retired, err := s.Relay.Adopt(ctx, s.lead, handed(round, version, clients...), t0)
			testkit.Must(t, err)
			return retired
		}
		decide := func() {
			t.Helper()
			testkit.Must(t, s.Relay.Gather(ctx, s.lead, "run", ByRound, func(int64) bool { return true }))
			all, err := s.Relay.Sendings(ctx, "run")
			testkit.Must(t, err)
			for _, x := range all {
				testkit.Must(t, s.Relay.Decided(ctx, s.lead, "run", x.ID, true))
			}
		}
		rest := func(since time.Time) []string {
			t.Helper()
			retired, err := s.Relay.EndIdleRuns(ctx, s.lead, since, after(time.Minute))
			testkit.Must(t, err)
			return retired
		}
		runs := func() []string {
			t.Helper()
			all, err := s.Relay.Adopted(ctx)
			testkit.Must(t, err)
			return all
		}
		// A version is not deleted while a lease or a sum refers to it.
		pgtest.Equal(t, "retired", adopt(0, 0, names[:2]...), nil)
		s.count(one("agent", 0, 0, names[0]))
		pgtest.Equal(t, "while there is a lease", adopt(1, 1, names[2]), nil)
		testkit.Must(t, s.Relay.Withdraw(ctx, s.lead, "run", 0, names[1:2]))
		pgtest.Equal(t, "while there is a sum", adopt(1, 1, names[2]), nil)
		pgtest.Equal(t, "while something is open", rest(after(time.Hour)), nil)
		decide()
		pgtest.Equal(t, "retired", adopt(2, 2, names[0]), []string{"w0"})
		s.count(one("agent", 1, 1, names[2]))
		s.count(one("agent", 2, 2, names[0]))
		pgtest.Equal(t, "before the hub has decided", rest(after(time.Hour)), nil)
		decide()
		pgtest.Equal(t, "too soon", rest(after(-time.Second)), nil)
		pgtest.Equal(t, "runs", runs(), []string{"run"})
		pgtest.Equal(t, "retired", slices.Sorted(slices.Values(rest(t0))), []string{"w1", "w2"})
		pgtest.Equal(t, "runs", runs(), nil)
		r, err := s.Run(ctx, "run")
		testkit.Must(t, err)
		if r.State != Finished || !r.Finished.Equal(after(time.Minute)) {
			t.Errorf("%+v", r)
		}
		where, err := s.Counter.Standings(ctx, "agent", "run", 2, names[:1])
		testkit.Must(t, err)
		pgtest.Equal(t, "what was counted", where, map[string]Standing{names[0]: {Counted, 2}})
		pgtest.Equal(t, "retired", adopt(3, 2, names[1]), nil)
		pgtest.Equal(t, "runs", runs(), []string{"run"})
		pgtest.Equal(t, "counted", s.count(one("agent", 3, 2, names[1])), []int{0})
		r, err = s.Run(ctx, "run")
		testkit.Must(t, err)
		if r.State != Running || !r.Finished.IsZero() || r.Reason != "" {
			t.Errorf("%+v", r)
		}
		_, err = s.Relay.EndIdleRuns(ctx, Lead{99}, t0, t0)
		wantIs(t, err, ErrDeposed)
	})
}

// TestWithdraw checks that Withdraw deletes the leases of turns that the hub has closed,
// and no other leases.
func TestWithdraw(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		s, ctx := region(t, at, 200), t.Context()
		names := named("c", 200)
		s.adopt(handed(0, 0, names...))
		s.adopt(handed(1, 1, names[:2]...))
		s.count(one("agent", 0, 0, names[0]))
		testkit.Must(t, s.Relay.Withdraw(ctx, s.lead, "run", 0, append([]string{"nobody"}, names[:150]...)))
		left, err := s.Relay.Leased(ctx)
		testkit.Must(t, err)
		pgtest.Equal(t, "leases", len(left), 52)
		where, err := s.Counter.Standings(ctx, "agent", "run", 0, []string{names[0], names[1], names[150]})
		testkit.Must(t, err)
		pgtest.Equal(t, "standings", where, map[string]Standing{names[0]: {Held, 0}, names[150]: {Asked, 0}})
		pgtest.Equal(t, "counted too late", s.count(one("agent", 0, 0, names[1])), nil)
		wantIs(t, s.Relay.Withdraw(ctx, Lead{99}, "run", 1, names), ErrDeposed)
	})
}

// TestRelaySingles checks a region that sends each update separately, because the algorithm
// needs individual updates.
func TestRelaySingles(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		s, ctx := region(t, at, 3), t.Context()
		names := named("c", 3)
		s.adopt(handed(0, 0, names...))
		arrivals := []Arrival{one("agent", 0, 0, names[0]), one("agent", 0, 0, names[1]), one("agent", 0, 0, names[2])}
		_, err := s.Counter.Count(ctx, "run", arrivals, func(counted []int) (_ []Partial, all []Single, _ error) {
			for _, i := range counted {
				all = append(all, Single{Client: names[i], Examples: 10, Steps: 3, Loss: float64(i) / 4, Numbers: []byte{byte(i)}})
			}
			return nil, all, nil
		})
		testkit.Must(t, err)
		testkit.Must(t, s.Relay.Gather(ctx, s.lead, "run", ByUpdate, func(int64) bool { return true }))
		all, err := s.Relay.Sendings(ctx, "run")
		testkit.Must(t, err)
		pgtest.Equal(t, "sendings", len(all), 3)
		for i := range all {
			testkit.Must(t, s.Relay.Parts(ctx, "run", &all[i]))
			want := Sending{ID: all[i].ID, Shares: one("", 0, 0, names[i]).Shares, Loss: float64(i) / 4, Parts: [][]byte{{byte(i)}}, Single: true}
			pgtest.Equal(t, "sending", all[i], want)
		}
		testkit.Must(t, s.Relay.Decided(ctx, s.lead, "run", all[1].ID, true))
		testkit.Must(t, s.Relay.Decided(ctx, s.lead, "run", all[2].ID, false))
		where, err := s.Counter.Standings(ctx, "agent", "run", 0, names)
		testkit.Must(t, err)
		pgtest.Equal(t, "standings", where, map[string]Standing{names[0]: {Held, 0}, names[1]: {Counted, 0}, names[2]: {Closed, 0}})
		var kept []string
		testkit.Must(t, s.Singles(ctx, "run", 99, func(x Single) error {
			kept = append(kept, x.Client)
			return nil
		}))
		pgtest.Equal(t, "updates", kept, names[:1])
	})
}

// TestWithdrawExpiredConcurrently checks that each turn is either withdrawn or counted,
// never both, if leases expire while they are counted.
func TestWithdrawExpiredConcurrently(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		const turns, rounds = 64, 12
		s, ctx := region(t, at, turns), t.Context()
		second := open(t, at)
		names := named("c", turns)
		var batch []Arrival
		for _, c := range names {
			batch = append(batch, one("agent", 0, 0, c))
		}
		for round := range int64(rounds) {
			for i := range batch {
				batch[i].Round = round
			}
			s.adopt(handed(round, 0, names...))
			var lapsed []Task
			var counted []int
			var wg sync.WaitGroup
			start := make(chan struct{})
			wg.Go(func() {
				<-start
				for part := range slices.Chunk(batch, 16) {
					some, err := second.Counter.Count(ctx, "run", part, sums(part))
					if err != nil {
						t.Error(err)
					}
					counted = append(counted, some...)
				}
			})
			wg.Go(func() {
				<-start
				time.Sleep(time.Duration(round) * time.Millisecond)
				var err error
				if lapsed, err = s.Relay.WithdrawExpired(ctx, s.lead, after(2*time.Hour)); err != nil {
					t.Error(err)
				}
			})
			close(start)
			wg.Wait()
			pgtest.Equal(t, "turns", len(lapsed)+len(counted), turns)
		}
		s.balance()
	})
}
