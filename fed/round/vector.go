package round

import (
	"encoding/binary"
	"fmt"
	"math"

	"loadstar/fed"
	"loadstar/fed/exact"
	"loadstar/fed/limit"
	"loadstar/fed/mask"
)

// Vector is the layout of a private result. It encodes all data that an agent sends about its
// clients as integers modulo 2^64, so the sum of several agents' vectors is the vector of all
// their clients. Its parts are the numbers of the exact sum; the numbers of the control
// variates' sum, if the rules need control variates; coarse tallies, if the server limits
// updates; the weight, if weights are not all 1; and [Sizes]. The number of clients is not a
// part, because the server knows it.
type Vector struct {
	rules  Rules
	shared int
}

// Vector returns the layout for the given number of shared weights.
func (r Rules) Vector(shared int) Vector { return Vector{r, shared} }

// Sizes contains sums over clients that the server only displays.
type Sizes struct {
	Examples, Steps int64
	// TrainLoss is in units of 2^-20.
	TrainLoss int64
	// Evaluated is the number of clients with a relative MAE. RelativeMAE is the sum of their
	// relative MAEs in millionths.
	Evaluated, RelativeMAE int64
}

const (
	sizes    = 5
	lossUnit = 1 << 20
	// The maximum sizes for one client, and a bound on the norm of all five sizes.
	mostCount, mostLoss, mostError = 1 << 24, 1 << 30, 100e6
	sizesLimit                     = 1 << 31
)

func (s *Sizes) all() [sizes]*int64 {
	return [sizes]*int64{&s.Examples, &s.Steps, &s.TrainLoss, &s.Evaluated, &s.RelativeMAE}
}

// Add adds the sizes of an update. Sizes beyond the maximum count as the maximum.
func (s *Sizes) Add(u *fed.Update) {
	s.Examples += min(int64(u.Claimed), mostCount)
	s.Steps += min(int64(u.Steps), mostCount)
	s.TrainLoss += int64(min(math.Round(float64(u.TrainLoss)*lossUnit), mostLoss))
}

// Evaluate adds the validation errors of clients.
func (s *Sizes) Evaluate(clients, relativeMAE int64) {
	s.Evaluated += clients
	s.RelativeMAE += min(relativeMAE, clients*mostError)
}

// Loss returns the sum of losses.
func (s *Sizes) Loss() float64 { return float64(s.TrainLoss) / lossUnit }

// Blocks returns the parts of a vector, each with the largest norm that one client's numbers
// can have within the limits. A norm of 0 means that there is no limit.
func (v Vector) Blocks(l fed.Limits) []mask.Block {
	weight := v.rules.Scale.MaxWeight()
	if l.Examples > 0 {
		weight = v.rules.Weight(int(min(l.Examples, math.MaxInt32)))
	}
	b := []mask.Block{v.block(v.rules.Scale, weight, l.Norm)}
	if v.rules.Needs.Control {
		b = append(b, v.block(v.rules.Control, v.rules.ControlWeight(weight), l.Control))
	}
	if v.rules.Tallied {
		b = append(b, mask.Block{Length: limit.Counters, Limit: 2}) // each update counts once in each of four histograms
	}
	if v.rules.ByExamples {
		b = append(b, mask.Block{Length: 1, Limit: weight})
	}
	return append(b, mask.Block{Length: sizes, Limit: sizesLimit})
}

// block returns the part for a sum of updates of at most the given norm. Rounding to integers
// may change each number by a half.
func (v Vector) block(s exact.Scale, weight int64, norm float64) mask.Block {
	b := mask.Block{Length: int64(v.shared)}
	if norm > 0 {
		units := math.Ldexp(norm, s.Fraction()) + math.Sqrt(float64(v.shared))/2
		b.Limit = int64(min(math.Ceil(float64(weight)*units), 1<<62))
	}
	return b
}

// Len returns the number of integers in a vector.
func (v Vector) Len() int {
	var n int64
	for _, b := range v.Blocks(fed.Limits{}) {
		n += b.Length
	}
	return int(n)
}

// Encode returns the vector of the updates in a fold, and of their sizes. All updates must have
// been trained from one version.
func (v Vector) Encode(f *Fold, s *Sizes) ([]uint64, error) {
	sums, _ := f.contents()
	if len(sums) != 1 || sums[0].Delta.Len() != v.shared {
		return nil, fmt.Errorf("round: a private result must have the updates of one version, and %d shared weights", v.shared)
	}
	x := sums[0].Delta.AppendNumbers(make([]uint64, 0, v.Len()))
	if v.rules.Needs.Control {
		x = sums[0].Control.AppendNumbers(x)
	}
	if v.rules.Tallied {
		x = append(x, f.tally.Counters()...)
	}
	if v.rules.ByExamples {
		x = append(x, uint64(sums[0].Delta.Weight()))
	}
	for _, n := range s.all() {
		x = append(x, uint64(*n))
	}
	return x, nil
}

// Decode decodes a sum of vectors of the given number of clients. It returns an error if this
// number of clients cannot have produced the sum, in particular if the sum still contains a
// mask.
func (v Vector) Decode(version int, clients int64, x []uint64) (*Fold, *Sizes, error) {
	if len(x) != v.Len() {
		return nil, nil, fmt.Errorf("the vector has %d numbers, want %d", len(x), v.Len())
	}
	take := func(n int) (part []uint64) {
		part, x = x[:n], x[n:]
		return part
	}
	f := NewFold(v.rules)
	sum := f.newSums(v.shared)
	sum.Version = version
	delta, control := take(v.shared), []uint64(nil)
	if v.rules.Needs.Control {
		control = take(v.shared)
	}
	if v.rules.Tallied {
		f.tally.SetCounters(clients, take(limit.Counters))
	}
	weight := clients
	if v.rules.ByExamples {
		weight = int64(take(1)[0])
	}
	if err := sum.Delta.SetNumbers(clients, weight, delta); err != nil {
		return nil, nil, err
	}
	if v.rules.Needs.Control {
		if !v.rules.WeightControl {
			weight = clients
		}
		if err := sum.Control.SetNumbers(clients, weight, control); err != nil {
			return nil, nil, err
		}
	}
	f.sums, f.n = append(f.sums, sum), int(clients)
	s := &Sizes{}
	most := Sizes{mostCount, mostCount, mostLoss, 1, mostError}
	for i, n := range s.all() {
		*n = min(max(int64(x[i]), 0), clients**most.all()[i])
	}
	return f, s, nil
}

// AppendVector appends the little-endian encoding of a vector to b.
func AppendVector(b []byte, x []uint64) []byte {
	for _, n := range x {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return b
}

// AddVector adds an encoded vector to x, modulo 2^64.
func AddVector(x []uint64, b []byte) error {
	if len(b) != 8*len(x) {
		return fmt.Errorf("the vector has %d bytes, want %d", len(b), 8*len(x))
	}
	for i := range x {
		x[i] += binary.LittleEndian.Uint64(b[8*i:])
	}
	return nil
}
