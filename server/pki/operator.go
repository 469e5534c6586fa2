package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"loadstar/internal/mtls"
)

// local is the name of the user for whom the server writes a certificate on its own machine.
const local = "local"

// WriteOperator writes key.pem, cert.pem and ca.pem to a folder and returns the
// certificate. With these files, the command line on this machine acts as the user
// local. It changes
// nothing if the files are complete and the certificate is neither due for renewal nor
// revoked. Renewal does not change the key, so a concurrent reader never sees a certificate
// that does not match the key. A revoked certificate is replaced together with its key.
func (a *Authority) WriteOperator(dir string, ttl time.Duration, revoked func(serial string) (bool, error)) (*x509.Certificate, error) {
	unlock, err := lock(a.dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	who := Identity{Role: Operator, ID: local}
	had, err := mtls.ReadFolder(dir)
	if err == nil {
		ended, err := revoked(Serial(had.Leaf))
		if err != nil {
			return nil, err
		}
		is, ok := identity(had.Leaf)
		if ok && is == who && a.current(&had) && !mtls.Due(had.Leaf, a.now()) && !ended {
			return had.Leaf, nil
		}
		if ended {
			had.Key = nil
		}
	}
	if had.Key == nil {
		// Do not overwrite an unreadable key, which may belong to another user.
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("the operator's key: %w", err)
		}
		if had.Key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			return nil, err
		}
	}
	has := a.has.Load()
	leaf, err := a.issue(has.newest(a.now()), had.Key.Public(), who, ttl)
	if err != nil {
		return nil, err
	}
	roots := has.roots()
	return leaf, mtls.WriteFolder(dir, &mtls.Credentials{Key: had.Key, Leaf: leaf, Root: roots[0], More: roots[1:]})
}

// current reports whether credentials come from the newest issuer and trust the right roots.
func (a *Authority) current(c *mtls.Credentials) bool {
	has := a.has.Load()
	by := has.newest(a.now()).chain[0]
	return c.Leaf.CheckSignatureFrom(by) == nil &&
		slices.EqualFunc(has.roots(), c.Roots(), (*x509.Certificate).Equal)
}
