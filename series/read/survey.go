package read

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"loadstar/series/recognize"
	"loadstar/series/table"
)

// Hints are facts that the caller knows, so that look need not detect them. File names are
// relative to the folder and may be patterns.
type Hints struct {
	Load, Weather, Meters []string
	// Columns gives the names in the file of the load table's columns whose names are not the
	// usual ones.
	Columns  map[string]string
	Interval time.Duration
	// Format contains the settings of the load table, as in a description.
	Format Table
}

// Survey contains the results of look.
type Survey struct {
	// Description describes the tables that look found. It has no zone and clock, because the
	// files do not show them. It has a date format, a unit and a stamp only if the files show
	// them.
	Description *Description
	// Zoned means that the times in the load table have a UTC offset, and UTC means that the
	// offset is zero.
	Zoned, UTC bool
	// Left lists the files that were not recognised as tables of the dataset.
	Left []string

	dir   string
	load  []*recognize.Finding
	names []string // names of the load files
	dates []table.Dates
}

// The parts of a file that are examined.
const (
	headBytes = 1 << 20
	tailBytes = 1 << 16
)

// look finds the tables in a folder, or in one file, and their formats.
func look(path string, h Hints) (*Survey, error) {
	dir, paths := path, []string{path}
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if !info.IsDir() {
		dir = filepath.Dir(path)
		h.Load = []string{quotePattern(filepath.Base(path))}
	} else if paths, err = folder(dir, ".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".txt.gz", ".parquet", ".xlsx"); err != nil {
		return nil, err
	}
	hints, err := h.recognize()
	if err != nil {
		return nil, err
	}
	l := looker{dir: dir, hints: h, known: hints, survey: &Survey{Description: &Description{}, dir: dir}}
	for _, path := range paths {
		if err := l.look(path, len(paths) == 1); err != nil {
			return nil, err
		}
	}
	return l.survey, l.finish()
}

// quotePattern returns a pattern that matches only the given file name.
func quotePattern(name string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(name)
}

// recognize returns the hints about a load table.
func (h Hints) recognize() (recognize.Hints, error) {
	f, _, err := h.Format.format()
	if err != nil {
		return recognize.Hints{}, fmt.Errorf("--%w", err)
	}
	for name := range h.Columns {
		if !slices.Contains([]string{"meter", "time", "load", "date", "quality"}, name) {
			return recognize.Hints{}, fmt.Errorf("--column: unknown column %s; a load table has meter, time, load, date and quality", name)
		}
	}
	return recognize.Hints{
		Columns: h.Columns, Ignore: h.Format.Ignore, Encoding: f.Encoding, Delimiter: f.Delimiter, Header: f.Header,
		Decimal: f.Decimal, Date: h.Format.Date, Sheet: f.Sheet, Interval: h.Interval, Wide: h.Columns["meter"] == MeterIsColumn,
	}, nil
}

// looker examines the files of a folder.
type looker struct {
	dir             string
	hints           Hints
	known           recognize.Hints
	survey          *Survey
	weather, meters []string // relative paths
	weatherOf       *recognize.Finding
	meterFormat     Table
	intervals       map[time.Duration][]string
	seen            []string // each file that was not recognised, with its columns or an error
}

// kind returns the kind of a file according to the hints: load, weather or meters. It
// returns an empty string if the hints name the files of all kinds but not this one, and ? if
// the columns must show the kind.
func (l *looker) kind(path string) string {
	hinted := map[string]bool{}
	for _, k := range []struct {
		name     string
		patterns []string
	}{{"load", l.hints.Load}, {"weather", l.hints.Weather}, {"meters", l.hints.Meters}} {
		for _, p := range k.patterns {
			if ok, _ := filepath.Match(filepath.FromSlash(p), path); ok {
				return k.name
			}
		}
		hinted[k.name] = len(k.patterns) > 0
	}
	if hinted["load"] && hinted["weather"] && hinted["meters"] {
		return ""
	}
	return "?"
}

// look adds a file. The kind of the file is determined by the hints or by its columns. Only
// means that the folder has no other file.
func (l *looker) look(path string, only bool) error {
	name, err := filepath.Rel(l.dir, path)
	if err != nil {
		return err
	}
	kind := l.kind(name)
	if kind == "" {
		l.survey.Left = append(l.survey.Left, name)
		return nil
	}
	f, err := l.examine(path, kind, only)
	if err != nil {
		if kind != "?" || only || !errors.Is(err, recognize.ErrNoTable) {
			return fmt.Errorf("%s: %w", name, err)
		}
		l.survey.Left = append(l.survey.Left, name)
		l.seen = append(l.seen, fmt.Sprintf("%s: %v", name, err))
		return nil
	}
	switch free := kind == "?"; {
	case kind == "load" && f.Kind != recognize.Load:
		return fmt.Errorf("%s: found no %s; the columns are %s", name, missingRole(f), shorten(f.Names, 20))
	case kind == "load", free && l.hints.Load == nil && f.Kind == recognize.Load:
		if err := l.addLoad(name, f); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	case kind == "weather", free && l.hints.Weather == nil && f.Kind == recognize.Weather:
		if f.Kind != recognize.Weather {
			return fmt.Errorf("%s: found no time and weather; the columns are %s", name, shorten(f.Names, 20))
		}
		l.weather, l.weatherOf = append(l.weather, name), f
	case kind == "meters", free && l.hints.Meters == nil && f.Kind == recognize.Meters:
		l.meters = append(l.meters, name)
		l.meterFormat = tableOf(f)
		if meter := f.Columns["meter"]; meter != "" {
			l.meterFormat.Columns = unusual(f.Names, map[string]string{"meter": meter})
		}
	default:
		l.survey.Left = append(l.survey.Left, name)
		l.seen = append(l.seen, fmt.Sprintf("%s has %s", name, shorten(f.Names, 8)))
	}
	return nil
}

// examine detects the columns of a file with the hints that can apply to the file.
func (l *looker) examine(path, kind string, only bool) (*recognize.Finding, error) {
	known := l.known
	if kind == "weather" || kind == "meters" {
		known = recognize.Hints{}
	}
	f, err := examine(path, known)
	if err != nil && kind == "?" && !only && len(l.hints.Columns) > 0 {
		// The named columns may belong to another file.
		f, err = examine(path, recognize.Hints{})
		if err == nil && f.Kind == recognize.Load {
			f.Kind = recognize.Other
		}
	}
	return f, err
}

func missingRole(f *recognize.Finding) string {
	if f.Columns["time"] == "" {
		return "time column; name it with --column time=NAME"
	}
	return "load column; name it with --column load=NAME"
}

// examine detects the format of a file from the beginning and the end of the file.
func examine(path string, h recognize.Hints) (*recognize.Finding, error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	var magic [4]byte
	n, err := io.ReadFull(in, magic[:])
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return nil, err
	}
	size, err := in.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	switch string(magic[:n]) {
	case "PAR1":
		t, err := table.OpenParquet(in, size)
		if err != nil {
			return nil, err
		}
		return examineTable(t, h)
	case "PK\x03\x04":
		s, err := table.OpenSheet(in, size, h.Sheet)
		if err != nil {
			return nil, err
		}
		head := s.Text[:min(len(s.Text), headBytes)]
		f, err := recognize.Table(recognize.Sample{Head: head, Whole: len(head) == len(s.Text), Tail: s.Text[max(len(head), len(s.Text)-tailBytes):]}, h)
		if err == nil {
			f.Spreadsheet, f.Format.Sheet, f.Notes = true, h.Sheet, append(s.Notes, f.Notes...)
		}
		return f, err
	}
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	r, err := table.Unpack(in)
	if err != nil {
		return nil, err
	}
	s := recognize.Sample{Head: make([]byte, headBytes)}
	n, err = io.ReadFull(r, s.Head)
	s.Head = s.Head[:n]
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF) && int64(n) == size, errors.Is(err, io.EOF):
		s.Whole = true
	case errors.Is(err, io.ErrUnexpectedEOF):
		// A truncated compressed file gives the same error as a file that is shorter than
		// the sample.
		if _, err := r.Peek(1); err != nil && !errors.Is(err, io.EOF) {
			return nil, table.CutOff(err)
		}
		s.Whole = true
	case err != nil:
		return nil, err
	case magic[0] != 0x1f || magic[1] != 0x8b:
		at := max(size-tailBytes, headBytes)
		s.Tail = make([]byte, size-at+at%2)
		if _, err := in.ReadAt(s.Tail, at-at%2); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
	}
	if n == 0 {
		return nil, errors.New("the file is empty")
	}
	return recognize.Table(s, h)
}

// examineTable recognises the first rows of a Parquet file.
func examineTable(t table.Table, h recognize.Hints) (*recognize.Finding, error) {
	const most, fields = 20000, 1 << 19
	names := t.Columns()
	var columns []int
	for i := range names {
		columns = append(columns, i)
	}
	var rows [][]string
	err := t.Each(columns, func(cells []table.Cell) error {
		row := make([]string, len(cells))
		for i := range cells {
			row[i] = string(cells[i].Name())
			if cells[i].IsTime() && cells[i].Zoned() {
				row[i] += "Z"
			}
		}
		if rows = append(rows, row); len(rows) >= most || len(rows)*len(names) > fields {
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, err
	}
	return recognize.Rows(names, rows, h)
}

// addLoad adds a file as a load table.
func (l *looker) addLoad(name string, f *recognize.Finding) error {
	s := l.survey
	if len(s.load) == 0 {
		s.Zoned, s.UTC, s.dates = f.Zoned, f.UTC, f.Dates
		l.intervals = map[time.Duration][]string{}
	} else if err := l.agree(f); err != nil {
		return err
	}
	s.load, s.names = append(s.load, f), append(s.names, name)
	s.Zoned, s.UTC = s.Zoned && f.Zoned, s.UTC && f.UTC
	if f.Interval != 0 {
		l.intervals[f.Interval] = append(l.intervals[f.Interval], name)
	}
	return nil
}

// agree checks that a load table has the same format as the first one.
func (l *looker) agree(f *recognize.Finding) error {
	s := l.survey
	first, other := s.load[0], s.names[0]
	if !maps.Equal(first.Columns, f.Columns) || first.Wide != f.Wide {
		a, b := maps.Clone(first.Columns), maps.Clone(f.Columns)
		delete(a, "load")
		delete(b, "load")
		if !maps.Equal(a, b) || a["meter"] != "" || l.hints.Columns["meter"] != "" {
			return fmt.Errorf("its columns differ from those of %s, which is also a load table; choose the load files with --load", other)
		}
		// The load column of each file is named after the file's meter.
		for _, x := range append(s.load, f) {
			x.AsWide()
		}
	}
	if a, b := first.Format, f.Format; a.Skip != b.Skip || a.Footer != b.Footer || a.Delimiter != b.Delimiter {
		return fmt.Errorf("its format differs from that of %s, which is also a load table (delimiter, lines below the header, or totals at the end); choose the load files with --load", other)
	}
	var both []table.Dates
	for _, d := range s.dates {
		if slices.Contains(f.Dates, d) {
			both = append(both, d)
		}
	}
	if s.dates = both; len(both) == 0 {
		return fmt.Errorf("its dates are in the format %s, but those of %s are in the format %s; choose the load files with --load", f.Dates[0], other, first.Dates[0])
	}
	return nil
}

// errNoStep means that a table is too short to show its interval.
var errNoStep = errors.New("no meter has two rows, so the interval cannot be detected")
