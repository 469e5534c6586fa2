package series

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// These limits prevent a wrong date from exhausting memory. All series of a fleet together can
// have up to baseSteps steps plus stepsPerRow steps for every row. A single series can have up
// to maxSteps steps, which is 60 years of minutes.
const (
	baseSteps   = 1 << 24
	stepsPerRow = 64
	maxSteps    = 60 * 366 * 24 * 60
)

// maxStrays is the number of off-grid rows after which the builder fixes a meter's grid. The
// grid is aligned with the first row, unless the off-grid rows that share another grid
// outnumber the rows on the first row's grid.
const maxStrays = 64

// maxTime is the latest time that is accepted, in Unix seconds.
const maxTime = 1 << 40

// errRange means that a value is not a finite float32, or that a time is not plausible.
var errRange = errors.New("is out of range")

// Builder builds the series of a fleet from rows in any order.
type Builder struct {
	interval int64
	meters   []*MeterBuilder
	byID     map[string]*MeterBuilder
	rows     int64
	steps    int64
}

// NewBuilder returns a builder for series with the given interval.
func NewBuilder(interval time.Duration) *Builder {
	return &Builder{interval: int64(interval / time.Second), byID: map[string]*MeterBuilder{}}
}

// Meter returns the builder of one meter's series, and creates it if necessary.
func (b *Builder) Meter(id string) *MeterBuilder {
	m := b.byID[id]
	if m == nil {
		m = &MeterBuilder{fleet: b, id: id}
		b.byID[id] = m
		b.meters = append(b.meters, m)
	}
	return m
}

// Meters returns the series, each from its first to its last row, in the order of the first
// calls of Meter. Meters without rows are left out. The builder must not be used afterwards.
func (b *Builder) Meters() ([]Meter, error) {
	var (
		meters []Meter
		off    int
		odd    string
	)
	for i, m := range b.meters {
		if !m.settled {
			if err := m.settle(); err != nil {
				return nil, fmt.Errorf("meter %s: %w", m.id, err)
			}
		}
		if off += m.faults.OffGrid; m.faults.OffGrid > 0 && odd == "" {
			odd = m.id
		}
		series, err := m.series()
		if err != nil {
			return nil, fmt.Errorf("meter %s: %w", m.id, err)
		}
		if len(series.Load) > 0 {
			meters = append(meters, series)
		}
		b.meters[i] = nil
	}
	if int64(off) > b.rows/2 {
		return nil, fmt.Errorf("%d of %d rows are not a whole number of intervals of %s apart (first in meter %s); check the interval",
			off, b.rows, time.Duration(b.interval)*time.Second, odd)
	}
	return meters, nil
}

// Instant is the time of a row. In the hour that clocks repeat when they are put back, a local
// time label is ambiguous: it stands for two instants.
type Instant struct {
	Unix  int64
	Again int64 // the later of two possible instants, or 0
}

// Apart reports whether b can be the given number of seconds after i.
func (i Instant) Apart(b Instant, seconds int64) bool {
	for _, from := range [...]int64{i.Unix, i.Again} {
		for _, to := range [...]int64{b.Unix, b.Again} {
			if from != 0 && to != 0 && to-from == seconds {
				return true
			}
		}
	}
	return false
}

// MeterBuilder builds the series of one meter.
type MeterBuilder struct {
	fleet *Builder
	id    string
	start int64 // Unix time of step 0
	load  []float32
	early []reading // rows before step 0
	begun bool      // Add was called at least once
	last  int64     // time of the previous row
	fold  fold
	// strays are the first off-grid rows. They are stored until the grid is fixed, because the
	// first row itself may be off the grid.
	strays  []reading
	settled bool
	faults  Faults
}

type reading struct {
	time int64
	load float32
}

// Add adds a row, given the start of its interval and the mean power in kW, which is NaN if it
// is missing.
func (m *MeterBuilder) Add(at Instant, kw float64) error {
	value := float32(kw)
	if math.IsInf(float64(value), 0) {
		return fmt.Errorf("%g %w", kw, errRange)
	}
	if at.Unix < 0 || at.Unix > maxTime {
		return fmt.Errorf("time %d %w", at.Unix, errRange)
	}
	t := m.fold.resolve(at, m.last, m.begun)
	if !m.begun {
		m.start, m.begun = t, true
	} else if t < m.last {
		m.faults.OutOfOrder++
	}
	m.faults.Rows++
	m.fleet.rows++
	m.last = t
	if (t-m.start)%m.fleet.interval == 0 {
		return m.place(t, value)
	}
	m.faults.OffGrid++
	if m.settled {
		return nil
	}
	m.strays = append(m.strays, reading{t, value})
	if len(m.strays) < maxStrays {
		return nil
	}
	return m.settle()
}

// AddNonexistent counts a row whose local time does not exist because clocks were put
// forward. Its value is dropped.
func (m *MeterBuilder) AddNonexistent() {
	m.faults.Rows++
	m.faults.Nonexistent++
	m.fleet.rows++
}

// place stores a value at a time that is on the grid.
func (m *MeterBuilder) place(t int64, value float32) error {
	if t < m.start {
		m.early = append(m.early, reading{t, value})
		return nil
	}
	i := (t - m.start) / m.fleet.interval
	if i < int64(len(m.load)) {
		switch old := m.load[i]; {
		case Missing(old):
			m.load[i] = value
		case old == value || Missing(value):
			m.faults.Duplicates++
		default:
			m.faults.Conflicts++
		}
		return nil
	}
	if err := m.reserve(i + 1 - int64(len(m.load))); err != nil {
		return err
	}
	for int64(len(m.load)) < i {
		m.load = append(m.load, float32(math.NaN()))
	}
	m.load = append(m.load, value)
	return nil
}

// reserve adds n steps to the fleet's count, and returns an error if a limit is exceeded.
func (m *MeterBuilder) reserve(n int64) error {
	f := m.fleet
	if f.steps += n; f.steps > baseSteps+stepsPerRow*f.rows || int64(len(m.load))+n > maxSteps {
		return fmt.Errorf("%d rows span more than %d steps of %s; check the dates and the interval",
			f.rows, f.steps, time.Duration(f.interval)*time.Second)
	}
	return nil
}

// settle fixes the meter's grid. If the stray rows on another grid outnumber the rows on the
// current one, settle moves the series to that grid and drops the rows stored so far.
func (m *MeterBuilder) settle() error {
	m.settled = true
	strays := m.strays
	m.strays = nil
	// Rows on the same grid have the same remainder when their time is divided by the
	// interval.
	count := map[int64]int{}
	best := -1
	for i, r := range strays {
		k := r.time % m.fleet.interval
		if count[k]++; best < 0 || count[k] > count[strays[best].time%m.fleet.interval] {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	rest := strays[best].time % m.fleet.interval
	if on := m.faults.Rows - m.faults.Nonexistent - m.faults.OffGrid; count[rest] <= on {
		return nil
	}
	m.fleet.steps -= int64(len(m.load))
	m.load, m.early = m.load[:0], nil
	m.faults.Duplicates, m.faults.Conflicts = 0, 0
	m.faults.OffGrid = m.faults.Rows - m.faults.Nonexistent - count[rest]
	first := true
	for _, r := range strays {
		if r.time%m.fleet.interval != rest {
			continue
		}
		if first {
			m.start, first = r.time, false
		}
		if err := m.place(r.time, r.load); err != nil {
			return err
		}
	}
	return nil
}

// series returns the finished series, with the rows before step 0 inserted at its start.
func (m *MeterBuilder) series() (Meter, error) {
	if len(m.early) > 0 {
		slices.SortStableFunc(m.early, func(a, b reading) int { return cmp.Compare(a.time, b.time) })
		late := m.load
		before := (m.start - m.early[0].time) / m.fleet.interval
		if err := m.reserve(before); err != nil {
			return Meter{}, err
		}
		m.start = m.early[0].time
		m.load = make([]float32, before, before+int64(len(late)))
		for i := range m.load {
			m.load[i] = float32(math.NaN())
		}
		for _, r := range m.early {
			if err := m.place(r.time, r.load); err != nil {
				return Meter{}, err
			}
		}
		m.load = append(m.load, late...)
	}
	load := slices.Clone(m.load) // drops spare capacity
	m.load, m.early = nil, nil
	return Meter{ID: m.id, Start: m.start, Load: load, Faults: m.faults}, nil
}

// fold decides which of two hours an ambiguous label stands for. It handles rows that list one
// hour after the other, in ascending or descending order. It also handles rows that are sorted
// by label, where each label appears twice in succession.
type fold struct {
	label int64 // Instant.Unix of the previous row, if it was ambiguous
	in    bool
	again bool // the current rows are in the later of the two hours
	other bool // the rows have already passed through the other hour
}

// resolve returns the instant of a row in Unix seconds. Last is the time of the previous
// row; any is false if there is none.
func (f *fold) resolve(at Instant, last int64, any bool) int64 {
	if at.Again == 0 {
		f.in = false
		return at.Unix
	}
	length := at.Again - at.Unix
	if f.in && (at.Unix-f.label >= length || f.label-at.Unix >= length) {
		f.in = false
	}
	again := f.again
	switch {
	case !f.in:
		again = any && last > at.Unix // rows are in descending order
		*f = fold{in: true, again: again}
	case f.other:
	case at.Unix == f.label:
		again = !again // the label appears twice
	case (at.Unix < f.label) != f.again:
		again = !again // the labels start over
		f.again, f.other = again, true
	}
	f.label = at.Unix
	if again {
		return at.Again
	}
	return at.Unix
}
