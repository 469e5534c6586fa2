package ledger

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"loadstar/server/sqlstore"
)

// State is the state of a run.
type State string

// The states of a run.
const (
	Waiting  State = "waiting" // until there are enough clients
	Running  State = "running"
	Finished State = "finished"
	Stopped  State = "stopped" // by an operator
	Failed   State = "failed"
)

// Ended reports whether the run is over.
func (s State) Ended() bool { return s == Finished || s == Stopped || s == Failed }

// ReasonCode is a machine-readable reason why a running run does not advance. It is empty if
// the run advances, even if there is a reason in words.
type ReasonCode string

const (
	// ReasonWaits means that no client can be asked, that keepers do not answer, or that the
	// coordinator does not have the run's data.
	ReasonWaits ReasonCode = "waits"
	// ReasonLacks means that the store lacks what the run needs.
	ReasonLacks ReasonCode = "lacks"
)

// Run is one training of one plan.
type Run struct {
	ID, Name string
	// Plan is the submitted plan until the run begins, and then the settled plan.
	// PlanBlob is the hash of the blob with the settled plan, which agents fetch.
	Plan, PlanBlob string
	State          State
	Reason         string // why the run failed or does not advance, in words
	Code           ReasonCode
	// Wanted is the number of clients for which the run waits. Fleet is the number of
	// clients when it began.
	Wanted, Fleet              int64
	Created, Started, Finished time.Time
	Round, Version             int64
	// Batch is the number of the newest counted batch in a transaction that drives the run.
	// Elsewhere newer batches may exist.
	Batch  int64
	Server string
	// Remote means that this is a region's ledger and the hub drives the run.
	Remote bool
	// Generated means that a client had synthetic readings when the run began.
	Generated bool
	// LeftOut lists the clients and inputs that were left out, and the reasons.
	LeftOut string

	receipts int64 // number of stored receipts that counters do not include; negative if receipts that they include were deleted
}

func scanRun(row interface{ Scan(...any) error }) (r Run, err error) {
	var created, started, finished, checksum int64
	err = row.Scan(&r.ID, &r.Name, &r.Plan, &r.PlanBlob, &r.State, &r.Reason, &r.Wanted, &r.Fleet, &created, &started, &finished,
		&r.Round, &r.Version, &r.Batch, &r.Server, &r.Remote, &r.Generated, &r.LeftOut, &r.receipts, &r.Code, &checksum)
	r.Created, r.Started, r.Finished = sqlstore.FromMillis(created), sqlstore.FromMillis(started), sqlstore.FromMillis(finished)
	if err != nil {
		return r, err
	}
	return r, sqlstore.CheckRow("runs", checksum, r.values()...)
}

// values returns the values of runColumns.
func (r *Run) values() []any {
	return []any{
		r.ID, r.Name, r.Plan, r.PlanBlob, string(r.State), r.Reason, r.Wanted, r.Fleet, sqlstore.ToMillis(r.Created), sqlstore.ToMillis(r.Started), sqlstore.ToMillis(r.Finished),
		r.Round, r.Version, r.Batch, r.Server, sqlstore.ToBit(r.Remote), sqlstore.ToBit(r.Generated), r.LeftOut, r.receipts,
	}
}

// lockedRun returns a run and locks it, so that no other transaction counts its results or
// changes it.
func (l *Ledger) lockedRun(ctx context.Context, tx *sqlstore.Txn, id string) (r Run, err error) {
	if err := l.Store.LockRun(ctx, tx, id, false); err != nil {
		return r, err
	}
	if r, err = scanRun(tx.QueryRowContext(ctx, selectRuns+" WHERE id = $1", id)); err != nil {
		return r, sqlstore.OrNotFound(err, "run "+id)
	}
	r.Batch, err = newestBatch(ctx, tx, &r)
	return r, err
}

// storedRun contains the columns in which a run is stored. The checksum does not cover
// reason_code.
const storedRun = sqlstore.RunColumns + ", reason_code, checksum"

const selectRuns = "SELECT " + storedRun + " FROM runs"

// stored returns the values of storedRun.
func (r *Run) stored() []any {
	values := r.values()
	return append(values, string(r.Code), sqlstore.RowSum("runs", values...))
}

// insertRun adds a run. orElse is the end of the statement; it determines what happens if the
// run exists.
func insertRun(ctx context.Context, tx *sqlstore.Txn, r Run, orElse string) error {
	values := r.stored()
	_, err := tx.ExecContext(ctx, "INSERT INTO runs ("+storedRun+") VALUES "+sqlstore.Placeholders(0, 1, len(values))+orElse, values...)
	return err
}

// storeRun stores a run that the transaction has locked.
func storeRun(ctx context.Context, tx *sqlstore.Txn, r Run) error {
	values := r.stored()
	_, err := tx.ExecContext(ctx, "UPDATE runs SET ("+strings.TrimPrefix(storedRun, "id, ")+") = "+sqlstore.Placeholders(1, 1, len(values)-1)+" WHERE id = $1", values...)
	return err
}

// AddRun adds a run that waits for clients.
func (l *Ledger) AddRun(ctx context.Context, r Run, actor string) (err error) {
	defer sqlstore.Wrap(&err, "adding run", r.ID)
	return l.Store.Update(ctx, func(tx *sqlstore.Txn) error {
		if err := insertRun(ctx, tx, Run{ID: r.ID, Name: r.Name, Plan: r.Plan, State: Waiting, Wanted: r.Wanted, Created: r.Created}, ""); err != nil {
			return err
		}
		return l.Events.Record(ctx, tx, r.Created, actor, "start run", r.ID, r.Name)
	})
}

// StopRun ends a run at its current version. It refuses to stop a hub's run, because the hub
// would continue to send tasks.
func (l *Ledger) StopRun(ctx context.Context, id, actor string, now time.Time) (err error) {
	defer sqlstore.Wrap(&err, "stopping run", id)
	return l.Store.Update(ctx, func(tx *sqlstore.Txn) error {
		r, err := l.lockedRun(ctx, tx, id)
		if err != nil {
			return err
		}
		if r.State.Ended() {
			return fmt.Errorf("run %s is already %s: %w", id, r.State, ErrRefused)
		}
		if r.Remote {
			return fmt.Errorf("run %s belongs to the hub, stop it there: %w", id, ErrRefused)
		}
		if err := l.finish(ctx, tx, r, Stopped, "", now); err != nil {
			return err
		}
		return l.Events.Record(ctx, tx, now, actor, "stop run", id, "")
	})
}

// Ended returns the outcome of a run, such as "stopped", or "" if it has not ended.
func (l *Ledger) Ended(ctx context.Context, id string) (how string, err error) {
	defer sqlstore.Wrap(&err, "looking up run", id)
	var s State
	if err := l.Store.DB.QueryRowContext(ctx, "SELECT state FROM runs WHERE id = $1", id).Scan(&s); err != nil {
		return "", sqlstore.OrNotFound(err, "run "+id)
	}
	if !s.Ended() {
		return "", nil
	}
	return string(s), nil
}

// finish ends a run whose row is locked.
func (l *Ledger) finish(ctx context.Context, tx *sqlstore.Txn, r Run, s State, reason string, now time.Time) error {
	if err := l.Counter.endTurns(ctx, tx, r.ID, "the run ended", now); err != nil {
		return err
	}
	for _, text := range []string{"DELETE FROM partials WHERE run = $1", "DELETE FROM updates WHERE run = $1", "DELETE FROM masks WHERE run = $1", "DELETE FROM private_rounds WHERE run = $1", "DELETE FROM server_data WHERE run = $1"} {
		if _, err := tx.ExecContext(ctx, text, r.ID); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, "DELETE FROM stamps WHERE name = $1", leasesStamp+r.ID); err != nil {
		return err
	}
	r.State, r.Reason, r.Code, r.Finished = s, reason, "", now
	return storeRun(ctx, tx, r)
}

// Run returns the run with the given id.
func (l *Ledger) Run(ctx context.Context, id string) (r Run, err error) {
	defer sqlstore.Wrap(&err, "reading run", id)
	r, err = scanRun(l.Store.DB.QueryRowContext(ctx, selectRuns+" WHERE id = $1", id))
	return r, sqlstore.OrNotFound(err, "run "+id)
}

// Runs returns up to limit of the newest runs, newest first.
func (l *Ledger) Runs(ctx context.Context, limit int) (all []Run, err error) {
	defer sqlstore.Wrap(&err, "reading runs")
	err = sqlstore.Query(ctx, l.Store.DB, func(rows *sql.Rows) error {
		r, err := scanRun(rows)
		all = append(all, r)
		return err
	}, selectRuns+" ORDER BY created DESC, id LIMIT $1", limit)
	return all, err
}

// Activity holds the fields of a run that change while it is running.
type Activity struct {
	ID    string
	State State
	Batch int64
}

// Active returns the runs that have not ended.
func (l *Ledger) Active(ctx context.Context) (all []Activity, err error) {
	defer sqlstore.Wrap(&err, "reading active runs")
	err = sqlstore.Query(ctx, l.Store.DB, func(r *sql.Rows) error {
		var a Activity
		err := r.Scan(&a.ID, &a.State, &a.Batch)
		all = append(all, a)
		return err
	}, "SELECT id, state, CASE WHEN newest > batch THEN newest ELSE batch END FROM (SELECT id, state, batch, created, (SELECT COALESCE(max(c.batch), 0) FROM counters c WHERE c.run = runs.id) AS newest FROM runs) AS r WHERE state IN ($1, $2) ORDER BY created, id", Waiting, Running)
	return all, err
}

// The states of a round.
const (
	RoundOpen      = "open"
	RoundMerging   = "merging" // closed; its new version is being computed
	RoundMerged    = "merged"
	RoundAbandoned = "abandoned"
)

// Round is the summary of a round.
type Round struct {
	Round, Version             int64 // version before the merge
	State                      string
	Opened, Closed             time.Time
	Asked, Counted, Late, Lost int64
	Loss                       float64 // mean training loss of the counted clients
	Bytes                      int64   // total size of the counted results
	// Evaluation holds the validation error of the weights before the round.
	Evaluation Evaluation
	LastBatch  int64
}

// selectRounds adds the results of an open round that are recorded in the table counters.
const selectRounds = `SELECT run, round, version, state, opened, closed, asked,
	CASE WHEN state = 'open' THEN counted + CAST((SELECT COALESCE(sum(c.counted), 0) FROM counters c WHERE c.run = rounds.run AND c.round = rounds.round) AS BIGINT) ELSE counted END, late, lost, loss,
	bytes + CAST((SELECT COALESCE(sum(c.bytes), 0) FROM counters c WHERE c.run = rounds.run AND c.round = rounds.round) AS BIGINT), last_batch, evaluated, relative_mae, checksum FROM rounds`

func scanRound(row interface{ Scan(...any) error }) (r Round, err error) {
	var run string
	var opened, closed, checksum int64
	err = row.Scan(&run, &r.Round, &r.Version, &r.State, &opened, &closed, &r.Asked, &r.Counted, &r.Late, &r.Lost, &r.Loss, &r.Bytes, &r.LastBatch,
		&r.Evaluation.Clients, &r.Evaluation.RelativeMAE, &checksum)
	r.Opened, r.Closed = sqlstore.FromMillis(opened), sqlstore.FromMillis(closed)
	if err != nil {
		return r, err
	}
	return r, sqlstore.CheckRow("rounds", checksum, r.summed(run)...)
}

// summed returns the values that the checksum of a round covers. The number of counted updates
// grows with each batch while a round is open, and is then only displayed.
func (r *Round) summed(run string) []any {
	counted := r.Counted
	if r.State == RoundOpen {
		counted = 0
	}
	return []any{
		run, r.Round, r.Version, r.State, sqlstore.ToMillis(r.Opened), sqlstore.ToMillis(r.Closed), r.Asked, counted, r.Late, r.Lost, r.Loss, r.LastBatch,
		r.Evaluation.Clients, r.Evaluation.RelativeMAE,
	}
}

// insertRound adds a round. orElse is the end of the statement; it determines what happens if
// the round exists.
func insertRound(ctx context.Context, tx *sqlstore.Txn, run string, r Round, orElse string) error {
	values := sqlstore.WithSum("rounds", r.summed(run)...)
	_, err := tx.ExecContext(ctx, "INSERT INTO rounds (run, round, version, state, opened, closed, asked, counted, late, lost, loss, last_batch, evaluated, relative_mae, checksum) VALUES "+
		sqlstore.Placeholders(0, 1, len(values))+orElse, values...)
	return err
}

// storeRound stores the values of a round that its checksum covers.
func storeRound(ctx context.Context, tx *sqlstore.Txn, run string, r Round) error {
	values := sqlstore.WithSum("rounds", r.summed(run)...)
	_, err := tx.ExecContext(ctx, `UPDATE rounds SET version = $3, state = $4, opened = $5, closed = $6, asked = $7, counted = CASE WHEN state = 'open' AND $4 = 'open' THEN counted ELSE $8 END,
		late = $9, lost = $10, loss = $11, last_batch = $12, evaluated = $13, relative_mae = $14, checksum = $15 WHERE run = $1 AND round = $2`, values...)
	return err
}

// Rounds returns up to limit rounds of a run, newest first. It omits rounds before from.
func (l *Ledger) Rounds(ctx context.Context, run string, from int64, limit int) (all []Round, err error) {
	defer sqlstore.Wrap(&err, "reading the rounds of run", run)
	err = sqlstore.Query(ctx, l.Store.DB, func(rows *sql.Rows) error {
		r, err := scanRound(rows)
		all = append(all, r)
		return err
	}, selectRounds+" WHERE run = $1 AND round >= $2 ORDER BY round DESC LIMIT $3", run, from, limit)
	return all, err
}

// Version holds the blobs of one version of a run's shared weights.
type Version struct {
	Weights, Control string
	// Limits contains the encoded limits on updates from this version, or is nil.
	Limits []byte
}

// versionKey identifies a version.
type versionKey struct {
	run     string
	version int64
}

// Version returns the blobs of a version. It returns ErrNotFound if the version was
// deleted.
func (l *Ledger) Version(ctx context.Context, run string, version int64) (_ Version, err error) {
	defer sqlstore.Wrap(&err, "reading a version of run", run)
	v, err := l.versions.Get(ctx, versionKey{run, version})
	if err != nil {
		return Version{}, err
	}
	if v == nil {
		return Version{}, sqlstore.OrNotFound(sql.ErrNoRows, fmt.Sprintf("version %d of run %s", version, run))
	}
	return *v, nil
}

// versionsOf returns the blobs of several versions, with nil for each version that does not
// exist.
func (l *Ledger) versionsOf(ctx context.Context, these []versionKey) ([]*Version, error) {
	numbers := map[string][]int64{}
	for _, n := range these {
		if !slices.Contains(numbers[n.run], n.version) { // most callers ask for the same version
			numbers[n.run] = append(numbers[n.run], n.version)
		}
	}
	has := map[versionKey]*Version{}
	for run, versions := range numbers {
		err := sqlstore.QueryIn(ctx, l.Store, func(r *sql.Rows) error {
			v, err := scanVersion(r)
			has[versionKey{run, v.number}] = &v.Version
			return err
		}, selectVersions+" WHERE run = $1 AND version IN ", []any{run}, versions)
		if err != nil {
			return nil, err
		}
	}
	all := make([]*Version, len(these))
	for i, n := range these {
		all[i] = has[n]
	}
	return all, nil
}
