package gateway

import (
	"context"
	"crypto/x509"
	"errors"
	"time"

	"connectrpc.com/connect"

	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/directory"
	"loadstar/server/ledger"
	"loadstar/server/pki"
)

// callers identifies the agent that makes a call, and checks whether the ledger allows the
// call.
type callers struct {
	directory *directory.Directory
	trust     *trust
	refuse    *refuser
}

// presented returns the certificate of the calling agent.
func presented(ctx context.Context) directory.Credential {
	if c, ok := pki.CallerFrom(ctx); ok {
		return directory.Credential{Serial: c.Serial, Issued: c.Leaf.NotBefore}
	}
	return directory.Credential{}
}

func credential(leaf *x509.Certificate) directory.Credential {
	return directory.Credential{Serial: pki.Serial(leaf), Issued: leaf.NotBefore}
}

// switches is the maximum number of times that a call tries to store its agent's new
// certificate. It tries again if another call of the agent has stored one in the meantime.
const switches = 3

// caller looks up the calling agent in the ledger. It returns an error if the agent is
// revoked, or if its certificate is a copy.
func (c *callers) caller(ctx context.Context) (a directory.Caller, err error) {
	id, err := c.identity(ctx)
	if err != nil {
		return a, err
	}
	x := presented(ctx)
	lookup := c.trust.begin()
	allowed := false
	if a, err = c.directory.Caller(ctx, id); err == nil && !a.Revoked {
		a, allowed, err = c.admitCertificate(ctx, a, x)
	}
	c.trust.end(id, x.Serial, a, lookup, allowed)
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		// Do not report the agent as revoked. The agent waits, because an operator may still
		// restore a newer backup.
		c.refuse.metrics.refused.WithLabelValues("unknown").Inc()
		return a, connect.NewError(connect.CodeUnauthenticated, errors.New("this server does not know the agent; it may have been restored from a backup made before the agent joined; if this does not change, join again"))
	case err == nil && a.Revoked:
		c.refuse.metrics.refused.WithLabelValues("revoked").Inc()
		return a, connect.NewError(connect.CodePermissionDenied, errors.New("this agent is revoked; it must join again"))
	case err != nil:
		return a, c.refuse.unavailable(ctx, err)
	case !allowed:
		c.refuse.metrics.refused.WithLabelValues("copied").Inc()
		return a, connect.NewError(connect.CodePermissionDenied, errors.New("another machine uses a newer certificate of this agent, so this agent's files were copied or restored from a backup; ask the server's operator"))
	}
	return a, nil
}

// known returns the calling agent if the ledger allows its calls, or has recently allowed them
// and nothing has been revoked since.
func (c *callers) known(ctx context.Context) (directory.Caller, error) {
	id, err := c.identity(ctx)
	if err != nil {
		return directory.Caller{}, err
	}
	if a, ok := c.trust.get(id, presented(ctx).Serial); ok {
		return a, nil
	}
	return c.caller(ctx)
}

func (c *callers) identity(ctx context.Context) (string, error) {
	who, ok := pki.From(ctx)
	if !ok || who.Role != pki.Agent {
		c.refuse.metrics.refused.WithLabelValues("identity").Inc()
		return "", connect.NewError(connect.CodeUnauthenticated, errors.New("this call needs an agent's certificate"))
	}
	return who.ID, nil
}

// admitCertificate reports whether an agent may use a certificate. If two machines use
// certificates of the same agent, it refuses the older certificate and shows operators
// that the identity was copied.
func (c *callers) admitCertificate(ctx context.Context, a directory.Caller, x directory.Credential) (_ directory.Caller, allowed bool, err error) {
	now := time.Now()
	state := a.Credential(x, now)
	for range switches {
		if state != directory.Issued {
			break
		}
		if done, err := c.directory.Switch(ctx, a, x, now); done || err != nil {
			return a, done, err
		}
		if a, err = c.directory.Caller(ctx, a.ID); err != nil || a.Revoked {
			return a, false, err
		}
		state = a.Credential(x, now)
	}
	// An agent renews only with its newest certificate, so an older certificate shows that the
	// identity was copied.
	if call, ok := connect.CallInfoForHandlerContext(ctx); ok && state == directory.Replaced && call.Spec().Procedure == v1.AgentServiceRenewProcedure {
		state = directory.Copied
	}
	if state != directory.Copied {
		return a, state != directory.Issued, nil
	}
	if a.Copied {
		return a, false, nil
	}
	first, err := c.directory.NoteCopy(ctx, a, x, now)
	if first {
		c.refuse.log.Warn("two machines use the identity of an agent: its files were copied, or restored from a backup", "agent", a.ID, "certificate", x.Serial)
	}
	return a, false, err
}
