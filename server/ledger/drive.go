package ledger

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"
)

// Drive is a coordinator's transaction on one run. No results of the run are counted during
// the transaction, so it must be short.
type Drive struct {
	l   *Ledger
	ctx context.Context
	tx  *sql.Tx
	// Run is the run's state at the start of the transaction.
	Run Run
}

// Drive runs do in a transaction that locks the run. It returns ErrDeposed if another
// coordinator has taken over. After any error the caller must read the run again, because
// the outcome of the commit may be unknown.
func (l *Ledger) Drive(ctx context.Context, lead Lead, run string, do func(d *Drive) error) (err error) {
	var failed error // the error of do, which already names its operation
	defer func() {
		if failed == nil {
			wrap(&err, "driving run", run)
		}
	}()
	return l.update(ctx, func(tx *sql.Tx) error {
		if err := l.checkLead(ctx, tx, lead); err != nil {
			return err
		}
		r, err := scanRun(tx.QueryRowContext(ctx, "SELECT "+runColumns+" FROM runs WHERE id = $1"+l.lockClause("UPDATE"), run))
		if err != nil {
			return orNotFound(err, "run "+run)
		}
		failed = do(&Drive{l, ctx, tx, r})
		return failed
	})
}

// Begin makes the clients that a filter selects the members of the run's fleet, except those
// that are held out. It numbers them in the byte order of their names. It stores version 0
// and r's Plan, PlanBlob, Server and LeftOut. It returns the size of the fleet.
func (d *Drive) Begin(r Run, v Version, members Filter, now time.Time) (fleet int64, err error) {
	defer wrap(&err, "beginning run", d.Run.ID)
	collate := ` COLLATE "C"`
	if d.l.sqlite {
		collate = " COLLATE BINARY"
	}
	args := []any{d.Run.ID}
	which := d.l.selects(members, &args)
	res, err := d.tx.ExecContext(d.ctx, `INSERT INTO members (run, no, client) SELECT $1, row_number() OVER (ORDER BY c.name`+collate+`) - 1, c.name
		FROM clients c JOIN agents a ON a.id = c.agent WHERE `+which+`
		AND NOT EXISTS (SELECT 1 FROM held_out h WHERE h.run = $1 AND h.client = c.name)`, args...)
	if err != nil {
		return 0, err
	}
	if fleet, err = res.RowsAffected(); err != nil {
		return 0, err
	}
	args = []any{d.Run.ID, Running, r.Plan, r.PlanBlob, fleet, toMillis(now), r.Server, r.LeftOut}
	which = d.l.selects(members, &args)
	if _, err := d.tx.ExecContext(d.ctx, "UPDATE runs SET state = $2, plan = $3, plan_blob = $4, fleet = $5, started = $6, server = $7, left_out = $8, generated = (SELECT COALESCE(MAX(a.generated), 0) FROM clients c JOIN agents a ON a.id = c.agent WHERE "+which+") WHERE id = $1",
		args...); err != nil {
		return 0, err
	}
	return fleet, d.addVersion(0, v, r.Server)
}

// End ends the run with the given state and reason.
func (d *Drive) End(s State, reason string, now time.Time) (err error) {
	defer wrap(&err, "ending run", d.Run.ID)
	return d.l.finish(d.ctx, d.tx, d.Run.ID, s, reason, now)
}

// Receipt is the proof that a turn was counted.
type Receipt struct {
	No, Round, Version, Batch int64
	TrainLoss                 float64
}

// Receipts returns the receipts of all batches after the given one, in the order of
// batches.
func (d *Drive) Receipts(after int64) (all []Receipt, err error) {
	defer wrap(&err, "reading the receipts of run", d.Run.ID)
	err = query(d.ctx, d.tx, func(r *sql.Rows) error {
		var x Receipt
		err := r.Scan(&x.No, &x.Round, &x.Version, &x.Batch, &x.TrainLoss)
		all = append(all, x)
		return err
	}, "SELECT no, round, version, batch, train_loss FROM receipts WHERE run = $1 AND batch > $2 ORDER BY batch, no", d.Run.ID, after)
	return all, err
}

// Lease permits a member's update to be counted in a round.
type Lease struct {
	No, Round, Version int64
	// Expired means that its agent did not answer in time. Otherwise the agent declined it,
	// or an operator revoked the client.
	Expired bool
}

// Withdraw deletes expired leases and returns them. It records why they end.
func (d *Drive) Withdraw(now time.Time) (all []Lease, err error) {
	defer wrap(&err, "withdrawing expired leases of run", d.Run.ID)
	var lost []Decline
	err = query(d.ctx, d.tx, func(r *sql.Rows) error {
		var x Lease
		var until, latest int64
		y := Decline{Turn: Turn{Run: d.Run.ID}, Code: CodeLost, Reason: "its agent did not check in before the lease expired", At: now}
		err := r.Scan(&x.No, &x.Round, &x.Version, &y.Client, &y.Agent, &until, &latest)
		x.Expired, y.Round = until != 0, x.Round
		switch until {
		case 0: // if its agent declined it, this is recorded already
			y.Code, y.Reason = CodeRevoked, "the client or its agent is revoked"
		case latest:
			y.Reason = "it took longer than a turn may take"
		}
		all, lost = append(all, x), append(lost, y)
		return err
	}, "DELETE FROM leases WHERE run = $1 AND until <= $2 RETURNING no, round, version, client, agent, until, latest", d.Run.ID, toMillis(now))
	if err != nil {
		return nil, err
	}
	return all, d.l.addDeclines(d.ctx, d.tx, lost)
}

// Asking describes leases for members of the fleet. They last until Until and can be
// extended up to Latest; the zero time means no limit. Members whose agents were not seen
// since Seen get none.
type Asking struct {
	Round, Version      int64
	Members             []int64
	Until, Latest, Seen time.Time
}

// Ask adds leases for members of the fleet. It returns the members that can no longer take
// part, and those whose agents were not seen lately.
func (d *Drive) Ask(a Asking) (gone, silent []int64, err error) {
	defer wrap(&err, "adding leases to run", d.Run.ID)
	const may = "FROM members m JOIN clients c ON c.name = m.client JOIN agents a ON a.id = c.agent WHERE m.run = $1 AND c.revoked = 0 AND a.revoked = 0"
	for part := range slices.Chunk(a.Members, d.l.chunk) {
		args := []any{d.Run.ID, a.Round, a.Version, toMillis(a.Until), toMillis(a.Latest), toMillis(a.Seen)}
		for _, no := range part {
			args = append(args, no)
		}
		asked, err := d.numbers(`INSERT INTO leases (run, round, client, no, agent, version, until, latest)
			SELECT m.run, CAST($2 AS BIGINT), m.client, m.no, c.agent, CAST($3 AS BIGINT), CAST($4 AS BIGINT), CAST($5 AS BIGINT) `+may+
			" AND a.seen >= $6 AND m.no IN "+inList(6, len(part))+" RETURNING no", args...)
		if err != nil {
			return nil, nil, err
		}
		if len(asked) == len(part) {
			continue
		}
		left, err := d.numbers("SELECT m.no "+may+" AND m.no IN "+inList(1, len(part)), append(args[:1:1], args[6:]...)...)
		if err != nil {
			return nil, nil, err
		}
		for _, no := range part {
			switch {
			case asked[no]:
			case left[no]:
				silent = append(silent, no)
			default:
				gone = append(gone, no)
			}
		}
	}
	return gone, silent, nil
}

// numbers returns the numbers of members that a statement returns.
func (d *Drive) numbers(text string, args ...any) (map[int64]bool, error) {
	all := map[int64]bool{}
	return all, query(d.ctx, d.tx, func(r *sql.Rows) error {
		var no int64
		err := r.Scan(&no)
		all[no] = true
		return err
	}, text, args...)
}

// Machine returns the stored state of the run's round.Machine.
func (d *Drive) Machine() (state string, err error) {
	defer wrap(&err, "reading the round state of run", d.Run.ID)
	err = d.tx.QueryRowContext(d.ctx, "SELECT state FROM machines WHERE run = $1", d.Run.ID).Scan(&state)
	return state, orNotFound(err, "the round state of run "+d.Run.ID)
}

func (d *Drive) saveMachine(state string) error {
	_, err := d.tx.ExecContext(d.ctx, "INSERT INTO machines (run, state) VALUES ($1, $2) ON CONFLICT (run) DO UPDATE SET state = excluded.state", d.Run.ID, state)
	return err
}

// Save stores the state of the run's round.Machine and the open round.
func (d *Drive) Save(machine string, open Round) (err error) {
	defer wrap(&err, "saving the round state of run", d.Run.ID)
	if err := d.saveMachine(machine); err != nil {
		return err
	}
	if _, err := d.tx.ExecContext(d.ctx, "UPDATE runs SET round = $2 WHERE id = $1", d.Run.ID, open.Round); err != nil {
		return err
	}
	_, err = d.tx.ExecContext(d.ctx, `INSERT INTO rounds (run, round, version, state, opened, asked, lost) VALUES ($1, $2, $3, $4, $5, $6, $7)
		ON CONFLICT (run, round) DO UPDATE SET opened = excluded.opened, asked = excluded.asked, lost = excluded.lost`,
		d.Run.ID, open.Round, open.Version, RoundOpen, toMillis(open.Opened), open.Asked, open.Lost)
	return err
}

// Close closes a round. The round's merge will include everything counted up to the run's
// newest batch. Close deletes the open leases, unless carries is set: they then stay valid
// in later rounds. It also stores the state of the machine, which has advanced to the next
// round.
func (d *Drive) Close(r Round, machine string, carries bool) (err error) {
	defer wrap(&err, "closing a round of run", d.Run.ID)
	err = d.setRoundState(`UPDATE rounds SET state = $3, closed = $5, asked = $6, counted = $7, late = $8, lost = $9, loss = $10, last_batch = $11, evaluated = $12, relative_mae = $13
		WHERE run = $1 AND round = $2 AND state = $4`, r.Round, r.State, RoundOpen, toMillis(r.Closed), r.Asked, r.Counted, r.Late, r.Lost, r.Loss, d.Run.Batch,
		r.Evaluation.Clients, r.Evaluation.RelativeMAE)
	if err != nil {
		return err
	}
	if !carries {
		if err := d.l.endTurns(d.ctx, d.tx, d.Run.ID, "the round closed before its result arrived", r.Closed); err != nil {
			return err
		}
	}
	if err := d.saveMachine(machine); err != nil {
		return err
	}
	if r.State == RoundAbandoned {
		return d.deleteSums(d.Run.Batch)
	}
	return nil
}

// Publish stores the version that a round's merge has produced, and deletes the sums and
// updates that were merged.
func (d *Drive) Publish(round Round, v Version, server string) (err error) {
	defer wrap(&err, "publishing a version of run", d.Run.ID)
	if err := d.setRoundState("UPDATE rounds SET state = $3 WHERE run = $1 AND round = $2 AND state = $4", round.Round, RoundMerged, RoundMerging); err != nil {
		return err
	}
	if _, err := d.tx.ExecContext(d.ctx, "UPDATE runs SET version = $2, server = $3 WHERE id = $1", d.Run.ID, round.Version+1, server); err != nil {
		return err
	}
	if err := d.addVersion(round.Version+1, v, server); err != nil {
		return err
	}
	return d.deleteSums(round.LastBatch)
}

// Evaluation returns the sum of the evaluations of all results that are counted and not
// merged.
func (d *Drive) Evaluation() (e Evaluation, err error) {
	defer wrap(&err, "reading the evaluation of run", d.Run.ID)
	err = query(d.ctx, d.tx, func(r *sql.Rows) error {
		var x Evaluation
		err := r.Scan(&x.Clients, &x.RelativeMAE)
		e.Add(x)
		return err
	}, `SELECT evaluated, relative_mae FROM partials WHERE run = $1 AND batch <= $2 AND evaluated > 0
		UNION ALL SELECT evaluated, relative_mae FROM updates WHERE run = $1 AND batch <= $2 AND evaluated > 0`, d.Run.ID, d.Run.Batch)
	return e, err
}

// setRoundState changes the state of a round from one state to another. It fails if the
// round is in a different state.
func (d *Drive) setRoundState(text string, round int64, to, from string, args ...any) error {
	r, err := d.tx.ExecContext(d.ctx, text, append([]any{d.Run.ID, round, to, from}, args...)...)
	if err != nil {
		return err
	}
	if n, err := r.RowsAffected(); err != nil {
		return err
	} else if n != 1 {
		return fmt.Errorf("round %d of run %s is not %s: %w", round, d.Run.ID, from, ErrRefused)
	}
	return nil
}

// deleteSums deletes the sums and individual updates up to a batch. The receipts stay.
func (d *Drive) deleteSums(batch int64) error {
	for _, table := range []string{"partials", "updates"} {
		if _, err := d.tx.ExecContext(d.ctx, "DELETE FROM "+table+" WHERE run = $1 AND batch <= $2", d.Run.ID, batch); err != nil {
			return err
		}
	}
	return nil
}

// Merging returns the round that is closed and has no new version yet, if there is one.
func (d *Drive) Merging() (r Round, found bool, err error) {
	defer wrap(&err, "reading the closed round of run", d.Run.ID)
	err = query(d.ctx, d.tx, func(rows *sql.Rows) (err error) {
		found = true
		r, err = scanRound(rows)
		return err
		// The last row wins, which is the oldest round.
	}, "SELECT "+roundColumns+" FROM rounds WHERE run = $1 AND state = $2 ORDER BY round DESC", d.Run.ID, RoundMerging)
	return r, found, err
}

// LastBatch returns the last batch that the newest closed round includes.
func (d *Drive) LastBatch() (batch int64, err error) {
	defer wrap(&err, "reading the last batch of run", d.Run.ID)
	err = d.tx.QueryRowContext(d.ctx, "SELECT COALESCE(max(last_batch), 0) FROM rounds WHERE run = $1", d.Run.ID).Scan(&batch)
	return batch, err
}

// Partials calls each with every stored sum of a run up to a batch.
func (l *Ledger) Partials(ctx context.Context, run string, batch int64, each func(Partial) error) (err error) {
	defer wrap(&err, "reading the sums of run", run)
	return query(ctx, l.db, func(r *sql.Rows) error {
		var p Partial
		if err := r.Scan(&p.Version, &p.Numbers); err != nil {
			return err
		}
		return each(p)
	}, "SELECT version, numbers FROM partials WHERE run = $1 AND batch <= $2 ORDER BY batch, version", run, batch)
}

// Sizes calls each with the sizes of every update that the merge of a round includes, in no
// particular order. The shares have no names.
func (l *Ledger) Sizes(ctx context.Context, run string, r Round, each func(Share)) (err error) {
	defer wrap(&err, "reading the sizes of the updates of run", run)
	return query(ctx, l.db, func(rows *sql.Rows) error {
		var s Share
		if err := rows.Scan(&s.Examples, &s.TrainLoss, &s.Norm, &s.ControlNorm); err != nil {
			return err
		}
		each(s)
		return nil
	}, `SELECT examples, train_loss, norm, control_norm FROM receipts
		WHERE run = $1 AND batch > (SELECT COALESCE(max(last_batch), 0) FROM rounds WHERE run = $1 AND round < $2) AND batch <= $3`, run, r.Round, r.LastBatch)
}

// Singles calls each with every stored individual update of a run up to a batch.
func (l *Ledger) Singles(ctx context.Context, run string, batch int64, each func(Single) error) (err error) {
	defer wrap(&err, "reading the updates of run", run)
	return query(ctx, l.db, func(r *sql.Rows) error {
		var s Single
		if err := r.Scan(&s.Client, &s.Version, &s.Examples, &s.Steps, &s.Loss, &s.Numbers); err != nil {
			return err
		}
		return each(s)
	}, "SELECT client, version, examples, steps, loss, numbers FROM updates WHERE run = $1 AND batch <= $2 ORDER BY batch, client, version", run, batch)
}
