package gateway

import (
	"context"
	"time"

	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

// Limits on the evaluation of held-out clients.
const (
	// newFor is how long after a run its held-out clients are asked.
	newFor = 7 * 24 * time.Hour
	// maxNew limits the held-out clients that a gateway has in memory, and maxNewOfAgent
	// those that an agent is asked for at a time.
	maxNew        = 100_000
	maxNewOfAgent = 256
)

// loadNewClients reads which held-out clients have not answered. Each gateway has a copy in
// memory, so a check-in needs no query. After an error the old copy stays in use.
func (g *Gateway) loadNewClients(ctx context.Context) {
	all, err := g.Ledger.OpenNewClients(ctx, time.Now().Add(-newFor), maxNew)
	if err != nil {
		if ctx.Err() == nil {
			g.Log.Warn("cannot read the held-out clients", "error", err)
		}
		return
	}
	byAgent := map[string][]ledger.NewClient{}
	for _, c := range all {
		byAgent[c.Agent] = append(byAgent[c.Agent], c)
	}
	old := g.newClients.Swap(&byAgent)
	for agent := range byAgent {
		if old != nil && len((*old)[agent]) == 0 {
			g.mirror.wakeOne(agent)
		}
	}
}

// adapt returns the tasks of an agent's held-out clients, one for each run.
func (g *Gateway) adapt(ctx context.Context, agent string, seen []*v1.SeenHead) (all []*v1.Task, err error) {
	byAgent := g.newClients.Load()
	if byAgent == nil {
		return nil, nil
	}
	of := (*byAgent)[agent]
	var last *v1.Task
	for _, c := range of[:min(len(of), maxNewOfAgent)] {
		if last == nil || last.Run != c.Run {
			t, err := g.Terms.Of(ctx, c.Run)
			if err != nil {
				return nil, err
			}
			l := ledger.Task{Turn: ledger.Turn{Run: c.Run, Round: int64(t.Plan.Rounds)}, Version: c.Version}
			if last, err = g.task(ctx, l, seen, l.Until); err != nil {
				return nil, err
			}
			if last == nil {
				continue
			}
			last.Fold = false
			all = append(all, last)
		}
		last.Clients = append(last.Clients, c.Client)
	}
	return all, nil
}

// addAdapted stores the errors of held-out clients.
func (g *Gateway) addAdapted(ctx context.Context, agent string, answers []*v1.Adapted) error {
	if len(answers) > maxRounds {
		return g.invalid("clients", "a call may report held-out clients of %d runs, this one has %d", maxRounds, len(answers))
	}
	for _, a := range answers {
		if len(a.GetClients()) == 0 || len(a.Clients) > maxNewOfAgent || !validName(a.GetRun()) {
			return g.invalid("clients", "a report on held-out clients names none, more than %d, or no valid run", maxNewOfAgent)
		}
		for _, c := range a.Clients {
			if !validName(c) {
				return g.invalid("name", "a name is empty, longer than %d bytes, or has unprintable characters", nameBytes)
			}
		}
		var e ledger.Evaluation
		if x := terms.Plausible(a.GetEvaluation(), len(a.Clients)); x != nil {
			e = ledger.Evaluation{Clients: x.Clients, RelativeMAE: x.RelativeMae}
		}
		added, err := g.Ledger.AddNewClients(ctx, agent, a.Run, a.Clients, e)
		if err != nil {
			return g.unavailable(ctx, err)
		}
		if !added { // sent twice, or the clients are not the agent's
			g.metrics.refused.WithLabelValues("adapted").Inc()
		}
	}
	return nil
}
