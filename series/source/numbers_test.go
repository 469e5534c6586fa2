package source

import (
	"math"
	"strings"
	"testing"
)

// TestNumbers compares the results with the output of numpy and pandas for the same numbers.
func TestNumbers(t *testing.T) {
	for _, c := range []struct {
		x      float64
		digits int
		want   string
	}{
		{2.675, 2, "2.68"}, // the product with 100 is 267.5, and halves are rounded to even
		{0.125, 2, "0.12"}, // halves are rounded to even
		{1.005, 2, "1.0"},  // the product with 100 is below 100.5
		{37, 3, "37.0"},    // at least one decimal
		{1e7 + 0.25, 1, "10000000.2"},
	} {
		if got := rounded(c.x, c.digits); got != c.want {
			t.Errorf("%v with %d digits is %s, want %s", c.x, c.digits, got, c.want)
		}
	}
	if got := rounded(math.NaN(), 2); got != "" {
		t.Errorf("a missing value is %q", got)
	}
	// Python's own round is exact, and the float64 nearest to 2.675 is a little less than
	// 2.675.
	if got := decimal(2.675, 2); got != "2.67" {
		t.Errorf("2.675 is %s", got)
	}
	s := summarize([]float64{4, math.NaN(), 1, 0, 3})
	if s.rows != 5 || s.missing != 1 || s.zero != 1 || s.mean != 2 || s.max != 4 || rounded(s.std, 6) != "1.825742" || rounded(s.p99, 6) != "3.97" {
		t.Errorf("the summary is %+v", s)
	}
	if got := quantile([]float64{3, 1, 2, 10}, 0.05); rounded(got, 9) != "1.15" {
		t.Errorf("the quantile is %v", got)
	}
}

// TestSpreadTies sorts 18 meters with equal means. The expected order is the result of
// np.argsort(np.zeros(18)) in numpy 1.24.
func TestSpreadTies(t *testing.T) {
	var all []candidate
	for i := range 18 {
		all = append(all, candidate{string(rune('a' + i)), 0})
	}
	quicksort(all)
	var got strings.Builder
	for _, c := range all {
		got.WriteString(c.meter)
	}
	if want := "aponmlkjihgfedcbqr"; got.String() != want {
		t.Errorf("the order is %s, want %s", got.String(), want)
	}
}
