package ledger

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"loadstar/server/directory"
	"loadstar/server/sqlstore"
)

// PendingReports returns up to limit reports that must be sent to the hub. It sets only Client,
// Day and Message.
func (h *Relay) PendingReports(ctx context.Context, limit int) (all []directory.Report, err error) {
	defer sqlstore.Wrap(&err, "reading reports for the hub")
	err = sqlstore.Query(ctx, h.store.DB, func(rows *sql.Rows) error {
		var r directory.Report
		err := rows.Scan(&r.Client, &r.Day, &r.Message)
		all = append(all, r)
		return err
	}, "SELECT client, day, message FROM reports WHERE pending = 1 ORDER BY client LIMIT $1", limit)
	return all, err
}

// ReportsSent marks reports as known to the hub.
func (h *Relay) ReportsSent(ctx context.Context, lead Lead, all []directory.Report) (err error) {
	defer sqlstore.Wrap(&err, "marking reports as sent")
	return h.asLeader(ctx, lead, func(tx *sqlstore.Txn) error {
		for _, r := range all {
			if _, err := tx.ExecContext(ctx, "UPDATE reports SET pending = 0 WHERE client = $1 AND day = $2", r.Client, r.Day); err != nil {
				return err
			}
		}
		return nil
	})
}

// AdoptReleases makes a region's releases equal to the hub's. The blobs must be stored.
func (h *Relay) AdoptReleases(ctx context.Context, lead Lead, hub []Release, now time.Time) (err error) {
	defer sqlstore.Wrap(&err, "adopting the releases of the hub")
	return h.asLeader(ctx, lead, func(tx *sqlstore.Txn) error {
		all, err := releases(ctx, tx)
		if err != nil {
			return err
		}
		has := func(list []Release, id string) bool {
			return slices.ContainsFunc(list, func(r Release) bool { return r.ID == id })
		}
		for _, r := range hub {
			if !has(all, r.ID) {
				r.Created = now
				if err := addRelease(ctx, tx, r); err != nil {
					return err
				}
			}
		}
		for _, r := range all {
			withdrawn := now
			if has(hub, r.ID) {
				withdrawn = time.Time{}
			}
			if r.Withdrawn.IsZero() == withdrawn.IsZero() {
				continue
			}
			if err := setWithdrawn(ctx, tx, r, withdrawn); err != nil {
				return err
			}
		}
		return nil
	})
}
