// Package directory stores the participants: agents with their certificates and clients, join
// tokens, and users with their sessions and certificates. It also stores the clients' reports
// and the audit log. Package ledger counts updates.
package directory

import "loadstar/server/sqlstore"

// Directory contains the agents, their clients and the tokens with which they join.
type Directory struct {
	store   *sqlstore.Store
	users   *Users
	log     *Log
	callers sqlstore.Coalescer[string, Caller] // the query that agents' calls make most often
}

// New returns the directory in a database.
func New(s *sqlstore.Store, users *Users, log *Log) *Directory {
	d := &Directory{store: s, users: users, log: log}
	d.callers.Start(s, d.callersOf)
	return d
}

// Errors that callers can distinguish.
var (
	ErrNotFound = sqlstore.ErrNotFound
	ErrRefused  = sqlstore.ErrRefused
)
