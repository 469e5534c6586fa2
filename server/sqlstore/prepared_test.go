package sqlstore

import (
	"fmt"
	"strings"
	"testing"

	"loadstar/internal/testkit"
)

// TestPrepared checks that stored statements do not disturb each other: with open rows of two
// statements with the same text, after an error, and with more texts than a connection stores.
func TestPrepared(t *testing.T) {
	db, err := openPrepared("file:" + t.TempDir() + "/test.db")
	testkit.Must(t, err)
	defer db.Close()
	db.SetMaxOpenConns(1)
	ctx := t.Context()
	tx, err := db.BeginTx(ctx, nil) // use only one connection
	testkit.Must(t, err)
	defer tx.Rollback()
	exec := func(text string, args ...any) error {
		_, err := tx.ExecContext(ctx, text, args...)
		return err
	}
	testkit.Must(t, exec("CREATE TABLE numbers (n INTEGER PRIMARY KEY)"))
	const insert = "INSERT INTO numbers (n) VALUES ($1)"
	for n := range 3 {
		testkit.Must(t, exec(insert, n))
	}
	if exec(insert, 2) == nil {
		t.Error("a number was inserted twice")
	}
	testkit.Must(t, exec(insert, 3)) // the statement whose last use failed

	const above = "SELECT n FROM numbers WHERE n >= $1 ORDER BY n"
	outer, err := tx.QueryContext(ctx, above, 1)
	testkit.Must(t, err)
	var pairs string
	for outer.Next() {
		var a, b int
		testkit.Must(t, outer.Scan(&a))
		inner, err := tx.QueryContext(ctx, above, a)
		testkit.Must(t, err)
		for inner.Next() {
			testkit.Must(t, inner.Scan(&b))
			pairs += fmt.Sprint(a, b, " ")
		}
		testkit.Must(t, inner.Close())
	}
	testkit.Must(t, outer.Err())
	testkit.Must(t, outer.Close())
	if want := "1 1 1 2 1 3 2 2 2 3 3 3 "; pairs != want {
		t.Errorf("nested rows are %q, want %q", pairs, want)
	}

	for n := range 2 * maxPrepared {
		var got int
		testkit.Must(t, tx.QueryRowContext(ctx, fmt.Sprintf("SELECT %d + n FROM numbers WHERE n = 3", n)).Scan(&got))
		if got != n+3 {
			t.Fatalf("query %d returned %d", n, got)
		}
	}
	testkit.Must(t, exec("ALTER TABLE numbers ADD COLUMN twice INTEGER"))
	testkit.Must(t, exec(insert, 4)) // prepared before the table changed
	long := "SELECT n FROM numbers WHERE n = 3 AND n IN (3" + strings.Repeat(", 3", maxText) + ")"
	var three int
	testkit.Must(t, tx.QueryRowContext(ctx, long).Scan(&three))
	testkit.Must(t, tx.Commit())
	c, err := db.Conn(ctx)
	testkit.Must(t, err)
	defer c.Close()
	testkit.Must(t, c.Raw(func(conn any) error {
		idle := conn.(*preparedConn).idle
		if _, kept := idle[long]; kept || len(idle) > maxPrepared {
			t.Errorf("the connection keeps %d statements, at most %d allowed; the long one: %t", len(idle), maxPrepared, kept)
		}
		return nil
	}))
}
