// Package access decides who may do what: it knows users, their roles, sessions and
// certificates, and the least role of every call of the operators' API.
package access

import (
	"context"
	"time"
)

// Role is what a user may do. Each role may do all that the one before may do.
type Role string

// The roles.
const (
	Viewer   Role = "viewer"   // see everything
	Operator Role = "operator" // start and stop runs, make tokens, release models, revoke agents
	Admin    Role = "admin"    // manage users, sessions and certificates
)

// How a caller proves who it is.
const (
	ViaCertificate = "certificate"
	ViaWeb         = "web"
)

// Caller is the user who makes a call.
type Caller struct {
	Name    string
	Role    Role
	Via     string
	Expires time.Time // of the session or the certificate
}

// String returns the caller as text for the audit log.
func (c Caller) String() string { return "user " + c.Name + " via " + c.Via }

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
