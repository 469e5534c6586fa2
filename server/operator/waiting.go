package operator

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"loadstar/internal/textfmt"

	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/ledger"
)

const (
	// leastSilence is the minimum time without contact that counts as silence. If an agent moves
	// to another gateway, that gateway stores its first check-in within this time.
	leastSilence = 10 * time.Second
	// namedAgents is the maximum number of agents that a description names.
	namedAgents = 5
)

// waiting describes what the newest round of a run is waiting for. It returns nil if no round is
// open or the round is not waiting.
func (o *runs) waiting(ctx context.Context, run ledger.Run, rounds []ledger.Round) (*v1.Waiting, error) {
	if run.State != ledger.Running || len(rounds) == 0 || rounds[0].State != ledger.RoundOpen {
		return nil, nil
	}
	r := rounds[0]
	all, err := o.Ledger.Counter.Waits(ctx, run.ID, r.Round)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	fleet, err := o.numbers.fleet(ctx)
	if err != nil {
		return nil, err
	}
	w := &v1.Waiting{Round: r.Round, Asked: r.Asked - r.Lost, Merges: r.Counted, Replaces: run.Fleet > r.Asked}
	var until time.Time
	for _, x := range all {
		seen, silent := o.numbers.contact(x.Agent, x.Seen)
		silent = silent || o.Ledger.Now().Sub(seen) > o.numbers.quietAfter(fleet.Agents)
		w.Clients += x.Clients
		if silent {
			w.Silent += x.Clients
			until = later(until, x.Until)
		} else {
			w.Merges += x.Clients
		}
		w.Agents = append(w.Agents, &v1.WaitingAgent{Id: x.Agent, Name: x.Name, Clients: x.Clients, Seen: millis(seen), Silent: silent})
	}
	if w.Silent == 0 {
		for _, x := range all {
			until = later(until, x.Until)
		}
	}
	h := o.heads.of(run.Plan)
	if h.deadline > 0 {
		if end := r.Opened.Add(h.deadline); end.Before(until) {
			until = end
		}
	}
	w.GivesUp = millis(until)
	w.Needs = int64(math.Ceil(float64(r.Asked)*h.quorum - 1e-9))
	w.UsualMs = usual(rounds[1:]).Milliseconds()
	slices.SortStableFunc(w.Agents, func(a, b *v1.WaitingAgent) int {
		silent := map[bool]int{true: 0, false: 1}
		return cmp.Or(cmp.Compare(silent[a.Silent], silent[b.Silent]), cmp.Compare(a.Seen, b.Seen))
	})
	w.Text = sentence(w)
	w.Agents = w.Agents[:min(len(w.Agents), namedAgents)]
	return w, nil
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// usual returns the median duration of closed rounds, or 0.
func usual(rounds []ledger.Round) time.Duration {
	var all []time.Duration
	for _, r := range rounds {
		if !r.Closed.IsZero() {
			all = append(all, r.Closed.Sub(r.Opened))
		}
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// sentence describes what a round is waiting for. Times are absolute, so the sentence
// remains true.
func sentence(w *v1.Waiting) string {
	var who []string
	for _, a := range w.Agents {
		if w.Silent > 0 && !a.Silent {
			continue
		}
		if len(who) == 3 {
			who = append(who, "others")
			break
		}
		text := fmt.Sprintf("%s (%s", cmp.Or(a.Name, a.Id), textfmt.Count(a.Clients, "client"))
		if a.Silent {
			text += ", silent since " + clock(a.Seen)
		}
		who = append(who, text+")")
	}
	text := fmt.Sprintf("round %d waits for %s", w.Round+1, strings.Join(who, ", "))
	if w.Silent > 0 {
		text += fmt.Sprintf("; it gives up at %s and then %s", clock(w.GivesUp), outcome(w))
	}
	if w.UsualMs > 0 {
		text += fmt.Sprintf("; earlier rounds took %s", (time.Duration(w.UsualMs) * time.Millisecond).Round(100*time.Millisecond))
	}
	return text
}

// outcome describes what happens to a round that gives up waiting.
func outcome(w *v1.Waiting) string {
	switch {
	case w.Replaces:
		return "asks other clients instead"
	case w.Merges == 0:
		return "is abandoned, because nobody has answered"
	case w.Merges < w.Needs:
		return fmt.Sprintf("is abandoned: %d of %d clients, and the plan's quorum needs %d", w.Merges, w.Asked, w.Needs)
	}
	return fmt.Sprintf("merges %d of %d clients", w.Merges, w.Asked)
}

func clock(ms int64) string { return time.UnixMilli(ms).UTC().Format("15:04:05") + " UTC" }

// Waits returns a sentence for each run whose round waits for silent agents, for the log.
func (o *runs) Waits(ctx context.Context) (all []string, err error) {
	active, err := o.Ledger.Active(ctx)
	if err != nil {
		return nil, err
	}
	for _, x := range active {
		run, err := o.Ledger.Run(ctx, x.ID)
		if err != nil {
			return nil, err
		}
		rounds, err := o.Ledger.Rounds(ctx, run.ID, 0, usualRounds)
		if err != nil {
			return nil, err
		}
		if w, err := o.waiting(ctx, run, rounds); err != nil {
			return nil, err
		} else if w != nil && w.Silent > 0 {
			all = append(all, fmt.Sprintf("run %s: %s", run.ID, w.Text))
		}
	}
	return all, nil
}

// usualRounds is the number of rounds from which the usual duration is computed.
const usualRounds = 20
