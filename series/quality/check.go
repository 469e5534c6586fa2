// Package quality checks load series for problems before training: gaps, zeros in place of
// gaps, flat lines, spikes, dropouts, jumps of level and unit, shifted clocks, and too little
// data. Each finding has a stable code, a severity, a message and advice.
//
// A [Checker] examines a dataset one meter at a time. Reports have a bounded size, so memory
// does not grow with the length of the series. [PrintFleet] and [PrintMeter] print a [Report]
// for a terminal, with tables of findings and meters and a chart of the gaps.
package quality

import (
	"fmt"
	"math"
	"slices"
	"time"

	"loadstar/series"
)

// Plan describes the training for which the data must be good enough.
type Plan struct {
	// Lookback and Horizon describe the training windows, in steps.
	Lookback, Horizon int
	// MinDays is the minimum number of training windows that a meter must have,
	// expressed in days.
	MinDays int
	// Cells is the number of equal parts into which MeterReport.Missing and FleetReport.Missing
	// divide the fleet's span.
	Cells int
}

// Checker examines the meters of a dataset one at a time. For each meter, it stores only the
// data that the fleet report needs. It is not safe for concurrent use.
type Checker struct {
	d      *series.Dataset
	plan   Plan
	framer *series.Framer
	from   int64
	to     int64
	zone   *time.Location // the legal time of the meters' owners, or nil if unknown

	subject subject
	fleet   FleetReport
	codes   map[Code]*CodeCount
	votes   []clockVotes
	moves   map[int]int // the number of meters with a clear clock shift, by day number
	shared  *sharedDays
	cells   struct{ missing, steps []int }
	medians []meterMedian
	digests map[uint64][]string // meter IDs by the digest of their readings
}

type meterMedian struct {
	id     string
	median float64
}

// NewChecker returns a checker that has not yet examined any meter.
func NewChecker(d *series.Dataset, plan Plan) (*Checker, error) {
	if plan.MinDays < 0 || plan.Cells < 1 {
		return nil, fmt.Errorf("a check needs at least 1 cell and at least 0 days, not %d cells and %d days", plan.Cells, plan.MinDays)
	}
	f, err := series.NewFramer(d, series.Layout{Lookback: plan.Lookback, Horizon: plan.Horizon, Targets: 1, Inputs: []series.Input{{Name: "load"}}}, series.DefaultSplit)
	if err != nil {
		return nil, err
	}
	c := &Checker{d: d, plan: plan, framer: f, codes: map[Code]*CodeCount{}, digests: map[uint64][]string{}, moves: map[int]int{}, zone: legalZone(d.Clock)}
	c.from, c.to = d.Span()
	c.votes = newClockVotes(c.zone, c.from, c.to)
	c.shared = newSharedDays(c.from, c.to)
	c.cells.missing, c.cells.steps = make([]int, plan.Cells), make([]int, plan.Cells)
	return c, nil
}

// Meter examines meter i, adds it to the fleet report, and returns the report on the meter.
func (c *Checker) Meter(i int) MeterReport {
	m := c.d.Meter(i)
	r := MeterReport{ID: m.ID, Rows: m.Faults, Findings: []Finding{}}
	impossible := series.Impossible(m.Load, c.d.StepsPerDay())
	used := m
	if len(impossible) > 0 {
		used = m.Without(impossible) // training omits them, too
	}
	r.Windows = c.framer.Windows(used, nil).Len(series.Train)
	r.WindowsLost = max(c.framer.Train(m)-c.plan.Lookback-c.plan.Horizon+1, 0) - r.Windows
	s := &c.subject
	s.reset(c.d, m, impossible, &r)
	s.findRows()
	if len(s.load) == 0 {
		s.find(codeEmpty, Problem, 1, 0, nil, "The meter has no readings.")
	} else {
		s.scan()
		s.findGaps()
		s.findImpossible()
		if s.sorted[0] == s.sorted[len(s.sorted)-1] {
			s.find(codeConstant, Problem, 1, r.Present, nil, "Every reading is %s kW.", short(r.Level.Median))
		} else {
			s.findNegatives()
			s.findFlat()
			s.findLow()
			s.findSpikes()
			s.findBeat()
			s.findJumps()
			s.findClockShifts(c.zone)
			s.findCalendar(c.zone)
		}
		c.findShort(s)
	}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return int(b.Severity - a.Severity) })
	c.addCells(s, &r)
	c.add(s, &r)
	return r
}

// findShort checks whether a meter has enough windows for the plan.
func (c *Checker) findShort(s *subject) {
	r := s.report
	days := float64(r.Windows) / float64(c.d.StepsPerDay())
	switch {
	case r.Windows < max(1, c.plan.MinDays*c.d.StepsPerDay()):
		s.find(codeTooShort, Problem, 1, 0, nil, "A lookback of %d and a horizon of %d leave only %d training windows, %.1f days' worth; the plan requires %d days.",
			c.plan.Lookback, c.plan.Horizon, r.Windows, days, c.plan.MinDays)
	case r.Present < yearDays*c.d.StepsPerDay()*9/10:
		s.find(codeUnderAYear, Info, 1, 0, nil, "The readings cover %s, less than a year.", s.duration(r.Present))
	}
}

// yearDays is the length of a year. Readings for nine tenths of a year are taken to cover all
// seasons.
const yearDays = 365

// addCells computes the share of missing steps in each cell of a meter's report. It adds
// the meter's steps to the cells of the fleet's report.
func (c *Checker) addCells(s *subject, r *MeterReport) {
	n := c.plan.Cells
	missing, steps := make([]int, n), make([]int, n)
	total := float64(c.to - c.from)
	for i, v := range s.load {
		at := float64(s.start+int64(i)*c.d.Seconds()-c.from) / total
		cell := min(int(at*float64(n)), n-1)
		steps[cell]++
		if series.Missing(v) {
			missing[cell]++
		}
	}
	r.Missing = shares(missing, steps)
	for i := range missing {
		c.cells.missing[i] += missing[i]
		c.cells.steps[i] += steps[i]
	}
}

// shares returns part/whole for each cell, or -1 where whole is 0.
func shares(part, whole []int) []float64 {
	out := make([]float64, len(part))
	for i := range part {
		out[i] = -1
		switch {
		case whole[i] == 0:
		case part[i] == 0 || part[i] == whole[i]:
			out[i] = float64(part[i] / whole[i])
		default:
			// Three decimals are enough for a chart. Rounding must not turn a partly
			// missing cell into 0 or 1.
			out[i] = min(max(math.Round(1000*float64(part[i])/float64(whole[i])), 1), 999) / 1000
		}
	}
	return out
}

func (c *Checker) add(s *subject, r *MeterReport) {
	f := &c.fleet
	f.Meters++
	if r.Steps > 0 {
		if f.From.IsZero() || r.From.Before(f.From) {
			f.From = r.From
		}
		if r.To.After(f.To) {
			f.To = r.To
		}
	}
	f.Steps += r.Steps
	f.Present += r.Present
	f.Gaps.add(r.Gaps)
	f.Flat.add(r.Flat)
	f.Rows.Add(r.Rows)
	f.Negatives += r.Negatives
	f.Zeros += r.Zeros
	f.Windows += r.Windows
	f.WindowsLost += r.WindowsLost
	switch r.Worst() {
	case Problem:
		f.Problems++
	case Warning:
		f.Warnings++
	}
	for i, x := range r.Findings {
		// Count a meter once per code, with its worst finding. Findings are sorted with the worst
		// first.
		if slices.ContainsFunc(r.Findings[:i], func(o Finding) bool { return o.Code == x.Code }) {
			continue
		}
		c.count(r.ID, x)
	}
	if r.Present > 0 {
		c.medians = append(c.medians, meterMedian{r.ID, r.Level.Median})
		key := digest(s.start, s.load)
		c.digests[key] = append(c.digests[key], r.ID)
		c.shared.add(s)
		for i := range c.votes {
			c.votes[i].add(s)
		}
		for _, x := range s.moves {
			c.moves[s.days[x.day].number]++
		}
	}
}

// count adds a meter's finding to the counts of the finding's code.
func (c *Checker) count(id string, x Finding) {
	k := c.codes[x.Code]
	if k == nil {
		k = &CodeCount{Code: x.Code, Advice: x.Advice, severity: -1}
		c.codes[x.Code] = k
	}
	switch x.Severity {
	case Problem:
		k.Problems++
	case Warning:
		k.Warnings++
	default:
		k.Infos++
	}
	if size := max(x.Steps, x.Count); x.Severity > k.severity || x.Severity == k.severity && size > k.size {
		k.severity, k.size, k.Meter, k.Message = x.Severity, size, id, x.Message
	}
}

// Fleet returns the report on all meters examined so far.
func (c *Checker) Fleet() FleetReport {
	f := c.fleet
	if f.Steps > 0 {
		f.Coverage = float64(f.Present) / float64(f.Steps)
	}
	f.Missing = shares(c.cells.missing, c.cells.steps)
	f.Codes = []CodeCount{}
	for _, k := range c.codes {
		f.Codes = append(f.Codes, *k)
	}
	slices.SortFunc(f.Codes, func(a, b CodeCount) int {
		if a.severity != b.severity {
			return int(b.severity - a.severity)
		}
		if a.Meters() != b.Meters() {
			return b.Meters() - a.Meters()
		}
		if a.Code < b.Code {
			return -1
		}
		return 1
	})
	f.Findings = []Finding{}
	f.Weather = c.weather()
	c.findFleet(&f)
	slices.SortStableFunc(f.Findings, func(a, b Finding) int { return int(b.Severity - a.Severity) })
	return f
}
