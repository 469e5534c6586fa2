package cli

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Count formats a number and a noun, such as "1 layer" or "2 layers".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Size formats a number of bytes, such as "1.4 MB".
func Size(n int64) string {
	switch x := float64(n); {
	case n < 1000:
		return Count(int(n), "byte")
	case n < 1_000_000:
		return fmt.Sprintf("%.1f kB", x/1e3)
	case n < 1_000_000_000:
		return fmt.Sprintf("%.1f MB", x/1e6)
	default:
		return fmt.Sprintf("%.1f GB", x/1e9)
	}
}

// Took formats the time since start.
func Took(start time.Time) string {
	return time.Since(start).Round(100 * time.Millisecond).String()
}

// Sparkline draws values as a line of blocks, from the lowest value to the highest. Values
// that are not finite are blank. If there are more values than the width, each block is the
// mean of several.
func Sparkline(values []float64, width int) string {
	const blocks = "▁▂▃▄▅▆▇█"
	levels := []rune(blocks)
	if len(values) > width && width > 0 {
		means := make([]float64, width)
		for i := range means {
			from, to := i*len(values)/width, (i+1)*len(values)/width
			sum, n := 0.0, 0
			for _, v := range values[from:to] {
				if !math.IsNaN(v) && !math.IsInf(v, 0) {
					sum, n = sum+v, n+1
				}
			}
			means[i] = sum / float64(n) // NaN if there is no value
		}
		values = means
	}
	low, high := math.Inf(1), math.Inf(-1)
	for _, v := range values {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			low, high = min(low, v), max(high, v)
		}
	}
	var line strings.Builder
	for _, v := range values {
		switch {
		case math.IsNaN(v) || math.IsInf(v, 0):
			line.WriteByte(' ')
		case high == low:
			line.WriteRune(levels[len(levels)/2])
		default:
			line.WriteRune(levels[int((v-low)/(high-low)*float64(len(levels)-1)+0.5)])
		}
	}
	return line.String()
}
