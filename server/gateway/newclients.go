package gateway

import (
	"context"
	"sync/atomic"
	"time"

	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

// Limits on the evaluation of held-out clients.
const (
	// newFor is the time after the end of a run for which its held-out clients are still asked.
	newFor = 7 * 24 * time.Hour
	// maxNew is the maximum number of held-out clients in a gateway's memory. maxNewOfAgent is
	// the maximum number that an agent evaluates at a time.
	maxNew        = 100_000
	maxNewOfAgent = 256
)

// newClients contains the held-out clients that have not answered. It is safe for concurrent
// use.
type newClients struct {
	ledger *ledger.Ledger
	mirror *mirror
	refuse *refuser

	byAgent atomic.Pointer[map[string][]ledger.NewClient]
}

// load reads which held-out clients have not answered. Each gateway has a copy in memory, so
// that a check-in needs no query. After an error, the old copy stays in use.
func (n *newClients) load(ctx context.Context) {
	all, err := n.ledger.OpenNewClients(ctx, time.Now().Add(-newFor), maxNew)
	if err != nil {
		if ctx.Err() == nil {
			n.refuse.log.Warn("cannot read the held-out clients", "error", err)
		}
		return
	}
	byAgent := map[string][]ledger.NewClient{}
	for _, c := range all {
		byAgent[c.Agent] = append(byAgent[c.Agent], c)
	}
	old := n.byAgent.Swap(&byAgent)
	for agent := range byAgent {
		if old != nil && len((*old)[agent]) == 0 {
			n.mirror.wakeOne(agent)
		}
	}
}

// of returns the held-out clients of an agent.
func (n *newClients) of(agent string) []ledger.NewClient {
	if all := n.byAgent.Load(); all != nil {
		return (*all)[agent]
	}
	return nil
}

// add stores the errors of held-out clients.
func (n *newClients) add(ctx context.Context, agent string, answers []*v1.Adapted) error {
	if len(answers) > maxRounds {
		return n.refuse.invalid("clients", "a call may report held-out clients of %d runs, this one has %d", maxRounds, len(answers))
	}
	for _, a := range answers {
		if len(a.GetClients()) == 0 || len(a.Clients) > maxNewOfAgent || !validName(a.GetRun()) {
			return n.refuse.invalid("clients", "a report on held-out clients contains no clients, more than %d, or an invalid run", maxNewOfAgent)
		}
		for _, c := range a.Clients {
			if !validName(c) {
				return n.refuse.invalid("name", "a name is empty, longer than %d bytes, or has unprintable characters", nameBytes)
			}
		}
		var e ledger.Evaluation
		if x := terms.Plausible(a.GetEvaluation(), len(a.Clients)); x != nil {
			e = ledger.Evaluation{Clients: x.Clients, RelativeMAE: x.RelativeMae}
		}
		added, err := n.ledger.AddNewClients(ctx, agent, a.Run, a.Clients, e)
		if err != nil {
			return n.refuse.unavailable(ctx, err)
		}
		if !added { // the report was sent twice, or the clients are not the agent's
			n.refuse.metrics.refused.WithLabelValues("adapted").Inc()
		}
	}
	return nil
}
