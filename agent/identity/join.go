package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
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

	"loadstar/internal/head"
	"loadstar/internal/mtls"
	"loadstar/internal/protocol"
	loadstarv1 "loadstar/proto/loadstar/v1"
)

const (
	// patience is the timeout of a call that requests a certificate.
	patience = time.Minute
	// maxAnswer limits the size of a response in bytes. It is many times the size of a
	// response with certificates.
	maxAnswer = 1 << 16
	// maxName is the longest machine name that a server accepts.
	maxName = 128
)

// Joining is how an agent joins a server when it starts for the first time.
type Joining struct {
	Server, TokenFile string
}

// Once joins a server unless the folder has an identity. Without a server it does nothing, so
// the zero value is usable.
func (j Joining) Once(ctx context.Context, dir, name string) error {
	if j.Server == "" && j.TokenFile == "" {
		return nil
	}
	if j.Server == "" || j.TokenFile == "" {
		return errors.New("joining at the start needs both a server and a file with a join token")
	}
	if _, err := Open(dir); !errors.Is(err, ErrNotJoined) {
		return err
	}
	token, err := Token("", j.TokenFile, strings.NewReader(""))
	if err != nil {
		return err
	}
	_, err = Join(ctx, dir, j.Server, token, name)
	return err
}

// Join registers the agent of a folder with a server, using a token that an operator of the
// server created. The name describes the machine to operators. Join sends the token's
// secret only to the server whose certificate the token names. It fails if the folder already
// has an identity that has not expired. If the folder has an older identity, Join proves
// possession of its key, so that the agent keeps its name and its clients.
func Join(ctx context.Context, dir, server, token, name string) (*Identity, error) {
	tok, err := mtls.ParseJoinToken(token)
	if err != nil {
		return nil, err
	}
	if server, err = parseServer(server); err != nil {
		return nil, err
	}
	old, err := prepare(dir, time.Now())
	if err != nil {
		return nil, err
	}
	key, csr, err := newKey()
	if err != nil {
		return nil, err
	}
	request := &loadstarv1.JoinRequest{Secret: tok.Secret(), Csr: csr, Name: short(name)}
	if old != nil {
		if err := old.prove(request); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	p := &pinned{server: server, pin: tok.Pin()}
	client := mtls.Client(mtls.AgentTransport(p.tls()))
	defer client.CloseIdleConnections()
	answer, err := loadstarv1.NewAgentServiceClient(client, server, connect.WithReadMaxBytes(maxAnswer), protocol.Client()).Join(ctx, request)
	if err != nil {
		return nil, explain("joining", server, err, "ask the server's operator for a new token")
	}
	c := mtls.Credentials{Key: key, Root: p.root.Load()}
	if err = c.Trust(answer.GetRoots()); err == nil {
		c.Leaf, err = certificate(answer.GetCertificates(), &c, time.Now())
	}
	if err == nil {
		err = checkID(answer.GetAgent())
	}
	if err != nil {
		return nil, fmt.Errorf("joining %s: invalid response: %w", server, err)
	}
	// Write the key first, because an agent with only the identity would not check heads.
	if err := head.WriteKey(dir, answer.GetHeadKey()); err != nil {
		return nil, fmt.Errorf("joined %s as %s, but cannot store its key: %w; solve this and join again", server, answer.GetAgent(), err)
	}
	i := newIdentity(filepath.Join(dir, file), answer.GetAgent(), server, c)
	if err := i.store(c); err != nil {
		return nil, fmt.Errorf("joined %s as %s, but cannot store the certificate: %w; solve this and join again", server, i.id, err)
	}
	return i, nil
}

// prepare checks that the folder can store an identity before the token is used up. It
// returns the older identity in the folder, or nil.
func prepare(dir string, now time.Time) (old *Identity, err error) {
	old, err = Open(dir)
	switch {
	case err == nil && now.Before(old.Expires()):
		return nil, fmt.Errorf("this agent has already joined %s as %s; to join again, stop it and rename %s to %s, so that it keeps its clients", old.server, old.id, old.path, oldFile)
	case errors.Is(err, ErrNotJoined):
		if old, err = open(dir, oldFile); err != nil && !errors.Is(err, ErrNotJoined) {
			return nil, err
		}
	case err != nil:
		return nil, err
	}
	if err := mtls.MakeDir(dir); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(dir, "."+file+".*")
	if err != nil {
		return nil, fmt.Errorf("cannot write to %s: %w", dir, err)
	}
	return old, errors.Join(f.Close(), os.Remove(f.Name()))
}

// prove adds to a request the proof that its sender has this identity's key.
func (i *Identity) prove(r *loadstarv1.JoinRequest) (err error) {
	had, digest := i.current.Load(), sha256.Sum256(r.Csr)
	r.OldCertificate = had.Leaf.Raw
	r.OldSignature, err = ecdsa.SignASN1(rand.Reader, had.Key, digest[:])
	return err
}

// newKey returns a new key and a certificate request for it.
func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	return key, csr, err
}

// certificate parses the first certificate in all. It returns an error unless it is a client
// certificate for the key in c that is valid now.
func certificate(all [][]byte, c *mtls.Credentials, now time.Time) (*x509.Certificate, error) {
	if len(all) == 0 {
		return nil, errors.New("it contains no certificate")
	}
	leaf, err := x509.ParseCertificate(all[0])
	if err != nil {
		return nil, err
	}
	if err := (&mtls.Credentials{Key: c.Key, Leaf: leaf, Root: c.Root, More: c.More}).Check(); err != nil {
		return nil, err
	}
	if now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
		return nil, wrongTime(leaf, now)
	}
	return leaf, nil
}

// short shortens a machine's name to what a server accepts.
func short(name string) string {
	name = clean(strings.ToValidUTF8(name, ""))
	if len(name) > maxName {
		name = strings.ToValidUTF8(name[:maxName], "")
	}
	return strings.TrimSpace(name)
}

// pinned is a connection to a server for which only a pin is known. It belongs to the server's
// root certificate, or to an issuer below the root.
type pinned struct {
	server, pin string
	// root is the certificate with the pin. It is set once the connection is verified.
	root atomic.Pointer[x509.Certificate]
}

// tls returns a configuration that connects only to a server whose certificate the pinned
// certificate issued. It replaces the standard verification, which does not support pins.
func (p *pinned) tls() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, VerifyConnection: p.verify}
}

func (p *pinned) verify(state tls.ConnectionState) error {
	var root *x509.Certificate
	between := x509.NewCertPool()
	for _, c := range state.PeerCertificates {
		if mtls.PinOf(c.Raw) == p.pin {
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
