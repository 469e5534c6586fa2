package read

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"loadstar/series"
	"loadstar/series/table"
)

// readLoad reads the wanted meters and returns them in the order of their first rows.
func (d *Description) readLoad(files []source, wanted func(id []byte) bool) ([]series.Meter, error) {
	t, err := d.times()
	if err != nil {
		return nil, err
	}
	from, to, err := d.bounds()
	if err != nil {
		return nil, err
	}
	format, dates, err := d.Load.format()
	if err != nil {
		return nil, err
	}
	l := loadReader{
		builder: series.NewBuilder(t.interval), times: t, dates: dates, from: from, to: to,
		scale: powerScale(d.Unit, t.interval), wanted: wanted, missing: map[string]bool{},
	}
	for _, mark := range slices.Concat(d.Load.Missing, missingMarks) {
		for _, m := range []string{mark, strings.ToUpper(mark), strings.ToUpper(mark[:1]) + mark[1:]} {
			l.missing[m] = true
		}
	}
	if d.Reading == ReadingCounter {
		l.counters = map[*series.MeterBuilder]*counter{}
	}
	for _, s := range files {
		err := s.read(format, func(in table.Table) error {
			c, err := d.Load.loadColumns(in)
			if err != nil {
				return err
			}
			if c.wide != nil {
				return l.readWide(in, c)
			}
			return l.read(in, c, s.stem())
		})
		if err != nil {
			return nil, err
		}
	}
	meters, err := l.builder.Meters()
	if err == nil && len(meters) == 0 {
		err = errors.New("no row matches the selected meters and dates")
	}
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	return meters, nil
}

// missingMarks are the English, German, French, Spanish and Dutch words in a quality column for
// a missing or invalid reading.
var missingMarks = []string{
	"missing", "invalid", "no data", "fehlt", "fehlend", "ungültig", "manquant", "manquante", "absent", "invalide",
	"ausente", "inválido", "ontbreekt", "ontbrekend", "ongeldig",
}

// powerScale returns the factor that converts a value in the given unit to mean power in
// kW.
func powerScale(unit string, interval time.Duration) float64 {
	u := units[unit]
	if u.energy {
		return u.kw / interval.Hours()
	}
	return u.kw
}

// loadColumns contains the indexes of a load table's columns. The index of a column that the
// table lacks is -1.
type loadColumns struct {
	time, date, load, meter, quality int

	wide  []int    // the columns of a table with a column per meter
	names []string // the meters of these columns
}

func (t *Table) loadColumns(in table.Table) (c loadColumns, err error) {
	wide := t.Columns["meter"] == MeterIsColumn
	for _, f := range []struct {
		name     string
		dst      *int
		optional bool
	}{
		{"time", &c.time, false},
		{"load", &c.load, wide},
		{"meter", &c.meter, wide || t.Columns["meter"] == MeterIsFile},
		{"date", &c.date, t.Columns["date"] == ""},
		{"quality", &c.quality, t.Columns["quality"] == ""},
	} {
		if *f.dst = -1; f.optional {
			continue
		}
		if *f.dst, err = t.column(in, f.name); err != nil {
			return c, err
		}
	}
	if !wide {
		return c, nil
	}
	seen := map[string]bool{}
	for i, name := range in.Columns() {
		if i == c.time || i == c.date || name == "" || slices.Contains(t.Ignore, name) {
			continue
		}
		meter := table.WithoutUnit(name)
		if seen[meter] {
			return c, fmt.Errorf("two columns are for meter %s; name the columns that are not meters under ignore, or use data init --ignore", meter)
		}
		seen[meter] = true
		c.wide, c.names = append(c.wide, i), append(c.names, meter)
	}
	if len(c.wide) == 0 {
		return c, fmt.Errorf("there is no column with the load of a meter; the columns are %s", list(in))
	}
	return c, nil
}

// loadReader reads load tables into a builder.
type loadReader struct {
	builder  *series.Builder
	times    times
	dates    table.Dates
	from, to int64 // in Unix seconds
	scale    float64
	wanted   func(id []byte) bool
	missing  map[string]bool // the texts in the quality column that mark a missing reading
	// counters contains the latest readings of meters whose values are readings of a counter. It
	// is nil if the values are loads of intervals.
	counters map[*series.MeterBuilder]*counter
}

// columnList returns the columns to read, and at, the positions of the columns of c in this
// list.
func columnList(c loadColumns) (columns []int, at loadColumns) {
	add := func(i int) int {
		if i < 0 {
			return -1
		}
		columns = append(columns, i)
		return len(columns) - 1
	}
	at = loadColumns{time: add(c.time), date: add(c.date), load: add(c.load), meter: add(c.meter), quality: add(c.quality)}
	return columns, at
}

// instant returns the time of a row, and false if the row is outside the period to read.
func (l *loadReader) instant(clock *table.Clock, cells []table.Cell, at loadColumns) (when series.Instant, ok bool, err error) {
	if at.date < 0 {
		when, err = clock.Instant(&cells[at.time])
	} else {
		when, err = clock.Join(&cells[at.date], &cells[at.time])
	}
	return when, err == nil && when.Unix >= l.from && when.Unix < l.to, err
}

// read reads a table in the long format. If it has no meter column, all rows belong to the
// meter called name.
func (l *loadReader) read(in table.Table, c loadColumns, name string) error {
	clock := l.times.reader(l.dates)
	columns, at := columnList(c)
	var (
		id      []byte
		current *series.MeterBuilder // nil if the meter is not wanted
	)
	enter := func(name []byte) {
		if id, current = append(id[:0], name...), nil; l.wanted == nil || l.wanted(id) {
			current = l.builder.Meter(string(id))
		}
	}
	if at.meter < 0 {
		enter([]byte(name))
	}
	return in.Each(columns, func(cells []table.Cell) error {
		if at.meter >= 0 {
			name := cells[at.meter].Name()
			if len(name) == 0 {
				return errors.New("the meter is missing")
			}
			if string(name) != string(id) {
				if !utf8.Valid(name) {
					return fmt.Errorf("meter %q is not UTF-8; set encoding: windows-1252, or use data init --encoding", name)
				}
				enter(name)
			}
		}
		if current == nil {
			return nil
		}
		when, ok, err := l.instant(clock, cells, at)
		if errors.Is(err, table.ErrNonexistent) {
			current.AddNonexistent()
			return nil
		}
		if err != nil || !ok {
			return err
		}
		if at.quality >= 0 && l.missing[string(cells[at.quality].Name())] {
			return nil
		}
		value, err := cells[at.load].Value()
		if err != nil {
			return fmt.Errorf("load: %w", err)
		}
		if err := l.add(current, when, value); err != nil {
			return fmt.Errorf("meter %s: load %w", id, err)
		}
		return nil
	})
}

// readWide reads a table with a column per meter. An empty cell does not count as a row of its
// meter.
func (l *loadReader) readWide(in table.Table, c loadColumns) error {
	clock := l.times.reader(l.dates)
	columns, at := columnList(c)
	first := len(columns)
	var meters []*series.MeterBuilder
	var names []string
	for i, column := range c.wide {
		if !utf8.ValidString(c.names[i]) {
			return fmt.Errorf("meter %q is not UTF-8; set encoding: windows-1252, or use data init --encoding", c.names[i])
		}
		if l.wanted == nil || l.wanted([]byte(c.names[i])) {
			columns, names = append(columns, column), append(names, c.names[i])
			meters = append(meters, l.builder.Meter(c.names[i]))
		}
	}
	return in.Each(columns, func(cells []table.Cell) error {
		when, ok, err := l.instant(clock, cells, at)
		if errors.Is(err, table.ErrNonexistent) {
			for i, m := range meters {
				if !cells[first+i].IsEmpty() {
					m.AddNonexistent()
				}
			}
			return nil
		}
		if err != nil || !ok {
			return err
		}
		for i, m := range meters {
			if cells[first+i].IsEmpty() {
				continue
			}
			value, err := cells[first+i].Value()
			if err == nil {
				err = l.add(m, when, value)
			}
			if err != nil {
				return fmt.Errorf("column %s: %w", names[i], err)
			}
		}
		return nil
	})
}

// counter is the latest reading of a meter's counter.
type counter struct {
	at    series.Instant
	value float64
}

// add adds a value to a meter: the load of an interval, or the reading of a counter.
func (l *loadReader) add(m *series.MeterBuilder, at series.Instant, value float64) error {
	if l.counters == nil {
		return m.Add(at, value*l.scale)
	}
	if math.IsNaN(value) {
		return nil
	}
	last := l.counters[m]
	if last == nil {
		l.counters[m] = &counter{at, value}
		return nil
	}
	older, newer := *last, counter{at, value}
	*last = newer
	step := int64(l.times.interval / time.Second)
	if older.at.Apart(at, -step) {
		older, newer = newer, older // the rows are in descending order
	} else if !older.at.Apart(at, step) {
		return nil // a reading is missing, or the row is repeated
	}
	// A counter that runs backwards was replaced, or it started again at zero. The load of this
	// interval is not known.
	if used := newer.value - older.value; used >= 0 {
		return m.Add(older.at, used*l.scale)
	}
	return nil
}
