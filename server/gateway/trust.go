package gateway

import (
	"sync"
	"time"

	"loadstar/server/directory"
)

const (
	// trustFor is the time for which a gateway relies on an earlier lookup of an agent if it
	// does not know whether anything has been revoked since. A revocation in another process
	// therefore takes effect in this gateway within this time.
	trustFor = time.Second
	// knownFor is the time for which a gateway relies on a lookup if it knows that nothing has
	// been revoked since.
	knownFor   = time.Minute
	maxTrusted = 100_000 // agents
)

// trust caches which agents are allowed to call according to the ledger, and with which
// certificate. It is safe for concurrent use.
type trust struct {
	mu      sync.Mutex
	known   map[string]trusted // by agent
	drops   uint64             // number of drops
	stamp   int64              // changes with revocations
	checked time.Time          // when the stamp was read
}

// trusted is an agent that may call with a certificate.
type trusted struct {
	directory.Caller
	serial string
	began  time.Time // start of the lookup
}

// lookup is the state at the start of a ledger query.
type lookup struct {
	began time.Time
	drops uint64
}

func newTrust() *trust { return &trust{known: map[string]trusted{}} }

// begin starts a lookup. Call it before querying the ledger.
func (t *trust) begin() lookup {
	t.mu.Lock()
	defer t.mu.Unlock()
	return lookup{time.Now(), t.drops}
}

// end stores the outcome of a lookup. If something was dropped during the lookup, it stores no
// trust, because the ledger may have answered before the revocation.
func (t *trust) end(agent, serial string, c directory.Caller, l lookup, allowed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.known, agent)
	if !allowed || l.drops != t.drops {
		return
	}
	if len(t.known) >= maxTrusted {
		clear(t.known) // the map is full; the agents are looked up again
	}
	t.known[agent] = trusted{c, serial, l.began}
}

// get returns an agent that was allowed to call with this certificate.
func (t *trust) get(agent, serial string) (c directory.Caller, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	has, ok := t.known[agent]
	if !ok || has.serial != serial {
		return c, false
	}
	now := time.Now()
	limit := trustFor
	if now.Sub(t.checked) < readFor && has.Uses(serial) {
		limit = knownFor
	}
	return has.Caller, now.Sub(has.began) < limit
}

// check stores the stamp that changes with revocations, and the time at which it was read. If
// the stamp has changed, all agents are looked up again, and check returns true.
func (t *trust) check(stamp int64, read time.Time) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	changed = stamp != t.stamp
	if t.stamp, t.checked = stamp, read; changed {
		t.drops++
		clear(t.known)
	}
	return changed
}

// drop removes an agent and discards the results of lookups in progress.
func (t *trust) drop(agent string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drops++
	delete(t.known, agent)
}

// dropAll removes all agents.
func (t *trust) dropAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drops++
	t.checked = time.Time{}
	clear(t.known)
}
