package ledger

import (
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
)

// TestServerData checks that the state of the server's data in a run changes with the
// version, and that the end of the run deletes it.
func TestServerData(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		s := plant(t, at, 3)
		read := func() (d ServerData) {
			t.Helper()
			s.drive(func(x *Drive) (err error) {
				d, err = x.ServerData()
				return err
			})
			return d
		}
		s.drive(func(d *Drive) error {
			_, err := d.ServerData()
			wantIs(t, err, ErrNotFound)
			return d.BeginServerData("three meters")
		})
		pgtest.Equal(t, "at the beginning", read(), ServerData{"three meters", []byte{}})
		s.drive(func(d *Drive) error { return d.KeepServerData([]byte{1, 0, 2}) })
		pgtest.Equal(t, "after a merge", read(), ServerData{"three meters", []byte{1, 0, 2}})
		s.drive(func(d *Drive) error { return d.Explain(ReasonWaits, "waits for data") })
		r, err := s.Run(t.Context(), s.run)
		testkit.Must(t, err)
		if r.Reason != "waits for data" || r.Code != ReasonWaits || r.State != Running {
			t.Errorf("the run is %s, %q, %q", r.State, r.Code, r.Reason)
		}
		s.drive(func(d *Drive) error { return d.Explain("", "") })
		s.drive(func(d *Drive) error { return d.End(Finished, "", t0) })
		s.drive(func(d *Drive) error {
			_, err := d.ServerData()
			wantIs(t, err, ErrNotFound)
			return nil
		})
	})
}

// TestLeadersData checks that the ledger stores which data the leading coordinator has, and
// that a former leader cannot change this.
func TestLeadersData(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l, ctx := open(t, at), t.Context()
		has := func(want string, wantKnown bool) {
			t.Helper()
			got, known, err := l.LeadersData(ctx)
			testkit.Must(t, err)
			if got != want || known != wantKnown {
				t.Errorf("the leader has %q (known: %v), want %q (%v)", got, known, want, wantKnown)
			}
		}
		has("", false)
		first, err := l.Lead(ctx, "first", time.Second, t0)
		testkit.Must(t, err)
		has("", true)
		testkit.Must(t, l.SetLeadersData(ctx, first, "three meters"))
		has("three meters", true)
		second, err := l.Lead(ctx, "second", time.Second, after(2*time.Second))
		testkit.Must(t, err)
		testkit.Must(t, l.SetLeadersData(ctx, second, ""))
		wantIs(t, l.SetLeadersData(ctx, first, "three meters"), ErrDeposed)
		has("", true)
	})
}
