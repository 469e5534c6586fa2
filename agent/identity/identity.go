// Package identity manages an agent's key and certificate. It exchanges a join token for a
// certificate, stores both, and renews them.
package identity

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"loadstar/internal/backoff"
	"loadstar/internal/mtls"
)

// file holds the server's address, the key, its certificate and the roots. A single file can
// be replaced atomically. To join again, an installer renames
// it to oldFile.
const (
	file    = "identity.pem"
	oldFile = "identity.old.pem"
)

// Names of the plain-text headers in the identity file.
const (
	noteServer = "Server"
	noteAgent  = "Agent"
)

// ErrNotJoined means that the folder has no identity.
var ErrNotJoined = errors.New("this agent has not joined a server; run 'loadstar agent join' or 'loadstar-agent join' first")

// Identity is an agent's key and certificate in its folder. If the machine crashes during a
// renewal, the file holds either the complete old pair or the complete new one. An Identity
// is safe for concurrent use, but only one process may use a folder.
type Identity struct {
	path   string
	id     string
	server string
	client *http.Client

	current atomic.Pointer[use]
	// stale means that the server asked for a renewal.
	stale atomic.Bool

	renewing sync.Mutex // held during a renewal; guards the following fields
	retry    backoff.Backoff
	after    time.Time // time of the next attempt
	// unasked means that the last renewal succeeded and that the server had not asked for it. If
	// the server asks now, its issuer has changed since then, so the agent need not wait.
	unasked bool
}

// use is a key pair with the connections that present it.
type use struct {
	mtls.Credentials
	transport *http.Transport
}

// Open opens the identity in a folder, even an expired one (see Expires).
func Open(dir string) (*Identity, error) {
	return open(dir, file)
}

func open(dir, name string) (*Identity, error) {
	path := filepath.Join(dir, name)
	text, err := mtls.ReadPrivate(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", dir, ErrNotJoined)
	} else if err != nil {
		return nil, err
	}
	i, err := parse(path, text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; remove it and join again with a new token", path, err)
	}
	return i, nil
}

func parse(path string, text []byte) (*Identity, error) {
	b, err := mtls.Parse(text)
	if err != nil {
		return nil, err
	}
	if b.Key == nil || len(b.Certificates) < 2 {
		return nil, errors.New("the file must contain a key, its certificate and the root")
	}
	id, server := b.Notes[noteAgent], b.Notes[noteServer]
	if err := checkID(id); err != nil {
		return nil, err
	}
	if address, err := parseServer(server); err != nil || address != server {
		return nil, fmt.Errorf("its server %q is not an https address", server)
	}
	c := mtls.Credentials{Key: b.Key, Leaf: b.Certificates[0], Root: b.Certificates[1], More: b.Certificates[2:]}
	if err := c.Check(); err != nil {
		return nil, err
	}
	// A server names the agent in the last part of the URI.
	if len(c.Leaf.URIs) == 1 && strings.TrimPrefix(c.Leaf.URIs[0].Path, "/") != id {
		return nil, fmt.Errorf("its certificate belongs to %s, not to agent %q", c.Leaf.URIs[0], id)
	}
	return newIdentity(path, id, server, c), nil
}

func newIdentity(path, id, server string, c mtls.Credentials) *Identity {
	i := &Identity{path: path, id: id, server: server, retry: backoff.Backoff{Base: retryFirst, Cap: retryMost}}
	i.client = mtls.Client((*newest)(i))
	i.put(c)
	return i
}

// put makes all later requests present this key and certificate.
func (i *Identity) put(c mtls.Credentials) {
	was := i.current.Swap(&use{Credentials: c, transport: mtls.AgentTransport(c.TLS())})
	if was != nil {
		was.transport.CloseIdleConnections()
	}
}

// store writes a key and its certificate to disk.
func (i *Identity) store(c mtls.Credentials) error {
	text, err := (&mtls.Bundle{
		Notes:        map[string]string{noteAgent: i.id, noteServer: i.server},
		Key:          c.Key,
		Certificates: append([]*x509.Certificate{c.Leaf}, c.Roots()...),
	}).PEM()
	if err != nil {
		return err
	}
	return mtls.WritePrivate(i.path, text)
}

// ID returns the name that the server assigned to the agent.
func (i *Identity) ID() string { return i.id }

// Server returns the server's address, such as https://loadstar.example:7443.
func (i *Identity) Server() string { return i.server }

// Expires returns when the certificate expires.
func (i *Identity) Expires() time.Time { return i.current.Load().Leaf.NotAfter }

// HTTPClient returns the client for calls to the server. Each call presents the newest
// certificate and trusts only the server's roots. The client sets no timeout on a
// response that makes progress; use a context for that.
func (i *Identity) HTTPClient() *http.Client { return i.client }

// newest is an http.RoundTripper that sends each request over a connection that presents
// the newest key and certificate. A request that is in progress when they are replaced
// finishes on its old connection.
type newest Identity

func (n *newest) RoundTrip(r *http.Request) (*http.Response, error) {
	// An agent's requests are small, and the server does not read the User-Agent header.
	r = r.Clone(r.Context())
	r.Header.Set("User-Agent", "")
	answer, err := n.current.Load().transport.RoundTrip(r)
	if err == nil && answer.Header.Get(renewHeader) != "" {
		n.stale.Store(true)
	}
	return answer, err
}

// CloseIdleConnections makes http.Client.CloseIdleConnections work with this transport.
func (n *newest) CloseIdleConnections() { n.current.Load().transport.CloseIdleConnections() }

// defaultPort is the port of an address that names none.
const defaultPort = "7443"

// maxID is longer than any name that a server assigns.
const maxID = 256

// checkID refuses a name that cannot be written to the file and read back.
func checkID(id string) error {
	if id == "" || len(id) > maxID || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return fmt.Errorf("%.*q is not a valid agent name", maxID, id)
	}
	return nil
}

// parseServer returns a server's address in canonical form.
func parseServer(server string) (string, error) {
	text := strings.TrimSpace(server)
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	u, err := url.Parse(text)
	wrong := func(why string) (string, error) {
		example := "https://loadstar.example:7443"
		if err == nil && u.Hostname() != "" { // most invalid addresses lack only the scheme
			example = "https://" + net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), defaultPort))
		}
		return "", fmt.Errorf("the server's address %q %s; use %s", server, why, example)
	}
	switch {
	case err != nil:
		return wrong("cannot be read")
	case u.Scheme != "https":
		return wrong("must begin with https://, because agents talk to servers over TLS only")
	case u.Hostname() == "":
		return wrong("has no host")
	case u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return wrong("has more than a host and a port")
	case strings.ContainsFunc(u.Host, func(r rune) bool { return r <= ' ' || r > '~' }):
		return wrong("has characters that no host has")
	}
	host := strings.ToLower(u.Hostname())
	if port := u.Port(); port != "" {
		return "https://" + net.JoinHostPort(host, port), nil
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return "https://" + host, nil
}
