package directory

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"loadstar/server/sqlstore"
)

// Filter selects clients that are not revoked. Empty fields select all.
type Filter struct {
	Seen   time.Time     // time since which their agents must have been seen
	Inputs []string      // inputs that they must have
	Step   time.Duration // interval of their readings
}

// Selects returns an SQL condition on the tables clients, as c, and agents, as a. It adds its
// arguments to args.
func (d *Directory) Selects(f Filter, args *[]any) string {
	text := "c.revoked = 0 AND a.revoked = 0"
	add := func(condition string, arg any) {
		*args = append(*args, arg)
		text += fmt.Sprintf(" AND "+condition, len(*args))
	}
	if !f.Seen.IsZero() {
		add("a.seen >= $%d", sqlstore.ToMillis(f.Seen))
	}
	if f.Step != 0 {
		add("c.step = $%d", int64(f.Step/time.Second))
	}
	has := "strpos(' ' || c.inputs || ' ', $%d) > 0"
	if d.store.SQLite {
		has = "instr(' ' || c.inputs || ' ', $%d) > 0"
	}
	for _, in := range f.Inputs {
		add(has, " "+in+" ")
	}
	return text
}

// Kind describes the clients that have the same inputs and the same interval.
type Kind struct {
	Inputs    []string
	Step      time.Duration
	Clients   int64
	Generated bool // an agent has synthetic readings
}

// maxKinds limits the number of returned kinds of clients, because every agent can invent
// kinds.
const maxKinds = 1000

// Kinds returns the kinds of the clients whose agents were seen since the given time, most
// frequent first.
func (d *Directory) Kinds(ctx context.Context, seen time.Time) ([]Kind, error) {
	return d.KindsIn(ctx, d.store.DB, seen)
}

// KindsIn is like Kinds, in a transaction.
func (d *Directory) KindsIn(ctx context.Context, q sqlstore.Querier, seen time.Time) (all []Kind, err error) {
	defer sqlstore.Wrap(&err, "reading the kinds of clients")
	var args []any
	which := d.Selects(Filter{Seen: seen}, &args)
	err = sqlstore.Query(ctx, q, func(r *sql.Rows) error {
		var k Kind
		var inputs string
		var step, generated int64
		err := r.Scan(&inputs, &step, &k.Clients, &generated)
		k.Inputs, k.Step, k.Generated = strings.Fields(inputs), time.Duration(step)*time.Second, generated != 0
		all = append(all, k)
		return err
	}, fmt.Sprintf(`SELECT c.inputs, c.step, count(*), MAX(a.generated) FROM clients c JOIN agents a ON a.id = c.agent WHERE %s
		GROUP BY c.inputs, c.step ORDER BY count(*) DESC, c.step, c.inputs LIMIT %d`, which, maxKinds), args...)
	return all, err
}

// CountClients returns the number of clients that may take part and whose agents were seen
// since a time.
func (d *Directory) CountClients(ctx context.Context, seen time.Time) (n int64, err error) {
	return d.CountIn(ctx, d.store.DB, Filter{Seen: seen})
}

// rowQuerier is a database or a transaction that returns one row.
type rowQuerier interface {
	QueryRowContext(context.Context, string, ...any) *sql.Row
}

// CountIn is like CountClients, with a filter and in a transaction.
func (d *Directory) CountIn(ctx context.Context, q rowQuerier, f Filter) (n int64, err error) {
	defer sqlstore.Wrap(&err, "counting clients")
	var args []any
	which := d.Selects(f, &args)
	err = q.QueryRowContext(ctx, "SELECT count(*) FROM clients c JOIN agents a ON a.id = c.agent WHERE "+which, args...).Scan(&n)
	return n, err
}

// AgentsIn returns the agents of the clients that CountIn counts.
func (d *Directory) AgentsIn(ctx context.Context, q sqlstore.Querier, f Filter) (all []string, err error) {
	defer sqlstore.Wrap(&err, "reading the agents of clients")
	var args []any
	which := d.Selects(f, &args)
	err = sqlstore.Query(ctx, q, func(r *sql.Rows) error {
		var agent string
		err := r.Scan(&agent)
		all = append(all, agent)
		return err
	}, "SELECT DISTINCT c.agent FROM clients c JOIN agents a ON a.id = c.agent WHERE "+which, args...)
	return all, err
}

// LastSeen returns when any agent was last seen, or the zero time if none was.
func (d *Directory) LastSeen(ctx context.Context) (_ time.Time, err error) {
	defer sqlstore.Wrap(&err, "reading when an agent was seen last")
	var ms int64
	err = d.store.DB.QueryRowContext(ctx, "SELECT COALESCE(MAX(seen), 0) FROM agents WHERE revoked = 0").Scan(&ms)
	return sqlstore.FromMillis(ms), err
}

// LackingIn returns up to limit clients, in the order of their names, that a filter does not
// select although their agents were seen recently enough.
func (d *Directory) LackingIn(ctx context.Context, q sqlstore.Querier, f Filter, limit int) (all []Client, err error) {
	defer sqlstore.Wrap(&err, "reading the clients that lack something")
	var args []any
	seen := d.Selects(Filter{Seen: f.Seen}, &args)
	which := d.Selects(Filter{Inputs: f.Inputs, Step: f.Step}, &args)
	args = append(args, limit)
	err = sqlstore.Query(ctx, q, func(r *sql.Rows) error {
		c, err := scanClient(r)
		all = append(all, c)
		return err
	}, fmt.Sprintf("SELECT "+clientColumns+" FROM clients c JOIN agents a ON a.id = c.agent WHERE %s AND NOT (%s) ORDER BY c.name LIMIT $%d", seen, which, len(args)), args...)
	return all, err
}

// NamesIn returns the names of the clients that a filter selects, in byte order.
func (d *Directory) NamesIn(ctx context.Context, q sqlstore.Querier, f Filter) (all []string, err error) {
	defer sqlstore.Wrap(&err, "reading the names of clients")
	var args []any
	which := d.Selects(f, &args)
	err = sqlstore.Query(ctx, q, func(r *sql.Rows) error {
		var name string
		err := r.Scan(&name)
		all = append(all, name)
		return err
	}, "SELECT c.name FROM clients c JOIN agents a ON a.id = c.agent WHERE "+which, args...)
	slices.Sort(all)
	return all, err
}
