package ledger

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"loadstar/internal/backoff"
	"loadstar/server/sqlstore"
)

// Retention determines how long the ledger keeps data that it no longer needs. 0 means
// indefinitely.
type Retention struct {
	// Receipts applies to a round's receipts and declines after its merge, and to a run's
	// members and the hub's verdicts after the run has ended.
	Receipts time.Duration
	// Audit applies to events of the audit log.
	Audit time.Duration
}

const (
	// pruneRows is the number of rows that one transaction deletes. prunePause is the pause
	// between two transactions, during which results can be counted.
	pruneRows  = 500
	prunePause = 50 * time.Millisecond
)

// pruner deletes rows in small transactions, because counting must not wait.
type pruner struct{ ledger *Ledger }

// Prune deletes rows that are older than r allows, and returns their number. A receipt may be
// deleted once its round is merged. Only a lease lets a result count, and the lease was deleted
// when the receipt was written. A repeated result therefore has no lease and does not count.
func (l *Ledger) Prune(ctx context.Context, r Retention, now time.Time) (deleted int64, err error) {
	defer sqlstore.Wrap(&err, "deleting what is no longer needed")
	p := pruner{l}
	if r.Receipts > 0 {
		n, err := p.runs(ctx, sqlstore.ToMillis(now.Add(-r.Receipts)))
		if deleted += n; err != nil {
			return deleted, err
		}
	}
	if r.Audit > 0 {
		n, err := p.by(ctx, "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE id < $1 ORDER BY id LIMIT $2)",
			fmt.Sprintf("%016x", sqlstore.ToMillis(now.Add(-r.Audit))))
		if deleted += n; err != nil {
			return deleted, err
		}
	}
	return deleted, nil
}

// runs deletes the rows of rounds that were merged before a time, and of runs that ended before
// it. In a region, a run that the hub drives has no merged rounds, so its rows are kept until
// it has ended.
func (p pruner) runs(ctx context.Context, before int64) (deleted int64, err error) {
	type old struct {
		run          string
		round, batch int64 // the newest that may be deleted
		ended        bool
	}
	var runs []old
	err = sqlstore.Query(ctx, p.ledger.Store.DB, func(r *sql.Rows) error {
		var o old
		var round, batch sql.NullInt64
		err := r.Scan(&o.run, &o.ended, &o.round, &o.batch, &round, &batch)
		if !o.ended {
			o.round, o.batch = round.Int64, batch.Int64
		}
		if o.ended || round.Valid {
			runs = append(runs, o)
		}
		return err
	}, `SELECT r.id, r.finished > 0 AND r.finished < $1, r.round, r.batch, m.round, m.batch FROM runs r LEFT JOIN
		(SELECT run, max(round) AS round, max(last_batch) AS batch FROM rounds WHERE state = $2 AND closed > 0 AND closed < $1 GROUP BY run) m ON m.run = r.id`,
		before, RoundMerged)
	if err != nil {
		return 0, err
	}
	for _, o := range runs {
		n, err := p.receipts(ctx, o.run, o.batch)
		if deleted += n; err != nil {
			return deleted, err
		}
		n, err = p.by(ctx, "DELETE FROM declines WHERE run = $1 AND (round, client) IN (SELECT round, client FROM declines WHERE run = $1 AND round <= $3 LIMIT $2)", o.run, o.round)
		if deleted += n; err != nil {
			return deleted, err
		}
		if !o.ended {
			continue
		}
		for _, text := range []string{
			"DELETE FROM members WHERE run = $1 AND no IN (SELECT no FROM members WHERE run = $1 AND $3 >= 0 LIMIT $2)",
			"DELETE FROM relayed WHERE run = $1 AND (batch, client) IN (SELECT batch, client FROM relayed WHERE run = $1 AND outcome <> '' AND batch <= $3 LIMIT $2)",
			"DELETE FROM heads WHERE run = $1 AND version IN (SELECT version FROM heads WHERE run = $1 AND $3 >= 0 LIMIT $2)",
		} {
			n, err = p.by(ctx, text, o.run, o.batch)
			if deleted += n; err != nil {
				return deleted, err
			}
		}
	}
	return deleted, nil
}

// receipts deletes the receipts of a run up to a batch, and subtracts them from the run's
// number of receipts.
func (p pruner) receipts(ctx context.Context, run string, batch int64) (deleted int64, err error) {
	return prune(ctx, func() (n int64, err error) {
		err = p.ledger.Store.Update(ctx, func(tx *sqlstore.Txn) error {
			r, err := p.ledger.lockedRun(ctx, tx, run)
			if err != nil {
				return err
			}
			res, err := tx.ExecContext(ctx, "DELETE FROM receipts WHERE run = $1 AND (round, client) IN (SELECT round, client FROM receipts WHERE run = $1 AND batch <= $3 LIMIT $2)", run, pruneRows, batch)
			if err != nil {
				return err
			}
			if n, err = res.RowsAffected(); err != nil || n == 0 {
				return err
			}
			r.receipts -= n
			return storeRun(ctx, tx, r)
		})
		return n, err
	})
}

// by repeats a statement, whose second argument is a limit, until it deletes fewer rows than
// the limit.
func (p pruner) by(ctx context.Context, text string, first any, more ...any) (deleted int64, err error) {
	return prune(ctx, func() (int64, error) {
		r, err := p.ledger.Store.Write.ExecContext(ctx, text, append([]any{first, pruneRows}, more...)...)
		if err != nil {
			return 0, err
		}
		return r.RowsAffected()
	})
}

// prune repeats some until it deletes fewer than pruneRows rows.
func prune(ctx context.Context, some func() (int64, error)) (deleted int64, err error) {
	for {
		n, err := some()
		if deleted += n; err != nil || n < pruneRows {
			return deleted, err
		}
		if err := backoff.Sleep(ctx, prunePause); err != nil {
			return deleted, err
		}
	}
}
