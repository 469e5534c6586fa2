// Package pki is the server's certificates: an authority of one root that signs them,
// the server's own, and who is on the other end of a connection. Agents' certificates
// live for days, and nothing here takes one back: whoever answers a call asks the
// ledger whether its caller was revoked.
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

	"golang.org/x/sys/unix"

	"loadstar/internal/jointoken"
	"loadstar/internal/mtls"
)

const (
	rootFile = "root.pem"
	lockFile = "lock"

	rootYears = 20
	// skew is how far a clock may be behind the server's.
	skew = 5 * time.Minute
	// maxCSR is many times what a request without names takes.
	maxCSR = 1 << 13
)

// Authority signs certificates. It is safe for concurrent use.
type Authority struct {
	dir  string
	key  *ecdsa.PrivateKey
	root *x509.Certificate
	now  func() time.Time
}

// Open opens the authority in a folder, whose root it makes on first use. Of several
// processes that do so at once, one makes it.
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
	// Another process may have made it meanwhile.
	if a, err := read(dir); !errors.Is(err, fs.ErrNotExist) {
		return a, err
	}
	if err := makeRoot(filepath.Join(dir, rootFile), time.Now()); err != nil {
		return nil, fmt.Errorf("making a root certificate: %w", err)
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
		err = errors.New("it should hold a key and a certificate")
	case !b.Key.PublicKey.Equal(b.Certificates[0].PublicKey):
		err = errors.New("its certificate is of another key")
	case !b.Certificates[0].IsCA:
		err = errors.New("its certificate is not a root's")
	default:
		return &Authority{dir: dir, key: b.Key, root: b.Certificates[0], now: time.Now}, nil
	}
	return nil, fmt.Errorf("%s: %w; put it back from a copy, because agents trust no other root", path, err)
}

// lock waits until no other process is making or renewing files of the folder.
func lock(dir string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err == nil {
			return func() { f.Close() }, nil // which unlocks it
		}
		if !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("locking %s: %w", f.Name(), err)
		}
	}
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
		// A name of its own, for people who have to tell two roots apart.
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

// serial returns a random number of 128 bits.
func serial() (*big.Int, error) {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nil, err
	}
	return new(big.Int).SetBytes(b[:]), nil
}

// Pin returns what join tokens say of the root, and agents know it by.
func (a *Authority) Pin() string { return jointoken.PinOf(a.root.Raw) }

// Sign returns a certificate for a key, followed by the root, and when it expires:
// after ttl, or with the root. The request proves that its sender has the key; its
// names are ignored, and the certificate says who.
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

// requested returns the public key of a request that is signed with it.
func requested(csrDER []byte) (any, error) {
	if len(csrDER) > maxCSR {
		return nil, fmt.Errorf("it has %d bytes, and may have %d", len(csrDER), maxCSR)
	}
	csr, err := x509.ParseCertificateRequest(csrDER)
	if err != nil {
		return nil, err
	}
	// Before the signature, which is costly to check for some keys.
	switch key := csr.PublicKey.(type) {
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P256() {
			return nil, fmt.Errorf("its ECDSA key is on %s, and has to be on P-256", key.Curve.Params().Name)
		}
	case ed25519.PublicKey:
	default:
		return nil, fmt.Errorf("its key is %v, and has to be ECDSA on P-256 or Ed25519", csr.PublicKeyAlgorithm)
	}
	return csr.PublicKey, csr.CheckSignature()
}

// issue makes a client's certificate.
func (a *Authority) issue(key any, who Identity, ttl time.Duration) (*x509.Certificate, error) {
	if err := who.check(); err != nil {
		return nil, err
	}
	return a.sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: who.ID}, // for people; programs read the URI
		URIs:        []*url.URL{who.uri()},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, key, ttl)
}

// sign gives a certificate everything that all have in common.
func (a *Authority) sign(template *x509.Certificate, key any, ttl time.Duration) (*x509.Certificate, error) {
	now := a.now()
	if ttl <= 0 {
		return nil, fmt.Errorf("a certificate cannot live for %v", ttl)
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
	template.BasicConstraintsValid = true // and no authority
	der, err := x509.CreateCertificate(rand.Reader, template, a.root, key, a.key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}
