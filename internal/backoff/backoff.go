// Package backoff spaces retries. The delay doubles after each failure, up to a limit,
// and is randomized.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff computes the delays between the attempts of one caller. It is not safe for
// concurrent use.
type Backoff struct {
	// Base is the upper bound of the first delay. Cap is the upper bound of all delays.
	Base, Cap time.Duration
	// Rand returns a random number in [0, n). If it is nil, math/rand/v2 is used.
	Rand func(n int64) int64

	bound time.Duration // upper bound of the latest delay
}

// Next returns the delay after another failure. It lies between half the current bound
// and the bound, so that callers that failed together do not retry together.
func (b *Backoff) Next() time.Duration {
	b.bound = min(max(2*b.bound, b.Base), b.Cap)
	random := b.Rand
	if random == nil {
		random = rand.Int64N
	}
	half := b.bound / 2
	return half + time.Duration(random(int64(b.bound-half)+1))
}

// Reset starts again from Base. Call it after a success.
func (b *Backoff) Reset() { b.bound = 0 }

// Wait waits for the delay that Next returns. If ctx ends first, it returns the cause.
func (b *Backoff) Wait(ctx context.Context) error { return Sleep(ctx, b.Next()) }

// Sleep waits for d. If ctx has ended by then, it returns the cause.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
	return context.Cause(ctx) // both can happen at once
}

// Poll waits for d or for a notification, and receives all pending notifications, because a
// caller that looks once has handled all of them. It sets notified to nil when the channel is
// closed, since receiving from a closed channel would spin. It returns false if ctx has ended.
func Poll[T any](ctx context.Context, d time.Duration, notified *<-chan T) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
	case _, ok := <-*notified:
		if !ok {
			*notified = nil
		}
	}
	for {
		select {
		case _, ok := <-*notified:
			if !ok {
				*notified = nil
			}
		default:
			return ctx.Err() == nil
		}
	}
}
