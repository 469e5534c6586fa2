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

// local is the name of the operator for whom the server writes a certificate on its own
// machine.
const local = "local"

// WriteOperator writes key.pem, cert.pem and ca.pem to a folder, with which the command
// line on this machine acts as an operator. It does nothing if the files are complete and
// the certificate is not due for renewal. Renewal does not change the key, so a concurrent
// reader never sees a certificate that does not match the key.
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
		// Do not overwrite a key that cannot be read: it may belong to another user.
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
