package recipe

import (
	"loadstar/fed"
	"loadstar/fed/localtrain"
)

// Draw describes the examples on which a client trains an update.
type Draw struct {
	// Batch is the number of examples per gradient. 0 means all of the client's examples.
	Batch int
	// Steps is the number of gradient steps; 0 means passes over all examples.
	Steps int
	// Examples is the maximum number of different examples in all gradients together; 0 means
	// all of the client's examples.
	Examples int
	// Share is the smallest share of the client's examples from which a gradient draws its
	// batch.
	Share float64
}

// DrawOf returns the description of the examples on which an update of the plan is trained.
func DrawOf(p *fed.Plan) Draw {
	c, a := &p.Client, find(p.Algorithm)
	d := Draw{Batch: c.Batch, Steps: c.Steps, Share: 1}
	switch {
	case a != nil && a.fullPass:
		d.Batch, d.Steps = 0, 0 // the batch only limits memory
	case c.Steps > 0 && c.Resample == "round":
		d.Examples = c.Batch
	case c.Steps > 0:
		d.Examples = c.Batch * c.Steps
	}
	if c.Query > 0 { // the meta-learners draw some gradients only from the query set
		d.Share = min(c.Query, 1-c.Query)
	}
	return d
}

// EpochOf returns the number of examples in one epoch of the plan for a client with n examples.
func EpochOf(p *fed.Plan, n int) int { return localtrain.Query{Share: p.Client.Query}.Support(n) }

// Federated reports whether clients send updates to a server.
func Federated(p *fed.Plan) bool { return !find(p.Algorithm).noServer }

// NeedsOf returns what the aggregator of a plan needs.
func NeedsOf(p *fed.Plan) fed.Needs { return find(p.Algorithm).newAggregator(p).Needs() }
