package fleetload

import (
	"math"
	"time"

	v1 "loadstar/proto/loadstar/v1"
)

// loss returns the agent's invented training loss.
func (a *agent) loss(round int64) float64 {
	if !a.fleet.Lively {
		return 0.1
	}
	return 0.004 + 0.02/math.Sqrt(float64(round+1)) + 0.0004*a.wobble(round)
}

// evaluation returns the invented validation error of a lively agent, which is worse than
// the reference at first and better after some rounds.
func (a *agent) evaluation(round int64) *v1.Evaluation {
	if !a.fleet.Lively {
		return nil
	}
	return &v1.Evaluation{Clients: 1, RelativeMae: int64(1e6 * (0.74 + 0.55*math.Exp(-float64(round)/15) + 0.05*a.wobble(round)))}
}

// wobble returns a number from -1 to 1 that differs between agents and rounds.
func (a *agent) wobble(round int64) float64 {
	return math.Sin(float64(a.no)*12.9898 + float64(round)*7.233)
}

// report returns a lively agent's report about its first client, until the server has received
// it.
func (a *agent) report() []*v1.ClientReport {
	if !a.fleet.Lively || a.reported {
		return nil
	}
	error, coverage, fallback := 0.75+0.15*a.wobble(0), 0.79+0.04*a.wobble(1), 0.03+0.03*a.wobble(2)
	r := &v1.ClientReport{
		Client: a.clients[0], Day: time.Now().Unix()/86400 - 1, RelativeMae: &error, Coverage: &coverage,
		Shares: []*v1.SourceShare{{Source: "model", Share: 1 - fallback}, {Source: "week", Share: fallback}},
		Drift:  a.no%17 == 3, WantsRound: a.no%11 == 3,
	}
	switch a.no % 9 {
	case 2:
		r.Findings = []string{"gaps"}
	case 5:
		r.Findings = []string{"flat", "gaps"}
	case 7:
		r.Findings = []string{"unit-jump"}
	}
	return []*v1.ClientReport{r}
}
