package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"loadstar/server/sqlstore"
)

// keptVersions is the number of versions of a run that are kept, so that an operator can
// return to one of them.
const keptVersions = 10

// StoredVersion is a version of a run's weights that is kept.
type StoredVersion struct {
	Version int64
	Weights string // blob
	Created time.Time
	// From is the version from which the weights were copied, or nil if a merge made them.
	From *int64
	// Limits is the message that bounds the updates from this version, or nil.
	Limits []byte
}

// Versions returns the stored versions of a run, newest first.
func (l *Ledger) Versions(ctx context.Context, run string) (all []StoredVersion, err error) {
	defer sqlstore.Wrap(&err, "reading the versions of run", run)
	if _, err := l.Run(ctx, run); err != nil {
		return nil, err
	}
	err = sqlstore.Query(ctx, l.Store.DB, func(r *sql.Rows) error {
		v, err := scanVersion(r)
		all = append(all, StoredVersion{Version: v.number, Weights: v.Weights, Created: sqlstore.FromMillis(v.created), From: v.from, Limits: v.Limits})
		return err
	}, selectVersions+" WHERE run = $1 ORDER BY version DESC", run)
	return all, err
}

// versionRow is a row of the table versions.
type versionRow struct {
	Version
	run             string
	number, created int64
	server          string
	from            *int64
}

const selectVersions = "SELECT " + sqlstore.VersionColumns + ", checksum FROM versions"

func scanVersion(row interface{ Scan(...any) error }) (v versionRow, err error) {
	var checksum int64
	if err := row.Scan(&v.run, &v.number, &v.Weights, &v.Control, &v.Limits, &v.server, &v.created, &v.from, &checksum); err != nil {
		return v, err
	}
	return v, sqlstore.CheckRow("versions", checksum, v.values()...)
}

// values returns the values of versionColumns.
func (v *versionRow) values() []any {
	return []any{v.run, v.number, v.Weights, v.Control, v.Limits, v.server, v.created, v.from}
}

// insertVersion adds a version and its head. orElse is the end of the statement; it determines
// what happens if the version exists.
func insertVersion(ctx context.Context, tx *sqlstore.Txn, v versionRow, orElse string) error {
	values := sqlstore.WithSum("versions", v.values()...)
	_, err := tx.ExecContext(ctx, "INSERT INTO versions ("+sqlstore.VersionColumns+", checksum) VALUES "+sqlstore.Placeholders(0, 1, len(values))+orElse, values...)
	if err != nil {
		return err
	}
	return addHead(ctx, tx, v.run, v.number, v.Weights)
}

func (d *Drive) addVersion(version int64, v Version, server string) error {
	return insertVersion(d.ctx, d.tx, versionRow{Version: v, run: d.Run.ID, number: version, server: server, created: sqlstore.ToMillis(d.l.Now())}, "")
}

// RollBack adds a version with the weights, the control variate and the server's state of an
// earlier one, and returns its number. If the run is not over, its open round is abandoned, its
// leases and sums are deleted, and the coordinator opens the next round. It refuses to change a
// run that has not begun, or a hub's run.
func (l *Ledger) RollBack(ctx context.Context, run string, to int64, actor string, now time.Time) (version int64, err error) {
	defer sqlstore.Wrap(&err, "rolling back run", run)
	err = l.Store.Update(ctx, func(tx *sqlstore.Txn) error {
		r, err := l.lockedRun(ctx, tx, run)
		if err != nil {
			return err
		}
		switch {
		case r.Remote:
			return fmt.Errorf("run %s belongs to the hub, roll it back there: %w", run, ErrRefused)
		case r.State == Waiting || r.Server == "":
			return fmt.Errorf("run %s has not begun: %w", run, ErrRefused)
		case r.Version == to:
			return fmt.Errorf("version %d is the newest of run %s: %w", to, run, ErrRefused)
		}
		v, err := scanVersion(tx.QueryRowContext(ctx, selectVersions+" WHERE run = $1 AND version = $2", run, to))
		if errors.Is(err, sql.ErrNoRows) || err == nil && v.server == "" {
			return fmt.Errorf("version %d of run %s is not stored; see loadstar run versions %s: %w", to, run, run, ErrNotFound)
		} else if err != nil {
			return err
		}
		version = r.Version + 1
		v.number, v.created, v.from = version, sqlstore.ToMillis(now), &to
		if err := insertVersion(ctx, tx, v, ""); err != nil {
			return err
		}
		r.Version, r.Server = version, v.server
		if !r.State.Ended() {
			if err := l.restart(ctx, tx, &r, now); err != nil {
				return err
			}
		}
		if err := storeRun(ctx, tx, r); err != nil {
			return err
		}
		return l.Events.Record(ctx, tx, now, actor, "roll back run", run, fmt.Sprintf("version %d has the weights of version %d", version, to))
	})
	return version, err
}

// restart abandons the open round of a running run, and everything that has been counted since
// the last merge. Without a stored machine, the coordinator begins the next round. A
// coordinator that drives the run sees the new batch and rereads the run. The caller stores the
// run.
func (l *Ledger) restart(ctx context.Context, tx *sqlstore.Txn, r *Run, now time.Time) error {
	var err error
	if r.Batch, err = l.Counter.nextBatch(ctx, tx, r); err != nil {
		return err
	}
	if err := l.Counter.endTurns(ctx, tx, r.ID, "the run was rolled back", now); err != nil {
		return err
	}
	for _, text := range []string{"DELETE FROM partials WHERE run = $1", "DELETE FROM updates WHERE run = $1", "DELETE FROM masks WHERE run = $1", "DELETE FROM private_rounds WHERE run = $1", "DELETE FROM machines WHERE run = $1"} {
		if _, err := tx.ExecContext(ctx, text, r.ID); err != nil {
			return err
		}
	}
	var rounds []Round
	if err := sqlstore.Query(ctx, tx, func(rows *sql.Rows) error {
		x, err := scanRound(rows)
		rounds = append(rounds, x)
		return err
	}, selectRounds+" WHERE run = $1 AND state IN ($2, $3)", r.ID, RoundOpen, RoundMerging); err != nil {
		return err
	}
	for _, x := range rounds {
		x.State, x.Closed, x.LastBatch = RoundAbandoned, now, r.Batch
		if err := storeRound(ctx, tx, r.ID, x); err != nil {
			return err
		}
	}
	return tx.QueryRowContext(ctx, "SELECT COALESCE(MAX(round) + 1, 0) FROM rounds WHERE run = $1", r.ID).Scan(&r.Round)
}

// Retire deletes versions that are older than the newest ten and to which nothing refers. It
// returns those blobs of these versions and of the previous server state to which nothing
// refers any more.
func (d *Drive) Retire(newest int64) (blobs []string, err error) {
	return d.retire(newest - keptVersions + 1)
}

// retire is like Retire, but takes the oldest version to keep.
func (d *Drive) retire(oldest int64) (blobs []string, err error) {
	defer sqlstore.Wrap(&err, "deleting old versions of run", d.Run.ID)
	return deleteVersions(d.ctx, d.tx, d.Run.ID, oldest, d.Run.Server)
}

// deleteVersions deletes the versions of a run that are older than the given one and to which
// no lease, sum or update refers. It returns those blobs of these versions and of the given
// server state to which nothing refers any more.
func deleteVersions(ctx context.Context, tx *sqlstore.Txn, run string, before int64, state string) (unused []string, err error) {
	var blobs []string
	add := func(b string) {
		if b != "" && !slices.Contains(blobs, b) {
			blobs = append(blobs, b)
		}
	}
	add(state)
	err = sqlstore.Query(ctx, tx, func(r *sql.Rows) error {
		var v Version
		var server string
		err := r.Scan(&v.Weights, &v.Control, &server)
		add(v.Weights)
		add(v.Control)
		add(server)
		return err
	}, `DELETE FROM versions WHERE run = $1 AND version < $2
		AND version NOT IN (SELECT version FROM leases WHERE run = $1)
		AND version NOT IN (SELECT version FROM partials WHERE run = $1)
		AND version NOT IN (SELECT version FROM updates WHERE run = $1) RETURNING weights, control, server`, run, before)
	if err != nil {
		return nil, err
	}
	// Another run may refer to the same blob, because two runs of one plan have the same
	// initial weights. A later version may also refer to it after a rollback.
	for _, b := range blobs {
		var uses int
		err := tx.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM versions WHERE weights = $1) + (SELECT count(*) FROM versions WHERE control = $1)
			+ (SELECT count(*) FROM versions WHERE server = $1) + (SELECT count(*) FROM runs WHERE server = $1) + (SELECT count(*) FROM releases WHERE weights = $1)`, b).Scan(&uses)
		if err != nil {
			return nil, err
		}
		if uses == 0 {
			unused = append(unused, b)
		}
	}
	return unused, nil
}
