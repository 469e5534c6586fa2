package ledger

import (
	"errors"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
	"loadstar/server/sqlstore"
)

// TestNowIsTheDatabasesTime checks that two machines with wrong clocks agree on the time if
// their ledger is PostgreSQL. Neither takes the lead from the other, and a lease that is valid
// for one has not expired for the other.
func TestNowIsTheDatabasesTime(t *testing.T) {
	at := cluster.Database(t)
	by := func(wrong time.Duration) *Ledger {
		l, err := OpenSimulated(t.Context(), at, sqlstore.Seams{Now: func() time.Time { return time.Now().Add(wrong) }})
		testkit.Must(t, err)
		t.Cleanup(func() { testkit.Must(t, l.Close()) })
		return l
	}
	ahead, behind := by(time.Hour), by(-time.Hour)
	for name, l := range map[string]*Ledger{"ahead": ahead, "behind": behind} {
		if off := time.Until(l.Now()).Abs(); off > 5*time.Second {
			t.Errorf("the machine whose clock is %s is off by %v", name, off)
		}
	}
	if _, err := behind.Lead(t.Context(), "behind", time.Minute, behind.Now()); err != nil {
		t.Fatal(err)
	}
	_, err := ahead.Lead(t.Context(), "ahead", time.Minute, ahead.Now())
	wantIs(t, err, ErrRefused)
}

func TestNowFollowsTheMachineWithSQLite(t *testing.T) {
	t.Parallel()
	l, err := OpenSimulated(t.Context(), "sqlite:"+t.TempDir()+"/ledger.db", sqlstore.Seams{Now: func() time.Time { return t0 }})
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Must(t, l.Close()) })
	pgtest.Equal(t, "time", l.Now(), t0)
}

// TestClockWasAhead checks that a lead and a check-in from a time when the clock was a year
// ahead do not remain valid for a year.
func TestClockWasAhead(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l := open(t, at)
		ctx, year := t.Context(), 365*24*time.Hour
		first, err := l.Lead(ctx, "first", time.Minute, after(year))
		if err != nil {
			t.Fatal(err)
		}
		second, err := l.Lead(ctx, "second", time.Minute, after(0))
		if err != nil || second.Epoch != first.Epoch+1 {
			t.Errorf("after the clock was set right: %+v, %v", second, err)
		}
		if _, err := l.Lead(ctx, "third", time.Minute, after(time.Second)); !errors.Is(err, ErrRefused) {
			t.Errorf("while another coordinator has the lead: %v", err)
		}
		if _, err := l.Store.Write.ExecContext(ctx, "INSERT INTO agents (id, name, joined, expires, seen) VALUES ('a', 'a', 0, 0, $1)", sqlstore.ToMillis(after(year))); err != nil {
			t.Fatal(err)
		}
		for want, now := range []time.Duration{0, time.Second, 0} {
			if err := l.Directory.Seen(ctx, []string{"a"}, after(now)); err != nil {
				t.Fatal(err)
			}
			if got, err := l.Directory.LastSeen(ctx); err != nil || !got.Equal(after(min(time.Duration(want), 1)*time.Second)) {
				t.Errorf("call %d: seen at %s, %v", want+1, got, err)
			}
		}
	})
}
