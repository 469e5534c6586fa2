package ledger

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"loadstar/server/sqlstore"
)

// Codes of declines. Agents define more codes.
const (
	CodeLost    = "lost" // the agent did not answer in time
	CodeRevoked = "revoked"
)

// Decline records why a turn ended without a result.
type Decline struct {
	Turn
	Agent        string
	Code, Reason string
	At           time.Time
}

// Decline marks an agent's leases in a round as declined, with a reason. Decline skips leases
// that another transaction has locked. The coordinator later withdraws the declined leases.
// Only turns with a lease get a row, so an agent cannot fill the table.
func (ct *Counter) Decline(ctx context.Context, agent, run string, round int64, clients []string, code, reason string) (err error) {
	defer sqlstore.Wrap(&err, "declining leases of agent", agent, "in run", run)
	now := ct.store.Now()
	return ct.store.Update(ctx, func(tx *sqlstore.Txn) error {
		declined, err := ct.setExpiry(ctx, tx, "until <> $4", "$4", agent, run, round, clients, time.Time{})
		if err != nil {
			return err
		}
		all := make([]Decline, len(declined))
		for i, c := range declined {
			all[i] = Decline{Turn{run, round, c}, agent, code, reason, now}
		}
		return ct.addDeclines(ctx, tx, all)
	})
}

// addDeclines stores declines, except for turns that already have one. The transaction must
// have locked the leases of the turns first, so that two transactions cannot deadlock.
func (ct *Counter) addDeclines(ctx context.Context, tx *sqlstore.Txn, all []Decline) error {
	const columns = 7
	for part := range slices.Chunk(all, ct.store.Chunk) {
		args := make([]any, 0, columns*len(part))
		for _, x := range part {
			args = append(args, x.Run, x.Round, x.Client, x.Agent, x.Code, x.Reason, sqlstore.ToMillis(x.At))
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO declines (run, round, client, agent, code, reason, at) VALUES "+sqlstore.Placeholders(0, len(part), columns)+" ON CONFLICT (run, round, client) DO NOTHING", args...); err != nil {
			return err
		}
	}
	return nil
}

// endTurns deletes all leases of a run, and records the reason for each turn.
func (ct *Counter) endTurns(ctx context.Context, tx *sqlstore.Txn, run, reason string, now time.Time) error {
	var all []Decline
	err := sqlstore.Query(ctx, tx, func(r *sql.Rows) error {
		x := Decline{Turn: Turn{Run: run}, Code: CodeLost, Reason: reason, At: now}
		err := r.Scan(&x.Round, &x.Client, &x.Agent)
		all = append(all, x)
		return err
	}, "DELETE FROM leases WHERE run = $1 RETURNING round, client, agent", run)
	if err != nil || len(all) == 0 {
		return err
	}
	if err := sqlstore.Touch(ctx, tx, leasesStamp+run); err != nil { // notifies the agents that train them
		return err
	}
	return ct.addDeclines(ctx, tx, all)
}

// Wave returns the most frequent reason for declined turns in a round, and their number.
func (d *Drive) Wave(round int64) (reason string, turns int64, err error) {
	defer sqlstore.Wrap(&err, "reading the declined turns of run", d.Run.ID)
	err = sqlstore.Query(d.ctx, d.tx, func(r *sql.Rows) error { return r.Scan(&reason, &turns) },
		`SELECT reason, count(*) FROM declines WHERE run = $1 AND round = $2 AND code NOT IN ($3, $4) GROUP BY reason ORDER BY count(*) DESC, reason LIMIT 1`,
		d.Run.ID, round, CodeLost, CodeRevoked)
	return reason, turns, err
}
