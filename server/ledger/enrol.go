package ledger

import (
	"context"
	"fmt"
	"slices"
	"time"

	"loadstar/server/sqlstore"
)

// clockAhead is how far ahead a stored time can be. A later one is from a clock that was
// wrong, and does not hold.
const clockAhead = time.Hour

// Seen stores the time of the last call of agents. It uses several short transactions,
// so that other transactions can run in between.
func (l *Ledger) Seen(ctx context.Context, agents []string, at time.Time) (err error) {
	defer sqlstore.Wrap(&err, "storing which agents called")
	// All transactions lock agents in byte order, so that concurrent calls cannot
	// deadlock.
	agents = slices.Sorted(slices.Values(agents))
	order := ""
	if !l.Store.SQLite {
		order = ` ORDER BY id COLLATE "C"`
	}
	for some := range slices.Chunk(agents, 16*l.Store.Chunk) {
		err := l.Store.Update(ctx, func(tx *sqlstore.Txn) error {
			for part := range slices.Chunk(some, l.Store.Chunk) {
				args := []any{sqlstore.ToMillis(at), sqlstore.ToMillis(at.Add(clockAhead))}
				for _, id := range part {
					args = append(args, id)
				}
				text := "WITH these AS MATERIALIZED (SELECT id FROM agents WHERE (seen < $1 OR seen > $2) AND id IN " + sqlstore.InList(2, len(part)) + order + l.Store.LockClause("UPDATE") +
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
func (l *Ledger) Agents(ctx context.Context) (n int64, err error) {
	defer sqlstore.Wrap(&err, "counting agents")
	err = l.Store.DB.QueryRowContext(ctx, "SELECT count(*) FROM agents WHERE revoked = 0").Scan(&n)
	return n, err
}

// RevokeAgent refuses an agent permanently and withdraws its leases.
func (l *Ledger) RevokeAgent(ctx context.Context, id, actor string, now time.Time) (err error) {
	defer sqlstore.Wrap(&err, "revoking agent", id)
	return l.revoke(ctx, "agent", id, actor, now, "SELECT 1 FROM agents WHERE id = $1",
		"UPDATE agents SET revoked = $2 WHERE id = $1 AND revoked = 0", "UPDATE leases SET until = 0 WHERE agent = $1")
}

// RevokeClient refuses a client permanently and withdraws its leases.
func (l *Ledger) RevokeClient(ctx context.Context, name, actor string, now time.Time) (err error) {
	defer sqlstore.Wrap(&err, "revoking client", name)
	return l.revoke(ctx, "client", name, actor, now, "SELECT 1 FROM agents WHERE id = (SELECT agent FROM clients WHERE name = $1)",
		"UPDATE clients SET revoked = $2 WHERE name = $1 AND revoked = 0", "UPDATE leases SET until = 0 WHERE client = $1 AND agent = (SELECT agent FROM clients WHERE name = $1)",
		"UPDATE agents SET clients = clients - 1 WHERE id = (SELECT agent FROM clients WHERE name = $1)")
}

func (l *Ledger) revoke(ctx context.Context, what, name, actor string, now time.Time, agent, mark string, then ...string) error {
	return l.Store.Update(ctx, func(tx *sqlstore.Txn) error {
		// Lock out transactions that add or count leases. Existing leases are withdrawn
		// below, and later transactions see the revocation.
		if _, err := tx.ExecContext(ctx, "SELECT 1 FROM leaders"+l.Store.LockClause("UPDATE")); err != nil {
			return err
		}
		if err := l.Store.LockRuns(ctx, tx); err != nil {
			return err
		}
		// Lock the agent before its clients, as Announce does.
		if _, err := tx.ExecContext(ctx, agent+l.Store.LockClause("UPDATE"), name); err != nil {
			return err
		}
		r, err := tx.ExecContext(ctx, mark, name, sqlstore.ToMillis(now))
		if err != nil {
			return err
		}
		if n, err := r.RowsAffected(); err != nil {
			return err
		} else if n == 0 {
			return fmt.Errorf("%s %s that is not already revoked: %w", what, name, ErrNotFound)
		}
		for _, text := range then {
			if _, err := tx.ExecContext(ctx, text, name); err != nil {
				return err
			}
		}
		if err := sqlstore.Touch(ctx, tx, revocationsStamp); err != nil {
			return err
		}
		return l.audit(ctx, tx, now, actor, "revoke "+what, name, "")
	})
}

// Lead is a lease that makes one coordinator the active one.
type Lead struct{ Epoch int64 }

const coordinator = "coordinator"

// Lead takes or renews the lead until now+ttl. It returns ErrRefused while another
// coordinator holds it. Each new holder gets a higher epoch, and transactions with an older
// epoch fail.
func (l *Ledger) Lead(ctx context.Context, holder string, ttl time.Duration, now time.Time) (lead Lead, err error) {
	defer sqlstore.Wrap(&err, "taking the lead for", holder)
	ctx, done := l.Store.Promptly(ctx)
	defer done()
	err = l.Store.Update(ctx, func(tx *sqlstore.Txn) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO leaders (role, holder, epoch, until) VALUES ($1, '', 0, 0) ON CONFLICT (role) DO NOTHING", coordinator); err != nil {
			return err
		}
		var had string
		var until int64
		err := tx.QueryRowContext(ctx, "SELECT holder, epoch, until FROM leaders WHERE role = $1"+l.Store.LockClause("UPDATE"), coordinator).Scan(&had, &lead.Epoch, &until)
		if err != nil {
			return err
		}
		if had != holder {
			if until > sqlstore.ToMillis(now) && until <= sqlstore.ToMillis(now.Add(ttl+clockAhead)) {
				return fmt.Errorf("%s has the lead: %w", had, ErrRefused)
			}
			lead.Epoch++
		}
		_, err = tx.ExecContext(ctx, "UPDATE leaders SET holder = $2, epoch = $3, until = $4 WHERE role = $1", coordinator, holder, lead.Epoch, sqlstore.ToMillis(now.Add(ttl)))
		return err
	})
	if err != nil {
		return Lead{}, err
	}
	return lead, nil
}

// checkLead fails with ErrDeposed if another coordinator has taken over.
func (l *Ledger) checkLead(ctx context.Context, tx *sqlstore.Txn, lead Lead) error {
	var epoch int64
	err := tx.QueryRowContext(ctx, "SELECT epoch FROM leaders WHERE role = $1"+l.Store.LockClause("SHARE"), coordinator).Scan(&epoch)
	if err != nil {
		return sqlstore.OrNotFound(err, "a coordinator")
	}
	if epoch != lead.Epoch {
		return ErrDeposed
	}
	return nil
}

// Resign releases the lead, so that another coordinator need not wait until it expires.
func (l *Ledger) Resign(ctx context.Context, lead Lead) (err error) {
	defer sqlstore.Wrap(&err, "giving up the lead")
	_, err = l.Store.Write.ExecContext(ctx, "UPDATE leaders SET until = 0 WHERE role = $1 AND epoch = $2", coordinator, lead.Epoch)
	return err
}
