package gateway

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/internal/head"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/directory"
	"loadstar/server/ledger"
	"loadstar/server/pki"
)

// TestHeads checks which heads an agent gets with its tasks. An agent that was shown a
// different history is notified, which is recorded once, and known heads cause no queries.
func TestHeads(t *testing.T) {
	g, _ := newGateway(t)
	ctx := pki.With(t.Context(), pki.Identity{Role: pki.Agent, ID: "agent"})
	checkIn := func(seen ...*v1.SeenHead) *v1.ExchangeResponse {
		t.Helper()
		r, err := g.Exchange(ctx, &v1.ExchangeRequest{Heads: seen})
		must(t, err)
		return r
	}
	key, err := g.Ledger.HeadKey(ctx)
	must(t, err)
	now := time.Now()
	lead, err := g.Ledger.Lead(ctx, "test", time.Hour, now)
	must(t, err)
	// merge adds a version and requests training from it.
	merge := func(version int64) {
		t.Helper()
		must(t, g.Ledger.Drive(ctx, lead, "run", func(d *ledger.Drive) error {
			if err := d.Close(ledger.Round{Round: version - 1, Version: version - 1, State: ledger.RoundMerging, Closed: now}, "{}", false); err != nil {
				return err
			}
			if err := d.Publish(ledger.Round{Round: version - 1, Version: version - 1}, ledger.Version{Weights: fmt.Sprint("w", version)}, "s"); err != nil {
				return err
			}
			if _, _, err := d.Ask(ledger.Asking{Round: version, Version: version, Members: []int64{0, 1, 2}, Until: now.Add(time.Hour)}); err != nil {
				return err
			}
			return d.Save("{}", ledger.Round{Round: version, Version: version, Opened: now})
		}))
	}
	versions := func(r *v1.ExchangeResponse) (all []int64) {
		t.Helper()
		if len(r.Tasks) != 1 {
			t.Fatalf("%d tasks", len(r.Tasks))
		}
		var before []byte
		for _, x := range r.Tasks[0].Heads {
			h := head.Head{Run: "run", Version: x.Version, Weights: x.Weights, Previous: x.Previous, Signature: x.Signature}
			if !h.Valid(key) || before != nil && !bytes.Equal(before, h.Previous) {
				t.Errorf("head %d is not signed or does not follow the one before", h.Version)
			}
			before, all = h.Hash(), append(all, h.Version)
		}
		return all
	}
	const last = 5
	for v := range int64(last) {
		merge(v + 1)
	}
	hashes := map[int64][]byte{}
	heads, err := g.Ledger.Heads(ctx, "run", -1, 100)
	must(t, err)
	if len(heads) != last+1 || len(heads[0].Previous) != 0 {
		t.Fatalf("%d heads, first %v", len(heads), heads[0])
	}
	for _, h := range heads {
		hashes[h.Version] = h.Hash()
	}
	seen := func(version int64) *v1.SeenHead {
		return &v1.SeenHead{Run: "run", Version: version, Hash: hashes[version]}
	}
	for _, c := range []struct {
		seen []*v1.SeenHead
		want []int64
	}{
		{nil, []int64{5}},
		{[]*v1.SeenHead{seen(2)}, []int64{3, 4, 5}},
		{[]*v1.SeenHead{seen(4)}, []int64{5}},
		{[]*v1.SeenHead{seen(5)}, []int64{5}},
		{[]*v1.SeenHead{{Run: "deleted", Version: 7, Hash: hashes[0]}, seen(0)}, []int64{1, 2, 3, 4, 5}},
	} {
		r := checkIn(c.seen...)
		if got := versions(r); !slices.Equal(got, c.want) || len(r.Forked) > 0 {
			t.Errorf("an agent that has seen %v gets heads %v and forks %v, want %v", c.seen, got, r.Forked, c.want)
		}
	}
	events := func() (n int) {
		t.Helper()
		all, err := g.Ledger.Events.Audit(ctx, directory.AuditQuery{Actions: []string{"other weights"}, Limit: 10})
		must(t, err)
		for _, e := range all {
			if e.Actor != "agent" || e.Subject != "run" || !strings.Contains(e.Detail, "version 3") {
				t.Errorf("recorded %+v", e)
			}
		}
		return len(all)
	}
	if n := events(); n != 0 {
		t.Errorf("%d events without a fork", n)
	}
	for range 3 {
		if r := checkIn(&v1.SeenHead{Run: "run", Version: 3, Hash: hashes[2]}); !slices.Equal(r.Forked, []string{"run"}) {
			t.Errorf("an agent with another head is told %v", r.Forked)
		}
	}
	if n := events(); n != 1 {
		t.Errorf("%d events of one fork", n)
	}
	for _, bad := range [][]*v1.SeenHead{{{Run: "run", Hash: []byte("short")}}, {{Run: "", Hash: hashes[0]}}, {seen(0), seen(1), seen(2), seen(3), seen(4)}} {
		if _, err := g.Exchange(ctx, &v1.ExchangeRequest{Heads: bad}); err == nil {
			t.Errorf("%v is accepted", bad)
		}
	}
	for _, version := range []int64{99, 1 << 40} { // the second is far beyond the heads that a gateway reads
		g.heads.mu.Lock()
		g.heads.forks, g.heads.runs = nil, nil
		g.heads.mu.Unlock()
		if r := checkIn(&v1.SeenHead{Run: "run", Version: version, Hash: hashes[2]}); !slices.Equal(r.Forked, []string{"run"}) {
			t.Errorf("version %d, which this server does not have, is not noticed", version)
		}
	}
}
