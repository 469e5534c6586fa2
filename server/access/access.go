// Package access decides who may call the operators' API. It knows users, their
// roles, sessions and certificates, and the minimum role of every call.
//
// A caller presents a certificate or a session. Every call looks up both in the directory, so
// removing a user, changing a role, ending a session or revoking a certificate takes effect
// with the next call. A [LimitReport] counts and logs the callers to whom the server applied a
// limit.
package access

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
)

// Role determines what a user may do. Each role includes the previous one.
type Role string

// The roles, in ascending order of rights.
const (
	Viewer   Role = "viewer"   // see everything
	Operator Role = "operator" // start and stop runs, create tokens, release models, revoke agents
	Admin    Role = "admin"    // manage users, sessions and certificates
)

// roles lists the roles in ascending order of rights.
var roles = []Role{Viewer, Operator, Admin}

// ParseRole returns the role with a name.
func ParseRole(text string) (Role, error) {
	if r := Role(text); slices.Contains(roles, r) {
		return r, nil
	}
	return "", fmt.Errorf("there is no role %q: want viewer, operator or admin", text)
}

// Includes reports whether a role includes another. An unknown role includes no other
// role, and no role includes it.
func (r Role) Includes(other Role) bool {
	i, j := slices.Index(roles, r), slices.Index(roles, other)
	return i >= 0 && j >= 0 && i >= j
}

// userName matches the names of users. Names are in lower case, so that no two names differ
// only in case.
var userName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// CheckName returns an error if a string cannot be the name of a user whom an admin adds.
func CheckName(name string) error {
	if !userName.MatchString(name) {
		return fmt.Errorf("%q cannot be the name of a user: use 1 to 64 lower-case letters, digits, dots, hyphens and underscores, starting with a letter or digit", name)
	}
	return nil
}

// The ways in which a caller proves its identity.
const (
	ViaCertificate = "certificate"
	ViaWeb         = "web"
)

// Caller is the user who makes a call.
type Caller struct {
	Name    string
	Role    Role
	Via     string
	Expires time.Time // expiry of the session or the certificate
	// Session is the ID of the session. It is empty for a caller with a certificate.
	Session string

	// gate and proof are used to look up the caller again, by the certificate's serial number
	// or the cookie's hash.
	gate  *Gate
	proof string
}

// actor returns the description of a caller for the audit log.
func actor(name, via string) string { return "user " + name + " via " + via }

// String returns the caller's description for the audit log.
func (c Caller) String() string { return actor(c.Name, c.Via) }

// Again looks up the caller again. It returns an error if the session has ended, the
// certificate was revoked, or the user was removed. Long calls, such as streams, call it every
// few seconds.
func (c Caller) Again(ctx context.Context) (Caller, error) {
	if c.gate == nil {
		return Caller{}, connect.NewError(connect.CodeUnauthenticated, fmt.Errorf("%s was not looked up", c))
	}
	if c.Via == ViaWeb {
		return c.gate.session(ctx, []byte(c.proof), time.Now())
	}
	return c.gate.certificate(ctx, c.proof, c.Name, time.Now())
}

// Need returns an error if the caller's role does not include the minimum role. The error
// contains what, the name of the action.
func (c Caller) Need(least Role, what string) error {
	if c.Role.Includes(least) {
		return nil
	}
	text := fmt.Sprintf("%s needs the role %s, and %s has the role %s", what, least, c.Name, c.Role)
	if strings.HasPrefix(c.Name, externalPrefix) {
		text += "; the OIDC provider decides the role"
	} else {
		text += fmt.Sprintf("; an admin can change it: loadstar user role %s %s", c.Name, least)
	}
	return connect.NewError(connect.CodePermissionDenied, fmt.Errorf("%s", text))
}

type contextKey struct{}

// With returns a context that carries a caller.
func With(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, contextKey{}, c)
}

// From returns the caller that a context carries, if any.
func From(ctx context.Context) (Caller, bool) {
	c, ok := ctx.Value(contextKey{}).(Caller)
	return c, ok
}
