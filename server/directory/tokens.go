package directory

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"loadstar/server/sqlstore"
)

// Token is a join token without its secret.
type Token struct {
	ID, Note, Actor                 string // ID is the result of TokenID for the hash
	Created, Expires, Used, Revoked time.Time
	Uses, Joined                    int64 // numbers of agents that may still join, and that have joined
	// Clients limits the clients of each agent that joins with the token. 0 means that
	// only the server's limit applies. The clients' names must match Pattern, as in
	// path.Match. An empty pattern matches every name.
	Clients int64
	Pattern string
}

const tokenColumns = "id, note, actor, created, expires, used, revoked, uses, joined, clients, pattern"

func scanToken(scan func(...any) error) (t Token, err error) {
	var created, expires, used, revoked int64
	err = scan(&t.ID, &t.Note, &t.Actor, &created, &expires, &used, &revoked, &t.Uses, &t.Joined, &t.Clients, &t.Pattern)
	t.Created, t.Expires, t.Used, t.Revoked = sqlstore.FromMillis(created), sqlstore.FromMillis(expires), sqlstore.FromMillis(used), sqlstore.FromMillis(revoked)
	return t, err
}

// TokenID returns the id under which a token is displayed. It is a prefix of the token's hash,
// so it gives no access.
func TokenID(hash []byte) string { return hex.EncodeToString(hash[:min(len(hash), 8)]) }

// AddToken adds a token with which t.Uses agents can join until it expires.
func (d *Directory) AddToken(ctx context.Context, hash []byte, t Token, actor string, now time.Time) (err error) {
	defer sqlstore.Wrap(&err, "adding a token")
	id := TokenID(hash)
	detail := fmt.Sprintf("agents %d, until %s", t.Uses, t.Expires.UTC().Format(time.RFC3339))
	if t.Clients > 0 {
		detail += fmt.Sprintf(", clients %d", t.Clients)
	}
	if t.Pattern != "" {
		detail += ", names " + t.Pattern
	}
	if t.Note != "" {
		detail += ": " + t.Note
	}
	return d.store.Update(ctx, func(tx *sqlstore.Txn) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO tokens (hash, id, note, uses, expires, created, actor, clients, pattern) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
			hash, id, t.Note, t.Uses, sqlstore.ToMillis(t.Expires), sqlstore.ToMillis(now), actor, t.Clients, t.Pattern)
		if err != nil {
			return err
		}
		return d.log.Record(ctx, tx, now, actor, "create token", id, detail)
	})
}

// Tokens returns up to limit tokens, newest first, starting after the token with the given
// id.
func (d *Directory) Tokens(ctx context.Context, after string, limit int) (all []Token, err error) {
	defer sqlstore.Wrap(&err, "reading tokens")
	text, args := "SELECT "+tokenColumns+" FROM tokens", []any{limit}
	if after != "" {
		last, err := scanToken(d.store.DB.QueryRowContext(ctx, "SELECT "+tokenColumns+" FROM tokens WHERE id = $1 LIMIT 1", after).Scan)
		if err != nil {
			return nil, sqlstore.OrNotFound(err, "token "+after)
		}
		text, args = text+" WHERE created < $2 OR created = $2 AND id < $3", append(args, sqlstore.ToMillis(last.Created), after)
	}
	err = sqlstore.Query(ctx, d.store.DB, func(r *sql.Rows) error {
		t, err := scanToken(r.Scan)
		all = append(all, t)
		return err
	}, text+" ORDER BY created DESC, id DESC LIMIT $1", args...)
	return all, err
}

// RevokeToken revokes a token, so that no further agent can join with it. Exactly one unrevoked
// token's id must begin with the prefix.
func (d *Directory) RevokeToken(ctx context.Context, prefix, actor string, now time.Time) (t Token, err error) {
	defer sqlstore.Wrap(&err, "revoking token", prefix)
	err = d.store.Update(ctx, func(tx *sqlstore.Txn) error {
		var found []Token
		err := sqlstore.Query(ctx, tx, func(r *sql.Rows) error {
			t, err := scanToken(r.Scan)
			found = append(found, t)
			return err
		}, "SELECT "+tokenColumns+" FROM tokens WHERE revoked = 0 AND substr(id, 1, $2) = $1 LIMIT 2", prefix, len(prefix))
		switch {
		case err != nil:
			return err
		case prefix == "" || len(found) == 0:
			return fmt.Errorf("token %s that is not already revoked: %w", prefix, sqlstore.ErrNotFound)
		case len(found) > 1:
			return fmt.Errorf("several tokens begin with %s; give more of the id: %w", prefix, sqlstore.ErrRefused)
		}
		t = found[0]
		// A join also changes this row, so either the join or the revocation comes first.
		err = tx.QueryRowContext(ctx, "UPDATE tokens SET revoked = $2 WHERE id = $1 RETURNING joined", t.ID, sqlstore.ToMillis(now)).Scan(&t.Joined)
		if err != nil {
			return err
		}
		t.Revoked = now
		return d.log.Record(ctx, tx, now, actor, "revoke token", t.ID, strings.TrimSuffix(fmt.Sprintf("%d agents joined with it: %s", t.Joined, t.Note), ": "))
	})
	return t, err
}

// CheckToken returns sqlstore.ErrRefused with the reason if agents cannot join with a token. It
// writes nothing, so a stranger's wrong token costs little.
func (d *Directory) CheckToken(ctx context.Context, hash []byte, now time.Time) (err error) {
	defer sqlstore.Wrap(&err, "looking up a token")
	return usable(d.store.DB.QueryRowContext(ctx, "SELECT "+tokenColumns+" FROM tokens WHERE hash = $1", hash), now)
}

// usable returns an error with the reason why a token cannot be used, or nil. Strangers cannot
// learn the reason, because only the holder of a token can ask about it.
func usable(row *sql.Row, now time.Time) error {
	t, err := scanToken(row.Scan)
	const form = "2006-01-02 15:04 MST"
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("this server does not know the token: %w", sqlstore.ErrRefused)
	case err != nil:
		return err
	case !t.Revoked.IsZero():
		return fmt.Errorf("the token was revoked at %s: %w", t.Revoked.UTC().Format(form), sqlstore.ErrRefused)
	case t.Uses <= 0 && !t.Used.IsZero():
		return fmt.Errorf("the token is used up: the last agent joined with it at %s: %w", t.Used.UTC().Format(form), sqlstore.ErrRefused)
	case t.Uses <= 0:
		return fmt.Errorf("the token is used up: %w", sqlstore.ErrRefused)
	case !t.Expires.After(now):
		return fmt.Errorf("the token expired at %s, and the server's clock shows %s: %w", t.Expires.UTC().Format(form), now.UTC().Format(form), sqlstore.ErrRefused)
	}
	return nil
}

// useToken counts one use of a token.
func useToken(ctx context.Context, tx *sqlstore.Txn, hash []byte, now time.Time) (Token, error) {
	t, err := scanToken(tx.QueryRowContext(ctx, `UPDATE tokens SET uses = uses - 1, joined = joined + 1, used = $2
		WHERE hash = $1 AND uses > 0 AND expires > $2 AND revoked = 0 RETURNING `+tokenColumns, hash, sqlstore.ToMillis(now)).Scan)
	if !errors.Is(err, sql.ErrNoRows) {
		return t, err
	}
	if err := usable(tx.QueryRowContext(ctx, "SELECT "+tokenColumns+" FROM tokens WHERE hash = $1", hash), now); err != nil {
		return t, err
	}
	return t, fmt.Errorf("the token cannot be used now: %w", sqlstore.ErrRefused)
}
