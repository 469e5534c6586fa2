package quality

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"loadstar/series"
)

// PrintMonths prints a line for each month, with the load and the missing readings of each day,
// and the mean load of the month. Who names the meters, and mark labels synthetic data.
func PrintMonths(out io.Writer, d *series.Dataset, months []Month, who, mark string) error {
	const days = 31
	w := &reportPage{out: out}
	w.text("%s: %s, steps of %s on the clock of %s%s", d.Name, who, DescribeInterval(d.Interval), d.Clock, mark)
	low, high := math.Inf(1), math.Inf(-1)
	peak, longest, missing, all := math.Inf(-1), 0, 0, 0
	var peakIn, longestIn string
	for _, m := range months {
		for _, day := range m.Days {
			if day.Mean != nil {
				low, high = min(low, *day.Mean), max(high, *day.Mean)
			}
		}
		if m.Peak != nil && *m.Peak > peak {
			peak, peakIn = *m.Peak, m.Month
		}
		if m.Longest > longest {
			longest, longestIn = m.Longest, m.Month
		}
		missing += m.Missing
		all += m.Missing + m.Readings
	}
	if high < low {
		w.line("There are no readings.")
		return w.err
	}
	w.line("\n%-7s %-*s %-*s %7s", "MONTH", days, "MEAN LOAD OF EACH DAY", days, "MISSING READINGS", "MEAN kW")
	for _, m := range months {
		var load, gaps strings.Builder
		for _, day := range m.Days {
			load.WriteRune(loadBlock(day.Mean, low, high))
			share := -1.0
			if n := day.Readings + day.Missing; n > 0 {
				share = float64(day.Missing) / float64(n)
			}
			gaps.WriteRune(gapBlock(share))
		}
		mean := "-"
		if m.Mean != nil {
			mean = amount(*m.Mean)
		}
		w.line("%-7s %s %s %7s", m.Month, pad(load.String(), days), pad(gaps.String(), days), mean)
	}
	w.line("")
	w.text("load: %c is %s kW, %c is %s kW, blank without a reading; highest reading %s kW in %s",
		gapBlocks[1], amount(low), gapBlocks[8], amount(high), amount(peak), peakIn)
	gaps := "missing: none"
	if missing > 0 {
		gaps = fmt.Sprintf("missing: %d of %d readings; longest gap %s in %s; %c none, %s some, %c all", missing, all,
			spellSpan(time.Duration(longest)*d.Interval), longestIn, gapBlocks[0], string(gapBlocks[1:8]), gapBlocks[8])
	}
	w.text("%s", gaps)
	return w.err
}

// loadBlock returns the character for a load between the lowest load and the highest load.
func loadBlock(v *float64, low, high float64) rune {
	switch {
	case v == nil:
		return ' '
	case high <= low:
		return gapBlocks[4]
	}
	return gapBlocks[1+int(math.Round(7*(*v-low)/(high-low)))]
}

// amount formats a load with about three digits.
func amount(v float64) string {
	if math.Abs(v) >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

func pad(line string, width int) string {
	return line + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(line)))
}
