// Package gateway serves the agents' API: it authenticates agents, sends out tasks and
// weights, and receives results. It checks everything that an agent sends, so that an
// accepted result can be counted without further checks. Any number of gateways may run.
package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"loadstar/internal/connlimit"
	"loadstar/internal/protocol"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/access"
	"loadstar/server/blob"
	"loadstar/server/directory"
	"loadstar/server/keepers"
	"loadstar/server/ledger"
	"loadstar/server/limitlog"
	"loadstar/server/pki"
	"loadstar/server/terms"
)

// Config configures a gateway.
type Config struct {
	Ledger    *ledger.Ledger
	Blobs     blob.Store
	Terms     *terms.Cache
	Authority *pki.Authority
	// Certificates is the lifetime of agents' certificates. Grace is how long after its
	// expiry a certificate can be renewed.
	Certificates, Grace time.Duration
	// Lease is how long a turn stays valid without a call of its agent.
	Lease time.Duration
	Pace  Pace
	// SeenEvery is how often the time of an agent's last call is stored. 0 means once a
	// minute.
	SeenEvery time.Duration
	// Clients is the maximum number of clients of an agent. Uploads limits the total bytes
	// of incomplete results.
	Clients int
	Uploads int64
	// ByAddress limits callers without a certificate by their address. Report is told to whom
	// limits were applied.
	ByAddress bool
	Report    *limitlog.Report
	// Region means that a hub decides what counts, and that reports must be sent to it.
	Region bool
	// Keepers are those of private plans, or nil.
	Keepers *keepers.Set
	// Wake notifies coordinators of a change in a run, and Woken receives a value when a run has
	// new leases. Notifications may be lost.
	Wake    func(run string)
	Woken   <-chan string
	Log     *slog.Logger
	Metrics prometheus.Registerer
	// Random returns a number in [0, 1) for an agent's next interval. If it is nil,
	// math/rand/v2 is used.
	Random func(agent string) float64
	// Session returns a new name for what the gateway has in memory. If it is nil, the name is
	// random.
	Session func() string
}

// Pace determines how often agents call.
type Pace struct {
	// Poll is the interval between calls in a small fleet. In a large fleet the
	// interval is longer, so that all agents together call Rate times a second, but it
	// is never longer than MaxPoll. Agents with open tasks have their own interval.
	Poll, MaxPoll time.Duration
	Rate          float64
}

// Of returns the interval between an agent's calls in a fleet of the given size.
func (p Pace) Of(agents int64) time.Duration {
	every := time.Duration(float64(agents) / p.Rate * float64(time.Second))
	return min(max(every, p.Poll), p.MaxPoll)
}

// Latest returns the longest time between two calls of an agent if the server is not
// overloaded. It includes the jitter that gateway and agent add to the interval.
func (p Pace) Latest(agents int64) time.Duration {
	return time.Duration(1.5 * float64(p.Of(agents)))
}

// Quiet returns after what time without a call an agent counts as quiet: three times its
// interval, and at least two minutes. Times of calls are stored once a minute, so this is
// always longer than Latest and that minute. An overloaded server asks busy agents to wait
// up to a quarter of a lease, so some may count as quiet then.
func (p Pace) Quiet(agents int64) time.Duration {
	return max(3*p.Of(agents), 2*seenEvery)
}

// Gateway implements the agents' API. It is safe for concurrent use.
type Gateway struct {
	Config
	metrics *metrics
	uploads *uploads
	counter *counter
	calls   calls
	fair    *fair
	gate    *gate
	joining chan struct{} // limits concurrent joins
	agents  atomic.Int64  // latest count of agents that may take part
	asked   atomic.Int64  // estimate of the number of open turns

	trust  *trust
	mirror *mirror
	ending atomic.Bool           // held calls end
	offer  atomic.Pointer[offer] // nil until the releases were read
	// newClients has the held-out clients that have not answered, by agent.
	newClients atomic.Pointer[map[string][]ledger.NewClient]

	seen     *seen
	contacts contacts
	// heads has the heads of runs that agents ask for.
	heads heads

	mu        sync.Mutex
	reported  map[string]int // reports of agents on reportDay
	reportDay int64
	endings   map[string]string // runs that have ended, and how
	versions  map[versionKey]ledger.Version
	rounds    map[roundKey]*v1.Privacy // private rounds
}

var _ v1.AgentServiceHandler = (*Gateway)(nil)

const (
	// chunkBytes limits the size of one chunk of a result. messageBytes limits the size of
	// a whole message.
	chunkBytes   = 4 << 20
	messageBytes = chunkBytes + 4<<20
	maxJoins     = 4
	countEvery   = time.Second
	reportsEvery = time.Minute
	adjustWithin = 30 * time.Second
	nameBytes    = 128
	versionBytes = 64
	largestSkew  = 100 * 365 * 24 * time.Hour
	// turnsOfClient limits the runs that a client takes part in at a time; agents have
	// the same limit. A request names each round of a run once.
	turnsOfClient = 8
	maxRounds     = 256
	// These two limit the parts of a message (see codecs). They are enough for a request that
	// names all turns, both in training and pushed, and has the sum of all clients and reports.
	partsOfClient = 2*turnsOfClient + partsOfShare
	partsOfAll    = 12*maxRounds + 4*maxEnrolments + (16+3*maxShares+maxFindings)*maxReports + maxHave + 16
	partsOfShare  = 8
)

// New returns a gateway.
func New(c Config) *Gateway {
	if c.Report == nil {
		c.Report = limitlog.NewReport(c.Log, c.Metrics)
	}
	g := &Gateway{
		Config: c, metrics: newMetrics(c.Metrics), uploads: newUploads(c.Uploads),
		fair: newFair(c.Pace, c.ByAddress, c.Report), gate: newGate(), joining: make(chan struct{}, maxJoins), trust: newTrust(), seen: newSeen(c.SeenEvery), calls: calls{by: map[connlimit.Caller]*inProgress{}},
	}
	if c.Session == nil {
		c.Session = rand.Text
	}
	g.mirror = newMirror(c.Ledger, c.Session)
	g.counter = newCounter(&c, g.mirror, g.metrics)
	g.counter.judge = g.judge
	g.metrics.showWaiting(c.Metrics, g.counter.length)
	return g
}

// Handler returns the handler of the agents' API. pki.Authority.Middleware must have put the caller's
// identity into the context of each request.
func (g *Gateway) Handler() http.Handler {
	mux := http.NewServeMux()
	path, service := v1.NewAgentServiceHandler(g, append(codecs(partsOfClient*g.Clients+partsOfAll, g.fair.heavy),
		connect.WithReadMaxBytes(messageBytes), connect.WithCompressMinBytes(math.MaxInt), // weights do not become smaller
		connect.WithInterceptors(g.metrics, g.fair, g.gate, protocol.Server()), connect.WithRecover(g.panicked))...)
	mux.Handle(path, g.grace(g.admit(service)))
	mux.Handle("/v1/blobs/", g.authorized(blob.Handler(g.Blobs, g.Log)))
	return mux
}

// Run does the gateway's periodic work until ctx ends: it counts agents and turns, adjusts
// the pace, and stores the times of calls.
func (g *Gateway) Run(ctx context.Context) error {
	g.counter.home.Store(&ctx)
	var following sync.WaitGroup
	following.Go(func() { g.follow(ctx) })
	defer following.Wait()
	tick := time.NewTicker(countEvery)
	defer tick.Stop()
	g.count(ctx)
	g.loadReleases(ctx)
	g.loadNewClients(ctx)
	var next, adjust time.Time
	reports := time.Now().Add(reportsEvery)
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			g.storeSeen(last, g.seen.take(time.Now().Add(g.seen.every)))
			return nil
		case <-tick.C:
			if time.Now().After(adjust) {
				g.gate.adjust()
				adjust = time.Now().Add(min(g.pace(true, ""), adjustWithin))
			}
			if start := time.Now(); start.After(next) {
				g.count(ctx)
				// Counting millions of rows takes a while, so spend at most a twentieth of
				// the time on it.
				next = time.Now().Add(20 * time.Since(start))
			}
			g.loadReleases(ctx)
			g.loadNewClients(ctx)
			g.uploads.expire(time.Now())
			g.storeSeen(ctx, g.seen.take(time.Now()))
			if time.Now().After(reports) {
				reports = time.Now().Add(reportsEvery)
				if err := g.Ledger.Reports.DropOldReports(ctx, g.Ledger.Now()); err != nil && ctx.Err() == nil {
					g.Log.Warn("cannot delete old reports", "error", err)
				}
			}
		}
	}
}

// follow keeps the copies in memory up to date until ctx ends. Then held calls end.
func (g *Gateway) follow(ctx context.Context) {
	tick := time.NewTicker(readEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		began := time.Now()
		if stamp, err := g.mirror.refresh(ctx); err == nil {
			if g.trust.check(stamp, began) {
				g.mirror.wakeAll() // one of them may be revoked
			}
		} // otherwise the copies are too old soon, and the ledger is asked
		select {
		case <-g.Woken:
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	g.ending.Store(true)
	g.mirror.wakeAll()
}

// Forget drops what the gateway has in memory of the ledger. This costs time and nothing else.
func (g *Gateway) Forget() {
	g.mirror.drop()
	g.trust.dropAll()
}

// count updates the numbers of agents and open turns, which determine the pace.
func (g *Gateway) count(ctx context.Context) {
	if n, err := g.Ledger.Directory.Agents(ctx); err == nil {
		g.agents.Store(n)
	}
	if n, err := g.Ledger.Counter.Asked(ctx); err == nil {
		// The number decays slowly: most turns of a round end long before the round, and
		// the next round asks as many clients.
		g.asked.Store(max(n, g.asked.Load()*9/10))
	}
}

// caller looks up the calling agent in the ledger. It returns an error if the agent is
// revoked, or if its certificate is a copy.
func (g *Gateway) caller(ctx context.Context) (c directory.Caller, err error) {
	id, err := g.identity(ctx)
	if err != nil {
		return c, err
	}
	x := presented(ctx)
	lookup := g.trust.begin()
	allowed := false
	if c, err = g.Ledger.Directory.Caller(ctx, id); err == nil && !c.Revoked {
		c, allowed, err = g.admitCertificate(ctx, c, x)
	}
	g.trust.end(id, x.Serial, c, lookup, allowed)
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		// Not revoked: the agent waits, because an operator may still restore a newer backup.
		g.metrics.refused.WithLabelValues("unknown").Inc()
		return c, connect.NewError(connect.CodeUnauthenticated, errors.New("this server does not know the agent: it may have been restored from a backup made before the agent joined; if it stays so, join again"))
	case err == nil && c.Revoked:
		g.metrics.refused.WithLabelValues("revoked").Inc()
		return c, connect.NewError(connect.CodePermissionDenied, errors.New("this agent is revoked; it must join again"))
	case err != nil:
		return c, g.unavailable(ctx, err)
	case !allowed:
		g.metrics.refused.WithLabelValues("copied").Inc()
		return c, connect.NewError(connect.CodePermissionDenied, errors.New("another machine uses a newer certificate of this agent, so this agent's files were copied or restored from a backup; ask the server's operator"))
	}
	return c, nil
}

// known returns the calling agent if the ledger allows it, or allowed it recently and there were no
// revocations since.
func (g *Gateway) known(ctx context.Context) (directory.Caller, error) {
	id, err := g.identity(ctx)
	if err != nil {
		return directory.Caller{}, err
	}
	if c, ok := g.trust.get(id, presented(ctx).Serial); ok {
		return c, nil
	}
	return g.caller(ctx)
}

// Revoked makes the gateway refuse all calls of an agent that start after Revoked returns.
// Call it after the ledger has stored the revocation. Gateways in other processes follow
// within a second.
func (g *Gateway) Revoked(agent string) {
	g.trust.drop(agent)
	g.mirror.wakeOne(agent)
}

func (g *Gateway) identity(ctx context.Context) (string, error) {
	who, ok := pki.From(ctx)
	if !ok || who.Role != pki.Agent {
		g.metrics.refused.WithLabelValues("identity").Inc()
		return "", connect.NewError(connect.CodeUnauthenticated, errors.New("this call needs an agent's certificate"))
	}
	return who.ID, nil
}

// authorized passes requests of users, and of agents that are not revoked, to next.
func (g *Gateway) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, ok := access.From(r.Context()); ok { // any user may
			next.ServeHTTP(w, r)
			return
		}
		caller, err := g.known(r.Context())
		if err != nil {
			code := http.StatusServiceUnavailable
			switch connect.CodeOf(err) {
			case connect.CodeUnauthenticated:
				code = http.StatusUnauthorized
			case connect.CodePermissionDenied:
				code = http.StatusForbidden
			}
			http.Error(w, err.Error(), code)
			return
		}
		who := connlimit.Caller{Kind: connlimit.Agent, Name: caller.ID}
		if !g.calls.enter(who, callsOfAgent) {
			g.Report.Limited(limitlog.Calls, who)
			g.metrics.refused.WithLabelValues("busy").Inc()
			http.Error(w, "too many concurrent calls; try again later", http.StatusTooManyRequests)
			return
		}
		defer g.calls.leave(who)
		next.ServeHTTP(w, r)
	})
}

// panicked logs a panic in a call and returns an error for the caller.
func (g *Gateway) panicked(_ context.Context, s connect.Spec, _ http.Header, p any) error {
	g.Log.Error("a call panicked; this is a bug", "procedure", s.Procedure, "panic", p, "stack", string(debug.Stack()))
	return connect.NewError(connect.CodeInternal, errors.New("internal error in the server"))
}

// unavailable returns an error that makes an agent retry, because the ledger or another
// service has failed. The details go to the log, not to the agent.
func (g *Gateway) unavailable(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		log := g.Log
		if who, ok := pki.From(ctx); ok {
			log = log.With("agent", who.ID)
		}
		if call, ok := connect.CallInfoForHandlerContext(ctx); ok {
			log = log.With("procedure", call.Spec().Procedure)
		}
		log.Warn("cannot serve an agent", "error", err)
	}
	return connect.NewError(connect.CodeUnavailable, errors.New("the server cannot answer now; try again"))
}

// invalid refuses a malformed request, which our agents never send.
func (g *Gateway) invalid(reason, format string, args ...any) error {
	g.metrics.refused.WithLabelValues(reason).Inc()
	return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf(format, args...))
}
