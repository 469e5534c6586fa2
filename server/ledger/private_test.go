package ledger

import (
	"strings"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
)

// masked returns an arrival of a private plan.
func masked(agent string, round, part int64, nonce string, clients ...string) Arrival {
	a := one(agent, round, 0, clients...)
	a.Masks = []Mask{{Agent: agent, Part: part, Clients: int64(len(clients)), Nonce: strings.Repeat(nonce, 16)}}
	return a
}

// TestMasks counts masked results, whose masks are stored with their receipts. A result whose
// part was already used does not count and keeps its lease.
func TestMasks(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		s, ctx := plant(t, at, 6), t.Context()
		s.ask(0, 0, 0, 1, 2, 3, 4, 5)
		pgtest.Equal(t, "counted", s.count(
			masked("agent", 0, 1, "01", "c00000", "c00001"),
			masked("agent", 0, 1, "02", "c00002"), // the same part in the same batch
			masked("agent", 0, 0, "03", "c00003"),
		), []int{0, 2})
		pgtest.Equal(t, "counted again", s.count(masked("agent", 0, 0, "04", "c00002"), masked("agent", 0, 1, "01", "c00000", "c00001")), nil)
		leases, receipts := s.balance()
		pgtest.Equal(t, "leases and receipts", []int{leases, receipts}, []int{3, 3})
		for part, want := range map[int64]bool{0: true, 1: true, 2: false} {
			used, err := s.Counter.Used(ctx, "run", 0, []Mask{{Agent: "other"}, {Agent: "agent", Part: part}})
			testkit.Must(t, err)
			pgtest.Equal(t, "has a part", used != nil, want)
		}
		newest := s.newest(t, "run")
		all, err := s.Counter.Masks(ctx, "run", newest)
		testkit.Must(t, err)
		pgtest.Equal(t, "masks", all, []Mask{{"agent", 0, 1, strings.Repeat("03", 16)}, {"agent", 1, 2, strings.Repeat("01", 16)}})

		_, err = s.PrivateRound(ctx, "run", 0)
		wantIs(t, err, ErrNotFound)
		s.drive(func(d *Drive) error { return d.OpenPrivate(0, []byte("privacy")) })
		s.drive(func(d *Drive) error { return d.OpenPrivate(0, []byte("another")) })
		s.drive(func(d *Drive) error {
			return d.Close(Round{Round: 0, State: RoundMerging, Closed: after(time.Minute), Counted: 3}, "closed", false)
		})
		for _, request := range []string{"request", "another"} {
			s.drive(func(d *Drive) error {
				fixed, err := d.FixRequest(0, []byte(request))
				pgtest.Equal(t, "the request", string(fixed), "request")
				return err
			})
		}
		p, err := s.PrivateRound(ctx, "run", 0)
		testkit.Must(t, err)
		pgtest.Equal(t, "the round", p, PrivateRound{Privacy: []byte("privacy"), Request: []byte("request")})

		merging := Round{Round: 0, LastBatch: newest}
		s.drive(func(d *Drive) error {
			n, err := d.Refuse(merging, "quorum", "restarted")
			pgtest.Equal(t, "in a row", n, 1)
			return err
		})
		pgtest.Equal(t, "the machine", machine(t, s.Ledger, "run"), "restarted")
		rounds, err := s.Rounds(ctx, "run", 0, 1)
		testkit.Must(t, err)
		pgtest.Equal(t, "state", rounds[0].State, RoundAbandoned)
		all, err = s.Counter.Masks(ctx, "run", newest)
		testkit.Must(t, err)
		pgtest.Equal(t, "masks that are left", len(all), 0)

		s.ask(1, 0, 4, 5)
		s.drive(func(d *Drive) error { return d.OpenPrivate(1, []byte("privacy")) })
		s.count(masked("agent", 1, 0, "05", "c00004"))
		s.drive(func(d *Drive) error {
			return d.Close(Round{Round: 1, State: RoundMerging, Counted: 1}, "closed", false)
		})
		merging = Round{Round: 1, LastBatch: s.newest(t, "run"), Loss: 0.25, Evaluation: Evaluation{2, 3}}
		s.drive(func(d *Drive) error {
			if err := d.Unmasked(merging); err != nil {
				return err
			}
			return d.Publish(merging, Version{Weights: "w1"}, "server 1")
		})
		rounds, err = s.Rounds(ctx, "run", 1, 1)
		testkit.Must(t, err)
		pgtest.Equal(t, "what is known now", []any{rounds[0].State, rounds[0].Loss, rounds[0].Evaluation}, []any{RoundMerged, 0.25, Evaluation{2, 3}})
		pgtest.Equal(t, "what is left", pgtest.Dump(t, s.Store.DB, "(SELECT run FROM masks UNION SELECT run FROM private_rounds) x"), "(SELECT run FROM masks UNION SELECT run FROM private_rounds) x [run]\n")
	})
}

// TestKeeperEpoch checks that the ledger stores the newest epoch of a keeper and the time of
// its last answer.
func TestKeeperEpoch(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l := open(t, at)
		answered := func() time.Time {
			t.Helper()
			last, err := l.KeeperAnswered(t.Context(), "identity")
			testkit.Must(t, err)
			return last
		}
		pgtest.Equal(t, "answered", answered().IsZero(), true)
		for _, x := range []struct{ epoch, want int64 }{{0, 0}, {7, 7}, {9, 9}, {8, 9}, {0, 9}} {
			before := l.Now().Truncate(time.Millisecond)
			newest, err := l.KeeperEpoch(t.Context(), "identity", x.epoch)
			testkit.Must(t, err)
			pgtest.Equal(t, "newest epoch", newest, x.want)
			pgtest.Equal(t, "answered in time", answered().Before(before) || answered().After(l.Now()), false)
			time.Sleep(2 * time.Millisecond)
		}
	})
}
