// Package coordinator drives runs. It opens rounds, asks clients to train, closes rounds
// and merges their updates into the shared weights. The state of a run is in the ledger and
// in blobs, so another coordinator can take over at any point. Several coordinators may
// run; only the one that holds the lead is active.
//
// In a region, [RunRegion] relays a hub's tasks to the agents and returns their results. To the
// hub, a region looks like an agent with many clients. To its agents, it looks like an ordinary
// server. All state is in the region's ledger, so the relay can be killed at any point and the
// hub can be unreachable for hours.
package coordinator

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"loadstar/internal/backoff"
	"loadstar/server/blob"
	"loadstar/server/keepers"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

// Config configures a coordinator.
type Config struct {
	Ledger *ledger.Ledger
	Blobs  blob.Store
	// Name identifies the coordinator. Two running coordinators must not share a name. A
	// coordinator that restarts with the same name regains its lead immediately.
	Name string
	// Lease is the time for which a turn stays valid without a call from its agent, once the
	// agent has received it. Reach returns the time within which every idle agent calls, given
	// the number of agents.
	Lease time.Duration
	Reach func(agents int64) time.Duration
	// Longest is the longest time that a turn may take, however often its agent calls. It also
	// determines the deadline of plans that set none. 0 means no limit.
	Longest time.Duration
	// Seen returns the time after an agent's last call from which on its clients are no longer
	// asked, given the number of agents. If it is nil, all clients are asked.
	Seen func(agents int64) time.Duration
	// Lead is the duration of the lead. After a coordinator dies, the other coordinators wait
	// for at most this long.
	Lead time.Duration
	// Poll is the interval at which the coordinator reads the ledger if it receives no
	// notification.
	Poll time.Duration
	// Data is the coordinator's own data, or nil. All coordinators of a server should have the
	// same data. A run that needs different data waits.
	Data *terms.OwnData
	// Keepers are the keepers of private plans, or nil.
	Keepers *keepers.Set
	// Wake notifies other processes of a change in a run, and Woken receives notifications from
	// them. Notifications may be lost.
	Wake func(run string)
	// WakeAgents notifies gateways of new leases in a run. It may be nil.
	WakeAgents func(run string)
	Woken      <-chan string
	Log        *slog.Logger
	Metrics    prometheus.Registerer

	now func() time.Time // the database's clock; replaced by tests
}

// coordinator is the state of a running coordinator.
type coordinator struct {
	Config
	metrics   *metrics
	lead      ledger.Lead
	until     time.Time // time until which this coordinator certainly holds the lead
	renew     time.Time
	drivers   map[string]*driver
	agents    int64         // last count of agents
	reach     time.Duration // result of Reach for this count
	lastSeen  time.Time     // time at which an agent was last seen before this coordinator took the lead
	settled   time.Time     // time from which every agent that calls has been seen
	nextCount time.Time     // time of the next count of the agents
	latest    time.Time     // the database's time at the last tick
	start     *start        // nil unless the initial weights of a run are being trained
	trainings sync.WaitGroup
	// unmaskings contains the requests to keepers, by run. They continue if a driver is
	// discarded.
	unmaskings map[string]*unmasking
}

// Run drives all runs until ctx ends. While another coordinator has the lead, Run waits.
func Run(ctx context.Context, c Config) error {
	c.now = c.Ledger.Store.Now
	k := newCoordinator(c)
	defer k.trainings.Wait()
	defer k.resign(ctx)
	for {
		k.tick(ctx)
		if !backoff.Poll(ctx, c.Poll, &c.Woken) || backoff.Sleep(ctx, gatherFor) != nil {
			return nil
		}
	}
}

// gatherFor is the time for which a coordinator waits after a notification. Each counted batch
// of a round causes a notification, and the coordinator can process several batches at once.
const gatherFor = 20 * time.Millisecond

func newCoordinator(c Config) *coordinator {
	return &coordinator{Config: c, metrics: newMetrics(c.Metrics), drivers: map[string]*driver{}, unmaskings: map[string]*unmasking{}}
}

// tick does all work that is due now for all active runs.
func (k *coordinator) tick(ctx context.Context) {
	k.noticeSetBack()
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
			d = &driver{coordinator: k, id: a.ID, log: k.Log.With("run", a.ID), silent: map[int]bool{}, opened: -1, benched: map[int]bench{}}
			k.drivers[a.ID] = d
		}
		if !d.needsLook(a, k.now()) {
			continue
		}
		if err := d.advance(ctx); err != nil {
			// It is unknown whether the transaction was committed, so read the run again.
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
	for id := range k.unmaskings {
		if !open[id] {
			k.forgetUnmasking(id)
		}
	}
	if k.start != nil && !open[k.start.run] {
		k.endStart()
	}
}

// setBackBy is the minimum step back of the database's clock that counts as setting it back.
// Two measurements of the clock can differ by milliseconds.
const setBackBy = 5 * time.Second

// noticeSetBack clears all times until which this coordinator waits if the database's clock was
// set back. Otherwise runs would wait for a year if the clock had been a year ahead. Everything
// else in the drivers' memory is also in the ledger.
func (k *coordinator) noticeSetBack() {
	now := k.now()
	if now.Add(setBackBy).Before(k.latest) {
		k.Log.Warn("the database's clock was set back", "by", k.latest.Sub(now).Round(time.Second))
		k.until, k.renew, k.nextCount, k.settled = time.Time{}, time.Time{}, time.Time{}, time.Time{}
		clear(k.drivers)
	}
	k.latest = now
}

// countEvery is the minimum interval between counts of the agents. If counting is slow,
// the interval is longer.
const countEvery = 10 * time.Second

// countAgents counts the agents, and updates the time within which every agent calls.
func (k *coordinator) countAgents(ctx context.Context) {
	now := k.now()
	if now.Before(k.nextCount) {
		return
	}
	start := time.Now() // the database's clock may jump during the count
	n, err := k.Ledger.Directory.Agents(ctx)
	if err != nil {
		k.warn(ctx, "counting agents", err)
	} else {
		k.agents, k.reach = n, k.Reach(n)
	}
	k.nextCount = k.now().Add(max(countEvery, 20*time.Since(start)))
}

func (k *coordinator) warn(ctx context.Context, doing string, err error, args ...any) {
	if ctx.Err() == nil {
		k.Log.Warn("cannot advance runs, retrying", append([]any{"doing", doing, "error", err}, args...)...)
	}
}

// holdsLead takes or renews the lead when it is due. It reports whether this coordinator
// holds the lead.
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
		k.endStart()
		return false
	}
	if lead != k.lead {
		if err := k.Ledger.SetLeadersData(ctx, lead, k.Data.Fingerprint()); err != nil {
			k.warn(ctx, "taking the lead", err)
			k.renew = now.Add(k.Lead / 4)
			return false
		}
		k.countAgents(ctx)
		if err := k.noteLastSeen(ctx); err != nil {
			k.warn(ctx, "taking the lead", err)
			k.renew = now.Add(k.Lead / 4)
			return false
		}
		k.Log.Info("this coordinator has the lead", "epoch", lead.Epoch)
		clear(k.drivers)
	}
	k.lead, k.until, k.renew = lead, now.Add(k.Lead), now.Add(k.Lead/3)
	k.metrics.leading.Set(1)
	return true
}

// resign releases the lead, so that another coordinator can take over at once.
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
