// Package sqlstore is the SQL layer on which the packages directory and ledger are built. A
// small installation uses SQLite and a large one PostgreSQL; both have the same schema and
// statements. It contains the connections, the schema and its migrations, transactions, the
// checksums of rows, the checks of settings and for damage, and backups. The packages directory
// and ledger define the meaning of the rows.
package sqlstore

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
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"loadstar/internal/backoff"
)

//go:embed migrations/*.sql
var embedded embed.FS

// Migrations contains the SQL that migrates the schema, in the folder migrations. Only tests
// change it, to add a later version.
var Migrations fs.FS = embedded

// Store is a database. It is safe for concurrent use.
type Store struct {
	DB      *Pool
	Write   *Pool   // for writing; with SQLite a single connection, because SQLite allows one writer
	Ungated Querier // DB without its gate
	SQLite  bool
	path    string // path of SQLite's file
	// checked is true while the package variable of this name counts the store.
	checked bool
	witness struct {
		sync.Mutex
		*os.File
	}
	// Chunk is the maximum number of rows in one statement. With PostgreSQL, each connection
	// caches a statement for each length, and a long list causes a scan of the whole table.
	// With SQLite, there is no network round trip, and the driver takes time proportional to
	// the square of the length.
	Chunk int
	clock clock
	limit atomic.Int64 // time limit of a statement in PostgreSQL, as a time.Duration

	notified notifications
	listener *pgx.ConnConfig // configuration of the connection for notifications; nil for SQLite
	hosts    hosts           // PostgreSQL hosts
	// commitFor is the time limit of a commit in PostgreSQL.
	commitFor time.Duration

	// The context and goroutines that answer coalesced queries.
	open      context.Context // done when the store is closed
	end       context.CancelFunc
	answering sync.WaitGroup
}

// Open opens the database at sqlite:PATH or postgres://… and migrates its schema. Several
// processes may open it at the same time.
func Open(ctx context.Context, at string) (_ *Store, err error) {
	defer Wrap(&err, "opening the database")
	return openDatabase(ctx, at, time.Now, (*Store).migrate)
}

func openDatabase(ctx context.Context, at string, local func() time.Time, prepare func(*Store, context.Context) error) (_ *Store, err error) {
	s := &Store{clock: clock{local: local}}
	s.open, s.end = context.WithCancel(context.WithoutCancel(ctx))
	if path, ok := strings.CutPrefix(at, "sqlite:"); ok {
		err = s.openLite(path)
	} else if strings.HasPrefix(at, "postgres://") || strings.HasPrefix(at, "postgresql://") {
		err = s.openPostgres(at)
	} else {
		return nil, fmt.Errorf("%q is not a database address: want sqlite:PATH or postgres://…", at)
	}
	if err != nil {
		return nil, err
	}
	if err := prepare(s, ctx); err != nil {
		_ = s.Close() // the earlier error is the cause
		return nil, fmt.Errorf("migrating the schema: %w", err)
	}
	if err := s.readClock(ctx); err != nil {
		_ = s.Close() // the earlier error is the cause
		return nil, fmt.Errorf("reading the clock: %w", err)
	}
	s.limit.Store(int64(silentFor))
	s.answering.Go(s.followClock)
	return s, nil
}

func (s *Store) openLite(path string) (err error) {
	if path == "" || path == ":memory:" {
		return errors.New("sqlite: needs the path of a file, as in sqlite:ledger.db")
	}
	s.SQLite, s.Chunk, s.path = true, 32, path
	file := sqliteFile(path)
	options := url.Values{"_pragma": {"journal_mode(WAL)", "synchronous(FULL)", "busy_timeout(10000)", "foreign_keys(1)"}}
	db, err := openPrepared(file + "?" + options.Encode())
	if err != nil {
		return err
	}
	options.Set("_txlock", "immediate")
	write, err := openPrepared(file + "?" + options.Encode())
	if err != nil {
		return err
	}
	w := new(work)
	s.DB, s.Write = &Pool{DB: db, work: w}, &Pool{DB: write, work: w}
	s.Write.SetMaxOpenConns(1)
	s.DB.SetMaxOpenConns(12)
	s.DB.SetMaxIdleConns(12) // opening a connection takes longer than a query
	s.Ungated = &Pool{DB: db, work: w}
	return nil
}

// makePrivate removes other users' permissions on SQLite's files. It does not open the files,
// because closing a file releases the locks that SQLite holds on it. SQLite gives the files
// that it creates next to the database the same permissions as the database.
func makePrivate(path string) error {
	for _, p := range []string{path, path + "-wal", path + "-shm"} {
		if err := os.Chmod(p, 0o600); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// connect opens SQLite's first connection. If several processes create the file at the same
// time, some get SQLITE_BUSY immediately, despite busy_timeout.
func (s *Store) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, connectWithin)
	defer cancel()
	retry := backoff.Backoff{Base: 20 * time.Millisecond, Cap: 100 * time.Millisecond}
	for {
		err := s.Write.PingContext(ctx)
		var failure *sqlite.Error
		if err == nil {
			return makePrivate(s.path)
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

// schema returns the provider that migrates the schema, and the schema's version. It fails if a
// newer version of Loadstar wrote the schema, which goose does not check.
func (s *Store) schema(ctx context.Context) (p *goose.Provider, version int64, err error) {
	dialect := goose.DialectSQLite3
	if !s.SQLite {
		dialect = goose.DialectPostgres
	}
	if p, err = migrations(dialect, s.Write.DB); err != nil {
		return nil, 0, err
	}
	if version, err = p.GetDBVersion(ctx); err != nil {
		return nil, 0, err
	}
	if newest := newestOf(p); version > newest {
		return nil, 0, fmt.Errorf("the ledger was written by a newer Loadstar (schema %d, this one knows %d): upgrade", version, newest)
	}
	return p, version, nil
}

// migrations returns the provider that migrates the schema of a database.
func migrations(dialect goose.Dialect, db *sql.DB) (*goose.Provider, error) {
	files, err := fs.Sub(Migrations, "migrations")
	if err != nil {
		return nil, err
	}
	return goose.NewProvider(dialect, db, files)
}

// newestOf returns the newest version of the schema that this program knows.
func newestOf(p *goose.Provider) int64 {
	sources := p.ListSources()
	return sources[len(sources)-1].Version
}

func (s *Store) migrate(ctx context.Context) error {
	if s.SQLite {
		if err := s.check(ctx); err != nil {
			return err
		}
	} else {
		conn, err := s.DB.Conn(ctx)
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
		p, before, err := s.schema(ctx)
		if err != nil {
			return err
		}
		if _, err = p.Up(ctx); err == nil {
			if s.SQLite {
				if err := CheckRows(ctx, s.DB, false); err != nil {
					return asOtherTables(err)
				}
				if err := s.checkWitness(ctx); err != nil {
					return err
				}
			}
			return s.adaptPostgres(ctx)
		} else if !s.SQLite {
			return err
		}
		// SQLite has no advisory lock, so another process may have migrated the schema in
		// the meantime.
		if now, failed := p.GetDBVersion(ctx); failed != nil || now == before {
			return err
		}
	}
}

// PrefixClause returns a condition that a column begins with a prefix. It adds its arguments to
// args.
func (s *Store) PrefixClause(column, prefix string, args *[]any) string {
	if s.SQLite {
		*args = append(*args, prefix, prefix+"\U0010ffff")
		return fmt.Sprintf("%s >= $%d AND %s < $%d", column, len(*args)-1, column, len(*args))
	}
	*args = append(*args, strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(prefix)+"%")
	return fmt.Sprintf("%s LIKE $%d", column, len(*args))
}

// Close closes the database.
func (s *Store) Close() (err error) {
	defer Wrap(&err, "closing the database")
	s.end()
	s.answering.Wait()
	if s.SQLite {
		err = errors.Join(s.Write.Close(), s.DB.Close())
		s.uncheck()
		if s.witness.File != nil {
			err = errors.Join(err, s.witness.Close())
			s.witness.File = nil
		}
		return err
	}
	return s.DB.Close()
}

// Healthy returns an error if the database does not answer.
func (s *Store) Healthy(ctx context.Context) (err error) {
	defer Wrap(&err, "checking the database")
	return s.DB.PingContext(ctx)
}

// Update runs do in a transaction. If do fails, the transaction is rolled back. If the
// commit fails, it is unknown whether it took effect.
func (s *Store) Update(ctx context.Context, do func(tx *Txn) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return s.Write.transaction(ctx, func() error {
		begun, err := s.Write.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		tx := &Txn{begun, s.Write.work}
		defer func() { _ = tx.Rollback() }() // does nothing after a commit
		if err := do(tx); err != nil {
			return err
		}
		if err := s.Write.pass(ctx, Commit, ""); err != nil {
			return err
		}
		s.Write.work.transactions.Add(1)
		if s.SQLite {
			return tx.Commit()
		}
		late := time.AfterFunc(s.commitFor, cancel)
		if err = tx.Commit(); err != nil && !late.Stop() && ctx.Err() != nil {
			s.hosts.doubt()
			return fmt.Errorf("the commit was not confirmed within %s: %w", s.commitFor, os.ErrDeadlineExceeded)
		}
		return err
	})
}

// LockClause returns the end of a SELECT that locks its rows. It is empty for SQLite, which
// allows only one writer.
func (s *Store) LockClause(how string) string {
	if s.SQLite {
		return ""
	}
	return " FOR " + how
}

// LockOrder returns the end of a SELECT that locks its rows in the byte order of a column.
func (s *Store) LockOrder(by string) string {
	if s.SQLite {
		return ""
	}
	return " ORDER BY " + by + ` COLLATE "C" FOR UPDATE`
}

// Placeholders returns rows of numbered placeholders such as ($1,$2),($3,$4). taken is the
// number of placeholders earlier in the statement.
func Placeholders(taken, rows, columns int) string {
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

// InList returns one row of placeholders, for IN.
func InList(taken, n int) string { return Placeholders(taken, 1, n) }

// ToMillis returns a time as it is stored; the zero time is stored as 0.
func ToMillis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// ToBit returns a boolean as it is stored.
func ToBit(is bool) int64 {
	if is {
		return 1
	}
	return 0
}

// FromMillis is the inverse of ToMillis.
func FromMillis(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// Querier is a database or a transaction.
type Querier interface {
	QueryContext(context.Context, string, ...any) (*sql.Rows, error)
}

// Query runs a query and calls each for every row of the result.
func Query(ctx context.Context, q Querier, each func(*sql.Rows) error, text string, args ...any) error {
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
