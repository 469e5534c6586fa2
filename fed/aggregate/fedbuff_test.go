package aggregate

import (
	"testing"

	"loadstar/fed"

	"pgregory.net/rapid"
)

// TestBuffered merges two updates into weights of version 7: (1, -2) with 1 example from
// version 7, and (5, 2) with 3 examples from version 5. The discount for a staleness of 2
// is 1/(.5·2 + 1) = 1/2, so the displacement is
//
//	(1·1 + 1/2·3·5) / (1+3) = 8.5/4 = 2.125,   (-2 + 1/2·3·2) / 4 = .25
//
// and, with equal weights, (1 + 1/2·5)/2 = 1.75, (-2 + 1/2·2)/2 = -.5. If both have a staleness
// of 2, the result is half of the mean, because the denominator is not discounted.
func TestBuffered(t *testing.T) {
	shared := []float32{10, 20}
	a, b := update("a", 1, shared, 1, -2), update("b", 3, shared, 5, 2)
	b.Version = 5
	buffered := Buffered{Hinge(.5, 0)}
	wantDisplacement(t, buffered, newMerge(t, shared, 7, []fed.Received{a, b}, false, 1), 2.125, .25)
	wantDisplacement(t, buffered, newMerge(t, shared, 7, []fed.Received{a, b}, true, 1), 1.75, -.5)
	a.Version = 5
	wantDisplacement(t, buffered, newMerge(t, shared, 7, []fed.Received{a, b}, false, 1), 2, .5)
}

// TestBufferedFresh checks that the discount has no effect on updates from the current
// version.
func TestBufferedFresh(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawMerge(t, 3)
		seen := map[fed.ClientID]bool{}
		var fresh []fed.Received
		for _, u := range d.updates {
			u.Version = d.version
			if !seen[u.Client] {
				fresh = append(fresh, u)
			}
			seen[u.Client] = true
		}
		d.updates = fresh
		mean, buffered := garbage(3), garbage(3)
		if err := (Mean{}).Aggregate(mean, d.merge(t, 0)); err != nil {
			t.Fatal(err)
		}
		if err := (Buffered{Polynomial(.5)}).Aggregate(buffered, d.shuffled(t, 0)); err != nil {
			t.Fatal(err)
		}
		if !sameBits(mean, buffered) {
			t.Fatalf("the mean is %v, that of the buffer %v", mean, buffered)
		}
	})
}
