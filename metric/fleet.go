package metric

import (
	"math"
	"slices"
)

// Fleet maps the name of a metric to its spread over clients.
type Fleet map[string]Spread

// Spread describes the distribution of one metric over clients, because a mean alone would
// hide clients with bad values. Percentiles interpolate linearly between the two nearest
// values, as NumPy does by default. If no client has a defined value, all numbers except
// the counts are NaN.
type Spread struct {
	Mean   Number `json:"mean"`
	Median Number `json:"median"`
	P05    Number `json:"p05"`
	P95    Number `json:"p95"`
	Min    Number `json:"min"`
	Max    Number `json:"max"`

	Count     int `json:"count"`     // clients with a defined value, described by the fields above
	Undefined int `json:"undefined"` // clients whose value is not finite

	// BelowOne is the share of the counted clients whose value is below 1. It is set only
	// for the relative MAE, where a value below 1 means that the forecast is better than the
	// reference.
	BelowOne *Number `json:"below_one,omitempty"`
}

// NewFleet summarises the scores of clients. If a client lacks a metric that other clients
// have, its value counts as undefined.
func NewFleet(clients []Scores) Fleet {
	fleet := Fleet{}
	for _, client := range clients {
		for _, score := range client {
			if _, done := fleet[score.Name]; done {
				continue
			}
			values := make([]float64, len(clients))
			for i, c := range clients {
				values[i], _ = c.Get(score.Name)
			}
			spread := NewSpread(values)
			if score.Name == "relative_mae" {
				share := belowOne(values, spread.Count)
				spread.BelowOne = &share
			}
			fleet[score.Name] = spread
		}
	}
	return fleet
}

func belowOne(values []float64, count int) Number {
	below := 0
	for _, v := range values {
		if v < 1 {
			below++
		}
	}
	return Number(ratio(float64(below), float64(count)))
}

// NewSpread summarises the values of one metric, one per client, in any order.
func NewSpread(values []float64) Spread {
	var total sum
	var sorted []float64
	for _, v := range values {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			continue
		}
		total.add(v)
		sorted = append(sorted, v)
	}
	slices.Sort(sorted)
	return Spread{
		Mean:      Number(ratio(total.value(), float64(len(sorted)))),
		Median:    percentile(sorted, 0.5),
		P05:       percentile(sorted, 0.05),
		P95:       percentile(sorted, 0.95),
		Min:       percentile(sorted, 0),
		Max:       percentile(sorted, 1),
		Count:     len(sorted),
		Undefined: len(values) - len(sorted),
	}
}

// percentile interpolates linearly at position p·(n-1) of the sorted values.
func percentile(sorted []float64, p float64) Number {
	if len(sorted) == 0 {
		return Number(math.NaN())
	}
	position := p * float64(len(sorted)-1)
	i := int(position)
	if i == len(sorted)-1 {
		return Number(sorted[i])
	}
	part := position - float64(i)
	return Number(sorted[i] + part*(sorted[i+1]-sorted[i]))
}
