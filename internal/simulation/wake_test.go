package simulation

import "time"

// wake notifies the coordinators of a site on behalf of a part. A notification can be lost.
func (at *site) wake(p *part) func(run string) {
	return func(run string) {
		p.s.mu.Lock()
		defer p.s.mu.Unlock()
		if p.dead || time.Now().Before(p.cut) {
			return
		}
		for _, ch := range at.woken {
			select {
			case ch <- run:
			default:
			}
		}
	}
}

// listen returns the channel on which a coordinator or relay is notified.
func (at *site) listen(p *part) <-chan string {
	ch := make(chan string, 64)
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	at.woken[p.name] = ch
	return ch
}
