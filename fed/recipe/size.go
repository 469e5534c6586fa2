package recipe

import (
	"math"

	"loadstar/fed"
	"loadstar/forecast"
)

// Traffic is what one client's part of a round takes on the wire, in bytes, but for
// framing and names.
type Traffic struct{ Down, Up int64 }

// TrafficOf returns what travels: the shared weights as float32, and control
// variates beside them where the aggregator needs these.
func TrafficOf(p forecast.Partition, n fed.Needs) Traffic {
	bytes := 4 * int64(p.SharedLen())
	if n.Control {
		bytes *= 2
	}
	return Traffic{Down: bytes, Up: bytes}
}

// StepsOf returns how many gradients a client with the given number of examples takes
// in a turn: what its trainer then counts in [fed.Trained].
func StepsOf(p *fed.Plan, examples int) int {
	steps := (examples + p.Client.Batch - 1) / p.Client.Batch // batches of one pass
	switch {
	case p.Client.Epochs > 0:
		steps *= p.Client.Epochs
	case p.Client.Steps > 0:
		steps = p.Client.Steps
	}
	return steps * find(p.Algorithm).gradients(p)
}

// Dealt returns how many of the given clients a share takes out of the fleet: at least
// one, if the share is not 0.
func Dealt(share float64, clients int) int {
	if share == 0 {
		return 0
	}
	return max(int(math.Round(share*float64(clients))), 1)
}
