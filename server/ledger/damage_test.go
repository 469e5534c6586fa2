package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
	"loadstar/server/sqlstore"
)

// resum corrects the checksums of all rows after a test has changed some rows.
func resum(t *testing.T, l *Ledger) {
	t.Helper()
	testkit.Must(t, l.Store.Update(t.Context(), func(tx *sqlstore.Txn) error { return sqlstore.SumRows(t.Context(), tx.Tx) }))
}

// fill creates a ledger that has rows in all tables with checksums.
func fill(t *testing.T, at string) *site {
	t.Helper()
	s, ctx := plant(t, at, 9), t.Context()
	s.drive(func(d *Drive) error { return d.BeginServerData("fingerprint") })
	s.drive(func(d *Drive) error { return d.KeepServerData([]byte{1, 2, 3}) })
	s.ask(0, 0, 0, 1, 2)
	s.count(one("agent", 0, 0, "c00000", "c00001"))
	s.drive(func(d *Drive) error {
		return d.Close(Round{Round: 0, State: RoundMerging, Closed: after(time.Minute), Asked: 3, Counted: 2, Loss: 0.5, Evaluation: Evaluation{2, 3}}, "closed", true)
	})
	s.drive(func(d *Drive) error {
		return d.Publish(Round{Round: 0, LastBatch: 1}, Version{Weights: "w1", Limits: []byte{7}}, "server 1")
	})
	_, err := s.AddRelease(ctx, Release{ID: "release", Name: "day", Run: "run", Role: "shared", Actor: "test", Created: t0})
	testkit.Must(t, err)
	s.ask(1, 1, 3, 4, 5, 6)
	with := one("agent", 1, 1, "c00003")
	with.Masks = []Mask{{"agent", 0, 1, "00"}}
	s.count(with)
	s.drive(func(d *Drive) error { return d.OpenPrivate(1, []byte{1}) })
	s.drive(func(d *Drive) error { _, err := d.FixRequest(1, []byte{2}); return err })
	arrivals := []Arrival{one("agent", 1, 1, "c00004")}
	_, err = s.Counter.Count(ctx, "run", arrivals, func([]int) ([]Partial, []Single, error) {
		return nil, []Single{{Client: "c00004", Version: 1, Examples: 10, Steps: 3, Loss: math.Copysign(0, -1), Numbers: []byte{1, 2}}}, nil
	})
	testkit.Must(t, err)
	return s
}

// TestChangedRows changes each column that a checksum covers, in one row of each table, and
// checks that the change is detected and that the error names the row. It also deletes a
// receipt.
func TestChangedRows(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		s, ctx := fill(t, at), t.Context()
		testkit.Must(t, sqlstore.CheckRows(ctx, s.Store.DB, true))
		for table, x := range sqlstore.SummedTables {
			columns := strings.Split(x.Columns, ", ")
			// The checksum of a round covers an expression instead of the column counted, and no
			// statement can set an expression.
			if table == "rounds" {
				columns = slices.DeleteFunc(columns, func(c string) bool { return strings.HasPrefix(c, "CASE") })
				columns = append(columns, "counted")
			}
			for _, column := range columns {
				if foreign := map[string]bool{"runs id": true, "machines run": true, "members run": true, "versions run": true, "rounds run": true, "server_data run": true}; foreign[table+" "+column] {
					continue // other rows refer to this one, or it refers to them
				}
				tx, err := s.Store.Write.BeginTx(ctx, nil)
				testkit.Must(t, err)
				// Replace a string by another string, and a number by another number.
				change := "CAST(" + column + " AS TEXT) || 'x'"
				var value any
				where := map[string]string{"rounds": " WHERE round = 0", "versions": " WHERE version = 1"}[table]
				testkit.Must(t, tx.QueryRow("SELECT "+column+" FROM "+table+where+" ORDER BY 1 LIMIT 1").Scan(&value))
				switch value.(type) {
				case nil:
					change = "5"
				case int64, float64:
					change = column + " + 100"
				case []byte:
					change = "$1"
				}
				args := []any{}
				if change == "$1" {
					args = append(args, append([]byte{9}, value.([]byte)...))
				}
				_, err = tx.Exec("UPDATE "+table+" SET "+column+" = "+change+where, args...)
				testkit.Must(t, err)
				if err := sqlstore.CheckRows(ctx, tx, true); !errors.Is(err, sqlstore.ErrDamaged) || !strings.Contains(err.Error(), "table "+table+", row ") {
					t.Errorf("%s.%s: %v", table, column, err)
				}
				testkit.Must(t, tx.Rollback())
			}
		}
		// A starting server does not read the receipts of merged rounds, but a backup does.
		for client, atStart := range map[string]bool{"c00000": false, "c00003": true} {
			tx, err := s.Store.Write.BeginTx(ctx, nil)
			testkit.Must(t, err)
			_, err = tx.Exec("UPDATE receipts SET norm = 7 WHERE client = $1", client)
			testkit.Must(t, err)
			pgtest.Equal(t, "damage at the start", errors.Is(sqlstore.CheckRows(ctx, tx, false), sqlstore.ErrDamaged), atStart)
			wantIs(t, sqlstore.CheckRows(ctx, tx, true), sqlstore.ErrDamaged)
			testkit.Must(t, tx.Rollback())
		}
		_, err := s.Store.Write.Exec("DELETE FROM receipts WHERE client = 'c00001'")
		testkit.Must(t, err)
		if err := sqlstore.CheckRows(ctx, s.Store.DB, false); !errors.Is(err, sqlstore.ErrDamaged) || !strings.Contains(err.Error(), "has counted 4 updates, but 3 receipts are stored") {
			t.Errorf("a deleted receipt: %v", err)
		}
	})
}

// TestReadsChecked checks that reading a changed row reports damage.
func TestReadsChecked(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		s, ctx := fill(t, at), t.Context()
		drive := func(do func(d *Drive) error) error { return s.Drive(ctx, s.lead, "run", do) }
		for _, x := range []struct {
			table, change string
			read          func() error
		}{
			{"partials", "relative_mae = 7", func() error { return s.Partials(ctx, "run", 9, func(Partial) error { return nil }) }},
			{"updates", "loss = 7", func() error { return s.Singles(ctx, "run", 9, func(Single) error { return nil }) }},
			{"receipts", "version = 7", func() error { return drive(func(d *Drive) error { _, _, err := d.Receipts(0); return err }) }},
			{"receipts", "norm = 7", func() error { return s.Sizes(ctx, "run", Round{Round: 1, LastBatch: 9}, func(Share) {}) }},
			{"leases", "version = 7", func() error { _, err := s.Counter.Tasks(ctx, "agent"); return err }},
			{"leases", "no = 7", func() error {
				_, err := s.Counter.Count(ctx, "run", []Arrival{one("agent", 1, 1, "c00005")}, sums(nil))
				return err
			}},
			{"leases", "no = 7", func() error {
				return drive(func(d *Drive) error { _, err := d.Withdraw(after(10000 * time.Hour)); return err })
			}},
			{"versions", "weights = 'w7'", func() error { _, err := s.Version(ctx, "run", 1); return err }},
			{"versions", "server = 'w7'", func() error { _, err := s.RollBack(ctx, "run", 0, "test", t0); return err }},
			{"heads", "weights = 'w7'", func() error { _, err := s.RollBack(ctx, "run", 0, "test", t0); return err }},
			{"counters", "batch = 7", func() error { return drive(func(*Drive) error { return nil }) }},
			{"counters", "receipts = 7", func() error {
				arrivals := []Arrival{one("agent", 1, 1, "c00005")}
				_, err := s.Counter.Count(ctx, "run", arrivals, sums(arrivals))
				return err
			}},
			{"machines", "state = 'other'", func() error { return drive(func(d *Drive) error { _, err := d.Machine(); return err }) }},
			{"members", "client = 'c00000'", func() error {
				return drive(func(d *Drive) error {
					_, _, err := d.Ask(Asking{Round: 2, Version: 1, Members: []int64{7}})
					return err
				})
			}},
			{"rounds", "last_batch = 7", func() error { _, err := s.Rounds(ctx, "run", 0, 9); return err }},
			{"server_data", "fingerprint = 'other'", func() error { return drive(func(d *Drive) error { _, err := d.ServerData(); return err }) }},
			{"releases", "weights = 'w7'", func() error { _, err := s.Releases(ctx); return err }},
			{"runs", "version = 7", func() error { _, err := s.Run(ctx, "run"); return err }},
			{"runs", "batch = 7", func() error {
				_, err := s.Counter.Count(ctx, "run", []Arrival{one("agent", 1, 1, "c00005")}, sums(nil))
				return err
			}},
		} {
			exec := func(text string) {
				t.Helper()
				_, err := s.Store.Write.Exec(text)
				testkit.Must(t, err)
			}
			exec("CREATE TABLE saved AS SELECT * FROM " + x.table)
			exec("UPDATE " + x.table + " SET " + x.change)
			if err := x.read(); !errors.Is(err, sqlstore.ErrDamaged) || !strings.Contains(err.Error(), "table "+x.table+", row ") {
				t.Errorf("%s, %s: %v", x.table, x.change, err)
			}
			if x.table != "runs" { // others refer to runs, which come last
				exec("DELETE FROM " + x.table)
				exec("INSERT INTO " + x.table + " SELECT * FROM saved")
			}
			exec("DROP TABLE saved")
		}
	})
}

// TestDamage flips bits in a database and its log. Either the ledger does not open, or the data
// that determines what is counted is unchanged.
func TestDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	s := fill(t, "sqlite:"+path)
	log, err := exec.Command("cat", path+"-wal").Output() // closing the file in this process would release locks
	testkit.Must(t, err)
	want := content(t, s.Ledger)
	testkit.Must(t, s.Close())
	whole, err := os.ReadFile(path)
	testkit.Must(t, err)

	other := filepath.Join(t.TempDir(), "ledger.db")
	read := func(flip int) (string, error) {
		damaged := bytes.Clone(whole)
		damaged[flip] ^= 0x10
		testkit.Must(t, os.WriteFile(other, damaged, 0o600))
		l, err := Open(t.Context(), "sqlite:"+other)
		if err != nil {
			return "", err
		}
		got := content(t, l)
		testkit.Must(t, l.Close())
		return got, sqlstore.VerifyFile(t.Context(), other) // the next backup does the same
	}
	found := 0
	for off := 0; off < len(whole); off += 3001 {
		got, err := read(off)
		if errors.Is(err, sqlstore.ErrDamaged) {
			found++
		} else if err != nil || got != want {
			t.Errorf("a flip at byte %d: %v", off, err)
		}
	}
	if found < 5 {
		t.Errorf("%d flips were found", found)
	}
	whole[bytes.Index(whole, []byte("server 1"))]++
	testkit.Must(t, os.WriteFile(other, whole, 0o600))
	wantIs(t, sqlstore.VerifyFile(t.Context(), other), sqlstore.ErrDamaged)

	testkit.Must(t, os.WriteFile(other, whole, 0o600))
	log[5000] ^= 1
	testkit.Must(t, os.WriteFile(other+"-wal", log, 0o600))
	_, err = Open(t.Context(), "sqlite:"+other)
	wantIs(t, err, sqlstore.ErrDamaged)
}

// content returns the data that the checksums cover.
func content(t *testing.T, l *Ledger) string {
	t.Helper()
	var all strings.Builder
	for _, table := range slices.Sorted(maps.Keys(sqlstore.SummedTables)) {
		testkit.Must(t, sqlstore.EachSummed(t.Context(), l.Store.DB, table, "", func(values []any, _ int64) error {
			fmt.Fprintln(&all, table, values)
			return nil
		}))
	}
	return all.String()
}

// TestLockedWhileOpen checks that another program, here Python's SQLite, does not remove the
// log of a ledger that this process has open. Otherwise later commits would be lost in a
// crash.
func TestLockedWhileOpen(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
	}
	path := filepath.Join(t.TempDir(), "ledger.db")
	for i := range 2 { // first with a new file, then with an existing one
		l, err := Open(t.Context(), "sqlite:"+path)
		testkit.Must(t, err)
		join(t, l, fmt.Sprint("a", i))
		run("python3", "-c", "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM agents').fetchall(); c.close()", path)
		join(t, l, fmt.Sprint("b", i))
		crashed := t.TempDir()
		// Another process copies the files, because closing them here would release the locks.
		run("sh", "-c", `cp "$0"* "$1"`, path, crashed)
		testkit.Must(t, l.Close())
		c, err := Open(t.Context(), "sqlite:"+filepath.Join(crashed, "ledger.db"))
		testkit.Must(t, err)
		if n, err := c.Directory.Agents(t.Context()); n != int64(2*(i+1)) || err != nil {
			t.Errorf("%d agents, want %d: %v", n, 2*(i+1), err)
		}
		testkit.Must(t, c.Close())
	}
}

// TestCopyWithoutLog checks that a ledger that was copied without its log is refused, and
// accepted again with the log.
func TestCopyWithoutLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	s := plant(t, "sqlite:"+path, 3)
	s.ask(0, 0, 0, 1)
	s.count(one("agent", 0, 0, "c00000"))
	_, err := s.Store.Write.Exec("PRAGMA wal_checkpoint(TRUNCATE)")
	testkit.Must(t, err)
	s.count(one("agent", 0, 0, "c00001"))
	crashed := filepath.Join(t.TempDir(), "ledger.db")
	// Another process copies the files, because closing them here would release the locks.
	for _, suffix := range []string{"", "-wal", sqlstore.WitnessFile} {
		if out, err := exec.Command("cp", path+suffix, crashed+suffix).CombinedOutput(); err != nil {
			t.Fatal(string(out))
		}
	}
	testkit.Must(t, os.Rename(crashed+"-wal", crashed+".log"))
	_, err = Open(t.Context(), "sqlite:"+crashed)
	wantIs(t, err, sqlstore.ErrOlder)
	testkit.Must(t, os.Rename(crashed+".log", crashed+"-wal"))
	l := open(t, "sqlite:"+crashed)
	pgtest.Equal(t, "batches", l.newest(t, "run"), 2)
}
