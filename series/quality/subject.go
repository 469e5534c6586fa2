package quality

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"loadstar/internal/textfmt"
	"loadstar/series"
)

// Thresholds for findings about faulty rows and gaps.
const (
	// A meter with 5 % missing steps loses a much larger share of its windows. A meter with
	// 90 % missing steps is nearly empty.
	gapsWarning, gapsProblem = 0.05, 0.9
	// If 1 % of the rows contradict other rows or lie between two steps, the description or the
	// export is wrong.
	rowsProblem = 0.01
)

// localDay is a day on the dataset's clock and the steps that it covers.
type localDay struct {
	number     int // number of days since 1970-01-01
	first, end int // steps
	slot       int // position of the first step within the day
	// whole means that all steps of the day are within the series and that clocks do not
	// change on it.
	whole bool
}

// subject is the meter that the checker examines. Its slices are reused for the next meter.
type subject struct {
	d      *series.Dataset
	report *MeterReport
	start  int64     // Unix time of load[0]
	load   []float32 // from the first to the last reading
	sorted []float32 // the readings in ascending order
	// odd marks the steps of flat lines, dropouts and spikes that were already found. Later
	// detectors skip these steps, so that a fault is not reported twice.
	odd    []bool
	flat   []bool
	beyond []int // steps of impossible readings, which are odd
	days   []localDay
	shifts []shift // for every day
	moves  []shift // the clear shifts that are not at daylight-saving changes
	buf    []float32
}

func (s *subject) reset(d *series.Dataset, m series.Meter, impossible []int, r *MeterReport) {
	first, end := 0, len(m.Load)
	for first < end && series.Missing(m.Load[first]) {
		first++
	}
	for end > first && series.Missing(m.Load[end-1]) {
		end--
	}
	s.d, s.report = d, r
	s.load, s.start = m.Load[first:end], m.Start+int64(first)*d.Seconds()
	s.odd, s.flat = fresh(s.odd, len(s.load)), fresh(s.flat, len(s.load))
	s.sorted, s.days, s.shifts, s.moves = s.sorted[:0], s.days[:0], s.shifts[:0], s.moves[:0]
	s.beyond = s.beyond[:0]
	for _, i := range impossible {
		s.beyond = append(s.beyond, i-first)
		s.odd[i-first] = true
	}
}

// fresh returns n false values. It reuses b if its capacity suffices.
func fresh(b []bool, n int) []bool {
	b = slices.Grow(b[:0], n)[:n]
	clear(b)
	return b
}

// find adds a finding to the meter's report.
func (s *subject) find(code Code, severity Severity, count, steps int, where []Where, format string, args ...any) {
	s.report.Findings = append(s.report.Findings, newFinding(code, severity, count, steps, where, format, args...))
}

func newFinding(code Code, severity Severity, count, steps int, where []Where, format string, args ...any) Finding {
	message := fmt.Sprintf(format, args...)
	return Finding{code, severity, count, steps, where, strings.ToUpper(message[:1]) + message[1:], code.advice()}
}

func (s *subject) time(i int) time.Time { return s.d.Time(s.start, i) }

// ok reports whether a step has a reading that is not part of an earlier finding.
func (s *subject) ok(i int) bool { return !series.Missing(s.load[i]) && !s.odd[i] }

// hours converts hours to steps. The result is at least one step.
func (s *subject) hours(h int) int { return max(1, h*s.d.StepsPerDay()/24) }

// duration formats a number of steps as minutes, hours or days.
func (s *subject) duration(steps int) string {
	return spell(time.Duration(steps) * s.d.Interval)
}

// spell formats a duration as minutes, hours or days.
func spell(t time.Duration) string {
	switch {
	case t < time.Hour:
		return fmt.Sprintf("%d min", int(t.Minutes()))
	case t < 48*time.Hour:
		return short(t.Hours()) + " h"
	}
	return short(t.Hours()/24) + " days"
}

// short formats a number with two significant digits, or as an integer if it is 100 or
// more.
func short(v float64) string {
	if math.Abs(v) >= 100 {
		return strconv.FormatFloat(math.Round(v), 'f', -1, 64)
	}
	p, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 2, 64), 64)
	if err != nil {
		return strconv.FormatFloat(v, 'g', 2, 64)
	}
	return strconv.FormatFloat(p, 'f', -1, 64)
}

// percent formats a share as a percentage. It does not round a small share to 0 %.
func percent(share float64) string {
	if share > 0 && share < 0.0005 {
		return "under 0.1 %"
	}
	return strconv.FormatFloat(100*share, 'f', 1, 64) + " %"
}

// stamp formats a time in the format of tables, without seconds and zone.
func stamp(t time.Time) string { return t.Format("2006-01-02 15:04") }

// topPlaces collects the maxWhere places of a finding that have the largest keys.
type topPlaces struct {
	where []Where
	key   []float64
}

func (t *topPlaces) add(w Where, key float64) {
	if len(t.where) == maxWhere {
		least := 0
		for i := range t.key {
			if t.key[i] < t.key[least] {
				least = i
			}
		}
		if t.key[least] >= key {
			return
		}
		t.where, t.key = slices.Delete(t.where, least, least+1), slices.Delete(t.key, least, least+1)
	}
	t.where, t.key = append(t.where, w), append(t.key, key)
}

// inOrder sorts and returns the places in chronological order. Do not add places afterwards,
// because the keys are not sorted with the places.
func (t *topPlaces) inOrder() []Where {
	slices.SortFunc(t.where, func(a, b Where) int { return a.Time.Compare(b.Time) })
	return t.where
}

// quantile returns the p-quantile of values in ascending order.
func quantile(sorted []float32, p float64) float64 {
	return float64(sorted[int(p*float64(len(sorted)-1)+0.5)])
}

// medianOf returns the median of the values. It changes the order of v.
func medianOf(v []float32) float64 {
	slices.Sort(v)
	return (float64(v[(len(v)-1)/2]) + float64(v[len(v)/2])) / 2
}

// scan computes the statistics that need one pass through the series.
func (s *subject) scan() {
	r := s.report
	r.From, r.To, r.Steps = s.time(0), s.time(len(s.load)), len(s.load)
	sum, repeats, gap := 0.0, 0, 0
	for i, v := range s.load {
		if series.Missing(v) {
			gap++
			continue
		}
		if gap > 0 {
			r.Gaps.add(Runs{1, gap, gap, s.time(i - gap)})
			gap = 0
		}
		if s.odd[i] { // impossible readings are the only odd ones so far; level and quantiles use the others
			continue
		}
		sum += float64(v)
		s.sorted = append(s.sorted, v)
		if v < 0 {
			r.Negatives++
		}
		if v == 0 {
			r.Zeros++
		}
		if i > 0 && s.load[i-1] == v {
			repeats++
		}
	}
	r.Present = len(s.sorted) + len(s.beyond)
	r.Coverage = float64(r.Present) / float64(r.Steps)
	r.Repeats = float64(repeats) / float64(r.Present)
	slices.Sort(s.sorted)
	r.Level = Level{
		Mean: sum / float64(len(s.sorted)), P05: quantile(s.sorted, 0.05), Median: quantile(s.sorted, 0.5),
		P99: quantile(s.sorted, 0.99), Max: quantile(s.sorted, 1),
	}
	s.findDays()
}

// findDays divides the series into days on the dataset's clock.
func (s *subject) findDays() {
	const day = 24 * 60 * 60
	perDay := s.d.StepsPerDay()
	for i := 0; i < len(s.load); {
		t := s.time(i)
		_, offset := t.Zone()
		local := t.Unix() + int64(offset)
		next := time.Date(t.Year(), t.Month(), t.Day()+1, 0, 0, 0, 0, s.d.Clock).Unix()
		number := int(math.Floor(float64(local) / day))
		// Steps need not start at midnight. A step belongs to the day in which it starts. If
		// clocks are put forward at midnight, that day has no midnight. Date may then return a
		// time an hour earlier, which splits the previous day in two.
		n := int((next - t.Unix() + s.d.Seconds() - 1) / s.d.Seconds())
		end := min(i+max(n, 1), len(s.load))
		_, later := s.time(end - 1).Zone()
		s.days = append(s.days, localDay{
			number: number, first: i, end: end, slot: int((local - int64(number)*day) / s.d.Seconds()),
			whole: end-i == perDay && offset == later,
		})
		i = end
	}
}

// findRows adds findings about the faulty rows in the meter's file.
func (s *subject) findRows() {
	f := s.report.Rows
	many := func(n int) Severity {
		if float64(n) > rowsProblem*float64(f.Rows) {
			return Problem
		}
		return Warning
	}
	for _, x := range []struct {
		code     Code
		severity Severity
		n        int
		message  string
	}{
		{codeDuplicates, Info, f.Duplicates, "%d of %d rows repeat an earlier row."},
		{codeConflicts, many(f.Conflicts), f.Conflicts, "%d of %d rows contradict an earlier row with the same time."},
		{codeOutOfOrder, Info, f.OutOfOrder, "%d of %d rows are not in chronological order."},
		{codeOffGrid, many(f.OffGrid), f.OffGrid, "%d of %d rows are between two steps and were dropped."},
		{codeNonexistent, Warning, f.Nonexistent, "%d of %d rows have a time that the clock skips in spring and were dropped."},
	} {
		if x.n > 0 {
			s.find(x.code, x.severity, x.n, 0, nil, x.message, x.n, f.Rows)
		}
	}
}

func (s *subject) findGaps() {
	g, missing := s.report.Gaps, 1-s.report.Coverage
	if g.Count == 0 {
		return
	}
	severity := Info
	if missing > gapsProblem {
		severity = Problem
	} else if missing > gapsWarning {
		severity = Warning
	}
	var top topPlaces
	s.eachRun(func(i int) bool { return series.Missing(s.load[i]) }, func(first, n int) {
		top.add(Where{Time: s.time(first), Steps: n}, float64(n))
	})
	s.find(codeGaps, severity, g.Count, g.Steps, top.inOrder(), "%s of the steps are missing, in %s; the longest is %s from %s.",
		percent(missing), textfmt.Count(g.Count, "gap"), s.duration(g.Longest), stamp(g.LongestAt))
}

// eachRun calls f for every run of consecutive steps for which in returns true.
func (s *subject) eachRun(in func(i int) bool, f func(first, n int)) {
	for i := 0; i < len(s.load); i++ {
		if !in(i) {
			continue
		}
		first := i
		for i < len(s.load) && in(i) {
			i++
		}
		f(first, i-first)
	}
}

// eachEqual calls f for every run of consecutive equal values, including runs of length 1.
func (s *subject) eachEqual(f func(first, n int)) {
	for i := 0; i < len(s.load); {
		first := i
		for i++; i < len(s.load) && s.load[i] == s.load[first]; i++ {
		}
		if !series.Missing(s.load[first]) {
			f(first, i-first)
		}
	}
}

// largest returns the largest Size of the places.
func largest(where []Where) float64 {
	v := math.Inf(-1)
	for _, w := range where {
		v = max(v, w.Size)
	}
	return v
}

// areMany formats a count as the start of a sentence, such as "1 value is" or "2 values
// are".
func areMany(n int, noun string) string {
	if n == 1 {
		return "1 " + noun + " is"
	}
	return textfmt.Count(n, noun) + " are"
}

// isAre formats a count for use after "there", such as "is 1 jump" or "are 2 jumps".
func isAre(n int, noun string) string {
	if n == 1 {
		return "is 1 " + noun
	}
	return "are " + textfmt.Count(n, noun)
}
