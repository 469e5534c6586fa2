package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"loadstar/server/directory"
	"loadstar/server/sqlstore"
)

// Drive is a coordinator's transaction on one run. No results of the run are counted during
// the transaction, so it must be short.
type Drive struct {
	l   *Ledger
	ctx context.Context
	tx  *sqlstore.Txn
	// Run is the run's state at the start of the transaction.
	Run Run
	now Run // the run with the transaction's changes
}

// Drive runs do in a transaction that locks the run. It returns ErrDeposed if another
// coordinator has taken over. After any error, the caller must read the run again, because the
// outcome of the commit may be unknown.
func (l *Ledger) Drive(ctx context.Context, lead Lead, run string, do func(d *Drive) error) (err error) {
	var failed error // the error of do, which already names its operation
	defer func() {
		if failed == nil {
			sqlstore.Wrap(&err, "driving run", run)
		}
	}()
	return l.Store.Update(ctx, func(tx *sqlstore.Txn) error {
		if err := l.checkLead(ctx, tx, lead); err != nil {
			return err
		}
		r, err := l.lockedRun(ctx, tx, run)
		if err != nil {
			return err
		}
		failed = do(&Drive{l, ctx, tx, r, r})
		return failed
	})
}

// Begin adds the clients that a filter selects to the run's fleet, except those that are held
// out. It numbers the members in the byte order of their names. It stores version 0 and r's
// Plan, PlanBlob, Server and LeftOut. It returns the size of the fleet.
func (d *Drive) Begin(r Run, v Version, members directory.Filter, now time.Time) (fleet int64, err error) {
	defer sqlstore.Wrap(&err, "beginning run", d.Run.ID)
	args := []any{d.Run.ID}
	which := d.l.Directory.Selects(members, &args)
	var clients []string
	generated := int64(0)
	if err := sqlstore.Query(d.ctx, d.tx, func(r *sql.Rows) error {
		var name string
		var synthetic int64
		var heldOut bool
		err := r.Scan(&name, &synthetic, &heldOut)
		if generated = max(generated, synthetic); !heldOut {
			clients = append(clients, name)
		}
		return err
	}, `SELECT c.name, a.generated, EXISTS (SELECT 1 FROM held_out h WHERE h.run = $1 AND h.client = c.name)
		FROM clients c JOIN agents a ON a.id = c.agent WHERE `+which, args...); err != nil {
		return 0, err
	}
	slices.Sort(clients)
	fleet = int64(len(clients))
	no := int64(0)
	for part := range slices.Chunk(clients, d.l.Store.Chunk) {
		const columns = 4
		rows := make([]any, 0, columns*len(part))
		for _, c := range part {
			rows = append(rows, sqlstore.WithSum("members", d.Run.ID, no, c)...)
			no++
		}
		if _, err := d.tx.ExecContext(d.ctx, "INSERT INTO members (run, no, client, checksum) VALUES "+sqlstore.Placeholders(0, len(part), columns), rows...); err != nil {
			return 0, err
		}
	}
	d.now.State, d.now.Plan, d.now.PlanBlob, d.now.Fleet, d.now.Started, d.now.Server, d.now.LeftOut = Running, r.Plan, r.PlanBlob, fleet, now, r.Server, r.LeftOut
	d.now.Generated = generated != 0
	if err := storeRun(d.ctx, d.tx, d.now); err != nil {
		return 0, err
	}
	return fleet, d.addVersion(0, v, r.Server)
}

// End ends the run with the given state and reason.
func (d *Drive) End(s State, reason string, now time.Time) (err error) {
	defer sqlstore.Wrap(&err, "ending run", d.Run.ID)
	return d.l.finish(d.ctx, d.tx, d.now, s, reason, now)
}

// Receipt is the proof that a turn was counted.
type Receipt struct {
	No, Round, Version, Batch int64
	TrainLoss                 float64
}

// Receipts returns the receipts of all batches after the given one, in the order of
// batches, and the updates that they count.
func (d *Drive) Receipts(after int64) (all []Receipt, updates []Share, err error) {
	defer sqlstore.Wrap(&err, "reading the receipts of run", d.Run.ID)
	err = sqlstore.Query(d.ctx, d.tx, func(r *sql.Rows) error {
		x, s, err := scanReceipt(r)
		all, updates = append(all, x), append(updates, s)
		return err
	}, "SELECT "+sqlstore.ReceiptColumns+", checksum FROM receipts WHERE run = $1 AND batch > $2 ORDER BY batch, no", d.Run.ID, after)
	return all, updates, err
}

// scanReceipt scans the first columns of a row into others, and the remaining columns into a
// receipt and its share.
func scanReceipt(r *sql.Rows, others ...any) (x Receipt, s Share, err error) {
	var run string
	var counted, checksum int64
	err = r.Scan(append(others, &run, &x.Round, &s.Client, &x.No, &x.Version, &x.Batch, &s.Examples, &s.Steps, &s.TrainLoss, &counted, &s.Norm, &s.ControlNorm, &checksum)...)
	if x.TrainLoss = s.TrainLoss; err != nil {
		return x, s, err
	}
	return x, s, sqlstore.CheckRow("receipts", checksum, run, x.Round, s.Client, x.No, x.Version, x.Batch, s.Examples, s.Steps, s.TrainLoss, counted, s.Norm, s.ControlNorm)
}

// Lease permits a member's update to be counted in a round.
type Lease struct {
	No, Round, Version int64
	// Expired means that the agent did not answer in time. Otherwise, the agent declined the
	// lease, or an operator revoked the client.
	Expired bool
}

// Withdraw deletes expired leases and returns them. It records the reason why each of them
// ended.
func (d *Drive) Withdraw(now time.Time) (all []Lease, err error) {
	defer sqlstore.Wrap(&err, "withdrawing expired leases of run", d.Run.ID)
	var lost []Decline
	err = sqlstore.Query(d.ctx, d.tx, func(r *sql.Rows) error {
		x, err := scanLease(r)
		y := Decline{Turn: x.Turn, Agent: x.agent, Code: CodeLost, Reason: "its agent did not call before the lease expired", At: now}
		switch x.until {
		case 0: // if the agent declined it, this is already recorded
			y.Code, y.Reason = CodeRevoked, "the client or its agent is revoked"
		case x.latest:
			y.Reason = "it took longer than a turn may take"
		}
		all, lost = append(all, Lease{No: x.no, Round: x.Round, Version: x.version, Expired: x.until != 0}), append(lost, y)
		return err
	}, "DELETE FROM leases WHERE run = $1 AND until <= $2 RETURNING "+storedLease, d.Run.ID, sqlstore.ToMillis(now))
	if err != nil || len(all) == 0 {
		return nil, err
	}
	if err := sqlstore.Touch(d.ctx, d.tx, leasesStamp+d.Run.ID); err != nil {
		return nil, err
	}
	return all, d.l.Counter.addDeclines(d.ctx, d.tx, lost)
}

// Asking describes leases for members of the fleet. The leases last until Until and can be
// extended up to Latest. The zero time means no limit. Members whose agents have not been seen
// since Seen get no lease.
type Asking struct {
	Round, Version      int64
	Members             []int64
	Until, Latest, Seen time.Time
}

// Ask adds leases for members of the fleet. It returns the members that can no longer take
// part, and those whose agents were not seen recently.
func (d *Drive) Ask(a Asking) (gone, silent []int64, err error) {
	defer sqlstore.Wrap(&err, "adding leases to run", d.Run.ID)
	for part := range slices.Chunk(a.Members, sqlstore.MaxRows) {
		here := map[int64]bool{}
		var leases []leaseRow
		err := sqlstore.Query(d.ctx, d.tx, func(r *sql.Rows) error {
			x := leaseRow{Turn: Turn{Run: d.Run.ID, Round: a.Round}, version: a.Version, until: sqlstore.ToMillis(a.Until), latest: sqlstore.ToMillis(a.Latest)}
			var checksum, seen int64
			if err := r.Scan(&x.no, &x.Client, &checksum, &x.agent, &seen); err != nil {
				return err
			}
			here[x.no] = true
			if seen >= sqlstore.ToMillis(a.Seen) {
				leases = append(leases, x)
			} else {
				silent = append(silent, x.no)
			}
			return sqlstore.CheckRow("members", checksum, d.Run.ID, x.no, x.Client)
		}, `SELECT m.no, m.client, m.checksum, c.agent, a.seen FROM members m JOIN clients c ON c.name = m.client JOIN agents a ON a.id = c.agent
			WHERE m.run = $1 AND c.revoked = 0 AND a.revoked = 0 AND m.no `+d.l.Store.AnyOf(2), d.Run.ID, sqlstore.List(d.l.Store, part))
		if err != nil {
			return nil, nil, err
		}
		if err := d.l.addLeases(d.ctx, d.tx, leases, ""); err != nil {
			return nil, nil, err
		}
		for _, no := range part {
			if !here[no] {
				gone = append(gone, no)
			}
		}
	}
	slices.Sort(silent)
	return gone, silent, nil
}

// leaseRow is a row of the table leases.
type leaseRow struct {
	Turn
	no            int64
	agent         string
	version       int64
	until, latest int64
}

func (x *leaseRow) sum() int64 {
	return sqlstore.RowSum("leases", x.Run, x.Round, x.Client, x.no, x.agent, x.version, x.latest)
}

func scanLease(r *sql.Rows) (x leaseRow, err error) {
	var checksum int64
	if err := r.Scan(&x.Run, &x.Round, &x.Client, &x.no, &x.agent, &x.version, &x.latest, &x.until, &checksum); err != nil {
		return x, err
	}
	return x, sqlstore.CheckRow("leases", checksum, x.Run, x.Round, x.Client, x.no, x.agent, x.version, x.latest)
}

// leaseTypes are the types of storedLease.
var leaseTypes = []string{"text", "bigint", "text", "bigint", "text", "bigint", "bigint", "bigint", "bigint"}

// addLeases adds leases of one run with one statement. orElse is the end of the statement; it
// determines what happens if a lease exists.
func (l *Ledger) addLeases(ctx context.Context, tx *sqlstore.Txn, all []leaseRow, orElse string) error {
	if len(all) == 0 {
		return nil
	}
	rows := make([]any, 0, len(leaseTypes)*len(all))
	for _, x := range all {
		rows = append(rows, x.Run, x.Round, x.Client, x.no, x.agent, x.version, x.latest, x.until, x.sum())
	}
	text, args := l.Store.InsertRows("INSERT INTO leases ("+storedLease+")", leaseTypes, rows)
	if _, err := tx.ExecContext(ctx, text+orElse, args...); err != nil {
		return err
	}
	return sqlstore.Touch(ctx, tx, leasesStamp+all[0].Run)
}

// Machine returns the stored state of the run's round.Machine.
func (d *Drive) Machine() (state string, err error) {
	defer sqlstore.Wrap(&err, "reading the round state of run", d.Run.ID)
	var checksum int64
	err = d.tx.QueryRowContext(d.ctx, "SELECT state, checksum FROM machines WHERE run = $1", d.Run.ID).Scan(&state, &checksum)
	if err != nil {
		return "", sqlstore.OrNotFound(err, "the round state of run "+d.Run.ID)
	}
	return state, sqlstore.CheckRow("machines", checksum, d.Run.ID, state)
}

func (d *Drive) saveMachine(state string) error {
	_, err := d.tx.ExecContext(d.ctx, "INSERT INTO machines (run, state, checksum) VALUES ($1, $2, $3) ON CONFLICT (run) DO UPDATE SET state = excluded.state, checksum = excluded.checksum",
		sqlstore.WithSum("machines", d.Run.ID, state)...)
	return err
}

// Save stores the open round and the state of the run's round.Machine.
func (d *Drive) Save(machine string, open Round) (err error) {
	defer sqlstore.Wrap(&err, "saving the round state of run", d.Run.ID)
	if err := d.saveMachine(machine); err != nil {
		return err
	}
	if d.now.Round = open.Round; d.now.Round != d.Run.Round {
		if err := storeRun(d.ctx, d.tx, d.now); err != nil {
			return err
		}
	}
	r, err := scanRound(d.tx.QueryRowContext(d.ctx, selectRounds+" WHERE run = $1 AND round = $2", d.Run.ID, open.Round))
	if errors.Is(err, sql.ErrNoRows) {
		open.State = RoundOpen
		return insertRound(d.ctx, d.tx, d.Run.ID, open, "")
	} else if err != nil {
		return err
	}
	r.Opened, r.Asked, r.Lost = open.Opened, open.Asked, open.Lost
	return storeRound(d.ctx, d.tx, d.Run.ID, r)
}

// Close closes a round. The round's merge will include everything counted up to the run's
// newest batch. Close deletes the open leases unless carries is set; then they stay valid in
// later rounds. It also stores machine, which has already advanced to the next round.
func (d *Drive) Close(r Round, machine string, carries bool) (err error) {
	defer sqlstore.Wrap(&err, "closing a round of run", d.Run.ID)
	has, err := d.round(r.Round, RoundOpen)
	if err != nil {
		return err
	}
	r.Version, r.Opened, r.LastBatch = has.Version, has.Opened, d.Run.Batch
	if err := storeRound(d.ctx, d.tx, d.Run.ID, r); err != nil {
		return err
	}
	if !carries {
		if err := d.l.Counter.endTurns(d.ctx, d.tx, d.Run.ID, "the round closed before its result arrived", r.Closed); err != nil {
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
	defer sqlstore.Wrap(&err, "publishing a version of run", d.Run.ID)
	r, err := d.round(round.Round, RoundMerging)
	if err != nil {
		return err
	}
	r.State = RoundMerged
	if err := storeRound(d.ctx, d.tx, d.Run.ID, r); err != nil {
		return err
	}
	d.now.Version, d.now.Server = round.Version+1, server
	if err := storeRun(d.ctx, d.tx, d.now); err != nil {
		return err
	}
	if err := d.addVersion(round.Version+1, v, server); err != nil {
		return err
	}
	return d.deleteSums(round.LastBatch)
}

// Evaluation returns the sum of the evaluations of all results that are counted but not yet
// merged. It does not verify checksums, because the merge verifies them when it reads the
// numbers.
func (d *Drive) Evaluation() (e Evaluation, err error) {
	defer sqlstore.Wrap(&err, "reading the evaluation of run", d.Run.ID)
	err = sqlstore.Query(d.ctx, d.tx, func(r *sql.Rows) error {
		var x Evaluation
		err := r.Scan(&x.Clients, &x.RelativeMAE)
		e.Add(x)
		return err
	}, `SELECT evaluated, relative_mae FROM partials WHERE run = $1 AND batch <= $2 AND evaluated > 0
		UNION ALL SELECT evaluated, relative_mae FROM updates WHERE run = $1 AND batch <= $2 AND evaluated > 0`, d.Run.ID, d.Run.Batch)
	return e, err
}

// round returns a round. It fails if the round is in a different state.
func (d *Drive) round(round int64, state string) (r Round, err error) {
	r, err = scanRound(d.tx.QueryRowContext(d.ctx, selectRounds+" WHERE run = $1 AND round = $2 AND state = $3", d.Run.ID, round, state))
	if errors.Is(err, sql.ErrNoRows) {
		err = fmt.Errorf("round %d of run %s is not %s: %w", round+1, d.Run.ID, state, ErrRefused)
	}
	return r, err
}

// deleteSums deletes the sums and individual updates up to a batch. The receipts remain.
func (d *Drive) deleteSums(batch int64) error {
	for _, table := range []string{"partials", "updates", "masks"} {
		if _, err := d.tx.ExecContext(d.ctx, "DELETE FROM "+table+" WHERE run = $1 AND batch <= $2", d.Run.ID, batch); err != nil {
			return err
		}
	}
	return nil
}

// Merging returns the closed round whose version has not been published yet, if there is one.
func (d *Drive) Merging() (r Round, found bool, err error) {
	defer sqlstore.Wrap(&err, "reading the closed round of run", d.Run.ID)
	err = sqlstore.Query(d.ctx, d.tx, func(rows *sql.Rows) (err error) {
		found = true
		r, err = scanRound(rows)
		return err
		// The last row is kept, which is the oldest round.
	}, selectRounds+" WHERE run = $1 AND state = $2 ORDER BY round DESC", d.Run.ID, RoundMerging)
	return r, found, err
}

// LastBatch returns the last batch that the newest closed round includes.
func (d *Drive) LastBatch() (batch int64, err error) {
	defer sqlstore.Wrap(&err, "reading the last batch of run", d.Run.ID)
	err = d.tx.QueryRowContext(d.ctx, "SELECT COALESCE(max(last_batch), 0) FROM rounds WHERE run = $1", d.Run.ID).Scan(&batch)
	return batch, err
}

// Partials calls each with every stored sum of a run up to a batch.
func (l *Ledger) Partials(ctx context.Context, run string, batch int64, each func(Partial) error) (err error) {
	defer sqlstore.Wrap(&err, "reading the sums of run", run)
	return sqlstore.Query(ctx, l.Store.DB, func(r *sql.Rows) error {
		p, err := scanPartial(r)
		if err != nil {
			return err
		}
		return each(p)
	}, "SELECT "+sqlstore.PartialColumns+", checksum FROM partials WHERE run = $1 AND batch <= $2 ORDER BY batch, version", run, batch)
}

// Sizes calls each with the sizes of every update that the merge of a round includes, in no
// particular order.
func (l *Ledger) Sizes(ctx context.Context, run string, r Round, each func(Share)) (err error) {
	defer sqlstore.Wrap(&err, "reading the sizes of the updates of run", run)
	return sqlstore.Query(ctx, l.Store.DB, func(rows *sql.Rows) error {
		_, s, err := scanReceipt(rows)
		if err != nil {
			return err
		}
		each(s)
		return nil
	}, "SELECT "+sqlstore.ReceiptColumns+`, checksum FROM receipts
		WHERE run = $1 AND batch > (SELECT COALESCE(max(last_batch), 0) FROM rounds WHERE run = $1 AND round < $2) AND batch <= $3`, run, r.Round, r.LastBatch)
}

// Singles calls each with every stored individual update of a run up to a batch.
func (l *Ledger) Singles(ctx context.Context, run string, batch int64, each func(Single) error) (err error) {
	defer sqlstore.Wrap(&err, "reading the updates of run", run)
	return sqlstore.Query(ctx, l.Store.DB, func(r *sql.Rows) error {
		s, err := scanSingle(r)
		if err != nil {
			return err
		}
		return each(s)
	}, "SELECT "+sqlstore.UpdateColumns+", checksum FROM updates WHERE run = $1 AND batch <= $2 ORDER BY batch, client, version", run, batch)
}

func scanPartial(r *sql.Rows) (p Partial, err error) {
	var run string
	var batch, checksum int64
	if err := r.Scan(&run, &batch, &p.Version, &p.Evaluation.Clients, &p.Evaluation.RelativeMAE, &p.Numbers, &checksum); err != nil {
		return p, err
	}
	return p, sqlstore.CheckRow("partials", checksum, p.values(run, batch)...)
}

// values returns the values of partialColumns.
func (p *Partial) values(run string, batch int64) []any {
	return []any{run, batch, p.Version, p.Evaluation.Clients, p.Evaluation.RelativeMAE, p.Numbers}
}

func scanSingle(r *sql.Rows) (s Single, err error) {
	var run string
	var batch, checksum int64
	if err := r.Scan(&run, &batch, &s.Client, &s.Version, &s.Examples, &s.Steps, &s.Loss, &s.Evaluation.Clients, &s.Evaluation.RelativeMAE, &s.Numbers, &checksum); err != nil {
		return s, err
	}
	return s, sqlstore.CheckRow("updates", checksum, s.values(run, batch)...)
}

// values returns the values of updateColumns.
func (s *Single) values(run string, batch int64) []any {
	return []any{run, batch, s.Client, s.Version, s.Examples, s.Steps, s.Loss, s.Evaluation.Clients, s.Evaluation.RelativeMAE, s.Numbers}
}
