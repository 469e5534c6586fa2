// Package gateway serves the agents' API. It authenticates agents, sends tasks and weights, and
// receives results. It checks everything that an agent sends, so that accepted results can be
// counted without further checks. Any number of gateways may run.
package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"math"
	mathrand "math/rand/v2"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"loadstar/internal/backoff"
	"loadstar/internal/connlimit"
	"loadstar/internal/protocol"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/access"
	"loadstar/server/blob"
	"loadstar/server/keepers"
	"loadstar/server/ledger"
	"loadstar/server/pki"
	"loadstar/server/terms"
)

// Config configures a gateway.
type Config struct {
	Ledger    *ledger.Ledger
	Blobs     blob.Store
	Terms     *terms.Cache
	Authority *pki.Authority
	// Certificates is the lifetime of agents' certificates. Grace is the time for which a
	// certificate can be renewed after it has expired.
	Certificates, Grace time.Duration
	// Lease is the time for which a turn stays valid without a call from its agent.
	Lease time.Duration
	Pace  Pace
	// SeenEvery is the interval at which the time of an agent's last call is stored. 0 means
	// once a minute.
	SeenEvery time.Duration
	// Clients is the maximum number of clients of an agent. Uploads limits the total bytes
	// of incomplete results.
	Clients int
	Uploads int64
	// ByAddress means that callers without a certificate are limited by address. Report records
	// the callers to whom limits were applied.
	ByAddress bool
	Report    *access.LimitReport
	// Region means that a hub decides which results count, and that reports must be sent to
	// it.
	Region bool
	// Keepers are the keepers of private plans, or nil. A region has a hub instead of keepers.
	Keepers *keepers.Set
	Hub     *Hub
	// Wake notifies coordinators of a change in a run, and Woken receives a value when a run has
	// new leases. Notifications may be lost.
	Wake    func(run string)
	Woken   <-chan string
	Log     *slog.Logger
	Metrics prometheus.Registerer
	// Random returns a number in [0, 1) that varies an agent's next interval, or the delay until
	// its result is counted in another attempt. If it is nil, math/rand/v2 is used.
	Random func(agent string) float64
	// Session returns a new name for the gateway's in-memory state. If it is nil, the name is
	// random.
	Session func() string
}

// Pace determines how often agents call.
type Pace struct {
	// Poll is the interval between calls in a small fleet. In a large fleet, the interval is
	// longer, up to MaxPoll, so that all agents together call Rate times a second. Agents with
	// open tasks get an interval of their own.
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

// Quiet returns the time after which an agent that has not called counts as quiet. It is three
// times the agent's interval, but at least two minutes, and so always longer than Latest plus
// the minute after which times of calls are stored. An overloaded server asks busy agents to
// wait for up to a quarter of a lease, so some of them may then count as quiet.
func (p Pace) Quiet(agents int64) time.Duration {
	return max(3*p.Of(agents), 2*seenEvery)
}

// Gateway implements the agents' API. It is safe for concurrent use, and each of its parts has its
// own lock.
type Gateway struct {
	Config
	metrics *metrics
	uploads *uploads
	counter *counter
	refuse  *refuser
	calls   calls
	fair    *fair
	gate    *gate
	joining chan struct{} // limits concurrent joins
	agents  atomic.Int64  // latest count of agents that may take part
	asked   atomic.Int64  // estimate of the number of open turns

	ending atomic.Bool // held calls are ended

	trust    *trust
	mirror   *mirror
	seen     *seen
	contacts contacts

	callers    *callers
	results    *results
	tasks      *tasks
	history    *history
	heads      *heads
	offers     *offers
	reports    *reports
	newClients *newClients
}

var _ v1.AgentServiceHandler = (*Gateway)(nil)

const (
	// chunkBytes is the maximum size of one chunk of a result. messageBytes is the maximum size
	// of a whole message.
	chunkBytes   = 4 << 20
	messageBytes = chunkBytes + 4<<20
	maxJoins     = 4
	countEvery   = time.Second
	reportsEvery = time.Minute
	adjustWithin = 30 * time.Second
	nameBytes    = 128
	versionBytes = 64
	largestSkew  = 100 * 365 * 24 * time.Hour
	// turnsOfClient is the maximum number of runs in which a client takes part at a time. Agents
	// apply the same limit. A request names each round of a run once.
	turnsOfClient = 8
	maxRounds     = 256
	// partsOfClient and partsOfAll limit the number of parts of a message (see codecs). They
	// allow a request that names all turns, both as in training and as pushed, and that contains
	// reports and a sum of all clients.
	partsOfClient = 2*turnsOfClient + partsOfShare
	partsOfAll    = 12*maxRounds + 4*maxEnrolments + (16+3*maxShares+maxFindings)*maxReports + maxHave + 16
	partsOfShare  = 8
)

// New returns a gateway.
func New(c Config) *Gateway {
	if c.Report == nil {
		c.Report = access.NewLimitReport(c.Log, c.Metrics)
	}
	if c.Random == nil {
		c.Random = func(string) float64 { return mathrand.Float64() }
	}
	if c.Session == nil {
		c.Session = rand.Text
	}
	g := &Gateway{
		Config: c, metrics: newMetrics(c.Metrics), uploads: newUploads(c.Uploads),
		fair: newFair(c.Pace, c.ByAddress, c.Report), gate: newGate(), joining: make(chan struct{}, maxJoins), trust: newTrust(), seen: newSeen(c.SeenEvery), calls: calls{by: map[connlimit.Caller]*inProgress{}},
	}
	g.refuse = &refuser{log: c.Log, metrics: g.metrics}
	g.mirror = newMirror(c.Ledger, c.Session)
	g.counter = newCounter(&c, g.mirror, g.metrics)
	checked := newApart(&c, g.counter)
	g.callers = &callers{directory: c.Ledger.Directory, trust: g.trust, refuse: g.refuse}
	g.history = &history{ledger: c.Ledger}
	g.heads = &heads{ledger: c.Ledger, refuse: g.refuse}
	g.offers = &offers{ledger: c.Ledger, mirror: g.mirror, log: c.Log}
	g.reports = &reports{ledger: c.Ledger.Reports, offers: g.offers, refuse: g.refuse, clients: c.Clients, region: c.Region}
	g.newClients = &newClients{ledger: c.Ledger, mirror: g.mirror, refuse: g.refuse}
	g.tasks = &tasks{terms: c.Terms, history: g.history, heads: g.heads, newClients: g.newClients}
	g.results = &results{
		ledger: c.Ledger.Counter, terms: c.Terms, history: g.history, keepers: c.Keepers, mirror: g.mirror, uploads: g.uploads, counter: g.counter, checked: checked,
		refuse: g.refuse, decline: g.decline, clients: c.Clients, region: c.Region, hub: c.Hub,
	}
	g.metrics.showWaiting(c.Metrics, func() int { return g.counter.length() + checked.length() })
	return g
}

type unary = connect.UnaryInterceptorFunc // the API has no streams

// Handler returns the handler of the agents' API. pki.Authority.Middleware must have put the caller's
// identity into the context of each request.
func (g *Gateway) Handler() http.Handler {
	mux := http.NewServeMux()
	path, service := v1.NewAgentServiceHandler(g, append(codecs(partsOfClient*g.Clients+partsOfAll, g.fair.heavy),
		connect.WithReadMaxBytes(messageBytes), connect.WithCompressMinBytes(math.MaxInt), // compression does not make weights smaller
		connect.WithInterceptors(unary(g.metrics.intercept), unary(g.fair.intercept), unary(g.gate.intercept), protocol.Server()), connect.WithRecover(g.panicked))...)
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
	g.count(ctx)
	g.offers.load(ctx)
	g.newClients.load(ctx)
	var next, adjust time.Time
	reports := time.Now().Add(reportsEvery)
	for backoff.Sleep(ctx, countEvery) == nil {
		if time.Now().After(adjust) {
			g.gate.adjust()
			adjust = time.Now().Add(min(g.pace(true, ""), adjustWithin))
		}
		if start := time.Now(); start.After(next) {
			g.count(ctx)
			// Counting millions of rows takes a while, so spend at most a twentieth of the time
			// on counting.
			next = time.Now().Add(20 * time.Since(start))
		}
		g.offers.load(ctx)
		g.newClients.load(ctx)
		g.uploads.expire(time.Now())
		g.storeSeen(ctx, g.seen.take(time.Now()))
		if time.Now().After(reports) {
			reports = time.Now().Add(reportsEvery)
			if err := g.Ledger.Reports.DropOldReports(ctx, g.Ledger.Now()); err != nil && ctx.Err() == nil {
				g.Log.Warn("cannot delete old reports", "error", err)
			}
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	g.storeSeen(last, g.seen.take(time.Now().Add(g.seen.every)))
	return nil
}

// follow keeps the copies in memory up to date until ctx ends, and then ends held calls.
func (g *Gateway) follow(ctx context.Context) {
	for {
		began := time.Now()
		if stamp, err := g.mirror.refresh(ctx); err == nil {
			if g.trust.check(stamp, began) {
				g.mirror.wakeAll() // the agent of a held call may be revoked
			}
		} // without fresh copies, the gateway queries the ledger
		if !backoff.Poll(ctx, max(0, readEvery-time.Since(began)), &g.Woken) {
			break
		}
	}
	g.ending.Store(true)
	g.mirror.wakeAll()
}

// Forget drops the gateway's copies of data in the ledger. This costs only time.
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
		// Let the number decay slowly, because most turns of a round end long before the round,
		// and the next round asks as many clients.
		g.asked.Store(max(n, g.asked.Load()*9/10))
	}
}

// Revoked makes the gateway refuse all calls of an agent that start after Revoked returns.
// Call it after the ledger has stored the revocation. Gateways in other processes follow
// within a second.
func (g *Gateway) Revoked(agent string) {
	g.trust.drop(agent)
	g.mirror.wakeOne(agent)
}

// authorized passes requests of users, and of agents that are not revoked, to next.
func (g *Gateway) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, ok := access.From(r.Context()); ok { // every user may call
			next.ServeHTTP(w, r)
			return
		}
		caller, err := g.callers.known(r.Context())
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
			g.Report.Limited(access.LimitedCalls, who)
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
