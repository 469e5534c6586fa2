package mask

import (
	"slices"
	"testing"
)

func TestNearest(t *testing.T) {
	for _, x := range []struct {
		sketches [][]float64
		want     []int
	}{
		{nil, []int{}},
		{[][]float64{{7}}, []int{0}},
		{[][]float64{{100, 0}, {1, 0}, {2, 0}, {3, 0}}, []int{1, 2, 3}},
		{[][]float64{{0, 1}, {0, 2}, {0, -90}, {0, 3}}, []int{0, 1, 3}},
		{[][]float64{{1}, {1}, {1}, {1}, {1}}, []int{0, 1, 2, 3}}, // equal sketches in their order
	} {
		if got := Nearest(x.sketches); !slices.Equal(got, x.want) {
			t.Errorf("of %v, %v are nearest, want %v", x.sketches, got, x.want)
		}
	}
	for want, lengths := range map[int][]int64{0: nil, 1: {9, 640, 1, 5}, 2: {9, 9, 640, 5}} {
		var blocks []Block
		for _, n := range lengths {
			blocks = append(blocks, Block{Length: n})
		}
		if got := Updates(blocks); got != want {
			t.Errorf("blocks of %v: %d of updates, want %d", lengths, got, want)
		}
	}
}
