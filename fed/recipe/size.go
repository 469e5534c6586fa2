package recipe

import (
	"math"

	"loadstar/fed"
	"loadstar/forecast"
)

// Pooled is the algorithm whose only client has everybody's readings.
const Pooled = "pooled"

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

// StepsOf returns the gradients that a client with so many examples takes in a turn.
func StepsOf(p *fed.Plan, examples int) int {
	batches := (examples + p.Client.Batch - 1) / p.Client.Batch
	steps := batches // fedsgd: all of them, once
	switch {
	case p.Client.Epochs > 0:
		steps = p.Client.Epochs * batches
	case p.Client.Steps > 0:
		steps = p.Client.Steps
	}
	switch p.Algorithm {
	case "perfedavg":
		return 2 * steps
	case "fedmeta":
		return 4 * steps
	case "pfedme":
		return p.Client.InnerSteps * steps
	}
	return steps
}

// Dealt returns how many of so many clients a share takes out of the fleet: at least
// one, if it is not 0.
func Dealt(share float64, clients int) int {
	if share == 0 {
		return 0
	}
	return max(int(math.Round(share*float64(clients))), 1)
}
