package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"loadstar/internal/mtls"
)

// The files of an authority. Each contains the chain of certificates up to the root, and a
// key unless an external signer has the key.
const (
	issuerFile   = "issuer.pem"
	previousFile = "previous.pem" // the previous issuer, while agents switch to the new one
	retiredFile  = "retired.pem"  // certificates of issuers that were replaced
	rootKeyFile  = "root-key.pem"

	rootYears   = 20
	issuerYears = 5
	maxRetired  = 3
)

// issuer signs certificates.
type issuer struct {
	id    [4]byte
	chain []*x509.Certificate // from its own certificate to the root
	key   crypto.Signer       // nil if only certificates were read
	kept  string              // description of how the key is stored, for display
}

const (
	plainFile     = "plain file"
	encryptedFile = "encrypted file"
	external      = "external signer"
)

func makeIssuer(chain []*x509.Certificate, key crypto.Signer) *issuer {
	i := &issuer{chain: chain, key: key}
	sum := sha256.Sum256(chain[0].RawSubjectPublicKeyInfo)
	copy(i.id[:], sum[:])
	return i
}

func (i *issuer) name() string { return i.chain[0].Subject.CommonName }

func (i *issuer) root() *x509.Certificate { return i.chain[len(i.chain)-1] }

// expires returns when the first certificate of the chain expires.
func (i *issuer) expires() time.Time {
	ends := i.chain[0].NotAfter
	for _, c := range i.chain {
		if c.NotAfter.Before(ends) {
			ends = c.NotAfter
		}
	}
	return ends
}

// issuers contains the issuers whose certificates the server accepts. There is normally one
// issuer, and there are two during a rotation.
type issuers struct {
	all     []*issuer // oldest first
	retired []*x509.Certificate
	stamp   string // stamp of the files

	mu       sync.Mutex
	verified map[[sha256.Size]byte]verified // by the hash of the certificate
}

// serving returns the issuer of the server's own certificate. During a rotation, it is the
// older one, because not all agents know the new root yet.
func (h *issuers) serving(now time.Time) *issuer {
	for _, i := range h.all {
		if now.Before(i.expires()) {
			return i
		}
	}
	return h.all[len(h.all)-1]
}

// newest returns the issuer that signs agents' certificates now. A new issuer may begin to sign
// later, so that all gateways know the issuer by then.
func (h *issuers) newest(now time.Time) *issuer {
	for _, i := range slices.Backward(h.all) {
		if !now.Before(i.chain[0].NotBefore) {
			return i
		}
	}
	return h.all[0]
}

// roots returns the distinct roots, newest first.
func (h *issuers) roots() []*x509.Certificate {
	var roots []*x509.Certificate
	for _, i := range slices.Backward(h.all) {
		if !slices.ContainsFunc(roots, i.root().Equal) {
			roots = append(roots, i.root())
		}
	}
	return roots
}

// read reads the files of an authority.
func read(dir string, keys Keys) (*issuers, error) {
	h := &issuers{stamp: stamp(dir), verified: map[[sha256.Size]byte]verified{}}
	// A rotation writes the previous issuer before the new one, so read them in reverse
	// order.
	current, err := readIssuer(filepath.Join(dir, issuerFile), keys)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, none(dir)
	}
	if err != nil {
		return nil, err
	}
	h.all = []*issuer{current}
	switch former, err := readIssuer(filepath.Join(dir, previousFile), keys); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case !former.chain[0].Equal(current.chain[0]): // both are equal if a rotation was interrupted
		h.all = []*issuer{former, current}
	}
	h.retired, err = readCertificates(filepath.Join(dir, retiredFile))
	return h, err
}

// none is the error for a folder without an authority. It wraps fs.ErrNotExist.
type none string

func (dir none) Error() string {
	return string(dir) + " has no certificate authority; 'loadstar serve' and 'loadstar pki init' create one"
}

func (none) Is(target error) bool { return target == fs.ErrNotExist }

// stamp changes if a file of the authority changes.
func stamp(dir string) string {
	text := ""
	for _, name := range []string{issuerFile, previousFile, retiredFile} {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil {
			text += fmt.Sprintf("%s %d %d;", name, info.Size(), info.ModTime().UnixNano())
		}
	}
	return text
}

func readIssuer(path string, keys Keys) (*issuer, error) {
	text, err := mtls.ReadPrivate(path)
	if err != nil {
		return nil, err
	}
	i, err := parseIssuer(text, keys)
	if errors.Is(err, errKey) {
		return nil, fmt.Errorf("%s: %w", path, err)
	} else if err != nil {
		return nil, fmt.Errorf("%s: %w; restore it from a backup, because agents trust no other root", path, err)
	}
	return i, nil
}

func parseIssuer(text []byte, keys Keys) (*issuer, error) {
	text, sealed, err := unseal(text, keys)
	if err != nil {
		return nil, err
	}
	b, err := mtls.Parse(text)
	if err != nil {
		return nil, err
	}
	if len(b.Certificates) == 0 || len(b.Certificates) > 2 {
		return nil, errors.New("the file must contain a key and its certificates")
	}
	for n, c := range b.Certificates {
		switch above := b.Certificates[min(n+1, len(b.Certificates)-1)]; {
		case !c.IsCA:
			return nil, errors.New("one of its certificates is not of an issuer or a root")
		case c.CheckSignatureFrom(above) != nil:
			return nil, errors.New("its certificates do not form a chain")
		}
	}
	i := makeIssuer(b.Certificates, nil)
	i.kept = external
	if sealed {
		i.kept = encryptedFile
	} else if b.Key != nil {
		i.kept = plainFile
	}
	switch {
	case keys.certificatesOnly:
		return i, nil
	case b.Key != nil:
		i.key = b.Key
	case sealed:
		return nil, errors.New("its encrypted part is not a key")
	default:
		if i.key, err = keys.signer(i.chain[0].PublicKey); err != nil {
			return nil, err
		}
	}
	if public, ok := i.key.Public().(*ecdsa.PublicKey); !ok || !public.Equal(i.chain[0].PublicKey) {
		return nil, errors.New("its certificate belongs to another key")
	}
	return i, nil
}

// write writes an issuer's key, if it is not external, and its certificates.
func (i *issuer) write(path string, keys Keys) error {
	b := mtls.Bundle{Certificates: i.chain}
	var err error
	var key []byte
	if private, ok := i.key.(*ecdsa.PrivateKey); ok {
		if key, err = keys.seal(private); err != nil {
			return err
		}
	}
	text, err := b.PEM()
	if err != nil {
		return err
	}
	return put(path, append(key, text...))
}

func readCertificates(path string) ([]*x509.Certificate, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	b, err := mtls.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return b.Certificates, nil
}

func newRoot(now time.Time) (*issuer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template, err := authorityTemplate("root", now, now.AddDate(rootYears, 0, 0))
	if err != nil {
		return nil, err
	}
	template.MaxPathLen = 1
	c, err := signAuthority(template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return makeIssuer([]*x509.Certificate{c}, key), nil
}

// newIssuer creates an issuer below a root that is valid from a given time. Its key is
// new, or the first external signer's.
func newIssuer(root *issuer, keys Keys, from time.Time) (*issuer, error) {
	key, err := keys.newKey()
	if err != nil {
		return nil, err
	}
	ends := from.AddDate(issuerYears, 0, 0)
	if ends.After(root.expires()) {
		ends = root.expires()
	}
	template, err := authorityTemplate("issuer", from, ends)
	if err != nil {
		return nil, err
	}
	template.MaxPathLenZero = true
	c, err := signAuthority(template, root.chain[0], key.Public(), root.key)
	if err != nil {
		return nil, err
	}
	return makeIssuer([]*x509.Certificate{c, root.chain[0]}, key), nil
}

func authorityTemplate(kind string, from, ends time.Time) (*x509.Certificate, error) {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nil, err
	}
	return &x509.Certificate{
		SerialNumber: new(big.Int).SetBytes(b[:]),
		// The name is unique, so people can tell issuers apart.
		Subject:               pkix.Name{CommonName: fmt.Sprintf("Loadstar %s %x", kind, b[:4])},
		NotBefore:             from.Add(-skew),
		NotAfter:              ends,
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}, nil
}

func signAuthority(template, parent *x509.Certificate, public any, by crypto.Signer) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, by)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}
