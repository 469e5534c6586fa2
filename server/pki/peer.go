package pki

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"loadstar/internal/mtls"
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

// String returns the role and the ID, for logs.
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

// Caller is the peer of a connection with its certificate, which this authority issued.
type Caller struct {
	Identity
	Serial string // serial number of the certificate, as text of a fixed length
	Leaf   *x509.Certificate
}

// errUnknown means that no issuer of the authority signed a certificate.
var errUnknown = errors.New("the certificate does not come from this server")

// peer returns the owner of the certificate that the peer of a connection presented, and
// whether the certificate is valid now. The certificate may have expired, or its issuer may
// have been retired, since the connection was opened.
func (a *Authority) peer(state *tls.ConnectionState) (c Caller, valid bool) {
	if state == nil || !state.HandshakeComplete || len(state.PeerCertificates) == 0 {
		return c, false
	}
	leaf := state.PeerCertificates[0]
	who, err := a.verify(leaf)
	if err != nil {
		return c, false
	}
	now := a.now()
	return Caller{who.Identity, who.serial, leaf}, !now.Before(leaf.NotBefore) && !now.After(leaf.NotAfter)
}

// verified is the content of a verified certificate.
type verified struct {
	Identity
	serial string
}

// maxVerified is the maximum number of verified certificates in the cache.
const maxVerified = 100_000

// verify returns the identity in a certificate if an issuer of this authority signed it. It
// ignores expiry. It trusts only the issuers themselves, not all certificates below their
// roots, so that an issuer can be retired.
func (a *Authority) verify(leaf *x509.Certificate) (verified, error) {
	has, sum := a.has.Load(), sha256.Sum256(leaf.Raw)
	has.mu.Lock()
	who, ok := has.verified[sum]
	has.mu.Unlock()
	if ok {
		return who, nil
	}
	if _, err := leaf.Verify(x509.VerifyOptions{
		Roots: mtls.Pool(has.certificates()...), CurrentTime: leaf.NotAfter, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}); err != nil {
		return who, fmt.Errorf("%w: %w", errUnknown, err)
	}
	if who.Identity, ok = identity(leaf); !ok {
		return who, fmt.Errorf("%w: it contains no identity", errUnknown)
	}
	who.serial = Serial(leaf)
	has.mu.Lock()
	defer has.mu.Unlock()
	if len(has.verified) >= maxVerified {
		clear(has.verified)
	}
	has.verified[sum] = who
	return who, nil
}

// certificates returns the issuers' own certificates.
func (h *issuers) certificates() []*x509.Certificate {
	var all []*x509.Certificate
	for _, i := range h.all {
		all = append(all, i.chain[0])
	}
	return all
}

// Serial returns the serial number of a certificate as a string of fixed length.
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

type callerKey struct{}

// CallerFrom returns the caller with its certificate, even an expired one. From returns the
// identity only if the certificate is valid.
func CallerFrom(ctx context.Context) (Caller, bool) {
	c, ok := ctx.Value(callerKey{}).(Caller)
	return c, ok
}

// Leaf returns the certificate of the caller, or nil.
func Leaf(ctx context.Context) *x509.Certificate {
	c, _ := CallerFrom(ctx)
	return c.Leaf
}

const (
	// RenewHeader is set on responses to a caller that should renew its certificate now, because
	// another issuer now signs certificates.
	RenewHeader = "Loadstar-Renew"
	// RootsHeader is set on responses to operators. It contains the fingerprint of the
	// roots that they should trust. Agents learn the roots when they renew, which happens
	// much more often.
	RootsHeader = "Loadstar-Roots"
)

// Fingerprint identifies a list of certificates.
func Fingerprint(all []*x509.Certificate) string {
	h := sha256.New()
	for _, c := range all {
		sum := sha256.Sum256(c.Raw)
		h.Write(sum[:])
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8])
}

// Outdated reports whether a certificate's issuer no longer signs certificates.
func (a *Authority) Outdated(leaf *x509.Certificate) bool {
	return !bytes.Equal(a.has.Load().newest(a.now()).chain[0].SubjectKeyId, leaf.AuthorityKeyId)
}

// Middleware puts the peer's identity and the certificate into the request's context. If the
// certificate has expired, the context has no identity, so only calls that use CallerFrom are
// possible.
func (a *Authority) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, valid := a.peer(r.TLS); c.Leaf != nil {
			ctx := context.WithValue(r.Context(), callerKey{}, c)
			if valid {
				ctx = With(ctx, c.Identity)
			}
			if a.Outdated(c.Leaf) {
				w.Header().Set(RenewHeader, "1")
			}
			if c.Role == Operator {
				w.Header().Set(RootsHeader, Fingerprint(a.has.Load().roots()))
			}
			r = r.WithContext(ctx)
		}
		next.ServeHTTP(w, r)
	})
}
