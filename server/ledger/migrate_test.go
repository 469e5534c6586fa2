package ledger

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestMigratesYesterday migrates the rows of a ledger that an older binary wrote, and checks
// that none is lost or changed.
func TestMigratesYesterday(t *testing.T) {
	onBoth(t, func(t *testing.T, at string) {
		text, err := os.ReadFile("testdata/schema5.sql")
		must(t, err)
		old, err := openDatabase(t.Context(), at, time.Now, (*Ledger).migrate)
		must(t, err)
		p, _, err := old.schema(t.Context())
		must(t, err)
		_, err = p.DownTo(t.Context(), 5)
		must(t, err)
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
			if !old.sqlite {
				line = blob.ReplaceAllString(line, `'\x$1'`)
			}
			_, err := old.write.Exec(line)
			must(t, err)
			rows++
		}
		if rows < 20 || columns["receipts"] == "" || columns["clients"] == "" {
			t.Fatalf("%d rows of %v", rows, columns)
		}
		before := map[string]string{}
		for table, list := range columns {
			before[table] = dumpColumns(t, old, table, list)
		}
		must(t, old.Close())
		l := open(t, at)
		for table, list := range columns {
			wantEqual(t, table, dumpColumns(t, l, table, list), before[table])
		}
		_, version, err := l.schema(t.Context())
		must(t, err)
		if version < 6 {
			t.Errorf("schema %d", version)
		}
	})
}

func dumpColumns(t *testing.T, l *Ledger, table, columns string) string {
	t.Helper()
	return dump(t, l, "(SELECT "+columns+" FROM "+table+") rows_of_"+table)
}
