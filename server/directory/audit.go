package directory

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"sync/atomic"
	"time"

	"loadstar/server/sqlstore"
)

// Event is an action of an operator or agent that the audit log records.
type Event struct {
	ID      string    `json:"id"` // set by the ledger; sorts by time
	At      time.Time `json:"time"`
	Actor   string    `json:"actor"`
	Action  string    `json:"action"`
	Subject string    `json:"subject"`
	Detail  string    `json:"detail"`
}

// Log is the audit log.
type Log struct {
	store  *sqlstore.Store
	events atomic.Uint64 // number of events added by this process
}

// NewLog returns the audit log in a database.
func NewLog(s *sqlstore.Store) *Log { return &Log{store: s} }

// AddEvent adds an event to the audit log. Methods that change the ledger add their own
// events.
func (g *Log) AddEvent(ctx context.Context, e Event) (err error) {
	defer sqlstore.Wrap(&err, "adding an audit event")
	return g.store.Update(ctx, func(tx *sqlstore.Txn) error { return g.Record(ctx, tx, e.At, e.Actor, e.Action, e.Subject, e.Detail) })
}

func (g *Log) Record(ctx context.Context, tx *sqlstore.Txn, at time.Time, actor, action, subject, detail string) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO audit (id, at, actor, action, subject, detail) VALUES ($1, $2, $3, $4, $5, $6)",
		fmt.Sprintf("%016x-%08x-%s", sqlstore.ToMillis(at), g.events.Add(1), rand.Text()[:8]), sqlstore.ToMillis(at), actor, action, subject, detail)
	return err
}

// AuditQuery selects events of the audit log.
type AuditQuery struct {
	// Before is the id of an event, or empty. Only older events are selected.
	Before string
	// After is an event's id, a prefix of an id, or empty. Only newer events are selected,
	// oldest first. An id contains the start time of the event's transaction, so a new event
	// can be sorted before an event that was already read. Until excludes recent events,
	// because only recent events can appear in this way.
	After string
	Until time.Time
	// Actors and Actions select events with one of these actors and one of these actions. An
	// empty list selects all.
	Actors, Actions []string
	Limit           int
}

// Audit returns the newest events that a query selects, newest first, or the oldest ones if
// After is set.
func (g *Log) Audit(ctx context.Context, q AuditQuery) (all []Event, err error) {
	defer sqlstore.Wrap(&err, "reading the audit log")
	text, args := "SELECT id, at, actor, action, subject, detail FROM audit WHERE true", []any{}
	if q.Before != "" {
		args = append(args, q.Before)
		text += " AND id < $1"
	}
	order := "DESC"
	if q.After != "" {
		args, order = append(args, q.After), "ASC"
		text += fmt.Sprintf(" AND id > $%d", len(args))
	}
	if !q.Until.IsZero() {
		args = append(args, sqlstore.ToMillis(q.Until))
		text += fmt.Sprintf(" AND at < $%d", len(args))
	}
	for column, values := range map[string][]string{"actor": q.Actors, "action": q.Actions} {
		if len(values) > 0 {
			text += " AND " + column + " IN " + sqlstore.InList(len(args), len(values))
			for _, v := range values {
				args = append(args, v)
			}
		}
	}
	args = append(args, q.Limit)
	err = sqlstore.Query(ctx, g.store.DB, func(r *sql.Rows) error {
		var e Event
		var at int64
		if err := r.Scan(&e.ID, &at, &e.Actor, &e.Action, &e.Subject, &e.Detail); err != nil {
			return err
		}
		e.At = sqlstore.FromMillis(at)
		all = append(all, e)
		return nil
	}, text+fmt.Sprintf(" ORDER BY id %s LIMIT $%d", order, len(args)), args...)
	return all, err
}
