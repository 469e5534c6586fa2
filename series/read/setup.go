package read

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"loadstar/series"
	"loadstar/series/table"
)

// Setup writes a description of tables. It examines the tables, asks for the settings that they
// do not show, and opens the dataset before it writes anything.
type Setup struct {
	Hints Hints
	// Given contains the settings that the user gave: Name, Zone, Clock, Country, Stamp, Unit
	// and Reading.
	Given Description
	// Replace makes Setup replace an existing description.
	Replace bool
	Ask     Asker
}

// Described is a dataset whose description was written.
type Described struct {
	Path    string // path of the description
	Dataset *series.Dataset
	// Lines describe the recognised, answered and assumed settings in plain words.
	Lines []string
	// Left lists the files that are not part of the dataset.
	Left []string
	// Asked is the number of questions that were asked.
	Asked int
}

// Run describes the tables in a folder, or one table.
func (s Setup) Run(path string) (*Described, error) {
	dir := path
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if !info.IsDir() {
		dir = filepath.Dir(path)
	}
	out := &Described{Path: filepath.Join(dir, FileName)}
	if _, err := os.Stat(out.Path); err == nil && !s.Replace {
		return nil, fmt.Errorf("%s already exists; use --force to replace it", out.Path)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	survey, err := look(path, s.Hints)
	if err != nil {
		return nil, err
	}
	out.Left = survey.Left
	d := survey.Description
	if d.Name = s.Given.Name; d.Name == "" {
		abs, err := filepath.Abs(path)
		if err != nil {
			return nil, err
		}
		d.Name, _, _ = strings.Cut(filepath.Base(abs), ".")
	}
	if err := s.settle(survey, out); err != nil {
		return nil, err
	}
	if d.Generated = survey.saysSynthetic(); d.Generated {
		out.Lines = append(out.Lines, "synthetic data, as the first line of the table says")
	}
	d.path = out.Path
	if err := d.validate(); err != nil {
		return nil, err
	}
	out.Lines = slices.Concat(survey.lines(), out.Lines)
	if out.Dataset, err = Open(d, ""); err != nil {
		return nil, fmt.Errorf("%w\nrecognised:\n  %s\nnothing was written", err, strings.Join(out.Lines, "\n  "))
	}
	if line := weatherLine(d, out.Dataset); line != "" {
		out.Lines = append(out.Lines, line)
	}
	return out, d.Write(out.Path)
}

// weatherLine describes the weather that was recognised, and the share of the steps without
// weather.
func weatherLine(d *Description, data *series.Dataset) string {
	if d.Weather == nil {
		return ""
	}
	line := fmt.Sprintf("weather: %s, with %s", shorten(d.Weather.Files, 2), strings.Join(data.Weather.Names, ", "))
	step := int64(data.Interval / time.Second)
	from, to := data.Span()
	has := 0
	for at := from; at < to; at += step {
		i := int((at - data.Weather.Start) / step)
		if at >= data.Weather.Start && slices.ContainsFunc(data.Weather.Columns, func(column []float32) bool { return i < len(column) && !series.Missing(column[i]) }) {
			has++
		}
	}
	if all := int((to - from) / step); has < all {
		line += fmt.Sprintf("; %.0f %% of the steps from the first reading to the last have none", 100*float64(all-has)/float64(all))
	}
	return line
}

// settle fills in the settings that the tables do not show. They come from the caller,
// from questions, or from reported defaults.
func (s Setup) settle(survey *Survey, out *Described) error {
	d, g := survey.Description, s.Given
	d.Zone, d.Clock, d.Country = g.Zone, g.Clock, g.Country
	for _, f := range []struct{ given, dst *string }{{&g.Unit, &d.Unit}, {&g.Stamp, &d.Stamp}, {&g.Reading, &d.Reading}} {
		if *f.given != "" {
			*f.dst = *f.given
		}
	}
	if g.Reading == ReadingInterval && survey.load[0].Counter && g.Stamp == "" {
		d.Stamp = ""
	}
	if d.Reading == ReadingCounter {
		d.Stamp = StampStart
	}
	asked, assumed, err := s.Ask.ask(survey.questions())
	if err != nil {
		return err
	}
	out.Asked = asked
	for _, q := range assumed {
		out.Lines = append(out.Lines, fmt.Sprintf("assumed: --%s %s", q.flag, *q.value))
	}
	if zone, ok := strings.CutSuffix(d.Zone, " standard"); ok {
		d.Zone, d.Clock = zone, ClockStandard
	}
	if d.Clock == "" {
		d.Clock = ClockLegal
		if line, at := survey.nonexistent(); !survey.Zoned && at != "" {
			d.Clock = ClockStandard
			out.Lines = append(out.Lines, fmt.Sprintf("clock: standard time, because line %d has %s, which clocks with daylight saving time skip", line, at))
		} else if checkZone(d.Zone) == nil && !survey.Zoned && observesDST(d.Zone) {
			out.Lines = append(out.Lines, fmt.Sprintf("clock: local time of %s with daylight saving time (otherwise --clock standard)", d.Zone))
		}
	}
	var note string
	if d.Country, note = HolidaysOf(d.Country, d.Zone); note != "" {
		out.Lines = append(out.Lines, note)
	}
	return nil
}

// observesDST reports whether a zone has daylight saving time.
func observesDST(name string) bool {
	zone, err := loadZone(name)
	if err != nil {
		return false
	}
	_, january := time.Date(2024, 1, 1, 0, 0, 0, 0, zone).Zone()
	_, july := time.Date(2024, 7, 1, 0, 0, 0, 0, zone).Zone()
	return january != july
}

// nonexistent returns a time in the examined rows, and its line, that cannot exist if the
// labels follow the zone's daylight saving time. Whole hours are checked only if the interval
// is an hour and labels mark its start, because a label at the end of an interval may be the
// hour at which clocks are put forward.
func (s *Survey) nonexistent() (line int, at string) {
	zone, err := loadZone(s.Description.Zone)
	if err != nil || len(s.dates) == 0 {
		return 0, ""
	}
	hourly := s.Description.Interval == "1h" && s.Description.Stamp == StampStart
	for _, f := range s.load {
		clock := table.NewClock(zone, 0, s.dates[0])
		f.Sample(func(n int, day, hour string) bool {
			c := table.Text([]byte(day))
			var err error
			if hour == "" {
				_, err = clock.Instant(&c)
			} else {
				h := table.Text([]byte(hour))
				_, err = clock.Join(&c, &h)
			}
			text := strings.TrimSpace(day + " " + hour)
			if errors.Is(err, table.ErrNonexistent) && (hourly || !strings.Contains(text, ":00")) {
				line, at = n, text
			}
			return at == ""
		})
		if at != "" {
			break
		}
	}
	return line, at
}

// lines describe the recognised settings.
func (s *Survey) lines() []string {
	d, f := s.Description, s.load[0]
	var out []string
	what := s.names[0]
	if n := len(s.names); n > 1 {
		what = fmt.Sprintf("%s and %d more", what, n-1)
	}
	how := slices.Clone(f.Notes)
	if e := f.Encoding(); e != "" {
		how = append(how, e)
	}
	if f.Spreadsheet {
		how = append([]string{"spreadsheet"}, how...)
	} else if name, ok := map[byte]string{';': "semicolons", ',': "commas", '\t': "tabs", '|': "bars"}[f.Format.Delimiter]; ok {
		how = append(how, "separated by "+name)
	}
	if f.Format.Header != "" {
		how = append(how, fmt.Sprintf("header in line %d", f.Line))
	}
	if n := f.Format.Skip; n > 0 {
		how = append(how, "units below the header")
	}
	if len(how) == 0 {
		how = append(how, "Parquet")
	}
	out = append(out, fmt.Sprintf("file: %s; %s", what, strings.Join(how, ", ")))
	switch {
	case f.Wide && len(s.names) == 1:
		out = append(out, fmt.Sprintf("meters: a column for each of %d: %s", len(f.Meters), shorten(f.Meters, 4)))
	case f.Wide:
		out = append(out, "meters: a column for each")
	case f.Columns["meter"] != "":
		out = append(out, "meters: column "+f.Columns["meter"])
	default:
		out = append(out, "meters: one in each file, named after it")
	}
	out = append(out, s.timeLine(), s.loadLine())
	if q := f.Columns["quality"]; q != "" {
		marks := shorten(f.Quality, 4)
		if len(f.Missing) > 0 {
			marks += "; readings marked " + strings.Join(d.Load.Missing, ", ") + " are missing"
		}
		out = append(out, fmt.Sprintf("quality: column %s (%s)", q, marks))
	}
	if f.Wide && len(f.Meters) > 1 && sameButTariff(f.Meters) {
		out = append(out, fmt.Sprintf("%s and %s look like tariffs of one meter; each is a meter of its own, so add them up before if they belong together", f.Meters[0], f.Meters[1]))
	}
	ignored := f.Ignored
	if len(ignored) > 0 {
		out = append(out, "columns that are not read: "+shorten(ignored, 8))
	}
	return out
}

// tariff matches the end of a heading that names a tariff.
var tariff = regexp.MustCompile(`(?i)[ _.-]*(t ?[1-4]|tarif+ ?[1-4]|ht|nt|hp|hc|dag|nacht|tag|day|night|peak|off-?peak)$`)

// sameButTariff reports whether the names are equal except for the tariff at the end of each
// name.
func sameButTariff(names []string) bool {
	first := tariff.ReplaceAllString(names[0], "")
	return !slices.ContainsFunc(names, func(n string) bool { return !tariff.MatchString(n) || tariff.ReplaceAllString(n, "") != first })
}

func (s *Survey) timeLine() string {
	d, f := s.Description, s.load[0]
	line := "time: column " + f.Columns["time"]
	if f.Columns["time"] == table.FirstColumn {
		line = "time: the first column, which has no name,"
	}
	if date := f.Columns["date"]; date != "" {
		line = fmt.Sprintf("time: columns %s and %s", date, f.Columns["time"])
	}
	form := cmp.Or(d.Load.Date, "yyyy-mm-dd")
	line += " as " + form
	if s.Zoned {
		line += " with UTC offset"
	}
	line += ", every " + d.Interval
	switch {
	case d.Reading == ReadingCounter:
	case f.Stamp == d.Stamp && f.Why != "":
		line += fmt.Sprintf("; a time is the %s of its interval, because %s", d.Stamp, f.Why)
	default:
		line += fmt.Sprintf("; a time is the %s of its interval", d.Stamp)
	}
	return line
}

func (s *Survey) loadLine() string {
	d, f := s.Description, s.load[0]
	line := "load: "
	if c := f.Columns["load"]; c != "" {
		line += "column " + c + ", "
	}
	switch {
	case d.Reading == ReadingCounter:
		line += "readings of a counter in " + d.Unit
	case units[d.Unit].energy:
		line += d.Unit + " per interval"
	default:
		line += "mean power in " + d.Unit
	}
	if f.Unit == d.Unit && f.UnitFrom != "heading" && f.UnitFrom != "" {
		line += " (" + f.UnitFrom + ")"
	}
	switch d.Load.Decimal {
	case ",":
		line += ", decimal comma"
	case ".":
		line += ", decimal point, thousands separators"
	}
	return line
}
