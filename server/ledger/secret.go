package ledger

import (
	"context"
	"crypto/rand"
)

const secretSize = 32

// Secret returns a random secret that all processes with this database share. The first one
// that asks creates it.
func (l *Ledger) Secret(ctx context.Context, name string) (value []byte, err error) {
	defer wrap(&err, "reading secret", name)
	fresh := make([]byte, secretSize)
	_, _ = rand.Read(fresh) // never fails
	if _, err := l.write.ExecContext(ctx, "INSERT INTO secrets (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING", name, fresh); err != nil {
		return nil, err
	}
	err = l.write.QueryRowContext(ctx, "SELECT value FROM secrets WHERE name = $1", name).Scan(&value)
	return value, err
}
