package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
)

// runLock distinguishes locks on runs from other advisory locks.
const runLock = 0x72756e // "run"

// lockText returns the statement that locks the run whose id is $1.
func lockText(shared bool) string {
	if shared {
		return fmt.Sprintf("SELECT pg_advisory_xact_lock_shared(hashtextextended($1, %d))", runLock)
	}
	return fmt.Sprintf("SELECT pg_advisory_xact_lock(hashtextextended($1, %d))", runLock)
}

// LockRun makes sure that no other transaction counts results of a run or changes it until the
// transaction ends. If shared is set, other transactions can count results, but not change the
// run.
func (s *Store) LockRun(ctx context.Context, tx *Txn, run string, shared bool) error {
	if s.SQLite {
		return nil
	}
	_, err := tx.ExecContext(ctx, lockText(shared), run)
	return err
}

// LockRuns locks all active runs, so that no other transaction counts results or drives a
// run.
func (s *Store) LockRuns(ctx context.Context, tx *Txn) error {
	if s.SQLite {
		return nil
	}
	var ids []string
	if err := Query(ctx, tx, func(r *sql.Rows) error {
		var id string
		err := r.Scan(&id)
		ids = append(ids, id)
		return err
	}, "SELECT id FROM runs WHERE state IN ('waiting', 'running')"); err != nil {
		return err
	}
	slices.Sort(ids) // all code that locks several runs uses this order
	for _, id := range ids {
		if err := s.LockRun(ctx, tx, id, false); err != nil {
			return err
		}
	}
	return nil
}
