package gateway

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"unicode"

	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/ledger"
)

// decline ends turns that an agent has declined, so that rounds do not wait for them.
func (g *Gateway) decline(ctx context.Context, agent string, declines []*v1.Decline) error {
	if len(declines) > maxRounds {
		return g.refuse.invalid("clients", "a request may decline turns of %d rounds, this one has %d", maxRounds, len(declines))
	}
	var all []*v1.Turns
	for _, r := range declines {
		if len(r.GetTurns().GetClients()) == 0 || len(r.Reason) > 1024 {
			return g.refuse.invalid("clients", "a decline needs clients, and a reason of at most 1024 bytes")
		}
		all = append(all, r.Turns)
	}
	if _, err := g.turns(all); err != nil {
		return err
	}
	for _, r := range declines {
		t := r.Turns
		if err := g.Ledger.Counter.Decline(ctx, agent, t.Run, t.Round, t.Clients, declineCode(r.Code), printable(r.Reason)); err != nil {
			return g.refuse.unavailable(ctx, err)
		}
		g.mirror.forget(agent)
		g.metrics.declined.WithLabelValues(cmp.Or(declineCode(r.Code), otherCode)).Add(float64(len(t.Clients)))
		g.Log.Warn("an agent declined turns", "agent", agent, "run", t.Run, "round", t.Round+1, "clients", len(t.Clients), "reason", r.Reason)
		g.Wake(t.Run)
	}
	return nil
}

// declineCodes returns the codes with which agents decline turns.
func declineCodes() []string {
	return []string{"policy", "data", "memory", "diverged", ledger.CodeLost}
}

// declineCode returns the code under which a decline is counted. Agents of other versions may
// use unknown codes.
func declineCode(code string) string {
	if slices.Contains(declineCodes(), code) {
		return code
	}
	return ""
}

// printable replaces control characters in a string from an agent.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}
