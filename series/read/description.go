// Package read reads load data: tables in the long format (CSV, gzip, Parquet, spreadsheets)
// with a description of their columns, and the format of utilities (Green Button).
//
// A dataset is a folder with a dataset.yaml, or a description file of another name. The
// description states what the tables do not show: the time zone, the unit, and whether a time
// is the start or the end of its interval. The package does not guess. An ambiguous time, a
// decimal comma or a truncated file is an error whose message says how to correct it.
package read

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"loadstar/internal/config"
	"loadstar/internal/textfmt"
	"loadstar/series"
	"loadstar/series/feature"
)

// FileName is the name of a dataset's description in its folder.
const FileName = "dataset.yaml"

// RootEnv is the name of the environment variable that contains the path of the folder of
// shared data.
const RootEnv = "LOADSTAR_DATA"

// Description is the content of a dataset.yaml.
type Description struct {
	Name string `yaml:"name"`
	// About describes the origin of the data.
	About string `yaml:"about,omitempty"`
	// Generated marks synthetic data.
	Generated bool `yaml:"generated,omitempty"`
	// Generate is the name of one of the generator's building stocks, such as bose2023-ca.
	// The dataset is then computed when it is opened, and has no tables.
	Generate string `yaml:"generate,omitempty"`
	// Rooted means that file names are relative to the data root (LOADSTAR_DATA or --root)
	// instead of the folder of this file.
	Rooted bool `yaml:"rooted,omitempty"`

	Zone string `yaml:"zone"` // an IANA name such as Europe/London
	// Clock is "legal" if the labels follow daylight saving, or "standard" if they do not. If
	// the labels are not in the customers' zone, but for example in UTC, Clock may also name
	// the customers' zone. The calendar then follows that zone.
	Clock    string `yaml:"clock,omitempty"`
	Country  string `yaml:"country,omitempty"` // whose public holidays apply: GB, AU-NSW
	Interval string `yaml:"interval"`          // 15m, 30m, 1h
	Stamp    string `yaml:"stamp,omitempty"`   // "start" or "end" of the interval
	Unit     string `yaml:"unit,omitempty"`    // kW, W, MW; or kWh, Wh, MWh per interval

	// Reading is "interval" if a value is the load of its interval, or "counter" if a value is
	// the reading of a counter, whose increase is the load.
	Reading string `yaml:"reading,omitempty"`

	// From is the first day to read. To is the day after the last day to read.
	From string `yaml:"from,omitempty"`
	To   string `yaml:"to,omitempty"`

	Load    Table  `yaml:"load"`
	Weather *Table `yaml:"weather,omitempty"`
	Meters  *Table `yaml:"meters,omitempty"`

	path string
}

// Table describes one kind of table of a dataset: load, weather or meters.
type Table struct {
	// Files may contain patterns such as load/*.parquet.
	Files []string `yaml:"files"`
	// Columns maps our column names to the names in the file. Our names are meter, time, load,
	// date and quality for a load table; time, temperature, wind, humidity, solar, holiday and
	// the names of other numeric columns for a weather table; meter, floor_area and the names of
	// other numeric columns for a table of meters. Columns that are not in the map are found by
	// their usual names.
	Columns map[string]string `yaml:"columns,omitempty"`
	// Where selects the meters whose columns have these values. It is allowed only for a
	// table of meters.
	Where map[string]string `yaml:"where,omitempty"`

	// Encoding is utf-8, windows-1252, utf-16le or utf-16be. A byte-order mark takes
	// precedence.
	Encoding string `yaml:"encoding,omitempty"`
	// Delimiter separates fields: a comma, a semicolon, a bar or "tab". If it is empty, the
	// delimiter is detected from the header.
	Delimiter string `yaml:"delimiter,omitempty"`
	// Header is the name of a column in the header, if there are lines above the header.
	Header string `yaml:"header,omitempty"`
	// Sheet is the name of the sheet to read in a spreadsheet. If it is empty, the first sheet
	// with dates is read.
	Sheet string `yaml:"sheet,omitempty"`
	// Skip is the number of lines between the header and the first row.
	Skip int `yaml:"skip,omitempty"`
	// Footer is the number of lines at the end that are not rows, such as totals.
	Footer int `yaml:"footer,omitempty"`
	// Decimal is a point or a comma. Numbers may then have thousands separators.
	Decimal string `yaml:"decimal,omitempty"`
	// Date is the format of dates, such as dd.mm.yyyy. The default is yyyy-mm-dd.
	Date string `yaml:"date,omitempty"`
	// Ignore lists the columns that are not meters in a table with a column per meter.
	Ignore []string `yaml:"ignore,omitempty"`
	// Missing lists the values in the quality column that mark a missing reading.
	Missing []string `yaml:"missing,omitempty"`

	// Zone, Clock, Interval and Stamp override the dataset's settings for a weather table. If
	// the weather's interval is longer than the load's, a value applies to all steps within its
	// interval.
	Zone     string `yaml:"zone,omitempty"`
	Clock    string `yaml:"clock,omitempty"`
	Interval string `yaml:"interval,omitempty"`
	Stamp    string `yaml:"stamp,omitempty"`
}

// These are the allowed values of Clock and Stamp. Clock may also be a zone.
const (
	ClockLegal    = "legal"
	ClockStandard = "standard"
	StampStart    = "start"
	StampEnd      = "end"
)

// These are the allowed values of Reading.
const (
	ReadingInterval = "interval"
	ReadingCounter  = "counter"
)

// MeterIsFile takes the place of the meter column's name if each file contains one meter
// and is named after it.
const MeterIsFile = "(file name)"

// MeterIsColumn takes the place of the meter column's name if the table has a column for
// each meter, named after it.
const MeterIsColumn = "(column name)"

// NoColumn takes the place of a column's name if the table has a column with the usual name
// that must not be read.
const NoColumn = "(none)"

// units gives, for each unit, the factor that converts it to kW or kWh, and whether the
// unit measures energy per interval instead of power.
var units = map[string]struct {
	kw     float64
	energy bool
}{
	"kW": {1, false}, "W": {1e-3, false}, "MW": {1e3, false},
	"kWh": {1, true}, "Wh": {1e-3, true}, "MWh": {1e3, true},
}

// Units returns the units that a description may use.
func Units() []string { return []string{"kW", "W", "MW", "kWh", "Wh", "MWh"} }

// Load reads a description from a file, or from the dataset.yaml of a folder.
func Load(path string) (*Description, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, FileName)
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && filepath.Base(path) == FileName {
		return nil, fmt.Errorf("%s has no %s; run 'loadstar data init' to create one", filepath.Dir(path), FileName)
	}
	if err != nil {
		return nil, err
	}
	d, err := parse(text)
	if err != nil && slices.Contains([]string{".csv", ".gz", ".ods", ".parquet", ".tsv", ".txt", ".xls", ".xlsx", ".xml"}, strings.ToLower(filepath.Ext(path))) {
		folder := filepath.Dir(path)
		if _, err := os.Stat(filepath.Join(folder, FileName)); err == nil {
			return nil, fmt.Errorf("%s is a table, not a dataset; give the folder with its %s: %s", path, FileName, folder)
		}
		return nil, fmt.Errorf("%s is a table, not a dataset; describe it with 'loadstar data init %s', then give the folder %s", path, path, folder)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	d.path = path
	return d, nil
}

func parse(text []byte) (*Description, error) {
	d := &Description{}
	if err := config.Decode(text, d); err != nil {
		return nil, err
	}
	return d, d.validate()
}

// validate fills in the defaults and checks the description.
func (d *Description) validate() error {
	if d.Name == "" {
		return errors.New("name is missing")
	}
	if d.Generate != "" {
		return d.validateGenerate()
	}
	if d.Zone == "" {
		return errors.New("zone is missing: set the meters' time zone, for example zone: Europe/London or zone: UTC")
	}
	if err := oneOf("unit", &d.Unit, Units()...); err != nil {
		return err
	}
	if d.Reading != "" {
		if err := oneOf("reading", &d.Reading, ReadingInterval, ReadingCounter); err != nil {
			return err
		}
	}
	own, err := d.times()
	if err != nil {
		return err
	}
	if d.Country != "" {
		if _, err := feature.Holidays(d.Country); err != nil {
			return fmt.Errorf("country: %w", err)
		}
	}
	if err := d.validateLoad(); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	if d.Meters != nil {
		if err := d.Meters.validate(); err != nil {
			return fmt.Errorf("meters: %w", err)
		}
	}
	if d.Weather != nil {
		if err := d.validateWeather(own); err != nil {
			return fmt.Errorf("weather: %w", err)
		}
	}
	for _, t := range []*Table{&d.Load, d.Meters} {
		if t != nil && (t.Zone != "" || t.Clock != "" || t.Interval != "" || t.Stamp != "") {
			return errors.New("zone, clock, interval and stamp are allowed only for the dataset and its weather table")
		}
	}
	if d.Load.Where != nil || d.Weather != nil && d.Weather.Where != nil {
		return errors.New("where is allowed only for the table of meters")
	}
	_, _, err = d.bounds()
	return err
}

// validateLoad checks the load table.
func (d *Description) validateLoad() error {
	if err := d.Load.validate(); err != nil {
		return err
	}
	for name := range d.Load.Columns {
		if !slices.Contains([]string{"meter", "time", "load", "date", "quality"}, name) {
			return fmt.Errorf("columns: unknown column %s; a load table has meter, time, load, date and quality", name)
		}
	}
	return d.checkLoad()
}

// validateWeather checks the weather table of a dataset with the given times.
func (d *Description) validateWeather(own times) error {
	if err := d.Weather.validate(); err != nil {
		return err
	}
	theirs, err := d.weatherTimes()
	if err != nil {
		return err
	}
	if theirs.interval%own.interval != 0 {
		return fmt.Errorf("interval %s is not a multiple of the load's interval %s; average the weather over the load's interval", theirs.interval, own.interval)
	}
	return nil
}

func (t *Table) validate() error {
	if len(t.Files) == 0 {
		return errors.New("files are missing")
	}
	for _, name := range slices.Sorted(maps.Keys(t.Columns)) {
		if t.Columns[name] == "" {
			return fmt.Errorf("columns: the name of the %s column is empty", name)
		}
	}
	_, _, err := t.format()
	return err
}

// oneOf sets an empty value to the first allowed value, and returns an error if the value
// is not allowed.
func oneOf(name string, value *string, values ...string) error {
	if *value == "" {
		*value = values[0]
	}
	if !slices.Contains(values, *value) {
		return fmt.Errorf("%s is %q; it must be one of %s", name, *value, strings.Join(values, ", "))
	}
	return nil
}

// times describes how to interpret the times in a table.
type times struct {
	clock    *time.Location // clock of the labels
	local    *time.Location // clock of the calendar
	interval time.Duration
	end      bool // a time is the end of its interval
}

func (d *Description) times() (times, error) {
	return parseTimes(d.Zone, &d.Clock, d.Interval, &d.Stamp)
}

// weatherTimes describes the times of the weather table. Settings that the table lacks
// default to the dataset's settings.
func (d *Description) weatherTimes() (times, error) {
	w := *d.Weather
	if w.Zone == "" {
		w.Zone = d.Zone
		w.Clock = cmp.Or(w.Clock, d.Clock)
	}
	w.Interval = cmp.Or(w.Interval, d.Interval)
	w.Stamp = cmp.Or(w.Stamp, d.Stamp)
	return parseTimes(w.Zone, &w.Clock, w.Interval, &w.Stamp)
}

func parseTimes(zone string, clock *string, interval string, stamp *string) (t times, err error) {
	if err := oneOf("stamp", stamp, StampStart, StampEnd); err != nil {
		return t, err
	}
	t.end = *stamp == StampEnd
	if t.clock, err = loadZone(zone); err != nil {
		return t, err
	}
	switch *clock {
	case "":
		*clock = ClockLegal
	case ClockLegal:
	case ClockStandard:
		t.clock = series.StandardTime(t.clock)
	default:
		if t.local, err = loadZone(*clock); err != nil {
			return t, fmt.Errorf("clock is %q; it must be %s, %s, or the zone in which the customers live, such as Europe/London", *clock, ClockLegal, ClockStandard)
		}
	}
	if t.local == nil {
		t.local = t.clock
	}
	t.interval, err = time.ParseDuration(interval)
	if err != nil || t.interval < time.Second || t.interval%time.Second != 0 || 24*time.Hour%t.interval != 0 {
		return t, fmt.Errorf("interval is %q; it must be a duration that divides a day, such as 15m, 30m or 1h", interval)
	}
	return t, nil
}

// loadZone returns the IANA zone with the given name. It does not accept Local, which
// differs between machines.
func loadZone(name string) (*time.Location, error) {
	zone, err := time.LoadLocation(name)
	if err != nil || name == "" || name == "Local" {
		return nil, fmt.Errorf("zone %q is unknown; %s", name, similarZone(name))
	}
	return zone, nil
}

// similarZone returns a hint for an unknown zone, because people often write only the city.
func similarZone(name string) string {
	city := strings.ReplaceAll(strings.TrimSpace(name), " ", "_")
	if i := strings.LastIndexByte(city, '/'); i >= 0 {
		city = city[i+1:]
	}
	words := strings.Split(strings.ToLower(city), "_")
	for i, w := range words {
		if w != "" {
			words[i] = strings.ToUpper(w[:1]) + w[1:]
		}
	}
	city = strings.Join(words, "_")
	for _, area := range []string{"Europe", "America", "Asia", "Africa", "Australia", "Pacific", "Atlantic", "Indian"} {
		if _, err := time.LoadLocation(area + "/" + city); err == nil && city != "" {
			return fmt.Sprintf("did you mean %s/%s?", area, city)
		}
	}
	known := slices.Sorted(maps.Keys(zoneCountry))
	if hint := config.Suggest(name, known); strings.HasPrefix(hint, "did you mean") {
		return hint
	}
	return "use a name such as Europe/London, or UTC"
}

// checkZone returns an error if name is not a known time zone.
func checkZone(name string) error {
	_, err := loadZone(name)
	return err
}

// bounds returns the period to read in Unix seconds, including from and excluding to.
func (d *Description) bounds() (from, to int64, err error) {
	t, err := d.times()
	if err != nil {
		return 0, 0, err
	}
	from, to = -1<<62, 1<<62
	for _, f := range []struct {
		name, value string
		dst         *int64
	}{{"from", d.From, &from}, {"to", d.To, &to}} {
		if f.value == "" {
			continue
		}
		day, err := time.ParseInLocation(time.DateOnly, f.value, t.clock)
		if err != nil {
			return 0, 0, fmt.Errorf("%s is %q; it must be a day such as 2016-01-01", f.name, f.value)
		}
		*f.dst = day.Unix()
	}
	if from >= to {
		return 0, 0, fmt.Errorf("from %s is not before to %s", d.From, d.To)
	}
	return from, to, nil
}

// sources returns the files that a table's patterns match.
func (d *Description) sources(t *Table, root string) ([]source, error) {
	if t == nil {
		return nil, nil
	}
	dir := filepath.Dir(d.path)
	if d.Rooted {
		root = cmp.Or(root, os.Getenv(RootEnv))
		if root == "" {
			return nil, fmt.Errorf("%s: the data root is missing; give --root DIR or set %s", d.path, RootEnv)
		}
		dir = root
	}
	var files []source
	for _, pattern := range t.Files {
		found, err := matches(dir, pattern)
		if err != nil {
			return nil, fmt.Errorf("files: %s: %w", pattern, err)
		}
		for _, path := range found {
			files = append(files, fileSource(path))
		}
	}
	return files, nil
}

// Present reports whether the files of the dataset exist. A generated dataset
// has no files.
func (d *Description) Present(root string) bool {
	if d.Generate != "" {
		return true
	}
	for _, t := range []*Table{&d.Load, d.Weather, d.Meters} {
		files, err := d.sources(t, root)
		if err != nil {
			return false
		}
		for _, f := range files {
			opened, err := f.open()
			if err != nil {
				return false
			}
			_ = opened.Close() // only whether the file can be opened matters
		}
	}
	return true
}

// matches returns the files that match a pattern, which may be relative to dir. Wildcard
// characters in dir itself have no special meaning.
func matches(dir, pattern string) (paths []string, err error) {
	switch {
	case !strings.ContainsAny(pattern, "*?["):
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(dir, pattern)
		}
		return []string{pattern}, nil
	case filepath.IsLocal(pattern):
		if paths, err = fs.Glob(os.DirFS(dir), filepath.ToSlash(filepath.Clean(pattern))); err != nil {
			return nil, err
		}
		for i, p := range paths {
			paths[i] = filepath.Join(dir, filepath.FromSlash(p))
		}
	case filepath.IsAbs(pattern):
		paths, err = filepath.Glob(pattern)
	default:
		paths, err = filepath.Glob(filepath.Join(dir, pattern))
	}
	if err == nil && len(paths) == 0 {
		err = fmt.Errorf("no file in %s matches", dir)
	}
	return paths, err
}

// comments are the YAML comments that Write adds to the fields of a description.
var comments = map[string]string{
	"zone":     "the meters' time zone",
	"clock":    "legal: labels follow daylight saving; standard: they do not",
	"country":  "whose public holidays apply",
	"interval": "the time between two rows of a meter",
	"stamp":    "whether a time is the start or the end of its interval",
	"reading":  "interval: a value is the load of its interval; counter: the reading of a counter",
	"unit":     "kW, W, MW; or kWh, Wh, MWh per interval",
	"rooted":   "files are relative to --root or " + RootEnv,
}

// Write writes the description to a YAML file, with comments that explain the fields.
func (d *Description) Write(path string) error {
	if err := d.validate(); err != nil {
		return err
	}
	t, err := d.times()
	if err != nil {
		return err
	}
	d.Interval = textfmt.Duration(t.interval)
	var doc yaml.Node
	if err := doc.Encode(d); err != nil {
		return err
	}
	for i := 0; i+1 < len(doc.Content); i += 2 {
		doc.Content[i+1].LineComment = comments[doc.Content[i].Value]
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(&doc); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}
