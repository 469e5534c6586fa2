package gateway

import (
	"context"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "loadstar/proto/loadstar/v1"
	"loadstar/series/quality"
	"loadstar/server/directory"
)

// Limits on reports.
const (
	// maxReports is the maximum number of reports in one check-in.
	maxReports = 50
	// reportsOfClient is the maximum number of reports that an agent may send in a day, per
	// client that it may host. Further reports are ignored.
	reportsOfClient = 12
	maxShares       = 8
	maxFindings     = 8
	codeBytes       = 32
	largestMAE      = 100
)

// reports stores the agents' reports about their clients. It is safe for concurrent use.
type reports struct {
	ledger  *directory.Reports
	offers  *offers
	refuse  *refuser
	clients int  // maximum number of clients of an agent
	region  bool // the hub also needs the reports

	mu   sync.Mutex
	sent map[string]int // number of reports of each agent on a day
	day  int64
}

// add stores the reports of an agent's clients.
func (p *reports) add(ctx context.Context, agent string, sent []*v1.ClientReport, now time.Time) error {
	if len(sent) == 0 {
		return nil
	}
	if len(sent) > maxReports {
		return p.refuse.invalid("reports", "a call may contain %d reports, this one contains %d", maxReports, len(sent))
	}
	all := make([]directory.Report, 0, len(sent))
	for _, r := range sent {
		x, ok := p.check(r)
		if !ok {
			return p.refuse.invalid("reports", "a report contains an invalid name, source or finding")
		}
		all = append(all, x)
	}
	if !p.may(agent, len(all), now) {
		p.refuse.metrics.refused.WithLabelValues("reports").Inc()
		return nil
	}
	if err := p.ledger.AddReports(ctx, agent, all, p.region, now); err != nil {
		return p.refuse.unavailable(ctx, err)
	}
	return nil
}

// may counts the reports of an agent, and returns whether the agent is within its limit for the
// day.
func (p *reports) may(agent string, n int, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if today := directory.Today(now); today != p.day || len(p.sent) > maxSeen {
		p.day, p.sent = today, map[string]int{}
	}
	if p.sent[agent]+n > reportsOfClient*p.clients {
		return false
	}
	p.sent[agent] += n
	return true
}

// check checks a report. It refuses invalid strings, and moves out-of-range numbers to the
// nearest bound.
func (p *reports) check(r *v1.ClientReport) (x directory.Report, ok bool) {
	if !validName(r.GetClient()) || len(r.Shares) > maxShares || len(r.Findings) > maxFindings || slices.ContainsFunc(r.Findings, invalidCode) ||
		slices.ContainsFunc(r.Shares, func(s *v1.SourceShare) bool { return invalidCode(s.GetSource()) }) {
		return x, false
	}
	m := &v1.ClientReport{
		Client: r.Client, Day: r.Day, RelativeMae: bounded(r.RelativeMae, largestMAE), Coverage: bounded(r.Coverage, 1), Findings: r.Findings,
		Drift: r.Drift, WantsRound: r.WantsRound,
	}
	if p.offers.has(r.Release) {
		m.Release = r.Release
	}
	fallback := math.NaN()
	for _, s := range r.Shares {
		share := bounded(&s.Share, 1)
		if share == nil {
			continue
		}
		if math.IsNaN(fallback) {
			fallback = 0
		}
		if s.Source != "model" {
			fallback = min(fallback+*share, 1)
		}
		m.Shares = append(m.Shares, &v1.SourceShare{Source: s.Source, Share: *share})
	}
	b, err := proto.Marshal(m)
	return directory.Report{
		Client: m.Client, Day: m.Day, Message: b, Release: m.Release, RelativeMAE: number(m.RelativeMae), Coverage: number(m.Coverage), Fallback: fallback,
		Drift: m.Drift, WantsRound: m.WantsRound, Findings: known(m.Findings),
		Interim: r.Interim,
	}, err == nil
}

// known returns the codes that this version knows, without duplicates. Only known codes are
// counted, because an agent could invent any number of others.
func known(codes []string) (some []string) {
	for _, c := range quality.Codes() {
		if slices.Contains(codes, string(c.Code)) {
			some = append(some, string(c.Code))
		}
	}
	return some
}

// invalidCode reports whether a string does not have the format of a code, such as unit-jump.
func invalidCode(s string) bool {
	return s == "" || len(s) > codeBytes || strings.ContainsFunc(s, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' })
}

// bounded returns a number, moved to between 0 and most if necessary, or nil if it is unknown.
func bounded(x *float64, most float64) *float64 {
	if x == nil || math.IsNaN(*x) {
		return nil
	}
	y := min(max(*x, 0), most)
	return &y
}

// number returns a number, or NaN if it is unknown.
func number(x *float64) float64 {
	if x == nil {
		return math.NaN()
	}
	return *x
}
