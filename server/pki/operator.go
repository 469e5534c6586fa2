package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"loadstar/internal/mtls"
)

// local is the operator whose certificate the server writes for its own machine.
const local = "local"

// WriteOperator keeps a folder with key.pem, cert.pem and ca.pem, by which the command
// line on this machine is an operator. Where these are whole and not due to be
// renewed, it does nothing. A renewed certificate is of the same key, so that no
// reader finds a pair that does not fit.
func (a *Authority) WriteOperator(dir string, ttl time.Duration) error {
	unlock, err := lock(a.dir)
	if err != nil {
		return err
	}
	defer unlock()
	who := Identity{Role: Operator, ID: local}
	had, err := mtls.ReadFolder(dir)
	if err == nil && had.Root.Equal(a.root) && !mtls.Due(had.Leaf, a.now()) {
		if is, ok := identity(had.Leaf); ok && is == who {
			return nil
		}
	}
	if had.Key == nil {
		// A key that is there and cannot be read may be somebody else's.
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("the operator's key: %w", err)
		}
		if had.Key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			return err
		}
	}
	leaf, err := a.issue(had.Key.Public(), who, ttl)
	if err != nil {
		return err
	}
	return mtls.WriteFolder(dir, &mtls.Credentials{Key: had.Key, Leaf: leaf, Root: a.root})
}
