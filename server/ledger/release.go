package ledger

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"loadstar/server/sqlstore"
)

// Release is a version of a run's weights that an operator released to all agents.
type Release struct {
	ID, Name string
	Number   int64 // number among the releases of the same name, from 1
	Run      string
	Version  int64
	Role     string
	// PlanBlob and Weights are blobs. They are never deleted.
	PlanBlob, Weights  string
	Parent             string // the newest earlier release of the same name that was not withdrawn
	Actor              string
	Created, Withdrawn time.Time
}

// String returns the name and number, such as day@7.
func (r *Release) String() string { return fmt.Sprintf("%s@%d", r.Name, r.Number) }

const (
	// offeredOfName is the number of releases per name that agents may use: the newest one, and
	// two to fall back to.
	offeredOfName = 3
	// maxNames is the maximum number of names with releases that are not withdrawn.
	maxNames = 16
)

func scanRelease(row interface{ Scan(...any) error }) (r Release, err error) {
	var created, withdrawn, checksum int64
	err = row.Scan(&r.ID, &r.Name, &r.Number, &r.Run, &r.Version, &r.Role, &r.PlanBlob, &r.Weights, &r.Parent, &r.Actor, &created, &withdrawn, &checksum)
	r.Created, r.Withdrawn = sqlstore.FromMillis(created), sqlstore.FromMillis(withdrawn)
	if err != nil {
		return r, err
	}
	return r, sqlstore.CheckRow("releases", checksum, r.values()...)
}

// values returns the values of releaseColumns.
func (r *Release) values() []any {
	return []any{r.ID, r.Name, r.Number, r.Run, r.Version, r.Role, r.PlanBlob, r.Weights, r.Parent, r.Actor, sqlstore.ToMillis(r.Created), sqlstore.ToMillis(r.Withdrawn)}
}

// Releases returns all releases, newest first.
func (l *Ledger) Releases(ctx context.Context) (all []Release, err error) {
	defer sqlstore.Wrap(&err, "reading releases")
	return releases(ctx, l.Store.DB)
}

func releases(ctx context.Context, q sqlstore.Querier) (all []Release, err error) {
	err = sqlstore.Query(ctx, q, func(rows *sql.Rows) error {
		r, err := scanRelease(rows)
		all = append(all, r)
		return err
	}, "SELECT "+sqlstore.ReleaseColumns+", checksum FROM releases ORDER BY created DESC, name, number DESC")
	return all, err
}

// Offered selects the releases that agents may use: the newest releases of each name that are
// not withdrawn, sorted by name and number.
func Offered(all []Release) []Release {
	var offered []Release
	count := map[string]int{}
	for _, r := range slices.SortedFunc(slices.Values(all), newestLast) {
		if r.Withdrawn.IsZero() {
			offered = append(offered, r)
			count[r.Name]++
		}
	}
	return slices.DeleteFunc(offered, func(r Release) bool {
		count[r.Name]--
		return count[r.Name] >= offeredOfName
	})
}

func newestLast(a, b Release) int {
	if c := strings.Compare(a.Name, b.Name); c != 0 {
		return c
	}
	return int(a.Number - b.Number)
}

// FindRelease returns the release with the given id or NAME@NUMBER.
func FindRelease(all []Release, name string) (r Release, ok bool) {
	i := slices.IndexFunc(all, func(r Release) bool { return r.ID == name || r.String() == name })
	if i < 0 {
		return r, false
	}
	return all[i], true
}

// AddRelease releases a version of a run's weights. It sets the release's number, blobs and
// parent. Version 0 means the newest one. The version must still be stored, or must have been
// released before.
func (l *Ledger) AddRelease(ctx context.Context, r Release) (_ Release, err error) {
	defer sqlstore.Wrap(&err, "releasing run", r.Run)
	err = l.Store.Update(ctx, func(tx *sqlstore.Txn) error {
		run, err := l.lockedRun(ctx, tx, r.Run)
		if err != nil {
			return err
		}
		if run.Version == 0 {
			return fmt.Errorf("run %s has trained nothing yet: %w", r.Run, ErrRefused)
		}
		r.Version = cmp.Or(r.Version, run.Version)
		r.PlanBlob, r.Number, r.Parent = run.PlanBlob, 1, ""
		all, err := releases(ctx, tx)
		if err != nil {
			return err
		}
		if r.Weights, err = keptWeights(ctx, tx, run, r.Version, all); err != nil {
			return err
		}
		var newest Release // newest release of the same name
		names := map[string]bool{r.Name: true}
		for _, x := range slices.SortedFunc(slices.Values(all), newestLast) {
			if x.Withdrawn.IsZero() {
				names[x.Name] = true
			}
			if x.Name == r.Name {
				r.Number, newest = x.Number+1, x
				if x.Withdrawn.IsZero() {
					r.Parent = x.ID
				}
			}
		}
		if newest.Withdrawn.IsZero() && newest.Weights == r.Weights && newest.Role == r.Role && newest.PlanBlob == r.PlanBlob {
			return fmt.Errorf("these weights are already released as %s: %w", newest.String(), ErrRefused)
		}
		if len(names) > maxNames {
			return fmt.Errorf("there are releases of %d names, which is the limit; withdraw those of a name that is no longer needed: %w", maxNames, ErrRefused)
		}
		if err := addRelease(ctx, tx, r); err != nil {
			return err
		}
		return l.Events.Record(ctx, tx, r.Created, r.Actor, "release model", r.String(), fmt.Sprintf("run %s, version %d, %s, id %s", r.Run, r.Version, r.Role, r.ID))
	})
	return r, err
}

// keptWeights returns the blob with the weights of a version that is still stored or was
// released before.
func keptWeights(ctx context.Context, tx *sqlstore.Txn, run Run, version int64, all []Release) (weights string, err error) {
	v, err := scanVersion(tx.QueryRowContext(ctx, selectVersions+" WHERE run = $1 AND version = $2", run.ID, version))
	if err == nil || !errors.Is(err, sql.ErrNoRows) {
		return v.Weights, err
	}
	if i := slices.IndexFunc(all, func(r Release) bool { return r.Run == run.ID && r.Version == version }); i >= 0 {
		return all[i].Weights, nil
	}
	return "", fmt.Errorf("version %d of run %s is not stored; the newest is %d, and loadstar run versions %s lists all: %w", version, run.ID, run.Version, run.ID, ErrRefused)
}

func addRelease(ctx context.Context, tx *sqlstore.Txn, r Release) error {
	values := sqlstore.WithSum("releases", r.values()...)
	_, err := tx.ExecContext(ctx, "INSERT INTO releases ("+sqlstore.ReleaseColumns+", checksum) VALUES "+sqlstore.Placeholders(0, 1, len(values)), values...)
	return err
}

func setWithdrawn(ctx context.Context, tx *sqlstore.Txn, r Release, at time.Time) error {
	r.Withdrawn = at
	_, err := tx.ExecContext(ctx, "UPDATE releases SET withdrawn = $2, checksum = $3 WHERE id = $1", r.ID, sqlstore.ToMillis(at), sqlstore.RowSum("releases", r.values()...))
	return err
}

// WithdrawRelease withdraws the release with the given id or NAME@NUMBER.
func (l *Ledger) WithdrawRelease(ctx context.Context, name, actor string, now time.Time) (err error) {
	defer sqlstore.Wrap(&err, "withdrawing release", name)
	return l.Store.Update(ctx, func(tx *sqlstore.Txn) error {
		all, err := releases(ctx, tx)
		if err != nil {
			return err
		}
		r, ok := FindRelease(all, name)
		if !ok {
			return sqlstore.OrNotFound(sql.ErrNoRows, "release "+name)
		}
		if !r.Withdrawn.IsZero() {
			return fmt.Errorf("%s is already withdrawn: %w", name, ErrRefused)
		}
		if err := setWithdrawn(ctx, tx, r, now); err != nil {
			return err
		}
		return l.Events.Record(ctx, tx, now, actor, "withdraw release", r.String(), "id "+strconv.Quote(r.ID))
	})
}
