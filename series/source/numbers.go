package source

import (
	"math"
	"slices"
	"strconv"
)

// The groups were first made with pandas. The functions below round, format and interpolate as
// pandas does, so that equal sources give equal bytes.

// round rounds to a number of digits, as numpy does: it scales, rounds halves to even, and
// scales back.
func round(x float64, digits int) float64 {
	scale := math.Pow10(digits)
	return math.RoundToEven(x*scale) / scale
}

// shortest appends the shortest decimal string that represents the number exactly, with at
// least one decimal. It appends nothing for a missing value.
func shortest(text []byte, x float64) []byte {
	if math.IsNaN(x) {
		return text
	}
	start := len(text)
	text = strconv.AppendFloat(text, x, 'f', -1, 64)
	if !slices.Contains(text[start:], '.') {
		text = append(text, ".0"...)
	}
	return text
}

// fixed appends the number with a fixed number of decimals, and nothing for a missing value.
func fixed(text []byte, x float64, decimals int) []byte {
	if math.IsNaN(x) {
		return text
	}
	return strconv.AppendFloat(text, x, 'f', decimals, 64)
}

// rounded returns the rounded number as a string.
func rounded(x float64, digits int) string { return string(shortest(nil, round(x, digits))) }

// parse returns the number in a field. An empty field is a missing value.
func parse(field string) (float64, error) {
	if field == "" {
		return math.NaN(), nil
	}
	return strconv.ParseFloat(field, 64)
}

// summary describes the values of a meter.
type summary struct {
	rows, missing, zero      int
	mean, std, p99, max, sum float64
}

func summarize(values []float64) summary {
	present := present(values)
	s := summary{rows: len(values), missing: len(values) - len(present), max: math.Inf(-1)}
	for _, x := range present {
		s.sum += x
		s.max = math.Max(s.max, x)
		if x == 0 {
			s.zero++
		}
	}
	count := float64(len(present))
	s.mean = s.sum / count
	squares := 0.0
	for _, x := range present {
		squares += (s.mean - x) * (s.mean - x)
	}
	s.std = math.Sqrt(squares / (count - 1))
	s.p99 = quantile(present, 0.99)
	return s
}

// present returns the values that are not missing.
func present(values []float64) []float64 {
	return slices.DeleteFunc(slices.Clone(values), math.IsNaN)
}

// quantile interpolates between the two nearest values, with numpy's rounding. It sorts
// the values.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	slices.Sort(values)
	position := float64(len(values)-1) * q
	below := int(position)
	share := position - float64(below)
	low := values[below]
	high := values[min(below+1, len(values)-1)]
	if share >= 0.5 {
		return high - (high-low)*(1-share)
	}
	return low + (high-low)*share
}

// candidate is a meter that may belong to a core group.
type candidate struct {
	meter string
	mean  float64
}

// spread selects count meters that are evenly spaced in the order of mean load.
func spread(candidates []candidate, count int) map[string]bool {
	core := map[string]bool{}
	if len(candidates) == 0 {
		return core
	}
	quicksort(candidates)
	step := float64(len(candidates)-1) / float64(count-1)
	for i := range count {
		core[candidates[int(math.RoundToEven(float64(i)*step))].meter] = true
	}
	return core
}

// quicksort sorts by mean load. Meters with equal means must be in numpy's order. Numpy's sort
// is not stable, so this function takes the same steps. The pivot is the median of three, and
// parts of up to 17 meters are sorted by insertion.
func quicksort(all []candidate) {
	for len(all) > 17 {
		last := len(all) - 1
		middle := last / 2
		order := func(i, j int) {
			if all[j].mean < all[i].mean {
				all[i], all[j] = all[j], all[i]
			}
		}
		order(0, middle)
		order(middle, last)
		order(0, middle)
		pivot := all[middle].mean
		all[middle], all[last-1] = all[last-1], all[middle]
		left, right := 0, last-1
		for {
			for left++; all[left].mean < pivot; left++ {
			}
			for right--; pivot < all[right].mean; right-- {
			}
			if left >= right {
				break
			}
			all[left], all[right] = all[right], all[left]
		}
		all[left], all[last-1] = all[last-1], all[left]
		quicksort(all[:left])
		all = all[left+1:]
	}
	for i := range all {
		for j := i; j > 0 && all[j].mean < all[j-1].mean; j-- {
			all[j], all[j-1] = all[j-1], all[j]
		}
	}
}

// flag returns 1 for true and 0 for false.
func flag(value bool) string {
	if value {
		return "1"
	}
	return "0"
}
