// Package agent hosts clients, meters or buildings: it trains them with the code that
// the simulator runs, keeps their personal layers, and talks to a server.
//
// An agent calls, and is never called. It announces its clients, checks in whenever
// the server told it to, and is given tasks: clients to train for a round of a run.
// What a task needs is fetched by hash. What comes of it is on disk before it is sent,
// and is sent until the server has decided on it: counted, and the clients keep what
// they trained; or not, and they keep what they had ([loadstar/agent/keep]). Whatever
// was lost in between is trained again, to the same bits.
//
// Three goroutines share one worklist: one checks in, one trains, one sends. None of them
// waits for another, so that neither a long training nor a slow link lets a lease run
// out.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"

	"loadstar/agent/state"
	"loadstar/nn/kernel"
	loadstarv1 "loadstar/proto/loadstar/v1"
	"loadstar/series"
)

// ErrRevoked says that the server refuses this agent, and will go on doing so.
var ErrRevoked = errors.New("the server refuses this agent: its certificate is revoked, or was never good for this")

// Config is an agent.
type Config struct {
	// Dir is the agent's folder. One agent uses it at a time.
	Dir string
	// Server is the base URL of the server.
	Server string
	// Client calls it, with the agent's certificate.
	Client *http.Client
	// Renew renews the certificate if that is due, and says whether it did. It is
	// called every hour, and may be nil.
	Renew func(ctx context.Context, now time.Time) (bool, error)
	// Dataset has the readings of the clients: all of its meters, by their names.
	Dataset *series.Dataset
	Kernel  *kernel.Set
	// Workers is how many clients are trained at a time; 0 is one.
	Workers int
	// Memory bounds what training takes, in bytes, beside the readings: a task that
	// needs more is declined. 0 is 256 MiB.
	Memory int64
	// Chunk is how many bytes of a result are sent at a time; 0 is 256 KiB.
	Chunk int
	// Log may be nil.
	Log *slog.Logger

	tuning *tuning // nil outside of tests
}

// tuning are times that nobody needs to set.
type tuning struct {
	first, most time.Duration // between attempts when the server is away
	// announceEvery is how often clients are announced again that the server does not
	// know, or refuses.
	announceEvery time.Duration
	call          time.Duration // until a short call is given up
	push          time.Duration // until a chunk is given up
	stall         time.Duration // until a download without a byte is given up
	renew         time.Duration // between looks at the certificate
}

var usual = tuning{
	first: time.Second, most: 5 * time.Minute, announceEvery: 10 * time.Minute,
	call: time.Minute, push: 5 * time.Minute, stall: time.Minute, renew: time.Hour,
}

// Run is an agent until ctx ends; then it returns nil. It returns an error only for
// what waiting cannot mend: a folder that another agent uses or that cannot be
// written, data that cannot be used, [ErrRevoked].
func Run(ctx context.Context, c Config) error {
	a, err := newAgent(c)
	if err != nil {
		return err
	}
	return errors.Join(a.run(ctx), a.store.Close())
}

// agent is a running one.
type agent struct {
	Config
	tuning
	meters   map[string]int // numbers in the dataset
	names    []string
	store    *state.Store
	blobs    *blobs
	service  loadstarv1.AgentServiceClient
	worklist *worklist
	session  *session // of the plan that was trained last; the trainer's own
}

func newAgent(c Config) (*agent, error) {
	switch {
	case c.Dataset == nil || c.Dataset.Len() == 0:
		return nil, errors.New("there are no readings, so there is no client to host")
	case c.Kernel == nil || c.Client == nil || c.Server == "" || c.Dir == "":
		return nil, errors.New("an agent needs a folder, a server, a way to call it, and a kernel")
	}
	a := &agent{Config: c, tuning: usual, meters: map[string]int{}}
	if c.tuning != nil {
		a.tuning = *c.tuning
	}
	a.Workers = max(a.Workers, 1)
	if a.Memory <= 0 {
		a.Memory = 256 << 20
	}
	if a.Chunk <= 0 {
		a.Chunk = 256 << 10
	}
	if a.Log == nil {
		a.Log = slog.New(slog.DiscardHandler)
	}
	for i := range c.Dataset.Len() {
		name := c.Dataset.Meter(i).ID
		if err := state.CheckName(name); err != nil {
			return nil, fmt.Errorf("meter number %d cannot be a client: %w", i, err)
		}
		if !utf8.ValidString(name) {
			return nil, fmt.Errorf("meter %q cannot be a client: its name is not UTF-8", name)
		}
		if _, twice := a.meters[name]; twice {
			return nil, fmt.Errorf("two meters are named %s", name)
		}
		a.meters[name] = i
		a.names = append(a.names, name)
	}
	var err error
	if a.store, err = state.Open(c.Dir); err != nil {
		return nil, err
	}
	if err := a.open(); err != nil {
		a.store.Close()
		return nil, err
	}
	return a, nil
}

// open takes up what the folder holds.
func (a *agent) open() error {
	results, err := a.store.Results()
	if err != nil {
		return err
	}
	a.worklist = newWorklist(a.names, results)
	a.blobs = &blobs{dir: filepath.Join(a.Dir, "blobs"), server: a.Server, client: a.Client, stall: a.stall}
	if err := a.blobs.prepare(); err != nil {
		return err
	}
	// A server's answer has a few turns of every client at the most.
	most := 64<<10 + len(a.names)<<10
	a.service = loadstarv1.NewAgentServiceClient(a.Client, a.Server, connect.WithReadMaxBytes(most))
	if len(results) > 0 {
		a.Log.Info("results wait for the server's decision", "results", len(results))
	}
	return nil
}

// run lets the parts run until ctx ends, or one of them cannot go on.
func (a *agent) run(outer context.Context) error {
	ctx, stop := context.WithCancelCause(outer)
	defer stop(nil)
	var wg sync.WaitGroup
	for _, part := range []func(context.Context) error{a.contact, a.train, a.send, a.renewals} {
		wg.Go(func() {
			if err := part(ctx); err != nil && ctx.Err() == nil {
				stop(err)
			}
		})
	}
	wg.Wait()
	if outer.Err() != nil {
		return nil
	}
	return context.Cause(ctx)
}

// renewals looks at the certificate every hour.
func (a *agent) renewals(ctx context.Context) error {
	if a.Renew == nil {
		return nil
	}
	for ctx.Err() == nil {
		renewed, err := a.Renew(ctx, time.Now())
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			a.Log.Warn("the certificate could not be renewed", "error", err)
		case renewed:
			a.Log.Info("the certificate was renewed")
			a.Client.CloseIdleConnections() // they were opened with the old one
		}
		pause(ctx, a.renew, nil)
	}
	return nil
}
