package issue

import (
	"math"
	"strconv"
)

// Mean returns the mean of a load with the given quantiles, by Swanson's rule. All means in
// this package are computed in this way. Sums need means, because the medians of skewed loads,
// such as those of homes, do not add up to the median of a sum or of a day's energy.
//
// D. Hurst, G. Brown and R. Swanson, Swanson's 30-40-30 rule, AAPG Bulletin 84 (2000).
func Mean(p10, p50, p90 float64) float64 {
	return float64(0.3*p10) + float64(0.4*p50) + float64(0.3*p90)
}

// meanLevels are the levels from which a mean is computed.
var meanLevels = [3]float64{0.1, 0.5, 0.9}

// AppendNumber appends a load or an energy in the format of all outputs, with the digits of a
// float32. It writes 0 for numbers below a milliwatt, and nothing for a number that is not
// finite.
func AppendNumber(b []byte, v float64) []byte {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return b
	case math.Abs(v) < 1e-7:
		return append(b, '0')
	}
	return strconv.AppendFloat(b, v, 'f', -1, 32)
}
