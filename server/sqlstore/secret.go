package sqlstore

import (
	"context"
	"crypto/rand"
)

// SecretSize is the length of secrets in bytes.
const SecretSize = 32

// Secret returns a random secret that all processes with this database share. The first process
// that asks for the secret creates it.
func (s *Store) Secret(ctx context.Context, name string) (value []byte, err error) {
	defer Wrap(&err, "reading secret", name)
	fresh := make([]byte, SecretSize)
	_, _ = rand.Read(fresh) // never fails
	if _, err := s.Write.ExecContext(ctx, "INSERT INTO secrets (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING", name, fresh); err != nil {
		return nil, err
	}
	err = s.Write.QueryRowContext(ctx, "SELECT value FROM secrets WHERE name = $1", name).Scan(&value)
	return value, err
}
