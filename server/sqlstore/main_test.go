package sqlstore

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
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

func open(t *testing.T, at string) *Store {
	t.Helper()
	s, err := Open(t.Context(), at)
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Must(t, s.Close()) })
	return s
}
