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

	"loadstar/internal/jointoken"
	v1 "loadstar/proto/loadstar/v1"
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
		return nil, g.invalid("name", "the name is too long or has unprintable characters")
	}
	now := time.Now()
	a := ledger.Agent{ID: strings.ToLower(rand.Text()[:16]), Name: r.Name}
	chain, expires, err := g.Authority.Sign(r.Csr, pki.Identity{Role: pki.Agent, ID: a.ID}, g.Certificates)
	if err != nil {
		return nil, g.invalid("csr", "%v", err)
	}
	a.Expires = expires
	err = g.Ledger.Join(ctx, jointoken.Hash(r.Secret), a, now)
	if errors.Is(err, ledger.ErrRefused) {
		g.metrics.refused.WithLabelValues("token").Inc()
		return nil, connect.NewError(connect.CodePermissionDenied, err)
	} else if err != nil {
		return nil, g.unavailable(ctx, err)
	}
	g.Log.Info("an agent joined", "agent", a.ID, "name", a.Name)
	return &v1.JoinResponse{Agent: a.ID, Certificates: chain}, nil
}

// Renew issues a new certificate to an agent that has a valid one.
func (g *Gateway) Renew(ctx context.Context, r *v1.RenewRequest) (*v1.RenewResponse, error) {
	caller, err := g.caller(ctx)
	if err != nil {
		return nil, err
	}
	agent := caller.ID
	chain, expires, err := g.Authority.Sign(r.Csr, pki.Identity{Role: pki.Agent, ID: agent}, g.Certificates)
	if err != nil {
		return nil, g.invalid("csr", "%v", err)
	}
	if err := g.Ledger.Renewed(ctx, agent, expires); err != nil {
		return nil, g.unavailable(ctx, err)
	}
	return &v1.RenewResponse{Certificates: chain}, nil
}

// Announce registers clients as hosted by the calling agent.
func (g *Gateway) Announce(ctx context.Context, r *v1.AnnounceRequest) (*v1.AnnounceResponse, error) {
	caller, err := g.caller(ctx)
	if err != nil {
		return nil, err
	}
	agent := caller.ID
	if len(r.Clients) > g.Clients {
		return nil, g.invalid("clients", "%d clients are announced, an agent may host at most %d", len(r.Clients), g.Clients)
	}
	if len(r.Inputs) > 64 || r.StepSeconds < 1 || r.StepSeconds > 24*3600 {
		return nil, g.invalid("data", "%d inputs every %d seconds: want at most 64 inputs and an interval from a second to a day", len(r.Inputs), r.StepSeconds)
	}
	for _, name := range slices.Concat(r.Clients, r.Inputs) {
		if !validName(name) {
			return nil, g.invalid("name", "a name is empty, longer than %d bytes, or has unprintable characters", nameBytes)
		}
	}
	if slices.ContainsFunc(r.Inputs, func(in string) bool { return strings.ContainsAny(in, " ") }) {
		return nil, g.invalid("name", "the name of an input has a space")
	}
	now := time.Now()
	refused, err := g.Ledger.Announce(ctx, ledger.Announcement{
		Agent: agent, Clients: r.Clients, Inputs: r.Inputs, Step: time.Duration(r.StepSeconds) * time.Second, Most: g.Clients,
		Version: version(r.Version), Skew: skew(r.Now, now), Generated: r.Generated,
	}, now)
	if errors.Is(err, ledger.ErrTooMany) {
		return nil, g.invalid("clients", "together with earlier clients these are more than %d; an agent with other clients must join again", g.Clients)
	} else if err != nil {
		return nil, g.unavailable(ctx, err)
	}
	if len(refused) > 0 {
		g.metrics.refused.WithLabelValues("client").Add(float64(len(refused)))
		g.Log.Warn("an agent announced clients of another agent", "agent", agent, "clients", len(refused))
	}
	return &v1.AnnounceResponse{Refused: refused}, nil
}

// version returns the version of an agent's program, or nothing if it is not one: people read
// it, and an agent with an odd version may work as well as others.
func version(text string) string {
	if len(text) > versionBytes || !validName(text) {
		return ""
	}
	return text
}

// skew returns how far an agent's clock is ahead, or nil if it did not say.
func skew(clock int64, now time.Time) *time.Duration {
	if clock <= 0 {
		return nil
	}
	ms := min(max(clock-now.UnixMilli(), -largestSkew.Milliseconds()), largestSkew.Milliseconds())
	d := time.Duration(ms) * time.Millisecond
	return &d
}

// validName reports whether a name is not too long and printable.
func validName(name string) bool {
	return name != "" && len(name) <= nameBytes && utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
}
