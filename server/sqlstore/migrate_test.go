package sqlstore

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"loadstar/internal/testkit"
	"loadstar/server/sqlstore/storetest"
)

// TestMigratesYesterday migrates the rows of a ledger that an older binary wrote, and checks
// that none is lost or changed.
func TestMigratesYesterday(t *testing.T) {
	storetest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		text, err := os.ReadFile("testdata/schema5.sql")
		testkit.Must(t, err)
		old, err := Open(t.Context(), at)
		testkit.Must(t, err)
		p, _, err := old.schema(t.Context())
		testkit.Must(t, err)
		_, err = p.DownTo(t.Context(), 5)
		testkit.Must(t, err)
		columns := map[string]string{}
		insert := regexp.MustCompile(`^INSERT INTO (\w+) \(([^)]*)\)`)
		blob := regexp.MustCompile(`X'([0-9a-f]*)'`)
		rows := 0
		for line := range strings.Lines(string(text)) {
			m := insert.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			columns[m[1]] = m[2]
			if !old.SQLite {
				line = blob.ReplaceAllString(line, `'\x$1'`)
			}
			_, err := old.Write.Exec(line)
			testkit.Must(t, err)
			rows++
		}
		if rows < 20 || columns["receipts"] == "" || columns["clients"] == "" {
			t.Fatalf("%d rows of %v", rows, columns)
		}
		before := map[string]string{}
		for table, list := range columns {
			before[table] = dumpColumns(t, old, table, list)
		}
		testkit.Must(t, old.Close())
		s := open(t, at)
		for table, list := range columns {
			storetest.Equal(t, table, dumpColumns(t, s, table, list), before[table])
		}
		_, version, err := s.schema(t.Context())
		testkit.Must(t, err)
		if version < 6 {
			t.Errorf("schema %d", version)
		}
	})
}

func dumpColumns(t *testing.T, s *Store, table, columns string) string {
	t.Helper()
	return storetest.Dump(t, s.DB, "(SELECT "+columns+" FROM "+table+") rows_of_"+table)
}
