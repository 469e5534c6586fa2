package directory

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
	"loadstar/server/sqlstore"
)

// cluster is the PostgreSQL server of all tests that need one.
var cluster pgtest.Cluster

func TestMain(m *testing.M) {
	code := m.Run()
	if err := cluster.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// t0 is the time at which all tests begin, instead of the real time.
var t0 = time.UnixMilli(1_700_000_000_000)

// after returns t0 plus d.
func after(d time.Duration) time.Time { return t0.Add(d) }

// database is everything in a new database.
type database struct {
	Directory *Directory
	Users     *Users
	Events    *Log
	Store     *sqlstore.Store
}

func open(t *testing.T, at string) *database {
	t.Helper()
	s, err := sqlstore.Open(t.Context(), at)
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Must(t, s.Close()) })
	log := NewLog(s)
	users := NewUsers(s, log)
	return &database{New(s, users, log), users, log, s}
}

func wantIs(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want %v", err, want)
	}
}
