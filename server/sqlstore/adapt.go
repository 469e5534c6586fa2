package sqlstore

import (
	"context"
	"database/sql"
	"encoding/hex"
)

// identifyTokens gives an id to tokens that were created before tokens had one.
func (s *Store) identifyTokens(ctx context.Context) error {
	var hashes [][]byte
	err := Query(ctx, s.Write, func(r *sql.Rows) error {
		var hash []byte
		err := r.Scan(&hash)
		hashes = append(hashes, hash)
		return err
	}, "SELECT hash FROM tokens WHERE id = ''")
	for _, hash := range hashes {
		if err == nil {
			_, err = s.Write.ExecContext(ctx, "UPDATE tokens SET id = $2 WHERE hash = $1", hash, TokenID(hash))
		}
	}
	return err
}

// TokenID returns the name of a token for people. It is the beginning of the hash, so it
// gives no access.
func TokenID(hash []byte) string { return hex.EncodeToString(hash[:min(len(hash), 8)]) }
