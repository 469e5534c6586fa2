package ledger

import (
	"time"

	"loadstar/server/directory"
)

// Kinds returns the kinds of the clients whose agents were seen since the given time, most
// frequent first.
func (d *Drive) Kinds(seen time.Time) ([]directory.Kind, error) {
	return d.l.Directory.KindsIn(d.ctx, d.tx, seen)
}

// Count returns the number of clients that a filter selects.
func (d *Drive) Count(f directory.Filter) (int64, error) {
	return d.l.Directory.CountIn(d.ctx, d.tx, f)
}

// Agents returns the agents that have the clients that a filter selects.
func (d *Drive) Agents(f directory.Filter) ([]string, error) {
	return d.l.Directory.AgentsIn(d.ctx, d.tx, f)
}

// Lacking returns up to limit clients that a filter does not select although their agents were
// seen recently enough, in the order of their names.
func (d *Drive) Lacking(f directory.Filter, limit int) ([]directory.Client, error) {
	return d.l.Directory.LackingIn(d.ctx, d.tx, f, limit)
}

// Names returns the names of the clients that a filter selects, in byte order.
func (d *Drive) Names(f directory.Filter) ([]string, error) {
	return d.l.Directory.NamesIn(d.ctx, d.tx, f)
}
