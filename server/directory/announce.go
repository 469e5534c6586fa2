package directory

import (
	"context"
	"database/sql"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"loadstar/server/sqlstore"
)

// Announcement is an agent's list of clients and their data.
type Announcement struct {
	Agent           string
	Clients, Inputs []string
	Step            time.Duration
	// Most limits the agent's clients, including those that it announced before.
	Most int
	// Version is the version of the agent's program, or empty. Protocol is the version of
	// its protocol. Skew is the time by which its clock is ahead of the server's, or nil if
	// unknown. Generated means that its readings are synthetic.
	Version   string
	Protocol  int64
	Skew      *time.Duration
	Generated bool
}

// Refused contains the clients that an agent may not host, and the reason for the first one.
type Refused struct {
	Clients []string
	Reason  string
}

func (r *Refused) add(name, reason string) {
	if len(r.Clients) == 0 {
		r.Reason = reason
	}
	r.Clients = append(r.Clients, name)
}

const (
	// announcedAtOnce is the maximum number of clients per transaction, so that other
	// transactions can run in between. SQLite writes this number of clients in a few hundredths
	// of a second.
	announcedAtOnce = 256
	// sameSkew is the largest change in clock skew that is not stored.
	sameSkew = time.Second
)

// Announce registers clients as hosted by an agent. It refuses clients that belong to another
// agent, are revoked, or are not allowed by the agent's token. A client stays with its agent,
// even a revoked one, until FreeClients frees it. If the agent would have more than Most
// clients, Announce stores nothing and returns sqlstore.ErrTooMany.
//
// Announce writes only differences from the database, so a repeated announcement costs no
// writes.
func (d *Directory) Announce(ctx context.Context, a Announcement, now time.Time) (refused Refused, err error) {
	defer sqlstore.Wrap(&err, "storing the clients of agent", a.Agent)
	inputs := strings.Join(slices.Compact(slices.Sorted(slices.Values(a.Inputs))), " ")
	diff, err := d.announced(ctx, a, inputs)
	if err != nil {
		return Refused{}, err
	}
	refused = diff.refused
	for part := range slices.Chunk(diff.write, announcedAtOnce) {
		err := d.store.Update(ctx, func(tx *sqlstore.Txn) error { return d.announcePart(ctx, tx, a, diff, part, inputs, now, &refused) })
		if err != nil {
			return Refused{}, err
		}
	}
	if len(diff.write) == 0 && !diff.agent {
		return refused, nil
	}
	return refused, d.store.Update(ctx, func(tx *sqlstore.Txn) error { return d.announceAgent(ctx, tx, a, diff.clients, now) })
}

// difference is the set of changes in an announcement.
type difference struct {
	refused Refused
	write   []string // clients that are new or that differ, sorted
	agent   bool     // the data about the agent itself differs
	clients int64    // stored number of clients that are not revoked
	most    int      // limit on the number of clients
	adds    bool     // some clients are new
}

// announced compares an announcement with the stored data.
func (d *Directory) announced(ctx context.Context, a Announcement, inputs string) (diff difference, err error) {
	var has AgentState
	var pattern string
	var revoked, most, generated int64
	var skew sql.NullInt64
	err = d.store.DB.QueryRowContext(ctx, "SELECT revoked, most_clients, pattern, clients, version, protocol, skew, generated FROM agents WHERE id = $1", a.Agent).
		Scan(&revoked, &most, &pattern, &diff.clients, &has.Version, &has.Protocol, &skew, &generated)
	switch {
	case err != nil:
		return diff, sqlstore.OrNotFound(err, "agent "+a.Agent)
	case revoked != 0:
		return diff, fmt.Errorf("agent %s is revoked: %w", a.Agent, sqlstore.ErrRefused)
	}
	type row struct {
		inputs  string
		step    int64
		revoked int64
	}
	mine, valid := map[string]row{}, int64(0)
	err = sqlstore.Query(ctx, d.store.DB, func(r *sql.Rows) error {
		var name string
		var x row
		err := r.Scan(&name, &x.inputs, &x.step, &x.revoked)
		if mine[name] = x; x.revoked == 0 {
			valid++
		}
		return err
	}, "SELECT name, inputs, step, revoked FROM clients WHERE agent = $1", a.Agent)
	if err != nil {
		return diff, err
	}
	names := slices.Compact(slices.Sorted(slices.Values(a.Clients)))
	other := map[string]string{} // reasons why the agent cannot have clients of another agent
	missing := slices.DeleteFunc(slices.Clone(names), func(name string) bool { _, ok := mine[name]; return ok })
	err = sqlstore.QueryIn(ctx, d.store, func(r *sql.Rows) error {
		var name string
		var revoked, freed int64
		err := r.Scan(&name, &revoked, &freed)
		switch {
		case revoked != 0:
			other[name] = "is revoked"
		case freed == 0:
			other[name] = "belongs to another agent"
		}
		return err
	}, "SELECT name, revoked, freed FROM clients WHERE name IN ", nil, missing)
	if err != nil {
		return diff, err
	}
	count := len(mine)
	for _, name := range names {
		x, is := mine[name]
		switch why := other[name]; {
		case is && x.revoked != 0:
			diff.refused.add(name, fmt.Sprintf("client %s is revoked", name))
		case is && (x.inputs != inputs || x.step != int64(a.Step/time.Second)):
			diff.write = append(diff.write, name)
		case is:
		case why != "":
			diff.refused.add(name, fmt.Sprintf("client %s %s", name, why))
		case !matches(pattern, name):
			diff.refused.add(name, fmt.Sprintf("client %s does not match the pattern %s of the token with which this agent joined", name, pattern))
		case most > 0 && count >= int(most):
			diff.refused.add(name, fmt.Sprintf("client %s is one too many: the token with which this agent joined allows %d clients", name, most))
		default:
			diff.write, diff.adds = append(diff.write, name), true
			count++
		}
	}
	if diff.most = a.Most; diff.adds && count > a.Most {
		return diff, tooMany(a, count)
	}
	if most > 0 {
		diff.most = min(diff.most, int(most))
	}
	diff.agent = diff.clients != valid || has.Version != a.Version || has.Protocol != a.Protocol || (generated != 0) != a.Generated ||
		skew.Valid != (a.Skew != nil) || a.Skew != nil && (*a.Skew-time.Duration(skew.Int64)*time.Millisecond).Abs() >= sameSkew
	return diff, nil
}

// matches reports whether a pattern of path.Match is empty or matches a name. The patterns of
// tokens are always valid.
func matches(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return pattern == "" || err == nil && ok
}

func tooMany(a Announcement, has int) error {
	return fmt.Errorf("%w: agent %s would have %d clients, at most %d are allowed", sqlstore.ErrTooMany, a.Agent, has, a.Most)
}

// announcePart writes new or changed clients. Another agent may have announced some of them
// since the comparison.
func (d *Directory) announcePart(ctx context.Context, tx *sqlstore.Txn, a Announcement, diff difference, clients []string, inputs string, now time.Time, refused *Refused) error {
	// The lock serialises an agent's announcements, because together they must respect the
	// limit on its clients.
	if _, err := tx.ExecContext(ctx, "SELECT 1 FROM agents WHERE id = $1"+d.store.LockClause("UPDATE"), a.Agent); err != nil {
		return err
	}
	if err := checkAllowed(ctx, tx, a.Agent); err != nil {
		return err
	}
	for part := range slices.Chunk(clients, d.store.Chunk) {
		args := make([]any, 0, 5*len(part))
		for _, c := range part {
			args = append(args, c, a.Agent, inputs, int64(a.Step/time.Second), sqlstore.ToMillis(now))
		}
		mine := map[string]bool{}
		err := sqlstore.Query(ctx, tx, func(r *sql.Rows) error {
			var name string
			err := r.Scan(&name)
			mine[name] = true
			return err
		}, "INSERT INTO clients (name, agent, inputs, step, announced) VALUES "+sqlstore.Placeholders(0, len(part), 5)+` ON CONFLICT (name) DO UPDATE
			SET agent = excluded.agent, inputs = excluded.inputs, step = excluded.step, announced = excluded.announced, freed = 0
			WHERE clients.revoked = 0 AND (clients.agent = excluded.agent OR clients.freed <> 0)
			RETURNING name`, args...)
		if err != nil {
			return err
		}
		for _, c := range part {
			if !mine[c] {
				refused.add(c, fmt.Sprintf("client %s belongs to another agent or is revoked", c))
			}
		}
	}
	if !diff.adds {
		return nil
	}
	var has int
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM clients WHERE agent = $1", a.Agent).Scan(&has); err != nil {
		return err
	}
	if has > diff.most {
		return tooMany(a, has)
	}
	return nil
}

// announceAgent stores the agent's data about itself, and the number of its clients. It adds an
// event to the audit log if the number has changed.
func (d *Directory) announceAgent(ctx context.Context, tx *sqlstore.Txn, a Announcement, before int64, now time.Time) error {
	var skew sql.NullInt64
	if a.Skew != nil {
		skew = sql.NullInt64{Int64: a.Skew.Milliseconds(), Valid: true}
	}
	generated := 0
	if a.Generated {
		generated = 1
	}
	if err := checkAllowed(ctx, tx, a.Agent); err != nil {
		return err
	}
	var clients int64
	err := tx.QueryRowContext(ctx, `UPDATE agents SET clients = (SELECT count(*) FROM clients c WHERE c.agent = $1 AND c.revoked = 0), version = $2, skew = $3, generated = $4, protocol = $5
		WHERE id = $1 RETURNING clients`, a.Agent, a.Version, skew, generated, a.Protocol).Scan(&clients)
	if err != nil || clients == before || before == 0 {
		return err // the log already contains the join, which implies the first announcement
	}
	return d.log.Record(ctx, tx, now, "agent "+a.Agent, "announce", a.Agent, fmt.Sprintf("clients %d, before %d", clients, before))
}

// FreeClients lets other agents announce the clients of a revoked agent, or one of them. It
// returns the number of clients. A revoked client stays revoked.
func (d *Directory) FreeClients(ctx context.Context, agent, client, actor string, now time.Time) (n int64, err error) {
	defer sqlstore.Wrap(&err, "freeing the clients of agent", agent)
	err = d.store.Update(ctx, func(tx *sqlstore.Txn) error {
		var revoked int64
		if err := tx.QueryRowContext(ctx, "SELECT revoked FROM agents WHERE id = $1", agent).Scan(&revoked); err != nil {
			return sqlstore.OrNotFound(err, "agent "+agent)
		}
		if revoked == 0 {
			return fmt.Errorf("agent %s is not revoked and keeps its clients; revoke it first: %w", agent, sqlstore.ErrRefused)
		}
		r, err := tx.ExecContext(ctx, "UPDATE clients SET freed = $2 WHERE agent = $1 AND revoked = 0 AND freed = 0 AND ($3 = '' OR name = $3)", agent, sqlstore.ToMillis(now), client)
		if err != nil {
			return err
		}
		if n, err = r.RowsAffected(); err != nil {
			return err
		}
		if n == 0 && client != "" {
			return fmt.Errorf("client %s of agent %s that can be freed: %w", client, agent, sqlstore.ErrNotFound)
		} else if n == 0 {
			return nil
		}
		detail := fmt.Sprintf("clients %d", n)
		if client != "" {
			detail = "client " + client
		}
		return d.log.Record(ctx, tx, now, actor, "free clients", agent, detail)
	})
	return n, err
}
