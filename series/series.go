// Package series holds load series and what is made of them: calendar, windows,
// splits and scaling.
//
// A [Dataset] is a fleet of meters on one regular grid of time. Time is UTC inside,
// as Unix seconds of the start of an interval; the clock that the meters' owners
// live by is kept beside it, for calendar features and for lags, which are the same
// clock time on an earlier day. Load is mean power in kW, NaN where it is missing.
//
// A dataset lies in memory, or in a prepared file that is mapped and paged in as it
// is used, so that a fleet may be larger than memory.
package series

import (
	"fmt"
	"time"
)

// Dataset is a fleet of meters with the same interval and clock. It is immutable
// once made, and safe for concurrent use.
type Dataset struct {
	Name string
	// Generated says that no meter ever measured this. It must show wherever
	// something is printed or drawn from the data.
	Generated bool
	// Interval is the length of a step.
	Interval time.Duration
	// Clock is the local time of the meters: a zone with its daylight saving, or
	// a fixed offset where the labels ran on without it.
	Clock *time.Location
	// Weather may be empty.
	Weather Weather
	// StaticNames names the numbers that every meter has, such as floor_area.
	StaticNames []string

	meters []Meter
	file   *preparedFile
}

// Meter is one client's series. The caller must not change it.
type Meter struct {
	ID string
	// Start is the Unix time of step 0.
	Start int64
	// Load is the mean power of each step in kW, NaN where it is missing.
	Load []float32
	// Static are the numbers that Dataset.StaticNames names, NaN where unknown.
	Static []float32
	// Faults is what was wrong with the rows that the series came from.
	Faults Faults
}

// Faults counts what a reader met in a meter's rows and did not pass over in
// silence. The first value of a time is kept, later ones are not.
type Faults struct {
	Rows        int `json:"rows"`
	Duplicates  int `json:"duplicates"`   // rows for a time that already had the same value
	Conflicts   int `json:"conflicts"`    // rows for a time that already had another value
	OutOfOrder  int `json:"out_of_order"` // rows before the row above them
	OffGrid     int `json:"off_grid"`     // rows between two steps, dropped
	Nonexistent int `json:"nonexistent"`  // rows in the hour that daylight saving leaves out, dropped
}

// Add counts another meter's faults too.
func (f *Faults) Add(other Faults) {
	mine, theirs := f.counts(), other.counts()
	for i := range mine {
		*mine[i] += *theirs[i]
	}
}

// Weather is what was measured, or is forecast, for all meters of a dataset, on
// the dataset's interval.
type Weather struct {
	// Start is the Unix time of step 0.
	Start int64
	// Names are the columns' names, such as temperature.
	Names []string
	// Columns have the same length; NaN where missing.
	Columns [][]float32
}

// Column returns the column with the given name, or nil.
func (w Weather) Column(name string) []float32 {
	for i, n := range w.Names {
		if n == name {
			return w.Columns[i]
		}
	}
	return nil
}

// NewDataset returns a dataset of meters in memory. It takes the slice over.
func NewDataset(d Dataset, meters []Meter) (*Dataset, error) {
	if d.Interval < time.Second || d.Interval%time.Second != 0 || 24*time.Hour%d.Interval != 0 {
		return nil, fmt.Errorf("interval %s does not divide a day into whole seconds", d.Interval)
	}
	if d.Clock == nil {
		return nil, fmt.Errorf("dataset %s has no clock", d.Name)
	}
	seen := make(map[string]bool, len(meters))
	for _, m := range meters {
		switch {
		case seen[m.ID]:
			return nil, fmt.Errorf("two meters are named %s", m.ID)
		case len(m.Static) != len(d.StaticNames):
			return nil, fmt.Errorf("meter %s has %d static values, the dataset names %d", m.ID, len(m.Static), len(d.StaticNames))
		}
		seen[m.ID] = true
	}
	d.meters = meters
	return &d, nil
}

// Len returns the number of meters.
func (d *Dataset) Len() int {
	if d.file != nil {
		return d.file.len()
	}
	return len(d.meters)
}

// Meter returns meter number i. Of a prepared dataset only its load is not in
// memory yet, and is paged in as it is read.
func (d *Dataset) Meter(i int) Meter {
	if d.file != nil {
		return d.file.meter(i)
	}
	return d.meters[i]
}

// StepsPerDay returns how many steps a day without a change of the clock has.
func (d *Dataset) StepsPerDay() int { return int(24 * time.Hour / d.Interval) }

// First returns the first n meters as a dataset of their own.
func (d *Dataset) First(n int) (*Dataset, error) {
	return d.only(func(i int) bool { return i < n })
}

// Part returns part k of n as a dataset of its own, counted from 1: every n-th meter.
func (d *Dataset) Part(k, n int) (*Dataset, error) {
	if k < 1 || k > n {
		return nil, fmt.Errorf("part %d of %d is none", k, n)
	}
	return d.only(func(i int) bool { return i%n == k-1 })
}

func (d *Dataset) only(which func(i int) bool) (*Dataset, error) {
	var meters []Meter
	for i := range d.Len() {
		if which(i) {
			meters = append(meters, d.Meter(i))
		}
	}
	part := *d
	part.file = nil // the meters' loads still lie there
	return NewDataset(part, meters)
}

// Seconds returns the interval in seconds.
func (d *Dataset) Seconds() int64 { return int64(d.Interval / time.Second) }

// Time returns the start of step i of a series that starts at start, on the
// dataset's clock.
func (d *Dataset) Time(start int64, i int) time.Time {
	return time.Unix(start+int64(i)*d.Seconds(), 0).In(d.Clock)
}

// Span returns the first and the last step's end over all meters, in Unix seconds;
// both 0 if there is no reading.
func (d *Dataset) Span() (from, to int64) {
	if d.file != nil {
		return d.file.span()
	}
	first := true
	for _, m := range d.meters {
		if len(m.Load) == 0 {
			continue
		}
		end := m.Start + int64(len(m.Load))*d.Seconds()
		if first || m.Start < from {
			from = m.Start
		}
		if first || end > to {
			to = end
		}
		first = false
	}
	return from, to
}

// Missing says whether a value is missing.
func Missing(v float32) bool { return v != v }

// StandardTime returns a zone's offset without daylight saving as a clock: for
// labels that run on through the year.
func StandardTime(zone *time.Location) *time.Location {
	// The smaller of the offsets in January and July is the standard one, in both
	// hemispheres and wherever daylight saving moves clocks forward.
	_, january := time.Date(2018, 1, 1, 0, 0, 0, 0, zone).Zone()
	_, july := time.Date(2018, 7, 1, 0, 0, 0, 0, zone).Zone()
	return time.FixedZone(zone.String()+" standard time", min(january, july))
}
