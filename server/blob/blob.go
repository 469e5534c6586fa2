// Package blob keeps weights, control variates and plans under the SHA-256 of what is
// in them: in files, or in an S3-compatible store. What it returns has been checked
// against its name.
package blob

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
)

// ErrNotFound says that there is no blob of that hash.
var ErrNotFound = errors.New("blob: not found")

// maxSize is that of the largest blob: it has to fit into memory, also of small machines.
const maxSize = 1 << 30

// Store keeps blobs. All methods may be called concurrently, also by several processes
// with the same store behind them.
type Store interface {
	// Put keeps data and returns its hash, in lower-case hex. When it returns, the
	// blob is there to stay. Putting the same again does no harm, and mends what has
	// become corrupt. The data is the caller's again afterwards.
	Put(ctx context.Context, data []byte) (hash string, err error)
	// Get returns a blob, or ErrNotFound. It is an error if what is stored is not
	// what the hash says. Nobody may change the data: others may have it too.
	Get(ctx context.Context, hash string) ([]byte, error)
	// Delete removes a blob. It is no error if there is none.
	Delete(ctx context.Context, hash string) error
}

// DeleteAll removes blobs that nobody needs any more. One that cannot be removed stays,
// which does no harm but for its size, and is told.
func DeleteAll(ctx context.Context, s Store, hashes []string, log *slog.Logger) {
	for _, hash := range hashes {
		if err := s.Delete(ctx, hash); err != nil {
			log.Warn("an old blob stays", "blob", hash, "error", err)
		}
	}
}

// IsHash reports whether s can be the name of a blob: 64 hex digits, in lower case.
func IsHash(s string) bool {
	if len(s) != hex.EncodedLen(sha256.Size) {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// named is for everything that comes from a caller: a name becomes part of a path.
func named(hash string) error {
	if !IsHash(hash) {
		return fmt.Errorf("blob: %.80q is no hash", hash)
	}
	return nil
}

func hashOf(data []byte) (string, error) {
	if len(data) > maxSize {
		return "", fmt.Errorf("blob: %d bytes are more than %d", len(data), maxSize)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

// verified returns data if it is what its name says.
func verified(hash string, data []byte) ([]byte, error) {
	got, err := hashOf(data)
	if err != nil {
		return nil, err
	}
	if got != hash {
		return nil, fmt.Errorf("blob: %s is corrupt: its %d bytes have the hash %s", hash, len(data), got)
	}
	return data, nil
}
