// Package ledger is the server's database: agents, clients, runs, and counted updates. A
// small installation uses SQLite and a large one PostgreSQL. Both have the same schema and
// statements.
//
// The server relies on one guarantee of this package: an update is counted by a single
// transaction, which deletes its lease, adds its receipt and stores the sum that includes
// it. Everything before the commit may be repeated; everything after it is final.
package ledger

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3"
	"modernc.org/sqlite" // also registers the driver
	sqlite3 "modernc.org/sqlite/lib"

	"loadstar/internal/backoff"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Ledger is a database. It is safe for concurrent use.
type Ledger struct {
	db     *pool
	write  *pool   // for writing; with SQLite one connection, because it allows one writer
	read   querier // for frequent queries; with SQLite it caches prepared statements
	sqlite bool
	path   string // of SQLite's file
	// checked means that the ledger is one of those in the variable of this name.
	checked bool
	witness struct {
		sync.Mutex
		*os.File
	}
	// chunk is the number of rows in one statement. PostgreSQL caches a statement of each
	// length per connection, and scans the whole table for a long list. SQLite has no
	// network round trip, and its driver takes time proportional to the square of the
	// length.
	chunk  int
	events atomic.Uint64 // number of audit events added by this process
	clock  clock
	limit  atomic.Int64 // how long a statement may take in PostgreSQL, as a time.Duration
	slot   int64        // of this process in the table counters

	notified notifications
	listener *pgx.ConnConfig // how to connect to receive notifications; nil for SQLite
	hosts    hosts           // of PostgreSQL
	// commitFor limits a commit in PostgreSQL.
	commitFor time.Duration

	// The queries that agents' calls make most often, and the context and goroutines that
	// answer them.
	callers     coalescer[string, Caller]
	tasks       coalescer[string, []Task]
	asked, over coalescer[turnsOf, map[string]Standing]
	versions    coalescer[versionKey, *Version]
	open        context.Context // done when the ledger is closed
	end         context.CancelFunc
	answering   sync.WaitGroup
}

// Open opens the database at sqlite:PATH or postgres://… and migrates its schema. Several
// processes may open it at the same time.
func Open(ctx context.Context, at string) (*Ledger, error) { return openBy(ctx, at, time.Now) }

// openBy is Open on a machine with the given clock.
func openBy(ctx context.Context, at string, local func() time.Time) (_ *Ledger, err error) {
	defer wrap(&err, "opening the database")
	return openDatabase(ctx, at, local, (*Ledger).migrate)
}

func openDatabase(ctx context.Context, at string, local func() time.Time, prepare func(*Ledger, context.Context) error) (_ *Ledger, err error) {
	l := &Ledger{clock: clock{local: local}}
	l.open, l.end = context.WithCancel(context.WithoutCancel(ctx))
	if path, ok := strings.CutPrefix(at, "sqlite:"); ok {
		err = l.openLite(path)
	} else if strings.HasPrefix(at, "postgres://") || strings.HasPrefix(at, "postgresql://") {
		err = l.openPostgres(at)
	} else {
		return nil, fmt.Errorf("%q is not a database address: want sqlite:PATH or postgres://…", at)
	}
	if err != nil {
		return nil, err
	}
	l.slot = l.newSlot()
	l.callers.start(l, l.callersOf)
	l.tasks.start(l, l.tasksOf)
	l.asked.start(l, l.standingsQuery(askedTurns))
	l.over.start(l, l.standingsQuery(overTurns))
	l.versions.start(l, l.versionsOf)
	if err := prepare(l, ctx); err != nil {
		_ = l.Close() // report the error that made opening fail, not a second one
		return nil, fmt.Errorf("migrating the schema: %w", err)
	}
	if err := l.readClock(ctx); err != nil {
		_ = l.Close() // report the error that made opening fail, not a second one
		return nil, fmt.Errorf("reading the clock: %w", err)
	}
	l.limit.Store(int64(silentFor))
	l.answering.Go(l.followClock)
	return l, nil
}

func (l *Ledger) openLite(path string) (err error) {
	if path == "" || path == ":memory:" {
		return errors.New("sqlite: needs the path of a file, as in sqlite:ledger.db")
	}
	l.sqlite, l.chunk, l.path = true, 32, path
	file := sqliteFile(path)
	options := url.Values{"_pragma": {"journal_mode(WAL)", "synchronous(FULL)", "busy_timeout(10000)", "foreign_keys(1)"}}
	db, err := sql.Open("sqlite", file+"?"+options.Encode())
	if err != nil {
		return err
	}
	options.Set("_txlock", "immediate")
	write, err := sql.Open("sqlite", file+"?"+options.Encode())
	if err != nil {
		return err
	}
	w := new(work)
	l.db, l.write = &pool{DB: db, work: w}, &pool{DB: write, work: w}
	l.write.SetMaxOpenConns(1)
	l.db.SetMaxOpenConns(12)
	l.db.SetMaxIdleConns(12) // opening a connection takes longer than a query
	l.read = &prepared{db: db, work: w, byText: map[string]*sql.Stmt{}}
	return nil
}

// makePrivate takes the rights of others away from SQLite's files. It does not open them,
// because closing a file releases the locks that SQLite holds on it. SQLite gives the files
// beside the database its rights when it creates them.
func makePrivate(path string) error {
	for _, p := range []string{path, path + "-wal", path + "-shm"} {
		if err := os.Chmod(p, 0o600); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// connect opens SQLite's first connection. If several processes create the file at the
// same time, some get SQLITE_BUSY at once, in spite of busy_timeout.
func (l *Ledger) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, connectWithin)
	defer cancel()
	retry := backoff.Backoff{Base: 20 * time.Millisecond, Cap: 100 * time.Millisecond}
	for {
		err := l.write.PingContext(ctx)
		var failure *sqlite.Error
		if err == nil {
			return makePrivate(l.path)
		}
		if !errors.As(err, &failure) || failure.Code()&0xff != sqlite3.SQLITE_BUSY {
			return err
		}
		if ended := retry.Wait(ctx); ended != nil {
			return fmt.Errorf("%w; last: %w", ended, err)
		}
	}
}

const connectWithin = 10 * time.Second

// migrationLock prevents two servers from migrating one database at the same time.
const migrationLock = 0x6c6f6164 // "load"

// schema returns the program that migrates the schema, and the schema's version. It fails
// if a newer Loadstar wrote it, which goose does not check.
func (l *Ledger) schema(ctx context.Context) (p *goose.Provider, version int64, err error) {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, 0, err
	}
	dialect := goose.DialectSQLite3
	if !l.sqlite {
		dialect = goose.DialectPostgres
	}
	sums := goose.NewGoMigration(sumsFrom, &goose.GoFunc{RunTx: sumRows}, nil)
	if p, err = goose.NewProvider(dialect, l.write.DB, files, goose.WithGoMigrations(sums)); err != nil {
		return nil, 0, err
	}
	if version, err = p.GetDBVersion(ctx); err != nil {
		return nil, 0, err
	}
	sources := p.ListSources()
	if newest := sources[len(sources)-1].Version; version > newest {
		return nil, 0, fmt.Errorf("the ledger was written by a newer Loadstar (schema %d, this one knows %d): upgrade", version, newest)
	}
	return p, version, nil
}

func (l *Ledger) migrate(ctx context.Context) error {
	if l.sqlite {
		if err := l.check(ctx); err != nil {
			return err
		}
	} else {
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
		}() // if unlocking fails, the lock ends with the connection
	}
	for {
		p, before, err := l.schema(ctx)
		if err != nil {
			return err
		}
		if _, err = p.Up(ctx); err == nil {
			if l.sqlite {
				if err := checkRows(ctx, l.db, false); err != nil {
					return err
				}
				if err := l.checkWitness(ctx); err != nil {
					return err
				}
			}
			return errors.Join(l.adaptPostgres(ctx), l.identifyTokens(ctx))
		} else if !l.sqlite {
			return err
		}
		// SQLite has no advisory lock, so another process may have migrated the schema in
		// the meantime.
		if now, failed := p.GetDBVersion(ctx); failed != nil || now == before {
			return err
		}
	}
}

// prefixClause returns a condition that a column begins with a text. It adds its arguments
// to args.
func (l *Ledger) prefixClause(column, prefix string, args *[]any) string {
	if l.sqlite {
		*args = append(*args, prefix, prefix+"\U0010ffff")
		return fmt.Sprintf("%s >= $%d AND %s < $%d", column, len(*args)-1, column, len(*args))
	}
	*args = append(*args, strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(prefix)+"%")
	return fmt.Sprintf("%s LIKE $%d", column, len(*args))
}

// Close closes the database.
func (l *Ledger) Close() (err error) {
	defer wrap(&err, "closing the database")
	l.end()
	l.answering.Wait()
	if l.sqlite {
		err = errors.Join(l.write.Close(), l.db.Close())
		l.uncheck()
		if l.witness.File != nil {
			err = errors.Join(err, l.witness.Close())
			l.witness.File = nil
		}
		return err
	}
	return l.db.Close()
}

// Healthy returns an error if the database does not answer.
func (l *Ledger) Healthy(ctx context.Context) (err error) {
	defer wrap(&err, "checking the database")
	return l.db.PingContext(ctx)
}

// update runs do in a transaction. If do fails, the transaction is rolled back. If the
// commit fails, it is unknown whether it took effect.
func (l *Ledger) update(ctx context.Context, do func(tx *txn) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return l.write.transaction(ctx, func() error {
		begun, err := l.write.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		tx := &txn{begun, l.write.work}
		defer func() { _ = tx.Rollback() }() // does nothing after a commit
		if err := do(tx); err != nil {
			return err
		}
		if err := l.write.pass(ctx, Commit, ""); err != nil {
			return err
		}
		l.write.work.transactions.Add(1)
		if l.sqlite {
			return tx.Commit()
		}
		late := time.AfterFunc(l.commitFor, cancel)
		if err = tx.Commit(); err != nil && !late.Stop() && ctx.Err() != nil {
			l.hosts.doubt()
			return fmt.Errorf("the commit was not confirmed within %s: %w", l.commitFor, os.ErrDeadlineExceeded)
		}
		return err
	})
}

// lockClause returns the end of a SELECT that locks its rows. It is empty for SQLite, which
// allows only one writer.
func (l *Ledger) lockClause(how string) string {
	if l.sqlite {
		return ""
	}
	return " FOR " + how
}

// lockOrder returns the end of a SELECT that locks its rows in the byte order of a column.
func (l *Ledger) lockOrder(by string) string {
	if l.sqlite {
		return ""
	}
	return " ORDER BY " + by + ` COLLATE "C" FOR UPDATE`
}

// placeholders returns rows of numbered placeholders such as ($1,$2),($3,$4). taken is the
// number of placeholders earlier in the statement.
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

func toBit(is bool) int64 {
	if is {
		return 1
	}
	return 0
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

// query runs a query and calls each for every row of the result.
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
