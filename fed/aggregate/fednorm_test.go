package aggregate

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"loadstar/fed"

	"pgregory.net/rapid"
)

// TestFedNorm merges the updates of three clients that move one weight from 0 to 1, 2 and
// 3, with losses 1, 2 and 6.
//
//	losses from their mean, 3:   -2, -1, 3
//	lambda:                      1·-2 = -2, 2·-1 = -2, 3·3 = 9;  mean 5/3
//	lambda from there:           -11/3, -11/3, 22/3
//	std^2:                       (121 + 121 + 484)/9/3 = 242/9
//	exponents:                   -(121/9)/(484/9) = -1/4, -1/4, -(484/9)/(484/9) = -1
//	f:                           a e^(-1/4), a e^(-1/4), a e^-1
//
// The expected weights are e^f, normalised, for a = 1 and for a = 9 (the largest lambda),
// with and without weighting by 1, 2 and 4 examples. They were computed in Python.
func TestFedNorm(t *testing.T) {
	m := losses([]float32{1, 2, 3}, []float64{1, 2, 6})
	for i, n := range []int{1, 2, 4} {
		m.Updates[i].Examples = n
	}
	for _, c := range []struct {
		norm    FedNorm
		weights []float64
		want    float64
	}{
		{FedNorm{}, []float64{0.3755108238570944, 0.3755108238570944, 0.24897835228581108}, 1.8734675284287166},
		{FedNorm{PeakMaxLambda: true}, []float64{0.4938842831677777, 0.4938842831677777, 0.012231433664444595}, 1.518347150496667},
		{FedNorm{ByExamples: true}, []float64{0.17692362724965105, 0.3538472544993021, 0.46922911825104685}, 2.292305491001396},
		{FedNorm{PeakMaxLambda: true, ByExamples: true}, []float64{0.3226781612382671, 0.6453563224765342, 0.0319655162851987}, 1.7092873550469314},
	} {
		x, err := c.norm.weights(m)
		if err != nil || !slices.EqualFunc(x, c.weights, near) {
			t.Errorf("%+v: weights %v, %v; want %v", c.norm, x, err, c.weights)
		}
		wantDisplacement(t, c.norm, m, c.want)
	}

	// The distance is summed over the weights, and is measured from the merge's shared weights,
	// not from those that the client received: here the distances are 2, 4 and 6. Everything
	// else is as above, except that the largest lambda is 18.
	m.Shared = []float32{5, -7}
	for i, from := range [][]float32{{5, -7}, {4, -6}, {6, -9}} {
		m.Updates[i].From = from
		d := float32(i + 1)
		m.Updates[i].Delta = []float32{5 + d - from[0], -7 - d - from[1]}
	}
	wantDisplacement(t, FedNorm{}, m, 1.8734675284287166, -1.8734675284287166)
}

// losses returns a merge of clients that move one weight from 0, with the given changes
// and losses.
func losses(deltas []float32, loss []float64) *fed.Merge {
	m := &fed.Merge{Shared: []float32{0}}
	for i := range deltas {
		m.Updates = append(m.Updates, fed.Received{
			Update: fed.Update{Client: fed.ClientID(rune('a' + i)), Examples: 1 + i, Delta: deltas[i : i+1], Loss: loss[i]},
			From:   m.Shared,
		})
	}
	return m
}

// TestFedNormExtremes checks inputs for which a naive evaluation of the formula would
// overflow or divide by 0.
func TestFedNormExtremes(t *testing.T) {
	const third = 1. / 3
	huge := math.MaxFloat64
	for _, c := range []struct {
		name    string
		deltas  []float32
		losses  []float64
		weights []float64 // nil: only check that the weights are finite
	}{
		{"one update", []float32{2}, []float64{3}, []float64{1}},
		{"one huge loss", []float32{math.MaxFloat32}, []float64{huge}, []float64{1}},
		{"two updates", []float32{1, 5}, []float64{.1, 77}, []float64{.5, .5}},
		{"equal losses", []float32{1, 2, 3}, []float64{.1, .1, .1}, []float64{third, third, third}},
		{"no losses", []float32{1, 2, 3}, []float64{0, 0, 0}, []float64{third, third, third}},
		{"no movement", []float32{0, 0, 0}, []float64{1, 2, 3}, []float64{third, third, third}},
		{"tiny", []float32{1e-45, 1e-45, 2e-45}, []float64{5e-324, 1e-323, 0}, nil},
		{"huge", []float32{math.MaxFloat32, -math.MaxFloat32, 1}, []float64{huge, -huge, huge}, nil},
		{"huge beside tiny", []float32{math.MaxFloat32, 1e-45, 1}, []float64{huge, 5e-324, -5e-324}, nil},
		{"lambdas that are all but equal", []float32{1, 1, 1}, []float64{1, 1, math.Nextafter(1, 2)}, nil},
	} {
		for _, norm := range []FedNorm{{}, {PeakMaxLambda: true}} {
			m := losses(c.deltas, c.losses)
			x, err := norm.weights(m)
			if err != nil {
				t.Fatal(err)
			}
			if c.weights != nil && !slices.EqualFunc(x, c.weights, near) {
				t.Errorf("%s, %+v: weights %v, want %v", c.name, norm, x, c.weights)
			}
			checkHull(t, norm, m)
		}
	}

	// A huge peak gives all weight to the client nearest the mean: lambda is proportional
	// to -1, 0 and 1, here with losses around 0.
	x, err := FedNorm{PeakMaxLambda: true}.weights(losses([]float32{3e38, 3e38, 3e38}, []float64{-1e300, 0, 1e300}))
	if err != nil || !slices.Equal(x, []float64{0, 1, 0}) {
		t.Errorf("weights %v, %v at a huge peak", x, err)
	}
	// The largest lambda, and therefore the peak, is 0: the only client with a loss above the
	// mean did not move.
	x, err = FedNorm{PeakMaxLambda: true}.weights(losses([]float32{1, 2, 0}, []float64{1, 2, 6}))
	if err != nil || !slices.EqualFunc(x, []float64{third, third, third}, near) {
		t.Errorf("weights %v, %v at a peak of 0", x, err)
	}
}

func TestFedNormExamples(t *testing.T) {
	m := losses([]float32{1, 2}, []float64{1, 2})
	m.Updates[1].Examples = 0
	if err := (FedNorm{ByExamples: true}).Aggregate(make([]float64, 1), m); err == nil {
		t.Error("no error for a client without examples, weighted by examples")
	}
	if err := (FedNorm{}).Aggregate(make([]float64, 1), m); err != nil {
		t.Error(err)
	}
}

// checkHull fails unless the new weights lie between the clients' weights, up to
// rounding.
func checkHull(t tester, norm FedNorm, m *fed.Merge) {
	t.Helper()
	dst := garbage(len(m.Shared))
	if err := norm.Aggregate(dst, m); err != nil {
		t.Fatal(err)
	}
	for i := range dst {
		low, high := math.Inf(1), math.Inf(-1)
		for k := range m.Updates {
			low, high = min(low, offset(m, &m.Updates[k], i)), max(high, offset(m, &m.Updates[k], i))
		}
		slack := 1e-14 * max(-low, high)
		if !(dst[i] >= low-slack && dst[i] <= high+slack) {
			t.Fatalf("%+v: weight %d moves by %v, clients by %v to %v", norm, i, dst[i], low, high)
		}
	}
}

// TestFedNormLaws checks with random losses of any size that the new weights lie between
// the clients' weights, and that with a peak of 1 the unit of the loss does not matter.
func TestFedNormLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawMerge(t, 3)
		m := d.merge(t, 0)
		for i := range m.Updates {
			m.Updates[i].Loss = rapid.Float64Range(-1e300, 1e300).Draw(t, "loss")
		}
		norm := FedNorm{PeakMaxLambda: rapid.Bool().Draw(t, "max-lambda"), ByExamples: rapid.Bool().Draw(t, "by examples")}
		checkHull(t, norm, m)

		norm.PeakMaxLambda = false
		before, err := norm.weights(m)
		if err != nil {
			t.Fatal(err)
		}
		for i := range m.Updates {
			m.Updates[i].Loss /= 1024
			if l := math.Abs(m.Updates[i].Loss); l < 0x1p-1000 && l != 0 {
				t.Skip("rounded")
			}
		}
		after, err := norm.weights(m)
		if err != nil || !sameBits(before, after) {
			t.Fatalf("%v, in another unit %v, %v", before, after, err)
		}
	})
}

// FuzzFedNorm merges updates of one weight. The received weights, the changes and the
// losses are arbitrary bits.
func FuzzFedNorm(f *testing.F) {
	seed := func(numbers ...float64) {
		var b []byte
		for i, x := range numbers {
			if i%3 == 2 {
				b = binary.LittleEndian.AppendUint64(b, math.Float64bits(x))
			} else {
				b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(x)))
			}
		}
		f.Add(b, true, true)
		f.Add(b, false, false)
	}
	seed(0, 1, 1, 0, 2, 2, 0, 3, 6)
	seed(1, math.MaxFloat32, math.MaxFloat64, 1, -math.MaxFloat32, -math.MaxFloat64, 0, 0, 0)
	seed(1, 1, math.NaN(), 1, 1, 1, math.Inf(1), 1, 1)
	f.Fuzz(func(t *testing.T, b []byte, peak, examples bool) {
		const size = 4 + 4 + 8
		m := &fed.Merge{Shared: []float32{0.5}}
		good := true
		for ; len(b) >= size; b = b[size:] {
			u := fed.Received{
				Update: fed.Update{
					Delta:    []float32{math.Float32frombits(binary.LittleEndian.Uint32(b[4:]))},
					Loss:     math.Float64frombits(binary.LittleEndian.Uint64(b[8:])),
					Examples: 1 + int(b[0]),
				},
				From: []float32{math.Float32frombits(binary.LittleEndian.Uint32(b))},
			}
			good = good && finite(u.Delta) && finite(u.From) && finite([]float64{u.Loss})
			m.Updates = append(m.Updates, u)
		}
		norm := FedNorm{PeakMaxLambda: peak, ByExamples: examples}
		if !good || len(m.Updates) == 0 {
			if err := norm.Aggregate(make([]float64, 1), m); err == nil {
				t.Fatalf("no error for %+v", m.Updates)
			}
			return
		}
		checkHull(t, norm, m)
	})
}

// A client that claims an enormous number of examples has the weight of MaxExamples examples.
func TestFedNormLimitsExamples(t *testing.T) {
	m := &fed.Merge{Version: 1, Shared: []float32{0}, Fleet: 3}
	for _, c := range []struct {
		client   fed.ClientID
		examples int
		delta    float32
	}{{"a", 100, 1}, {"b", 100, 1}, {"c", math.MaxInt, 16}} {
		u := fed.Update{Client: c.client, Version: 1, Examples: c.examples, Delta: []float32{c.delta}, Loss: 1}
		m.Updates = append(m.Updates, fed.Received{Update: u, From: m.Shared})
	}
	got := make([]float64, 1)
	if err := (FedNorm{ByExamples: true, MaxExamples: 100}).Aggregate(got, m); err != nil || math.Abs(got[0]-6) > 1e-12 {
		t.Errorf("the displacement is %g, %v; want the mean, 6", got[0], err)
	}
}
