package ledger

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
	"loadstar/server/directory"
	"loadstar/server/sqlstore"
)

// operations lists calls of exported methods, each with the operation that its error must name.
var operations = []struct {
	name string
	do   func(context.Context, *Ledger) error
}{
	{"adding agent a", func(ctx context.Context, l *Ledger) error {
		return l.Directory.Join(ctx, nil, directory.Agent{ID: "a"}, t0)
	}},
	{"looking up agent a", func(ctx context.Context, l *Ledger) error {
		_, err := l.Directory.Caller(ctx, "a")
		return err
	}},
	{"counting agents", func(ctx context.Context, l *Ledger) error {
		_, err := l.Directory.Agents(ctx)
		return err
	}},
	{"reading run one", func(ctx context.Context, l *Ledger) error {
		_, err := l.Run(ctx, "one")
		return err
	}},
	{"reading the tasks of agent a", func(ctx context.Context, l *Ledger) error {
		_, err := l.Counter.Tasks(ctx, "a")
		return err
	}},
	{"reading the standings of agent a in run one", func(ctx context.Context, l *Ledger) error {
		_, err := l.Counter.Standings(ctx, "a", "one", 0, []string{"c"})
		return err
	}},
	{"extending leases of agent a in run one", func(ctx context.Context, l *Ledger) error {
		return l.Counter.Extend(ctx, "a", "one", 0, []string{"c"}, t0)
	}},
	{"counting results of run one", func(ctx context.Context, l *Ledger) error {
		_, err := l.Counter.Count(ctx, "one", nil, nil)
		return err
	}},
	{"driving run one", func(ctx context.Context, l *Ledger) error {
		return l.Drive(ctx, Lead{}, "one", nil)
	}},
	{"reading the sendings of run one", func(ctx context.Context, l *Ledger) error {
		_, err := l.Relay.Sendings(ctx, "one")
		return err
	}},
	{"checking the database", func(ctx context.Context, l *Ledger) error { return l.Store.Healthy(ctx) }},
}

func openLite(t *testing.T) *Ledger {
	l, err := Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "ledger.db"))
	testkit.Must(t, err)
	t.Cleanup(func() { _ = l.Close() }) // some tests close it themselves
	return l
}

// wantOperation checks that an error names an operation exactly once.
func wantOperation(t *testing.T, err error, name string) {
	t.Helper()
	if err == nil || !strings.HasPrefix(err.Error(), "ledger: "+name+": ") || strings.Count(err.Error(), "ledger: ") != 1 {
		t.Errorf("got %v, want an error of %q", err, name)
	}
}

func TestErrorsNameTheOperation(t *testing.T) {
	open := openLite(t)
	ended, end := context.WithCancel(t.Context())
	end()
	closed := openLite(t)
	testkit.Must(t, closed.Close())
	for _, op := range operations {
		t.Run(op.name, func(t *testing.T) {
			wantOperation(t, op.do(t.Context(), closed), op.name)
			err := op.do(ended, open)
			wantOperation(t, err, op.name)
			wantIs(t, err, context.Canceled)
		})
	}
}

// TestErrorsOfCallbacks checks that Drive does not prefix the errors of its callback,
// whose own calls name their operations.
func TestErrorsOfCallbacks(t *testing.T) {
	l := openLite(t)
	lead, err := l.Lead(t.Context(), "me", time.Hour, t0)
	testkit.Must(t, err)
	testkit.Must(t, l.AddRun(t.Context(), Run{ID: "one"}, "operator"))
	own := errors.New("the disk is full")
	// The error must be identical, not wrapped.
	if err := l.Drive(t.Context(), lead, "one", func(*Drive) error { return own }); err != own {
		t.Errorf("got %v, want the callback's error", err)
	}
	err = l.Drive(t.Context(), lead, "one", func(d *Drive) error {
		testkit.Must(t, d.tx.Rollback())
		_, _, err := d.Receipts(0)
		return err
	})
	wantOperation(t, err, "reading the receipts of run one")
	err = l.Drive(t.Context(), Lead{Epoch: 99}, "one", nil)
	wantOperation(t, err, "driving run one")
	wantIs(t, err, ErrDeposed)
}

// TestAnswersStayPlain checks that errors for agents and operators have no prefix.
func TestAnswersStayPlain(t *testing.T) {
	l := openLite(t)
	_, err := l.Run(t.Context(), "one")
	pgtest.Equal(t, "text", err.Error(), "run one: not found")
	wantIs(t, err, ErrNotFound)
	err = l.Directory.Join(t.Context(), []byte("?"), directory.Agent{ID: "a"}, t0)
	wantIs(t, err, ErrRefused)
	if strings.Contains(err.Error(), "ledger") {
		t.Errorf("an agent that may not join gets %q", err)
	}
}

func TestWrapAllocatesNothingOnSuccess(t *testing.T) {
	agent := strings.Repeat("a", 8)
	allocs := testing.AllocsPerRun(100, func() {
		_ = func() (err error) {
			defer sqlstore.Wrap(&err, "extending leases of agent", agent, "in run", agent)
			return nil
		}()
	})
	pgtest.Equal(t, "allocations", allocs, 0)
}
