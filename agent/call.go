package agent

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"connectrpc.com/connect"
)

// jitter spreads a time by a tenth both ways.
func jitter(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}

// pause waits for a time, for something to happen, or for ctx to end.
func pause(ctx context.Context, d time.Duration, wake <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-wake:
	case <-ctx.Done():
	}
}

// revoked says whether the server itself refuses the agent. Something on the way that
// answers 403 is no such thing.
func revoked(err error) bool {
	return connect.IsWireError(err) && connect.CodeOf(err) == connect.CodePermissionDenied
}

// understood says that the server has looked at a request and does not want it, so
// that repeating it is of no use.
func understood(err error) bool {
	if !connect.IsWireError(err) {
		return false
	}
	switch connect.CodeOf(err) {
	case connect.CodeInvalidArgument, connect.CodeNotFound, connect.CodeAlreadyExists,
		connect.CodeFailedPrecondition, connect.CodeOutOfRange, connect.CodeUnimplemented:
		return true
	}
	return false
}

// call calls the server and gives up after a time. Connections over which nothing
// came back are not used again: they may be dead without anybody knowing.
func call[Q, R any](ctx context.Context, a *agent, limit time.Duration, do func(context.Context, *Q) (*R, error), q *Q) (*R, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r, err := do(ctx, q)
	switch {
	case revoked(err):
		return nil, fmt.Errorf("%w: %w", ErrRevoked, err)
	case err != nil && !connect.IsWireError(err):
		a.Client.CloseIdleConnections()
	}
	return r, err
}
