package quality

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"loadstar/internal/textfmt"
	"loadstar/series"
)

const (
	// pageWidth is the width of the report in characters, for terminals of 80 columns.
	pageWidth = 79
	// maxLabel is the maximum width of a meter's name in the chart of gaps.
	maxLabel = 18
	// maxRows is the maximum number of meters that are printed without --all.
	maxRows = 20
)

// Cells returns the number of columns in the chart of gaps. Each column is a period of time.
func Cells(d *series.Dataset) int { return pageWidth - labelWidth(d) }

// labelWidth returns the width of the names to the left of the chart of gaps, including a
// space.
func labelWidth(d *series.Dataset) int {
	w := len("all meters")
	for i := range d.Len() {
		w = max(w, utf8.RuneCountInString(d.Meter(i).ID))
	}
	return min(w, maxLabel) + 1
}

// Report contains the results of a Checker, and the plan that it was given.
type Report struct {
	Plan   Plan
	Fleet  FleetReport
	Meters []MeterReport
	// Mark is printed after the dataset's description. It labels synthetic data.
	Mark string
	// Losses describes how many training examples are lost to missing readings. It may be empty.
	Losses string
}

// PrintFleet prints the report on a fleet. It lists only the worst meters unless all is
// true.
func PrintFleet(out io.Writer, d *series.Dataset, r Report, all bool) error {
	w := &reportPage{out: out}
	f := r.Fleet
	w.text("%s: %s, steps of %s on the clock of %s%s", d.Name, textfmt.Count(f.Meters, "meter"), DescribeInterval(d.Interval), d.Clock, r.Mark)
	w.line("%s to %s; %d of %d steps have a reading, %s", dateOf(f.From), dateOf(f.To.Add(-d.Interval)), f.Present, f.Steps, coverPercent(f.Coverage))
	w.text("%d training windows with a lookback of %d and a horizon of %d%s", f.Windows, r.Plan.Lookback, r.Plan.Horizon, lost(f.Windows, f.WindowsLost))
	if r.Losses != "" {
		w.text("%s", r.Losses)
	}
	if len(f.Weather) > 0 {
		var names []string
		for _, c := range f.Weather {
			name := c.Name
			if c.Missing > 0 {
				name += fmt.Sprintf(" (%d steps missing)", c.Missing)
			}
			names = append(names, name)
		}
		w.text("weather: %s", strings.Join(names, ", "))
	}
	if len(f.Codes)+len(f.Findings) == 0 {
		w.line("\nNothing to report.")
	}
	if len(f.Findings) > 0 {
		w.line("\nFLEET")
		for _, x := range f.Findings {
			w.wrapped(fmt.Sprintf("%-8s %-12s ", x.Severity, x.Code), x.Message)
		}
	}
	if len(f.Codes) > 0 {
		w.line("\n%-14s %8s %8s %5s  %s", "FINDING", "PROBLEMS", "WARNINGS", "INFOS", "WHAT IT IS")
		meaning := map[Code]string{}
		for _, c := range Codes() {
			meaning[c.Code] = c.Meaning
		}
		for _, c := range f.Codes {
			w.wrapped(fmt.Sprintf("%-14s %8s %8s %5s  ", c.Code, orDash(c.Problems), orDash(c.Warnings), orDash(c.Infos)), meaning[c.Code])
		}
	}
	printCheckMeters(w, d, r, all)
	printGaps(w, d, r, all)
	return w.err
}

// printCheckMeters prints the table of meters with problems and warnings.
func printCheckMeters(w *reportPage, d *series.Dataset, r Report, all bool) {
	worst := worstFirst(r.Meters)
	worst = slices.DeleteFunc(worst, func(m MeterReport) bool { return m.Worst() == Info })
	if len(worst) == 0 {
		return
	}
	shown := worst
	if !all {
		shown = shown[:min(maxRows, len(shown))]
	}
	width := len("METER")
	for _, m := range shown {
		width = max(width, utf8.RuneCountInString(m.ID))
	}
	width = min(width, 26)
	lead := func(m *MeterReport) string {
		name, coverage, gaps, longest := "METER", "COVERAGE", "GAPS", "LONGEST"
		if m != nil {
			name, coverage, gaps, longest = m.ID, coverPercent(m.Coverage), orDash(m.Gaps.Count), "-"
			if m.Gaps.Longest > 0 {
				longest = spellSteps(m.Gaps.Longest, d.Interval)
			}
		}
		if r.Fleet.Gaps.Count == 0 {
			return padLabel(name, width) + "  "
		}
		return fmt.Sprintf("%s %8s %5s %9s  ", padLabel(name, width), coverage, gaps, longest)
	}
	w.line("")
	w.wrapped(lead(nil), "FINDINGS (! is a problem; infos are left out)")
	for i := range shown {
		var codes []string
		for _, f := range shown[i].Findings {
			name := string(f.Code)
			if f.Severity == Problem {
				name += "!"
			}
			if f.Severity > Info && !slices.Contains(codes, name) {
				codes = append(codes, name)
			}
		}
		w.wrapped(lead(&shown[i]), strings.Join(codes, " "))
	}
	if more := len(worst) - len(shown); more > 0 {
		w.line("and %d more; --all prints them", more)
	}
	w.text("--meter %s says what was found there, where, and what to do", worst[0].ID)
}

// lost formats the number of windows lost to missing readings.
func lost(windows, lost int) string {
	if lost == 0 {
		return ""
	}
	return fmt.Sprintf("; missing readings cost %d more, %.1f %%", lost, 100*float64(lost)/float64(windows+lost))
}

// PrintMeter prints the full report on a single meter. The report must contain exactly one
// meter.
func PrintMeter(out io.Writer, d *series.Dataset, r Report) error {
	w := &reportPage{out: out}
	m := r.Meters[0]
	w.text("%s of %s: steps of %s on the clock of %s%s", m.ID, d.Name, DescribeInterval(d.Interval), d.Clock, r.Mark)
	if m.Steps > 0 {
		w.line("%s to %s; %d of %d steps have a reading, %s", dateOf(m.From), dateOf(m.To.Add(-d.Interval)), m.Present, m.Steps, coverPercent(m.Coverage))
		w.text("%d training windows with a lookback of %d and a horizon of %d%s", m.Windows, r.Plan.Lookback, r.Plan.Horizon, lost(m.Windows, m.WindowsLost))
		w.line("kW: mean %.4g, 5 %% below %.4g, median %.4g, 99 %% below %.4g, largest %.4g", m.Level.Mean, m.Level.P05, m.Level.Median, m.Level.P99, m.Level.Max)
		w.line("%d zeros, %d negative values, %s of the values equal the one before", m.Zeros, m.Negatives, coverPercent(m.Repeats))
		w.text("%d rows: %d duplicates, %d conflicts, %d out of order, %d off the grid, %d at times that do not exist", m.Rows.Rows,
			m.Rows.Duplicates, m.Rows.Conflicts, m.Rows.OutOfOrder, m.Rows.OffGrid, m.Rows.Nonexistent)
	}
	if len(m.Findings) == 0 {
		w.line("\nNothing to report.")
	}
	for _, f := range m.Findings {
		w.line("\n%s: %s", f.Severity, f.Code)
		w.wrapped("  ", f.Message)
		for _, x := range f.Where {
			text := x.Time.Format("2006-01-02 15:04")
			if x.Steps > 1 {
				text += ", " + spellSteps(x.Steps, d.Interval)
			}
			if x.Size != 0 {
				text += fmt.Sprintf(", %.4g", x.Size)
			}
			w.line("    %s", text)
		}
		w.wrapped("  To do: ", f.Advice+".")
	}
	printGaps(w, d, r, true)
	return w.err
}

// gapBlocks are the characters for a share of missing steps, from 0 to 1.
var gapBlocks = []rune("·▁▂▃▄▅▆▇█")

// gapBlock returns the character for a share of missing steps, or a blank for -1, which means
// that the meter has no readings yet or no longer has any.
func gapBlock(share float64) rune {
	switch {
	case share < 0:
		return ' '
	case share == 0:
		return gapBlocks[0]
	case share >= 1:
		return gapBlocks[8]
	}
	return gapBlocks[1+int(share*7)]
}

// printGaps prints a chart of missing readings, with time from left to right. The chart has a
// line for the fleet and a line for each of the meters with the most missing readings.
func printGaps(w *reportPage, d *series.Dataset, r Report, all bool) {
	sorted := slices.Clone(r.Meters)
	sorted = slices.DeleteFunc(sorted, func(m MeterReport) bool { return m.Gaps.Steps == 0 })
	if len(sorted) == 0 {
		return
	}
	slices.SortStableFunc(sorted, func(a, b MeterReport) int { return cmp.Compare(b.Gaps.Steps, a.Gaps.Steps) })
	shown := sorted
	if !all {
		shown = shown[:min(maxRows, len(shown))]
	}
	from, to := d.Span()
	cells := len(r.Fleet.Missing)
	width := pageWidth - cells
	w.line("\nMISSING READINGS, a column is %s", spellSpan(time.Duration(to-from)*time.Second/time.Duration(cells)))
	w.line("%c none, %s some, %c all; blank before the first and after the last reading", gapBlocks[0], string(gapBlocks[1:8]), gapBlocks[8])
	w.line("%*s%s", width, "", timeAxis(from, to, cells, d.Clock))
	row := func(name string, missing []float64) {
		line := make([]rune, len(missing))
		for i, share := range missing {
			line[i] = gapBlock(share)
		}
		w.line("%s", strings.TrimRight(padLabel(name, width-1)+" "+string(line), " "))
	}
	if len(r.Meters) > 1 {
		row("all meters", r.Fleet.Missing)
	}
	for _, m := range shown {
		row(m.ID, m.Missing)
	}
	if more := len(sorted) - len(shown); more > 0 {
		w.line("and %d more with gaps; --all draws them", more)
	}
}

// timeAxis returns the line above the chart, with labels for years, months or days above
// their columns.
func timeAxis(from, to int64, cells int, clock *time.Location) string {
	start, end := time.Unix(from, 0).In(clock), time.Unix(to, 0).In(clock)
	column := func(t time.Time) int { return int(float64(t.Unix()-from) / float64(to-from) * float64(cells)) }
	// Use the shortest division whose labels fit next to each other.
	divisions := []struct {
		years, months, days int
	}{{days: 1}, {days: 7}, {months: 1}, {months: 3}, {years: 1}, {years: 5}, {years: 20}}
	const room = 6
	for _, x := range divisions {
		next := func(t time.Time) time.Time { return t.AddDate(x.years, x.months, x.days) }
		var first time.Time
		switch {
		case x.days > 0:
			first = time.Date(start.Year(), start.Month(), start.Day(), 0, 0, 0, 0, clock)
		case x.months > 0:
			first = time.Date(start.Year(), time.Month((int(start.Month())-1)/x.months*x.months+1), 1, 0, 0, 0, 0, clock)
		default:
			first = time.Date(start.Year()/x.years*x.years, 1, 1, 0, 0, 0, 0, clock)
		}
		if float64(next(first).Unix()-first.Unix())*float64(cells) < room*float64(to-from) && x.years < 20 {
			continue
		}
		line := []rune(strings.Repeat(" ", cells))
		free := 0
		for t := first; t.Before(end); t = next(t) {
			label := t.Format("Jan")
			switch {
			case x.days > 0:
				label = t.Format("01-02")
			case t.Month() == time.January:
				label = t.Format("2006")
			}
			at := max(0, column(t)) // the first division may start before the chart does
			if t.Before(start) && column(next(t)) < room {
				continue
			}
			if at < free || at+len(label) > cells {
				continue
			}
			copy(line[at:], []rune(label))
			free = at + len(label) + 1
		}
		return strings.TrimRight(string(line), " ")
	}
	return ""
}

// reportPage writes lines and stores the first error.
type reportPage struct {
	out io.Writer
	err error
}

func (p *reportPage) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.out, format+"\n", args...)
	}
}

// text formats a sentence and writes it with line breaks at the page width.
func (p *reportPage) text(format string, args ...any) {
	p.wrapped("", fmt.Sprintf(format, args...))
}

// wrapped writes the lead followed by the text, with line breaks at the page width.
// Continuation lines are indented by the width of the lead.
func (p *reportPage) wrapped(lead, text string) {
	indent := strings.Repeat(" ", utf8.RuneCountInString(lead))
	line := lead
	empty := true
	for _, word := range strings.Fields(text) {
		if !empty && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > pageWidth {
			p.line("%s", line)
			line, empty = indent, true
		}
		if !empty {
			line += " "
		}
		line += word
		empty = false
	}
	p.line("%s", strings.TrimRight(line, " "))
}

// padLabel pads a name with spaces to the given width, or shortens a longer name by
// replacing its middle with an ellipsis.
func padLabel(name string, width int) string {
	runes := []rune(name)
	if len(runes) > width {
		head := (width - 1) / 2
		runes = slices.Concat(runes[:head], []rune("…"), runes[len(runes)-(width-1-head):])
	}
	return string(runes) + strings.Repeat(" ", width-len(runes))
}

func dateOf(t time.Time) string { return t.Format(time.DateOnly) }

// orDash formats a number, with a dash for 0.
func orDash(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

// coverPercent formats a share as a percentage. It does not round a share below 1 to 100 %.
func coverPercent(share float64) string {
	text := fmt.Sprintf("%.1f %%", 100*share)
	if text == "100.0 %" && share < 1 {
		return "99.9 %"
	}
	return text
}

// DescribeInterval formats an interval in hours or minutes.
func DescribeInterval(d time.Duration) string {
	if d%time.Hour == 0 {
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	if d%time.Minute == 0 {
		return fmt.Sprintf("%d min", d/time.Minute)
	}
	return d.String()
}

func spellSteps(n int, interval time.Duration) string { return spellSpan(time.Duration(n) * interval) }

// spellSpan formats a duration in minutes, hours or days.
func spellSpan(d time.Duration) string {
	switch h := d.Hours(); {
	case h < 1:
		return fmt.Sprintf("%.0f min", d.Minutes())
	case h < 48:
		return fmt.Sprintf("%.3g h", h)
	case h < 240:
		return fmt.Sprintf("%.1f days", h/24)
	default:
		return fmt.Sprintf("%.0f days", h/24)
	}
}

// worstFirst returns the reports sorted by number of problems, then warnings, then missing
// steps, in descending order.
func worstFirst(reports []MeterReport) []MeterReport {
	number := func(r MeterReport, s Severity) (n int) {
		for _, f := range r.Findings {
			if f.Severity == s {
				n++
			}
		}
		return n
	}
	sorted := slices.Clone(reports)
	slices.SortStableFunc(sorted, func(a, b MeterReport) int {
		return cmp.Or(
			number(b, Problem)-number(a, Problem),
			number(b, Warning)-number(a, Warning),
			b.Gaps.Steps-a.Gaps.Steps,
		)
	})
	return sorted
}
