// Package mtls provides the parts of mutual TLS that both ends share: key and certificate
// files, the renewal time of a certificate, and clients that present a certificate and trust a
// single root.
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
)

// PEM returns the bundle as text for Parse.
func (b *Bundle) PEM() ([]byte, error) {
	var out bytes.Buffer
	if len(b.Notes) > 0 {
		if err := pem.Encode(&out, &pem.Block{Type: notesType, Headers: b.Notes}); err != nil {
			return nil, err
		}
	}
	if b.Key != nil {
		der, err := x509.MarshalPKCS8PrivateKey(b.Key)
		if err != nil {
			return nil, err
		}
		if err := pem.Encode(&out, &pem.Block{Type: keyType, Bytes: der}); err != nil {
			return nil, err
		}
	}
	for _, c := range b.Certificates {
		if err := pem.Encode(&out, &pem.Block{Type: certificateType, Bytes: c.Raw}); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

// Parse parses the output of PEM. Any other text between or after its parts is an error,
// because the file is damaged.
func Parse(text []byte) (Bundle, error) {
	var b Bundle
	for len(bytes.TrimSpace(text)) > 0 {
		if !bytes.HasPrefix(bytes.TrimSpace(text), []byte("-----BEGIN ")) {
			return Bundle{}, errors.New("it is damaged: unexpected text between its parts")
		}
		block, rest := pem.Decode(text)
		if block == nil {
			return Bundle{}, errors.New("it is damaged: a part is incomplete")
		}
		text = rest
		if err := b.add(block); err != nil {
			return Bundle{}, err
		}
	}
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

// Credentials contains a key, its certificate, and the root certificate that both ends
// trust.
type Credentials struct {
	Key  *ecdsa.PrivateKey
	Leaf *x509.Certificate
	Root *x509.Certificate
}

// Check returns an error if the parts do not belong together. It ignores expiry.
func (c *Credentials) Check() error {
	if !c.Key.PublicKey.Equal(c.Leaf.PublicKey) {
		return errors.New("the certificate belongs to a different key")
	}
	_, err := c.Leaf.Verify(x509.VerifyOptions{
		Roots: Pool(c.Root), CurrentTime: c.Leaf.NotAfter, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err
}

// Due reports whether less than a third of a certificate's lifetime is left.
func Due(c *x509.Certificate, now time.Time) bool {
	return !now.Before(c.NotAfter.Add(-c.NotAfter.Sub(c.NotBefore) / 3))
}

// Pool returns a certificate pool that contains only the given root.
func Pool(root *x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(root)
	return p
}

// TLS returns the configuration of a TLS client that presents the certificate and trusts
// only the root. It ignores the system's roots.
func (c *Credentials) TLS() *tls.Config {
	shown := &tls.Certificate{Certificate: [][]byte{c.Leaf.Raw}, PrivateKey: c.Key, Leaf: c.Leaf}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		RootCAs:    Pool(c.Root),
		// Go starts with short records to reduce the latency of web pages, which does not
		// matter here.
		DynamicRecordSizingDisabled: true,
		// Without this function, the client would silently send no certificate if the
		// server asked for a certificate of another root.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return shown, nil },
	}
}
