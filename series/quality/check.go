// Package quality checks load series before they are trained on: gaps, zeros that are
// gaps, flat lines, spikes, dropouts, jumps of level and unit, shifted clocks, too
// little data. Each finding has a stable code, a severity, and a sentence that says
// what to do.
//
// A [Checker] goes through a dataset meter by meter; a report has a constant size,
// so memory does not grow with the length of the series.
package quality

import (
	"fmt"
	"math"
	"slices"
	"time"

	"loadstar/series"
)

// Severity says how much a finding matters.
type Severity int

// The severities, from harmless to grave.
const (
	Info    Severity = iota // worth knowing, nothing to do
	Warning                 // look at it before training
	Problem                 // do not train on it as it is
)

// String returns info, warning or problem.
func (s Severity) String() string { return [...]string{"info", "warning", "problem"}[s] }

// MarshalText writes the severity as String does.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Code names a kind of finding. Codes are stable: scripts may rely on them.
type Code string

const (
	codeEmpty       Code = "empty"
	codeConstant    Code = "constant"
	codeTooShort    Code = "too-short"
	codeUnderAYear  Code = "under-a-year"
	codeGaps        Code = "gaps"
	codeDuplicates  Code = "duplicates"
	codeConflicts   Code = "conflicts"
	codeOutOfOrder  Code = "out-of-order"
	codeOffGrid     Code = "off-grid"
	codeNonexistent Code = "nonexistent"
	codeNegatives   Code = "negatives"
	codeZeros       Code = "zeros"
	codeZerosAsGaps Code = "zeros-as-gaps"
	codeDropouts    Code = "dropouts"
	codeRepeats     Code = "repeats"
	codeFlat        Code = "flat"
	codeSpikes      Code = "spikes"
	codeClipped     Code = "clipped"
	codeCatchUp     Code = "catch-up"
	codeBeat        Code = "beat"
	codeUnitJump    Code = "unit-jump"
	codeLevelJump   Code = "level-jump"
	codeClockShift  Code = "clock-shift"
	codeClockChange Code = "clock-change"
	codeYearStart   Code = "year-start"
	codeMonthStart  Code = "month-start"

	// Of fleets only.
	codeSharedGaps Code = "shared-gaps"
	codeSharedFlat Code = "shared-flat"
	codeScale      Code = "scale"
	codeTwins      Code = "twins"
	codeWeather    Code = "weather"
)

// CodeInfo says what a code means and what can be done about such a finding.
type CodeInfo struct {
	Code            Code
	Meaning, Advice string
}

var codes = []CodeInfo{
	{codeEmpty, "there is no reading at all", "leave the meter out"},
	{codeConstant, "every reading is the same", "leave the meter out: there is nothing to learn"},
	{codeTooShort, "too few training windows for the plan", "leave the meter out, or shorten lookback and horizon"},
	{codeUnderAYear, "not every season has been seen", "expect larger errors in the seasons that are missing"},
	{codeGaps, "steps without a reading", "windows with a gap are left out by themselves; do not fill gaps with numbers"},
	{codeDuplicates, "rows that say again what a row before said", "nothing: the first row counts"},
	{codeConflicts, "rows that contradict a row before", "export only the row that is right; until then the first counts"},
	{codeOutOfOrder, "rows that are earlier than the row above them", "nothing: rows are put in order"},
	{codeOffGrid, "rows between two steps, which are dropped", "check interval in dataset.yaml"},
	{codeNonexistent, "rows in the hour that clocks skip, which are dropped", "if the labels run on through the year, say clock: standard"},
	{codeNegatives, "values below zero", "keep them if the meter feeds in (solar); otherwise check the sign"},
	{codeZeros, "zeros that may be real", "find out whether a missing reading is written as 0"},
	{codeZerosAsGaps, "zeros where the meter is not near zero, or for days on end", "export missing readings as empty; leave out the time when a building was off"},
	{codeDropouts, "values far below the daily minimum", "export them as empty if the building was not switched off"},
	{codeRepeats, "many values equal the one before", "nothing, if the meter counts in coarse steps"},
	{codeFlat, "long runs of one value, stuck or filled in", "export stuck or filled readings as empty"},
	{codeSpikes, "single values far above all others", "export them as empty: a scale that reaches them squeezes all else"},
	{codeClipped, "the largest value is a limit", "find out what clips: the true load was another"},
	{codeCatchUp, "a high value right after a gap, which holds the energy of the gap", "export it as empty"},
	{codeBeat, "every few steps a value holds one reading more than the others", "export at the logger's own interval, or the register to be differenced"},
	{codeUnitJump, "from one day on low and high values are a factor larger", "check unit and transformer ratio on both sides, and rescale one"},
	{codeLevelJump, "from one day on the level is another, and stays", "train on the time after it, if it will stay so"},
	{codeClockShift, "from one day on the load of the whole day comes hours later or earlier", "check zone and clock in dataset.yaml, or mend the labels"},
	{codeClockChange, "the hour that legal clocks skip or repeat is in the labels, and odd", "the labels follow the legal clock: say clock: legal, and check stamp"},
	{codeYearStart, "the first step of the year is odd", "export it as empty, or mend how years are joined"},
	{codeMonthStart, "the first step of the month is odd", "export it as empty, or mend how months are joined"},
	{codeSharedGaps, "most meters are missing at once", "look at what collects the readings, not at the meters"},
	{codeSharedFlat, "many meters are flat at once", "look at what collects the readings: it filled a gap with one value"},
	{codeScale, "some meters are hundreds of times larger or smaller than most", "check their unit"},
	{codeTwins, "some meters have the same readings", "keep one of them"},
	{codeWeather, "weather is missing for some steps", "windows that use this column are left out there"},
}

// Codes returns all codes with their meaning.
func Codes() []CodeInfo { return slices.Clone(codes) }

func (c Code) advice() string {
	for _, x := range codes {
		if x.Code == c {
			return x.Advice
		}
	}
	return ""
}

// Finding is something that a check found.
type Finding struct {
	Code     Code     `json:"code"`
	Severity Severity `json:"severity"`
	// Count is how many times it was found: gaps, flat lines, jumps, odd rows;
	// for values that are counted one by one it is the same as Steps.
	Count int `json:"count"`
	// Steps is how many steps it covers, where it covers any.
	Steps int `json:"steps,omitempty"`
	// Where holds up to maxWhere places: the longest or largest ones, in order
	// of time.
	Where []Where `json:"where,omitempty"`
	// Message is a sentence about it, Advice what can be done.
	Message string `json:"message"`
	Advice  string `json:"advice"`
}

// Where is the place of a finding.
type Where struct {
	Time  time.Time `json:"time"` // on the dataset's clock
	Steps int       `json:"steps,omitempty"`
	// Size is the value in kW (spikes, catch-up, flat, dropouts), the factor to
	// what was before or beside it (unit-jump, level-jump, year-start,
	// month-start, clock-change), or the hours by which the load comes later
	// (clock-shift; of a fleet it is the share of its meters that move).
	Size float64 `json:"size,omitempty"`
}

// Runs sums up runs of steps.
type Runs struct {
	Count   int `json:"count"`
	Steps   int `json:"steps"`
	Longest int `json:"longest"` // in steps
	// LongestAt is the start of the longest, the first of them if there are more.
	LongestAt time.Time `json:"longest_at,omitzero"`
}

// Level describes how large a meter's values are, in kW.
type Level struct {
	Mean   float64 `json:"mean"`
	P05    float64 `json:"p05"`
	Median float64 `json:"median"`
	P99    float64 `json:"p99"`
	Max    float64 `json:"max"`
}

// MeterReport is what a check found out about one meter. Its size does not grow
// with the length of the series.
type MeterReport struct {
	ID string `json:"meter"`
	// From is the start of the first reading, To the end of the last.
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
	// Steps between From and To, how many of them have a reading, and the share.
	Steps    int     `json:"steps"`
	Present  int     `json:"present"`
	Coverage float64 `json:"coverage"`
	Gaps     Runs    `json:"gaps"`
	// Rows is what was wrong with the rows of the file.
	Rows      series.Faults `json:"rows"`
	Negatives int           `json:"negatives"`
	Zeros     int           `json:"zeros"`
	Repeats   float64       `json:"repeat_share"` // share of steps equal to the one before
	Flat      Runs          `json:"flat"`
	Level     Level         `json:"level"`
	// Windows is how many training windows the plan gets out of the meter.
	Windows  int       `json:"windows"`
	Findings []Finding `json:"findings"`
	// Missing is the share of missing steps in each cell of the fleet's span, -1
	// where the meter has not begun yet or has ended.
	Missing []float64 `json:"missing"`
}

// Worst returns the gravest severity among the findings; Info if there is none.
func (r *MeterReport) Worst() Severity { return worst(r.Findings) }

func worst(findings []Finding) Severity {
	w := Info
	for _, f := range findings {
		w = max(w, f.Severity)
	}
	return w
}

// CodeCount is how many meters have a finding, by its severity.
type CodeCount struct {
	Code     Code   `json:"code"`
	Problems int    `json:"problems"`
	Warnings int    `json:"warnings"`
	Infos    int    `json:"infos"`
	Meter    string `json:"meter"`   // one of the worst, as an example
	Message  string `json:"message"` // its message
	Advice   string `json:"advice"`

	severity Severity
	size     int
}

// Meters returns how many meters have the finding.
func (c CodeCount) Meters() int { return c.Problems + c.Warnings + c.Infos }

// WeatherColumn says how much of a weather column there is over the fleet's span.
type WeatherColumn struct {
	Name    string `json:"name"`
	Steps   int    `json:"steps"`
	Missing int    `json:"missing"`
}

// FleetReport sums up a fleet.
type FleetReport struct {
	Meters    int           `json:"meters"`
	From      time.Time     `json:"from,omitzero"`
	To        time.Time     `json:"to,omitzero"`
	Steps     int           `json:"steps"`
	Present   int           `json:"present"`
	Coverage  float64       `json:"coverage"`
	Gaps      Runs          `json:"gaps"`
	Rows      series.Faults `json:"rows"`
	Negatives int           `json:"negatives"`
	Zeros     int           `json:"zeros"`
	Flat      Runs          `json:"flat"`
	Windows   int           `json:"windows"`
	// Problems and Warnings count meters by their worst finding.
	Problems int `json:"problems"`
	Warnings int `json:"warnings"`
	// Codes are in order of severity, then of the number of meters.
	Codes []CodeCount `json:"codes"`
	// Findings are those that only the fleet as a whole shows.
	Findings []Finding       `json:"findings"`
	Weather  []WeatherColumn `json:"weather"`
	// Missing is the share of missing steps in each cell of the span, over the
	// meters that have begun and not ended; -1 where there is none.
	Missing []float64 `json:"missing"`
}

// Worst returns the gravest severity among the findings of the meters and the
// fleet.
func (r *FleetReport) Worst() Severity {
	w := worst(r.Findings)
	if r.Problems > 0 {
		return Problem
	}
	if r.Warnings > 0 {
		w = max(w, Warning)
	}
	return w
}

// maxWhere bounds the places of a finding, so that a report has a constant size.
const maxWhere = 5

// CheckPlan is what the data shall be good for.
type Plan struct {
	// Lookback and Horizon are those of the windows, in steps.
	Lookback, Horizon int
	// MinDays is the least that a meter must offer for training: so many days'
	// worth of windows.
	MinDays int
	// Cells is into how many cells Missing divides the fleet's span.
	Cells int
}

// Checker examines the meters of a dataset one by one, and keeps of each only what
// the fleet's report needs. It is not safe for concurrent use.
type Checker struct {
	d      *series.Dataset
	plan   Plan
	framer *series.Framer
	from   int64
	to     int64
	zone   *time.Location // whose daylight saving the meters' owners live by, or nil

	subject subject
	fleet   FleetReport
	codes   map[Code]*CodeCount
	votes   []clockVotes
	moves   map[int]int // how many meters have a clear shift on a day, by its number
	shared  *sharedDays
	cells   struct{ missing, steps []int }
	medians []meterMedian
	digests map[uint64][]string // meters by what they read
}

type meterMedian struct {
	id     string
	median float64
}

// NewChecker returns a checker that has not examined anything yet.
func NewChecker(d *series.Dataset, plan Plan) (*Checker, error) {
	if plan.MinDays < 0 || plan.Cells < 1 {
		return nil, fmt.Errorf("a check with %d cells and at least %d days is none: cells are 1 or more, days 0 or more", plan.Cells, plan.MinDays)
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

// Meter examines meter number i and adds it to the fleet.
func (c *Checker) Meter(i int) MeterReport {
	m := c.d.Meter(i)
	r := MeterReport{ID: m.ID, Rows: m.Faults, Findings: []Finding{}}
	r.Windows = c.framer.Windows(m, nil).Len(series.Train)
	s := &c.subject
	s.reset(c.d, m, &r)
	s.findRows()
	if len(s.load) == 0 {
		s.find(codeEmpty, Problem, 1, 0, nil, "There is not a single reading.")
	} else {
		s.scan()
		s.findGaps()
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

// findShort compares what a meter offers with what the plan asks for.
func (c *Checker) findShort(s *subject) {
	r := s.report
	days := float64(r.Windows) / float64(c.d.StepsPerDay())
	switch {
	case r.Windows < max(1, c.plan.MinDays*c.d.StepsPerDay()):
		s.find(codeTooShort, Problem, 1, 0, nil, "With a lookback of %d and a horizon of %d only %d training windows are left, %.1f days' worth; the plan wants %d days.",
			c.plan.Lookback, c.plan.Horizon, r.Windows, days, c.plan.MinDays)
	case r.Present < yearDays*c.d.StepsPerDay()*9/10:
		s.find(codeUnderAYear, Info, 1, 0, nil, "There are readings for %s, less than a year.", s.duration(r.Present))
	}
}

// yearDays is how many days make a year; readings of nine tenths of them have
// seen all seasons.
const yearDays = 365

// addCells fills the cells of a meter and adds them to the fleet's.
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

// shares returns part/whole, -1 where whole is 0.
func shares(part, whole []int) []float64 {
	out := make([]float64, len(part))
	for i := range part {
		out[i] = -1
		switch {
		case whole[i] == 0:
		case part[i] == 0 || part[i] == whole[i]:
			out[i] = float64(part[i] / whole[i])
		default:
			// Three decimals are plenty for a picture; some is not none, nor all.
			out[i] = min(max(math.Round(1000*float64(part[i])/float64(whole[i])), 1), 999) / 1000
		}
	}
	return out
}

// add sums a meter up.
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
	switch r.Worst() {
	case Problem:
		f.Problems++
	case Warning:
		f.Warnings++
	}
	for i, x := range r.Findings {
		// A meter counts once, with the worst: findings are in that order.
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

// count adds a meter's finding to those of the same code.
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

func (r *Runs) add(o Runs) {
	r.Count += o.Count
	r.Steps += o.Steps
	if o.Longest > r.Longest {
		r.Longest, r.LongestAt = o.Longest, o.LongestAt
	}
}

// Fleet reports on the meters that were examined.
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
