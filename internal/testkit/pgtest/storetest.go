package pgtest

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"loadstar/internal/testkit"
)

// T contains the common methods of *testing.T and *rapid.T.
type T interface {
	Helper()
	Errorf(string, ...any)
	Fatal(...any)
	Fatalf(string, ...any)
}

// OnBoth runs a test with a new database of each kind, whose address it passes to the test.
func OnBoth(t *testing.T, c *Cluster, test func(t *testing.T, at string)) {
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		test(t, "sqlite:"+filepath.Join(t.TempDir(), "ledger.db"))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		test(t, c.Database(t))
	})
}

// Equal compares two values as text.
func Equal[V any](t T, what string, got, want V) {
	t.Helper()
	if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); g != w {
		t.Errorf("%s: %s, want %s", what, g, w)
	}
}

// Dump returns all rows of the given tables as text, sorted so that the order does not
// depend on the database.
func Dump(t T, db interface {
	Query(string, ...any) (*sql.Rows, error)
}, tables ...string,
) string {
	t.Helper()
	var b strings.Builder
	for _, table := range tables {
		rows, err := db.Query("SELECT * FROM " + table)
		testkit.Must(t, err)
		columns, err := rows.Columns()
		testkit.Must(t, err)
		var lines []string
		for rows.Next() {
			values, into := make([]any, len(columns)), make([]any, len(columns))
			for i := range values {
				into[i] = &values[i]
			}
			testkit.Must(t, rows.Scan(into...))
			lines = append(lines, fmt.Sprintf("%q\n", values))
		}
		testkit.Must(t, rows.Err())
		testkit.Must(t, rows.Close())
		slices.Sort(lines)
		fmt.Fprintf(&b, "%s %v\n%s", table, columns, strings.Join(lines, ""))
	}
	return b.String()
}
