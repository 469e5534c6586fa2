// Package agent hosts clients (meters or buildings). It trains them with the same code
// as the simulator, stores their personal layers, and talks to a server.
//
// The agent opens every connection. It announces its clients and calls Exchange at the interval
// that the server sets. Each task in a response names the clients to train for one round of a
// run, the plan and the weights. The agent fetches large weights by hash. It writes each result
// to disk before sending it, and resends it until the server decides. If the result is counted,
// the clients keep the personal layers they trained; otherwise they keep the previous ones
// ([loadstar/agent/state]). If a crash loses the work of a turn, the agent trains the turn
// again. The same readings give the same bits. New readings give a different result. This is
// harmless, because the lost result was never sent.
//
// Two goroutines share one worklist. One calls the server and one trains. A third goroutine
// fetches the models that the server releases ([loadstar/agent/release]). They do not wait for
// each other, so calls extend the leases even during a long training. A large result is sent in
// chunks, each in a separate call, so leases are extended over a slow link as well.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"

	"loadstar/agent/audit"
	"loadstar/agent/release"
	"loadstar/agent/state"
	"loadstar/fed/member"
	"loadstar/fed/policy"
	"loadstar/internal/head"
	"loadstar/internal/protocol"
	"loadstar/nn/kernel"
	loadstarv1 "loadstar/proto/loadstar/v1"
	"loadstar/series"
)

// ErrRevoked means that the server refuses this agent permanently.
var ErrRevoked = errors.New("the server refuses this agent: its certificate is revoked or not valid for agents")

// Config configures an agent.
type Config struct {
	// Dir is the agent's folder. Only one agent may use it at a time.
	Dir string
	// Server is the base URL of the server.
	Server string
	// Client makes the calls. It presents the agent's certificate.
	Client *http.Client
	// Renew renews the certificate if it is due, and reports whether it did. It is
	// called after each check-in and may be nil.
	Renew func(ctx context.Context, now time.Time) (bool, error)
	// Name is the agent's name on the server. The masks of private plans depend on it.
	Name string
	// Invitations is a file with the invitations of keepers. It is read when the agent enrols, and
	// may be empty.
	Invitations string
	// Clock is the clock for everything that concerns keepers. If it is nil, [time.Now] is
	// used.
	Clock func() time.Time
	// Dataset holds the readings. Each of its meters is a client with the same name.
	Dataset *series.Dataset
	// Source is used instead of Dataset if the readings grow. It returns the current
	// readings, and a function that releases them. The agent calls Source when it
	// begins or resumes a run, so that all rounds of a session use the same readings. The
	// clients are the meters that the first call returns.
	Source func() (d *series.Dataset, release func(), err error)
	// Version is the program's version. Operators see it in lists of the fleet.
	Version string
	// Releases receives the models that the server releases, and creates the reports for
	// the server. It may be nil.
	Releases release.Host
	Kernel   *kernel.Set
	// Workers is the number of clients to train in parallel; 0 means 1.
	Workers int
	// Memory limits the bytes that training uses, not counting the readings. A task
	// that needs more is declined. 0 means 256 MiB.
	Memory int64
	// Policy determines which plans the agent trains and what it reports; nil means
	// [policy.None].
	Policy *policy.Policy
	// Chunk is the number of result bytes per request; 0 means 256 KiB.
	Chunk int
	// Yield, if not nil, is called before each client trains. It waits while more urgent work
	// is done, such as forecasts.
	Yield func(context.Context)
	// Announced, if not nil, is called after each announcement with the clients that the server
	// refused, and the reasons.
	Announced func(refused []string, reason string)
	// Audits passes requests for audits of clients to the agent. It may be nil.
	Audits *audit.Auditor
	// Log receives the agent's messages. If it is nil, they are discarded.
	Log *slog.Logger
	// Rand returns a source of random numbers in [0, n) for one of the agent's goroutines. If
	// it is nil, math/rand/v2 is used.
	Rand func(goroutine string) func(n int64) int64
	// Disk is called before and after each write to the agent's state, and may fail.
	// Simulations of a fleet set it. It may be nil.
	Disk func(step state.Step, what string) error

	tuning *tuning // set only by tests
}

// tuning holds intervals and timeouts that only tests change.
type tuning struct {
	first, most time.Duration // shortest and longest delay between retries
	// announceEvery is the interval at which the agent announces its clients again while
	// the server does not know some of them or refuses them.
	announceEvery time.Duration
	seek          time.Duration // first interval between announcements of an agent that waits for a keeper
	call          time.Duration // timeout of a call
	push          time.Duration // timeout of a call that sends one chunk of a result
	wait          time.Duration // how long the server may hold a call that waits for tasks
	stall         time.Duration // timeout of a download that makes no progress
	renew         time.Duration // interval between checks of the certificate
	pulseEvery    time.Duration // interval between lines in the log about training
}

var usual = tuning{
	first: time.Second, most: 5 * time.Minute, announceEvery: 10 * time.Minute, seek: 10 * time.Second,
	call: time.Minute, push: 5 * time.Minute, wait: 25 * time.Second, stall: time.Minute, renew: time.Hour, pulseEvery: time.Minute,
}

// Run runs an agent until ctx ends and then returns nil. It returns an error only if
// retrying cannot help, for example if the folder is in use, the data is unusable,
// or the agent is revoked ([ErrRevoked]).
func Run(ctx context.Context, c Config) error {
	a, err := newAgent(c)
	if err != nil {
		return err
	}
	return errors.Join(a.run(ctx), a.store.Close())
}

// agent is the state of a running agent.
type agent struct {
	Config
	tuning
	names  []string // names of the clients
	inputs []string // inputs in their data
	step   int64    // interval between readings, in seconds
	// generated means that the readings are synthetic.
	generated bool
	store     *state.Store
	secret    [32]byte // secret from which clients' examples are drawn
	heads     *headCheck
	blobs     *blobs
	releases  *follower
	members   *members
	service   loadstarv1.AgentServiceClient
	worklist  *worklist
	// training is locked while a job or an audit uses the session and the blobs.
	training  sync.Mutex
	session   *session // session of the most recent plan
	pulse     pulse
	contacted chan struct{} // receives a signal after each check-in
	renewed   chan struct{} // receives a signal after each renewal
	// Only the goroutine that calls the server uses these fields.
	serverSession string // session of the last response
	upload        upload
	withhold      bool // the next call sends no result
	// offer means that the server did not take the last result. The next call sends the head of a
	// result without its numbers.
	offer bool
}

func newAgent(c Config) (*agent, error) {
	switch {
	case c.Dataset != nil && c.Source != nil:
		return nil, errors.New("agent: set either Dataset or Source")
	case c.Kernel == nil || c.Client == nil || c.Server == "" || c.Dir == "":
		return nil, errors.New("agent: Dir, Server, Client and Kernel must be set")
	}
	a := &agent{Config: c, tuning: usual, contacted: make(chan struct{}, 1), renewed: make(chan struct{}, 1)}
	if c.tuning != nil {
		a.tuning = *c.tuning
		a.pulseEvery = cmp.Or(a.pulseEvery, usual.pulseEvery)
	}
	a.Workers = max(a.Workers, 1)
	if a.Memory <= 0 {
		a.Memory = 256 << 20
	}
	if a.Chunk <= 0 {
		a.Chunk = 256 << 10
	}
	if a.Policy == nil {
		none := policy.None()
		a.Policy = &none
	}
	if a.Log == nil {
		a.Log = slog.New(slog.DiscardHandler)
	}
	err := a.look()
	if err != nil {
		return nil, err
	}
	if a.store, err = state.OpenWith(c.Dir, c.Disk); err != nil {
		return nil, err
	}
	if a.secret, err = state.Secret(c.Dir); err == nil {
		a.heads = &headCheck{Config: &a.Config, store: a.store}
		a.heads.key, err = head.ReadKey(c.Dir)
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = a.open()
	}
	if err != nil {
		_ = a.store.Close() // report the error that made opening fail, not a second one
		return nil, err
	}
	return a, nil
}

// snapshot returns the current readings.
func (a *agent) snapshot() (*series.Dataset, func(), error) {
	if a.Source != nil {
		return a.Source()
	}
	return a.Dataset, func() {}, nil
}

// look reads the clients' names and the properties of their data.
func (a *agent) look() error {
	d, release, err := a.snapshot()
	if err != nil {
		return fmt.Errorf("reading the clients: %w", err)
	}
	defer release()
	if d == nil || d.Len() == 0 {
		return errors.New("the dataset has no meters, so there are no clients to host")
	}
	known := map[string]bool{}
	for i := range d.Len() {
		name := strings.Clone(d.Meter(i).ID) // the dataset may be a mapped file
		if err := state.CheckName(name); err != nil {
			return fmt.Errorf("meter number %d cannot be a client: %w", i, err)
		}
		if !utf8.ValidString(name) {
			return fmt.Errorf("meter %q cannot be a client: its name is not UTF-8", name)
		}
		if known[name] {
			return fmt.Errorf("two meters are named %s", name)
		}
		known[name] = true
		a.names = append(a.names, name)
	}
	a.inputs, a.step, a.generated = slices.Clone(inputsOf(d)), d.Seconds(), d.Generated
	return nil
}

// open loads the stored results and prepares the blob folder.
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
	a.members = &members{Config: &a.Config, store: a.store, statements: map[member.Pin]*loadstarv1.KeeperStatement{}, next: map[member.Pin]time.Time{}}
	a.releases = &follower{Config: &a.Config, store: a.store, retry: a.retry("release"), news: news{changed: make(chan struct{}, 1)}}
	if a.Releases != nil {
		a.releases.blobs = &blobs{dir: filepath.Join(a.Dir, "released"), server: a.Server, client: a.Client, stall: a.stall}
		if err := a.releases.blobs.prepare(); err != nil {
			return err
		}
	}
	// The response limit has room for a few turns of every client (about 1 KiB per client), 24
	// KiB of heads for each of eight runs, and the blobs of tasks.
	most := 256<<10 + len(a.names)<<10 + maxBlobs
	a.service = loadstarv1.NewAgentServiceClient(a.Client, a.Server, connect.WithReadMaxBytes(most), protocol.Client())
	if len(results) > 0 {
		a.Log.Info("found results that the server has not decided", "results", len(results))
	}
	return nil
}

// run runs the goroutines that call the server, train and renew the certificate, until ctx ends
// or one of them fails.
func (a *agent) run(outer context.Context) error {
	ctx, stop := context.WithCancelCause(outer)
	defer stop(nil)
	var wg sync.WaitGroup
	for _, part := range []func(context.Context) error{a.contact, a.train, a.renewals, a.releases.follow, a.beat, a.serveAudits} {
		wg.Go(func() {
			if err := part(ctx); err != nil && ctx.Err() == nil {
				stop(err)
			}
		})
	}
	wg.Wait()
	a.endSession()
	if outer.Err() != nil {
		return nil
	}
	return context.Cause(ctx)
}

// renewals renews the certificate if it is due. It checks this after every contact.
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
			a.Log.Warn("cannot renew the certificate", "error", err)
		case renewed:
			a.Log.Info("renewed the certificate")
			a.Client.CloseIdleConnections() // the idle connections present the old certificate
			wake(a.renewed)
		}
		pause(ctx, a.renew, a.contacted)
	}
	return nil
}
