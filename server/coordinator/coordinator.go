// Package coordinator drives runs: it opens rounds, asks clients, closes rounds and
// moves the shared weights. All that it knows of a run is in the ledger and in blobs,
// so another one can go on at any point; of several, one holds the lead.
package coordinator

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"loadstar/server/blob"
	"loadstar/server/ledger"
)

// Config is what a coordinator works with.
type Config struct {
	Ledger *ledger.Ledger
	Blobs  blob.Store
	// Name tells coordinators apart. Two at work must not share one; a new one under
	// the name of one that is gone goes on at once.
	Name string
	// Lease is how long an agent that says nothing may take over a turn, once it knows of
	// it. Reach is when at the latest an idle agent, of so many, will have checked in.
	Lease time.Duration
	Reach func(agents int64) time.Duration
	// Lead is how long a coordinator that has died keeps others from going on.
	Lead time.Duration
	// Poll is how often the ledger is looked at without a hint.
	Poll time.Duration
	// Wake tells others that a run has moved, and Woken is told so by them. Both are
	// hints, and may be lost.
	Wake    func(run string)
	Woken   <-chan string
	Log     *slog.Logger
	Metrics prometheus.Registerer

	now func() time.Time // time.Now outside of tests
}

// coordinator is one at work.
type coordinator struct {
	Config
	metrics *metrics
	lead    ledger.Lead
	until   time.Time // the lead is ours at least so long
	renew   time.Time
	drivers map[string]*driver
	reach   time.Duration // as of lately
	count   time.Time     // when agents are counted again
}

// Run coordinates until the context ends, or stands by while another does.
func Run(ctx context.Context, c Config) error {
	c.now = time.Now
	k := newCoordinator(c)
	defer k.resign(ctx)
	poll := time.NewTicker(c.Poll)
	defer poll.Stop()
	for {
		k.tick(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-poll.C:
		case _, ok := <-c.Woken:
			if !ok {
				c.Woken = nil // the bus is closed: no hint comes any more
			}
		}
	}
}

func newCoordinator(c Config) *coordinator {
	return &coordinator{Config: c, metrics: newMetrics(c.Metrics), drivers: map[string]*driver{}}
}

// tick advances all active runs as far as possible.
func (k *coordinator) tick(ctx context.Context) {
	if !k.holdsLead(ctx) {
		return
	}
	k.countAgents(ctx)
	active, err := k.Ledger.Active(ctx)
	if err != nil {
		k.warn(ctx, "reading the runs", err)
		return
	}
	open := make(map[string]bool, len(active))
	for _, a := range active {
		open[a.ID] = true
		d := k.drivers[a.ID]
		if d == nil {
			d = &driver{coordinator: k, id: a.ID, log: k.Log.With("run", a.ID)}
			k.drivers[a.ID] = d
		}
		if !d.needsLook(a, k.now()) {
			continue
		}
		if err := d.advance(ctx); err != nil {
			// Whether something was committed is unknown: all is read anew.
			delete(k.drivers, a.ID)
			k.warn(ctx, "driving a run", err, "run", a.ID)
			if errors.Is(err, ledger.ErrDeposed) {
				k.until = time.Time{}
				clear(k.drivers)
				return
			}
		}
	}
	for id := range k.drivers {
		if !open[id] {
			delete(k.drivers, id)
		}
	}
}

// countEvery is how often agents are counted; where that takes long, less often.
const countEvery = 10 * time.Second

// countAgents updates how long it takes until every agent has checked in.
func (k *coordinator) countAgents(ctx context.Context) {
	now := k.now()
	if now.Before(k.count) {
		return
	}
	n, err := k.Ledger.Agents(ctx)
	if err != nil {
		k.warn(ctx, "counting agents", err)
	} else {
		k.reach = k.Reach(n)
	}
	k.count = now.Add(max(countEvery, 20*k.now().Sub(now)))
}

func (k *coordinator) warn(ctx context.Context, doing string, err error, args ...any) {
	if ctx.Err() == nil {
		k.Log.Warn("cannot go on for now", append([]any{"doing", doing, "error", err}, args...)...)
	}
}

// holdsLead takes or renews the lead, and reports whether it is held.
func (k *coordinator) holdsLead(ctx context.Context) bool {
	now := k.now()
	if now.Before(k.renew) {
		return now.Before(k.until)
	}
	lead, err := k.Ledger.Lead(ctx, k.Name, k.Lead, now)
	if err != nil {
		if k.until.After(now) {
			k.warn(ctx, "keeping the lead", err)
			return true
		}
		k.renew = now.Add(k.Lead / 4)
		if !errors.Is(err, ledger.ErrRefused) {
			k.warn(ctx, "taking the lead", err)
		}
		k.metrics.leading.Set(0)
		return false
	}
	if lead != k.lead {
		k.Log.Info("this coordinator leads", "epoch", lead.Epoch)
		clear(k.drivers)
	}
	k.lead, k.until, k.renew = lead, now.Add(k.Lead), now.Add(k.Lead/3)
	k.metrics.leading.Set(1)
	return true
}

// resign lets another go on at once.
func (k *coordinator) resign(ctx context.Context) {
	if k.now().After(k.until) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := k.Ledger.Resign(ctx, k.lead); err != nil {
		k.Log.Warn("cannot resign", "error", err)
	}
}
