package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"

	"loadstar/server/sqlstore"
)

// Several processes may count a run's results at the same time, but none may count while a
// coordinator drives the run. With PostgreSQL, counting takes a shared lock on the run, and
// every change to the run takes an exclusive one. SQLite allows only one writer.
//
// A batch gets its number under the lock. The holder of the exclusive lock therefore knows that
// all batches up to the newest are stored, and that later ones get higher numbers. Transactions
// that hold the shared lock do not always commit in the order of their batch numbers.

// slots is the number of rows that a run has for counting processes. Two processes may use
// the same row by chance, and then wait for each other.
const slots = 256

// newSlot chooses the slot of a process.
func (ct *Counter) newSlot() int64 {
	if ct.store.SQLite {
		return 0
	}
	return rand.Int64N(slots)
}

// counterRow is a row of the table counters.
type counterRow struct {
	slot, batch, receipts int64
	round, counted, bytes int64
}

const selectCounters = "SELECT run, slot, batch, receipts, round, counted, bytes, checksum FROM counters"

func scanCounter(row interface{ Scan(...any) error }) (c counterRow, err error) {
	var run string
	var checksum int64
	if err := row.Scan(&run, &c.slot, &c.batch, &c.receipts, &c.round, &c.counted, &c.bytes, &checksum); err != nil {
		return c, err
	}
	return c, sqlstore.CheckRow("counters", checksum, run, c.slot, c.batch, c.receipts)
}

// newestBatch returns the newest batch of a locked run, which is either the batch in the run's
// row or one that was counted later.
func newestBatch(ctx context.Context, tx *sqlstore.Txn, r *Run) (newest int64, err error) {
	newest = r.Batch
	err = sqlstore.Query(ctx, tx, func(rows *sql.Rows) error {
		c, err := scanCounter(rows)
		newest = max(newest, c.batch)
		return err
	}, selectCounters+" WHERE run = $1", r.ID)
	return newest, err
}

// nextBatch returns the number of a new batch. The transaction must have locked the run.
func (ct *Counter) nextBatch(ctx context.Context, tx *sqlstore.Txn, r *Run) (next int64, err error) {
	if ct.store.SQLite {
		newest, err := newestBatch(ctx, tx, r)
		return newest + 1, err
	}
	if err := tx.QueryRowContext(ctx, "SELECT nextval('batches')").Scan(&next); err != nil {
		return 0, err
	}
	if next <= r.Batch {
		return 0, fmt.Errorf("%w: the sequence batches is at %d, but run %s has batch %d", sqlstore.ErrDamaged, next, r.ID, r.Batch)
	}
	return next, nil
}

// note records a counted batch in this process's row.
func (ct *Counter) note(ctx context.Context, tx *sqlstore.Txn, run string, round, batch, counted, bytes int64) error {
	own := func() (counterRow, error) {
		return scanCounter(tx.QueryRowContext(ctx, selectCounters+" WHERE run = $1 AND slot = $2"+ct.store.LockClause("UPDATE"), run, ct.slot))
	}
	c, err := own()
	if errors.Is(err, sql.ErrNoRows) {
		// Another transaction may also add the row. The second transaction waits for the first,
		// and then reads what the first has stored.
		if _, err := tx.ExecContext(ctx, "INSERT INTO counters (run, slot, batch, receipts, round, counted, bytes, checksum) VALUES ($1, $2, 0, 0, $3, 0, 0, $4) ON CONFLICT (run, slot) DO NOTHING",
			run, ct.slot, round, sqlstore.RowSum("counters", run, ct.slot, int64(0), int64(0))); err != nil {
			return err
		}
		c, err = own()
	}
	if err != nil {
		return err
	}
	if c.round != round {
		// The row contains the numbers of the current round. The previous round's numbers are
		// stored with that round.
		if _, err := tx.ExecContext(ctx, "UPDATE rounds SET bytes = bytes + $3, counted = CASE WHEN state = $5 THEN counted + $4 ELSE counted END WHERE run = $1 AND round = $2",
			run, c.round, c.bytes, c.counted, RoundOpen); err != nil {
			return err
		}
		c.round, c.counted, c.bytes = round, 0, 0
	}
	c.batch, c.receipts = max(c.batch, batch), c.receipts+counted
	_, err = tx.ExecContext(ctx, "UPDATE counters SET batch = $3, receipts = $4, round = $5, counted = $6, bytes = $7, checksum = $8 WHERE run = $1 AND slot = $2",
		run, ct.slot, c.batch, c.receipts, c.round, c.counted+counted, c.bytes+bytes, sqlstore.RowSum("counters", run, ct.slot, c.batch, c.receipts))
	return err
}
