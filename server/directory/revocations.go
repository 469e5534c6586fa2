package directory

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"loadstar/server/sqlstore"
)

// The actions that a ledger restored from a backup must not undo.
const (
	revokeAgent       = "revoke agent"
	revokeClient      = "revoke client"
	revokeToken       = "revoke token"
	revokeCertificate = "revoke certificate"
	removedUser       = "remove user"
)

// Revocations returns the events since a time that a restored ledger must not undo, oldest
// first. If after is not empty, it is the id of an event, and only newer events are returned,
// whatever the time.
func (d *Directory) Revocations(ctx context.Context, since time.Time, after string, limit int) ([]Event, error) {
	if after == "" {
		after = fmt.Sprintf("%016x", max(sqlstore.ToMillis(since), 0))
	}
	return d.log.Audit(ctx, AuditQuery{After: after, Actions: []string{revokeAgent, revokeClient, revokeToken, revokeCertificate, removedUser}, Limit: limit})
}

// restoredBy is the actor of repeated revocations. Revoked clients that are missing from the
// ledger are assigned to an agent of this name.
const restoredBy = "server"

// Reapply repeats revocations that the ledger lacks because it was restored from an older
// backup. It adds unknown agents and clients as revoked, so that their names cannot be used. It
// returns the number of repeated revocations.
func (d *Directory) Reapply(ctx context.Context, events []Event, now time.Time) (n int, err error) {
	defer sqlstore.Wrap(&err, "repeating revocations")
	done := map[string]map[string]bool{}
	for action, table := range map[string]string{revokeAgent: "id FROM agents", revokeClient: "name FROM clients"} {
		var names []string
		for _, e := range events {
			if e.Action == action {
				names = append(names, e.Subject)
			}
		}
		done[action] = map[string]bool{}
		column, _, _ := strings.Cut(table, " ")
		err := sqlstore.QueryIn(ctx, d.store, func(r *sql.Rows) error {
			var name string
			err := r.Scan(&name)
			done[action][name] = true
			return err
		}, "SELECT "+table+" WHERE revoked <> 0 AND "+column+" IN ", nil, names)
		if err != nil {
			return 0, err
		}
	}
	for _, e := range events {
		if done[e.Action][e.Subject] {
			continue
		}
		switch err := d.reapply(ctx, e, now); {
		case err == nil:
			n++
		case !errors.Is(err, sqlstore.ErrNotFound) && !errors.Is(err, sqlstore.ErrRefused): // the action has already been done, or there is nothing to do
			return n, err
		}
	}
	return n, nil
}

func (d *Directory) reapply(ctx context.Context, e Event, now time.Time) error {
	switch e.Action {
	case revokeAgent:
		err := d.RevokeAgent(ctx, e.Subject, restoredBy, now)
		if errors.Is(err, sqlstore.ErrNotFound) {
			return d.addRevoked(ctx, now, e.Subject, "")
		}
		return err
	case revokeClient:
		err := d.RevokeClient(ctx, e.Subject, restoredBy, now)
		if errors.Is(err, sqlstore.ErrNotFound) {
			return d.addRevoked(ctx, now, restoredBy, e.Subject)
		}
		return err
	case revokeToken:
		_, err := d.RevokeToken(ctx, e.Subject, restoredBy, now)
		return err
	case revokeCertificate:
		_, serial, ok := strings.Cut(e.Detail, "serial ")
		if !ok {
			return nil
		}
		_, err := d.users.RevokeCertificate(ctx, serial, restoredBy, now)
		return err
	case removedUser:
		u, err := d.users.User(ctx, e.Subject)
		if err != nil || u.Created.After(e.At) { // another user has the name now
			return errors.Join(err, sqlstore.ErrNotFound)
		}
		return d.users.RemoveUser(ctx, e.Subject, restoredBy, now)
	}
	return nil
}

// addRevoked adds an agent as revoked, and one of its clients unless the client's name is empty.
func (d *Directory) addRevoked(ctx context.Context, now time.Time, agent, client string) error {
	return d.store.Update(ctx, func(tx *sqlstore.Txn) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO agents (id, name, joined, expires, seen, revoked) VALUES ($1, '', $2, 0, 0, $2) ON CONFLICT (id) DO NOTHING", agent, sqlstore.ToMillis(now))
		if err != nil || client == "" {
			return errors.Join(err, d.auditRestored(ctx, tx, now, revokeAgent, agent))
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO clients (name, agent, inputs, step, announced, revoked) VALUES ($1, $2, '', 0, 0, $3) ON CONFLICT (name) DO NOTHING", client, agent, sqlstore.ToMillis(now))
		return errors.Join(err, d.auditRestored(ctx, tx, now, revokeClient, client))
	})
}

func (d *Directory) auditRestored(ctx context.Context, tx *sqlstore.Txn, now time.Time, action, subject string) error {
	return d.log.Record(ctx, tx, now, restoredBy, action, subject, "not known; revoked after the backup from which the ledger was restored")
}

// RevokeTokens revokes all tokens with which agents could still join. After a restore, it is
// unknown how often they have been used since the backup.
func (d *Directory) RevokeTokens(ctx context.Context, actor string, now time.Time) (n int, err error) {
	defer sqlstore.Wrap(&err, "revoking tokens")
	var ids []string
	err = sqlstore.Query(ctx, d.store.DB, func(r *sql.Rows) error {
		var id string
		err := r.Scan(&id)
		ids = append(ids, id)
		return err
	}, "SELECT id FROM tokens WHERE revoked = 0 AND uses > 0 AND expires > $1", sqlstore.ToMillis(now))
	if err != nil {
		return 0, err
	}
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		if _, err := d.RevokeToken(ctx, id, actor, now); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}
