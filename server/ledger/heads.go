package ledger

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"

	"loadstar/internal/head"
	"loadstar/server/sqlstore"
)

// headSecret is the name of the secret that is the seed of the key for heads.
const headSecret = "heads"

// HeadKey returns the public key of the heads that this ledger signs.
func (l *Ledger) HeadKey(ctx context.Context) (ed25519.PublicKey, error) {
	seed, err := l.Store.Secret(ctx, headSecret)
	if err != nil {
		return nil, err
	}
	return headKey(seed).Public().(ed25519.PublicKey), nil
}

func headKey(seed []byte) ed25519.PrivateKey { return ed25519.NewKeyFromSeed(seed[:ed25519.SeedSize]) }

// addHead signs the head of a version that is being added. It does nothing if the run has a
// head of this version or a newer one, because a region can receive tasks for an older version
// after those for a newer one.
func addHead(ctx context.Context, tx *sqlstore.Txn, run string, version int64, weights string) error {
	fresh := make([]byte, sqlstore.SecretSize)
	_, _ = rand.Read(fresh) // never fails
	if _, err := tx.ExecContext(ctx, "INSERT INTO secrets (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING", headSecret, fresh); err != nil {
		return err
	}
	var seed []byte
	if err := tx.QueryRowContext(ctx, "SELECT value FROM secrets WHERE name = $1", headSecret).Scan(&seed); err != nil {
		return err
	}
	if len(seed) != sqlstore.SecretSize {
		return fmt.Errorf("%w: the key of heads has %d bytes", sqlstore.ErrDamaged, len(seed))
	}
	key := headKey(seed)
	h, last := head.Head{Run: run, Version: version, Weights: weights, Previous: []byte{}}, head.Head{Run: run}
	err := tx.QueryRowContext(ctx, selectHeads+" WHERE run = $1 ORDER BY version DESC LIMIT 1", run).Scan(&last.Version, &last.Weights, &last.Previous, &last.Signature)
	switch {
	case errors.Is(err, sql.ErrNoRows):
	case err != nil:
		return err
	case !last.Valid(key.Public().(ed25519.PublicKey)):
		// A head after a damaged head would look like a fork.
		return fmt.Errorf("%w: table heads, row %s %d: it does not match its signature", sqlstore.ErrDamaged, run, last.Version)
	case last.Version >= version:
		return nil
	default:
		h.Previous = last.Hash()
	}
	h.Sign(key)
	_, err = tx.ExecContext(ctx, "INSERT INTO heads (run, version, weights, previous, signature) VALUES ($1, $2, $3, $4, $5)", run, version, weights, h.Previous, h.Signature)
	return err
}

const selectHeads = "SELECT version, weights, previous, signature FROM heads"

// Heads returns up to limit heads of a run after a version, oldest first.
func (l *Ledger) Heads(ctx context.Context, run string, after int64, limit int) (all []head.Head, err error) {
	defer sqlstore.Wrap(&err, "reading the heads of run", run)
	err = sqlstore.Query(ctx, l.Store.DB, func(r *sql.Rows) error {
		h := head.Head{Run: run}
		err := r.Scan(&h.Version, &h.Weights, &h.Previous, &h.Signature)
		all = append(all, h)
		return err
	}, selectHeads+" WHERE run = $1 AND version > $2 ORDER BY version LIMIT $3", run, after, limit)
	return all, err
}
