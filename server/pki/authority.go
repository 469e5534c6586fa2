// Package pki manages the server's certificates. It contains an authority with an offline root
// and an online issuer, issues the server's own certificate, and identifies the peers of
// connections. Agents' certificates are valid for days. This package does not revoke
// certificates. The handler of a call asks the ledger whether the caller or its certificate is
// revoked.
package pki

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"loadstar/internal/disk"
	"loadstar/internal/mtls"
)

const (
	lockFile = "lock"

	// skew is how far a peer's clock may be behind the server's clock. Certificates
	// become valid this long before their creation.
	skew = 5 * time.Minute
	// maxCSR limits the size of a certificate request in bytes. It is many times the size
	// of a request without names.
	maxCSR = 1 << 13
)

// Authority signs certificates. It is safe for concurrent use.
type Authority struct {
	dir  string
	keys Keys
	now  func() time.Time
	has  atomic.Pointer[issuers]
	// trouble holds the reason why the server's certificate was not renewed until Watch logs it.
	trouble atomic.Pointer[error]
}

// Open opens the authority in a folder. It creates a root and an issuer on first use. If
// several processes open it at the same time, only one of them creates these.
func Open(dir string, keys Keys) (*Authority, error) {
	a, err := OpenExisting(dir, keys)
	if !errors.Is(err, fs.ErrNotExist) {
		return a, err
	}
	if err := Init(dir, keys); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return OpenExisting(dir, keys)
}

// OpenExisting opens the authority in a folder. The error wraps fs.ErrNotExist if there is
// none.
func OpenExisting(dir string, keys Keys) (*Authority, error) {
	a := &Authority{dir: dir, keys: keys, now: time.Now}
	has, err := read(dir, keys)
	if err != nil {
		return nil, err
	}
	a.has.Store(has)
	return a, nil
}

// Init creates an issuer and, unless the key of a root is already in the folder, a root. The
// error wraps fs.ErrExist if the folder has an authority.
func Init(dir string, keys Keys) error {
	if err := mtls.MakeDir(dir); err != nil {
		return err
	}
	unlock, err := lock(dir)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := read(dir, Keys{certificatesOnly: true}); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = fmt.Errorf("%s has a certificate authority: %w", dir, fs.ErrExist)
		}
		return err
	}
	now := time.Now()
	// Use an existing root key. It comes from an interrupted call, or an operator put it
	// there because the agents trust it.
	root, err := readIssuer(filepath.Join(dir, rootKeyFile), keys)
	if errors.Is(err, fs.ErrNotExist) {
		if root, err = newRoot(now); err == nil {
			err = root.write(filepath.Join(dir, rootKeyFile), keys)
		}
	}
	if err != nil {
		return fmt.Errorf("creating the root certificate: %w", err)
	}
	// Write the issuer last, because a folder without an issuer counts as empty.
	i, err := newIssuer(root, keys, now)
	if err == nil {
		err = i.write(filepath.Join(dir, issuerFile), keys)
	}
	if err != nil {
		return fmt.Errorf("creating the issuer's certificate: %w", err)
	}
	return nil
}

// lock locks the folder, after waiting until no other process is writing files in it.
func lock(dir string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, none(dir)
	} else if errors.Is(err, syscall.EROFS) {
		return func() {}, nil // the folder is a mounted secret, in which no process of this machine writes
	} else if err != nil {
		return nil, err
	}
	if err := disk.Lock(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("locking %s: %w", f.Name(), err)
	}
	return func() { f.Close() }, nil // closing releases the lock
}

// RootKeyHere returns the path of a root's key in the authority's folder, or "". The folder
// should not contain one.
func (a *Authority) RootKeyHere() string {
	if paths, err := rootKeys(a.dir); err == nil && len(paths) > 0 {
		return paths[0]
	}
	return ""
}

// Watch checks at intervals whether the authority's files have changed, for example by a
// rotation, until ctx ends. After a change, it uses the new files and calls changed.
func (a *Authority) Watch(ctx context.Context, every time.Duration, log *slog.Logger, changed func()) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	failed := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := a.trouble.Swap(nil); err != nil {
			log.Error("cannot renew the server's certificate; the server tries again", "error", *err)
		}
		was := a.has.Load()
		is := stamp(a.dir)
		if is == was.stamp || is == failed {
			continue
		}
		has, err := read(a.dir, a.keys)
		if err != nil {
			failed = is
			log.Error("the certificate authority's files have changed but cannot be used; the server keeps the old ones", "error", err)
			continue
		}
		a.has.Store(has)
		log.Info("the certificate authority has changed", "issuer", has.newest(a.now()).name(), "issuers", len(has.all), "roots", len(has.roots()))
		changed()
	}
}

// serial returns a serial number of 128 bits. It begins with the issuer's ID of 32 bits, so
// that each issuer's certificates can be counted. The rest is random.
func (i *issuer) serial() (*big.Int, error) {
	var b [16]byte
	if _, err := rand.Read(b[len(i.id):]); err != nil {
		return nil, err
	}
	copy(b[:], i.id[:])
	return new(big.Int).SetBytes(b[:]), nil
}

// Pin returns the pin that join tokens contain and agents check. It is the pin of the
// certificate that signs the server's own certificate.
func (a *Authority) Pin() string {
	return mtls.PinOf(a.has.Load().serving(a.now()).chain[0].Raw)
}

// Issued is a new certificate.
type Issued struct {
	Leaf *x509.Certificate
	// Chain begins with the certificate. Roots contains all roots that the certificate's owner
	// must trust.
	Chain, Roots [][]byte
}

// Issue returns a certificate for who that expires after ttl or with its issuer, whichever is
// earlier. The signature of the request proves that the sender has the key. The names in the
// request are ignored.
func (a *Authority) Issue(csrDER []byte, who Identity, ttl time.Duration) (Issued, error) {
	has := a.has.Load()
	by := has.newest(a.now())
	leaf, err := a.issueFor(csrDER, who, ttl, by)
	if err != nil {
		return Issued{}, err
	}
	return Issued{Leaf: leaf, Chain: ders(append([]*x509.Certificate{leaf}, by.chain...)), Roots: ders(has.roots())}, nil
}

// Roots returns all roots that clients must trust, in DER.
func (a *Authority) Roots() [][]byte { return ders(a.has.Load().roots()) }

func ders(all []*x509.Certificate) [][]byte {
	var d [][]byte
	for _, c := range all {
		d = append(d, c.Raw)
	}
	return d
}

func (a *Authority) issueFor(csrDER []byte, who Identity, ttl time.Duration, by *issuer) (*x509.Certificate, error) {
	key, err := requested(csrDER)
	if err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	return a.issue(by, key, who, ttl)
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
func (a *Authority) issue(by *issuer, key any, who Identity, ttl time.Duration) (*x509.Certificate, error) {
	if err := who.check(); err != nil {
		return nil, err
	}
	return a.sign(by, &x509.Certificate{
		Subject:     pkix.Name{CommonName: who.ID}, // for humans; programs read the URI
		URIs:        []*url.URL{who.uri()},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, key, ttl)
}

// sign adds the fields that all certificates have in common to a template, and signs it.
func (a *Authority) sign(by *issuer, template *x509.Certificate, key any, ttl time.Duration) (*x509.Certificate, error) {
	now := a.now()
	if ttl <= 0 {
		return nil, fmt.Errorf("a certificate cannot be valid for %v", ttl)
	}
	ends := by.expires()
	if !now.Before(ends) {
		return nil, fmt.Errorf("the issuer's certificate expired on %s: run loadstar pki rotate", ends.Format(time.DateOnly))
	}
	number, err := by.serial()
	if err != nil {
		return nil, err
	}
	template.SerialNumber = number
	template.NotBefore, template.NotAfter = now.Add(-skew), now.Add(ttl)
	if template.NotAfter.After(ends) {
		template.NotAfter = ends
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.BasicConstraintsValid = true // not a certificate authority
	der, err := x509.CreateCertificate(rand.Reader, template, by.chain[0], key, by.key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}
