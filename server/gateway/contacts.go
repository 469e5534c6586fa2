package gateway

import (
	"maps"
	"sync"
	"time"
)

// contacts remembers when each agent last contacted this gateway, and when the next contact is
// due. The ledger stores contacts up to a minute later, which is too late to detect an agent
// that falls silent while training.
type contacts struct {
	mu sync.Mutex
	of map[string]contact
	// refused contains, by agent, the names that the server refused when the agent last
	// announced its clients. An agent with such names announces them repeatedly.
	refused map[string][]string
}

type contact struct {
	at   time.Time
	next time.Duration
}

func (c *contacts) note(agent string, now time.Time, next time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil || len(c.of) >= maxSeen {
		c.of = map[string]contact{} // the contacts are recorded again later
	}
	c.of[agent] = contact{now, next}
}

// Contact returns the time of an agent's last contact with this gateway, and the interval after
// which the agent was asked to call again. ok is false if the agent has not called since the
// gateway started.
func (g *Gateway) Contact(agent string) (at time.Time, next time.Duration, ok bool) {
	g.contacts.mu.Lock()
	defer g.contacts.mu.Unlock()
	c, ok := g.contacts.of[agent]
	return c.at, c.next, ok
}

// refuse stores the names that an agent has announced but may not have.
func (c *contacts) refuse(agent string, names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refused == nil || len(c.refused) >= maxSeen {
		c.refused = map[string][]string{}
	}
	delete(c.refused, agent)
	if len(names) > 0 {
		c.refused[agent] = names
	}
}

// Refused returns, by agent, the announced clients that the agent may not have, because they are
// revoked or belong to another agent.
func (g *Gateway) Refused() map[string][]string {
	g.contacts.mu.Lock()
	defer g.contacts.mu.Unlock()
	return maps.Clone(g.contacts.refused)
}
