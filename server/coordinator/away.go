package coordinator

import (
	"context"
	"maps"
	"slices"
	"time"
)

const (
	// seenStored exceeds the time within which gateways store a check-in.
	seenStored = 2 * time.Minute
	// silentFor is the time for which a run treats a member as silent before it checks again.
	silentFor = 30 * time.Second
	// askFor is the maximum time for which a transaction looks for members that are not
	// silent.
	askFor = 250 * time.Millisecond
	// longestBench is the maximum number of rounds for which an unreliable member is
	// skipped.
	longestBench = 64
)

// noteLastSeen remembers when gateways last saw an agent before this coordinator took the lead.
// Time during which no server was running does not count as silence of the agents.
func (k *coordinator) noteLastSeen(ctx context.Context) error {
	if k.Seen == nil {
		return nil
	}
	at, err := k.Ledger.Directory.LastSeen(ctx)
	if k.lastSeen = at; !at.IsZero() { // otherwise no agent can be silent
		k.settled = k.now().Add(k.reach + seenStored)
	}
	return err
}

// seenSince returns the time since which an agent must have been seen for its clients to be
// asked.
func (k *coordinator) seenSince() time.Time {
	if k.Seen == nil {
		return time.Time{}
	}
	now := k.now()
	if now.Before(k.settled) && k.lastSeen.Before(now) {
		now = k.lastSeen
	}
	return now.Add(-k.Seen(k.agents))
}

// bench counts the consecutive turns that a member has lost. back is the round in which the
// member is asked again.
type bench struct{ losses, back int }

// lost records that a member did not answer in time. After two losses in a row, the member is
// skipped for one round, then for two, four, and so on. A member that never answers therefore
// costs a run only a few rounds. The count is not stored; a new coordinator starts from zero.
func (d *driver) lost(client, round int) {
	b := d.benched[client]
	b.losses++
	skip := 0
	if b.losses > 1 {
		skip = min(1<<min(b.losses-2, 16), longestBench)
	}
	b.back = round + 1 + skip
	d.benched[client] = b
}

// setAway sets the members that the machine must not select in the current round.
func (d *driver) setAway() {
	round := d.machine.Round()
	var away []int
	for c, b := range d.benched {
		if b.back > round {
			away = append(away, c)
		}
	}
	// If half of the fleet does not answer, the members are not at fault.
	if 2*len(away) >= d.terms.Fleet {
		clear(d.benched)
		away = nil
	}
	if !d.now().Before(d.silentUntil) {
		clear(d.silent)
		d.silentUntil = d.now().Add(silentFor)
	}
	d.machine.SetAway(slices.AppendSeq(away, maps.Keys(d.silent)))
}
