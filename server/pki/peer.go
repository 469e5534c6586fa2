package pki

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// Role determines what a peer may do.
type Role string

const (
	Agent    Role = "agent"
	Operator Role = "operator"
)

// Identity names a peer. Certificates hold it as a URI such as loadstar://agent/7f3a.
type Identity struct {
	Role Role
	ID   string
}

const scheme = "loadstar"

// plain matches the allowed IDs. They need no escaping in a URI, so each ID has only one
// spelling.
var plain = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// String returns the role and the ID as text for logs.
func (i Identity) String() string { return string(i.Role) + " " + i.ID }

func (i Identity) uri() *url.URL {
	return &url.URL{Scheme: scheme, Host: string(i.Role), Path: "/" + i.ID}
}

func (i Identity) check() error {
	if i.Role != Agent && i.Role != Operator {
		return fmt.Errorf("unknown role %q", i.Role)
	}
	if !plain.MatchString(i.ID) {
		return fmt.Errorf("%q is not a valid ID: use 1 to 64 letters, digits, dots, dashes and underscores, starting with a letter or digit", i.ID)
	}
	return nil
}

// Peer returns the identity in the peer's certificate, if the certificate was verified
// and has not expired since.
func Peer(state *tls.ConnectionState) (Identity, bool) {
	who, _, ok := peerAt(state, time.Now())
	return who, ok
}

// PeerCertificate returns the identity of the peer with its certificate, as Peer does.
func PeerCertificate(state *tls.ConnectionState) (Identity, *x509.Certificate, bool) {
	return peerAt(state, time.Now())
}

func peerAt(state *tls.ConnectionState, now time.Time) (Identity, *x509.Certificate, bool) {
	if state == nil || !state.HandshakeComplete || len(state.VerifiedChains) == 0 || len(state.VerifiedChains[0]) == 0 {
		return Identity{}, nil, false
	}
	leaf := state.VerifiedChains[0][0]
	// The certificate may have expired since the connection was opened.
	if now.After(leaf.NotAfter) {
		return Identity{}, nil, false
	}
	who, ok := identity(leaf)
	return who, leaf, ok
}

// Serial returns the serial number of a certificate as text of a fixed length.
func Serial(c *x509.Certificate) string { return fmt.Sprintf("%032x", c.SerialNumber) }

// identity returns the identity in a certificate that this authority has issued.
func identity(leaf *x509.Certificate) (Identity, bool) {
	if len(leaf.URIs) != 1 {
		return Identity{}, false
	}
	uri := leaf.URIs[0]
	who := Identity{Role: Role(uri.Host), ID: strings.TrimPrefix(uri.Path, "/")}
	if who.check() != nil || *uri != *who.uri() {
		return Identity{}, false
	}
	return who, true
}

type contextKey struct{}

// With returns a context that carries an identity.
func With(ctx context.Context, who Identity) context.Context {
	return context.WithValue(ctx, contextKey{}, who)
}

// From returns the identity that a context carries, if any.
func From(ctx context.Context) (Identity, bool) {
	who, ok := ctx.Value(contextKey{}).(Identity)
	return who, ok
}

// Middleware puts the peer's identity into the request's context.
func Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if who, ok := Peer(r.TLS); ok {
			r = r.WithContext(With(r.Context(), who))
		}
		next.ServeHTTP(w, r)
	})
}
