package read

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"loadstar/series/table"
)

// Survey contains the results of Look.
type Survey struct {
	// Description describes the tables that Look found. It has no zone, clock and stamp,
	// because the files do not show them. It has a unit only if the name of the load column
	// contains one.
	Description *Description
	// Zoned means that the times in the load table have a UTC offset.
	Zoned bool
	// Left lists the files that were not recognised as tables of the dataset.
	Left []string
}

// Hints are facts that the caller knows, so that Look need not detect them. File names are
// relative to the folder, and may be patterns.
type Hints struct {
	Load, Weather, Meters []string
	// Columns gives the names of those columns of the load table that do not have usual
	// names.
	Columns  map[string]string
	Interval time.Duration
}

// moreNames are further column names that Look recognises. They are less reliable than
// usualNames, so the description names these columns explicitly.
var moreNames = map[string][]string{
	"meter": {
		"meterid", "meter_no", "meter_number", "household", "household_id", "house", "house_id", "home", "home_id",
		"building", "building_id", "bldg_id", "customer", "customer_id", "client_id", "site", "site_id", "lclid", "series", "series_id", "item_id",
	},
	"time": {
		"local_time", "localtime", "time_stamp", "tstp", "utc_timestamp", "utc", "start_time", "interval_start",
		"end_time", "interval_end", "reading_time", "read_time", "reading_datetime",
	},
	"load":        {"energy", "consumption", "usage", "power", "demand", "reading", "target", "electricity"},
	"temperature": {"temp", "temperature_c", "air_temperature", "airtemperature", "dry_bulb", "t2m"},
	"wind":        {"wind_speed", "windspeed", "wind_speed_ms"},
	"humidity":    {"rh", "relative_humidity"},
	"solar":       {"ghi", "solar_radiation", "global_radiation", "irradiance"},
}

// unitInName finds a unit that is a word of its own in a column name.
var unitInName = regexp.MustCompile(`(?i)(?:^|[^a-z])(kwh|mwh|wh|kw|mw|w)(?:$|[^a-z])`)

// unitOf returns the unit that a column's name contains, or an empty string.
func unitOf(column string) string {
	if m := unitInName.FindStringSubmatch(column); m != nil {
		for _, u := range Units() {
			if strings.EqualFold(u, m[1]) {
				return u
			}
		}
	}
	return ""
}

// Look finds the tables in a folder, their columns and the interval.
func Look(dir string, h Hints) (*Survey, error) {
	paths, err := folder(dir, ".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".txt.gz", ".parquet")
	if err != nil {
		return nil, err
	}
	l := looker{dir: dir, hints: h, survey: &Survey{Description: &Description{}}}
	for _, path := range paths {
		if err := l.look(path); err != nil {
			return nil, err
		}
	}
	return l.survey, l.finish()
}

// looker examines the files of a folder.
type looker struct {
	dir                   string
	hints                 Hints
	survey                *Survey
	load, weather, meters []string // relative paths
	columns               map[string]string
	intervals             map[time.Duration][]string
	weatherColumns        map[string]string
	weatherStep           time.Duration
	seen                  []string // the columns of the files that were not recognised
}

// kind returns the kind of a file according to the hints: load, weather or meters. It
// returns an empty string if the hints name the files of all kinds, but not this one, and
// ? if the columns must decide.
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

// look determines the kind of a file, by its columns unless the hints name it, and adds it.
func (l *looker) look(path string) error {
	name, err := filepath.Rel(l.dir, path)
	if err != nil {
		return err
	}
	kind := l.kind(name)
	if kind == "" {
		l.survey.Left = append(l.survey.Left, name)
		return nil
	}
	err = fileSource(path).read(table.Format{}, func(t table.Table) error {
		names := map[string]string{}
		for _, ours := range []string{"meter", "time", "load"} {
			names[ours] = l.find(t, ours)
		}
		weather := map[string]string{}
		for _, ours := range weatherNames {
			if theirs := l.find(t, ours); theirs != "" {
				weather[ours] = theirs
			}
		}
		switch free := kind == "?"; {
		case kind == "load", free && l.hints.Load == nil && names["time"] != "" && names["load"] != "":
			return l.addLoad(t, name, names)
		case kind == "weather", free && l.hints.Weather == nil && names["time"] != "" && len(weather) > 0:
			weather["time"] = names["time"]
			return l.addWeather(t, name, weather)
		case kind == "meters", free && l.hints.Meters == nil && names["meter"] != "" && names["time"] == "":
			l.meters = append(l.meters, name)
		default:
			l.survey.Left = append(l.survey.Left, name)
			l.seen = append(l.seen, fmt.Sprintf("%s has %s", name, shorten(t.Columns(), 8)))
		}
		return nil
	})
	return err
}

// find returns the name that the file uses for the column with one of our names, or an
// empty string if there is no such column.
func (l *looker) find(t table.Table, name string) string {
	if theirs := l.hints.Columns[name]; theirs != "" {
		if theirs == MeterIsFile || slices.Contains(t.Columns(), theirs) {
			return theirs
		}
		return ""
	}
	for _, usual := range slices.Concat(usualNames[name], moreNames[name]) {
		if c, err := find(t, usual, true); err == nil && c >= 0 {
			return t.Columns()[c]
		}
	}
	if name == "load" {
		// If exactly one column has a unit in its name, take it as the load column.
		var with []string
		for _, c := range t.Columns() {
			if unitOf(c) != "" {
				with = append(with, c)
			}
		}
		if len(with) == 1 {
			return with[0]
		}
	}
	return ""
}

// addLoad adds a file as a load table.
func (l *looker) addLoad(t table.Table, name string, names map[string]string) error {
	for _, ours := range []string{"time", "load"} {
		if names[ours] == "" {
			return fmt.Errorf("found no %s column; the columns are %s", ours, list(t))
		}
	}
	if names["meter"] == "" {
		names["meter"] = MeterIsFile
	}
	columns := unusual(t, names)
	if l.columns == nil {
		l.columns, l.intervals = columns, map[time.Duration][]string{}
		l.survey.Description.Unit = unitOf(names["load"])
		l.survey.Zoned = true
	} else if !maps.Equal(l.columns, columns) {
		return fmt.Errorf("its columns differ from those of %s, which is also a load table; choose the load files", l.load[0])
	}
	meter := -1
	if columns["meter"] != MeterIsFile {
		meter = slices.Index(t.Columns(), names["meter"])
	}
	step, err := l.sample(t, slices.Index(t.Columns(), names["time"]), meter)
	if err != nil {
		return err
	}
	l.load = append(l.load, name)
	l.intervals[step] = append(l.intervals[step], name)
	return nil
}

// unusual returns the columns that Open would not find by their usual names, for
// Table.Columns.
func unusual(t table.Table, names map[string]string) map[string]string {
	columns := map[string]string{}
	for ours, theirs := range names {
		if c, err := (&Table{}).column(t, ours); err != nil || t.Columns()[c] != theirs {
			columns[ours] = theirs
		}
	}
	return columns
}

// addWeather adds a file as a weather table.
func (l *looker) addWeather(t table.Table, name string, names map[string]string) error {
	step, _, err := commonStep(t, slices.Index(t.Columns(), names["time"]), -1, time.UTC)
	if err != nil {
		return err
	}
	l.weather = append(l.weather, name)
	l.weatherColumns, l.weatherStep = unusual(t, names), step
	return nil
}

// sample reads the beginning of a load table. It returns the interval of the table, and
// records whether its times have a UTC offset.
func (l *looker) sample(t table.Table, timeColumn, meterColumn int) (time.Duration, error) {
	step, _, err := commonStep(zoneWatcher{t, &l.survey.Zoned}, timeColumn, meterColumn, time.UTC)
	if errors.Is(err, errNoStep) {
		if l.hints.Interval == 0 {
			return 0, fmt.Errorf("%w; set the interval", err)
		}
		err = nil
	}
	if l.hints.Interval != 0 {
		step = l.hints.Interval
	}
	return step, err
}

// zoneWatcher is a table that clears a flag when a time in the first column has no UTC
// offset.
type zoneWatcher struct {
	table.Table
	zoned *bool
}

func (z zoneWatcher) Each(wanted []int, f func(cells []table.Cell) error) error {
	return z.Table.Each(wanted, func(cells []table.Cell) error {
		*z.zoned = *z.zoned && cells[0].Zoned()
		return f(cells)
	})
}

// finish assembles the description from the files that were added.
func (l *looker) finish() error {
	if len(l.load) == 0 {
		return fmt.Errorf("%s contains no load table with columns for time, load and meter; %s", l.dir, shorten(l.seen, 5))
	}
	if len(l.intervals) > 1 {
		var found []string
		for _, step := range slices.Sorted(maps.Keys(l.intervals)) {
			found = append(found, fmt.Sprintf("%s in %s", step, shorten(l.intervals[step], 3)))
		}
		return fmt.Errorf("the load tables have different intervals: %s; choose the load files", strings.Join(found, ", "))
	}
	d := l.survey.Description
	for step := range l.intervals {
		d.Interval = durationName(step)
	}
	d.Load = Table{Files: l.patterns(l.load), Columns: l.columns}
	if len(l.weather) > 0 {
		d.Weather = &Table{Files: l.patterns(l.weather), Columns: l.weatherColumns}
		if own, err := time.ParseDuration(d.Interval); err == nil && l.weatherStep > own {
			d.Weather.Interval = durationName(l.weatherStep)
		}
	}
	if len(l.meters) > 0 {
		d.Meters = &Table{Files: l.patterns(l.meters)}
	}
	return nil
}

// durationName formats a duration as 15m instead of 15m0s.
func durationName(d time.Duration) string {
	s := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(s, zero) {
			s = s[:len(s)-2]
		}
	}
	return s
}

// patterns returns the given file names. If there are four or more, it returns a pattern
// instead, provided that the pattern matches exactly these files.
func (l *looker) patterns(names []string) []string {
	for i, n := range names {
		names[i] = filepath.ToSlash(n)
	}
	if len(names) < 4 {
		return names
	}
	_, ending, _ := strings.Cut(filepath.Base(names[0]), ".")
	pattern := filepath.ToSlash(filepath.Join(filepath.Dir(names[0]), "*."+ending))
	found, err := matches(l.dir, pattern)
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

// errNoStep means that a table is too short to show its interval.
var errNoStep = errors.New("no meter has two rows, so the interval cannot be detected")

// commonStep reads the beginning of a table. It returns the most frequent time between two
// consecutive rows of the same meter, and the time of the first row. If meterColumn is -1,
// all rows belong to one meter.
func commonStep(t table.Table, timeColumn, meterColumn int, clock *time.Location) (step time.Duration, first int64, err error) {
	const enough = 20000
	var (
		r     = table.NewClock(clock, 0, table.Dates{})
		last  = map[string]int64{}
		count = map[int64]int{}
		rows  = 0
	)
	columns := []int{timeColumn}
	if meterColumn >= 0 {
		columns = append(columns, meterColumn)
	}
	err = t.Each(columns, func(cells []table.Cell) error {
		at, err := r.Instant(&cells[0])
		if errors.Is(err, table.ErrNonexistent) {
			return nil
		}
		if err != nil {
			return err
		}
		id := ""
		if len(cells) > 1 {
			id = string(cells[1].Name())
		}
		if before, ok := last[id]; ok && at.Again == 0 {
			if d := at.Unix - before; d != 0 {
				count[max(d, -d)]++
			}
		}
		if rows == 0 {
			first = at.Unix
		}
		last[id] = at.Unix
		if rows++; rows == enough {
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return 0, 0, err
	}
	var best int64
	for _, d := range slices.Sorted(maps.Keys(count)) {
		if count[d] > count[best] {
			best = d
		}
	}
	if best == 0 {
		return 0, 0, errNoStep
	}
	return time.Duration(best) * time.Second, first, nil
}
