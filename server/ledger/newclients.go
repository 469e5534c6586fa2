package ledger

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strconv"
	"time"

	"loadstar/server/sqlstore"
)

// NewClients is the evaluation of the clients that a run has held out.
type NewClients struct {
	// Answered is the number of held-out clients whose agents have answered. Some of these
	// clients could not be scored.
	HeldOut, Answered int64
	// Evaluation holds the test error of the adapted weights.
	Evaluation Evaluation
}

// errPartly makes AddNewClients roll back its transaction.
var errPartly = errors.New("some of the clients are not held out, or have answered")

// NewClient is a held-out client of a finished run that has not answered.
type NewClient struct {
	Run, Client, Agent string
	Version            int64
}

// HoldOut keeps clients out of the run's fleet. It must be called before Begin.
func (d *Drive) HoldOut(clients []string) (err error) {
	defer sqlstore.Wrap(&err, "holding clients out of run", d.Run.ID)
	for part := range slices.Chunk(clients, d.l.Store.Chunk) {
		args := make([]any, 0, 2*len(part))
		for _, c := range part {
			args = append(args, d.Run.ID, c)
		}
		if _, err := d.tx.ExecContext(d.ctx, "INSERT INTO held_out (run, client) VALUES "+sqlstore.Placeholders(0, len(part), 2), args...); err != nil {
			return err
		}
	}
	_, err = d.tx.ExecContext(d.ctx, "INSERT INTO new_clients (run, held_out) VALUES ($1, $2)", d.Run.ID, len(clients))
	return err
}

// OpenNewClients returns up to limit held-out clients of runs that finished after the given
// time, in the order of runs and clients. Clients that have answered are left out.
func (l *Ledger) OpenNewClients(ctx context.Context, after time.Time, limit int) (all []NewClient, err error) {
	defer sqlstore.Wrap(&err, "reading held-out clients")
	// SQLite prepares a statement again for each call that binds its limit. Gateways make this one
	// every second.
	err = sqlstore.Query(ctx, l.Store.DB, func(r *sql.Rows) error {
		var x NewClient
		err := r.Scan(&x.Run, &x.Client, &x.Agent, &x.Version)
		all = append(all, x)
		return err
	}, `SELECT h.run, h.client, c.agent, r.version FROM held_out h JOIN runs r ON r.id = h.run JOIN clients c ON c.name = h.client JOIN agents a ON a.id = c.agent
		WHERE h.done = 0 AND r.state = $1 AND r.finished > $2 AND c.revoked = 0 AND a.revoked = 0 ORDER BY h.run, h.client LIMIT `+strconv.Itoa(limit), Finished, sqlstore.ToMillis(after))
	return all, err
}

// AddNewClients adds an agent's answer for some of its clients. It returns false and adds
// nothing unless the run has finished and has held out all of them, they belong to the agent,
// and none has answered. Therefore an answer that is sent twice is added only once.
func (l *Ledger) AddNewClients(ctx context.Context, agent, run string, clients []string, e Evaluation) (added bool, err error) {
	defer sqlstore.Wrap(&err, "adding the errors of held-out clients of run", run)
	err = l.Store.Update(ctx, func(tx *sqlstore.Txn) error {
		added = false
		var n int64
		for part := range slices.Chunk(clients, l.Store.Chunk) {
			args := []any{run, agent, Finished}
			for _, c := range part {
				args = append(args, c)
			}
			r, err := tx.ExecContext(ctx, `UPDATE held_out SET done = 1 WHERE run = $1 AND done = 0
				AND EXISTS (SELECT 1 FROM runs WHERE id = $1 AND state = $3)
				AND client IN (SELECT c.name FROM clients c JOIN agents a ON a.id = c.agent WHERE c.agent = $2 AND c.revoked = 0 AND a.revoked = 0)
				AND client IN `+sqlstore.InList(3, len(part)), args...)
			if err != nil {
				return err
			}
			some, err := r.RowsAffected()
			if err != nil {
				return err
			}
			n += some
		}
		if n != int64(len(clients)) {
			return errPartly
		}
		_, err := tx.ExecContext(ctx, "UPDATE new_clients SET answered = answered + $2, scored = scored + $3, relative_mae = relative_mae + $4 WHERE run = $1",
			run, n, e.Clients, e.RelativeMAE)
		added = err == nil
		return err
	})
	if errors.Is(err, errPartly) {
		return false, nil
	}
	return added, err
}

// NewClients returns the evaluation of the clients that a run has held out. It is zero if
// there are none.
func (l *Ledger) NewClients(ctx context.Context, run string) (n NewClients, err error) {
	defer sqlstore.Wrap(&err, "reading the held-out clients of run", run)
	err = sqlstore.Query(ctx, l.Store.DB, func(r *sql.Rows) error {
		return r.Scan(&n.HeldOut, &n.Answered, &n.Evaluation.Clients, &n.Evaluation.RelativeMAE)
	}, "SELECT held_out, answered, scored, relative_mae FROM new_clients WHERE run = $1", run)
	return n, err
}
