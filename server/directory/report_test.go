package directory

import (
	"math"
	"testing"

	"loadstar/internal/testkit/pgtest"
)

func TestMedian(t *testing.T) {
	h := histogram{0.1, 9}
	for _, c := range []struct {
		buckets map[int64]int64
		want    float64
	}{{map[int64]int64{3: 1}, 0.35}, {map[int64]int64{0: 2, 5: 2}, 0.1}, {map[int64]int64{1: 1, 2: 2, 9: 1}, 0.25}, {map[int64]int64{0: 1, 9: 99}, 0.9 + 0.1*49/99}} {
		if got := h.median(c.buckets); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%v: %v, want %v", c.buckets, got, c.want)
		}
	}
	if !math.IsNaN(h.median(nil)) {
		t.Error("a median of nothing")
	}
	pgtest.Equal(t, "buckets", []int64{h.bucket(-1), h.bucket(0.55), h.bucket(1e300), h.bucket(math.Inf(1))}, []int64{0, 5, 9, 9})
}
