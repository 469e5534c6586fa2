package mask

import (
	"cmp"
	"math"
	"slices"
)

// Updates returns how many of a vector's first blocks contain updates or changes of control
// variates. These blocks have the same length as the first block.
func Updates(blocks []Block) int {
	n := 0
	for n < len(blocks) && blocks[n].Length == blocks[0].Length {
		n++
	}
	return n
}

// Nearest returns the positions of the three quarters of the sketches that are nearest to the
// coordinate-wise median of all sketches. The positions are ascending. A sketch contains
// products with random vectors, so the distance between two sketches estimates the distance
// between their vectors.
func Nearest(sketches [][]float64) []int {
	distance, order := distances(sketches), make([]int, len(sketches))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(distance[a], distance[b]) })
	order = order[:(3*len(order)+3)/4]
	slices.Sort(order)
	return order
}

// distances returns the distance of each sketch from the coordinate-wise median of all
// sketches.
func distances(rows [][]float64) []float64 {
	distance, column := make([]float64, len(rows)), make([]float64, len(rows))
	if len(rows) == 0 {
		return nil
	}
	for j := range rows[0] {
		for i, r := range rows {
			column[i] = r[j]
		}
		slices.Sort(column)
		n := len(column)
		median := (column[(n-1)/2] + column[n/2]) / 2
		for i, r := range rows {
			x := r[j] - median
			distance[i] += float64(x * x) // the conversion prevents fused operations
		}
	}
	for i, x := range distance {
		distance[i] = math.Sqrt(x)
	}
	return distance
}
