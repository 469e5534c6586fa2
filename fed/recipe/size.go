package recipe

import (
	"math"

	"loadstar/fed"
)

// Traffic is the number of bytes that one client receives (Down) and sends (Up) in a
// round, without framing and names.
type Traffic struct{ Down, Up int64 }

// TrafficOf returns a client's traffic per round: in each direction, the shared vector as
// float32 and, if the aggregator needs them, control variates of the same size.
func TrafficOf(q *Problem, n fed.Needs) Traffic {
	bytes := 4 * int64(q.SharedLen())
	if n.Control {
		bytes *= 2
	}
	return Traffic{Down: bytes, Up: bytes}
}

// StepsOf returns the number of gradients that a client with the given number of examples
// computes in a turn. The client's trainer reports the same number in [fed.Trained].
func StepsOf(p *fed.Plan, examples int) int {
	examples = queryOf(p).Support(examples)                   // a pass covers only the support set
	steps := (examples + p.Client.Batch - 1) / p.Client.Batch // batches per pass
	switch {
	case p.Client.Epochs > 0:
		steps *= p.Client.Epochs
	case p.Client.Steps > 0:
		steps = p.Client.Steps
	}
	return steps * find(p.Algorithm).gradients(p)
}

// Dealt returns the rounded number of clients in a share. It is at least 1 unless the share is
// 0.
func Dealt(share float64, clients int) int {
	if share == 0 {
		return 0
	}
	return max(int(math.Round(share*float64(clients))), 1)
}
