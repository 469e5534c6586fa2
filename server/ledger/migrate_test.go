package ledger

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
	"loadstar/server/sqlstore"
)

// planted is a migration of a later version of Loadstar.
const planted = `-- +goose Up
ALTER TABLE rounds ADD COLUMN planted BIGINT NOT NULL DEFAULT 7;
CREATE TABLE planted (id BIGINT PRIMARY KEY);
INSERT INTO planted SELECT count(*) FROM receipts;
`

// plantSchema adds a schema version to those that the program knows, until restore is called.
func plantSchema(t *testing.T, text string) (restore func()) {
	t.Helper()
	old := sqlstore.Migrations
	files := fstest.MapFS{"migrations/0002_planted.sql": {Data: []byte(text)}}
	testkit.Must(t, fs.WalkDir(old, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(old, path)
		files[path] = &fstest.MapFile{Data: data}
		return err
	}))
	sqlstore.Migrations = files
	restore = func() { sqlstore.Migrations = old }
	t.Cleanup(restore)
	return restore
}

// onEach runs a test on a database of each kind, one after the other, because the list of
// known schemas is a variable.
func onEach(t *testing.T, test func(t *testing.T, at string)) {
	t.Run("sqlite", func(t *testing.T) { test(t, "sqlite:"+filepath.Join(t.TempDir(), "ledger.db")) })
	t.Run("postgres", func(t *testing.T) { test(t, cluster.Database(t)) })
}

// look returns the version of a database's schema, and the newest version that the program
// knows.
func look(t *testing.T, at string) sqlstore.Schema {
	t.Helper()
	s, schema, err := sqlstore.OpenToLook(t.Context(), at)
	testkit.Must(t, err)
	testkit.Must(t, s.Close())
	return schema
}

// dumpColumns returns all rows of a table in these columns.
func dumpColumns(t *testing.T, l *Ledger, table, columns string) string {
	t.Helper()
	return pgtest.Dump(t, l.Store.DB, "(SELECT "+columns+" FROM "+table+") rows_of_"+table)
}

// TestMigrates uses a program that knows a later schema to open a ledger that has rows in all
// tables. No row is lost or changed, the open round continues, and the older program refuses
// the ledger.
func TestMigrates(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := fill(t, at)
		others := slices.DeleteFunc(slices.Clone(tables), func(name string) bool { return name == "rounds" })
		const columns = "run, round, version, state, opened, closed, asked, counted, late, lost, loss, bytes, last_batch, evaluated, relative_mae, checksum"
		rounds, before := dumpColumns(t, s.Ledger, "rounds", columns), pgtest.Dump(t, s.Store.DB, others...)
		if strings.Count(rounds, "\n") < 3 || strings.Count(before, "\n") < len(others)+20 {
			t.Fatalf("too few rows:\n%s%s", rounds, before)
		}
		testkit.Must(t, s.Close())
		restore := plantSchema(t, planted)
		pgtest.Equal(t, "schema before", look(t, at), sqlstore.Schema{Version: 1, Known: 2})
		if path, lite := strings.CutPrefix(at, "sqlite:"); lite {
			backupOld(t, path)
		}
		l := open(t, at)
		pgtest.Equal(t, "schema after", look(t, at), sqlstore.Schema{Version: 2, Known: 2})
		pgtest.Equal(t, "rounds", dumpColumns(t, l, "rounds", columns), rounds)
		pgtest.Equal(t, "rows", pgtest.Dump(t, l.Store.DB, others...), before)
		var added, receipts int64
		testkit.Must(t, l.Store.DB.QueryRow("SELECT (SELECT max(planted) FROM rounds), (SELECT id FROM planted)").Scan(&added, &receipts))
		if added != 7 || receipts != 4 {
			t.Errorf("the new column has %d, and the new table %d; want 7 and 4", added, receipts)
		}
		again := &site{l, t, s.lead, s.run, 0}
		pgtest.Equal(t, "counted", again.count(one("agent", 1, 1, "c00005")), []int{0})
		testkit.Must(t, l.Close())
		restore()
		if l, err := Open(t.Context(), at); err == nil || !strings.Contains(err.Error(), "newer Loadstar (schema 2, this one knows 1): upgrade") {
			if err == nil {
				l.Close()
			}
			t.Errorf("the program before: %v", err)
		}
	})
}

// backupOld backs up a ledger with a schema older than the program's. Neither the ledger nor the
// copy is migrated.
func backupOld(t *testing.T, path string) {
	t.Helper()
	s, err := sqlstore.OpenForBackup(t.Context(), path)
	testkit.Must(t, err)
	copied := filepath.Join(t.TempDir(), "copied.db")
	testkit.Must(t, s.Backup(t.Context(), copied))
	testkit.Must(t, s.Close())
	testkit.Must(t, sqlstore.VerifyFile(t.Context(), copied))
	blobs, err := BlobsOf(t.Context(), copied)
	testkit.Must(t, err)
	if !slices.Contains(blobs, "w1") {
		t.Errorf("the copy refers to the blobs %q", blobs)
	}
	for _, p := range []string{path, copied} {
		pgtest.Equal(t, p, look(t, "sqlite:"+p).Version, 1)
	}
	left, err := filepath.Glob(copied + ".migrated*")
	testkit.Must(t, err)
	pgtest.Equal(t, "left", left, nil)
	testkit.Must(t, os.Remove(copied))
}

// TestFailedMigration checks that a migration that fails changes nothing.
func TestFailedMigration(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := fill(t, at)
		before := pgtest.Dump(t, s.Store.DB, tables...)
		testkit.Must(t, s.Close())
		restore := plantSchema(t, planted+"INSERT INTO nowhere VALUES (1);\n")
		if l, err := Open(t.Context(), at); err == nil || !strings.Contains(err.Error(), "nowhere") {
			if err == nil {
				l.Close()
			}
			t.Errorf("a migration that fails: %v", err)
		}
		restore()
		pgtest.Equal(t, "schema", look(t, at), sqlstore.Schema{Version: 1, Known: 1})
		pgtest.Equal(t, "rows", pgtest.Dump(t, open(t, at).Store.DB, tables...), before)
	})
}
