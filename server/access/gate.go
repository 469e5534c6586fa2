package access

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	"loadstar/server/directory"
	"loadstar/server/pki"
)

// sessionFor is the lifetime of a session.
const sessionFor = 12 * time.Hour

// Gate identifies users by their certificates and sessions. It is safe for concurrent use.
type Gate struct {
	users *directory.Users
	log   *slog.Logger
}

// New returns a Gate for users.
func New(u *directory.Users, log *slog.Logger) *Gate { return &Gate{u, log} }

// secret is a login code or a cookie: 256 random bits. The database stores only its hash.
type secret [32]byte

var secretText = base64.RawURLEncoding.Strict()

func newSecret() (s secret) {
	_, _ = rand.Read(s[:]) // never fails
	return s
}

func (s secret) String() string { return secretText.EncodeToString(s[:]) }

func (s secret) hash() []byte {
	h := sha256.Sum256(s[:])
	return h[:]
}

// parseSecret decodes a string that a stranger may have sent. Each secret has only one
// encoding.
func parseSecret(text string) (s secret, ok bool) {
	if len(text) != secretText.EncodedLen(len(s)) || strings.ContainsAny(text, "\r\n") {
		return secret{}, false
	}
	n, err := secretText.Decode(s[:], []byte(text))
	if err != nil || n != len(s) {
		return secret{}, false
	}
	return s, true
}

// refuse returns an error for an unknown caller.
func refuse(format string, args ...any) error {
	return connect.NewError(connect.CodeUnauthenticated, fmt.Errorf(format, args...))
}

// unavailable returns an error for a caller that cannot be identified at present and may try
// again. The details go only to the log, because strangers can get this error.
func (g *Gate) unavailable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	g.log.Warn("cannot look up a user", "error", err)
	return connect.NewError(connect.CodeUnavailable, errors.New("the server cannot answer now; try again"))
}

// Certificates puts the user of an operator's certificate into the request's context. It
// refuses the request if the certificate is unknown or revoked. It passes requests from agents
// and strangers on unchanged. pki.Authority.Middleware must come first.
func (g *Gate) Certificates(next http.Handler) http.Handler {
	errorWriter := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, ok := pki.CallerFrom(r.Context())
		if _, valid := pki.From(r.Context()); !ok || !valid || who.Role != pki.Operator {
			next.ServeHTTP(w, r)
			return
		}
		c, err := g.certificate(r.Context(), pki.Serial(who.Leaf), who.ID, time.Now())
		switch {
		case err == nil:
			next.ServeHTTP(w, r.WithContext(With(r.Context(), c)))
		case errorWriter.IsSupported(r):
			_ = errorWriter.Write(w, r, err) // a failed write means that the caller has disconnected
		case connect.CodeOf(err) == connect.CodeUnauthenticated:
			http.Error(w, message(err), http.StatusUnauthorized)
		default:
			http.Error(w, message(err), http.StatusServiceUnavailable)
		}
	})
}

// message returns an error's message without its code.
func message(err error) string {
	if c := (*connect.Error)(nil); errors.As(err, &c) {
		return c.Message()
	}
	return err.Error()
}

// certificate returns the user to whom a certificate belongs.
func (g *Gate) certificate(ctx context.Context, serial, name string, now time.Time) (Caller, error) {
	c, role, err := g.users.CertificateOf(ctx, serial)
	switch {
	case errors.Is(err, directory.ErrNotFound) && name == directory.LocalUser:
		return Caller{}, refuse("the server does not know this certificate of user local (serial %s); if it is in the folder of one of its gateways (DIR/operator), restart that gateway, which then records it; if it is a copy, copy that folder again", serial)
	case errors.Is(err, directory.ErrNotFound):
		return Caller{}, refuse("the server does not know this certificate of user %s (serial %s): the user was removed, or the server was restored from an older backup; ask an admin for a new one: loadstar user certificate create %s", name, serial, name)
	case err != nil:
		return Caller{}, g.unavailable(ctx, err)
	case c.User != name: // possible only if the ledger was edited
		return Caller{}, refuse("certificate %s belongs to user %s, not %s", serial, c.User, name)
	case !c.Revoked.IsZero() && name == directory.LocalUser:
		return Caller{}, refuse("the certificate of user local (serial %s) was revoked; restart the server, which then writes a new one to its folder", serial)
	case !c.Revoked.IsZero():
		return Caller{}, refuse("the certificate of user %s (serial %s) was revoked; ask an admin for a new one: loadstar user certificate create %s", name, serial, name)
	case !now.Before(c.Expires):
		return Caller{}, refuse("the certificate of user %s (serial %s) has expired; ask an admin for a new one: loadstar user certificate create %s", name, serial, name)
	}
	return Caller{Name: name, Role: Role(role), Via: ViaCertificate, Expires: c.Expires, gate: g, proof: serial}, nil
}

// CreateLogin returns a code that opens one session of a user. The audit log names the actor.
func (g *Gate) CreateLogin(ctx context.Context, user string, ttl time.Duration, actor string, now time.Time) (code string, expires time.Time, err error) {
	s := newSecret()
	expires = now.Add(ttl)
	return s.String(), expires, g.users.AddLogin(ctx, s.hash(), user, expires, actor, now)
}

// Login uses up a code and opens a session. It returns the session's cookie.
func (g *Gate) Login(ctx context.Context, code string, now time.Time) (cookie string, expires time.Time, err error) {
	c, ok := parseSecret(code)
	if !ok {
		return "", time.Time{}, refuse("this is not a login code; open the whole link that 'loadstar user login' prints")
	}
	s := newSecret()
	session, err := g.users.UseLogin(ctx, c.hash(), s.hash(), sessionFor, webActor, now)
	switch {
	case errors.Is(err, directory.ErrRefused):
		return "", time.Time{}, connect.NewError(connect.CodeUnauthenticated, err)
	case err != nil:
		return "", time.Time{}, g.unavailable(ctx, err)
	}
	return s.String(), session.Expires, nil
}

func webActor(user string) string { return actor(user, ViaWeb) }

// Session returns the user whose session has the given cookie.
func (g *Gate) Session(ctx context.Context, cookie string, now time.Time) (Caller, error) {
	s, ok := parseSecret(cookie)
	if !ok {
		return Caller{}, errSignedOut
	}
	return g.session(ctx, s.hash(), now)
}

var errSignedOut = refuse("you are not signed in, or your session has ended; sign in again")

func (g *Gate) session(ctx context.Context, hash []byte, now time.Time) (Caller, error) {
	s, role, err := g.users.SessionOf(ctx, hash, now)
	switch {
	case errors.Is(err, directory.ErrNotFound):
		return Caller{}, errSignedOut
	case err != nil:
		return Caller{}, g.unavailable(ctx, err)
	}
	return Caller{Name: s.User, Role: Role(role), Via: ViaWeb, Expires: s.Expires, Session: s.ID, gate: g, proof: string(hash)}, nil
}

// Logout ends the session with the given cookie. It does nothing if the session has already
// ended.
func (g *Gate) Logout(ctx context.Context, cookie string) error {
	now := time.Now()
	c, err := g.Session(ctx, cookie, now)
	if err == nil {
		err = g.users.Logout(ctx, c.Session, c.String(), now)
	}
	if connect.CodeOf(err) == connect.CodeUnauthenticated || errors.Is(err, directory.ErrNotFound) {
		return nil
	}
	return err
}

// externalPrefix is the prefix of the names of an OIDC provider's users. CheckName refuses the
// prefix, so these names never collide with names that admins choose. The package pki refuses
// the prefix in certificates.
const externalPrefix = "oidc:"

// External opens a session for a user of an OIDC provider and returns the session's cookie. The
// subject identifies the user. The name is only displayed, because users may be able to choose
// it.
func (g *Gate) External(ctx context.Context, subject, name string, role Role, now time.Time) (cookie string, expires time.Time, err error) {
	if _, err := ParseRole(string(role)); err != nil {
		return "", time.Time{}, err
	}
	id := sha256.Sum256([]byte(subject))
	u := directory.User{Name: externalName(name), Role: string(role), Subject: hex.EncodeToString(id[:])}
	s := newSecret()
	session, err := g.users.SignIn(ctx, u, u.Name+"-"+u.Subject[:12], s.hash(), sessionFor, webActor, now)
	switch {
	case errors.Is(err, directory.ErrRefused):
		return "", time.Time{}, connect.NewError(connect.CodeUnauthenticated, err)
	case err != nil:
		return "", time.Time{}, g.unavailable(ctx, err)
	}
	return s.String(), session.Expires, nil
}

// externalName returns a safe name for a user of an OIDC provider. It replaces everything
// that CheckName refuses except @.
func externalName(name string) string {
	safe := strings.Map(func(r rune) rune {
		if r < 0x80 && (userName.MatchString(string(r)) || strings.ContainsRune("._-@", r)) {
			return r
		}
		return '-'
	}, strings.ToLower(name))
	safe = cmp.Or(safe, "nameless")
	return externalPrefix + safe[:min(len(safe), 48)]
}
