package ledger

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"
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

// Run is one training of one plan.
type Run struct {
	ID, Name string
	// Plan is the submitted plan until the run begins, and the settled plan after that.
	// PlanBlob is the hash of the blob with the settled plan, which agents fetch.
	Plan, PlanBlob string
	State          State
	Reason         string // why the run failed, or why it does not advance
	// Wanted is the number of clients that the run waits for. Fleet is the number of
	// clients when it began.
	Wanted, Fleet              int64
	Created, Started, Finished time.Time
	Round, Version             int64
	// Batch is the number of the newest counted batch.
	Batch  int64
	Server string
	// Remote means that this is a region's ledger and the hub drives the run.
	Remote bool
	// Generated means that a client had synthetic readings when the run began.
	Generated bool
	// LeftOut says which clients and inputs the fleet does not have, and why.
	LeftOut string
}

const runColumns = "id, name, plan, plan_blob, state, reason, wanted, fleet, created, started, finished, round, version, batch, server, remote, generated, left_out"

func scanRun(row interface{ Scan(...any) error }) (r Run, err error) {
	var created, started, finished int64
	err = row.Scan(&r.ID, &r.Name, &r.Plan, &r.PlanBlob, &r.State, &r.Reason, &r.Wanted, &r.Fleet, &created, &started, &finished,
		&r.Round, &r.Version, &r.Batch, &r.Server, &r.Remote, &r.Generated, &r.LeftOut)
	r.Created, r.Started, r.Finished = fromMillis(created), fromMillis(started), fromMillis(finished)
	return r, err
}

// AddRun adds a run that waits for clients.
func (l *Ledger) AddRun(ctx context.Context, r Run, actor string) (err error) {
	defer wrap(&err, "adding run", r.ID)
	return l.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO runs (id, name, plan, state, wanted, created) VALUES ($1, $2, $3, $4, $5, $6)",
			r.ID, r.Name, r.Plan, Waiting, r.Wanted, toMillis(r.Created))
		if err != nil {
			return err
		}
		return l.audit(ctx, tx, r.Created, actor, "start run", r.ID, r.Name)
	})
}

// StopRun ends a run at its current version. It refuses a hub's run, because the hub
// would continue to send tasks.
func (l *Ledger) StopRun(ctx context.Context, id, actor string, now time.Time) (err error) {
	defer wrap(&err, "stopping run", id)
	return l.update(ctx, func(tx *sql.Tx) error {
		r, err := scanRun(tx.QueryRowContext(ctx, "SELECT "+runColumns+" FROM runs WHERE id = $1"+l.lockClause("UPDATE"), id))
		if err != nil {
			return orNotFound(err, "run "+id)
		}
		if r.State.Ended() {
			return fmt.Errorf("run %s is already %s: %w", id, r.State, ErrRefused)
		}
		if r.Remote {
			return fmt.Errorf("run %s belongs to the hub, stop it there: %w", id, ErrRefused)
		}
		if err := l.finish(ctx, tx, id, Stopped, "", now); err != nil {
			return err
		}
		return l.audit(ctx, tx, now, actor, "stop run", id, "")
	})
}

// Ended returns how a run ended, such as "stopped", or "" if it has not ended.
func (l *Ledger) Ended(ctx context.Context, id string) (how string, err error) {
	defer wrap(&err, "looking up run", id)
	var s State
	if err := l.db.QueryRowContext(ctx, "SELECT state FROM runs WHERE id = $1", id).Scan(&s); err != nil {
		return "", orNotFound(err, "run "+id)
	}
	if !s.Ended() {
		return "", nil
	}
	return string(s), nil
}

// lockRuns locks all active runs, so that no other transaction counts results or drives a
// run.
func (l *Ledger) lockRuns(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, "SELECT 1 FROM runs WHERE state IN ($1, $2) ORDER BY id"+l.lockClause("UPDATE"), Waiting, Running)
	return err
}

// finish ends a run whose row is locked.
func (l *Ledger) finish(ctx context.Context, tx *sql.Tx, id string, s State, reason string, now time.Time) error {
	if err := l.endTurns(ctx, tx, id, "the run ended", now); err != nil {
		return err
	}
	for _, text := range []string{"DELETE FROM partials WHERE run = $1", "DELETE FROM updates WHERE run = $1", "DELETE FROM server_data WHERE run = $1"} {
		if _, err := tx.ExecContext(ctx, text, id); err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, "UPDATE runs SET state = $2, reason = $3, finished = $4 WHERE id = $1", id, s, reason, toMillis(now))
	return err
}

// Run returns the run with the given id.
func (l *Ledger) Run(ctx context.Context, id string) (r Run, err error) {
	defer wrap(&err, "reading run", id)
	r, err = scanRun(l.db.QueryRowContext(ctx, "SELECT "+runColumns+" FROM runs WHERE id = $1", id))
	return r, orNotFound(err, "run "+id)
}

// Runs returns up to limit of the newest runs, newest first.
func (l *Ledger) Runs(ctx context.Context, limit int) (all []Run, err error) {
	defer wrap(&err, "reading runs")
	err = query(ctx, l.db, func(rows *sql.Rows) error {
		r, err := scanRun(rows)
		all = append(all, r)
		return err
	}, "SELECT "+runColumns+" FROM runs ORDER BY created DESC, id LIMIT $1", limit)
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
	defer wrap(&err, "reading active runs")
	err = query(ctx, l.db, func(r *sql.Rows) error {
		var a Activity
		err := r.Scan(&a.ID, &a.State, &a.Batch)
		all = append(all, a)
		return err
	}, "SELECT id, state, batch FROM runs WHERE state IN ($1, $2) ORDER BY created, id", Waiting, Running)
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
	// Evaluation is the validation error of the weights before the round.
	Evaluation Evaluation
	LastBatch  int64
}

const roundColumns = "round, version, state, opened, closed, asked, counted, late, lost, loss, bytes, last_batch, evaluated, relative_mae"

func scanRound(row interface{ Scan(...any) error }) (r Round, err error) {
	var opened, closed int64
	err = row.Scan(&r.Round, &r.Version, &r.State, &opened, &closed, &r.Asked, &r.Counted, &r.Late, &r.Lost, &r.Loss, &r.Bytes, &r.LastBatch,
		&r.Evaluation.Clients, &r.Evaluation.RelativeMAE)
	r.Opened, r.Closed = fromMillis(opened), fromMillis(closed)
	return r, err
}

// Rounds returns up to limit rounds of a run, newest first. It omits rounds before the
// round from.
func (l *Ledger) Rounds(ctx context.Context, run string, from int64, limit int) (all []Round, err error) {
	defer wrap(&err, "reading the rounds of run", run)
	err = query(ctx, l.db, func(rows *sql.Rows) error {
		r, err := scanRound(rows)
		all = append(all, r)
		return err
	}, "SELECT "+roundColumns+" FROM rounds WHERE run = $1 AND round >= $2 ORDER BY round DESC LIMIT $3", run, from, limit)
	return all, err
}

// Version holds the blobs of one version of a run's shared weights.
type Version struct {
	Weights, Control string
	// Limits is the encoded limits for updates that are trained from this version, or nil if
	// there are none.
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
	defer wrap(&err, "reading a version of run", run)
	v, err := l.versions.get(ctx, versionKey{run, version})
	if err != nil {
		return Version{}, err
	}
	if v == nil {
		return Version{}, orNotFound(sql.ErrNoRows, fmt.Sprintf("version %d of run %s", version, run))
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
		err := queryIn(ctx, l, func(r *sql.Rows) error {
			n, v := versionKey{run: run}, &Version{}
			err := r.Scan(&n.version, &v.Weights, &v.Control, &v.Limits)
			has[n] = v
			return err
		}, "SELECT version, weights, control, limits FROM versions WHERE run = $1 AND version IN ", []any{run}, versions)
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

// Blobs returns the hashes of all blobs that the ledger refers to.
func (l *Ledger) Blobs(ctx context.Context) (all []string, err error) {
	defer wrap(&err, "listing blobs")
	err = query(ctx, l.db, func(r *sql.Rows) error {
		var b string
		err := r.Scan(&b)
		all = append(all, b)
		return err
	}, `SELECT b FROM (SELECT weights AS b FROM versions UNION SELECT control FROM versions UNION SELECT plan_blob FROM runs UNION SELECT server FROM runs UNION SELECT server FROM versions
		UNION SELECT plan_blob FROM releases UNION SELECT weights FROM releases) AS named
		WHERE b <> '' ORDER BY b`)
	return all, err
}
