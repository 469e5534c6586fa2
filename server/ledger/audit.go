package ledger

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"time"
)

// Event is an action of an operator or an agent, for the audit log.
type Event struct {
	At                             time.Time
	Actor, Action, Subject, Detail string
}

// AddEvent adds an event to the audit log. Methods that change the ledger add their own
// events.
func (l *Ledger) AddEvent(ctx context.Context, e Event) (err error) {
	defer wrap(&err, "adding an audit event")
	return l.update(ctx, func(tx *sql.Tx) error { return l.audit(ctx, tx, e.At, e.Actor, e.Action, e.Subject, e.Detail) })
}

func (l *Ledger) audit(ctx context.Context, tx *sql.Tx, at time.Time, actor, action, subject, detail string) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO audit (id, at, actor, action, subject, detail) VALUES ($1, $2, $3, $4, $5, $6)",
		fmt.Sprintf("%016x-%08x-%s", toMillis(at), l.events.Add(1), rand.Text()[:8]), toMillis(at), actor, action, subject, detail)
	return err
}

// Audit returns up to limit of the newest events, newest first.
func (l *Ledger) Audit(ctx context.Context, limit int) (all []Event, err error) {
	defer wrap(&err, "reading the audit log")
	err = query(ctx, l.db, func(r *sql.Rows) error {
		var e Event
		var at int64
		if err := r.Scan(&at, &e.Actor, &e.Action, &e.Subject, &e.Detail); err != nil {
			return err
		}
		e.At = fromMillis(at)
		all = append(all, e)
		return nil
	}, "SELECT at, actor, action, subject, detail FROM audit ORDER BY id DESC LIMIT $1", limit)
	return all, err
}
