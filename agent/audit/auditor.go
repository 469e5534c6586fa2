package audit

import (
	"context"
	"errors"
	"sync"
)

// Errors that callers distinguish.
var (
	// ErrIdle means that the agent does not train, so there are no updates.
	ErrIdle = errors.New("this agent does not train for a server, so nothing leaves it")
	// ErrBusy means that another audit is running.
	ErrBusy = errors.New("another audit is running; try again when it has finished")
)

// Report is the result of a client's audit. It stays on the agent's machine.
type Report struct {
	Client string `json:"client"`
	Run    string `json:"run"`
	// Round is the round of the newest update, counted from 1. Pending reports that the server
	// has not counted it yet.
	Round   int  `json:"round"`
	Pending bool `json:"pending"`
	// Stored is the size in bytes of the weights that the agent keeps for audits.
	Stored  int64    `json:"stored_bytes"`
	Attacks []Attack `json:"attacks"`
}

// The states of an audit.
const (
	None    = "none" // no audit was requested
	Running = "running"
	Done    = "done"
	Failed  = "failed"
)

// Status is the state of a client's audit.
type Status struct {
	Client string  `json:"client"`
	State  string  `json:"state"`
	Share  float64 `json:"share_done"` // completed share of the work
	Error  string  `json:"error"`      // error if it failed
	Report *Report `json:"report"`     // report if it is done
}

// Auditor passes requests for audits to the running agent, and holds the newest result. The
// zero value is ready to use. It is safe for concurrent use.
type Auditor struct {
	mu     sync.Mutex
	asked  chan string // nil while no agent serves
	newest Status
}

// Start requests the audit of a client and does not wait. It does not restart an audit
// that is already running.
func (a *Auditor) Start(client string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.asked == nil:
		return ErrIdle
	case a.newest.State == Running && a.newest.Client == client:
		return nil
	case a.newest.State == Running:
		return ErrBusy
	}
	a.newest = Status{Client: client, State: Running}
	a.asked <- client // the channel has room, because only one audit runs at a time
	return nil
}

// Status returns the state of a client's audit.
func (a *Auditor) Status(client string) Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.newest.Client != client {
		return Status{Client: client, State: None}
	}
	return a.newest
}

// Serve runs the requested audits until ctx ends.
func (a *Auditor) Serve(ctx context.Context, do func(ctx context.Context, client string, progress func(done, of int)) (*Report, error)) {
	asked := make(chan string, 1)
	a.mu.Lock()
	a.asked = asked
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.asked = nil
		if a.newest.State == Running {
			a.newest = Status{Client: a.newest.Client, State: Failed, Error: ErrIdle.Error()}
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case client := <-asked:
			report, err := do(ctx, client, func(done, of int) {
				a.mu.Lock()
				defer a.mu.Unlock()
				a.newest.Share = float64(done) / float64(of)
			})
			a.mu.Lock()
			a.newest = Status{Client: client, State: Done, Share: 1, Report: report}
			if err != nil {
				a.newest = Status{Client: client, State: Failed, Error: err.Error()}
			}
			a.mu.Unlock()
		}
	}
}
