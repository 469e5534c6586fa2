package ledger

import "context"

// A notification is a string that consists of a kind and a run.
const (
	ofRun    = "run "
	ofLeases = "leases "
)

// Wake notifies the listeners in all processes that something happened in a run. It does not
// wait.
func (l *Ledger) Wake(run string) { l.Store.Notify(ofRun + run) }

// WakeAgents notifies gateways in all processes that a run has new leases. It does not wait.
func (l *Ledger) WakeAgents(run string) { l.Store.Notify(ofLeases + run) }

// Woken returns a channel with the runs for which this process or another one called Wake. An
// empty string means that notifications may have been lost. A full channel drops notifications.
func (l *Ledger) Woken(ctx context.Context) <-chan string { return l.Store.Notified(ctx, ofRun) }

// AgentsWoken is like Woken, but for WakeAgents.
func (l *Ledger) AgentsWoken(ctx context.Context) <-chan string {
	return l.Store.Notified(ctx, ofLeases)
}
