package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"loadstar/internal/jointoken"
	"loadstar/internal/mtls"
	loadstarv1 "loadstar/proto/loadstar/v1"
)

const (
	// patience is how long a call may take that gets a certificate.
	patience = time.Minute
	// maxAnswer is many times what certificates take.
	maxAnswer = 1 << 16
	// maxName is how much of a machine's name is sent: what a server takes.
	maxName = 128
)

// Join makes the agent of a folder known to a server, by a token that an operator
// made there. Name is the machine's, for people to read. The token's secret is sent
// only to the server whose root the token names. A folder that has an identity
// keeps it, unless that has expired.
func Join(ctx context.Context, dir, server, token, name string) (*Identity, error) {
	tok, err := jointoken.Parse(token)
	if err != nil {
		return nil, err
	}
	if server, err = parseServer(server); err != nil {
		return nil, err
	}
	if err := prepare(dir, time.Now()); err != nil {
		return nil, err
	}
	key, csr, err := newKey()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	p := &pinned{server: server, pin: tok.Pin()}
	client := mtls.Client(mtls.AgentTransport(p.tls()))
	defer client.CloseIdleConnections()
	answer, err := loadstarv1.NewAgentServiceClient(client, server, connect.WithReadMaxBytes(maxAnswer)).Join(ctx, &loadstarv1.JoinRequest{
		Secret: tok.Secret(), Csr: csr, Name: short(name),
	})
	if err != nil {
		return nil, explain("joining", server, err, "ask the server's operator for a new token")
	}
	c := mtls.Credentials{Key: key, Root: p.root.Load()}
	if c.Leaf, err = certificate(answer.GetCertificates(), &c, time.Now()); err == nil {
		err = checkID(answer.GetAgent())
	}
	if err != nil {
		return nil, fmt.Errorf("joining %s: the server's answer: %w", server, err)
	}
	i := newIdentity(filepath.Join(dir, file), answer.GetAgent(), server, c)
	if err := i.store(c); err != nil {
		return nil, fmt.Errorf("joined %s as %s, but the certificate cannot be stored: %w; join again when that is mended", server, i.id, err)
	}
	return i, nil
}

// prepare checks that the folder can take an identity, before a token is spent on it.
func prepare(dir string, now time.Time) error {
	i, err := Open(dir)
	switch {
	case err == nil && now.Before(i.Expires()):
		return fmt.Errorf("this agent has joined %s already, as %s: to join anew, stop it and remove %s", i.server, i.id, i.path)
	case err != nil && !errors.Is(err, ErrNotJoined):
		return err
	}
	if err := mtls.MakeDir(dir); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "."+file+".*")
	if err != nil {
		return fmt.Errorf("nothing can be stored in %s: %w", dir, err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// newKey returns a key, and the request for its certificate.
func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	return key, csr, err
}

// certificate returns the first of the certificates, if it is one for the key, under
// the root, that is valid now.
func certificate(all [][]byte, c *mtls.Credentials, now time.Time) (*x509.Certificate, error) {
	if len(all) == 0 {
		return nil, errors.New("there is no certificate in it")
	}
	leaf, err := x509.ParseCertificate(all[0])
	if err != nil {
		return nil, err
	}
	if err := (&mtls.Credentials{Key: c.Key, Leaf: leaf, Root: c.Root}).Check(); err != nil {
		return nil, err
	}
	if now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
		return nil, wrongTime(leaf, now)
	}
	return leaf, nil
}

// short makes of a machine's name what a server takes.
func short(name string) string {
	name = clean(strings.ToValidUTF8(name, ""))
	if len(name) > maxName {
		name = strings.ToValidUTF8(name[:maxName], "")
	}
	return strings.TrimSpace(name)
}

// pinned is a connection to a server of which only the root's pin is known.
type pinned struct {
	server, pin string
	root        atomic.Pointer[x509.Certificate] // of the verified connection
}

// tls returns settings under which no connection is made, and nothing is sent, but to
// a server that the root vouches for. The system's own verification is replaced,
// because it knows no pins.
func (p *pinned) tls() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, VerifyConnection: p.verify}
}

func (p *pinned) verify(state tls.ConnectionState) error {
	var root *x509.Certificate
	between := x509.NewCertPool()
	for _, c := range state.PeerCertificates {
		if jointoken.PinOf(c.Raw) == p.pin {
			root = c
		} else {
			between.AddCert(c)
		}
	}
	if root == nil || len(state.PeerCertificates) == 0 {
		return errOtherRoot
	}
	u, err := url.Parse(p.server)
	if err != nil {
		return err
	}
	_, err = state.PeerCertificates[0].Verify(x509.VerifyOptions{
		DNSName: u.Hostname(), Roots: mtls.Pool(root), Intermediates: between,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return err
	}
	p.root.Store(root)
	return nil
}
