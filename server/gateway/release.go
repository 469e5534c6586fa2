package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "loadstar/proto/loadstar/v1"
	"loadstar/series/quality"
	"loadstar/server/directory"
	"loadstar/server/ledger"
)

// offer is what agents are told about releases. Each gateway has a copy in memory, so a
// check-in needs no query.
type offer struct {
	list *v1.ReleaseList
	ids  map[string]bool // of all releases, also withdrawn ones
}

// loadReleases reads the releases from the ledger. After an error the old list stays in use.
func (g *Gateway) loadReleases(ctx context.Context) {
	all, err := g.Ledger.Releases(ctx)
	if err != nil {
		if ctx.Err() == nil {
			g.Log.Warn("cannot read the releases", "error", err)
		}
		return
	}
	o := &offer{list: &v1.ReleaseList{}, ids: map[string]bool{}}
	for _, r := range all {
		o.ids[r.ID] = true
	}
	h := sha256.New()
	for _, r := range ledger.Offered(all) {
		fmt.Fprintf(h, "%q", r.ID)
		o.list.Releases = append(o.list.Releases, &v1.Release{
			Id: r.ID, Name: r.Name, Number: r.Number, Run: r.Run, Version: r.Version, Role: r.Role, Plan: r.PlanBlob, Weights: r.Weights,
		})
	}
	// The revision depends only on the list, so all gateways have the same one.
	o.list.Revision = max(binary.LittleEndian.Uint64(h.Sum(nil)), 1)
	if old := g.offer.Swap(o); old != nil && old.list.Revision != o.list.Revision {
		g.mirror.wakeAll()
	}
}

// releases returns the list of releases if the agent uses releases and has another list.
func (g *Gateway) releases(r *v1.ExchangeRequest) *v1.ReleaseList {
	o := g.offer.Load()
	if r.Releases == nil || o == nil || o.list.Revision == r.GetReleases() {
		return nil
	}
	return o.list
}

// Limits on reports.
const (
	// maxReports limits the reports of one check-in.
	maxReports = 50
	// reportsOfClient limits the reports that an agent may send in a day, per client that it
	// may host. Reports beyond it are ignored.
	reportsOfClient = 12
	maxShares       = 8
	maxFindings     = 8
	codeBytes       = 32
	largestMAE      = 100
)

// addReports stores the reports of an agent's clients.
func (g *Gateway) addReports(ctx context.Context, agent string, reports []*v1.ClientReport, now time.Time) error {
	if len(reports) == 0 {
		return nil
	}
	if len(reports) > maxReports {
		return g.invalid("reports", "a call may have %d reports, this one has %d", maxReports, len(reports))
	}
	all := make([]directory.Report, 0, len(reports))
	for _, r := range reports {
		x, ok := g.report(r)
		if !ok {
			return g.invalid("reports", "a report has a name, source or finding that is not valid")
		}
		all = append(all, x)
	}
	if !g.mayReport(agent, len(all), now) {
		g.metrics.refused.WithLabelValues("reports").Inc()
		return nil
	}
	if err := g.Ledger.Reports.AddReports(ctx, agent, all, g.Region, now); err != nil {
		return g.unavailable(ctx, err)
	}
	return nil
}

// mayReport counts the reports of an agent, and reports whether it is within its limit for
// the day.
func (g *Gateway) mayReport(agent string, n int, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if day := directory.Today(now); day != g.reportDay || len(g.reported) > maxSeen {
		g.reportDay, g.reported = day, map[string]int{}
	}
	if g.reported[agent]+n > reportsOfClient*g.Clients {
		return false
	}
	g.reported[agent] += n
	return true
}

// report checks a report. It refuses texts that are not valid, and moves numbers that are
// out of bounds to the nearest bound.
func (g *Gateway) report(r *v1.ClientReport) (x directory.Report, ok bool) {
	if !validName(r.GetClient()) || len(r.Shares) > maxShares || len(r.Findings) > maxFindings || slices.ContainsFunc(r.Findings, invalidCode) ||
		slices.ContainsFunc(r.Shares, func(s *v1.SourceShare) bool { return invalidCode(s.GetSource()) }) {
		return x, false
	}
	m := &v1.ClientReport{
		Client: r.Client, Day: r.Day, RelativeMae: bounded(r.RelativeMae, largestMAE), Coverage: bounded(r.Coverage, 1), Findings: r.Findings,
		Drift: r.Drift, WantsRound: r.WantsRound,
	}
	if o := g.offer.Load(); o != nil && o.ids[r.Release] {
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

// known returns the codes of findings that this version knows, once each. Only these are
// counted, so that an agent cannot invent any number of codes.
func known(codes []string) (some []string) {
	for _, c := range quality.Codes() {
		if slices.Contains(codes, string(c.Code)) {
			some = append(some, string(c.Code))
		}
	}
	return some
}

// invalidCode reports whether a text is not a code such as unit-jump.
func invalidCode(s string) bool {
	return s == "" || len(s) > codeBytes || strings.ContainsFunc(s, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' })
}

// bounded returns a number within 0 and most, or nil if it is unknown.
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
