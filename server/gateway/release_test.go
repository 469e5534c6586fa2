package gateway

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/directory"
	"loadstar/server/ledger"
	"loadstar/server/pki"
)

// TestReleaseList checks that agents get the list of releases only if they use releases and
// have a different list.
func TestReleaseList(t *testing.T) {
	g, _ := newGateway(t)
	ctx := pki.With(t.Context(), pki.Identity{Role: pki.Agent, ID: "agent"})
	check := func(revision *uint64) *v1.ReleaseList {
		t.Helper()
		s, err := g.Exchange(ctx, &v1.ExchangeRequest{Releases: revision})
		must(t, err)
		return s.Releases
	}
	if list := check(proto.Uint64(0)); list != nil {
		t.Errorf("before the releases were read: %v", list)
	}
	g.offers.load(ctx)
	empty := check(proto.Uint64(0))
	if empty == nil || empty.Revision == 0 || len(empty.Releases) != 0 {
		t.Fatalf("%v", empty)
	}
	if list := check(nil); list != nil {
		t.Errorf("an agent without releases: %v", list)
	}
	if list := check(&empty.Revision); list != nil {
		t.Errorf("an unchanged list: %v", list)
	}
	lead, err := g.Ledger.Lead(ctx, "test", time.Hour, time.Now())
	must(t, err)
	hub := []ledger.Release{{ID: "x", Name: "day", Number: 1, Run: "run", Weights: "w", PlanBlob: "p", Role: "generic"}}
	must(t, g.Ledger.Relay.AdoptReleases(ctx, lead, hub, time.Now()))
	g.offers.load(ctx)
	one := check(&empty.Revision)
	if one == nil || one.Revision == empty.Revision || len(one.Releases) != 1 || one.Releases[0].Id != "x" {
		t.Fatalf("%v", one)
	}
	must(t, g.Ledger.Relay.AdoptReleases(ctx, lead, nil, time.Now()))
	g.offers.load(ctx)
	if again := check(&one.Revision); again.GetRevision() != empty.Revision {
		t.Errorf("%v, want revision %d", again, empty.Revision)
	}
}

// TestHostileReports checks that reports with invalid strings are refused, that out-of-range
// numbers are moved to the nearest bound, and that an agent's reports per day are limited.
func TestHostileReports(t *testing.T) {
	g, _ := newGateway(t)
	ctx := pki.With(t.Context(), pki.Identity{Role: pki.Agent, ID: "agent"})
	today := directory.Today(time.Now())
	send := func(all ...*v1.ClientReport) error {
		_, err := g.Exchange(ctx, &v1.ExchangeRequest{Reports: all})
		return err
	}
	shares := func(n int) (all []*v1.SourceShare) {
		for range n {
			all = append(all, &v1.SourceShare{Source: "week", Share: 0.7})
		}
		return all
	}
	for name, r := range map[string]*v1.ClientReport{
		"no name": {}, "unprintable": {Client: "a\n"}, "long": {Client: strings.Repeat("a", 1000)},
		"finding": {Client: "a0", Findings: []string{"Not A Code"}}, "long finding": {Client: "a0", Findings: []string{strings.Repeat("a", 99)}}, "empty finding": {Client: "a0", Findings: []string{""}},
		"findings": {Client: "a0", Findings: make([]string, 9)}, "source": {Client: "a0", Shares: []*v1.SourceShare{{Source: "kW=1.25"}}}, "shares": {Client: "a0", Shares: shares(9)},
		"nil share": {Client: "a0", Shares: []*v1.SourceShare{{}}},
	} {
		if err := send(r); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := send(make([]*v1.ClientReport, maxReports+1)...); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("too many: %v", err)
	}
	number := func(x float64) *float64 { return &x }
	must(t, send(&v1.ClientReport{
		Client: "a0", Day: today, RelativeMae: number(math.Inf(1)), Coverage: number(-3), Shares: append(shares(3), &v1.SourceShare{Source: "model", Share: math.NaN()}),
		Release: "../unknown",
	}, &v1.ClientReport{Client: "a1", Day: today, RelativeMae: number(math.NaN()), Coverage: number(0.01)}, &v1.ClientReport{Client: "a2", Day: math.MaxInt64}, &v1.ClientReport{Client: "a2", Day: math.MinInt64}))
	stored, err := g.Ledger.Reports.Reports(ctx, []string{"a0", "a1", "a2", "b0"})
	must(t, err)
	if len(stored) != 2 {
		t.Fatalf("%d reports are stored", len(stored))
	}
	got := &v1.ClientReport{}
	must(t, proto.Unmarshal(stored["a0"], got))
	if got.GetRelativeMae() != 100 || got.GetCoverage() != 0 || got.Coverage == nil || got.Release != "" || len(got.Shares) != 3 {
		t.Errorf("%v", got)
	}
	days, err := g.Ledger.Reports.ReportDays(ctx, "", 9)
	must(t, err)
	if len(days) != 1 || days[0].Clients != 2 || days[0].Fallback < 0.98 {
		t.Errorf("%+v", days)
	}
	for range 1 + reportsOfClient*g.Clients/maxReports {
		var all []*v1.ClientReport
		for i := range maxReports {
			all = append(all, &v1.ClientReport{Client: fmt.Sprint("a", i%3), Day: today, Coverage: number(0.5)})
		}
		must(t, send(all...))
	}
	if n := g.reports.sent["agent"]; n > reportsOfClient*g.Clients {
		t.Errorf("%d reports in a day", n)
	}
	must(t, send(slices.Repeat([]*v1.ClientReport{{Client: "a2", Day: today + 1, Coverage: number(0.5)}}, maxReports)...)) // ignored
	if stored, err := g.Ledger.Reports.Reports(ctx, []string{"a0", "a1", "a2", "b0"}); err != nil || ledgerDay(t, stored["a2"]) != today {
		t.Errorf("the limit had no effect: %v", err)
	}
	// The ledger is closed, so the agent must retry.
	closed, cancel := context.WithCancel(ctx)
	cancel()
	if err := g.reports.add(closed, "agent2", []*v1.ClientReport{{Client: "a0", Day: today}}, time.Now()); connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("%v", err)
	}
	// Only the agent determines whether a report is an interim one.
	for _, interim := range []bool{false, true} {
		if x, ok := g.reports.check(&v1.ClientReport{Client: "a0", Day: today, Findings: []string{"impossible"}, Interim: interim}); !ok || x.Interim != interim {
			t.Errorf("interim %v: %+v", interim, x)
		}
	}
	var none *connect.Error
	if errors.As(send(), &none) {
		t.Error(none)
	}
}

func ledgerDay(t *testing.T, b []byte) int64 {
	t.Helper()
	r := &v1.ClientReport{}
	must(t, proto.Unmarshal(b, r))
	return r.Day
}
