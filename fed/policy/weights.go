package policy

import (
	"fmt"
	"math"

	"loadstar/fed"
	"loadstar/fed/recipe"
)

const (
	// sameStart is the largest permitted difference between a weight of version 0 and the same
	// weight computed here. Initial weights have the same bits on all supported platforms.
	sameStart = 1e-6
	// farVersions is the number of versions beyond which the permitted distance does not grow.
	// Without this limit, a server could send arbitrary weights as version 1000 to a client
	// that joins a run late and has seen none of its versions. The weights of honest runs moved
	// by at most 8.1 in 300 versions.
	farVersions = 16
	// rounding allows for the rounding of weights to float32 after each merge.
	rounding = 1e-4
	// deadSlope is the slope below which a PReLU unit counts as dead. deadShare is the share of
	// dead units at which a layer counts as dead.
	deadSlope, deadShare = 0.01, 0.25
)

// CheckStart returns the reason to decline weights as version 0 of a run, or an empty string.
// want contains the weights that are derived from the plan's seed.
func (p *Policy) CheckStart(want, got []float32) string {
	if p.MostStep > 0 {
		if _, most := distance(want, got); !(most <= sameStart) {
			return "version 0 differs from the weights that follow from the plan's seed (policy.most_step)"
		}
	}
	return ""
}

// CheckStep returns the reason to decline the weights of a version, or an empty string. old
// contains the weights of another version, before, which were accepted earlier. The policy must
// accept the plan.
func (p *Policy) CheckStep(plan *fed.Plan, before int, old []float32, version int, weights []float32) string {
	limit, problem := recipe.StepLimit(plan)
	if p.MostStep == 0 || problem != "" {
		return ""
	}
	first, last := min(before, version), max(before, version)
	steps := float64(last - first)
	norm, coordinate := distance(old, weights)
	if most := min(steps, farVersions) * p.MostStep; !(norm <= most) {
		return fmt.Sprintf("version %d is %.3g away from version %d, the maximum is %g (policy.most_step)", version, norm, before, most)
	}
	// The limit never increases with the version, so the limit of the first version is the
	// largest.
	if most := steps * limit(first); !(coordinate <= most*(1+rounding)) {
		return fmt.Sprintf("a weight of version %d is %.3g away from version %d, the maximum is %.3g (policy.most_step)", version, coordinate, before, most)
	}
	return ""
}

// CheckSlopes returns the reason to decline the slopes of a PReLU layer, or an empty string. A
// unit with slope 0 passes on only the examples on one side of a threshold. A server that
// chooses weights could use such units to select examples.
func (p *Policy) CheckSlopes(layer string, slopes []float32) string {
	dead := 0
	for _, s := range slopes {
		if !(s >= deadSlope) {
			dead++
		}
	}
	if p.MostStep == 0 || float64(dead) <= deadShare*float64(len(slopes)) {
		return ""
	}
	return fmt.Sprintf("%d of %d slopes of %s are below %g (policy.most_step)", dead, len(slopes), layer, deadSlope)
}

// distance returns the Euclidean distance between two vectors and the largest difference
// between corresponding elements, which is infinite if an element is not finite.
func distance(a, b []float32) (norm, most float64) {
	for i := range a {
		d := math.Abs(float64(a[i]) - float64(b[i]))
		if math.IsNaN(d) {
			d = math.Inf(1)
		}
		norm += d * d
		most = max(most, d)
	}
	return math.Sqrt(norm), most
}
