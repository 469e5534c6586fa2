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
	ID                             string // sorts by time; set by the ledger
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

// AuditQuery selects events of the audit log.
type AuditQuery struct {
	// Before is the id of an event: only older ones are selected. It may be empty.
	Before string
	// Actors and Action select events of any of these actors, and one action. They may be
	// empty.
	Actors []string
	Action string
	Limit  int
}

// Audit returns the newest events that a query selects, newest first.
func (l *Ledger) Audit(ctx context.Context, q AuditQuery) (all []Event, err error) {
	defer wrap(&err, "reading the audit log")
	text, args := "SELECT id, at, actor, action, subject, detail FROM audit WHERE true", []any{}
	if q.Before != "" {
		args = append(args, q.Before)
		text += " AND id < $1"
	}
	if len(q.Actors) > 0 {
		text += " AND actor IN " + inList(len(args), len(q.Actors))
		for _, a := range q.Actors {
			args = append(args, a)
		}
	}
	if q.Action != "" {
		args = append(args, q.Action)
		text += fmt.Sprintf(" AND action = $%d", len(args))
	}
	args = append(args, q.Limit)
	err = query(ctx, l.db, func(r *sql.Rows) error {
		var e Event
		var at int64
		if err := r.Scan(&e.ID, &at, &e.Actor, &e.Action, &e.Subject, &e.Detail); err != nil {
			return err
		}
		e.At = fromMillis(at)
		all = append(all, e)
		return nil
	}, text+fmt.Sprintf(" ORDER BY id DESC LIMIT $%d", len(args)), args...)
	return all, err
}
