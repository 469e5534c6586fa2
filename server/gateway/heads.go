package gateway

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"
	"time"

	"loadstar/internal/head"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/directory"
)

const (
	// headsOfRun and runsOfHeads limit the heads in memory.
	headsOfRun, runsOfHeads = 512, 64
	// headsSent limits the heads in a task. An agent that has missed more gets the others with
	// its next tasks.
	headsSent = 128
	// headsSeen limits the heads in a check-in.
	headsSeen = 4
	// maxForks limits the disagreements that are recorded between two starts.
	maxForks = 1024
	// askAgain is how long the gateway remembers that a run has no heads.
	askAgain = 10 * time.Minute
)

// heads has the newest heads of some runs, so that a check-in needs no query. Heads never
// change, and the ledger is asked for newer ones when there is a newer version.
type heads struct {
	mu   sync.Mutex
	runs map[string][]head.Head
	// forks has the agents and runs whose disagreement is recorded.
	forks map[[2]string]bool
	// gone has runs without heads that agents have named, and when the ledger was asked.
	gone map[string]time.Time
}

// headsUpTo returns the newest heads of a run that the gateway has, oldest first. It reads those
// up to a version if it does not have them.
func (g *Gateway) headsUpTo(ctx context.Context, run string, version int64) ([]head.Head, error) {
	g.heads.mu.Lock()
	all, known := g.heads.runs[run]
	g.heads.mu.Unlock()
	after := version - headsOfRun
	if n := len(all); n > 0 {
		after = max(after, all[n-1].Version)
	}
	if known && after >= version {
		return all, nil
	}
	more, err := g.Ledger.Heads(ctx, run, after, headsOfRun)
	if err != nil {
		return nil, err
	}
	g.heads.mu.Lock()
	defer g.heads.mu.Unlock()
	all = g.heads.runs[run] // another call may have read them too
	for _, h := range more {
		if n := len(all); n == 0 || h.Version > all[n-1].Version {
			all = append(all[:n:n], h) // a copy, because other calls use the slice
		}
	}
	all = all[max(0, len(all)-headsOfRun):]
	if len(all) == 0 {
		return nil, nil
	}
	if g.heads.runs == nil {
		g.heads.runs = map[string][]head.Head{}
	}
	if _, ok := g.heads.runs[run]; !ok && len(g.heads.runs) >= runsOfHeads {
		for other := range g.heads.runs {
			delete(g.heads.runs, other)
			break
		}
	}
	g.heads.runs[run] = all
	return all, nil
}

func byVersion(h head.Head, version int64) int { return cmp.Compare(h.Version, version) }

// headsAfter returns the heads between the one that an agent has seen of a run and that of a
// version.
func (g *Gateway) headsAfter(ctx context.Context, run string, version int64, seen []*v1.SeenHead) (all []*v1.Head, err error) {
	found, err := g.headsUpTo(ctx, run, version)
	if err != nil {
		return nil, err
	}
	at, ok := slices.BinarySearchFunc(found, version, byVersion)
	if !ok {
		return nil, nil // the version is older than its ledger's heads
	}
	first := at
	for _, s := range seen {
		if s.Run != run || s.Version >= version {
			continue
		}
		if s.Version < found[0].Version { // it was away for long
			if found, err = g.Ledger.Heads(ctx, run, s.Version, headsSent); err != nil {
				return nil, err
			}
			at, first = len(found)-1, 0
			break
		}
		first, ok = slices.BinarySearchFunc(found, s.Version, byVersion)
		if ok {
			first++
		}
	}
	for _, h := range found[first : at+1][:min(at+1-first, headsSent)] {
		if h.Version <= version {
			all = append(all, &v1.Head{Version: h.Version, Weights: h.Weights, Previous: h.Previous, Signature: h.Signature})
		}
	}
	return all, nil
}

// forked returns the runs of which an agent has seen a head that is not in the ledger. Such an
// agent was shown other weights than the others: by another server with the same key, or by this
// one before its ledger was restored from a backup.
func (g *Gateway) forked(ctx context.Context, agent string, seen []*v1.SeenHead) (runs []string, err error) {
	if len(seen) > headsSeen {
		return nil, g.invalid("heads", "a request may have %d heads, this one has %d", headsSeen, len(seen))
	}
	for _, s := range seen {
		if !validName(s.Run) || len(s.Hash) != sha256.Size || s.Version < 0 {
			return nil, g.invalid("heads", "a head has an invalid run, version or hash")
		}
		g.heads.mu.Lock()
		recorded := g.heads.forks[[2]string{agent, s.Run}]
		asked, gone := g.heads.gone[s.Run]
		g.heads.mu.Unlock()
		if gone && time.Since(asked) < askAgain {
			continue
		}
		if recorded {
			runs = append(runs, s.Run)
			continue
		}
		found, err := g.headsUpTo(ctx, s.Run, s.Version)
		switch {
		case err == nil && len(found) == 0: // the agent may have named a version that nobody has
			found, err = g.Ledger.Heads(ctx, s.Run, -1, 1)
		case err == nil && s.Version < found[0].Version:
			found, err = g.Ledger.Heads(ctx, s.Run, s.Version-1, 1)
		}
		if err != nil {
			return nil, g.unavailable(ctx, err)
		}
		if len(found) == 0 { // the run's heads are deleted
			g.heads.mu.Lock()
			if len(g.heads.gone) >= maxForks || g.heads.gone == nil {
				g.heads.gone = map[string]time.Time{}
			}
			g.heads.gone[s.Run] = time.Now()
			g.heads.mu.Unlock()
			continue
		}
		at, ok := slices.BinarySearchFunc(found, s.Version, byVersion)
		if ok && bytes.Equal(found[at].Hash(), s.Hash) {
			continue
		}
		runs = append(runs, s.Run)
		if err := g.recordFork(ctx, agent, s); err != nil {
			return nil, err
		}
	}
	return runs, nil
}

// recordFork adds a disagreement to the audit log, once for an agent and a run.
func (g *Gateway) recordFork(ctx context.Context, agent string, s *v1.SeenHead) error {
	g.heads.mu.Lock()
	full := len(g.heads.forks) >= maxForks
	if !full {
		if g.heads.forks == nil {
			g.heads.forks = map[[2]string]bool{}
		}
		g.heads.forks[[2]string{agent, s.Run}] = true
	}
	g.heads.mu.Unlock()
	if full {
		return nil
	}
	g.Log.Error("an agent has seen other weights of a run than this server has", "agent", agent, "run", s.Run, "version", s.Version)
	err := g.Ledger.Events.AddEvent(ctx, directory.Event{
		At: g.Ledger.Now(), Actor: agent, Action: "other weights", Subject: s.Run,
		Detail: fmt.Sprintf("the agent has seen head %x of version %d, which this server does not have", s.Hash[:8], s.Version),
	})
	if err != nil {
		return g.unavailable(ctx, err)
	}
	return nil
}
