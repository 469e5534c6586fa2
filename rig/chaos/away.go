package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"loadstar/rig/product"
)

// newKeeperAway returns an injector that stops the keeper in the middle of a run and starts it
// again after a while. While the keeper is down, the run must report which keeper it waits for, and
// since when.
func newKeeperAway(t *trial, log io.Writer) injector {
	r := newRepeated(t, log, kindKeeper)
	r.once = func(ctx context.Context, i int) error {
		r.record(kindKeeper, "away for %s", t.away)
		p, begun := t.system.auditor, time.Now()
		if err := p.Stop(); err != nil {
			return err
		}
		err := r.without(ctx, begun)
		r.watcher.killed(kindKeeper) // measure from the keeper's restart
		return errors.Join(err, p.Start())
	}
	return r
}

// without checks what the run reports while the keeper is down.
func (r *repeated) without(ctx context.Context, since time.Time) error {
	text, first, err := r.system.auditor.waits(ctx, since, r.away+time.Minute)
	if err != nil {
		return err
	}
	r.note("after %.1f s the run said: %s", time.Since(since).Seconds(), text)
	if err := product.Sleep(ctx, r.away-time.Since(since)); err != nil {
		return err
	}
	text, last, err := r.system.auditor.waits(ctx, since, time.Minute)
	r.note("after %.1f s the run said: %s", time.Since(since).Seconds(), text)
	if err == nil && last != first {
		err = fmt.Errorf("while the keeper was down, the run reported that it had waited since %s, and then since %s", first, last)
	}
	return err
}

// waits returns what a running run reports about the keeper that was stopped at a given time, and
// the time in the report. It checks that the report names the keeper and a time close to the
// given one.
func (a *auditor) waits(ctx context.Context, since time.Time, within time.Duration) (text string, at time.Time, err error) {
	told, err := product.Eventually(ctx, within, func() (bool, error) {
		all, err := a.ledger.runs(ctx, "")
		if err != nil {
			return false, err
		}
		for _, r := range all {
			if r.ended() {
				continue
			}
			out, err := a.command(ctx, "run", "show", r.id, "--json")
			if err != nil {
				return false, err
			}
			var shown struct{ Run struct{ Waits string } }
			if err := json.Unmarshal([]byte(out), &shown); err != nil {
				return false, err
			}
			text = shown.Run.Waits
		}
		return text != "", nil
	})
	if err != nil {
		return "", at, err
	}
	const form = "2006-01-02 15:04:05 MST"
	rest, named := strings.CutPrefix(text, "keeper "+keeperName+" has not answered since ")
	if !told || !named {
		return "", at, fmt.Errorf("the keeper was stopped, but the run reports that it waits: %q", text)
	}
	at, err = time.Parse(form, rest[:min(len(form), len(rest))])
	if err != nil {
		return "", at, err
	}
	// The report has the time of the keeper's last answer. Every process calls the keeper once a
	// minute, and calls in progress when the keeper stops still get an answer.
	if late := at.Sub(since.Truncate(time.Second)); late < -90*time.Second || late > 10*time.Second {
		return "", at, fmt.Errorf("the keeper was stopped at %s, but the run reports %q", since.UTC().Format(form), text)
	}
	return text, at, nil
}
