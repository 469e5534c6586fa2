// Package pki manages the server's certificates: an authority with one root, the server's
// own certificate, and the identity of the peer of a connection. Agents' certificates
// are valid for days. This package does not revoke them: the handler of a call asks the
// ledger whether the caller or its certificate is revoked.
package pki

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"loadstar/internal/filelock"
	"loadstar/internal/jointoken"
	"loadstar/internal/mtls"
)

const (
	rootFile = "root.pem"
	lockFile = "lock"

	rootYears = 20
	// skew is how far a peer's clock may be behind the server's clock. Certificates are
	// valid from that much before their creation.
	skew = 5 * time.Minute
	// maxCSR limits the size of a certificate request in bytes. It is many times the size
	// of a request without names.
	maxCSR = 1 << 13
)

// Authority signs certificates. It is safe for concurrent use.
type Authority struct {
	dir  string
	key  *ecdsa.PrivateKey
	root *x509.Certificate
	now  func() time.Time
}

// Open opens the authority in a folder. It creates the root on first use; if several
// processes do so at once, only one creates it.
func Open(dir string) (*Authority, error) {
	a, err := read(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return a, err
	}
	if err := mtls.MakeDir(dir); err != nil {
		return nil, err
	}
	unlock, err := lock(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	// Another process may have created the root before this one got the lock.
	if a, err := read(dir); !errors.Is(err, fs.ErrNotExist) {
		return a, err
	}
	if err := makeRoot(filepath.Join(dir, rootFile), time.Now()); err != nil {
		return nil, fmt.Errorf("creating the root certificate: %w", err)
	}
	return read(dir)
}

func read(dir string) (*Authority, error) {
	path := filepath.Join(dir, rootFile)
	text, err := mtls.ReadPrivate(path)
	if err != nil {
		return nil, err
	}
	b, err := mtls.Parse(text)
	switch {
	case err != nil:
	case b.Key == nil || len(b.Certificates) != 1:
		err = errors.New("the file must hold a key and a certificate")
	case !b.Key.PublicKey.Equal(b.Certificates[0].PublicKey):
		err = errors.New("its certificate belongs to another key")
	case !b.Certificates[0].IsCA:
		err = errors.New("its certificate is not a root certificate")
	default:
		return &Authority{dir: dir, key: b.Key, root: b.Certificates[0], now: time.Now}, nil
	}
	return nil, fmt.Errorf("%s: %w; restore it from a backup, because agents trust no other root", path, err)
}

// lock locks the folder. It waits until no other process is writing files in the folder.
func lock(dir string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := filelock.Wait(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("locking %s: %w", f.Name(), err)
	}
	return func() { f.Close() }, nil // closing releases the lock
}

func makeRoot(path string, now time.Time) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	number, err := serial()
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: number,
		// The name is unique, so that people can tell two roots apart.
		Subject:               pkix.Name{CommonName: fmt.Sprintf("Loadstar root %032x", number)[:len("Loadstar root ")+8]},
		NotBefore:             now.Add(-skew),
		NotAfter:              now.AddDate(rootYears, 0, 0),
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	root, err := x509.ParseCertificate(der)
	if err != nil {
		return err
	}
	text, err := (&mtls.Bundle{Key: key, Certificates: []*x509.Certificate{root}}).PEM()
	if err != nil {
		return err
	}
	return mtls.WritePrivate(path, text)
}

// serial returns a random serial number of 128 bits.
func serial() (*big.Int, error) {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nil, err
	}
	return new(big.Int).SetBytes(b[:]), nil
}

// Pin returns the pin of the root, which join tokens contain and agents check.
func (a *Authority) Pin() string { return jointoken.PinOf(a.root.Raw) }

// Sign returns a chain of a certificate for who and the root, and the certificate's expiry:
// after ttl, but not after the root's expiry. The signature of the request proves that the
// sender has the key. The names in the request are ignored.
func (a *Authority) Sign(csrDER []byte, who Identity, ttl time.Duration) (chainDER [][]byte, expires time.Time, err error) {
	key, err := requested(csrDER)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("certificate request: %w", err)
	}
	leaf, err := a.issue(key, who, ttl)
	if err != nil {
		return nil, time.Time{}, err
	}
	return [][]byte{leaf.Raw, a.root.Raw}, leaf.NotAfter, nil
}

// requested returns the public key in a certificate request after checking the request's
// signature.
func requested(csrDER []byte) (any, error) {
	if len(csrDER) > maxCSR {
		return nil, fmt.Errorf("it has %d bytes, want at most %d", len(csrDER), maxCSR)
	}
	csr, err := x509.ParseCertificateRequest(csrDER)
	if err != nil {
		return nil, err
	}
	// Check the key type first, because some signatures are expensive to verify.
	switch key := csr.PublicKey.(type) {
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P256() {
			return nil, fmt.Errorf("its ECDSA key is on %s, want P-256", key.Curve.Params().Name)
		}
	case ed25519.PublicKey:
	default:
		return nil, fmt.Errorf("its key is %v, want ECDSA on P-256 or Ed25519", csr.PublicKeyAlgorithm)
	}
	return csr.PublicKey, csr.CheckSignature()
}

// issue creates a client certificate for a public key and an identity.
func (a *Authority) issue(key any, who Identity, ttl time.Duration) (*x509.Certificate, error) {
	if err := who.check(); err != nil {
		return nil, err
	}
	return a.sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: who.ID}, // for people to read; programs read the URI
		URIs:        []*url.URL{who.uri()},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, key, ttl)
}

// sign adds the fields that all certificates have in common to a template, and signs it.
func (a *Authority) sign(template *x509.Certificate, key any, ttl time.Duration) (*x509.Certificate, error) {
	now := a.now()
	if ttl <= 0 {
		return nil, fmt.Errorf("a certificate cannot be valid for %v", ttl)
	}
	if !now.Before(a.root.NotAfter) {
		return nil, fmt.Errorf("the root certificate expired on %s", a.root.NotAfter.Format(time.DateOnly))
	}
	number, err := serial()
	if err != nil {
		return nil, err
	}
	template.SerialNumber = number
	template.NotBefore, template.NotAfter = now.Add(-skew), now.Add(ttl)
	if template.NotAfter.After(a.root.NotAfter) {
		template.NotAfter = a.root.NotAfter
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.BasicConstraintsValid = true // not a certificate authority
	der, err := x509.CreateCertificate(rand.Reader, template, a.root, key, a.key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}
