package metric

import (
	"bytes"
	"encoding/json"
	"math"
)

// Score is the value of a metric; NaN if it is not defined.
type Score struct {
	Name  string
	Value float64
}

// Scores are metrics in display order. In JSON, they become an object with the same order.
type Scores []Score

// Get returns the value of the metric with the given name, and whether s has that metric.
func (s Scores) Get(name string) (float64, bool) {
	for _, score := range s {
		if score.Name == name {
			return score.Value, true
		}
	}
	return math.NaN(), false
}

// MarshalJSON writes an object with null for undefined metrics.
func (s Scores) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	out.WriteByte('{')
	for i, score := range s {
		if i > 0 {
			out.WriteByte(',')
		}
		name, err := json.Marshal(score.Name)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(Number(score.Value))
		if err != nil {
			return nil, err
		}
		out.Write(name)
		out.WriteByte(':')
		out.Write(value)
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

// Number is a float64 that is written to JSON as null if it is not finite, because JSON has
// neither NaN nor infinity. Null is read as NaN.
type Number float64

// MarshalJSON writes the number or null.
func (n Number) MarshalJSON() ([]byte, error) {
	if v := float64(n); !math.IsNaN(v) && !math.IsInf(v, 0) {
		return json.Marshal(v)
	}
	return []byte("null"), nil
}

// UnmarshalJSON reads a number or null.
func (n *Number) UnmarshalJSON(text []byte) error {
	v := math.NaN()
	if string(text) != "null" {
		if err := json.Unmarshal(text, &v); err != nil {
			return err
		}
	}
	*n = Number(v)
	return nil
}
