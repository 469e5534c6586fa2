// Package textfmt formats counts, labels, CSV fields and lines of blocks for people.
package textfmt

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Count formats a number and a noun, such as "1 step" or "2 steps".
func Count[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Duration formats a duration without trailing zero units, such as 1h instead of 1h0m0s.
func Duration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// Synthetic returns a label for output from synthetic data, or "" for other data.
func Synthetic(generated bool) string {
	if generated {
		return " (SYNTHETIC data, not measurements)"
	}
	return ""
}

// Quoted returns a field as written in CSV, with quotes if it needs them.
func Quoted(s string) string {
	if strings.ContainsAny(s, ",\"\r\n") || strings.HasPrefix(s, " ") {
		return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
	}
	return s
}

// Cell returns a text that a spreadsheet does not treat as a formula. Names come from agents
// and from other people's data, so a name may begin with =, and a spreadsheet would execute
// it. Cell puts an apostrophe before such a name, which spreadsheets do not show. Numbers do
// not change.
func Cell(s string) string {
	if s == "" || !strings.ContainsRune("=+-@\t\r\n", rune(s[0])) {
		return s
	}
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		return s
	}
	return "'" + s
}

// Plain reverses [Cell], for programs that read their own files.
func Plain(cell string) string {
	if s, ok := strings.CutPrefix(cell, "'"); ok && Cell(s) == cell {
		return s
	}
	return cell
}

// Sparkline draws values as a line of blocks, from the lowest value to the highest. Values
// that are not finite are blank. If there are more values than the width, each block is the
// mean of several. A width of 0 means no limit.
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
			at := int((v-low)/(high-low)*float64(len(levels)-1) + 0.5)
			line.WriteRune(levels[min(max(at, 0), len(levels)-1)]) // the difference of huge values is infinite
		}
	}
	return line.String()
}
