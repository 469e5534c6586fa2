package agent

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"connectrpc.com/connect"

	"loadstar/internal/backoff"
)

// random returns the source of random numbers of one of the agent's goroutines.
func (a *agent) random(goroutine string) func(n int64) int64 {
	if a.Rand == nil {
		return rand.Int64N
	}
	return a.Rand(goroutine)
}

// retry returns the delays between a goroutine's attempts.
func (a *agent) retry(goroutine string) backoff.Backoff {
	return backoff.Backoff{Base: a.first, Cap: a.most, Rand: a.random(goroutine)}
}

// jitter changes a duration at random by up to ten percent, so that agents do not call at
// the same moment.
func jitter(random func(int64) int64, d time.Duration) time.Duration {
	return d - d/10 + time.Duration(random(int64(d/5)+1))
}

// pause waits until d has passed, wake receives a signal, or ctx ends.
func pause(ctx context.Context, d time.Duration, wake <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-wake:
	case <-ctx.Done():
	}
}

// revoked reports whether the server itself refuses the agent. A 403 response from a proxy
// does not count.
func revoked(err error) bool {
	return connect.IsWireError(err) && connect.CodeOf(err) == connect.CodePermissionDenied
}

// understood reports whether the server processed a request and refused it, so that
// repeating the request would not help.
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

// call calls the server with a timeout. If no response arrives, it closes the idle
// connections, because they may be broken without an error.
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
