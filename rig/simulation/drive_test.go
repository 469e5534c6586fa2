package simulation

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"loadstar/agent"
)

const (
	faultsFor = 3 * time.Minute  // of virtual time
	endWithin = 25 * time.Minute // after the last fault
	maxSteps  = 200_000
)

// outcome is the result of a simulation.
type outcome struct {
	violation string // empty if there is none
	hash      uint64 // of the trace
	lines     []string
	steps     int
	virtual   time.Duration
	result    string // hash of weights and personal layers
	state     string // of the run
	faults    map[kind]int
	named     []string
	racy      []string
	resumed   time.Duration // from the end of an outage to the next complete round
}

// simulate runs the fleet of a seed. If only is not nil, only the faults that it names happen.
func simulate(t *testing.T, seed uint64, set setting, only map[string]bool) (out outcome) {
	t.Helper()
	if _, err := shared(); err != nil { // outside of the bubble
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(memory(), "simulation")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	synctest.Test(t, func(t *testing.T) {
		if set.private != nil && set.private.midnight {
			time.Sleep(24*time.Hour - 90*time.Second)
		}
		w, err := newWorld(t, seed, dir, set, only)
		if err != nil {
			t.Fatal(err)
		}
		w.drive()
		out.virtual = time.Since(w.start)
		for _, p := range w.parts {
			if !p.dead {
				w.kill(p)
			}
		}
		if len(w.violations) == 0 {
			out.result = w.final()
		}
		if len(w.violations) > 0 {
			out.violation = w.violations[0]
		}
		out.resumed = w.resumed
		out.hash, out.lines, out.steps, out.faults, out.named, out.racy, out.state = w.hash, w.lines, w.steps, w.faults.count, w.faults.named, w.racy, w.marks.state
		for _, at := range w.sites {
			if err := at.close(); err != nil {
				t.Error(err)
			}
		}
	})
	return out
}

// memory returns a folder in memory if there is one, which saves time, because SQLite syncs its
// file.
func memory() string {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		return "/dev/shm"
	}
	return ""
}

// violate records the violation of an invariant.
func (w *world) violate(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violations = append(w.violations, fmt.Sprintf(format, args...))
}

// drive runs the fleet until its run has ended and all agents know the outcome.
func (w *world) drive() {
	for ; w.steps < maxSteps; w.steps++ {
		all := w.candidates()
		w.check()
		if len(w.violations) > 0 || w.settled() {
			return
		}
		if w.startParts() {
			continue
		}
		if err := w.beginRun(); err != nil {
			w.violate("cannot add the run: %v", err)
			return
		}
		elapsed := time.Since(w.start)
		if elapsed > max(w.first+faultsFor, w.outageEnd())+endWithin {
			w.violate("the run is %s after %v: %s", w.marks.state, elapsed.Round(time.Second), w.unsettled())
			return
		}
		if len(all) == 0 {
			w.rest()
			continue
		}
		c := w.pick(all)
		v := proceed
		if elapsed < w.first+faultsFor && w.odds != nil {
			k, r := w.fault(c)
			if k != "" {
				var waits bool
				if v, waits = w.inject(k, c, r); waits {
					w.passed[c.key]++ // the next call of this name gets its own decision
					continue
				}
			}
		}
		if w.cutOff(c) || w.outageHits(c, elapsed) {
			v = refuse
		}
		w.note("%s: %d", c.key, v)
		w.let(c, v)
	}
	w.violate("%d steps do not end the run: %s", maxSteps, w.unsettled())
}

// rest waits until a call arrives, or until a part is due to restart or to continue.
func (w *world) rest() {
	now := time.Now()
	until := now.Add(30 * time.Second)
	earlier := func(t time.Time) {
		if t.After(now) && t.Before(until) {
			until = t
		}
	}
	for name, t := range w.again {
		earlier(t)
		earlier(w.parts[name].paused)
	}
	for _, p := range w.parts {
		earlier(p.paused)
	}
	w.idle(until.Sub(now))
}

// cutOff reports whether a call crosses a partition.
func (w *world) cutOff(c *call) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Before(c.cut) && !strings.HasPrefix(c.what, "disk ") && !strings.HasPrefix(c.what, "ledger committed")
}

// startParts starts the next part that is due, as a service manager does. It reports whether
// there was one.
func (w *world) startParts() (started bool) {
	now := time.Now()
	for _, name := range w.names {
		p := w.parts[name]
		w.mu.Lock()
		exited, err := p.exited && !p.dead, p.err
		w.mu.Unlock()
		if exited {
			w.ended(p, err)
			w.crashPart(p, now.Add(time.Second))
		}
		if at, ok := w.again[name]; ok && !now.Before(at) && !p.site.locked() {
			delete(w.again, name)
			if h := w.host(name); h != nil && !h.revoked.IsZero() && errors.Is(p.err, agent.ErrRevoked) {
				continue
			}
			w.note("start %s", name)
			w.startPart(name)
			return true
		}
	}
	return false
}

// ended checks why a part has ended by itself.
func (w *world) ended(p *part, err error) {
	h := w.host(p.name)
	switch {
	case err == nil && p.ctx.Err() != nil: // it was stopped
	case h != nil && errors.Is(err, errAway): // its disk failed
	case h != nil && !h.revoked.IsZero() && errors.Is(err, agent.ErrRevoked):
	default:
		w.violate("%s ended by itself: %v", p.name, err)
	}
}

func (w *world) host(name string) *host {
	for _, h := range w.agents {
		if h.name == name {
			return h
		}
	}
	return nil
}

// settled reports whether the run has ended and all agents know the outcome.
func (w *world) settled() bool {
	if w.marks.state == "waiting" && time.Since(w.start) > w.first+faultsFor {
		// The run would wait forever for the clients of a revoked agent.
		return slices.ContainsFunc(w.agents, func(h *host) bool { return !h.revoked.IsZero() })
	}
	return w.marks.ended && w.unsettled() == ""
}

// unsettled describes what is not done yet, or returns an empty string.
func (w *world) unsettled() string {
	if busy := w.busyAgent(); busy != "" { // before the ledgers, because it needs no query
		return busy + " has open turns"
	}
	for _, at := range w.sites {
		if at.name == hubName || w.marks.state == "finished" {
			if n, err := at.ledger.Counter.Asked(context.Background()); err != nil || n > 0 {
				return fmt.Sprintf("%d turns are open at the %s", n, at.name)
			}
		}
	}
	return ""
}

func (w *world) busyAgent() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.agents {
		if h.revoked.IsZero() && h.busy {
			return h.name
		}
	}
	return ""
}
