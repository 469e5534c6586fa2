package gateway

import (
	"context"
	"crypto/x509"
	"time"

	"connectrpc.com/connect"

	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/directory"
	"loadstar/server/pki"
)

// presented returns the certificate of the calling agent.
func presented(ctx context.Context) directory.Credential {
	if leaf := pki.Leaf(ctx); leaf != nil {
		return credential(leaf)
	}
	return directory.Credential{}
}

func credential(leaf *x509.Certificate) directory.Credential {
	return directory.Credential{Serial: pki.Serial(leaf), Issued: leaf.NotBefore}
}

// switches is how often a call tries to store that its agent uses a new certificate. It
// tries again if another call of the agent has stored it in the meantime.
const switches = 3

// admitCertificate reports whether an agent may use a certificate. If two machines use
// certificates of the same agent, the older certificate is refused, and operators see that
// the identity was copied.
func (g *Gateway) admitCertificate(ctx context.Context, c directory.Caller, x directory.Credential) (_ directory.Caller, allowed bool, err error) {
	now := time.Now()
	state := c.Credential(x, now)
	for range switches {
		if state != directory.Issued {
			break
		}
		if done, err := g.Ledger.Directory.Switch(ctx, c, x, now); done || err != nil {
			return c, done, err
		}
		if c, err = g.Ledger.Directory.Caller(ctx, c.ID); err != nil || c.Revoked {
			return c, false, err
		}
		state = c.Credential(x, now)
	}
	// An agent renews with its newest certificate only, so an older one means a copy.
	if call, ok := connect.CallInfoForHandlerContext(ctx); ok && state == directory.Replaced && call.Spec().Procedure == v1.AgentServiceRenewProcedure {
		state = directory.Copied
	}
	if state != directory.Copied {
		return c, state != directory.Issued, nil
	}
	if c.Copied {
		return c, false, nil
	}
	first, err := g.Ledger.Directory.NoteCopy(ctx, c, x, now)
	if first {
		g.Log.Warn("two machines use the identity of an agent: its files were copied, or restored from a backup", "agent", c.ID, "certificate", x.Serial)
	}
	return c, false, err
}
