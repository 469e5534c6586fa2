// Package mtls provides the parts of mutual TLS that both ends share: key and certificate
// files, the renewal time of a certificate, and clients that present a certificate and trust
// only the server's roots. A [JoinToken] lets an agent get its first certificate.
package mtls

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"time"
)

// Bundle is the content of one of our PEM files. Each part is optional.
type Bundle struct {
	Notes        map[string]string // additional names and values in readable form
	Key          *ecdsa.PrivateKey
	Certificates []*x509.Certificate
}

const (
	notesType       = "LOADSTAR AGENT"
	keyType         = "PRIVATE KEY"
	certificateType = "CERTIFICATE"

	maxCertificates = 4

	noteChecksum = "CRC32C"
)

// PEM returns the bundle as text for [Parse]. If the bundle has notes, PEM adds a note with a
// checksum of the whole text, because nothing else would reveal a damaged note.
func (b *Bundle) PEM() ([]byte, error) {
	var parts []*pem.Block
	if len(b.Notes) > 0 {
		parts = append(parts, &pem.Block{Type: notesType, Headers: maps.Clone(b.Notes)})
	}
	if b.Key != nil {
		der, err := x509.MarshalPKCS8PrivateKey(b.Key)
		if err != nil {
			return nil, err
		}
		parts = append(parts, &pem.Block{Type: keyType, Bytes: der})
	}
	for _, c := range b.Certificates {
		parts = append(parts, &pem.Block{Type: certificateType, Bytes: c.Raw})
	}
	if len(b.Notes) > 0 {
		parts[0].Headers[noteChecksum] = checksum(parts)
	}
	var out bytes.Buffer
	for _, p := range parts {
		if err := pem.Encode(&out, p); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

// checksum returns the CRC-32C of all parts except the note of the checksum itself.
func checksum(parts []*pem.Block) string {
	h := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	for _, p := range parts {
		fmt.Fprintf(h, "%q", p.Type)
		for _, name := range slices.Sorted(maps.Keys(p.Headers)) {
			if name != noteChecksum {
				fmt.Fprintf(h, "%q%q", name, p.Headers[name])
			}
		}
		h.Write(p.Bytes)
	}
	return fmt.Sprintf("%08x", h.Sum32())
}

// Parse parses the output of PEM. Any other text between or after the parts is an error,
// because the file must be damaged. Parse accepts notes without a checksum, because agents that
// joined before checksums existed have such files.
func Parse(text []byte) (Bundle, error) {
	var b Bundle
	var parts []*pem.Block
	for len(bytes.TrimSpace(text)) > 0 {
		if !bytes.HasPrefix(bytes.TrimSpace(text), []byte("-----BEGIN ")) {
			return Bundle{}, errors.New("it is damaged: unexpected text between its parts")
		}
		block, rest := pem.Decode(text)
		if block == nil {
			return Bundle{}, errors.New("it is damaged: a part is incomplete")
		}
		text = rest
		parts = append(parts, block)
		if err := b.add(block); err != nil {
			return Bundle{}, err
		}
	}
	if want, ok := b.Notes[noteChecksum]; ok && want != checksum(parts) {
		return Bundle{}, errors.New("it is damaged or was edited: its checksum is wrong")
	}
	delete(b.Notes, noteChecksum)
	return b, nil
}

func (b *Bundle) add(block *pem.Block) error {
	switch {
	case block.Type == notesType && b.Notes == nil && len(block.Headers) > 0 && len(block.Bytes) == 0:
		b.Notes = block.Headers
	case block.Type == keyType && b.Key == nil:
		key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil {
			return fmt.Errorf("its private key: %w", err)
		}
		ec, ok := key.(*ecdsa.PrivateKey)
		if !ok || ec.Curve != elliptic.P256() {
			return errors.New("its private key is not an ECDSA key on P-256")
		}
		b.Key = ec
	case block.Type == certificateType && len(b.Certificates) < maxCertificates:
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return fmt.Errorf("its certificate: %w", err)
		}
		b.Certificates = append(b.Certificates, c)
	default:
		return fmt.Errorf("it is damaged: unexpected part %q", block.Type)
	}
	return nil
}

// Credentials contains a key, its certificate, and the root certificates to trust. There are
// several roots only while a root is being replaced.
type Credentials struct {
	Key  *ecdsa.PrivateKey
	Leaf *x509.Certificate
	Root *x509.Certificate
	More []*x509.Certificate
}

// Roots returns all roots.
func (c *Credentials) Roots() []*x509.Certificate {
	return append([]*x509.Certificate{c.Root}, c.More...)
}

// maxRoots is the maximum number of roots in a file.
const maxRoots = 3

// Trust replaces the roots with those that a server sent, in DER. It keeps the current roots if
// the server sent none.
func (c *Credentials) Trust(ders [][]byte) error {
	if len(ders) > maxRoots {
		return fmt.Errorf("it contains %d roots, want at most %d", len(ders), maxRoots)
	}
	var roots []*x509.Certificate
	for _, der := range ders {
		r, err := x509.ParseCertificate(der)
		if err != nil {
			return err
		}
		roots = append(roots, r)
	}
	if len(roots) > 0 {
		c.Root, c.More = roots[0], roots[1:]
	}
	return nil
}

// Check returns an error if the parts do not belong together. It ignores expiry and the
// issuer of the certificate, which the server checks.
func (c *Credentials) Check() error {
	switch {
	case !c.Key.PublicKey.Equal(c.Leaf.PublicKey):
		return errors.New("the certificate belongs to a different key")
	case c.Leaf.IsCA || !slices.Contains(c.Leaf.ExtKeyUsage, x509.ExtKeyUsageClientAuth):
		return errors.New("the certificate is not a client's")
	}
	for _, r := range c.Roots() {
		if !r.IsCA {
			return errors.New("the root certificate is not one")
		}
		if r.CheckSignatureFrom(r) != nil {
			return errors.New("the root certificate is damaged")
		}
	}
	return nil
}

// Due reports whether less than a third of a certificate's lifetime is left.
func Due(c *x509.Certificate, now time.Time) bool {
	return !now.Before(c.NotAfter.Add(-c.NotAfter.Sub(c.NotBefore) / 3))
}

// Pool returns a certificate pool that contains only the given roots.
func Pool(roots ...*x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, r := range roots {
		p.AddCert(r)
	}
	return p
}

// TLS returns the configuration of a TLS client that presents the certificate and trusts
// only the roots. It ignores the system's roots.
func (c *Credentials) TLS() *tls.Config {
	shown := &tls.Certificate{Certificate: [][]byte{c.Leaf.Raw}, PrivateKey: c.Key, Leaf: c.Leaf}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		RootCAs:    Pool(c.Roots()...),
		// By default, Go starts with short records to reduce the latency of web pages, which does
		// not matter here.
		DynamicRecordSizingDisabled: true,
		// Without this function, the client would silently send no certificate if the server
		// asked for a certificate from another root.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return shown, nil },
	}
}
