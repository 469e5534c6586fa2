package directory

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"loadstar/server/sqlstore"
)

// Agent is an agent that joins.
type Agent struct {
	ID, Name string
	Expires  time.Time // expiry of the agent's certificate
	// Credential identifies the agent's certificate. It is empty if unknown.
	Credential Credential
}

// Credential identifies one of an agent's certificates.
type Credential struct {
	Serial string
	Issued time.Time
}

// Join uses a token once and adds an agent. It returns sqlstore.ErrRefused if the token is
// unknown, used up, expired or revoked.
func (d *Directory) Join(ctx context.Context, hash []byte, a Agent, now time.Time) (err error) {
	defer sqlstore.Wrap(&err, "adding agent", a.ID)
	return d.store.Update(ctx, func(tx *sqlstore.Txn) error {
		t, err := useToken(ctx, tx, hash, now)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO agents (id, name, joined, expires, seen, token, most_clients, pattern, serial, issued, switched)
			VALUES ($1, $2, $3, $4, $3, $5, $6, $7, $8, $9, $3)`,
			a.ID, a.Name, sqlstore.ToMillis(now), sqlstore.ToMillis(a.Expires), t.ID, t.Clients, t.Pattern, a.Credential.Serial, sqlstore.ToMillis(a.Credential.Issued))
		if err != nil {
			return err
		}
		return d.log.Record(ctx, tx, now, "agent "+a.ID, "join", a.ID, joinDetail(a, t))
	})
}

// Rejoin uses a token once and issues a new certificate to an agent that has joined before.
// The agent keeps its clients, and the limits of the new token apply to further clients. The
// caller must have checked that the agent has the key of its last used certificate.
func (d *Directory) Rejoin(ctx context.Context, hash []byte, a Agent, now time.Time) (err error) {
	defer sqlstore.Wrap(&err, "adding agent", a.ID, "again")
	return d.store.Update(ctx, func(tx *sqlstore.Txn) error {
		t, err := useToken(ctx, tx, hash, now)
		if err != nil {
			return err
		}
		if err := checkAllowed(ctx, tx, a.ID); err != nil {
			return err
		}
		// The old certificate stays valid until the agent uses the new one, because the
		// agent may never get the answer.
		_, err = tx.ExecContext(ctx, "UPDATE agents SET name = $2, expires = $3, token = $4, most_clients = $5, pattern = $6, pending = $7 WHERE id = $1",
			a.ID, a.Name, sqlstore.ToMillis(a.Expires), t.ID, t.Clients, t.Pattern, a.Credential.Serial)
		if err != nil {
			return err
		}
		return d.log.Record(ctx, tx, now, "agent "+a.ID, "join again", a.ID, joinDetail(a, t))
	})
}

func joinDetail(a Agent, t Token) string {
	return strings.TrimPrefix(a.Name+", token "+t.ID, ", ")
}

// Caller is the ledger's data about a calling agent.
type Caller struct {
	ID      string
	Revoked bool
	// Hosts reports whether the agent has any clients. Copied reports whether two machines
	// were seen with its identity.
	Hosts, Copied bool
	// Limited reports whether the agent's token limits the number of its clients. If so, the
	// agent is not a region.
	Limited bool

	used              Credential // the newest certificate that it has used
	since             time.Time  // time of its first use
	previous, pending string     // serial numbers of the previous certificate and of a certificate that is not used yet
}

// Uses reports whether the agent hosts clients, and may call with a certificate until the agent
// is revoked or uses another certificate.
func (c Caller) Uses(serial string) bool {
	return c.used.Serial == serial && c.Hosts && !c.Revoked && !c.Copied
}

// Caller looks up an agent. It returns sqlstore.ErrNotFound if the agent has not joined.
func (d *Directory) Caller(ctx context.Context, id string) (c Caller, err error) {
	defer sqlstore.Wrap(&err, "looking up agent", id)
	c, err = d.callers.Get(ctx, id)
	if err == nil && c.ID == "" {
		err = sqlstore.OrNotFound(sql.ErrNoRows, "agent "+id)
	}
	return c, err
}

// callersOf looks up agents. It returns an empty Caller for each unknown agent.
func (d *Directory) callersOf(ctx context.Context, ids []string) ([]Caller, error) {
	has := make(map[string]Caller, len(ids))
	// Do not use EXISTS here, because PostgreSQL would then scan the whole table.
	err := sqlstore.QueryIn(ctx, d.store, func(r *sql.Rows) error {
		var c Caller
		var revoked, hosts, copied, most, issued, since int64
		err := r.Scan(&c.ID, &revoked, &hosts, &copied, &most, &c.used.Serial, &issued, &since, &c.previous, &c.pending)
		c.Revoked, c.Hosts, c.Copied, c.Limited, c.used.Issued, c.since = revoked != 0, hosts != 0, copied != 0, most != 0, sqlstore.FromMillis(issued), sqlstore.FromMillis(since)
		has[c.ID] = c
		return err
	}, `SELECT a.id, a.revoked, COALESCE((SELECT 1 FROM clients c WHERE c.agent = a.id LIMIT 1), 0), a.copied, a.most_clients, a.serial, a.issued, a.switched, a.previous, a.pending
		FROM agents a WHERE a.id IN `, nil, ids)
	all := make([]Caller, len(ids))
	for i, id := range ids {
		all[i] = has[id]
	}
	return all, err
}

// CredentialState is the state of the certificate that a call presents. An agent renews with
// the certificate that it used last, so its certificates form a chain. A certificate outside
// this chain shows that the agent's files were copied.
type CredentialState int

const (
	// InUse is the certificate that the agent used last.
	InUse CredentialState = iota
	// Issued means that the agent uses the certificate for the first time (see Switch).
	Issued
	// Replaced means that the certificate was in use until recently. A call that began with
	// it may still be in progress.
	Replaced
	// Copied means that the certificate was replaced long ago, or was issued in parallel with
	// the certificate in use.
	Copied
)

// replacedFor is the time for which calls with the previous certificate are accepted. It is
// longer than the server's limit for a call.
const replacedFor = 15 * time.Minute

// Credential returns the state of the certificate that a call presents.
func (c Caller) Credential(x Credential, now time.Time) CredentialState {
	switch {
	case x.Serial == c.used.Serial:
		return InUse
	case c.used.Serial == "": // the agent joined before serials were stored
		return Issued
	case x.Serial == c.pending:
		return Issued
	case x.Serial == c.previous:
		if now.Before(c.since.Add(replacedFor)) {
			return Replaced
		}
	case c.pending != "" && !x.Issued.Before(c.used.Issued):
		// The agent renewed twice, because an answer was lost or late, and the ledger
		// stored the renewals in reverse order.
		return Issued
	}
	return Copied
}

// Renewed stores the agent's next certificate. It adds no audit event, because renewals are
// routine.
func (d *Directory) Renewed(ctx context.Context, id string, next Credential, expires time.Time) (err error) {
	defer sqlstore.Wrap(&err, "storing the renewal of agent", id)
	return d.store.Update(ctx, func(tx *sqlstore.Txn) error {
		if err := checkAllowed(ctx, tx, id); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "UPDATE agents SET expires = $2, pending = $3 WHERE id = $1", id, sqlstore.ToMillis(expires), next.Serial)
		return err
	})
}

// Switch records that an agent uses a new certificate from now on. It returns false if the
// agent has switched since its lookup.
func (d *Directory) Switch(ctx context.Context, c Caller, to Credential, now time.Time) (switched bool, err error) {
	defer sqlstore.Wrap(&err, "storing the certificate of agent", c.ID)
	r, err := d.store.Write.ExecContext(ctx, "UPDATE agents SET previous = serial, serial = $2, issued = $3, switched = $4, pending = '' WHERE id = $1 AND serial = $5",
		c.ID, to.Serial, sqlstore.ToMillis(to.Issued), sqlstore.ToMillis(now), c.used.Serial)
	if err != nil {
		return false, err
	}
	n, err := r.RowsAffected()
	return n > 0, err
}

// NoteCopy records that two machines were seen with an agent's identity. Only the first time is
// stored.
func (d *Directory) NoteCopy(ctx context.Context, c Caller, x Credential, now time.Time) (first bool, err error) {
	defer sqlstore.Wrap(&err, "storing that the identity was copied of agent", c.ID)
	err = d.store.Update(ctx, func(tx *sqlstore.Txn) error {
		r, err := tx.ExecContext(ctx, "UPDATE agents SET copied = $2 WHERE id = $1 AND copied = 0", c.ID, sqlstore.ToMillis(now))
		if err != nil {
			return err
		}
		n, err := r.RowsAffected()
		if first = n > 0; err != nil || !first {
			return err
		}
		return d.log.Record(ctx, tx, now, "agent "+c.ID, "identity copied", c.ID, fmt.Sprintf("certificate %s was presented, %s is in use", x.Serial, c.used.Serial))
	})
	return first, err
}

// checkAllowed returns an error if an agent is unknown or revoked.
func checkAllowed(ctx context.Context, tx *sqlstore.Txn, id string) error {
	var revoked int64
	if err := tx.QueryRowContext(ctx, "SELECT revoked FROM agents WHERE id = $1", id).Scan(&revoked); err != nil {
		return sqlstore.OrNotFound(err, "agent "+id)
	}
	if revoked != 0 {
		return fmt.Errorf("agent %s is revoked: %w", id, sqlstore.ErrRefused)
	}
	return nil
}
