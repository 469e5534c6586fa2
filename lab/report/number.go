package report

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// none is the text for missing values.
const none = "–"

// num is a number in the page's data. It is rounded to four significant digits, which is
// more than a chart can show. Values that are not finite become null.
type num float64

// MarshalJSON implements json.Marshaler.
func (n num) MarshalJSON() ([]byte, error) {
	v := float64(n)
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return []byte("null"), nil
	}
	return strconv.AppendFloat(nil, rounded(v), 'g', -1, 64), nil
}

func rounded(v float64) float64 {
	v, _ = strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
	return v
}

func nums(values []float64) []num {
	to := make([]num, len(values))
	for i, v := range values {
		to[i] = num(v)
	}
	return to
}

// short formats a number with three significant digits. It does not round the integer
// part.
func short(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return none
	case a == 0:
		return "0"
	case a >= 1e7 || a < 1e-4:
		return strconv.FormatFloat(v, 'g', 3, 64)
	case a >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	default:
		return strconv.FormatFloat(v, 'f', max(0, 2-int(math.Floor(math.Log10(a)))), 64)
	}
}

// score formats a number in a column of scores, with a fixed number of decimals.
func score(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return none
	}
	if math.Abs(v) >= 1000 {
		return short(v)
	}
	return strconv.FormatFloat(v, 'f', 3, 64)
}

func percent(v float64) string {
	if math.IsNaN(v) {
		return none
	}
	return strconv.FormatFloat(100*v, 'f', 0, 64) + "\u00a0%"
}

// ordered returns the finite values in ascending order.
func ordered(values []float64) []float64 {
	var to []float64
	for _, v := range values {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			to = append(to, v)
		}
	}
	slices.Sort(to)
	return to
}

// quantile returns the p-quantile of sorted values. It interpolates linearly, as
// metric.Spread does.
func quantile(sorted []float64, p float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	at := p * float64(len(sorted)-1)
	i := int(at)
	if i == len(sorted)-1 {
		return sorted[i]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

func quantiles(values []float64, ps ...float64) []float64 {
	sorted := ordered(values)
	to := make([]float64, len(ps))
	for i, p := range ps {
		to[i] = quantile(sorted, p)
	}
	return to
}

func median(values []float64) float64 { return quantiles(values, 0.5)[0] }

// mean returns the mean of the finite values.
func mean(values []float64) float64 {
	sum, n := 0.0, 0
	for _, v := range values {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			sum += v
			n++
		}
	}
	return sum / float64(n)
}

// thin returns at most n evenly spaced indices below count, including the first and the
// last.
func thin(count, n int) []int {
	var to []int
	if count <= n {
		for i := range count {
			to = append(to, i)
		}
		return to
	}
	for i := range n {
		to = append(to, i*(count-1)/(n-1))
	}
	return to
}

// list joins names with commas, and the last two with "and".
func list(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}
