package gateway

import (
	"context"
	"errors"
	"time"

	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

// tasks creates the tasks for agents.
type tasks struct {
	terms      *terms.Cache
	history    *history
	heads      *heads
	newClients *newClients
}

// of returns one task per round for the given leases, with the blobs that the agent must
// fetch and the heads that it has not seen.
func (b *tasks) of(ctx context.Context, leases []ledger.Task, seen []*v1.SeenHead, now time.Time) (all []*v1.Task, err error) {
	var last *v1.Task
	for _, l := range leases {
		if last == nil || last.Run != l.Run || last.Round != l.Round || last.Version != l.Version {
			if last, err = b.task(ctx, l, seen, now); err != nil {
				return nil, err
			}
			if last == nil {
				continue
			}
			all = append(all, last)
		}
		last.Clients = append(last.Clients, l.Client)
		last.LeaseMs = min(last.LeaseMs, l.Until.Sub(now).Milliseconds())
	}
	return all, nil
}

// task returns the task of a lease, without clients. It returns nil if the version was
// deleted, because the lease is then about to be withdrawn.
func (b *tasks) task(ctx context.Context, l ledger.Task, seen []*v1.SeenHead, now time.Time) (*v1.Task, error) {
	t, err := b.terms.Of(ctx, l.Run)
	if err != nil {
		return nil, err
	}
	v, err := b.history.version(ctx, l.Run, l.Version)
	if errors.Is(err, ledger.ErrNotFound) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	limits, err := terms.DecodeLimits(v.Limits)
	if err != nil {
		return nil, err
	}
	heads, err := b.heads.after(ctx, l.Run, l.Version, seen)
	if err != nil {
		return nil, err
	}
	privacy, err := b.history.privacy(ctx, t, l)
	if err != nil {
		return nil, err
	}
	return &v1.Task{
		Privacy: privacy,
		Run:     l.Run, Round: l.Round, Version: l.Version, Plan: t.Blob, Weights: v.Weights, Control: v.Control, Limits: limits,
		LeaseMs: l.Until.Sub(now).Milliseconds(), Fold: t.Folds(), Fleet: int64(t.Fleet), Heads: heads,
	}, nil
}

// adapt returns the tasks for an agent's held-out clients, one for each run.
func (b *tasks) adapt(ctx context.Context, agent string, seen []*v1.SeenHead) (all []*v1.Task, err error) {
	of := b.newClients.of(agent)
	var last *v1.Task
	for _, c := range of[:min(len(of), maxNewOfAgent)] {
		if last == nil || last.Run != c.Run {
			t, err := b.terms.Of(ctx, c.Run)
			if err != nil {
				return nil, err
			}
			l := ledger.Task{Turn: ledger.Turn{Run: c.Run, Round: int64(t.Plan.Rounds)}, Version: c.Version}
			if last, err = b.task(ctx, l, seen, l.Until); err != nil {
				return nil, err
			}
			if last == nil {
				continue
			}
			last.Fold = false
			all = append(all, last)
		}
		last.Clients = append(last.Clients, c.Client)
	}
	return all, nil
}
