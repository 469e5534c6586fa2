package operator

import (
	"context"
	"time"

	"loadstar/server/directory"
)

// numbers counts agents and clients, and determines which agents are silent.
type numbers struct {
	*Config
	counts  cached[directory.FleetCounts]
	silents cached[map[string]bool]
}

// fleet returns the numbers of agents and clients.
func (o *numbers) fleet(ctx context.Context) (directory.FleetCounts, error) {
	return o.counts.get(ctx, func(ctx context.Context) (directory.FleetCounts, error) {
		n, err := o.Ledger.Directory.Agents(ctx)
		if err != nil {
			return directory.FleetCounts{}, err
		}
		now := o.Ledger.Now()
		return o.Ledger.Directory.CountFleet(ctx, now.Add(-o.quietAfter(n)), now.Add(expiringWithin))
	})
}

func (o *numbers) quietAfter(agents int64) time.Duration {
	if o.Quiet == nil {
		return 2 * time.Minute
	}
	return o.Quiet(agents)
}

// contact returns the time at which an agent was last seen, and whether it has missed three
// expected contacts.
func (o *numbers) contact(agent string, stored time.Time) (seen time.Time, silent bool) {
	at, next, ok := time.Time{}, time.Duration(0), false
	if o.Contact != nil {
		at, next, ok = o.Contact(agent)
	}
	if !ok || stored.After(at.Add(leastSilence)) { // the agent checks in at another gateway
		return stored, false
	}
	return at, time.Since(at) > max(3*next, leastSilence)
}

// silent returns the agents that are training and have missed three expected contacts.
func (o *numbers) silent(ctx context.Context) (map[string]bool, error) {
	return o.silents.get(ctx, func(ctx context.Context) (map[string]bool, error) {
		train, err := o.Ledger.Counter.Training(ctx)
		all := map[string]bool{}
		for agent := range train {
			if _, silent := o.contact(agent, time.Time{}); silent {
				all[agent] = true
			}
		}
		return all, err
	})
}

// refusedClients returns the number of clients that agents announced but may not host.
func (o *numbers) refusedClients() (n int64) {
	if o.Refused != nil {
		for _, names := range o.Refused() {
			n += int64(len(names))
		}
	}
	return n
}
