package recipe

import (
	"fmt"

	"loadstar/fed"
)

// robustTrim is the value of server.robust for a trimmed mean.
const robustTrim = "trim"

// leastTrimmed is the minimum number of updates at which a trimmed mean omits any values.
const leastTrimmed = 3

// Trims reports whether the server's mean omits the largest and smallest numbers of each
// coordinate.
func Trims(p *fed.Plan) bool { return p.Server.Robust == robustTrim }

// validateRobust reports settings that cannot be combined with a trimmed mean.
func validateRobust(p *fed.Plan, add report) {
	switch {
	case !Trims(p):
	case p.Server.Weighting != "uniform":
		add("server.robust", "server.robust is trim, but server.weighting is %s; a trimmed mean has no weights, so it needs uniform", p.Server.Weighting)
	case Averaged(p):
		add("server.robust", "server.robust is trim, but client.moments is averaged; the trimmed means of two moments are inconsistent, so use reset or kept")
	}
}

// checkTrimmed returns an error if a round has too few clients for a trimmed mean.
func checkTrimmed(p *fed.Plan, cohort int) error {
	if Trims(p) && cohort < leastTrimmed {
		return fmt.Errorf("server.robust is trim, but a round has %d clients, and with fewer than %d clients a trimmed mean omits nothing", cohort, leastTrimmed)
	}
	return nil
}
