package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"connectrpc.com/connect"

	"loadstar/internal/mtls"
	"loadstar/internal/protocol"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/directory"
	"loadstar/server/ledger"
	"loadstar/server/pki"
)

// Join exchanges a join token for a certificate.
func (g *Gateway) Join(ctx context.Context, r *v1.JoinRequest) (*v1.JoinResponse, error) {
	select {
	case g.joining <- struct{}{}:
		defer func() { <-g.joining }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if !validName(r.Name) && r.Name != "" {
		return nil, g.refuse.invalid("name", "the name is too long or has unprintable characters")
	}
	now := time.Now()
	hash := mtls.HashToken(r.Secret)
	if err := g.Ledger.Directory.CheckToken(ctx, hash, now); err != nil {
		return nil, g.joinError(ctx, err)
	}
	a := directory.Agent{ID: g.joinedBefore(ctx, r, now), Name: r.Name}
	join := g.Ledger.Directory.Rejoin
	if a.ID == "" {
		a.ID, join = strings.ToLower(rand.Text()[:16]), g.Ledger.Directory.Join
		if g.Hub != nil {
			a.ID = g.Hub.nameIn(a.ID)
		}
	}
	key, err := g.Ledger.HeadKey(ctx)
	if err != nil {
		return nil, g.refuse.unavailable(ctx, err)
	}
	issued, err := g.issue(r.Csr, a.ID)
	if err != nil {
		return nil, err
	}
	a.Credential, a.Expires = credential(issued.Leaf), issued.Leaf.NotAfter
	if err := join(ctx, hash, a, now); err != nil {
		return nil, g.joinError(ctx, err)
	}
	g.Log.Info("an agent joined", "agent", a.ID, "name", a.Name, "token", directory.TokenID(hash))
	return &v1.JoinResponse{Agent: a.ID, Certificates: issued.Chain, Roots: issued.Roots, HeadKey: key}, nil
}

func (g *Gateway) joinError(ctx context.Context, err error) error {
	if errors.Is(err, ledger.ErrRefused) {
		g.metrics.refused.WithLabelValues("token").Inc()
		return connect.NewError(connect.CodePermissionDenied, err)
	}
	return g.refuse.unavailable(ctx, err)
}

// joinedBefore returns the id of an agent that joins again and proves that it has the key of a
// certificate that was not replaced. For any other agent, it returns an empty string, and the
// agent gets a new id. The holder of a token may join, but not take over another agent's
// clients.
func (g *Gateway) joinedBefore(ctx context.Context, r *v1.JoinRequest, now time.Time) string {
	if len(r.OldCertificate) == 0 {
		return ""
	}
	who, serial, err := g.Authority.ProvesOld(r.Csr, r.OldCertificate, r.OldSignature)
	if err == nil {
		var c directory.Caller
		switch c, err = g.Ledger.Directory.Caller(ctx, who.ID); {
		case err != nil:
		case c.Revoked:
			err = errors.New("the agent is revoked")
		default:
			if state := c.Credential(directory.Credential{Serial: serial}, now); state == directory.InUse || state == directory.Issued {
				return who.ID
			}
			err = errors.New("a newer certificate of the agent is in use")
		}
	}
	g.Log.Warn("an agent that joins again gets a new name, because its proof of the old name is not accepted", "agent", who.ID, "name", r.Name, "error", err)
	return ""
}

// Renew issues a new certificate to an agent whose certificate is valid or has expired only
// recently.
func (g *Gateway) Renew(ctx context.Context, r *v1.RenewRequest) (*v1.RenewResponse, error) {
	caller, err := g.callers.caller(ctx)
	if err != nil {
		return nil, err
	}
	issued, err := g.issue(r.Csr, caller.ID)
	if err != nil {
		return nil, err
	}
	if err := g.Ledger.Directory.Renewed(ctx, caller.ID, credential(issued.Leaf), issued.Leaf.NotAfter); err != nil {
		return nil, g.refuse.unavailable(ctx, err)
	}
	return &v1.RenewResponse{Certificates: issued.Chain, Roots: issued.Roots}, nil
}

// issue signs a certificate for an agent.
func (g *Gateway) issue(csr []byte, agent string) (pki.Issued, error) {
	issued, err := g.Authority.Issue(csr, pki.Identity{Role: pki.Agent, ID: agent}, g.Certificates)
	if err != nil {
		return issued, g.refuse.invalid("csr", "%v", err)
	}
	return issued, nil
}

// Announce registers clients as hosted by the calling agent.
func (g *Gateway) Announce(ctx context.Context, r *v1.AnnounceRequest) (*v1.AnnounceResponse, error) {
	caller, err := g.callers.caller(ctx)
	if err != nil {
		return nil, err
	}
	agent := caller.ID
	if len(r.Clients) > g.Clients {
		return nil, g.refuse.invalid("clients", "%d clients are announced, but an agent may host at most %d", len(r.Clients), g.Clients)
	}
	if len(r.Inputs) > 64 || r.StepSeconds < 1 || r.StepSeconds > 24*3600 {
		return nil, g.refuse.invalid("data", "%d inputs every %d seconds: want at most 64 inputs and an interval from a second to a day", len(r.Inputs), r.StepSeconds)
	}
	for _, name := range slices.Concat(r.Clients, r.Inputs) {
		if !validName(name) {
			return nil, g.refuse.invalid("name", "a name is empty, longer than %d bytes, or has unprintable characters", nameBytes)
		}
	}
	if slices.ContainsFunc(r.Inputs, func(in string) bool { return strings.ContainsAny(in, " ") }) {
		return nil, g.refuse.invalid("name", "the name of an input contains a space")
	}
	now := time.Now()
	refused, err := g.Ledger.Directory.Announce(ctx, directory.Announcement{
		Agent: agent, Clients: r.Clients, Inputs: r.Inputs, Step: time.Duration(r.StepSeconds) * time.Second, Most: g.Clients,
		Version: version(r.Version), Protocol: int64(protocol.OfCaller(ctx)), Skew: skew(r.Now, now), Generated: r.Generated,
	}, now)
	if errors.Is(err, ledger.ErrTooMany) {
		return nil, g.refuse.invalid("clients", "together with earlier clients these are more than %d; an agent for other clients must join again", g.Clients)
	} else if err != nil {
		return nil, g.refuse.unavailable(ctx, err)
	}
	g.contacts.refuse(agent, refused.Clients)
	if n := len(refused.Clients); n > 0 {
		g.metrics.refused.WithLabelValues("client").Add(float64(n))
		g.Log.Warn("an agent announced clients that it may not host", "agent", agent, "clients", n, "reason", refused.Reason)
	}
	return &v1.AnnounceResponse{Refused: refused.Clients, Reason: refused.Reason, Statements: g.known(ctx)}, nil
}

// version returns the version of an agent's program, or an empty string if text is not a valid
// version. The version is only displayed, so an invalid one is not a reason to refuse the
// agent.
func version(text string) string {
	if len(text) > versionBytes || !validName(text) {
		return ""
	}
	return text
}

// skew returns how far an agent's clock is ahead, or nil if unknown.
func skew(clock int64, now time.Time) *time.Duration {
	if clock <= 0 {
		return nil
	}
	ms := min(max(clock-now.UnixMilli(), -largestSkew.Milliseconds()), largestSkew.Milliseconds())
	d := time.Duration(ms) * time.Millisecond
	return &d
}

// validName reports whether a name is short enough and printable.
func validName(name string) bool {
	return name != "" && len(name) <= nameBytes && utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
}
