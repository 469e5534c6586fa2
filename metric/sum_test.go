package metric

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// near reports whether two numbers are equal up to the given relative difference, or are
// both NaN.
func near(a, b, relative float64) bool {
	return a == b || math.IsNaN(a) && math.IsNaN(b) || math.Abs(a-b) <= relative*max(math.Abs(a), math.Abs(b))
}

func exactSum(terms []float64) float64 {
	total := new(big.Float).SetPrec(2200) // enough bits for an exact sum of any float64s
	for _, x := range terms {
		total.Add(total, new(big.Float).SetFloat64(x))
	}
	v, _ := total.Float64()
	return v
}

func TestSum(t *testing.T) {
	for _, c := range []struct {
		name  string
		terms []float64
		want  float64
	}{
		{"nothing", nil, 0},
		{"small beside large", []float64{1e16, 1, -1e16}, 1}, // a plain sum is 0
		{"large beside small", []float64{1, 1e16, -1e16}, 1}, // a plain sum is 0
		{"tenths", []float64{.1, .1, .1, .1, .1, .1, .1, .1, .1, .1}, 1},
	} {
		var s sum
		for _, x := range c.terms {
			s.add(x)
		}
		if got := s.value(); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestSumOrder adds numbers of many magnitudes that nearly cancel, in random order. It compares
// the total with exact arithmetic.
func TestSumOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		terms := make([]float64, 2000)
		for i := range terms {
			terms[i] = rng.NormFloat64() * math.Pow(10, float64(rng.IntN(16)))
			if i%2 == 1 {
				terms[i] = -terms[i-1] * (1 + 1e-6*rng.Float64())
			}
		}
		rng.Shuffle(len(terms), func(i, j int) { terms[i], terms[j] = terms[j], terms[i] })
		var whole sum
		for _, x := range terms {
			whole.add(x)
		}
		if got, want := whole.value(), exactSum(terms); !near(got, want, 1e-15) {
			t.Fatalf("sum %v, want %v", got, want)
		}
	}
}
