package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"loadstar/rig/product"
)

// foreignCase is an action of another program or a person on the ledger of a killed server.
type foreignCase struct {
	name string
	// sqlite is the input of Debian's sqlite3. python is a program whose variable c is a
	// connection. shell is a script whose first argument is the ledger.
	sqlite, python, shell string
	running               bool // the action takes place while the server runs, which is killed afterwards
	// refused is a part of the server's message if the server must not start. The ledger is
	// then restored. either means that the server may also start, and must then count
	// correctly.
	refused string
	either  bool
}

// die ends sqlite3 without giving it a chance to clean up.
const die = "\n.shell kill -9 $PPID\n"

// spill makes sqlite3 write pages of a transaction to the log before the commit.
const spill = "PRAGMA cache_size = 5; BEGIN; CREATE TABLE other (b BLOB); WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 99) INSERT INTO other SELECT zeroblob(5000) FROM n;"

// replace is the end of a script that replaces the ledger with the file next to it.
const replace = ` && rm -f "$1" "$1-wal" "$1-shm" && mv "$1.new" "$1"`

var foreignCases = []foreignCase{
	{name: "Python reads it", python: "c.execute('SELECT count(*) FROM receipts').fetchall()"},
	{name: "sqlite3 reads it", sqlite: "SELECT count(*) FROM receipts;"},
	{name: "sqlite3 is killed while it reads", sqlite: "BEGIN; SELECT count(*) FROM receipts;" + die},
	{name: "sqlite3 is killed while it writes", sqlite: spill + die},
	{name: "sqlite3 undoes a write and is killed", sqlite: spill + "ROLLBACK; CREATE TABLE other (n INTEGER); DROP TABLE other;" + die},
	{name: "integrity_check", sqlite: "PRAGMA integrity_check; PRAGMA foreign_key_check;"},
	{name: "VACUUM", sqlite: "VACUUM;"},
	{name: "VACUUM INTO, and the copy replaces it", shell: `sqlite3 -bail "$1" "VACUUM INTO '$1.new'"` + replace},
	{name: ".backup, and the copy replaces it", shell: `sqlite3 -bail "$1" ".backup '$1.new'"` + replace},
	{name: ".dump, and what it makes replaces it", shell: `sqlite3 -bail "$1" .dump | sqlite3 -bail "$1.new"` + replace},
	{name: "wal_checkpoint(TRUNCATE)", sqlite: "PRAGMA wal_checkpoint(TRUNCATE);" + die},
	{name: "wal_checkpoint(FULL)", sqlite: "PRAGMA wal_checkpoint(FULL);" + die},
	{name: "wal_checkpoint(RESTART) and a write", sqlite: "PRAGMA wal_checkpoint(RESTART); CREATE TABLE mine (n INTEGER); INSERT INTO mine VALUES (1); DROP TABLE mine;" + die},
	{name: "a table of its own", python: "c.execute('CREATE TABLE notes (n INTEGER, t TEXT)'); c.execute('INSERT INTO notes VALUES (1, 2)'); c.commit()"},
	{name: "an agent's name is changed", sqlite: "UPDATE agents SET name = name || ' (changed)';"},
	{name: "ANALYZE and REINDEX", sqlite: "ANALYZE; REINDEX;"},
	{name: "journal_mode = DELETE", sqlite: "PRAGMA journal_mode = DELETE;"},
	{name: "page size and auto_vacuum", sqlite: "PRAGMA journal_mode = DELETE; PRAGMA page_size = 8192; PRAGMA auto_vacuum = INCREMENTAL; VACUUM;"},
	{name: "the index of the log is removed", shell: `rm "$1-shm"`},
	// If nothing was counted since SQLite last moved the log into the file, no counted update
	// is lost.
	{name: "it is copied without its log", shell: `cp "$1" "$1.new"` + replace, refused: "lacks updates that were counted", either: true},
	{name: "a receipt is deleted", sqlite: "DELETE FROM receipts WHERE rowid = (SELECT max(rowid) FROM receipts);", refused: "receipts are stored; the others were deleted or lost"},
	{name: "a run is changed", sqlite: "UPDATE runs SET batch = batch - 1;", refused: "table runs, row "},
	{name: "a version is changed", sqlite: "UPDATE versions SET weights = control WHERE version = (SELECT max(version) FROM versions);", refused: "table versions, row "},
	{name: "sqlite3 and Python read it while the server runs", running: true, sqlite: "SELECT count(*) FROM receipts; PRAGMA wal_checkpoint;", python: "c.execute('SELECT count(*) FROM agents').fetchall()"},
	{name: "sqlite3 copies it while the server runs", running: true, shell: `sqlite3 -bail "$1" "VACUUM INTO '$1.copy'" && rm "$1.copy"`},
}

// foreign is the injector of the actions of other programs.
type foreign struct {
	*repeated
	right, cases int
}

func newForeign(t *trial, log io.Writer) *foreign {
	f := &foreign{repeated: newRepeated(t, log, kindServer)}
	f.once = f.use
	return f
}

// Each case is used once.
func (f *foreign) run(ctx context.Context, n int) {
	f.cases = min(n, len(foreignCases))
	f.repeated.run(ctx, f.cases)
}

// line returns the last line of the output. If the fleet has counted wrongly, the case that
// caused it is not known.
func (f *foreign) line() string {
	if x := f.findings; x != nil && x.lost+x.twice+len(f.differ) > 0 {
		return fmt.Sprintf("foreign %d cases, 0 right: the fleet has counted wrong", f.cases)
	}
	return fmt.Sprintf("foreign %d cases, %d right", f.cases, f.right)
}

// refusesLedger reports whether a server ended because it refused its ledger. The method
// use decides whether the refusal was correct.
func refusesLedger(exit string) bool {
	return strings.Contains(exit, "ended by itself") && strings.Contains(exit, "the database")
}

// use kills the server, lets another program use the ledger, and starts the server again. If
// the server does not start, use restores the ledger, so that the other cases can be tried.
func (f *foreign) use(ctx context.Context, i int) error {
	x, server, path := foreignCases[i], f.system.servers[0].(*process), f.system.ledger.path
	if x.running {
		if err := x.act(ctx, path); err != nil {
			return err
		}
	}
	f.begin(kindServer, "%s", x.name)
	f.system.ledger.away.Lock() // the watcher must not read files that are being replaced
	err := server.Kill()
	if err == nil {
		err = copyLedger(path, path+".before")
	}
	if err == nil && !x.running {
		err = x.act(ctx, path)
	}
	f.system.ledger.away.Unlock()
	if err != nil {
		return fmt.Errorf("%s: %w", x.name, err)
	}
	refusal, err := f.restart(ctx, server)
	if err != nil {
		return err
	}
	switch {
	case refusal == "" && (x.refused == "" || x.either), x.refused != "" && strings.Contains(refusal, x.refused):
		f.right++
	case refusal == "":
		f.wrong("%s: the server starts, although it should say: %s", x.name, x.refused)
	default:
		f.wrong("%s: the server refuses its ledger: %s", x.name, refusal)
	}
	if refusal == "" && (x.refused == "" || x.either) {
		return nil
	}
	f.system.ledger.away.Lock()
	err = errors.Join(server.Kill(), copyLedger(path+".before", path))
	f.system.ledger.away.Unlock()
	if err != nil {
		return err
	}
	if refusal, err := f.restart(ctx, server); err != nil || refusal != "" {
		return fmt.Errorf("%s: the server does not start with its own ledger: %s: %w", x.name, refusal, err)
	}
	return nil
}

func (f *foreign) wrong(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.found = append(f.found, fmt.Sprintf(format, args...))
}

// restart starts the server, and waits until it is ready or has ended by itself. If it
// ended, restart returns the server's message.
func (f *foreign) restart(ctx context.Context, server *process) (refusal string, err error) {
	before := len(server.Exits())
	if err := server.Start(); err != nil {
		return "", err
	}
	watch := server.args[slices.Index(server.args, "--watch")+1]
	client := http.Client{Timeout: time.Second}
	for end := time.Now().Add(f.patience); time.Now().Before(end); {
		if exits := server.Exits(); len(exits) > before {
			return exits[before], server.Kill()
		}
		if r, err := client.Get("http://" + watch + "/readyz"); err == nil {
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return "", nil
			}
		}
		if product.Sleep(ctx, 20*time.Millisecond) != nil {
			return "", ctx.Err()
		}
	}
	return "", fmt.Errorf("the server neither became ready nor ended within %s: %s", f.patience, server.Log(500))
}

// copyLedger copies a ledger with its log. It first removes the target's files.
func copyLedger(from, to string) error {
	for _, suffix := range []string{"", "-wal", "-shm", "-journal"} {
		if err := os.RemoveAll(to + suffix); err != nil {
			return err
		}
		if err := copyFile(from+suffix, to+suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// act carries out the case on a ledger.
func (x *foreignCase) act(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	run := func(input, name string, args ...string) error {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir, cmd.Stdin = filepath.Dir(path), strings.NewReader(input)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		err := cmd.Run()
		killed := strings.HasSuffix(input, die) && cmd.ProcessState != nil && cmd.ProcessState.ExitCode() < 0
		if err != nil && !killed {
			return fmt.Errorf("%s: %w: %s", name, err, out.String())
		}
		return nil
	}
	if x.sqlite != "" {
		if err := run(".timeout 10000\n"+x.sqlite, "sqlite3", "-bail", path); err != nil {
			return err
		}
	}
	if x.python != "" {
		if err := run("", "python3", "-c", "import sqlite3, sys\nc = sqlite3.connect(sys.argv[1], timeout=10)\n"+x.python+"\nc.close()", path); err != nil {
			return err
		}
	}
	if x.shell != "" {
		return run("", "sh", "-c", x.shell, "sh", path)
	}
	return nil
}
