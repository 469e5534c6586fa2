package operate

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"loadstar/internal/mtls"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/pki"
)

// refreshFor limits how long a command waits for a new certificate.
const refreshFor = 20 * time.Second

// refresher is the transport of an operator's calls. When the server reports a new issuer or
// new roots, refresher requests a new certificate and the roots, and stores both in the
// operator's folder. The key does not change, so commands that read the folder at the same time
// find matching files. The server is verified with the old roots.
type refresher struct {
	http.RoundTripper
	folder, server string
	had            mtls.Credentials
	once           sync.Once
	warn           io.Writer
}

// RoundTrip implements http.RoundTripper.
func (f *refresher) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := f.RoundTripper.RoundTrip(r)
	if err != nil {
		return answer, err
	}
	roots := answer.Header.Get(pki.RootsHeader)
	if answer.Header.Get(pki.RenewHeader) != "" || roots != "" && roots != pki.Fingerprint(f.had.Roots()) {
		f.once.Do(func() {
			if err := f.refresh(r.Context()); err != nil {
				fmt.Fprintf(f.warn, "cannot renew the operator's certificate in %s, which the server will not accept indefinitely: %v\n", f.folder, plain(err))
			}
		})
	}
	return answer, nil
}

// CloseIdleConnections makes http.Client.CloseIdleConnections work with this transport.
func (f *refresher) CloseIdleConnections() {
	if c, ok := f.RoundTripper.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func (f *refresher) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refreshFor)
	defer cancel()
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, f.had.Key)
	if err != nil {
		return err
	}
	answer, err := v1.NewOperatorServiceClient(mtls.Client(f.RoundTripper), f.server).RenewCertificate(ctx, &v1.RenewCertificateRequest{Csr: csr})
	if err != nil {
		return err
	}
	c := mtls.Credentials{Key: f.had.Key, Leaf: f.had.Leaf}
	if len(answer.Certificates) > 0 {
		if c.Leaf, err = x509.ParseCertificate(answer.Certificates[0]); err != nil {
			return err
		}
	}
	if err := trust(&c, answer.Roots); err != nil {
		return err
	}
	if c.Leaf.Subject.CommonName != f.had.Leaf.Subject.CommonName {
		return fmt.Errorf("the server sent a certificate of user %q", c.Leaf.Subject.CommonName)
	}
	return mtls.WriteFolder(f.folder, &c)
}

// trust sets the roots of credentials and checks that all parts belong together.
func trust(c *mtls.Credentials, ders [][]byte) error {
	if len(ders) == 0 {
		return errors.New("the server sent no root")
	}
	if err := c.Trust(ders); err != nil {
		return fmt.Errorf("the server's answer is invalid: %w", err)
	}
	if err := c.Check(); err != nil {
		return fmt.Errorf("the server sent a certificate that does not match the key or the roots: %w", err)
	}
	return nil
}
