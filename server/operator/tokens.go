package operator

import (
	"context"
	"fmt"
	"path"
	"time"

	"connectrpc.com/connect"

	"loadstar/internal/mtls"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/access"
	"loadstar/server/directory"
)

// The limits on tokens.
const (
	maxTokenUses    = 1_000_000
	maxTokenClients = 1_000_000
	maxTokenLife    = 366 * 24 * 3600 // seconds
	maxTokenText    = 256             // bytes of a note or a pattern
)

// CreateToken creates a join token.
func (o *people) CreateToken(ctx context.Context, r *v1.CreateTokenRequest) (*v1.CreateTokenResponse, error) {
	invalid := func(format string, args ...any) error {
		return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf(format, args...))
	}
	if r.Uses < 1 || r.Uses > maxTokenUses || r.TtlSeconds < 60 || r.TtlSeconds > maxTokenLife || len(r.Note) > maxTokenText {
		return nil, invalid("a token needs 1 to 1,000,000 uses, a lifetime from one minute to one year, and a note of at most 256 bytes; this one would have %d uses, a lifetime of %d seconds and %d bytes; change --uses, --ttl or --note", r.Uses, r.TtlSeconds, len(r.Note))
	}
	if r.Clients < 0 || r.Clients > maxTokenClients {
		return nil, invalid("a token allows 1 to 1,000,000 clients per agent, or 0 for the server's limit, not %d; change --clients", r.Clients)
	}
	if _, err := path.Match(r.Pattern, ""); err != nil || len(r.Pattern) > maxTokenText {
		return nil, invalid("%q is not a pattern of names of at most 256 bytes; use a pattern such as 'meter-*', in which * stands for any characters except /, in --names", r.Pattern)
	}
	t, err := mtls.NewJoinToken(o.Authority.Pin())
	if err != nil {
		return nil, o.wireError(err)
	}
	now := time.Now()
	expires := now.Add(time.Duration(r.TtlSeconds) * time.Second)
	err = o.Ledger.Directory.AddToken(ctx, t.Hash(), directory.Token{Note: r.Note, Uses: r.Uses, Expires: expires, Clients: r.Clients, Pattern: r.Pattern}, actor(ctx), now)
	if err != nil {
		return nil, o.wireError(err)
	}
	answer := &v1.CreateTokenResponse{Token: t.Text(), Expires: expires.UnixMilli(), Id: directory.TokenID(t.Hash())}
	// The command line already knows an address of this server that it can reach. A browser
	// knows only the page's address.
	if c, _ := access.From(ctx); o.Apart || c.Via == access.ViaWeb {
		answer.Server = o.Agents
	}
	return answer, nil
}

func tokenOf(t directory.Token) *v1.Token {
	return &v1.Token{
		Id: t.ID, Note: t.Note, Created: millis(t.Created), Actor: t.Actor, Uses: t.Uses, Joined: t.Joined, Used: millis(t.Used),
		Expires: millis(t.Expires), Revoked: millis(t.Revoked), Clients: t.Clients, Pattern: t.Pattern,
	}
}

// ListTokens lists join tokens, newest first.
func (o *people) ListTokens(ctx context.Context, r *v1.ListTokensRequest) (*v1.ListTokensResponse, error) {
	all, err := o.Ledger.Directory.Tokens(ctx, r.After, page(r.Limit, 100))
	if err != nil {
		return nil, o.wireError(err)
	}
	answer := &v1.ListTokensResponse{}
	for _, t := range all {
		answer.Tokens = append(answer.Tokens, tokenOf(t))
	}
	return answer, nil
}

// RevokeToken refuses further joins with a token. Agents that have already joined with it stay.
func (o *people) RevokeToken(ctx context.Context, r *v1.RevokeTokenRequest) (*v1.RevokeTokenResponse, error) {
	t, err := o.Ledger.Directory.RevokeToken(ctx, r.Id, actor(ctx), time.Now())
	if err != nil {
		return nil, o.wireError(err)
	}
	return &v1.RevokeTokenResponse{Token: tokenOf(t)}, nil
}

// FreeClients lets other agents announce the clients of a revoked agent.
func (o *fleet) FreeClients(ctx context.Context, r *v1.FreeClientsRequest) (*v1.FreeClientsResponse, error) {
	n, err := o.Ledger.Directory.FreeClients(ctx, r.Agent, r.Client, actor(ctx), time.Now())
	if err != nil {
		return nil, o.wireError(err)
	}
	return &v1.FreeClientsResponse{Clients: n}, nil
}
