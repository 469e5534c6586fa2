package gateway

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"loadstar/internal/connlimit"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/access"
	"loadstar/server/pki"
)

// Limits on calls. They apply before a body is read, when only the caller is known.
const (
	// callsOfAgent exceeds the number of concurrent calls that an agent needs to check in, send
	// and fetch.
	callsOfAgent = 8
	// Callers without a certificate may only join, which needs only a small message. Limits on
	// connections also limit their calls.
	joinsOfAddress = 256
	joinsOfAll     = 4096 // for all callers together if addresses cannot be distinguished because of a proxy
	joinBytes      = 16 << 10

	maxCallers = 100_000
	// These limits apply to rare calls. Agents announce their clients when they start, and renew
	// their certificates every few days.
	rarePerSecond, rareBurst = 20.0 / 60, 20
	// An agent may call ten times as often as requested, and at least leastCalls times a second.
	// It may use burstSeconds of this allowance at once. A message larger than smallMessage
	// contains a result or names many clients. An agent may send resultsPerSecond such messages
	// a second.
	callFactor, leastCalls, burstSeconds = 10, 10, 10
	smallMessage, resultsPerSecond       = 2 << 10, 200
	// failuresPerSecond is the maximum rate of joins from an address that are refused because
	// of their token.
	failuresPerSecond, failuresBurst = 1, 60
)

// fair limits the requests of each caller. Its method intercept is a Connect interceptor.
type fair struct {
	rates  map[string]*connlimit.Rates // call rates of agents, by procedure
	large  *connlimit.Rates            // rates of agents' large messages
	failed *connlimit.Rates            // refused joins, by address; nil if there is no such limit

	report *access.LimitReport

	mu    sync.Mutex
	lanes map[string]*lane // by agent
	heavy chan struct{}    // limits the number of heavy calls that are decoded or served concurrently
}

// laneKey is the context key of a function that leaves the lane of a call.
type laneKey struct{}

// lane admits one call of an agent at a time.
type lane struct {
	turn  chan struct{}
	users int
}

// heavyNames is the number of named clients above which a call is heavy, because each client
// costs a query. Heavy calls use at most half of the cores. Only a body larger than heavyBytes
// can name that many clients.
const heavyNames, heavyBytes = 4096, 64 << 10

// namesIn returns the number of clients that a request names.
func namesIn(r any) (n int) {
	switch r := r.(type) {
	case *v1.AnnounceRequest:
		n = len(r.Clients)
	case *v1.ExchangeRequest:
		for _, turns := range [][]*v1.Turns{r.Training, r.Pushed} {
			for _, t := range turns {
				n += len(t.Clients)
			}
		}
		for _, d := range r.Declines {
			n += len(d.GetTurns().GetClients())
		}
	}
	return n
}

func newFair(pace Pace, byAddress bool, report *access.LimitReport) *fair {
	calls := max(leastCalls, callFactor/max(pace.Poll, time.Millisecond).Seconds())
	f := &fair{
		rates: map[string]*connlimit.Rates{
			v1.AgentServiceAnnounceProcedure: connlimit.NewRates(rarePerSecond, rareBurst, maxCallers),
			v1.AgentServiceRenewProcedure:    connlimit.NewRates(rarePerSecond, rareBurst, maxCallers),
			v1.AgentServiceExchangeProcedure: connlimit.NewRates(calls, int(burstSeconds*calls), maxCallers),
			v1.AgentServiceEnrolProcedure:    connlimit.NewRates(calls, int(burstSeconds*calls), maxCallers),
		},
		large:  connlimit.NewRates(max(calls, resultsPerSecond), int(burstSeconds*max(calls, resultsPerSecond)), maxCallers),
		report: report, lanes: map[string]*lane{}, heavy: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)),
	}
	if byAddress {
		f.failed = connlimit.NewRates(failuresPerSecond, failuresBurst, maxCallers)
	}
	return f
}

// allow reports whether a caller may call a procedure now.
func (f *fair) allow(procedure string, bytes int64, who connlimit.Caller) bool {
	if procedure == v1.AgentServiceExchangeProcedure && bytes > smallMessage {
		return f.large.Allow(who.Name)
	}
	if procedure == v1.AgentServiceJoinProcedure {
		return f.failed == nil || !f.failed.Spent(who.Name)
	}
	r, ok := f.rates[procedure]
	return !ok || r.Allow(who.Name)
}

// enter waits until no other call is in the agent's lane.
func (f *fair) enter(ctx context.Context, agent string) (leave func(), err error) {
	f.mu.Lock()
	l := f.lanes[agent]
	if l == nil {
		l = &lane{turn: make(chan struct{}, 1)}
		f.lanes[agent] = l
	}
	l.users++
	waits := l.users > 1
	f.mu.Unlock()
	if waits {
		f.report.Limited(access.LimitedCalls, connlimit.Caller{Kind: connlimit.Agent, Name: agent})
	}
	if err := take(ctx, l.turn); err != nil {
		f.done(agent, l)
		return nil, err
	}
	var left atomic.Bool
	return func() {
		if !left.Swap(true) {
			<-l.turn
			f.done(agent, l)
		}
	}, nil
}

// done ends the use of a lane.
func (f *fair) done(agent string, l *lane) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(f.lanes, agent)
	}
}

func take(ctx context.Context, slots chan struct{}) error {
	select {
	case slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// intercept serves one call of an agent at a time, and limits the concurrent calls that name
// many clients.
func (f *fair) intercept(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		wasRead(ctx)
		switch r.Spec().Procedure {
		case v1.AgentServiceExchangeProcedure, v1.AgentServiceAnnounceProcedure:
			if ctx.Value(laneKey{}) == nil {
				who, _ := pki.From(ctx) // admit has checked the caller
				leave, err := f.enter(ctx, who.ID)
				if err != nil {
					return nil, err // the caller has given up
				}
				defer leave()
				ctx = context.WithValue(ctx, laneKey{}, leave)
			}
			if namesIn(r.Any()) > heavyNames { // the server does not hold such a call
				if err := take(ctx, f.heavy); err != nil {
					return nil, err
				}
				defer func() { <-f.heavy }()
			}
		case v1.AgentServiceJoinProcedure:
			answer, err := next(ctx, r)
			if f.failed != nil && connect.CodeOf(err) == connect.CodePermissionDenied {
				f.failed.Allow(connlimit.AddressOf(r.Peer().Addr))
			}
			return answer, err
		}
		return next(ctx, r)
	}
}

// admit accepts or refuses a call before its body is read. An agent may make a few calls at
// a time, and a caller without a certificate may only join.
func (g *Gateway) admit(next http.Handler) http.Handler {
	errorWriter := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, most, bytes := connlimit.Caller{Kind: connlimit.Address, Name: connlimit.AddressOf(r.RemoteAddr)}, joinsOfAddress, int64(joinBytes)
		refuse := func(reason string, code connect.Code, text string) {
			g.metrics.refused.WithLabelValues(reason).Inc()
			_ = errorWriter.Write(w, r, connect.NewError(code, errors.New(text))) // a failed write means that the caller has disconnected
		}
		limit := func(reason, text string) {
			g.Report.Limited(reason, who)
			refuse("busy", connect.CodeResourceExhausted, text)
		}
		if r.URL.Path == v1.AgentServiceJoinProcedure {
			if !g.ByAddress {
				most = joinsOfAll
			}
			if compressed(r.Header) { // the message could expand by a factor of 500
				refuse("body", connect.CodeInvalidArgument, "a request to join must not be compressed")
				return
			}
		} else {
			id, ok := pki.From(r.Context())
			if !ok || id.Role != pki.Agent {
				refuse("identity", connect.CodeUnauthenticated, "this call needs an agent's certificate")
				return
			}
			who, most, bytes = connlimit.Caller{Kind: connlimit.Agent, Name: id.ID}, callsOfAgent, messageBytes
			if r.ContentLength > messageBytes {
				refuse("size", connect.CodeResourceExhausted, "the message is too large")
				return
			}
		}
		if !g.fair.allow(r.URL.Path, r.ContentLength, who) {
			limit(reasons[r.URL.Path], "too many calls; try again later")
			return
		}
		if r.URL.Path == v1.AgentServiceExchangeProcedure && uint64(r.ContentLength) > smallBody { // -1 if the length is unknown
			leave, ok := g.counter.enter()
			if !ok {
				refuse("away", connect.CodeUnavailable, "the server cannot count results now; try again later")
				return
			}
			defer leave()
		}
		if !g.calls.enter(who, most) {
			limit(access.LimitedCalls, "too many concurrent calls; try again later")
			return
		}
		defer g.calls.leave(who)
		if mayBeHeavy(r) {
			leave, err := g.fair.enter(r.Context(), who.Name)
			if err != nil {
				return // the caller has given up
			}
			defer leave()
			r = r.WithContext(context.WithValue(r.Context(), laneKey{}, leave))
		}
		b := g.receive(w, r, who, bytes)
		defer b.done()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), bodyKey{}, b)))
		if !b.decoded {
			g.metrics.refused.WithLabelValues("body").Inc()
		}
	})
}

// compressed reports whether a message may be compressed in any protocol that agents may
// speak.
func compressed(h http.Header) bool {
	for _, name := range []string{"Content-Encoding", "Grpc-Encoding", "Connect-Content-Encoding"} {
		if e := h.Get(name); e != "" && e != "identity" {
			return true
		}
	}
	return false
}

// mayBeHeavy reports whether a request contains nothing but names, possibly of thousands of
// clients. An agent's next such request is not read before the previous one has been served, so
// an agent cannot use up CPU time by sending many. A call with a result may be equally large,
// but is excluded, because an agent may have to repeat such a call while the server still waits
// for the rest of an interrupted one.
func mayBeHeavy(r *http.Request) bool {
	// The length is -1 if it is unknown.
	return r.URL.Path == v1.AgentServiceAnnounceProcedure && (uint64(r.ContentLength) > heavyBytes || compressed(r.Header))
}

// reasons contains the names of the limits on procedures.
var reasons = map[string]string{
	v1.AgentServiceJoinProcedure:     access.LimitedRefusedJoins,
	v1.AgentServiceAnnounceProcedure: access.LimitedAnnouncements,
	v1.AgentServiceRenewProcedure:    access.LimitedRenewals,
	v1.AgentServiceExchangeProcedure: access.LimitedCheckIns,
	v1.AgentServiceEnrolProcedure:    access.LimitedCheckIns,
}
