// Package blob implements a content-addressed store for weights, control variates and plans, in
// files or in an S3-compatible store. The name of a blob is its SHA-256, which is verified on
// every read.
package blob

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
)

// ErrNotFound means that no blob has the given hash.
var ErrNotFound = errors.New("blob: not found")

// ErrDamaged means that the content of a blob does not match its hash.
var ErrDamaged = errors.New("is corrupt")

// maxSize is the size of the largest blob. A blob must fit into the memory of a small
// machine.
const maxSize = 1 << 30

// Store stores blobs. All methods are safe for concurrent use, even by several processes
// that share a store.
type Store interface {
	// Put stores data and returns its hash in lower-case hex. When it returns, the blob
	// is durable. Put is idempotent and repairs a corrupt blob. It does not retain data.
	Put(ctx context.Context, data []byte) (hash string, err error)
	// Get returns a blob, or ErrNotFound, or an error if the content does not match the
	// hash. The caller must not modify the data, because other callers may share it.
	Get(ctx context.Context, hash string) ([]byte, error)
	// Delete removes a blob. It also succeeds if the blob does not exist.
	Delete(ctx context.Context, hash string) error
}

// DeleteAll removes blobs that are no longer needed. It logs errors and continues, because a
// remaining blob only takes up space.
func DeleteAll(ctx context.Context, s Store, hashes []string, log *slog.Logger) {
	for _, hash := range hashes {
		if err := s.Delete(ctx, hash); err != nil {
			log.Warn("cannot delete an old blob", "blob", hash, "error", err)
		}
	}
}

// IsHash reports whether s can be the name of a blob, which has 64 lower-case hex digits.
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

// checkHash returns an error unless a hash from a caller is valid. The check is necessary
// because the hash becomes part of a path.
func checkHash(hash string) error {
	if !IsHash(hash) {
		return fmt.Errorf("blob: %.80q is not a hash", hash)
	}
	return nil
}

func hashOf(data []byte) (string, error) {
	if len(data) > maxSize {
		return "", fmt.Errorf("blob: %d bytes exceed the limit of %d", len(data), maxSize)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

// verified returns data after checking its hash.
func verified(hash string, data []byte) ([]byte, error) {
	got, err := hashOf(data)
	if err != nil {
		return nil, err
	}
	if got != hash {
		return nil, fmt.Errorf("blob: %s %w: its %d bytes have the hash %s", hash, ErrDamaged, len(data), got)
	}
	return data, nil
}
