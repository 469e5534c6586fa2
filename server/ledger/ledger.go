// Package ledger stores runs, rounds, leases, receipts and versions, and counts updates.
//
// The server relies on one guarantee of this package. An update is counted in a single
// transaction, which deletes the lease, adds the receipt and stores the sum that includes the
// update. Everything before the commit may be repeated. Everything after the commit is final.
package ledger

import (
	"context"
	"errors"
	"time"

	"loadstar/server/directory"
	"loadstar/server/sqlstore"
)

// Ledger stores runs with their rounds and versions. It is safe for concurrent use.
type Ledger struct {
	Store *sqlstore.Store
	// The following fields are parts of the same database. Most callers need only one or two of
	// them.
	Counter   *Counter
	Relay     *Relay
	Directory *directory.Directory
	Users     *directory.Users
	Reports   *directory.Reports
	Events    *directory.Log

	versions sqlstore.Coalescer[versionKey, *Version]
}

// Open opens the database at sqlite:PATH or postgres://… and migrates its schema. Several
// processes may open it at the same time.
func Open(ctx context.Context, at string) (*Ledger, error) {
	s, err := sqlstore.Open(ctx, at)
	if err != nil {
		return nil, err
	}
	return On(s), nil
}

// OpenSimulated is Open for a simulation. Only tests call it.
func OpenSimulated(ctx context.Context, at string, seams sqlstore.Seams) (*Ledger, error) {
	s, err := sqlstore.OpenSimulated(ctx, at, seams)
	if err != nil {
		return nil, err
	}
	return On(s), nil
}

// On returns the ledger in a database.
func On(s *sqlstore.Store) *Ledger {
	log := directory.NewLog(s)
	users := directory.NewUsers(s, log)
	l := &Ledger{
		Store: s, Counter: newCounter(s), Events: log, Users: users,
		Directory: directory.New(s, users, log), Reports: directory.NewReports(s),
	}
	l.Relay = &Relay{s, l, l.Counter}
	l.versions.Start(s, l.versionsOf)
	return l
}

// Close closes the database.
func (l *Ledger) Close() error { return l.Store.Close() }

// Now returns the time by the database's clock.
func (l *Ledger) Now() time.Time { return l.Store.Now() }

// Errors that callers distinguish.
var (
	ErrNotFound = sqlstore.ErrNotFound
	ErrRefused  = sqlstore.ErrRefused
	ErrTooMany  = sqlstore.ErrTooMany
	ErrDamaged  = sqlstore.ErrDamaged
	// ErrDeposed means that another coordinator has taken over.
	ErrDeposed = errors.New("another coordinator has taken over")
)

// Unreachable reports whether an error means that the database is unreachable or starting, so
// a retry may help.
func Unreachable(err error) bool { return sqlstore.Unreachable(err) }
