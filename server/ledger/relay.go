package ledger

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"loadstar/server/sqlstore"
)

// A region's ledger holds runs that a hub drives. Its leases come from the hub's tasks. It
// sends its counted results to the hub in groups called sendings, and the hub decides
// whether they count.

// Adoption is a task from the hub that a region adopts.
type Adoption struct {
	Run            Run // only ID, Name, Plan, PlanBlob and Fleet are used
	Round, Version int64
	Blobs          Version
	Clients        []string
	Until          time.Time
	Privacy        []byte // encoded v1.Privacy of a private plan's round; otherwise nil
}

// Relay is the part of a region's ledger that deals with the hub.
type Relay struct {
	store   *sqlstore.Store
	ledger  *Ledger
	counter *Counter
}

// asLeader runs do in a transaction that fails if another coordinator has taken over.
func (h *Relay) asLeader(ctx context.Context, lead Lead, do func(tx *sqlstore.Txn) error) error {
	return h.store.Update(ctx, func(tx *sqlstore.Txn) error {
		if err := h.ledger.checkLead(ctx, tx, lead); err != nil {
			return err
		}
		return do(tx)
	})
}

// Adopt adds leases for the clients of a hub's task. It returns the clients that cannot take
// part, including those on whose turns the hub has already decided. Adopt may be repeated for
// the same task, because a client with a lease or a receipt gets no second lease. It resumes a
// run that was ended by EndIdleRuns. It also deletes older versions that are no longer needed,
// and returns as retired those of their blobs to which nothing else refers.
func (h *Relay) Adopt(ctx context.Context, lead Lead, a Adoption, now time.Time) (gone, retired []string, err error) {
	defer sqlstore.Wrap(&err, "adopting a task of run", a.Run.ID)
	err = h.asLeader(ctx, lead, func(tx *sqlstore.Txn) error {
		gone = nil
		if err := h.adoptRun(ctx, tx, a, now); err != nil {
			return err
		}
		for part := range slices.Chunk(a.Clients, h.store.Chunk) {
			args := []any{a.Run.ID, a.Round}
			for _, c := range part {
				args = append(args, c)
			}
			may := map[string]bool{}
			var leases []leaseRow
			if err := sqlstore.Query(ctx, tx, func(r *sql.Rows) error {
				x := leaseRow{Turn: Turn{Run: a.Run.ID, Round: a.Round}, version: a.Version, until: sqlstore.ToMillis(a.Until)}
				var counted bool
				err := r.Scan(&x.Client, &x.agent, &counted)
				if may[x.Client] = true; !counted {
					leases = append(leases, x)
				}
				return err
			}, `SELECT c.name, c.agent, EXISTS (SELECT 1 FROM receipts r WHERE r.run = $1 AND r.round = $2 AND r.client = c.name)
				FROM clients c JOIN agents a ON a.id = c.agent WHERE c.revoked = 0 AND a.revoked = 0
				AND NOT EXISTS (SELECT 1 FROM receipts r JOIN relayed x ON x.run = r.run AND x.batch = r.batch AND (x.client = '' OR x.client = r.client)
					WHERE r.run = $1 AND r.round = $2 AND r.client = c.name AND x.outcome <> '') AND c.name IN `+sqlstore.InList(2, len(part)), args...); err != nil {
				return err
			}
			for _, c := range part {
				if !may[c] {
					gone = append(gone, c)
				}
			}
			if err := h.ledger.addLeases(ctx, tx, leases, " ON CONFLICT (run, round, client) DO NOTHING"); err != nil {
				return err
			}
		}
		if err := deletePrivate(ctx, tx, a.Run.ID, a.Round); err != nil {
			return err
		}
		var err error
		retired, err = deleteVersions(ctx, tx, a.Run.ID, a.Version, "")
		return err
	})
	return gone, retired, err
}

// deletePrivate deletes the statements and masks of earlier rounds without leases, in which nothing
// can be counted any more. Masks of results that are not decided stay with their sums.
func deletePrivate(ctx context.Context, tx *sqlstore.Txn, run string, round int64) error {
	const over = " WHERE run = $1 AND round < $2 AND round NOT IN (SELECT round FROM leases WHERE run = $1)"
	for _, text := range []string{
		"DELETE FROM private_rounds" + over,
		"DELETE FROM masks" + over + " AND batch NOT IN (SELECT batch FROM partials WHERE run = $1)",
	} {
		if _, err := tx.ExecContext(ctx, text, run, round); err != nil {
			return err
		}
	}
	return nil
}

// adoptRun adds or resumes the run of a hub's task, and adds its version and round. It locks
// the run.
func (h *Relay) adoptRun(ctx context.Context, tx *sqlstore.Txn, a Adoption, now time.Time) error {
	r := Run{ID: a.Run.ID, Name: a.Run.Name, Plan: a.Run.Plan, PlanBlob: a.Run.PlanBlob, State: Running, Fleet: a.Run.Fleet, Created: now, Started: now, Remote: true}
	if err := insertRun(ctx, tx, r, " ON CONFLICT (id) DO NOTHING"); err != nil {
		return err
	}
	r, err := h.ledger.lockedRun(ctx, tx, a.Run.ID)
	if err != nil {
		return err
	}
	if r.State == Finished {
		r.State, r.Reason, r.Code, r.Finished = Running, "", "", time.Time{}
		if err := storeRun(ctx, tx, r); err != nil {
			return err
		}
	}
	if err := insertVersion(ctx, tx, versionRow{Version: a.Blobs, run: a.Run.ID, number: a.Version}, " ON CONFLICT (run, version) DO NOTHING"); err != nil {
		return err
	}
	if len(a.Privacy) > 0 {
		if err := openPrivate(ctx, tx, a.Run.ID, a.Round, a.Privacy); err != nil {
			return err
		}
	}
	return insertRound(ctx, tx, a.Run.ID, Round{Round: a.Round, Version: a.Version, State: RoundOpen, Opened: now}, " ON CONFLICT (run, round) DO NOTHING")
}

// EndIdleRuns ends the hub's runs that have no open work and have had no new round since the
// given time. The hub does not announce the end of a run, so a region must detect it.
// EndIdleRuns returns the blobs that only these runs refer to.
func (h *Relay) EndIdleRuns(ctx context.Context, lead Lead, since, now time.Time) (retired []string, err error) {
	defer sqlstore.Wrap(&err, "ending idle runs of the hub")
	err = h.asLeader(ctx, lead, func(tx *sqlstore.Txn) error {
		retired = nil
		if err := h.store.LockRuns(ctx, tx); err != nil {
			return err
		}
		var idle []string
		if err := sqlstore.Query(ctx, tx, func(r *sql.Rows) error {
			var id string
			err := r.Scan(&id)
			idle = append(idle, id)
			return err
		}, `SELECT id FROM runs WHERE remote = 1 AND state = $1 AND (SELECT max(opened) FROM rounds WHERE run = id) <= $2
			AND id NOT IN (SELECT run FROM leases) AND id NOT IN (SELECT run FROM partials) AND id NOT IN (SELECT run FROM updates)`, Running, sqlstore.ToMillis(since)); err != nil {
			return err
		}
		for _, id := range idle {
			r, err := h.ledger.lockedRun(ctx, tx, id)
			if err != nil {
				return err
			}
			if err := h.ledger.finish(ctx, tx, r, Finished, "the hub has sent no tasks for a while", now); err != nil {
				return err
			}
			blobs, err := deleteVersions(ctx, tx, id, math.MaxInt64, "")
			if err != nil {
				return err
			}
			retired = append(retired, blobs...)
		}
		return nil
	})
	return retired, err
}

// Adopted returns the runs that the hub drives and that have not ended.
func (h *Relay) Adopted(ctx context.Context) (runs []string, err error) {
	defer sqlstore.Wrap(&err, "reading the runs of the hub")
	err = sqlstore.Query(ctx, h.store.DB, func(r *sql.Rows) error {
		var id string
		err := r.Scan(&id)
		runs = append(runs, id)
		return err
	}, "SELECT id FROM runs WHERE remote = 1 AND state = $1 ORDER BY created, id", Running)
	return runs, err
}

// Leased returns all leases, in the order of run, round and client.
func (h *Relay) Leased(ctx context.Context) (all []Task, err error) {
	defer sqlstore.Wrap(&err, "reading leases")
	err = sqlstore.Query(ctx, h.store.DB, scanTasks(&all), selectLeases+" ORDER BY run, round, client")
	return all, err
}

// WithdrawExpired deletes expired leases and returns them.
func (h *Relay) WithdrawExpired(ctx context.Context, lead Lead, now time.Time) (all []Task, err error) {
	defer sqlstore.Wrap(&err, "withdrawing expired leases")
	err = h.asLeader(ctx, lead, func(tx *sqlstore.Txn) error {
		all = nil
		if err := h.store.LockRuns(ctx, tx); err != nil {
			return err
		}
		if err := sqlstore.Query(ctx, tx, scanTasks(&all), "DELETE FROM leases WHERE until <= $1 AND run IN (SELECT id FROM runs WHERE state = $2) RETURNING "+storedLease, sqlstore.ToMillis(now), Running); err != nil {
			return err
		}
		touched := map[string]bool{}
		for _, t := range all {
			if !touched[t.Run] {
				touched[t.Run] = true
				if err := sqlstore.Touch(ctx, tx, leasesStamp+t.Run); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return all, err
}

// Withdraw deletes the leases of the given clients in a round, because the hub has closed
// their turns.
func (h *Relay) Withdraw(ctx context.Context, lead Lead, run string, round int64, clients []string) (err error) {
	defer sqlstore.Wrap(&err, "withdrawing leases of run", run)
	return h.asLeader(ctx, lead, func(tx *sqlstore.Txn) error {
		if err := h.store.LockRun(ctx, tx, run, false); err != nil {
			return err
		}
		for part := range slices.Chunk(clients, h.store.Chunk) {
			args := []any{run, round}
			for _, c := range part {
				args = append(args, c)
			}
			if _, err := tx.ExecContext(ctx, "DELETE FROM leases WHERE run = $1 AND round = $2 AND client IN "+sqlstore.InList(2, len(part)), args...); err != nil {
				return err
			}
		}
		return sqlstore.Touch(ctx, tx, leasesStamp+run) // notifies the agents that train them
	})
}

// Sending is one result for the hub: the sum of several batches, or an individual update.
type Sending struct {
	ID             string
	Round, Version int64
	Shares         []Share
	Loss           float64 // loss of an individual update
	// Evaluation is the sum of the evaluations of the parts.
	Evaluation Evaluation
	// Parts are the numbers that add up to the sending.
	Parts [][]byte
	// Single means that the sending is an individual update, not a sum. It then has one
	// part.
	Single bool
	// Masks are those of the results in a private plan's sum, in the order of agent and part.
	Masks []Mask
}

// Grouping determines which results form a sending.
type Grouping int

// The groupings: all results of a round and version, those of a batch, or each update.
const (
	ByRound Grouping = iota
	ByBatch
	ByUpdate
)

// unit is an indivisible part of a sending: a batch, or an individual update of a
// batch.
type unit struct {
	batch, version int64
	client         string
}

// Gather puts counted results that have not been sent to the hub into new sendings. It
// considers only rounds for which ready returns true.
func (h *Relay) Gather(ctx context.Context, lead Lead, run string, by Grouping, ready func(round int64) bool) (err error) {
	defer sqlstore.Wrap(&err, "gathering results of run", run)
	return h.asLeader(ctx, lead, func(tx *sqlstore.Txn) error {
		text := "SELECT p.batch, p.version, '' FROM partials p LEFT JOIN relayed x ON x.run = p.run AND x.batch = p.batch WHERE p.run = $1 AND x.run IS NULL ORDER BY p.batch"
		if by == ByUpdate {
			text = "SELECT u.batch, u.version, u.client FROM updates u LEFT JOIN relayed x ON x.run = u.run AND x.batch = u.batch AND x.client = u.client WHERE u.run = $1 AND x.run IS NULL ORDER BY u.batch"
		}
		var units []unit
		if err := sqlstore.Query(ctx, tx, func(r *sql.Rows) error {
			var u unit
			err := r.Scan(&u.batch, &u.version, &u.client)
			units = append(units, u)
			return err
		}, text, run); err != nil {
			return err
		}
		type kind struct{ round, version, batch int64 }
		kinds := map[kind][]unit{}
		for _, u := range units {
			var round int64
			if err := tx.QueryRowContext(ctx, "SELECT min(round) FROM receipts WHERE run = $1 AND batch = $2", run, u.batch).Scan(&round); err != nil {
				return err
			}
			if !ready(round) {
				continue
			}
			k := kind{round, u.version, 0}
			if by == ByBatch {
				k.batch = u.batch
			}
			kinds[k] = append(kinds[k], u)
		}
		for k, units := range kinds {
			for _, u := range units {
				id := fmt.Sprintf("%d/%d/%d", k.round, k.version, units[len(units)-1].batch)
				if by == ByUpdate {
					id = fmt.Sprintf("%d/%d/%d/%s", k.round, k.version, u.batch, u.client)
				}
				if _, err := tx.ExecContext(ctx, "INSERT INTO relayed (run, batch, client, sending, outcome) VALUES ($1, $2, $3, $4, '')", run, u.batch, u.client, id); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// Ungathered returns the counted turns of a run that are in no sending.
func (h *Relay) Ungathered(ctx context.Context, run string) (all []Task, err error) {
	defer sqlstore.Wrap(&err, "reading ungathered results of run", run)
	err = sqlstore.Query(ctx, h.store.DB, func(r *sql.Rows) error {
		t := Task{Turn: Turn{Run: run}}
		err := r.Scan(&t.Round, &t.Client, &t.Version)
		all = append(all, t)
		return err
	}, `SELECT r.round, r.client, r.version FROM receipts r
		WHERE r.run = $1 AND (r.batch IN (SELECT batch FROM partials WHERE run = $1) OR r.batch IN (SELECT batch FROM updates WHERE run = $1))
		AND NOT EXISTS (SELECT 1 FROM relayed x WHERE x.run = r.run AND x.batch = r.batch AND (x.client = '' OR x.client = r.client))`, run)
	return all, err
}

// Sendings returns the sendings of a run on which the hub has not decided yet, without their
// parts.
func (h *Relay) Sendings(ctx context.Context, run string) (all []Sending, err error) {
	defer sqlstore.Wrap(&err, "reading the sendings of run", run)
	err = sqlstore.Query(ctx, h.store.DB, func(r *sql.Rows) error {
		var id, client string
		x, share, err := scanReceipt(r, &id, &client)
		if err != nil {
			return err
		}
		if n := len(all); n == 0 || all[n-1].ID != id {
			all = append(all, Sending{ID: id, Round: x.Round, Version: x.Version, Single: client != ""})
		}
		last := &all[len(all)-1]
		last.Shares = append(last.Shares, share)
		return nil
	}, `SELECT x.sending, x.client, r.`+strings.ReplaceAll(sqlstore.ReceiptColumns, ", ", ", r.")+`, r.checksum FROM relayed x
		JOIN receipts r ON r.run = x.run AND r.batch = x.batch AND (x.client = '' OR x.client = r.client)
		WHERE x.run = $1 AND x.outcome = '' ORDER BY x.sending, r.client`, run)
	return all, err
}

// Parts reads the numbers of a sending into s.Parts, their evaluation and their masks.
func (h *Relay) Parts(ctx context.Context, run string, s *Sending) (err error) {
	defer sqlstore.Wrap(&err, "reading the numbers of sending", s.ID, "of run", run)
	s.Parts, s.Evaluation = nil, Evaluation{}
	if s.Masks, err = masks(ctx, h.store.DB, "SELECT m."+strings.ReplaceAll(sqlstore.MaskColumns, ", ", ", m.")+", m.checksum FROM relayed x JOIN masks m ON m.run = x.run AND m.batch = x.batch WHERE x.run = $1 AND x.sending = $2", run, s.ID); err != nil {
		return err
	}
	if s.Single {
		return sqlstore.Query(ctx, h.store.DB, func(r *sql.Rows) error {
			u, err := scanSingle(r)
			s.Loss, s.Evaluation, s.Parts = u.Loss, u.Evaluation, append(s.Parts, u.Numbers)
			return err
		}, "SELECT u."+strings.ReplaceAll(sqlstore.UpdateColumns, ", ", ", u.")+", u.checksum FROM relayed x JOIN updates u ON u.run = x.run AND u.batch = x.batch AND u.client = x.client WHERE x.run = $1 AND x.sending = $2", run, s.ID)
	}
	return sqlstore.Query(ctx, h.store.DB, func(r *sql.Rows) error {
		p, err := scanPartial(r)
		s.Evaluation.Add(p.Evaluation)
		s.Parts = append(s.Parts, p.Numbers)
		return err
	}, "SELECT p."+strings.ReplaceAll(sqlstore.PartialColumns, ", ", ", p.")+", p.checksum FROM relayed x JOIN partials p ON p.run = x.run AND p.batch = x.batch WHERE x.run = $1 AND x.sending = $2 ORDER BY p.batch", run, s.ID)
}

// Decided stores the hub's verdict on a sending and deletes its numbers. The masks of a counted
// sending stay until the round is over, because the hub would reject the sum with another result
// of the same agent and part.
func (h *Relay) Decided(ctx context.Context, lead Lead, run, sending string, counted bool) (err error) {
	defer sqlstore.Wrap(&err, "storing the verdict on sending", sending, "of run", run)
	outcome := outcomeClosed
	if counted {
		outcome = outcomeCounted
	}
	return h.asLeader(ctx, lead, func(tx *sqlstore.Txn) error { return decide(ctx, tx, run, sending, outcome) })
}

// Closed handles a sending that the hub does not count because it has closed the turns of
// the given clients. The batches with these clients are dropped. The other batches become a
// new sending.
func (h *Relay) Closed(ctx context.Context, lead Lead, run string, s *Sending, clients []string) (err error) {
	defer sqlstore.Wrap(&err, "closing sending", s.ID, "of run", run)
	return h.asLeader(ctx, lead, func(tx *sqlstore.Txn) error {
		rest := s.ID + "+"
		if _, err := tx.ExecContext(ctx, "UPDATE relayed SET sending = $3 WHERE run = $1 AND sending = $2", run, s.ID, rest); err != nil {
			return err
		}
		for part := range slices.Chunk(clients, h.store.Chunk) {
			args := []any{run, s.ID, rest, s.Round}
			for _, c := range part {
				args = append(args, c)
			}
			_, err := tx.ExecContext(ctx, `UPDATE relayed SET sending = $2 WHERE run = $1 AND sending = $3
				AND batch IN (SELECT batch FROM receipts WHERE run = $1 AND round = $4 AND client IN `+sqlstore.InList(4, len(part))+")", args...)
			if err != nil {
				return err
			}
		}
		return decide(ctx, tx, run, s.ID, outcomeClosed)
	})
}

func decide(ctx context.Context, tx *sqlstore.Txn, run, sending, outcome string) error {
	deletes := []string{
		"DELETE FROM partials WHERE run = $1 AND batch IN (SELECT batch FROM relayed WHERE run = $1 AND sending = $2 AND client = '')",
		"DELETE FROM updates WHERE run = $1 AND EXISTS (SELECT 1 FROM relayed x WHERE x.run = $1 AND x.sending = $2 AND x.batch = updates.batch AND x.client = updates.client)",
	}
	if outcome == outcomeClosed {
		deletes = append(deletes, "DELETE FROM masks WHERE run = $1 AND batch IN (SELECT batch FROM relayed WHERE run = $1 AND sending = $2)")
	}
	for _, text := range deletes {
		if _, err := tx.ExecContext(ctx, text, run, sending); err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, "UPDATE relayed SET outcome = $3 WHERE run = $1 AND sending = $2", run, sending, outcome)
	return err
}

const (
	outcomeCounted = "counted"
	outcomeClosed  = "closed"
)
