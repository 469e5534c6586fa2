package ledger

import (
	"context"
	"fmt"
	"time"

	"loadstar/server/directory"
	"loadstar/server/sqlstore"
)

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
			if until > sqlstore.ToMillis(now) && until <= sqlstore.ToMillis(now.Add(ttl+directory.ClockAhead)) {
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

// Resign releases the lead, so that another coordinator need not wait for it to expire.
func (l *Ledger) Resign(ctx context.Context, lead Lead) (err error) {
	defer sqlstore.Wrap(&err, "giving up the lead")
	_, err = l.Store.Write.ExecContext(ctx, "UPDATE leaders SET until = 0 WHERE role = $1 AND epoch = $2", coordinator, lead.Epoch)
	return err
}
