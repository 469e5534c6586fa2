package coordinator

import (
	"context"
	"time"
)

const (
	// seenStored is longer than the time after which gateways have stored a check-in.
	seenStored = 2 * time.Minute
	// silentFor is how long a run remembers that a member is silent before it looks again.
	silentFor = 30 * time.Second
	// askFor limits the time that a transaction looks for members that are not silent.
	askFor = 250 * time.Millisecond
	// longestBench is the largest number of rounds in which an unreliable member is not
	// asked.
	longestBench = 64
)

// noteLastSeen stores when the previous coordinator's gateways last heard of an agent. Time
// in which no server ran does not count as silence of the agents.
func (k *coordinator) noteLastSeen(ctx context.Context) error {
	if k.Seen == nil {
		return nil
	}
	at, err := k.Ledger.Directory.LastSeen(ctx)
	if k.lastSeen = at; !at.IsZero() { // otherwise there is no agent that could be away
		k.settled = k.now().Add(k.reach + seenStored)
	}
	return err
}

// seenSince returns the time since when an agent must have been seen for its clients to be
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

// bench counts the turns that a member has lost in a row, and says from which round on it is
// asked again.
type bench struct{ losses, back int }

// lost notes that a member did not answer in time. After the second time in a row it is not
// asked in the next round, then not in two rounds, four, and so on: a member that never
// answers costs a run few of its rounds. This is not stored, so a new coordinator begins to
// count again.
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

// setAway tells the machine which members it must not select in the current round.
func (d *driver) setAway() {
	round := d.machine.Round()
	var away []int
	for c, b := range d.benched {
		if b.back > round {
			away = append(away, c)
		}
	}
	// If half of the fleet did not answer, the fault is not with the members.
	if 2*len(away) >= d.terms.Fleet {
		clear(d.benched)
		away = nil
	}
	if !d.now().Before(d.silentUntil) {
		clear(d.silent)
		d.silentUntil = d.now().Add(silentFor)
	}
	for c := range d.silent {
		away = append(away, c)
	}
	d.machine.SetAway(away)
}
