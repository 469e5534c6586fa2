package access

import (
	"cmp"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"loadstar/internal/connlimit"
)

// The reasons for limiting calls. The package connlimit contains the reasons for limiting
// connections.
const (
	LimitedCalls         = "calls"
	LimitedBytes         = "bytes"
	LimitedSlowMessage   = "slow message"
	LimitedCheckIns      = "check-ins"
	LimitedAnnouncements = "announcements"
	LimitedRenewals      = "renewals"
	LimitedRefusedJoins  = "refused joins"
	LimitedSignIns       = "sign-ins"
)

// Limited counts how often a limit was applied to a caller.
type Limited struct {
	Kind   string    `json:"kind"`
	Name   string    `json:"name"`
	Reason string    `json:"reason"`
	Times  int64     `json:"times"`
	First  time.Time `json:"first"`
	Last   time.Time `json:"last"`
}

const (
	// maxReported is the maximum number of stored pairs of caller and reason. maxShown is the
	// maximum number of pairs that operators see.
	maxReported = 4096
	maxShown    = 100
	// logEvery is the minimum interval between log lines about the same caller and reason. The
	// total is limited as well, so that strangers cannot fill the disk.
	logEvery = time.Minute
	logBurst = 20
)

// LimitReport counts and logs the callers to whom limits were applied. It is safe for concurrent use.
type LimitReport struct {
	log   *slog.Logger
	total *prometheus.CounterVec

	mu    sync.Mutex
	lines *rate.Limiter
	all   *lru.Cache[reported, *entry]
}

type reported struct {
	who    connlimit.Caller
	reason string
}

type entry struct {
	Limited
	logged   time.Time
	unlogged int64
}

// NewLimitReport returns a report.
func NewLimitReport(log *slog.Logger, metrics prometheus.Registerer) *LimitReport {
	all, err := lru.New[reported, *entry](maxReported)
	if err != nil {
		panic(err) // the constant size is not positive
	}
	r := &LimitReport{
		log: log, all: all, lines: rate.NewLimiter(1, logBurst),
		// The caller is not a label, because there may be millions of callers. ServeHTTP lists
		// callers.
		total: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "loadstar_limited_total", Help: "Connections and calls to which a limit was applied, by reason."}, []string{"reason"}),
	}
	metrics.MustRegister(r.total)
	for _, reason := range []string{
		connlimit.ConnectionRate, connlimit.ConnectionsOfAddress, connlimit.ConnectionsOfStrangers, connlimit.ConnectionsOfCaller, connlimit.CallsOfStranger,
		LimitedCalls, LimitedBytes, LimitedSlowMessage, LimitedCheckIns, LimitedAnnouncements, LimitedRenewals, LimitedRefusedJoins, LimitedSignIns,
	} {
		r.total.WithLabelValues(reason) // an alert needs the counter to exist before its first event
	}
	return r
}

// Limited records that a limit was applied to a caller.
func (r *LimitReport) Limited(reason string, who connlimit.Caller) {
	r.total.WithLabelValues(reason).Inc()
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	key := reported{who, reason}
	e, ok := r.all.Get(key)
	if !ok {
		e = &entry{Limited: Limited{Kind: who.Kind, Name: who.Name, Reason: reason, First: now}}
		r.all.Add(key, e)
	}
	e.Times++
	e.unlogged++
	e.Last = now
	if now.Sub(e.logged) >= logEvery && r.lines.AllowN(now, 1) {
		r.log.Warn("a limit was applied", who.Kind, who.Name, "reason", reason, "times", e.unlogged)
		e.logged, e.unlogged = now, 0
	}
}

// Most returns the callers to which limits were applied most often.
func (r *LimitReport) Most() []Limited {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := []Limited{}
	for _, e := range r.all.Values() {
		all = append(all, e.Limited)
	}
	slices.SortFunc(all, func(a, b Limited) int { return cmp.Or(cmp.Compare(b.Times, a.Times), b.Last.Compare(a.Last)) })
	return all[:min(len(all), maxShown)]
}

// ServeHTTP writes Most as JSON.
func (r *LimitReport) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(r.Most()) // a failed write means that the caller has disconnected
}
