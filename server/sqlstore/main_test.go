package sqlstore

import (
	"testing"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
)

// cluster is the PostgreSQL server of all tests that need one.
var cluster pgtest.Cluster

func TestMain(m *testing.M) { cluster.Main(m) }

func open(t *testing.T, at string) *Store {
	t.Helper()
	s, err := Open(t.Context(), at)
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Must(t, s.Close()) })
	return s
}
