package directory

import (
	"errors"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
	"loadstar/server/sqlstore"
)

// cluster is the PostgreSQL server of all tests that need one.
var cluster pgtest.Cluster

func TestMain(m *testing.M) { cluster.Main(m) }

// t0 is the start time of all tests, instead of the real time.
var t0 = time.UnixMilli(1_700_000_000_000)

// after returns t0 plus d.
func after(d time.Duration) time.Time { return t0.Add(d) }

// database gives access to everything in a new database.
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
