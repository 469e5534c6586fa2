package aggregate

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"loadstar/fed"

	"pgregory.net/rapid"
)

// TestTrimmed omits a fifth at each end, rounded up, in each coordinate separately, and
// ignores numbers of examples.
func TestTrimmed(t *testing.T) {
	shared := []float32{10, 20}
	of := func(values ...[2]float32) (all []fed.Received) {
		for i, v := range values {
			all = append(all, update(fed.ClientID(fmt.Sprintf("%02d", i)), 1+100*i, shared, v[0], v[1]))
		}
		return all
	}
	for name, c := range map[string]struct {
		updates []fed.Received
		want    [2]float64
	}{
		"one":   {of([2]float32{3, 4}), [2]float64{3, 4}},
		"two":   {of([2]float32{3, 4}, [2]float32{5, 0}), [2]float64{4, 2}},
		"three": {of([2]float32{3, 4}, [2]float32{15, 0}, [2]float32{5, -15}), [2]float64{5, 0}},
		// One of five is omitted at each end: 1, 2, 3 and 6, 7, 8 remain.
		"five": {of([2]float32{1, 6}, [2]float32{2, 7}, [2]float32{3, 8}, [2]float32{-15, 15}, [2]float32{15, 1}), [2]float64{2, 7}},
		// Two of six are omitted at each end.
		"six": {of([2]float32{1, 0}, [2]float32{2, 0}, [2]float32{9, 0}, [2]float32{9, 0}, [2]float32{-9, 5}, [2]float32{-9, 5}), [2]float64{1.5, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			wantDisplacement(t, Trimmed{}, newMerge(t, shared, 7, c.updates, false, 1), c.want[0], c.want[1])
		})
	}
}

// If at most a fifth of the clients is hostile, the result is within the range of the other
// clients' values in each coordinate, whatever the hostile clients send.
func TestTrimmedWithinHonest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const length = 3
		shared := make([]float32, length)
		n := rapid.IntRange(5, 23).Draw(t, "clients")
		hostile := rapid.IntRange(0, n/5).Draw(t, "hostile")
		low, high := slices.Repeat([]float64{math.Inf(1)}, length), slices.Repeat([]float64{math.Inf(-1)}, length)
		var all []fed.Received
		for k := range n {
			size := float32(1)
			if k < hostile {
				size = 15
			}
			v := rapid.SliceOfN(rapid.Float32Range(-size, size), length, length).Draw(t, "update")
			for i, x := range v {
				if k >= hostile {
					low[i], high[i] = min(low[i], float64(x)), max(high[i], float64(x))
				}
			}
			all = append(all, update(fed.ClientID(fmt.Sprintf("%02d", k)), 1, shared, v...))
		}
		dst := garbage(length)
		if err := (Trimmed{}).Aggregate(dst, newMerge(t, shared, 7, all, true, 1)); err != nil {
			t.Fatal(err)
		}
		for i, x := range dst {
			if x < low[i]-1e-9 || x > high[i]+1e-9 {
				t.Fatalf("coordinate %d is %g, want within [%g, %g]", i, x, low[i], high[i])
			}
		}
	})
}
