package serve

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"time"

	"loadstar/fed/recipe"
	"loadstar/internal/stateformat"
	"loadstar/nn/safetensors"
	"loadstar/series"
	"loadstar/series/feature"
)

// knots is the maximum number of values in a scaling's distribution of loads.
const knots = 256

// checkScaling returns an error if a scaling does not fit the plan's model, because scalings
// come from files and stores.
func (m *Model) checkScaling(s recipe.Scaling) error {
	if recipe.Rows(m.Plan) {
		if s.Features == nil {
			return ErrNoScaling
		}
		return checkFeatures(s.Features)
	}
	if s.Ranges == nil {
		return ErrNoScaling
	}
	for name, r := range s.Ranges {
		if !finite(float64(r.Low), float64(r.High)) || r.Low > r.High {
			return fmt.Errorf("scaling of %s: the range from %g to %g is not possible", name, r.Low, r.High)
		}
	}
	if _, ok := s.Ranges["load"]; !ok {
		return fmt.Errorf("the scaling has no range of the load")
	}
	return nil
}

func checkFeatures(s *feature.Scaling) error {
	if !finite(s.Mean, s.Deviation, s.Temperature.Mean, s.Temperature.Deviation, s.Wind.Mean, s.Wind.Deviation) ||
		s.Deviation <= 0 || s.Temperature.Deviation <= 0 || s.Wind.Deviation <= 0 {
		return fmt.Errorf("the scaling has a mean that is not finite or a deviation that is not positive")
	}
	r := &s.Ranks
	if len(r.Value) > knots || len(r.Below) != len(r.Value) || len(r.Upto) != len(r.Value) {
		return fmt.Errorf("the scaling has a distribution of %d, %d and %d numbers; want three equal counts of at most %d", len(r.Value), len(r.Below), len(r.Upto), knots)
	}
	for _, x := range [][]float32{s.Profile[:], r.Value, r.Below, r.Upto} {
		for _, v := range x {
			if !finite(float64(v)) {
				return fmt.Errorf("the scaling has a number that is not finite")
			}
		}
	}
	for i := range r.Value {
		if i > 0 && r.Value[i] <= r.Value[i-1] || r.Below[i] < 0 || r.Upto[i] > 1 || r.Below[i] > r.Upto[i] {
			return fmt.Errorf("the scaling has a distribution that is not ascending")
		}
	}
	return nil
}

func finite(x ...float64) bool {
	return !slices.ContainsFunc(x, func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
}

var scalingFormat = stateformat.Format{Name: "scaling of a client", Magic: "LODSCALE", Version: 1}

// EncodeScaling encodes the scaling of one client, for example to store it with the
// client's personal weights.
func EncodeScaling(s recipe.Scaling) []byte {
	var w stateformat.Writer
	w.Bool(s.Features != nil)
	if f := s.Features; f != nil {
		w.Float64s([]float64{f.Mean, f.Deviation, f.Temperature.Mean, f.Temperature.Deviation, f.Wind.Mean, f.Wind.Deviation})
		for _, x := range [][]float32{f.Profile[:], f.Ranks.Value, f.Ranks.Below, f.Ranks.Upto} {
			w.Float32s(x)
		}
		return scalingFormat.Wrap(w.State())
	}
	w.Int(int64(len(s.Ranges)))
	for _, name := range slices.Sorted(maps.Keys(s.Ranges)) {
		w.String(name)
		w.Float32s([]float32{s.Ranges[name].Low, s.Ranges[name].High})
	}
	return scalingFormat.Wrap(w.State())
}

// DecodeScaling decodes the result of EncodeScaling.
func DecodeScaling(b []byte) (s recipe.Scaling, err error) {
	_, b, err = scalingFormat.Unwrap(b)
	if err != nil {
		return s, err
	}
	valid := true
	err = scalingFormat.Read(b, func(r *stateformat.Reader) {
		if r.Bool() {
			f := &feature.Scaling{}
			x, profile := r.Float64s(), r.Float32s()
			f.Ranks = feature.Ranks{Value: r.Float32s(), Below: r.Float32s(), Upto: r.Float32s()}
			if valid = len(x) == 6 && len(profile) == len(f.Profile); valid {
				setMoments(f, x)
				copy(f.Profile[:], profile)
				s.Features = f
			}
			return
		}
		n := r.Count(8)
		s.Ranges = make(series.Ranges, n)
		for range n {
			name, x := r.String(), r.Float32s()
			if len(x) != 2 {
				valid = false
				return
			}
			s.Ranges[name] = series.Range{Low: x[0], High: x[1]}
		}
		valid = len(s.Ranges) == n
	})
	switch {
	case !valid:
		return recipe.Scaling{}, scalingFormat.Damaged("a field has a wrong length")
	case err != nil:
		return recipe.Scaling{}, err
	case s.Features != nil:
		return s, checkFeatures(s.Features)
	}
	return s, nil
}

func setMoments(f *feature.Scaling, x []float64) {
	f.Mean, f.Deviation = x[0], x[1]
	f.Temperature = feature.Moments{Mean: x[2], Deviation: x[3]}
	f.Wind = feature.Moments{Mean: x[4], Deviation: x[5]}
}

// The metadata keys of scaling.safetensors.
const (
	metaClients = "clients" // JSON list of the clients' names, in the order of the rows
	metaInputs  = "inputs"  // JSON list of the model's inputs or groups of features
	metaRanges  = "ranges"  // JSON list of the names of ranges, in the order of the columns
	metaStep    = "step"    // interval of the readings, such as 1h0m0s
)

// WriteScaling writes scaling.safetensors: the scaling of all clients, the inputs of the model,
// and the interval of the readings. at returns the scaling of client i. The file has one row
// per client in each array:
//
//	rows of features: mean, deviation, profile, rank_value, rank_below, rank_upto, rank_count, temperature, wind
//	windows:          low, high
func WriteScaling(w io.Writer, q *recipe.Problem, step time.Duration, clients []string, at func(i int) (recipe.Scaling, error)) error {
	meta := map[string]string{metaStep: step.String()}
	list := func(key string, names []string) error {
		text, err := json.Marshal(names)
		meta[key] = string(text)
		return err
	}
	if err := list(metaClients, clients); err != nil {
		return err
	}
	if err := list(metaInputs, q.Names()); err != nil {
		return err
	}
	n := len(clients)
	if len(q.Inputs) > 0 {
		ranges := rangeNames(q)
		if err := list(metaRanges, ranges); err != nil {
			return err
		}
		low, high := make([]float32, 0, n*len(ranges)), make([]float32, 0, n*len(ranges))
		for i := range clients {
			s, err := at(i)
			if err != nil {
				return err
			}
			for _, name := range ranges {
				r, ok := s.Ranges[name]
				if !ok {
					r = series.Range{Low: float32(math.NaN()), High: float32(math.NaN())}
				}
				low, high = append(low, r.Low), append(high, r.High)
			}
		}
		shape := []int{n, len(ranges)}
		return safetensors.Write(w, []safetensors.Tensor{{Name: "low", Shape: shape, Data: low}, {Name: "high", Shape: shape, Data: high}}, meta)
	}
	columns := newFeatureColumns(n)
	for i := range clients {
		s, err := at(i)
		if err != nil {
			return err
		}
		if s.Features == nil {
			return fmt.Errorf("client %s: %w", clients[i], ErrNoScaling)
		}
		columns.add(s.Features)
	}
	return safetensors.Write(w, columns.tensors(n), meta)
}

// rangeNames returns the names of the ranges that a model of windows has.
func rangeNames(q *recipe.Problem) []string {
	names := []string{"load"}
	for _, in := range q.Inputs {
		if !slices.Contains(names, in.Name) {
			names = append(names, in.Name)
		}
	}
	return names
}

// featureColumns contains the scaling of rows of features, stacked by client.
type featureColumns struct {
	mean, deviation, temperature, wind []float64
	profile, value, below, upto        []float32
	count                              []int32
}

func newFeatureColumns(n int) *featureColumns {
	return &featureColumns{
		mean: make([]float64, 0, n), deviation: make([]float64, 0, n), temperature: make([]float64, 0, 2*n), wind: make([]float64, 0, 2*n),
		profile: []float32{}, value: make([]float32, 0, n*knots), below: make([]float32, 0, n*knots), upto: make([]float32, 0, n*knots),
		count: make([]int32, 0, n),
	}
}

func (c *featureColumns) add(s *feature.Scaling) {
	c.mean, c.deviation = append(c.mean, s.Mean), append(c.deviation, s.Deviation)
	c.temperature = append(c.temperature, s.Temperature.Mean, s.Temperature.Deviation)
	c.wind = append(c.wind, s.Wind.Mean, s.Wind.Deviation)
	c.profile = append(c.profile, s.Profile[:]...)
	c.count = append(c.count, int32(len(s.Ranks.Value)))
	for _, x := range []struct {
		to   *[]float32
		from []float32
	}{{&c.value, s.Ranks.Value}, {&c.below, s.Ranks.Below}, {&c.upto, s.Ranks.Upto}} {
		row := make([]float32, knots)
		copy(row, x.from)
		*x.to = append(*x.to, row...)
	}
}

func (c *featureColumns) tensors(n int) []safetensors.Tensor {
	return []safetensors.Tensor{
		{Name: "mean", Shape: []int{n}, Float64: c.mean},
		{Name: "deviation", Shape: []int{n}, Float64: c.deviation},
		{Name: "temperature", Shape: []int{n, 2}, Float64: c.temperature},
		{Name: "wind", Shape: []int{n, 2}, Float64: c.wind},
		{Name: "profile", Shape: []int{n, len(feature.Scaling{}.Profile)}, Data: c.profile},
		{Name: "rank_value", Shape: []int{n, knots}, Data: c.value},
		{Name: "rank_below", Shape: []int{n, knots}, Data: c.below},
		{Name: "rank_upto", Shape: []int{n, knots}, Data: c.upto},
		{Name: "rank_count", Shape: []int{n}, Int32: c.count},
	}
}
