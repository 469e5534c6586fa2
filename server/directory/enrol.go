package directory

import (
	"context"
	"fmt"
	"slices"
	"time"

	"loadstar/server/sqlstore"
)

// ClockAhead is the maximum time by which a stored time may be in the future. Later times came
// from a wrong clock and are ignored.
const ClockAhead = time.Hour

// RevocationsStamp is the stamp that changes when an agent or client is revoked.
const RevocationsStamp = "revocations"

// Seen stores the time of the agents' last calls. It uses several short transactions, so that
// other transactions can run in between.
func (d *Directory) Seen(ctx context.Context, agents []string, at time.Time) (err error) {
	defer sqlstore.Wrap(&err, "storing which agents called")
	// All transactions lock agents in byte order, so that concurrent calls cannot
	// deadlock.
	agents = slices.Sorted(slices.Values(agents))
	order := ""
	if !d.store.SQLite {
		order = ` ORDER BY id COLLATE "C"`
	}
	for some := range slices.Chunk(agents, 16*d.store.Chunk) {
		err := d.store.Update(ctx, func(tx *sqlstore.Txn) error {
			for part := range slices.Chunk(some, d.store.Chunk) {
				args := []any{sqlstore.ToMillis(at), sqlstore.ToMillis(at.Add(ClockAhead))}
				for _, id := range part {
					args = append(args, id)
				}
				text := "WITH these AS MATERIALIZED (SELECT id FROM agents WHERE (seen < $1 OR seen > $2) AND id IN " + sqlstore.InList(2, len(part)) + order + d.store.LockClause("UPDATE") +
					") UPDATE agents SET seen = $1 WHERE id IN (SELECT id FROM these)"
				if _, err := tx.ExecContext(ctx, text, args...); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Agents returns the number of agents that may take part.
func (d *Directory) Agents(ctx context.Context) (n int64, err error) {
	defer sqlstore.Wrap(&err, "counting agents")
	err = d.store.DB.QueryRowContext(ctx, "SELECT count(*) FROM agents WHERE revoked = 0").Scan(&n)
	return n, err
}

// RevokeAgent refuses an agent permanently and withdraws its leases.
func (d *Directory) RevokeAgent(ctx context.Context, id, actor string, now time.Time) (err error) {
	defer sqlstore.Wrap(&err, "revoking agent", id)
	return d.revoke(ctx, "agent", id, actor, now, "SELECT 1 FROM agents WHERE id = $1",
		"UPDATE agents SET revoked = $2 WHERE id = $1 AND revoked = 0", "UPDATE leases SET until = 0 WHERE agent = $1")
}

// RevokeClient refuses a client permanently and withdraws its leases.
func (d *Directory) RevokeClient(ctx context.Context, name, actor string, now time.Time) (err error) {
	defer sqlstore.Wrap(&err, "revoking client", name)
	return d.revoke(ctx, "client", name, actor, now, "SELECT 1 FROM agents WHERE id = (SELECT agent FROM clients WHERE name = $1)",
		"UPDATE clients SET revoked = $2 WHERE name = $1 AND revoked = 0", "UPDATE leases SET until = 0 WHERE client = $1 AND agent = (SELECT agent FROM clients WHERE name = $1)",
		"UPDATE agents SET clients = clients - 1 WHERE id = (SELECT agent FROM clients WHERE name = $1)")
}

func (d *Directory) revoke(ctx context.Context, what, name, actor string, now time.Time, agent, mark string, then ...string) error {
	return d.store.Update(ctx, func(tx *sqlstore.Txn) error {
		// Lock out transactions that add leases or count results. Existing leases are withdrawn
		// below, and later transactions see the revocation.
		if _, err := tx.ExecContext(ctx, "SELECT 1 FROM leaders"+d.store.LockClause("UPDATE")); err != nil {
			return err
		}
		if err := d.store.LockRuns(ctx, tx); err != nil {
			return err
		}
		// Lock the agent before its clients, as Announce does.
		if _, err := tx.ExecContext(ctx, agent+d.store.LockClause("UPDATE"), name); err != nil {
			return err
		}
		r, err := tx.ExecContext(ctx, mark, name, sqlstore.ToMillis(now))
		if err != nil {
			return err
		}
		if n, err := r.RowsAffected(); err != nil {
			return err
		} else if n == 0 {
			return fmt.Errorf("%s %s that is not already revoked: %w", what, name, sqlstore.ErrNotFound)
		}
		for _, text := range then {
			if _, err := tx.ExecContext(ctx, text, name); err != nil {
				return err
			}
		}
		if err := sqlstore.Touch(ctx, tx, RevocationsStamp); err != nil {
			return err
		}
		return d.log.Record(ctx, tx, now, actor, "revoke "+what, name, "")
	})
}
