package sqlstore

import (
	"context"
	"database/sql"
	"sync/atomic"
	"time"
)

// Step is a point at which a call to the database can be delayed or made to fail.
type Step string

// The steps of a read, and of a transaction.
const (
	Read       Step = "read"
	Begin      Step = "begin"
	Commit     Step = "commit"
	Committed  Step = "committed" // an error means that the answer is lost
	RolledBack Step = "rolled back"
)

// Seams lets a simulation of the fleet order the calls to the database, make them fail, and
// set the clock.
type Seams struct {
	// Gate is called at each step with a string that distinguishes reads from each other. It
	// must not block at RolledBack.
	Gate func(ctx context.Context, step Step, what string) error
	Now  func() time.Time
}

// OpenSimulated is Open for a simulation. Only tests call it.
func OpenSimulated(ctx context.Context, at string, s Seams) (_ *Store, err error) {
	defer Wrap(&err, "opening the database")
	l, err := openDatabase(ctx, at, s.Now, (*Store).migrate)
	if err == nil {
		l.DB.gate, l.Write.gate = s.Gate, s.Gate
	}
	return l, err
}

// Pool contains the connections to the database. All calls pass its gate, which is nil
// unless the store is simulated.
type Pool struct {
	*sql.DB
	gate func(ctx context.Context, step Step, what string) error
	work *work
}

// work counts the statements and transactions of a store.
type work struct{ statements, transactions atomic.Uint64 }

// Work returns the number of statements that the store has run, and the number of transactions
// that it has begun to commit. A statement outside a transaction is counted only as a
// statement.
func (s *Store) Work() (statements, transactions uint64) {
	return s.DB.work.statements.Load(), s.DB.work.transactions.Load()
}

// Txn is a transaction that counts its statements.
type Txn struct {
	*sql.Tx
	work *work
}

func (t *Txn) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	t.work.statements.Add(1)
	return t.Tx.QueryContext(ctx, text, args...)
}

func (t *Txn) QueryRowContext(ctx context.Context, text string, args ...any) *sql.Row {
	t.work.statements.Add(1)
	return t.Tx.QueryRowContext(ctx, text, args...)
}

func (t *Txn) ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error) {
	t.work.statements.Add(1)
	return t.Tx.ExecContext(ctx, text, args...)
}

func (p *Pool) simulated() bool { return p != nil && p.gate != nil }

func (p *Pool) pass(ctx context.Context, step Step, what string) error {
	if !p.simulated() {
		return nil
	}
	return p.gate(ctx, step, what)
}

func (p *Pool) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	if err := p.pass(ctx, Read, text); err != nil {
		return nil, err
	}
	p.work.statements.Add(1)
	return p.DB.QueryContext(ctx, text, args...)
}

func (p *Pool) QueryRowContext(ctx context.Context, text string, args ...any) *sql.Row {
	if err := p.pass(ctx, Read, text); err != nil {
		ctx = failedContext{ctx, err} // only package sql can make a row with an error
	}
	p.work.statements.Add(1)
	return p.DB.QueryRowContext(ctx, text, args...)
}

func (p *Pool) ExecContext(ctx context.Context, text string, args ...any) (r sql.Result, err error) {
	err = p.transaction(ctx, func() (err error) {
		p.work.statements.Add(1)
		r, err = p.DB.ExecContext(ctx, text, args...)
		return err
	})
	return r, err
}

// transaction passes the gate before and after do, which commits the transaction.
func (p *Pool) transaction(ctx context.Context, do func() error) error {
	if err := p.pass(ctx, Begin, ""); err != nil {
		return err
	}
	if err := do(); err != nil {
		_ = p.pass(ctx, RolledBack, "") // the transaction has already failed
		return err
	}
	return p.pass(ctx, Committed, "")
}

// failedContext is a context that has ended with a given error.
type failedContext struct {
	context.Context
	err error
}

func (f failedContext) Err() error { return f.err }

func (failedContext) Done() <-chan struct{} {
	ended := make(chan struct{})
	close(ended)
	return ended
}
