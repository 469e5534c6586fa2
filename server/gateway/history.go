package gateway

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"

	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

// history caches parts of the ledger that never change: versions, the keepers of private
// rounds, and the outcomes of runs. It is safe for concurrent use.
type history struct {
	ledger *ledger.Ledger

	mu       sync.Mutex
	versions map[versionKey]ledger.Version
	rounds   map[roundKey]*v1.Privacy // private rounds
	endings  map[string]string        // outcomes of ended runs
}

// maxKnownVersions, maxPrivateRounds and maxEnded are the maximum numbers of entries of each
// kind in memory.
const maxKnownVersions, maxPrivateRounds, maxEnded = 256, 64, 256

// versionKey identifies a version of a run.
type versionKey struct {
	run     string
	version int64
}

// roundKey identifies a round of a run.
type roundKey struct {
	run   string
	round int64
}

// version returns a version of a run, from memory if possible, because versions do not change.
func (h *history) version(ctx context.Context, run string, version int64) (v ledger.Version, err error) {
	key := versionKey{run, version}
	h.mu.Lock()
	v, ok := h.versions[key]
	h.mu.Unlock()
	if ok {
		return v, nil
	}
	if v, err = h.ledger.Version(ctx, run, version); err != nil {
		return v, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.versions == nil || len(h.versions) >= maxKnownVersions {
		h.versions = map[versionKey]ledger.Version{}
	}
	h.versions[key] = v
	return v, nil
}

// privacy returns the description of the masks for a task of a private plan, and nil for other
// plans. The description is fixed before a round has leases.
func (h *history) privacy(ctx context.Context, t *terms.Terms, l ledger.Task) (*v1.Privacy, error) {
	if !t.Private() {
		return nil, nil
	}
	key := roundKey{l.Run, l.Round}
	h.mu.Lock()
	p := h.rounds[key]
	h.mu.Unlock()
	if p != nil {
		return p, nil
	}
	r, err := h.ledger.PrivateRound(ctx, l.Run, l.Round)
	if err != nil {
		return nil, err
	}
	p = &v1.Privacy{}
	if err := proto.Unmarshal(r.Privacy, p); err != nil {
		return nil, fmt.Errorf("decoding the statements of keepers: %w", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.rounds == nil || len(h.rounds) >= maxPrivateRounds {
		h.rounds = map[roundKey]*v1.Privacy{}
	}
	h.rounds[key] = p
	return p, nil
}

// explainClosed adds the outcomes of runs to verdicts on closed rounds, for the agents' logs. A
// run that has ended never resumes, so the gateway asks the ledger only once. If the ledger
// does not respond, the verdicts have no reason.
func (h *history) explainClosed(ctx context.Context, all []*v1.Verdict) {
	for _, v := range all {
		if v.Outcome != v1.Outcome_OUTCOME_CLOSED {
			continue
		}
		h.mu.Lock()
		how, known := h.endings[v.Run]
		h.mu.Unlock()
		if !known {
			var err error
			if how, err = h.ledger.Ended(ctx, v.Run); err != nil || how == "" {
				continue
			}
			h.mu.Lock()
			if h.endings == nil || len(h.endings) >= maxEnded {
				h.endings = map[string]string{}
			}
			h.endings[v.Run] = how
			h.mu.Unlock()
		}
		v.Reason = how
	}
}
