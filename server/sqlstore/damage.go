package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"loadstar/internal/backoff"
)

// ErrDamaged means that the disk does not return what was written to the database.
var ErrDamaged = errors.New("the database is damaged; stop the server, keep a copy of its folder, and restore the newest backup")

// asDamage adds ErrDamaged to the errors with which SQLite and PostgreSQL report damage.
func asDamage(err error) error {
	var lite *sqlite.Error
	var post *pgconn.PgError
	switch {
	case errors.Is(err, ErrDamaged):
		return err
	case errors.As(err, &lite):
		switch lite.Code() & 0xff {
		case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
	case errors.As(err, &post) && (post.Code == "XX001" || post.Code == "XX002"): // data_corrupted, index_corrupted
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return err
}

// asOtherTables adds ErrDamaged to the error of a statement that SQLite cannot compile although all
// migrations have run, because the names of tables or columns are then damaged.
func asOtherTables(err error) error {
	if lite, ok := errors.AsType[*sqlite.Error](err); ok && lite.Code() == sqlite3.SQLITE_ERROR {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return err
}

// asUnwritable adds the likely cause to the errors with which SQLite reports that it could not
// write. SQLite's own message is "disk I/O error" and a number.
func asUnwritable(err error) error {
	var lite *sqlite.Error
	if !errors.As(err, &lite) {
		return err
	}
	switch lite.Code() {
	case sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_TRUNCATE, sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC,
		sqlite3.SQLITE_IOERR_SHMOPEN, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_SHMMAP:
		return fmt.Errorf("the disk is full, read-only or failing: %w", err)
	}
	return err
}

// checked counts this process's open ledgers by SQLite file. Only the first ledger of a file
// checks the log, before it connects. A later check would close SQLite's index of the log,
// which releases all of the process's locks on the index, so another process could remove the
// log.
var checked struct {
	mu sync.Mutex
	by map[string]int
}

// check connects to a SQLite database and checks it for damage.
func (s *Store) check(ctx context.Context) error {
	checked.mu.Lock()
	defer checked.mu.Unlock()
	if checked.by == nil {
		checked.by = map[string]int{}
	}
	first := checked.by[s.path] == 0
	if first {
		if err := patiently(ctx, func() error { return checkLog(s.path) }); err != nil {
			return err
		}
	}
	checked.by[s.path]++
	s.checked = true
	if err := s.connect(ctx); err != nil || !first {
		return err
	}
	return checkIntegrity(ctx, s.DB, "integrity_check")
}

// uncheck records that the connections are closed.
func (s *Store) uncheck() {
	checked.mu.Lock()
	defer checked.mu.Unlock()
	if s.checked {
		s.checked = false
		checked.by[s.path]--
	}
}

// checkIntegrity returns an error if the structure of a SQLite database is damaged or a
// reference does not match its table. It reads the whole file. The pragma integrity_check also
// compares indexes with their tables, which takes six times as long as quick_check.
func checkIntegrity(ctx context.Context, q Querier, pragma string) error {
	var said []string
	if err := Query(ctx, q, func(r *sql.Rows) error {
		var text string
		err := r.Scan(&text)
		if text != "ok" {
			said = append(said, text)
		}
		return err
	}, "PRAGMA "+pragma+"(5)"); err != nil {
		return asDamage(err)
	}
	if err := Query(ctx, q, func(r *sql.Rows) error {
		var table, parent string
		var row, key sql.NullInt64
		err := r.Scan(&table, &row, &parent, &key)
		said = append(said, fmt.Sprintf("a row of %s refers to a row of %s that does not exist", table, parent))
		return err
	}, "PRAGMA foreign_key_check"); err != nil {
		return asDamage(err)
	}
	if len(said) > 0 {
		return fmt.Errorf("%w: %s", ErrDamaged, strings.Join(said[:min(len(said), 5)], "; "))
	}
	return nil
}

// patiently repeats a check of the log if it finds damage, because a log that another process
// is writing may look damaged for a moment.
func patiently(ctx context.Context, check func() error) (err error) {
	for try := range 3 {
		if try > 0 {
			if ended := backoff.Sleep(ctx, 200*time.Millisecond); ended != nil {
				return ended
			}
		}
		if err = check(); !errors.Is(err, errLog) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", ErrDamaged, err)
}

// VerifyFile checks the copy of a SQLite ledger. It checks the structure, and the checksums
// of rows unless an older version wrote them.
func VerifyFile(ctx context.Context, path string) (err error) {
	defer Wrap(&err, "verifying", path)
	if _, err := os.Stat(path + "-wal"); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s has a write-ahead log: only a copy that no process uses can be verified", path)
	}
	// SQLite creates no files next to an immutable database.
	db, err := sql.Open("sqlite", sqliteFile(path)+"?mode=ro&immutable=1")
	if err != nil {
		return err
	}
	defer db.Close()
	if err := checkIntegrity(ctx, db, "integrity_check"); err != nil {
		return err
	}
	p, err := migrations(goose.DialectSQLite3, db)
	if err != nil {
		return err
	}
	var version int64
	if err := db.QueryRowContext(ctx, "SELECT MAX(version_id) FROM goose_db_version").Scan(&version); err != nil || version < newestOf(p) {
		return err // an older schema may have other columns
	}
	return CheckRows(ctx, db, true)
}

// sqliteFile returns the name under which SQLite opens a database file.
func sqliteFile(path string) string { return "file:" + (&url.URL{Path: path}).EscapedPath() }
