package read

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"loadstar/internal/textfmt"
	"loadstar/series/recognize"
	"loadstar/series/table"
)

// finish assembles the description from the files that were added.
func (l *looker) finish() error {
	s := l.survey
	if len(s.load) == 0 {
		return fmt.Errorf("%s contains no load table with columns for time, load and meter; %s; name the columns with --column, such as --column load=NAME", l.dir, shorten(l.seen, 5))
	}
	if len(l.intervals) == 0 {
		return fmt.Errorf("%s: %w; set the interval with --interval", s.names[0], errNoStep)
	}
	if len(l.intervals) > 1 {
		var found []string
		for _, step := range slices.Sorted(maps.Keys(l.intervals)) {
			found = append(found, fmt.Sprintf("%s in %s", step, shorten(l.intervals[step], 3)))
		}
		return fmt.Errorf("the load tables have different intervals: %s; choose the load files with --load", strings.Join(found, ", "))
	}
	d := s.Description
	for step := range l.intervals {
		d.Interval = textfmt.Duration(step)
	}
	if err := s.describeLoad(); err != nil {
		return err
	}
	d.Load.Files = patterns(l.dir, s.names)
	for _, ours := range slices.Sorted(maps.Keys(l.hints.Columns)) {
		if theirs := l.hints.Columns[ours]; theirs == MeterIsFile {
			d.Load.Columns[ours] = theirs
		}
	}
	if l.hints.Format.Header != "" {
		d.Load.Header = l.hints.Format.Header
	}
	if w := l.weatherOf; w != nil {
		t := tableOf(w)
		t.Files, t.Columns = patterns(l.dir, l.weather), unusual(w.Names, w.Columns)
		if len(w.Dates) > 0 && w.Dates[0] != (table.Dates{}) {
			t.Date = w.Dates[0].String()
		}
		if own, err := time.ParseDuration(d.Interval); err == nil && w.Interval > own {
			t.Interval = textfmt.Duration(w.Interval)
		}
		t.Stamp = w.Stamp
		d.Weather = &t
	}
	if len(l.meters) > 0 {
		t := l.meterFormat
		t.Files = patterns(l.dir, l.meters)
		d.Meters = &t
	}
	return nil
}

// describeLoad copies the settings that the load tables show to the description.
func (s *Survey) describeLoad() error {
	d := s.Description
	first := s.load[0]
	d.Load = tableOf(first)
	decimal, units := byte(0), ""
	stamps := map[string]bool{}
	counter := true
	for i, f := range s.load {
		if e := f.Format.Encoding; e != "" {
			d.Load.Encoding = e
		}
		if f.Format.Header != "" {
			d.Load.Header = f.Format.Header
		}
		if b := f.Format.Decimal; b != 0 {
			if decimal != 0 && decimal != b {
				return fmt.Errorf("%s: its decimal separator is %q, but that of other load tables is %q; choose the load files with --load", s.names[i], b, decimal)
			}
			decimal = b
		}
		if f.Unit != "" {
			if units != "" && units != f.Unit {
				return fmt.Errorf("%s: its unit is %s, but that of other load tables is %s; choose the load files with --load", s.names[i], f.Unit, units)
			}
			units = f.Unit
		}
		if f.Stamp != "" {
			stamps[f.Stamp] = true
		}
		counter = counter && f.Counter
		if f.Wide {
			d.Load.Ignore = append(d.Load.Ignore, f.Ignored...)
		}
		for _, m := range f.Missing {
			if !slices.Contains(d.Load.Missing, m) {
				d.Load.Missing = append(d.Load.Missing, m)
			}
		}
	}
	slices.Sort(d.Load.Ignore)
	d.Load.Ignore = slices.Compact(d.Load.Ignore)
	if decimal != 0 {
		d.Load.Decimal = string(decimal)
	}
	if len(s.dates) == 1 && s.dates[0] != (table.Dates{}) {
		d.Load.Date = s.dates[0].String()
	}
	d.Unit = units
	if len(stamps) == 1 {
		d.Stamp = first.Stamp
		for stamp := range stamps {
			d.Stamp = stamp
		}
	}
	if counter {
		d.Reading, d.Stamp = ReadingCounter, StampStart
	}
	names := maps.Clone(first.Columns)
	switch {
	case first.Wide:
		names["meter"] = MeterIsColumn
	case names["meter"] == "":
		names["meter"] = MeterIsFile
	}
	d.Load.Columns = unusual(first.Names, names)
	if names["date"] != "" {
		d.Load.Columns["time"] = names["time"]
	}
	return nil
}

// tableOf returns a table with the format of a file.
func tableOf(f *recognize.Finding) Table {
	t := Table{Encoding: f.Format.Encoding, Header: f.Format.Header, Skip: f.Format.Skip, Footer: f.Format.Footer, Sheet: f.Format.Sheet}
	if b := f.Format.Decimal; b != 0 {
		t.Decimal = string(b)
	}
	// The delimiter is stated only if the header does not show it.
	if b := f.Format.Delimiter; b != 0 && table.Delimiter([]byte(strings.Join(f.Names, string(b)))) != b {
		if t.Delimiter = string(b); b == '\t' {
			t.Delimiter = "tab"
		}
	}
	return t
}

// header is a table without rows.
type header []string

func (h header) Columns() []string                                    { return h }
func (h header) Each(_ []int, _ func(cells []table.Cell) error) error { return nil }

// unusual returns the columns that Open would not find by their usual names, for
// Table.Columns.
func unusual(columns []string, names map[string]string) map[string]string {
	out := map[string]string{}
	for ours, theirs := range names {
		if c, err := (&Table{}).column(header(columns), ours); err != nil || columns[c] != theirs {
			out[ours] = theirs
		}
	}
	return out
}

// patterns returns the given file names. If there are four or more, it returns a pattern
// instead, provided that the pattern matches exactly these files.
func patterns(dir string, names []string) []string {
	for i, n := range names {
		names[i] = filepath.ToSlash(n)
	}
	if len(names) < 4 {
		return names
	}
	_, ending, _ := strings.Cut(filepath.Base(names[0]), ".")
	pattern := filepath.ToSlash(filepath.Join(filepath.Dir(names[0]), "*."+ending))
	found, err := matches(dir, pattern)
	if err != nil || len(found) != len(names) {
		return names
	}
	for _, n := range names {
		if ok, _ := filepath.Match(pattern, n); !ok {
			return names
		}
	}
	return []string{pattern}
}
