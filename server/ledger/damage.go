package ledger

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"loadstar/internal/backoff"
	"loadstar/internal/pagesum"
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
		switch code := lite.Code(); {
		case code == pagesum.Failed:
			return fmt.Errorf("%w: the checksum of a page is wrong", ErrDamaged)
		case code&0xff == sqlite3.SQLITE_CORRUPT, code&0xff == sqlite3.SQLITE_NOTADB:
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
	case errors.As(err, &post) && (post.Code == "XX001" || post.Code == "XX002"): // data_corrupted, index_corrupted
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return err
}

// asUnwritable adds the likely cause to the errors with which SQLite reports that it could not
// write. Its own text is "disk I/O error" and a number.
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

// checked has the SQLite files that ledgers of this process use. A file is checked when the
// first of them opens it, and stays open for as long as any of them: closing a file releases
// all locks that the process holds on it, and another process could then remove the log.
var checked struct {
	mu sync.Mutex
	by map[string]*checkedFile // by path
}

type checkedFile struct {
	*os.File
	ledgers int
}

// check connects to a SQLite database and checks it for damage.
func (l *Ledger) check(ctx context.Context) error {
	checked.mu.Lock()
	defer checked.mu.Unlock()
	if f := checked.by[l.path]; f != nil {
		f.ledgers++
		l.file = f
		return l.connect(ctx)
	}
	if err := l.checkLog(ctx); err != nil {
		return err
	}
	if err := l.connect(ctx); err != nil {
		return err
	}
	file, err := os.Open(l.path)
	if err != nil {
		return err
	}
	l.file = &checkedFile{file, 1}
	if checked.by == nil {
		checked.by = map[string]*checkedFile{}
	}
	checked.by[l.path] = l.file
	if err := l.checkPages(ctx); err != nil {
		return err
	}
	return l.addChecksums(ctx)
}

// uncheck closes the checked file if no other ledger needs it. Call it when the connections
// are closed.
func (l *Ledger) uncheck() {
	checked.mu.Lock()
	defer checked.mu.Unlock()
	f := l.file
	if f == nil {
		return
	}
	l.file = nil
	if f.ledgers--; f.ledgers == 0 {
		delete(checked.by, l.path)
		_ = f.Close() // it was only read
	}
}

// checkLog returns an error if transactions in SQLite's write-ahead log cannot be read. Call
// it before the first connection, which may change the log.
func (l *Ledger) checkLog(ctx context.Context) error {
	return patiently(ctx, pagesum.ErrLog, func() error { return pagesum.CheckLog(l.path) })
}

// checkPages checks all pages of a SQLite database, so that a damaged one is found when the
// server starts and not years later. It first moves the log into the database file: the
// power may have failed while SQLite did that, and pages that are in the log too may then be
// wrong in the file.
func (l *Ledger) checkPages(ctx context.Context) error {
	if _, err := l.write.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)"); err != nil {
		return err
	}
	return patiently(ctx, pagesum.ErrPage, func() error { return pagesum.Verify(l.file.File) })
}

// patiently repeats a check that has found damage: if another process is writing the file,
// it may look damaged for a moment.
func patiently(ctx context.Context, damage error, check func() error) (err error) {
	for try := range 3 {
		if try > 0 {
			if ended := backoff.Sleep(ctx, 200*time.Millisecond); ended != nil {
				return ended
			}
		}
		if err = check(); !errors.Is(err, damage) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", ErrDamaged, err)
}

// checksumsFrom is the version of the schema from which on all pages of a SQLite database
// have checksums.
const checksumsFrom = 7

// addChecksums adds checksums to the pages of a SQLite database that an older version wrote.
// The database must have them before its schema says so: older versions refuse the newer
// schema, and do not write pages without checksums.
func (l *Ledger) addChecksums(ctx context.Context) error {
	if has, err := pagesum.Has(l.file.File); has || err != nil {
		return err
	}
	_, version, err := l.schema(ctx)
	if err != nil {
		return err
	}
	if version >= checksumsFrom {
		return fmt.Errorf("%s: %w: its header does not say that its pages have checksums", l.path, ErrDamaged)
	}
	for _, text := range []string{"VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"} {
		if _, err := l.write.ExecContext(ctx, text); err != nil {
			return fmt.Errorf("adding checksums: %w", err)
		}
	}
	has, err := pagesum.Has(l.file.File)
	if err == nil && !has {
		err = errors.New("adding checksums: the pages still have none")
	}
	return err
}

// VerifyFile checks all pages of the copy of a SQLite ledger.
func VerifyFile(path string) error {
	if _, err := os.Stat(path + "-wal"); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s has a write-ahead log: only a copy that no process uses can be verified", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return pagesum.Verify(f)
}
