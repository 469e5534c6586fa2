package recipe

import (
	"fmt"

	"loadstar/fed"
	"loadstar/fed/aggregate"
	"loadstar/fed/serveropt"
)

// FirstLimits returns the limits that apply until there are earlier updates for comparison,
// given the norm of the initial shared weights. If the first limit on norms is too low, it
// grows with every version by up to the factor server.clip. The limit on examples gives all
// updates the same weight.
func FirstLimits(p *fed.Plan, norm float64) fed.Limits {
	const share, loss = 8, 1e3
	l := fed.Limits{Norm: norm / share, Examples: 1, Loss: loss}
	// A control variate is a mean gradient: the update divided by the learning rate and the
	// number of steps.
	l.Control = l.Norm / (p.Client.Rate * float64(max(p.Client.Steps, 1)))
	return l
}

// CoordinateLimit returns the limit on each number of an update that is trained from a version,
// or nil if the plan has no such limit. The limit is the plan's server.coordinate times the sum
// of the learning rates of a round's steps, because a step of Adam moves a weight by about the
// learning rate, whatever the gradient is.
//
// The learning rate depends on the round, but limits depend on the version, which is at most
// the round. The limit ignores the warm-up, after which the rate never rises, so it is never
// lower than a limit computed for the round itself.
func CoordinateLimit(p *fed.Plan) func(version int) float64 {
	if p.Server.Clip <= 0 || p.Server.Coordinate <= 0 || !coordinatesBounded(p) {
		return nil
	}
	return func(version int) float64 { return p.Server.Coordinate * reach(p, version) }
}

// reach returns the sum of the learning rates of a round's steps, ignoring the warm-up.
func reach(p *fed.Plan, version int) (sum float64) {
	rate := rateOf(p)
	rate.Warmup = 0
	for step := range p.Client.Steps {
		sum += rate.At(version, step, p.Client.Steps)
	}
	return sum
}

// usualCoordinate is the default of server.coordinate.
const usualCoordinate = 1.5

// StepLimit returns the maximum change of a weight from the given version to the next one if
// the server follows the plan. If the plan guarantees no such limit, or only one above
// [usualCoordinate] times the sum of the learning rates of a round's steps, problem states the
// reason.
//
// Each number of an update is limited ([CoordinateLimit]), and the server moves the weights by
// at most a weighted mean of updates. Buffered updates and the server's momentum come from
// earlier versions with a higher learning rate, so the limit of version 0 applies to such
// plans.
func StepLimit(p *fed.Plan) (limit func(version int) float64, problem string) {
	a := find(p.Algorithm)
	switch {
	case p.Start != "":
		return nil, fmt.Sprintf("start is %s, so version 0 does not follow from the seed", p.Start)
	case a == nil || !coordinatesBounded(p):
		return nil, fmt.Sprintf("the updates of %s with client.optimizer %s have no limit", p.Algorithm, p.Client.Optimizer)
	case p.Server.Clip <= 0 || p.Server.Coordinate <= 0 || p.Server.Coordinate > usualCoordinate:
		return nil, fmt.Sprintf("updates are limited if server.clip is above 0 and server.coordinate above 0 and at most %g; they are %g and %g", usualCoordinate, p.Server.Clip, p.Server.Coordinate)
	}
	switch a.newAggregator(p).(type) {
	case aggregate.Mean, aggregate.Trimmed, aggregate.Buffered:
	default:
		return nil, fmt.Sprintf("algorithm %s moves the weights by more than a mean of updates", p.Algorithm)
	}
	late, factor := p.Schedule.Kind != "synchronous", 0.0
	switch o := newServerOptimizer(p).(type) {
	case serveropt.Descent:
		factor = o.Rate
	case *serveropt.Momentum:
		late, factor = true, o.Rate*(1-o.Dampening)/(1-o.Beta1)
	default:
		return nil, fmt.Sprintf("server.optimizer %s divides by the size of earlier updates, so its steps have no useful limit", p.Server.Optimizer)
	}
	if factor > 1+1e-9 {
		return nil, fmt.Sprintf("the server moves the weights by up to %g times a mean of updates", factor)
	}
	return func(version int) float64 {
		if late {
			version = 0
		}
		return usualCoordinate * reach(p, version)
	}, ""
}

// coordinatesBounded reports whether the learning rate times the steps bounds each number of an
// honest update. There is no such bound with SGD, whose updates grow with the gradients, or
// with epochs, whose number of steps the server does not know. There is also none for special
// trainers, whose updates are not the result of plain descent, and for averaged moments, which
// are not weights.
func coordinatesBounded(p *fed.Plan) bool {
	a, o := find(p.Algorithm), findClientOptimizer(p.Client.Optimizer)
	return a != nil && !a.noServer && a.trainer == nil && a.clientOptimizer == nil &&
		o != nil && o.adaptive && p.Client.Steps > 0 && !Averaged(p)
}
