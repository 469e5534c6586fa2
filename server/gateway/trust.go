package gateway

import (
	"sync"
	"time"
)

const (
	// trustFor limits how long a gateway relies on an earlier lookup of an agent. A
	// revocation in another process therefore takes effect in this gateway within this
	// time.
	trustFor   = time.Second
	maxTrusted = 100_000 // agents
)

// trust caches which agents the ledger allowed to call, and with which certificate. It saves lookups, because an agent
// fetches weights and sends results right after a check-in, which has looked it up. It is
// safe for concurrent use.
type trust struct {
	mu    sync.Mutex
	until map[string]trusted // by agent
	drops uint64             // how often drop was called
}

// trusted is the certificate that an agent may use, and the end of the trust.
type trusted struct {
	serial string
	until  time.Time
}

// lookup is the state at the start of a ledger query.
type lookup struct {
	began time.Time
	drops uint64
}

func newTrust() *trust { return &trust{until: map[string]trusted{}} }

// begin starts a lookup. Call it before querying the ledger.
func (t *trust) begin() lookup {
	t.mu.Lock()
	defer t.mu.Unlock()
	return lookup{time.Now(), t.drops}
}

// end stores the outcome of a lookup. If drop was called during the lookup, it stores no
// trust, because the ledger may have answered before the revocation.
func (t *trust) end(agent, serial string, l lookup, allowed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.until, agent)
	if !allowed || l.drops != t.drops {
		return
	}
	if len(t.until) >= maxTrusted {
		clear(t.until) // the map is full; the agents are looked up again
	}
	t.until[agent] = trusted{serial, l.began.Add(trustFor)}
}

// has reports whether an agent was allowed with this certificate within the last trustFor.
func (t *trust) has(agent, serial string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	has, ok := t.until[agent]
	return ok && has.serial == serial && time.Now().Before(has.until)
}

// drop removes an agent and discards the results of lookups in progress.
func (t *trust) drop(agent string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drops++
	delete(t.until, agent)
}
