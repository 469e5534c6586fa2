package pgtest

import (
	"context"
	"database/sql"
	"os"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
)

func open(t *testing.T, at string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func TestCrash(t *testing.T) {
	s := Single(t)
	if err := s.Create("kept"); err != nil {
		t.Fatal(err)
	}
	db := open(t, s.URL("kept"))
	for _, text := range []string{"CREATE TABLE t (x TEXT)", "INSERT INTO t VALUES ('a'), ('B'), ('é'), ('Z')"} {
		if _, err := db.Exec(text); err != nil {
			t.Fatal(err)
		}
	}
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec("INSERT INTO t VALUES ('never committed')"); err != nil {
		t.Fatal(err)
	}
	if err := s.Crash(); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err == nil {
		t.Error("a commit after the crash")
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	db = open(t, s.URL("kept"))
	var n int
	var first, fsync string
	if err := db.QueryRow("SELECT count(*), min(x), current_setting('fsync') FROM t").Scan(&n, &first, &fsync); err != nil {
		t.Fatal(err)
	}
	if n != 4 || first != "a" || fsync != "on" {
		t.Errorf("%d rows, the first %q, fsync %s", n, first, fsync)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := db.Ping(); err == nil {
		t.Error("an answer after Stop")
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	tcp := open(t, "postgres://postgres@"+s.Addr()+"/kept")
	if err := tcp.QueryRow("SELECT count(*) FROM t").Scan(&n); err != nil || n != 4 {
		t.Errorf("%d rows by TCP: %v", n, err)
	}
}

func TestCluster(t *testing.T) {
	var c Cluster
	one, two := open(t, c.Database(t)), open(t, c.Database(t))
	if _, err := one.Exec("CREATE TABLE t (x TEXT)"); err != nil {
		t.Fatal(err)
	}
	if _, err := two.ExecContext(context.Background(), "CREATE TABLE t (x TEXT)"); err != nil {
		t.Error(err)
	}
	dir, pid := c.dir, c.server.child.Pid()
	if err := c.stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the folder is still there: %v", err)
	}
	if _, _, ok := stat(pid); ok {
		t.Error("the server is still there")
	}
	if err := c.stop(); err != nil {
		t.Error(err)
	}
}
