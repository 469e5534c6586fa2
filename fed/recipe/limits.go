package recipe

import "loadstar/fed"

// FirstLimits returns the limits of updates before there are earlier updates to compare
// with, given the norm of the initial shared weights. If the first limit of norms is too
// low, it grows by the plan's server.clip with every version. All updates have the same
// weight.
func FirstLimits(p *fed.Plan, norm float64) fed.Limits {
	const share, loss = 8, 1e3
	l := fed.Limits{Norm: norm / share, Examples: 1, Loss: loss}
	// A control variate is a mean gradient: the update divided by the learning rate and the
	// number of steps.
	l.Control = l.Norm / (p.Client.Rate * float64(max(p.Client.Steps, 1)))
	return l
}
