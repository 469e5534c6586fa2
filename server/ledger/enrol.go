package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// AddToken adds a token with which the given number of agents can join until it expires.
func (l *Ledger) AddToken(ctx context.Context, hash []byte, note string, uses int, expires time.Time) (err error) {
	defer wrap(&err, "adding a token")
	_, err = l.write.ExecContext(ctx, "INSERT INTO tokens (hash, note, uses, expires) VALUES ($1, $2, $3, $4)", hash, note, uses, toMillis(expires))
	return err
}

// Agent is an agent that has joined.
type Agent struct {
	ID, Name string
	Expires  time.Time // expiry of the agent's certificate
}

// Join uses a token once and adds an agent. It returns ErrRefused if the token is
// unknown, used up or expired.
func (l *Ledger) Join(ctx context.Context, hash []byte, a Agent, now time.Time) (err error) {
	defer wrap(&err, "adding agent", a.ID)
	return l.update(ctx, func(tx *sql.Tx) error {
		r, err := tx.ExecContext(ctx, "UPDATE tokens SET uses = uses - 1, used = $2 WHERE hash = $1 AND uses > 0 AND expires > $2", hash, toMillis(now))
		if err != nil {
			return err
		}
		if n, err := r.RowsAffected(); err != nil {
			return err
		} else if n == 0 {
			return whyNot(ctx, tx, hash, now)
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO agents (id, name, joined, expires, seen) VALUES ($1, $2, $3, $4, $5)",
			a.ID, a.Name, toMillis(now), toMillis(a.Expires), toMillis(now))
		if err != nil {
			return err
		}
		return l.audit(ctx, tx, now, "agent "+a.ID, "join", a.ID, a.Name)
	})
}

// whyNot returns the reason why a token cannot be used. Only who has the token can ask, so
// the reason tells a stranger nothing.
func whyNot(ctx context.Context, tx *sql.Tx, hash []byte, now time.Time) error {
	var uses, expires, used int64
	err := tx.QueryRowContext(ctx, "SELECT uses, expires, used FROM tokens WHERE hash = $1", hash).Scan(&uses, &expires, &used)
	const form = "2006-01-02 15:04 MST"
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("this server does not know the token: %w", ErrRefused)
	case err != nil:
		return err
	case uses <= 0 && used > 0:
		return fmt.Errorf("the token is used up: the last agent joined with it at %s: %w", fromMillis(used).UTC().Format(form), ErrRefused)
	case uses <= 0:
		return fmt.Errorf("the token is used up: %w", ErrRefused)
	}
	return fmt.Errorf("the token expired at %s, and the server's clock says %s: %w", fromMillis(expires).UTC().Format(form), now.UTC().Format(form), ErrRefused)
}

// Caller is what the ledger knows about a calling agent.
type Caller struct {
	ID      string
	Revoked bool
	// Hosts reports whether the agent has any clients.
	Hosts bool
}

// Caller looks up an agent. It returns ErrNotFound if the agent has not joined.
func (l *Ledger) Caller(ctx context.Context, id string) (c Caller, err error) {
	defer wrap(&err, "looking up agent", id)
	c, err = l.callers.get(ctx, id)
	if err == nil && c.ID == "" {
		err = orNotFound(sql.ErrNoRows, "agent "+id)
	}
	return c, err
}

// callersOf looks up agents. It returns an empty Caller for each unknown agent.
func (l *Ledger) callersOf(ctx context.Context, ids []string) ([]Caller, error) {
	has := make(map[string]Caller, len(ids))
	// Do not use EXISTS here, because PostgreSQL would then scan the whole table.
	err := queryIn(ctx, l, func(r *sql.Rows) error {
		var c Caller
		var revoked, hosts int64
		err := r.Scan(&c.ID, &revoked, &hosts)
		c.Revoked, c.Hosts = revoked != 0, hosts != 0
		has[c.ID] = c
		return err
	}, "SELECT a.id, a.revoked, COALESCE((SELECT 1 FROM clients c WHERE c.agent = a.id LIMIT 1), 0) FROM agents a WHERE a.id IN ", nil, ids)
	all := make([]Caller, len(ids))
	for i, id := range ids {
		all[i] = has[id]
	}
	return all, err
}

// checkAllowed returns an error if an agent is unknown or revoked.
func checkAllowed(ctx context.Context, tx *sql.Tx, id string) error {
	var revoked int64
	if err := tx.QueryRowContext(ctx, "SELECT revoked FROM agents WHERE id = $1", id).Scan(&revoked); err != nil {
		return orNotFound(err, "agent "+id)
	}
	if revoked != 0 {
		return fmt.Errorf("agent %s is revoked: %w", id, ErrRefused)
	}
	return nil
}

// Renewed stores the expiry of an agent's new certificate. It adds no audit event,
// because renewals are routine.
func (l *Ledger) Renewed(ctx context.Context, id string, expires time.Time) (err error) {
	defer wrap(&err, "storing the renewal of agent", id)
	return l.update(ctx, func(tx *sql.Tx) error {
		if err := checkAllowed(ctx, tx, id); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "UPDATE agents SET expires = $2 WHERE id = $1", id, toMillis(expires))
		return err
	})
}

// Seen stores the time of the last check-in of agents. It uses several short transactions,
// so that other transactions can run in between.
func (l *Ledger) Seen(ctx context.Context, agents []string, at time.Time) (err error) {
	defer wrap(&err, "storing which agents checked in")
	// All transactions lock agents in byte order, so that concurrent calls cannot
	// deadlock.
	agents = slices.Sorted(slices.Values(agents))
	order := ""
	if !l.sqlite {
		order = ` ORDER BY id COLLATE "C"`
	}
	for some := range slices.Chunk(agents, 16*l.chunk) {
		err := l.update(ctx, func(tx *sql.Tx) error {
			for part := range slices.Chunk(some, l.chunk) {
				args := []any{toMillis(at)}
				for _, id := range part {
					args = append(args, id)
				}
				text := "WITH these AS MATERIALIZED (SELECT id FROM agents WHERE seen < $1 AND id IN " + inList(1, len(part)) + order + l.lockClause("UPDATE") +
					") UPDATE agents SET seen = $1 WHERE id IN (SELECT id FROM these)"
				if _, err := tx.ExecContext(ctx, text, args...); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Agents returns the number of agents that may take part.
func (l *Ledger) Agents(ctx context.Context) (n int64, err error) {
	defer wrap(&err, "counting agents")
	err = l.db.QueryRowContext(ctx, "SELECT count(*) FROM agents WHERE revoked = 0").Scan(&n)
	return n, err
}

// Announcement is an agent's list of clients and their data.
type Announcement struct {
	Agent           string
	Clients, Inputs []string
	Step            time.Duration
	// Most limits the agent's clients, including those that it announced before.
	Most int
	// Version is that of the agent's program, or empty. Skew is how far its clock is ahead
	// of the server's, or nil if it did not say. Generated means that its readings are
	// synthetic.
	Version   string
	Skew      *time.Duration
	Generated bool
}

// Announce registers clients as hosted by an agent. It returns the clients that it refused
// because they belong to another agent or are revoked. A client of a revoked agent may move
// to another agent. If the agent would have more than Most clients, nothing is stored and
// the error is ErrTooMany.
func (l *Ledger) Announce(ctx context.Context, a Announcement, now time.Time) (refused []string, err error) {
	defer wrap(&err, "storing the clients of agent", a.Agent)
	clients := slices.Compact(slices.Sorted(slices.Values(a.Clients)))
	inputs := slices.Compact(slices.Sorted(slices.Values(a.Inputs)))
	err = l.update(ctx, func(tx *sql.Tx) error {
		refused = nil
		if err := checkAllowed(ctx, tx, a.Agent); err != nil {
			return err
		}
		for part := range slices.Chunk(clients, l.chunk) {
			args := make([]any, 0, 5*len(part))
			for _, c := range part {
				args = append(args, c, a.Agent, strings.Join(inputs, " "), int64(a.Step/time.Second), toMillis(now))
			}
			mine := map[string]bool{}
			err := query(ctx, tx, func(r *sql.Rows) error {
				var name string
				err := r.Scan(&name)
				mine[name] = true
				return err
			}, "INSERT INTO clients (name, agent, inputs, step, announced) VALUES "+placeholders(0, len(part), 5)+` ON CONFLICT (name) DO UPDATE
				SET agent = excluded.agent, inputs = excluded.inputs, step = excluded.step, announced = excluded.announced
				WHERE clients.revoked = 0 AND (clients.agent = excluded.agent OR EXISTS (SELECT 1 FROM agents WHERE id = clients.agent AND revoked <> 0))
				RETURNING name`, args...)
			if err != nil {
				return err
			}
			for _, c := range part {
				if !mine[c] {
					refused = append(refused, c)
				}
			}
		}
		var has int
		if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM clients WHERE agent = $1", a.Agent).Scan(&has); err != nil {
			return err
		}
		if has > a.Most {
			return fmt.Errorf("%w: agent %s would have %d clients, at most %d are allowed", ErrTooMany, a.Agent, has, a.Most)
		}
		var skew sql.NullInt64
		if a.Skew != nil {
			skew = sql.NullInt64{Int64: a.Skew.Milliseconds(), Valid: true}
		}
		generated := 0
		if a.Generated {
			generated = 1
		}
		_, err := tx.ExecContext(ctx, `UPDATE agents SET clients = (SELECT count(*) FROM clients c WHERE c.agent = $1 AND c.revoked = 0), version = $2, skew = $3, generated = $4
			WHERE id = $1`, a.Agent, a.Version, skew, generated)
		return err
	})
	return refused, err
}

// CountClients returns the number of clients that may take part.
func (l *Ledger) CountClients(ctx context.Context) (n int64, err error) {
	defer wrap(&err, "counting clients")
	err = l.db.QueryRowContext(ctx, "SELECT count(*) FROM clients c JOIN agents a ON a.id = c.agent WHERE c.revoked = 0 AND a.revoked = 0").Scan(&n)
	return n, err
}

// RevokeAgent refuses an agent permanently and withdraws its leases.
func (l *Ledger) RevokeAgent(ctx context.Context, id, actor string, now time.Time) (err error) {
	defer wrap(&err, "revoking agent", id)
	return l.revoke(ctx, "agent", id, actor, now,
		"UPDATE agents SET revoked = $2 WHERE id = $1 AND revoked = 0", "UPDATE leases SET until = 0 WHERE agent = $1")
}

// RevokeClient refuses a client permanently and withdraws its leases.
func (l *Ledger) RevokeClient(ctx context.Context, name, actor string, now time.Time) (err error) {
	defer wrap(&err, "revoking client", name)
	return l.revoke(ctx, "client", name, actor, now,
		"UPDATE clients SET revoked = $2 WHERE name = $1 AND revoked = 0", "UPDATE leases SET until = 0 WHERE client = $1 AND agent = (SELECT agent FROM clients WHERE name = $1)",
		"UPDATE agents SET clients = clients - 1 WHERE id = (SELECT agent FROM clients WHERE name = $1)")
}

func (l *Ledger) revoke(ctx context.Context, what, name, actor string, now time.Time, mark string, then ...string) error {
	return l.update(ctx, func(tx *sql.Tx) error {
		// Lock out transactions that add or count leases. Existing leases are withdrawn
		// below, and later transactions see the revocation.
		if _, err := tx.ExecContext(ctx, "SELECT 1 FROM leaders"+l.lockClause("UPDATE")); err != nil {
			return err
		}
		if err := l.lockRuns(ctx, tx); err != nil {
			return err
		}
		r, err := tx.ExecContext(ctx, mark, name, toMillis(now))
		if err != nil {
			return err
		}
		if n, err := r.RowsAffected(); err != nil {
			return err
		} else if n == 0 {
			return fmt.Errorf("%s %s that is not already revoked: %w", what, name, ErrNotFound)
		}
		for _, text := range then {
			if _, err := tx.ExecContext(ctx, text, name); err != nil {
				return err
			}
		}
		return l.audit(ctx, tx, now, actor, "revoke "+what, name, "")
	})
}

// Lead is a lease that makes one coordinator the active one.
type Lead struct{ Epoch int64 }

const coordinator = "coordinator"

// Lead takes or renews the lead until now+ttl. It returns ErrRefused while another
// coordinator holds it. Each new holder gets a higher epoch, and transactions with an older
// epoch fail.
func (l *Ledger) Lead(ctx context.Context, holder string, ttl time.Duration, now time.Time) (lead Lead, err error) {
	defer wrap(&err, "taking the lead for", holder)
	err = l.update(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO leaders (role, holder, epoch, until) VALUES ($1, '', 0, 0) ON CONFLICT (role) DO NOTHING", coordinator); err != nil {
			return err
		}
		var had string
		var until int64
		err := tx.QueryRowContext(ctx, "SELECT holder, epoch, until FROM leaders WHERE role = $1"+l.lockClause("UPDATE"), coordinator).Scan(&had, &lead.Epoch, &until)
		if err != nil {
			return err
		}
		if had != holder {
			if until > toMillis(now) {
				return fmt.Errorf("%s has the lead: %w", had, ErrRefused)
			}
			lead.Epoch++
		}
		_, err = tx.ExecContext(ctx, "UPDATE leaders SET holder = $2, epoch = $3, until = $4 WHERE role = $1", coordinator, holder, lead.Epoch, toMillis(now.Add(ttl)))
		return err
	})
	if err != nil {
		return Lead{}, err
	}
	return lead, nil
}

// checkLead fails with ErrDeposed if another coordinator has taken over.
func (l *Ledger) checkLead(ctx context.Context, tx *sql.Tx, lead Lead) error {
	var epoch int64
	err := tx.QueryRowContext(ctx, "SELECT epoch FROM leaders WHERE role = $1"+l.lockClause("SHARE"), coordinator).Scan(&epoch)
	if err != nil {
		return orNotFound(err, "a coordinator")
	}
	if epoch != lead.Epoch {
		return ErrDeposed
	}
	return nil
}

// Resign releases the lead, so that another coordinator need not wait until it expires.
func (l *Ledger) Resign(ctx context.Context, lead Lead) (err error) {
	defer wrap(&err, "giving up the lead")
	_, err = l.write.ExecContext(ctx, "UPDATE leaders SET until = 0 WHERE role = $1 AND epoch = $2", coordinator, lead.Epoch)
	return err
}
