package read

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"loadstar/series"
	"loadstar/series/table"
)

// usualNames are the column names that Open looks for if the description does not name a
// column.
var usualNames = map[string][]string{
	"meter":       {"meter_id", "unique_id", "meter", "id", "client"},
	"time":        {"timestamp", "ds", "time", "datetime", "date_time", "date"},
	"load":        {"load_kw", "y", "load", "kw", "kwh", "value"},
	"temperature": {"temperature", "temp_c"},
	"wind":        {"wind", "wind_ms"},
	"humidity":    {"humidity", "rh_pct"},
	"solar":       {"solar", "solar_wm2"},
	"holiday":     {"holiday"},
	"floor_area":  {"floor_area", "floor_area_m2"},
	"wall_area":   {"wall_area", "wall_area_m2"},
	"window_area": {"window_area", "window_area_m2"},
	"roof_area":   {"roof_area", "roof_area_m2"},

	"direct":           {"direct", "direct_wm2"},
	"diffuse":          {"diffuse", "diffuse_wm2"},
	"wind_direction":   {"wind_direction", "wind_deg"},
	"cooling_capacity": {"cooling_capacity", "cooling_capacity_kw"},
	"heating_capacity": {"heating_capacity", "heating_capacity_kw"},
	"year_built":       {"year_built"},
}

// weatherNames and staticNames are the columns that are read, in this order, if a table has
// them.
var weatherNames, staticNames = series.WeatherNames(), series.StaticNames()

// Open reads the dataset that a description describes. Root is the folder of shared data for
// rooted descriptions. If it is empty, Open uses the path in the environment variable RootEnv.
func Open(d *Description, root string) (*series.Dataset, error) {
	if d.Generate != "" {
		return d.generate()
	}
	var in inputs
	for _, f := range []struct {
		dst   *[]source
		table *Table
	}{{&in.load, &d.Load}, {&in.weather, d.Weather}, {&in.meters, d.Meters}} {
		var err error
		if *f.dst, err = d.sources(f.table, root); err != nil {
			return nil, err
		}
	}
	return d.read(in)
}

// inputs contains the files of a dataset by kind.
type inputs struct{ load, weather, meters []source }

func (d *Description) read(in inputs) (*series.Dataset, error) {
	t, err := d.times()
	if err != nil {
		return nil, err
	}
	out := series.Dataset{Name: d.Name, Generated: d.Generated, Interval: t.interval, Clock: t.local, Country: d.Country}
	var statics map[string][]float32
	if d.Meters != nil {
		if out.StaticNames, statics, err = d.readMeters(in.meters); err != nil {
			return nil, err
		}
	}
	if d.Weather != nil {
		if out.Weather, err = d.readWeather(in.weather); err != nil {
			return nil, err
		}
	}
	wanted := func(id []byte) bool {
		_, ok := statics[string(id)]
		return ok || d.Meters == nil || d.Meters.Where == nil
	}
	meters, err := d.readLoad(in.load, wanted)
	if err != nil {
		return nil, err
	}
	for i := range meters {
		values := statics[meters[i].ID]
		if values == nil {
			values = slices.Repeat([]float32{float32(math.NaN())}, len(out.StaticNames))
		}
		meters[i].Static = values
	}
	return series.NewDataset(out, meters)
}

// readMeters reads the table of meters. It returns the names of the static values, and
// the values of each meter that passes the filter.
func (d *Description) readMeters(files []source) (names []string, statics map[string][]float32, err error) {
	statics = map[string][]float32{}
	format, _, err := d.Meters.format()
	if err != nil {
		return nil, nil, err
	}
	for i, s := range files {
		err := s.read(format, func(t table.Table) error {
			meter, err := d.Meters.column(t, "meter")
			if err != nil {
				return err
			}
			columns := []int{meter}
			var filter []string
			for _, name := range slices.Sorted(maps.Keys(d.Meters.Where)) {
				c := slices.Index(t.Columns(), name)
				if c < 0 {
					return fmt.Errorf("where: there is no column %s; the columns are %s", name, list(t))
				}
				columns, filter = append(columns, c), append(filter, d.Meters.Where[name])
			}
			found, values, err := d.Meters.numbers(t, staticNames)
			if err != nil {
				return err
			}
			if i == 0 {
				names = found
			} else if !slices.Equal(names, found) {
				return errors.New("its columns differ from those of the previous file")
			}
			return t.Each(append(columns, values...), func(cells []table.Cell) error {
				id := string(cells[0].Name())
				if id == "" {
					return errors.New("the meter is missing")
				}
				for i, want := range filter {
					if string(cells[1+i].Name()) != want {
						return nil
					}
				}
				if statics[id] != nil {
					return fmt.Errorf("meter %s appears twice", id)
				}
				row := make([]float32, len(names))
				for i := range row {
					v, err := cells[1+len(filter)+i].Value()
					if err != nil {
						return fmt.Errorf("%s: %w", names[i], err)
					}
					row[i] = float32(v)
				}
				statics[id] = row
				return nil
			})
		})
		if err != nil {
			return nil, nil, err
		}
	}
	if len(statics) == 0 {
		return nil, nil, fmt.Errorf("meters: no meter matches where: %v", d.Meters.Where)
	}
	return names, statics, nil
}

// readWeather reads the weather table and converts it to the dataset's interval.
func (d *Description) readWeather(files []source) (series.Weather, error) {
	own, err := d.times()
	if err != nil {
		return series.Weather{}, err
	}
	theirs, err := d.weatherTimes()
	if err != nil {
		return series.Weather{}, err
	}
	from, to, err := d.bounds()
	if err != nil {
		return series.Weather{}, err
	}
	format, dates, err := d.Weather.format()
	if err != nil {
		return series.Weather{}, err
	}
	w := weatherReader{times: theirs, dates: dates, from: from, to: to}
	for _, s := range files {
		err := s.read(format, func(t table.Table) error {
			timeColumn, err := d.Weather.column(t, "time")
			if err != nil {
				return err
			}
			names, columns, err := d.Weather.numbers(t, weatherNames)
			if err != nil {
				return err
			}
			if len(names) == 0 {
				return fmt.Errorf("found none of the columns %s; the columns are %s; name some under columns", strings.Join(weatherNames, ", "), list(t))
			}
			return w.read(t, timeColumn, names, columns)
		})
		if err != nil {
			return series.Weather{}, err
		}
	}
	weather, err := w.weather(own.interval)
	if err != nil {
		return series.Weather{}, fmt.Errorf("weather: %w", err)
	}
	return weather, nil
}

// weatherReader reads weather tables.
type weatherReader struct {
	times    times
	dates    table.Dates
	from, to int64 // in Unix seconds
	names    []string
	builder  *series.Builder
}

// read reads the given columns of a table and stores them under the given names.
func (w *weatherReader) read(t table.Table, timeColumn int, names []string, columns []int) error {
	if w.builder == nil {
		w.names, w.builder = names, series.NewBuilder(w.times.interval)
	} else if !slices.Equal(w.names, names) {
		return errors.New("its columns differ from those of the previous file")
	}
	clock := w.times.reader(w.dates)
	return t.Each(append([]int{timeColumn}, columns...), func(cells []table.Cell) error {
		at, err := clock.Instant(&cells[0])
		if errors.Is(err, table.ErrNonexistent) {
			return fmt.Errorf("%w; if the weather is in standard time or UTC, set clock: standard or zone: UTC under weather", err)
		}
		if err != nil {
			return err
		}
		if at.Unix < w.from || at.Unix >= w.to {
			return nil
		}
		for i, name := range names {
			v, err := cells[1+i].Value()
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if err := w.builder.Meter(name).Add(at, v); err != nil {
				return fmt.Errorf("%s %w", name, err)
			}
		}
		return nil
	})
}

// weather returns the weather with the given interval. The interval of the tables must be a
// multiple of this interval. A fault in a weather table is an error, because all meters share
// the weather and no check reports faults in it.
func (w *weatherReader) weather(interval time.Duration) (series.Weather, error) {
	columns, err := w.builder.Meters()
	if err != nil {
		return series.Weather{}, err
	}
	if len(columns) == 0 {
		return series.Weather{}, errors.New("no row is within the selected dates")
	}
	out := series.Weather{Start: columns[0].Start, Names: w.names}
	hold := int(w.times.interval / interval)
	for _, c := range columns {
		if c.Faults.OffGrid > 0 {
			return out, fmt.Errorf("%d of %d rows are not a whole number of intervals of %s apart; check interval under weather",
				c.Faults.OffGrid, c.Faults.Rows, w.times.interval)
		}
		if c.Faults.Conflicts > 0 {
			return out, fmt.Errorf("%d of %d rows contradict an earlier %s for the same time; are all files from the same place?", c.Faults.Conflicts, c.Faults.Rows, c.ID)
		}
		values := c.Load
		if hold > 1 {
			values = make([]float32, 0, hold*len(c.Load))
			for _, v := range c.Load {
				for range hold {
					values = append(values, v)
				}
			}
		}
		out.Columns = append(out.Columns, values)
	}
	return out, nil
}

// column returns the index of the column in the file for one of our column names.
func (t *Table) column(in table.Table, name string) (int, error) {
	if theirs, ok := t.Columns[name]; ok {
		if theirs == table.FirstColumn {
			return 0, nil
		}
		c, err := find(in, theirs, false)
		if err == nil && c < 0 {
			err = fmt.Errorf("there is no column %s for %s; the columns are %s: correct columns in %s", theirs, name, list(in), FileName)
		}
		return c, err
	}
	for _, usual := range usualNames[name] {
		if c, err := find(in, usual, true); c >= 0 || err != nil {
			return c, err
		}
	}
	return -1, fmt.Errorf("found no %s column; the columns are %s; name it under columns", name, list(in))
}

// find returns the index of the column with a name, or -1 if there is none.
func find(in table.Table, name string, anyCase bool) (int, error) {
	found := -1
	for i, c := range in.Columns() {
		if c != name && !(anyCase && strings.EqualFold(c, name)) {
			continue
		}
		if found >= 0 {
			return -1, fmt.Errorf("two columns are named %s", name)
		}
		found = i
	}
	return found, nil
}

// numbers returns the names and indexes of the numeric columns to read: the usual columns
// that the table has, and all further columns that the description names.
func (t *Table) numbers(in table.Table, usual []string) (names []string, columns []int, err error) {
	for _, name := range slices.Concat(usual, extraNames(t.Columns, usual)) {
		if t.Columns[name] == NoColumn {
			continue
		}
		c, err := t.column(in, name)
		if err != nil {
			if _, asked := t.Columns[name]; asked {
				return nil, nil, err
			}
			continue
		}
		names, columns = append(names, name), append(columns, c)
	}
	return names, columns, nil
}

// extraNames returns the column names in a description that are not among the usual names.
func extraNames(columns map[string]string, usual []string) []string {
	var extra []string
	for name := range columns {
		if name != "meter" && name != "time" && !slices.Contains(usual, name) {
			extra = append(extra, name)
		}
	}
	slices.Sort(extra)
	return extra
}

// list formats a table's column names for an error message.
func list(in table.Table) string { return shorten(in.Columns(), 20) }

// shorten joins the names for a message, and leaves out names beyond the given number.
func shorten(names []string, most int) string {
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
