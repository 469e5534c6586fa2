package aggregate

import (
	"testing"

	"loadstar/fed"

	"pgregory.net/rapid"
)

// TestMean merges the updates (1, -2) with 1 example and (5, 2) with 3 examples. Their mean is
// (1 + 15)/4 = 4 and (-2 + 6)/4 = 1. With equal weights the mean is (1 + 5)/2 = 3 and 0. The
// second update's older version has no effect.
func TestMean(t *testing.T) {
	shared := []float32{10, 20}
	a, b := update("a", 1, shared, 1, -2), update("b", 3, shared, 5, 2)
	stale := b
	stale.Version = 3
	for _, updates := range [][]fed.Received{{a, b}, {a, stale}} {
		wantDisplacement(t, Mean{}, newMerge(t, shared, 7, updates, false, 1), 4, 1)
		wantDisplacement(t, Mean{}, newMerge(t, shared, 7, updates, true, 1), 3, 0)
	}
}

// TestMeanOfDuplicates checks that a client with n examples can be replaced by n clients
// with the same update and one example each.
func TestMeanOfDuplicates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawMerge(t, 3)
		var many []fed.Received
		for i := range d.updates {
			u := &d.updates[i]
			u.Examples = rapid.IntRange(1, 12).Draw(t, "examples")
			for range u.Examples {
				many = append(many, *u)
			}
		}
		heavy, duplicated := garbage(3), garbage(3)
		if err := (Mean{}).Aggregate(heavy, d.merge(t, 0)); err != nil {
			t.Fatal(err)
		}
		if err := (Mean{}).Aggregate(duplicated, newMerge(t, d.shared, d.version, many, true, 3)); err != nil {
			t.Fatal(err)
		}
		if !sameBits(heavy, duplicated) {
			t.Fatalf("one client with n examples: %v, n clients: %v", heavy, duplicated)
		}
	})
}
