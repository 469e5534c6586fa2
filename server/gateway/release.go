package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"log/slog"
	"sync/atomic"

	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/ledger"
)

// offer is the list of releases for agents. Each gateway has a copy in memory, so that a
// check-in needs no query.
type offer struct {
	list *v1.ReleaseList
	ids  map[string]bool // IDs of all releases, including withdrawn ones
}

// offers contains the current offer. It is safe for concurrent use.
type offers struct {
	ledger *ledger.Ledger
	mirror *mirror
	log    *slog.Logger

	now atomic.Pointer[offer] // nil until the releases were read
}

// load reads the releases from the ledger. After an error, the old list stays in use.
func (x *offers) load(ctx context.Context) {
	all, err := x.ledger.Releases(ctx)
	if err != nil {
		if ctx.Err() == nil {
			x.log.Warn("cannot read the releases", "error", err)
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
	// The revision depends only on the list, so all gateways have the same revision.
	o.list.Revision = max(binary.LittleEndian.Uint64(h.Sum(nil)), 1)
	if old := x.now.Swap(o); old != nil && old.list.Revision != o.list.Revision {
		x.mirror.wakeAll()
	}
}

// to returns the list of releases if the agent uses releases and has a different list.
func (x *offers) to(r *v1.ExchangeRequest) *v1.ReleaseList {
	o := x.now.Load()
	if r.Releases == nil || o == nil || o.list.Revision == r.GetReleases() {
		return nil
	}
	return o.list
}

// has reports whether a release exists or existed.
func (x *offers) has(release string) bool {
	o := x.now.Load()
	return o != nil && o.ids[release]
}
