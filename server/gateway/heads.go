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
	"loadstar/server/ledger"
)

const (
	// headsOfRun is the maximum number of heads of a run in memory, and runsOfHeads the maximum
	// number of such runs.
	headsOfRun, runsOfHeads = 512, 64
	// headsSent is the maximum number of heads in a task. An agent that has missed more heads
	// gets the rest with its next tasks.
	headsSent = 128
	// headsSeen is the maximum number of heads in a check-in.
	headsSeen = 4
	// maxForks is the maximum number of disagreements that are recorded between two starts of
	// the gateway.
	maxForks = 1024
	// askAgain is the time for which the gateway remembers that a run has no heads.
	askAgain = 10 * time.Minute
)

// heads contains the newest heads of some runs, so that a check-in needs no query. Heads never
// change. The gateway asks the ledger for newer heads when a newer version exists.
type heads struct {
	ledger *ledger.Ledger
	refuse *refuser

	mu   sync.Mutex
	runs map[string][]head.Head
	// forks contains the pairs of agent and run whose disagreement has been recorded.
	forks map[[2]string]bool
	// gone contains the runs without heads that agents have named, each with the time of the
	// last query.
	gone map[string]time.Time
}

// upTo returns the newest heads of a run that the gateway has, oldest first. If it lacks
// the heads up to a version, it reads them.
func (c *heads) upTo(ctx context.Context, run string, version int64) ([]head.Head, error) {
	c.mu.Lock()
	all, known := c.runs[run]
	c.mu.Unlock()
	from := version - headsOfRun
	if n := len(all); n > 0 {
		from = max(from, all[n-1].Version)
	}
	if known && from >= version {
		return all, nil
	}
	more, err := c.ledger.Heads(ctx, run, from, headsOfRun)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	all = c.runs[run] // another call may have read them in the meantime
	for _, h := range more {
		if n := len(all); n == 0 || h.Version > all[n-1].Version {
			all = append(all[:n:n], h) // a copy, because other calls use the slice
		}
	}
	all = all[max(0, len(all)-headsOfRun):]
	if len(all) == 0 {
		return nil, nil
	}
	if c.runs == nil {
		c.runs = map[string][]head.Head{}
	}
	if _, ok := c.runs[run]; !ok && len(c.runs) >= runsOfHeads {
		for other := range c.runs {
			delete(c.runs, other)
			break
		}
	}
	c.runs[run] = all
	return all, nil
}

func byVersion(h head.Head, version int64) int { return cmp.Compare(h.Version, version) }

// after returns a run's heads after the one that an agent has seen, up to the head of a
// version.
func (c *heads) after(ctx context.Context, run string, version int64, seen []*v1.SeenHead) (all []*v1.Head, err error) {
	found, err := c.upTo(ctx, run, version)
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
		if s.Version < found[0].Version { // the agent was not in contact for a long time
			if found, err = c.ledger.Heads(ctx, run, s.Version, headsSent); err != nil {
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

// forked returns the runs for which an agent has seen a head that is not in the ledger. Such an
// agent has received different weights from the rest of the fleet, either from another server
// with the same key, or from this server before its ledger was restored from a backup.
func (c *heads) forked(ctx context.Context, agent string, seen []*v1.SeenHead) (runs []string, err error) {
	if len(seen) > headsSeen {
		return nil, c.refuse.invalid("heads", "a request may contain %d heads, this one contains %d", headsSeen, len(seen))
	}
	for _, s := range seen {
		if !validName(s.Run) || len(s.Hash) != sha256.Size || s.Version < 0 {
			return nil, c.refuse.invalid("heads", "a head has an invalid run, version or hash")
		}
		c.mu.Lock()
		recorded := c.forks[[2]string{agent, s.Run}]
		asked, gone := c.gone[s.Run]
		c.mu.Unlock()
		if gone && time.Since(asked) < askAgain {
			continue
		}
		if recorded {
			runs = append(runs, s.Run)
			continue
		}
		found, err := c.upTo(ctx, s.Run, s.Version)
		switch {
		case err == nil && len(found) == 0: // the agent may have named a version that does not exist
			found, err = c.ledger.Heads(ctx, s.Run, -1, 1)
		case err == nil && s.Version < found[0].Version:
			found, err = c.ledger.Heads(ctx, s.Run, s.Version-1, 1)
		}
		if err != nil {
			return nil, c.refuse.unavailable(ctx, err)
		}
		if len(found) == 0 { // the run's heads are deleted
			c.mu.Lock()
			if len(c.gone) >= maxForks || c.gone == nil {
				c.gone = map[string]time.Time{}
			}
			c.gone[s.Run] = time.Now()
			c.mu.Unlock()
			continue
		}
		at, ok := slices.BinarySearchFunc(found, s.Version, byVersion)
		if ok && bytes.Equal(found[at].Hash(), s.Hash) {
			continue
		}
		runs = append(runs, s.Run)
		if err := c.recordFork(ctx, agent, s); err != nil {
			return nil, err
		}
	}
	return runs, nil
}

// recordFork adds a disagreement to the audit log, once for each agent and run.
func (c *heads) recordFork(ctx context.Context, agent string, s *v1.SeenHead) error {
	c.mu.Lock()
	full := len(c.forks) >= maxForks
	if !full {
		if c.forks == nil {
			c.forks = map[[2]string]bool{}
		}
		c.forks[[2]string{agent, s.Run}] = true
	}
	c.mu.Unlock()
	if full {
		return nil
	}
	c.refuse.log.Error("an agent has seen other weights of a run than this server has", "agent", agent, "run", s.Run, "version", s.Version)
	err := c.ledger.Events.AddEvent(ctx, directory.Event{
		At: c.ledger.Now(), Actor: agent, Action: "other weights", Subject: s.Run,
		Detail: fmt.Sprintf("the agent has seen head %x of version %d, which this server does not have", s.Hash[:8], s.Version),
	})
	if err != nil {
		return c.refuse.unavailable(ctx, err)
	}
	return nil
}
