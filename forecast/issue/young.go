package issue

import "math"

// The intervals in this file are for a meter's first days, before a tracker knows the errors of
// earlier issues.

// leastErrors is the minimum number of known errors from which intervals can be computed.
const leastErrors = 24

// young writes an interval around the point forecast of a row that repeats the load of some
// days earlier. The bounds are derived from the quantiles of the errors that such repetitions
// would have had in the last 28 days. If these errors are unknown, the interval reaches from 0
// to twice the forecast at the levels 0.1 and 0.9.
func (s *State) young(row []float64, days int) {
	v := row[s.point]
	var errors []float64
	if days > 0 {
		errors = s.work.errorsOf(days)
	}
	for k, level := range s.levels {
		switch {
		case k == s.point:
		case len(errors) < leastErrors:
			row[k] = v + float64(math.Abs(v)*max(min((level-0.5)/0.4, 1), -1))
		case k < s.point:
			row[k] = v + min(quantile(errors, level), 0)
		default:
			row[k] = v + max(quantile(errors, level), 0)
		}
	}
}

// spread writes intervals around the point forecasts of a model that forecasts only points.
func (s *State) spread(values []float64) {
	for from := 0; from < len(values); from += len(s.levels) {
		s.young(values[from:][:len(s.levels)], 1)
	}
}

// settledDays is the number of days after the first recorded issue from which a generic model's
// tracker corrects point forecasts, and alone sets the width of intervals. In the first week,
// the tracker has not seen every day of the week: after five working days, it knows little
// about weekends. On validation data of buildings, 71 % of the loads were then between P10 and
// P90, and the errors of clients with a week of readings were 1 to 4 % higher with the
// tracker's corrections.
const settledDays = 9

// unsettled undoes a tracker's changes to the medians of forecasts. Where the tracker's
// intervals are narrower than the model's own intervals (raw), unsettled widens them halfway to
// the model's width.
func (s *State) unsettled(values, raw, levels []float64) {
	n, own := len(s.levels), make([]float64, len(s.levels))
	for i := 0; i*n < len(values); i++ {
		row := values[i*n:][:n]
		s.expand(own, raw[i*len(levels):][:len(levels)], levels)
		shifted := row[s.point] - own[s.point]
		for k := range row {
			row[k] -= shifted
		}
		for k := range row {
			by := own[k] - own[s.point] - (row[k] - row[s.point])
			if k < s.point {
				row[k] += min(by/2, 0)
			} else {
				row[k] += max(by/2, 0)
			}
		}
	}
}

// quantile returns a quantile of sorted numbers, interpolated between neighbours.
func quantile(sorted []float64, level float64) float64 {
	place := float64(level * float64(len(sorted)-1))
	at := int(place)
	if at+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[at] + float64((place-float64(at))*(sorted[at+1]-sorted[at]))
}
