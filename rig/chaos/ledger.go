package main

import (
	"context"
	"database/sql"
	"net/url"
	"sync"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	_ "modernc.org/sqlite"             // the driver sqlite
)

// ledger reads the server's database directly, even while the server is down.
type ledger struct {
	path string // path of the SQLite file, or empty
	// away is held for writing while the disk of the SQLite file has no power.
	away sync.RWMutex
	db   *sql.DB // connections to PostgreSQL, or nil
}

func sqliteLedger(path string) *ledger { return &ledger{path: path} }

func postgresLedger(at string) (*ledger, error) {
	db, err := sql.Open("pgx", at)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(2)
	return &ledger{db: db}, nil
}

func (l *ledger) Close() {
	if l.db != nil {
		l.db.Close()
	}
}

// use calls do with a connection. A SQLite connection is opened and closed each time, so that a
// restarted server is the only user of the files and must recover them.
func (l *ledger) use(ctx context.Context, do func(ctx context.Context, db *sql.DB) error) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if l.db != nil {
		return do(ctx, l.db)
	}
	l.away.RLock()
	defer l.away.RUnlock()
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: l.path}).EscapedPath()+"?mode=ro&_pragma=busy_timeout(2000)")
	if err != nil {
		return err
	}
	defer db.Close()
	return do(ctx, db)
}

// rows runs a query and calls each for every row of its result.
func (l *ledger) rows(ctx context.Context, each func(*sql.Rows) error, text string, args ...any) error {
	return l.use(ctx, func(ctx context.Context, db *sql.DB) error {
		r, err := db.QueryContext(ctx, text, args...)
		if err != nil {
			return err
		}
		defer r.Close()
		for r.Next() {
			if err := each(r); err != nil {
				return err
			}
		}
		return r.Err()
	})
}

// number returns the number that a query with one row and one column returns.
func (l *ledger) number(ctx context.Context, text string, args ...any) (n int64, err error) {
	err = l.rows(ctx, func(r *sql.Rows) error { return r.Scan(&n) }, text, args...)
	return n, err
}

// progress contains totals over all runs, from which the watcher recognises progress.
type progress struct {
	batches, versions int64
	running, waiting  int64 // number of runs
}

func (l *ledger) progress(ctx context.Context) (p progress, err error) {
	err = l.rows(ctx, func(r *sql.Rows) error { return r.Scan(&p.batches, &p.versions, &p.running, &p.waiting) },
		`SELECT CAST(COALESCE(sum(batch), 0) AS BIGINT), CAST(COALESCE(sum(version), 0) AS BIGINT),
			count(CASE WHEN state = 'running' THEN 1 END), count(CASE WHEN state = 'waiting' THEN 1 END) FROM runs`)
	return p, err
}

// run contains fields of a run's row in the ledger.
type run struct{ id, name, state, reason string }

func (r run) ended() bool { return r.state != "waiting" && r.state != "running" }

// runs returns the runs with the given name, or all runs if the name is empty.
func (l *ledger) runs(ctx context.Context, name string) (all []run, err error) {
	err = l.rows(ctx, func(r *sql.Rows) error {
		var x run
		err := r.Scan(&x.id, &x.name, &x.state, &x.reason)
		all = append(all, x)
		return err
	}, "SELECT id, name, state, reason FROM runs WHERE name = $1 OR $1 = '' ORDER BY created, id", name)
	return all, err
}

// turn is one client's part of one round of a run.
type turn struct {
	run    string
	round  int64
	client string
}

// receipts returns the number of times that each turn was counted.
func (l *ledger) receipts(ctx context.Context) (map[turn]int, error) {
	all := map[turn]int{}
	err := l.rows(ctx, func(r *sql.Rows) error {
		var t turn
		err := r.Scan(&t.run, &t.round, &t.client)
		all[t]++
		return err
	}, "SELECT run, round, client FROM receipts")
	return all, err
}

// closed is a closed round, with the server's own counts.
type closed struct {
	run                        string
	round                      int64
	state                      string
	asked, counted, late, lost int64
	loss                       float64
	evaluated                  int64 // clients in the validation error
}

func (l *ledger) rounds(ctx context.Context) (all []closed, err error) {
	err = l.rows(ctx, func(r *sql.Rows) error {
		var x closed
		err := r.Scan(&x.run, &x.round, &x.state, &x.asked, &x.counted, &x.late, &x.lost, &x.loss, &x.evaluated)
		all = append(all, x)
		return err
	}, "SELECT run, round, state, asked, counted, late, lost, loss, evaluated FROM rounds ORDER BY run, round")
	return all, err
}
