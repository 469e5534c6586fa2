// Package gateway is the agents' edge: it knows who is calling, hands out tasks and
// weights, and takes results in. It believes nothing that it is told: what it lets
// through can be counted as it is. Any number of them may be at work.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/blob"
	"loadstar/server/bus"
	"loadstar/server/ledger"
	"loadstar/server/pki"
	"loadstar/server/terms"
)

// Config is what a gateway works with.
type Config struct {
	Ledger    *ledger.Ledger
	Blobs     blob.Store
	Bus       *bus.Bus
	Terms     *terms.Book
	Authority *pki.Authority
	// Certificates is how long those of agents are valid.
	Certificates time.Duration
	// Lease is how long an agent that says nothing may take over a turn.
	Lease time.Duration
	Pace  Pace
	// Clients bounds how many an agent may host, Uploads the bytes of results that
	// are here in parts.
	Clients int
	Uploads int64
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Pace is how often agents check in.
type Pace struct {
	// Poll is how often an agent of a small fleet does. Those of a large one do so less
	// often: all together Rate times a second, but each once in MaxPoll. Those that have
	// something to do are a fleet of their own.
	Poll, MaxPoll time.Duration
	Rate          float64
}

// Of returns the time between two check-ins of an agent in a fleet of so many.
func (p Pace) Of(agents int64) time.Duration {
	every := time.Duration(float64(agents) / p.Rate * float64(time.Second))
	return min(max(every, p.Poll), p.MaxPoll)
}

// Latest returns when at the latest it will have checked in, unless there is too much to
// do: times are spread, here and by the agents.
func (p Pace) Latest(agents int64) time.Duration {
	return time.Duration(1.5 * float64(p.Of(agents)))
}

// Gateway answers agents. It is safe for concurrent use.
type Gateway struct {
	Config
	metrics *metrics
	uploads *uploads
	calls   calls
	gate    *gate
	joining chan struct{} // bounds how many join at a time
	agents  atomic.Int64  // that may take part, as of lately
	asked   atomic.Int64  // turns that were asked for and are not counted, as of lately
	looking sync.Mutex    // held by who asks the bus
	carries time.Time     // guarded by looking: until then it is taken to carry something

	trust *trust

	mu   sync.Mutex
	seen map[string]bool // since the last time this was stored
}

var _ v1.AgentServiceHandler = (*Gateway)(nil)

const (
	// chunkBytes bounds one chunk of a result, and messageBytes a whole message.
	chunkBytes   = 4 << 20
	messageBytes = chunkBytes + 4<<20
	// compressBytes is what an answer has at least that is worth compressing.
	compressBytes = 1 << 10
	joinsAtOnce   = 4
	countEvery    = time.Second
	adjustWithin  = 30 * time.Second
	seenEvery     = time.Minute
	seenAtMost    = 100_000
	nameBytes     = 128
	// turnsOfClient bounds how many runs a client takes part in at a time, as agents do;
	// a round of a run is named once.
	turnsOfClient = 8
	roundsAtOnce  = 256
	// Of a message that names all turns, in training and pushed, and the rest.
	partsOfClient = 2 * turnsOfClient
	partsOfAll    = 8 * roundsAtOnce
)

// New returns a gateway.
func New(c Config) *Gateway {
	return &Gateway{
		Config: c, metrics: newMetrics(c.Metrics, c.Bus), uploads: newUploads(c.Uploads),
		gate: newGate(), joining: make(chan struct{}, joinsAtOnce), trust: newTrust(), seen: map[string]bool{}, calls: calls{byAgent: map[string]underWay{}},
	}
}

// Handler serves agents. Who is calling must be in a request's context, as
// pki.Middleware puts it there.
func (g *Gateway) Handler() http.Handler {
	mux := http.NewServeMux()
	path, service := v1.NewAgentServiceHandler(g, append(codecs(partsOfClient*g.Clients+partsOfAll),
		connect.WithReadMaxBytes(messageBytes), connect.WithCompressMinBytes(compressBytes), connect.WithInterceptors(g.metrics, g.gate), connect.WithRecover(g.failed))...)
	mux.Handle(path, g.admit(service))
	mux.Handle("/v1/blobs/", g.authorized(blob.Handler(g.Blobs, g.Log)))
	return mux
}

// Run does what is not done on somebody's call, until the context ends.
func (g *Gateway) Run(ctx context.Context) error {
	count, seen := time.NewTicker(countEvery), time.NewTicker(seenEvery)
	defer count.Stop()
	defer seen.Stop()
	g.count(ctx)
	var next, adjust time.Time
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			g.storeSeen(last)
			return nil
		case <-count.C:
			if time.Now().After(adjust) {
				g.gate.adjust()
				adjust = time.Now().Add(min(g.pace(true), adjustWithin))
			}
			if start := time.Now(); start.After(next) {
				g.count(ctx)
				next = time.Now().Add(20 * time.Since(start)) // of millions it takes a while
			}
			g.uploads.expire(time.Now())
		case <-seen.C:
			g.storeSeen(ctx)
		}
	}
}

// count looks at how many there are to be paced.
func (g *Gateway) count(ctx context.Context) {
	if n, err := g.Ledger.Agents(ctx); err == nil {
		g.agents.Store(n)
	}
	if n, err := g.Ledger.Asked(ctx); err == nil {
		// Most turns of a round are over long before it is: the next asks for as many.
		g.asked.Store(max(n, g.asked.Load()*9/10))
	}
}

func (g *Gateway) storeSeen(ctx context.Context) {
	g.mu.Lock()
	seen := g.seen
	g.seen = map[string]bool{}
	g.mu.Unlock()
	if len(seen) == 0 {
		return
	}
	if err := g.Ledger.Seen(ctx, slices.Collect(maps.Keys(seen)), time.Now()); err != nil && ctx.Err() == nil {
		g.Log.Warn("cannot note who has checked in", "error", err) // only for people to look at
	}
}

// caller returns the agent that calls, if it still may.
func (g *Gateway) caller(ctx context.Context) (c ledger.Caller, err error) {
	id, err := g.identity(ctx)
	if err != nil {
		return c, err
	}
	lookup := g.trust.begin()
	c, err = g.Ledger.Caller(ctx, id)
	g.trust.end(id, lookup, err == nil && !c.Revoked)
	switch {
	case errors.Is(err, ledger.ErrNotFound), err == nil && c.Revoked:
		g.metrics.refused.WithLabelValues("revoked").Inc()
		return c, connect.NewError(connect.CodePermissionDenied, errors.New("this agent was revoked: it must join again"))
	case err != nil:
		return c, g.unavailable(ctx, err)
	}
	return c, nil
}

// authorize returns the agent that calls if the ledger allows it, or allowed it within the last
// trustFor.
func (g *Gateway) authorize(ctx context.Context) (id string, err error) {
	if id, err = g.identity(ctx); err != nil {
		return "", err
	}
	if !g.trust.has(id) {
		_, err = g.caller(ctx)
	}
	return id, err
}

// Revoked refuses all calls of a revoked agent that begin after it returns. Call it after
// the ledger has stored the revocation. Gateways in other processes follow within a second.
func (g *Gateway) Revoked(agent string) { g.trust.drop(agent) }

func (g *Gateway) identity(ctx context.Context) (string, error) {
	who, ok := pki.From(ctx)
	if !ok || who.Role != pki.Agent {
		g.metrics.refused.WithLabelValues("identity").Inc()
		return "", connect.NewError(connect.CodeUnauthenticated, errors.New("this needs an agent's certificate"))
	}
	return who.ID, nil
}

// authorized admits operators, and agents that are not revoked.
func (g *Gateway) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if who, ok := pki.From(r.Context()); ok && who.Role == pki.Operator {
			next.ServeHTTP(w, r)
			return
		}
		agent, err := g.authorize(r.Context())
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
		if !g.calls.enter(agent, callsOfAgent, 0) {
			g.metrics.refused.WithLabelValues("busy").Inc()
			http.Error(w, "too many calls are under way, try again later", http.StatusTooManyRequests)
			return
		}
		defer g.calls.leave(agent, 0)
		next.ServeHTTP(w, r)
	})
}

// failed answers for a call that went wrong by a mistake of ours.
func (g *Gateway) failed(_ context.Context, s connect.Spec, _ http.Header, p any) error {
	g.Log.Error("a call has failed, which is a bug", "procedure", s.Procedure, "panic", p, "stack", string(debug.Stack()))
	return connect.NewError(connect.CodeInternal, errors.New("the server has failed"))
}

// unavailable tells an agent to retry, since something that the gateway needs has failed. The
// details go into the log, not to the agent.
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
	return connect.NewError(connect.CodeUnavailable, errors.New("the server cannot answer now, try again"))
}

// invalid refuses a malformed request, which our agents never send.
func (g *Gateway) invalid(reason, format string, args ...any) error {
	g.metrics.refused.WithLabelValues(reason).Inc()
	return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf(format, args...))
}
