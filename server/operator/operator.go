// Package operator serves the operators' API, which the command line and the dashboard use.
package operator

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"loadstar/fed"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/access"
	"loadstar/server/ledger"
	"loadstar/server/pki"
)

// Config holds the dependencies and settings of the operators' API.
type Config struct {
	Ledger *ledger.Ledger
	// Access creates logins. Authority signs users' certificates, and join tokens contain its
	// pin.
	Access    *access.Gate
	Authority *pki.Authority
	// Page is the address of the dashboard, or empty.
	Page string
	// Agents is the address for agents. Apart means that operators have a separate address.
	Agents string
	Apart  bool
	// Hub is the address of the hub if this is a region's server, and otherwise empty.
	Hub string
	// Version is the version of the server's program.
	Version string
	// Quiet returns the time after which an agent that has not called counts as quiet,
	// given the fleet's size.
	Quiet func(agents int64) time.Duration
	// Contact returns the time of an agent's last call to this process, and the time until its
	// next call is due. It may be nil.
	Contact func(agent string) (at time.Time, next time.Duration, ok bool)
	// Refused returns the clients that agents announced but may not host, by agent. It may be
	// nil.
	Refused func() map[string][]string
	// Keepers returns an error if the server does not have the named keepers. It may be nil.
	Keepers func(names []string) error
	// Deadline applies to rounds whose plan has none. 0 means no deadline.
	Deadline time.Duration
	// Wake notifies the coordinator of a change in a run.
	Wake func(run string)
	// Revoked is called with the id of a revoked agent before the operator's call returns.
	Revoked func(agent string)
	// Explain describes a plan for a number of clients. It may be nil.
	Explain func(p *fed.Plan, clients int) (string, error)
	// Closing is closed when the server shuts down. Calls of WatchRun then end.
	Closing <-chan struct{}
	Log     *slog.Logger
}

// Operator implements the operators' API. It is safe for concurrent use. Each of its parts
// handles the calls about one subject.
type Operator struct {
	*people
	*releases
	*runs
	*fleet
}

var _ v1.OperatorServiceHandler = (*Operator)(nil)

const (
	maxPage     = 1000
	maxWatchers = 64
	watchEvery  = 500 * time.Millisecond
	// checkEvery is how often a stream checks that its caller still has access.
	checkEvery = 2 * time.Second
	maxPlan    = 1 << 20
)

// New returns an Operator.
func New(c Config) *Operator {
	n := &numbers{Config: &c}
	r := &runs{Config: &c, numbers: n, watching: make(chan struct{}, maxWatchers), explaining: make(chan struct{}, 1)}
	return &Operator{&people{&c}, &releases{&c}, r, &fleet{&c, n, r}}
}

// Handler returns the handler of the operators' API. The context of each request must carry
// the caller (see package access).
func (o *Operator) Handler() http.Handler {
	_, service := v1.NewOperatorServiceHandler(o, connect.WithReadMaxBytes(2*maxPlan))
	errorWriter := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Check the caller before reading anything that it sends.
		if err := access.Allow(r.Context(), r.URL.Path); err != nil {
			_ = errorWriter.Write(w, r, err) // a failed write means that the caller has disconnected
			return
		}
		service.ServeHTTP(w, r)
	})
}

// actor returns the caller's description for the audit log. Handler has checked that the caller
// is known.
func actor(ctx context.Context) string {
	c, _ := access.From(ctx)
	return c.String()
}

// wireError converts a ledger error to an error with a status code for the caller.
func (c *Config) wireError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ledger.ErrNotFound):
		return connect.NewError(connect.CodeNotFound, err)
	case errors.Is(err, ledger.ErrRefused):
		return connect.NewError(connect.CodeFailedPrecondition, err)
	case errors.Is(err, context.Canceled):
		return err
	}
	c.Log.Warn("cannot serve an operator", "error", err)
	return connect.NewError(connect.CodeUnavailable, err)
}

func page(limit int32, usual int) int {
	if limit <= 0 {
		return usual
	}
	return min(int(limit), maxPage)
}

func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}
