package ledger

import (
	"context"
	"database/sql"
	"time"

	"loadstar/server/sqlstore"
)

// Wait describes the results that a round still expects from an agent.
type Wait struct {
	Agent, Name string
	Seen        time.Time
	Clients     int64
	Until       time.Time // when the last of its leases ends
}

// Waits returns the agents that have open leases in a round, in the order of their ids.
func (ct *Counter) Waits(ctx context.Context, run string, round int64) (all []Wait, err error) {
	defer sqlstore.Wrap(&err, "reading what a round waits for, of run", run)
	err = sqlstore.Query(ctx, ct.store.DB, func(r *sql.Rows) error {
		var w Wait
		var seen, until int64
		err := r.Scan(&w.Agent, &w.Name, &seen, &w.Clients, &until)
		w.Seen, w.Until = sqlstore.FromMillis(seen), sqlstore.FromMillis(until)
		all = append(all, w)
		return err
	}, `SELECT l.agent, a.name, a.seen, CAST(COUNT(*) AS BIGINT), MAX(l.until) FROM leases l JOIN agents a ON a.id = l.agent
		WHERE l.run = $1 AND l.round = $2 AND l.until <> 0 GROUP BY l.agent, a.name, a.seen ORDER BY l.agent`, run, round)
	return all, err
}

// Training returns the agents that have open leases.
func (ct *Counter) Training(ctx context.Context) (all map[string]bool, err error) {
	defer sqlstore.Wrap(&err, "reading which agents train")
	all = map[string]bool{}
	err = sqlstore.Query(ctx, ct.store.DB, func(r *sql.Rows) error {
		var agent string
		err := r.Scan(&agent)
		all[agent] = true
		return err
	}, "SELECT DISTINCT agent FROM leases WHERE until <> 0")
	return all, err
}
