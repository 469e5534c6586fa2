package keeper

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	"connectrpc.com/connect"

	"loadstar/fed/member"
	"loadstar/internal/connlimit"
	"loadstar/internal/mtls"
	"loadstar/internal/service"
	v1 "loadstar/proto/loadstar/v1"
)

const (
	maxRequest    = 64 << 20
	maxHeader     = 16 << 10
	shutdownGrace = 10 * time.Second
	// connections limits the connections that strangers can keep open until the handshake
	// closes them.
	connections = 64
)

// Serve answers servers that have one of the pins, until ctx ends. For other callers, the TLS
// handshake fails.
func (k *Keeper) Serve(ctx context.Context, l net.Listener, servers []member.Pin) error {
	settings, err := mtls.Pinned(k.identity, func(pin [32]byte) bool { return slices.Contains(servers, pin) })
	if err != nil {
		return err
	}
	limits := connlimit.New(connlimit.Config{
		Connections: 2 * connections, Anonymous: connections, OfAddress: connections / 2, OfCaller: map[string]int{connlimit.Agent: connections}, Rate: 20,
		Who: func(*http.Request) (connlimit.Caller, bool) {
			return connlimit.Caller{Kind: connlimit.Agent, Name: "server"}, true
		},
		Limited: func(string, connlimit.Caller) {},
	})
	s := &http.Server{
		Handler: limits.Handler(k.Handler()), TLSConfig: settings, ConnContext: limits.Context,
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 5 * time.Minute, WriteTimeout: 10 * time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug), // discards failed handshakes of strangers
	}
	return service.Serve(ctx, s, shutdownGrace, func() error { return s.ServeTLS(limits.Listener(l), "", "") })
}

// Handler returns a handler that answers every caller. It is for Serve, and for simulations,
// which have no network.
func (k *Keeper) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(v1.NewKeeperServiceHandler(calls{k}, connect.WithReadMaxBytes(maxRequest)))
	return mux
}

// calls implements the KeeperService.
type calls struct{ k *Keeper }

func (s calls) State(_ context.Context, q *v1.KeeperStateRequest) (*v1.KeeperStateResponse, error) {
	return answered(s.k, "state", q, s.k.State)
}

func (s calls) Enrol(_ context.Context, q *v1.KeeperEnrolRequest) (*v1.KeeperEnrolResponse, error) {
	return answered(s.k, "enrol", q, s.k.Enrol)
}

func (s calls) Check(_ context.Context, q *v1.KeeperCheckRequest) (*v1.KeeperCheckResponse, error) {
	return answered(s.k, "check", q, s.k.Check)
}

func (s calls) Release(_ context.Context, q *v1.KeeperReleaseRequest) (*v1.KeeperReleaseResponse, error) {
	return answered(s.k, "release", q, s.k.Release)
}

// answered calls a method, and converts its error to an error that the caller may see.
func answered[Q, A any](k *Keeper, call string, q *Q, do func(*Q) (*A, error)) (*A, error) {
	a, err := do(q)
	if err == nil {
		return a, nil
	}
	refused := (*Refusal)(nil)
	if !errors.As(err, &refused) {
		k.options.Log.Error("a call failed", "call", call, "error", err)
		return nil, connect.NewError(connect.CodeInternal, errors.New("the keeper cannot read or write its folder; see its log"))
	}
	k.options.Log.Warn("refused a call", "call", call, "rule", refused.Rule, "reason", refused.Reason)
	wire := connect.NewError(connect.CodeFailedPrecondition, refused)
	detail, err := connect.NewErrorDetail(&v1.KeeperRefusal{Rule: refused.Rule, Reason: refused.Reason})
	if err != nil {
		return nil, err
	}
	wire.AddDetail(detail)
	return nil, wire
}
