package quality

import (
	"time"

	"loadstar/series"
)

// Severity states how serious a finding is.
type Severity int

// These are the severities in ascending order.
const (
	Info    Severity = iota // no action needed
	Warning                 // review before training
	Problem                 // do not train on this data unchanged
)

// String returns info, warning or problem.
func (s Severity) String() string { return [...]string{"info", "warning", "problem"}[s] }

// MarshalText returns the same string as String.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Finding is one result of a check.
type Finding struct {
	Code     Code     `json:"code"`
	Severity Severity `json:"severity"`
	// Count is the number of occurrences: gaps, flat lines, jumps or faulty rows. For
	// findings about individual values it equals Steps.
	Count int `json:"count"`
	// Steps is the number of steps that the finding covers, if it covers any.
	Steps int `json:"steps,omitempty"`
	// Where lists the longest or largest occurrences, at most 5, in chronological order.
	Where []Where `json:"where,omitempty"`
	// Message describes the finding. Advice states what to do about it.
	Message string `json:"message"`
	Advice  string `json:"advice"`
}

// Where is one place at which a finding occurs.
type Where struct {
	Time  time.Time `json:"time"` // on the dataset's clock
	Steps int       `json:"steps,omitempty"`
	// Size is the value in kW (spikes, catch-up, flat, dropouts), the ratio to the earlier or
	// neighbouring values (unit-jump, level-jump, year-start, month-start, clock-change), or the
	// delay of the load in hours (clock-shift). For clock-shift in a fleet report, it is the
	// share of meters that shift.
	Size float64 `json:"size,omitempty"`
}

// Runs summarises runs of consecutive steps, such as gaps or flat lines.
type Runs struct {
	Count   int `json:"count"`
	Steps   int `json:"steps"`
	Longest int `json:"longest"` // in steps
	// LongestAt is the start of the longest run, or of the first of several equally long runs.
	LongestAt time.Time `json:"longest_at,omitzero"`
}

// Level summarises the distribution of a meter's values, in kW.
type Level struct {
	Mean   float64 `json:"mean"`
	P05    float64 `json:"p05"`
	Median float64 `json:"median"`
	P99    float64 `json:"p99"`
	Max    float64 `json:"max"`
}

// MeterReport is the result of checking one meter. Its size does not grow with the
// length of the series.
type MeterReport struct {
	ID string `json:"meter"`
	// From is the start of the first reading, and To is the end of the last reading.
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
	// Steps is the number of steps between From and To. Present is the number of these
	// steps that have a reading, and Coverage is Present divided by Steps.
	Steps    int     `json:"steps"`
	Present  int     `json:"present"`
	Coverage float64 `json:"coverage"`
	Gaps     Runs    `json:"gaps"`
	// Rows counts the faulty rows in the meter's file.
	Rows      series.Faults `json:"rows"`
	Negatives int           `json:"negatives"`
	Zeros     int           `json:"zeros"`
	Repeats   float64       `json:"repeat_share"` // share of readings equal to the previous reading
	Flat      Runs          `json:"flat"`
	Level     Level         `json:"level"`
	// Windows is the number of training windows that the meter's readings yield with the plan.
	// WindowsLost is the number of windows that are lost because readings are missing.
	Windows     int       `json:"windows"`
	WindowsLost int       `json:"windows_lost"`
	Findings    []Finding `json:"findings"`
	// Missing is the share of missing steps in each cell of the fleet's span. It is -1 for
	// cells before the meter's first reading or after its last.
	Missing []float64 `json:"missing"`
}

// Worst returns the highest severity of the findings, or Info if there are none.
func (r *MeterReport) Worst() Severity { return worst(r.Findings) }

func worst(findings []Finding) Severity {
	w := Info
	for _, f := range findings {
		w = max(w, f.Severity)
	}
	return w
}

// CodeCount counts the meters that have a finding with the same code, by severity.
type CodeCount struct {
	Code     Code   `json:"code"`
	Problems int    `json:"problems"`
	Warnings int    `json:"warnings"`
	Infos    int    `json:"infos"`
	Meter    string `json:"meter"`   // one of the worst meters, as an example
	Message  string `json:"message"` // the message of that meter's finding
	Advice   string `json:"advice"`

	severity Severity
	size     int
}

// Meters returns the number of meters that have a finding with this code.
func (c CodeCount) Meters() int { return c.Problems + c.Warnings + c.Infos }

// WeatherColumn reports how many steps of the fleet's span have a value in one weather
// column.
type WeatherColumn struct {
	Name    string `json:"name"`
	Steps   int    `json:"steps"`
	Missing int    `json:"missing"`
}

// FleetReport is the result of checking all meters of a fleet.
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
	// WindowsLost is the number of training windows lost to missing readings.
	WindowsLost int `json:"windows_lost"`
	// Problems is the number of meters whose worst finding is a problem, and Warnings is
	// the number of meters whose worst finding is a warning.
	Problems int `json:"problems"`
	Warnings int `json:"warnings"`
	// Codes are sorted by severity, then by the number of meters.
	Codes []CodeCount `json:"codes"`
	// Findings are the findings that only a comparison of all meters shows.
	Findings []Finding       `json:"findings"`
	Weather  []WeatherColumn `json:"weather"`
	// Missing is the share of missing steps in each cell of the span. It counts only steps
	// between a meter's first and last reading, and is -1 for cells without such steps.
	Missing []float64 `json:"missing"`
}

// Worst returns the highest severity of all findings about the meters and the fleet.
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

// maxWhere is the maximum length of Finding.Where. It bounds the size of a report.
const maxWhere = 5

func (r *Runs) add(o Runs) {
	r.Count += o.Count
	r.Steps += o.Steps
	if o.Longest > r.Longest {
		r.Longest, r.LongestAt = o.Longest, o.LongestAt
	}
}
