package simulation

import "time"

// wake notifies the coordinators of a site on behalf of a part. The notification can be lost.
func (at *site) wake(p *part) func(run string) { return notify(p, at.woken) }

// wakeAgents notifies the gateways of a site.
func (at *site) wakeAgents(p *part) func(run string) { return notify(p, at.told) }

func notify(p *part, whom map[string]chan string) func(run string) {
	return func(run string) {
		p.s.mu.Lock()
		defer p.s.mu.Unlock()
		if p.dead || time.Now().Before(p.cut) {
			return
		}
		for _, ch := range whom {
			select {
			case ch <- run:
			default:
			}
		}
	}
}

// listen returns the channel on which a coordinator or relay is notified.
func (at *site) listen(p *part) <-chan string { return listen(p, at.woken) }

// listenAgents returns the channel on which a gateway is notified.
func (at *site) listenAgents(p *part) <-chan string { return listen(p, at.told) }

func listen(p *part, where map[string]chan string) <-chan string {
	ch := make(chan string, 64)
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	where[p.name] = ch
	return ch
}
