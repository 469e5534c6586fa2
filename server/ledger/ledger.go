// Package ledger is the server's memory, in SQL: who may take part, what runs, and
// what was counted. SQLite serves a pilot and PostgreSQL a fleet, with one schema
// and the same statements.
//
// The promise that everything else leans on: an update counts when the deletion of
// its lease, its receipt and the sum that it went into commit together. What comes
// before may be repeated, what comes after is final.
package ledger

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"modernc.org/sqlite" // the driver sqlite
	sqlite3 "modernc.org/sqlite/lib"

	"loadstar/internal/backoff"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Ledger is a database. It is safe for concurrent use.
type Ledger struct {
	db    *sql.DB
	write *sql.DB // of SQLite one connection, as it has one writer at a time
	read  querier // db, for what is asked all the time
	lite  bool
	// chunk is how many rows go into one statement. Of PostgreSQL every connection keeps
	// a statement of each length, and a long list has it read a whole table; SQLite is
	// asked without a journey, and its driver takes time by the square of the length.
	chunk  int
	events atomic.Uint64 // that were noted here

	// What agents' calls ask, and the end of who answers.
	callers     coalescer[string, Caller]
	tasks       coalescer[string, []Task]
	asked, over coalescer[turnsOf, map[string]Standing]
	versions    coalescer[versionKey, *Version]
	open        context.Context // until it is closed
	end         context.CancelFunc
	answering   sync.WaitGroup
}

// Open opens sqlite:PATH or postgres://…, and brings its schema up to date. Several
// processes may do so at once.
func Open(ctx context.Context, at string) (_ *Ledger, err error) {
	defer wrap(&err, "opening the database")
	l := &Ledger{}
	l.open, l.end = context.WithCancel(context.WithoutCancel(ctx))
	if path, ok := strings.CutPrefix(at, "sqlite:"); ok {
		err = l.openLite(path)
	} else if strings.HasPrefix(at, "postgres://") || strings.HasPrefix(at, "postgresql://") {
		err = l.openPostgres(at)
	} else {
		return nil, fmt.Errorf("%q is neither sqlite:PATH nor postgres://…", at)
	}
	if err != nil {
		return nil, err
	}
	l.callers.start(l, l.callersOf)
	l.tasks.start(l, l.tasksOf)
	l.asked.start(l, l.standingsQuery(askedTurns))
	l.over.start(l, l.standingsQuery(overTurns))
	l.versions.start(l, l.versionsOf)
	if err := l.migrate(ctx); err != nil {
		_ = l.Close() // the first error says more
		return nil, fmt.Errorf("migrating the schema: %w", err)
	}
	return l, nil
}

func (l *Ledger) openLite(path string) (err error) {
	if path == "" || path == ":memory:" {
		return errors.New("sqlite: needs a file")
	}
	l.lite, l.chunk = true, 32
	file := "file:" + (&url.URL{Path: path}).EscapedPath()
	options := url.Values{"_pragma": {"journal_mode(WAL)", "synchronous(FULL)", "busy_timeout(10000)", "foreign_keys(1)"}}
	if l.db, err = sql.Open("sqlite", file+"?"+options.Encode()); err != nil {
		return err
	}
	options.Set("_txlock", "immediate")
	if l.write, err = sql.Open("sqlite", file+"?"+options.Encode()); err != nil {
		return err
	}
	l.write.SetMaxOpenConns(1)
	l.db.SetMaxOpenConns(12)
	l.db.SetMaxIdleConns(12) // one that is closed takes longer to open again than to answer
	l.read = &prepared{db: l.db, byText: map[string]*sql.Stmt{}}
	return nil
}

func (l *Ledger) openPostgres(at string) (err error) {
	l.chunk = 64
	config, err := pgx.ParseConfig(at)
	if err != nil {
		return err
	}
	// A plan is made for every question: one that was kept from when a table was empty
	// reads the whole of it when it is full, round after round.
	l.db = stdlib.OpenDB(*config, stdlib.OptionAfterConnect(func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, "SET plan_cache_mode = force_custom_plan")
		return err
	}))
	l.db.SetMaxOpenConns(24)
	l.db.SetMaxIdleConns(24)
	l.db.SetConnMaxIdleTime(5 * time.Minute)
	l.write, l.read = l.db, l.db // its driver prepares by itself
	return nil
}

// connect makes SQLite's first connection. If several processes create the file at the
// same time, some are told at once that it is busy, without busy_timeout.
func (l *Ledger) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, connectWithin)
	defer cancel()
	retry := backoff.Backoff{Base: 20 * time.Millisecond, Cap: 100 * time.Millisecond}
	for {
		err := l.write.PingContext(ctx)
		var failure *sqlite.Error
		if !errors.As(err, &failure) || failure.Code()&0xff != sqlite3.SQLITE_BUSY {
			return err
		}
		if ended := retry.Wait(ctx); ended != nil {
			return fmt.Errorf("%w; last: %w", ended, err)
		}
	}
}

const connectWithin = 10 * time.Second

// migrationLock keeps two servers from migrating one database at once.
const migrationLock = 0x6c6f6164 // "load"

func (l *Ledger) migrate(ctx context.Context) error {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	dialect := goose.DialectSQLite3
	if l.lite {
		if err := l.connect(ctx); err != nil {
			return err
		}
	} else {
		dialect = goose.DialectPostgres
		conn, err := l.db.Conn(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := conn.ExecContext(ctx, "SELECT pg_advisory_lock($1)", migrationLock); err != nil {
			return err
		}
		defer func() {
			_, _ = conn.ExecContext(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock($1)", migrationLock)
		}() // the lock ends with the connection
	}
	p, err := goose.NewProvider(dialect, l.write, files)
	if err != nil {
		return err
	}
	sources := p.ListSources()
	newest := sources[len(sources)-1].Version
	for {
		before, err := p.GetDBVersion(ctx)
		if err != nil {
			return err
		}
		if before > newest { // goose ignores migrations that it does not know
			return fmt.Errorf("the ledger was written by a newer Loadstar (schema %d, this one knows %d): upgrade", before, newest)
		}
		if _, err = p.Up(ctx); err == nil || !l.lite {
			return err
		}
		// SQLite has no lock for this: another process may have been faster.
		if now, failed := p.GetDBVersion(ctx); failed != nil || now == before {
			return err
		}
	}
}

// Close closes the database.
func (l *Ledger) Close() (err error) {
	defer wrap(&err, "closing the database")
	l.end()
	l.answering.Wait()
	if l.lite {
		return errors.Join(l.write.Close(), l.db.Close())
	}
	return l.db.Close()
}

// Healthy says whether the database answers.
func (l *Ledger) Healthy(ctx context.Context) (err error) {
	defer wrap(&err, "checking the database")
	return l.db.PingContext(ctx)
}

// Backup writes a whole copy of a SQLite ledger to a new file, while others go on.
func (l *Ledger) Backup(ctx context.Context, path string) (err error) {
	defer wrap(&err, "backing up to", path)
	if !l.lite {
		return errors.New("PostgreSQL is backed up by its own tools, such as pg_dump")
	}
	_, err = l.db.ExecContext(ctx, "VACUUM INTO $1", path)
	return err
}

// update runs do in a transaction. On an error the transaction did not happen, but
// for one of its commit, after which nobody knows.
func (l *Ledger) update(ctx context.Context, do func(tx *sql.Tx) error) error {
	tx, err := l.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit there is nothing to undo
	if err := do(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// lockClause ends a SELECT that locks its rows. SQLite needs none, because it has a single
// writer.
func (l *Ledger) lockClause(how string) string {
	if l.lite {
		return ""
	}
	return " FOR " + how
}

// placeholders returns rows of numbered placeholders: ($1,$2),($3,$4) and so on. It starts
// after those that are taken.
func placeholders(taken, rows, columns int) string {
	var b strings.Builder
	for r := range rows {
		if r > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('(')
		for c := range columns {
			if c > 0 {
				b.WriteByte(',')
			}
			b.WriteByte('$')
			b.WriteString(strconv.Itoa(taken + r*columns + c + 1))
		}
		b.WriteByte(')')
	}
	return b.String()
}

// inList returns one row of placeholders, for IN.
func inList(taken, n int) string { return placeholders(taken, 1, n) }

func toMillis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func fromMillis(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// querier is a database or a transaction.
type querier interface {
	QueryContext(context.Context, string, ...any) (*sql.Rows, error)
}

// query calls each for every row.
func query(ctx context.Context, q querier, each func(*sql.Rows) error, text string, args ...any) error {
	rows, err := q.QueryContext(ctx, text, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}
