package ledger

import (
	"context"
	"database/sql"
	"strings"

	"loadstar/server/directory"
	"loadstar/server/sqlstore"
)

// Gateways hold copies of leases and of agents' rights in memory. Stamps show them when a copy
// is outdated. A transaction that adds or withdraws leases, or revokes something, also changes
// a stamp. Counting does not.

const (
	leasesStamp = "leases " // followed by the run
)

// Stamps show which copies in memory are outdated. Equal numbers mean that nothing has
// changed.
type Stamps struct {
	Revocations int64
	Leases      map[string]int64 // by run; runs without leases may be missing
}

// Stamps returns the stamps.
func (ct *Counter) Stamps(ctx context.Context) (s Stamps, err error) {
	defer sqlstore.Wrap(&err, "reading stamps")
	ctx, done := ct.store.Promptly(ctx)
	defer done()
	s.Leases = map[string]int64{}
	err = sqlstore.Query(ctx, ct.store.DB, func(r *sql.Rows) error {
		var name string
		var stamp int64
		err := r.Scan(&name, &stamp)
		if run, ok := strings.CutPrefix(name, leasesStamp); ok {
			s.Leases[run] = stamp
		} else if name == directory.RevocationsStamp {
			s.Revocations = stamp
		}
		return err
	}, "SELECT name, stamp FROM stamps")
	return s, err
}

// OpenLease is a lease and the agent that has it.
type OpenLease struct {
	Task
	Agent string
}

// OpenLeases returns the leases of a run, except declined ones.
func (ct *Counter) OpenLeases(ctx context.Context, run string) (all []OpenLease, err error) {
	defer sqlstore.Wrap(&err, "reading the leases of run", run)
	err = sqlstore.Query(ctx, ct.store.DB, func(r *sql.Rows) error {
		x, err := scanLease(r)
		all = append(all, OpenLease{x.task(), x.agent})
		return err
	}, selectLeases+" WHERE run = $1 AND until <> 0", run)
	return all, err
}
