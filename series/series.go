// Package series provides load series and the training examples made from them: calendar
// features, windows, splits and scaling.
//
// A [Dataset] is a fleet of meters on one regular time grid. Each time is the start of an
// interval, in Unix seconds. The dataset also has a clock, which is the local time of the
// meters. Calendar features and lags use the clock. A lag refers to the same clock time on an
// earlier day. Load is mean power in kW, or NaN where it is missing.
//
// A dataset is either in memory or in a prepared file. Prepared files are memory-mapped, so
// a fleet can be larger than memory.
package series

import (
	"fmt"
	"hash/fnv"
	"math"
	"strings"
	"time"
)

// Dataset is a fleet of meters with the same interval and clock. It is immutable and safe
// for concurrent use.
type Dataset struct {
	Name string
	// Generated marks synthetic data. Programs must label all output and charts made from such
	// data.
	Generated bool
	// Interval is the length of a step.
	Interval time.Duration
	// Clock is the local time of the meters: a zone with daylight saving, or a fixed offset
	// if the labels do not follow daylight saving.
	Clock *time.Location
	// Country is the ISO 3166 code of the country or region whose public holidays apply, such
	// as GB or AU-NSW. It may be empty.
	Country string
	// Weather may be empty.
	Weather Weather
	// StaticNames names the static values of every meter, such as floor_area.
	StaticNames []string

	meters []Meter
	file   *preparedFile
}

// Meter is one client's series. The caller must not change it.
type Meter struct {
	ID string
	// Start is the Unix time of step 0.
	Start int64
	// Load is the mean power of each step in kW, NaN where missing.
	Load []float32
	// Static contains one value for each of Dataset.StaticNames, or NaN where it is
	// unknown.
	Static []float32
	// Faults counts the faulty rows found when the series was read.
	Faults Faults
}

// Cut returns the meter's steps between two times, given in Unix seconds on the meter's grid.
// Loads before the start and after the end of the series are missing. Seconds is the length of
// a step. The result shares its loads with the meter, unless some are missing at the start or
// the end.
func (m Meter) Cut(from, to, seconds int64) Meter {
	first, n := int((from-m.Start)/seconds), max(int((to-from)/seconds), 0)
	load := m.Load
	m.Start = from
	if first >= 0 && first+n <= len(load) {
		m.Load = load[first : first+n : first+n]
		return m
	}
	m.Load = make([]float32, n)
	for i := range m.Load {
		m.Load[i] = float32(math.NaN())
		if at := first + i; at >= 0 && at < len(load) {
			m.Load[i] = load[at]
		}
	}
	return m
}

// Faults counts the rows of a meter by kind of fault. If several rows have the same time,
// the first one with a value is used.
type Faults struct {
	Rows        int `json:"rows"`
	Duplicates  int `json:"duplicates"`   // rows for a time that already had the same value
	Conflicts   int `json:"conflicts"`    // rows for a time that already had another value
	OutOfOrder  int `json:"out_of_order"` // rows that are earlier than the previous row
	OffGrid     int `json:"off_grid"`     // rows between two steps, dropped
	Nonexistent int `json:"nonexistent"`  // rows in the hour that daylight saving skips, dropped
}

// Add adds another meter's counts to f.
func (f *Faults) Add(other Faults) {
	mine, theirs := f.counts(), other.counts()
	for i := range mine {
		*mine[i] += *theirs[i]
	}
}

// Weather is measured or forecast weather, shared by all meters of a dataset, with the
// dataset's interval.
type Weather struct {
	// Start is the Unix time of step 0.
	Start int64
	// Names are the columns' names, such as temperature.
	Names []string
	// Columns contains the values of each column, NaN where missing. All columns have the same
	// length.
	Columns [][]float32
}

// Column returns the values of the column with the given name, or nil if there is none.
func (w Weather) Column(name string) []float32 {
	for i, n := range w.Names {
		if n == name {
			return w.Columns[i]
		}
	}
	return nil
}

// NewDataset returns a copy of d with the given meters in memory. It takes ownership of
// meters.
func NewDataset(d Dataset, meters []Meter) (*Dataset, error) {
	if d.Interval < time.Second || d.Interval%time.Second != 0 || 24*time.Hour%d.Interval != 0 {
		return nil, fmt.Errorf("interval %s does not divide a day; want whole seconds that divide 24 hours", d.Interval)
	}
	if d.Clock == nil {
		return nil, fmt.Errorf("dataset %s has no clock; set Clock", d.Name)
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

// Meter returns meter i. The load of a prepared dataset is paged in when it is read.
func (d *Dataset) Meter(i int) Meter {
	if d.file != nil {
		return d.file.meter(i)
	}
	return d.meters[i]
}

// StepsPerDay returns the number of steps in 24 hours.
func (d *Dataset) StepsPerDay() int { return int(24 * time.Hour / d.Interval) }

// First returns a dataset that contains only the first n meters.
func (d *Dataset) First(n int) (*Dataset, error) {
	return d.only(func(i int) bool { return i < n })
}

// Part returns a dataset with every n-th meter, starting with meter k. Meters are counted
// from 1.
func (d *Dataset) Part(k, n int) (*Dataset, error) {
	if k < 1 || k > n {
		return nil, fmt.Errorf("part %d of %d does not exist; parts are counted from 1", k, n)
	}
	return d.only(func(i int) bool { return i%n == k-1 })
}

// With returns a dataset that has the given meters in place of its own. It takes ownership
// of meters.
func (d *Dataset) With(meters []Meter) (*Dataset, error) {
	with := *d
	with.file = nil // the meters' loads may still refer to the mapped file
	return NewDataset(with, meters)
}

func (d *Dataset) only(which func(i int) bool) (*Dataset, error) {
	var meters []Meter
	for i := range d.Len() {
		if which(i) {
			meters = append(meters, d.Meter(i))
		}
	}
	return d.With(meters)
}

// Seconds returns the interval in seconds.
func (d *Dataset) Seconds() int64 { return int64(d.Interval / time.Second) }

// Time returns the start of step i of a series that starts at start, on the
// dataset's clock.
func (d *Dataset) Time(start int64, i int) time.Time {
	return time.Unix(start+int64(i)*d.Seconds(), 0).In(d.Clock)
}

// Span returns the start of the first step and the end of the last step of all meters, in
// Unix seconds. Both are 0 if there are no readings.
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

// Fingerprint identifies a dataset by its meters' names, start times, lengths and a sample of
// their readings, so that it need not read all data.
func (d *Dataset) Fingerprint() string {
	h := fnv.New64a()
	for i := range d.Len() {
		m := d.Meter(i)
		fmt.Fprint(h, m.ID, m.Start, len(m.Load))
		if n := len(m.Load); n > 0 {
			fmt.Fprint(h, m.Load[0], m.Load[n/2], m.Load[n-1])
		}
	}
	return fmt.Sprintf("%s, %d meters, %s, %x", d.Name, d.Len(), d.Interval, h.Sum64())
}

// Missing reports whether a value is missing.
func Missing(v float32) bool { return v != v }

// StandardTime returns a clock with the zone's standard offset and no daylight saving.
func StandardTime(zone *time.Location) *time.Location {
	// Daylight saving puts clocks forward, so the smaller of the offsets in January and July
	// is the standard one, in both hemispheres.
	_, january := time.Date(2018, 1, 1, 0, 0, 0, 0, zone).Zone()
	_, july := time.Date(2018, 7, 1, 0, 0, 0, 0, zone).Zone()
	return time.FixedZone(zone.String()+standardTime, min(january, july))
}

// standardTime is the suffix of the names of the clocks that StandardTime returns.
const standardTime = " standard time"

// ClockOf returns the clock with the given name, which is an IANA zone or the name of a clock
// that StandardTime returned.
func ClockOf(name string) (*time.Location, error) {
	zone, standard := strings.CutSuffix(name, standardTime)
	clock, err := time.LoadLocation(zone)
	if err == nil && standard {
		clock = StandardTime(clock)
	}
	return clock, err
}

// LegalTime returns the clock that people at the meters follow. If the given clock is the
// standard time of a zone, LegalTime returns the zone's own clock.
func LegalTime(clock *time.Location) (*time.Location, error) {
	if zone, standard := strings.CutSuffix(clock.String(), standardTime); standard {
		return time.LoadLocation(zone)
	}
	return clock, nil
}
