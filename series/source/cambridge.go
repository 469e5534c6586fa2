package source

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

var cambridge = Source{
	Name:       "cambridge",
	About:      "114 university buildings, hourly, 2013-2019",
	Folder:     "cambridge-estates",
	Address:    "https://doi.org/10.5281/zenodo.10955332",
	Repository: "https://github.com/EECi/Cambridge-Estates-Building-Energy-Archive",
	Commit:     "97b8a6b",
	Paths:      []string{"building_data/processed_data", "aux_data/MetOffice Weather Data"},
	From:       "a checkout of the repository",
	Licence:    "load: MIT, Energy Efficient Cities Initiative, University of Cambridge; weather: Open Government Licence v3.0, Met Office",
	convert:    convertCambridge,
	sums: map[string]string{
		"load_2013_2019.csv.gz": "00fbea9f5e747ff80a41d3943e828bad873def216a8d45021922e1761f476781",
		"meters.csv":            "681673f449ddb9d11b8a8f6da48140d46ad19cd95b386913693dcbff8379b89d",
		"weather.csv.gz":        "30589b5512f2a7a3311dfd77c0fa4bb7c547e53444d4838175b144be49616eac",
	},
}

const (
	cambridgeFirst, cambridgeLast = 2013, 2019

	// stampLayout is the time format of the groups' series and of the sgsc table. textLayout is the
	// format of the Cambridge archive and of sgsc's meters.csv.
	stampLayout = "2006-01-02T15:04:05"
	textLayout  = time.DateTime
	// knot is one knot in m/s.
	knot = 0.514444
)

// building is a building's row in meters.csv, without core42.
type building struct {
	fields    []string
	candidate candidate
	// core means that the building is complete enough for core42.
	core bool
}

func convertCambridge(from string, out *group) error {
	base := filepath.Join(from, "building_data", "processed_data")
	statics, err := cambridgeStatics(base)
	if err != nil {
		return err
	}
	folders, err := cambridgeFolders(base)
	if err != nil {
		return err
	}
	var buildings []building
	err = out.write("load_2013_2019.csv.gz", []string{"meter_id", "timestamp", "load_kw"}, func(row func([]byte)) error {
		for _, folder := range folders {
			years, err := cambridgeYears(filepath.Join(base, folder, "electricity"))
			if err != nil {
				return err
			}
			b, ok := describeBuilding(strings.TrimPrefix(folder, "UCam_Building_"), years, statics)
			if !ok {
				continue
			}
			buildings = append(buildings, b)
			for _, year := range years {
				year.write(b.candidate.meter, row)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := writeBuildings(out, buildings); err != nil {
		return err
	}
	return cambridgeWeather(filepath.Join(from, "aux_data", "MetOffice Weather Data"), out)
}

func writeBuildings(out *group, buildings []building) error {
	var candidates []candidate
	for _, b := range buildings {
		if b.core {
			candidates = append(candidates, b.candidate)
		}
	}
	core := spread(candidates, 42)
	columns := []string{
		"meter_id", "group", "use", "floor_area_m2", "floors", "roof_area_m2", "years", "n_rows", "n_missing", "n_zero",
		"mean_kw", "std_kw", "p99_kw", "max_kw", "full_2016_2017", "full_2016_2018", "full_span", "core42",
	}
	return out.write("meters.csv", columns, func(row func([]byte)) error {
		for _, b := range buildings {
			row([]byte(strings.Join(append(b.fields, flag(core[b.candidate.meter])), ",")))
		}
		return nil
	})
}

// cambridgeFolders returns the folders of the buildings in the order of their numbers.
func cambridgeFolders(base string) ([]string, error) {
	paths, err := filepath.Glob(filepath.Join(base, "UCam_Building_b*"))
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("%s has no folders UCam_Building_b*", base)
	}
	number := map[string]int{}
	for i, path := range paths {
		paths[i] = filepath.Base(path)
		if number[paths[i]], err = strconv.Atoi(strings.TrimPrefix(paths[i], "UCam_Building_b")); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(paths, func(a, b string) int { return number[a] - number[b] })
	return paths, nil
}

// cambridgeStatics reads the floor area, the number of floors and the roof area of each
// building.
func cambridgeStatics(base string) (map[string][]string, error) {
	paths, err := filepath.Glob(filepath.Join(base, "*.csv"))
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("%s has no table of the buildings", base)
	}
	statics := map[string][]string{}
	return statics, readCSV(paths[0], placed(4), func(row []string) error {
		values := make([]string, 3)
		for i, field := range row[1:] {
			x, err := parse(field)
			if err != nil {
				return err
			}
			values[i] = string(shortest(nil, x))
		}
		statics[row[0]] = values
		return nil
	})
}

// year is a year of hourly loads.
type year struct {
	number int
	start  time.Time
	loads  []float64
}

func (y year) write(meter string, row func([]byte)) {
	writeSeries(meter, y.start, time.Hour, y.loads, func(line []byte, x float64) []byte { return fixed(line, x, 1) }, row)
}

// writeSeries writes a row for each value of a meter.
func writeSeries(meter string, start time.Time, interval time.Duration, values []float64, format func([]byte, float64) []byte, row func([]byte)) {
	var line []byte
	for i, x := range values {
		line = append(append(line[:0], meter...), ',')
		line = append(start.Add(time.Duration(i)*interval).AppendFormat(line, stampLayout), ',')
		line = format(line, x)
		row(line)
	}
}

// cambridgeYears reads the usable years of a building.
func cambridgeYears(dir string) ([]year, error) {
	var years []year
	for number := cambridgeFirst; number <= cambridgeLast; number++ {
		y, err := readYear(filepath.Join(dir, fmt.Sprintf("%d.csv", number)), number)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		y.restoreGaps()
		if y.usable() {
			years = append(years, y)
		}
	}
	return years, nil
}

func readYear(path string, number int) (year, error) {
	y := year{number: number, start: time.Date(number, 1, 1, 0, 0, 0, 0, time.UTC)}
	hours := int(y.start.AddDate(1, 0, 0).Sub(y.start) / time.Hour)
	y.loads = missing(hours)
	seen := make([]bool, hours)
	return y, readCSV(path, placed(2), func(row []string) error {
		at, err := time.Parse(textLayout, row[0])
		if err != nil {
			return err
		}
		load, err := parse(row[1])
		if err != nil {
			return err
		}
		since := at.Sub(y.start)
		if hour := int(since / time.Hour); since >= 0 && hour < hours && since%time.Hour == 0 && !seen[hour] {
			seen[hour] = true
			y.loads[hour] = load
		}
		return nil
	})
}

// missing returns a series without values.
func missing(count int) []float64 {
	values := make([]float64, count)
	for i := range values {
		values[i] = math.NaN()
	}
	return values
}

// restoreGaps removes zeros that cannot be readings. The source writes 0 for a missing or
// invalid reading. If 95 % of the other readings are at least 1 kW, the building is never
// almost idle, so a 0 is a gap.
func (y year) restoreGaps() {
	positive := slices.DeleteFunc(slices.Clone(y.loads), func(x float64) bool { return !(x > 0) })
	if len(positive) == 0 || quantile(positive, 0.05) < 1 {
		return
	}
	for i, x := range y.loads {
		if x == 0 {
			y.loads[i] = math.NaN()
		}
	}
}

// bad returns the number of hours that are missing or 0.
func (y year) bad() (gaps, zeros int) {
	for _, x := range y.loads {
		if math.IsNaN(x) {
			gaps++
		} else if x == 0 {
			zeros++
		}
	}
	return gaps, zeros
}

// usable reports whether at most 30 % of the hours are bad.
func (y year) usable() bool {
	gaps, zeros := y.bad()
	hours := float64(len(y.loads))
	return float64(gaps)/hours+float64(zeros)/hours <= 0.30
}

// describeBuilding returns a building's row. It returns false if no year is usable, or if
// the load is constant except for rounding.
func describeBuilding(id string, years []year, statics map[string][]string) (b building, ok bool) {
	var all []float64
	var names []string
	has := map[int]bool{}
	bad := 0
	for _, y := range years {
		all = append(all, y.loads...)
		names = append(names, strconv.Itoa(y.number))
		has[y.number] = true
		if y.number >= 2016 && y.number <= 2018 {
			gaps, zeros := y.bad()
			bad += gaps + zeros
		}
	}
	s := summarize(all)
	if len(years) == 0 || s.std < 0.2 {
		return b, false
	}
	full := func(first, last int) bool {
		for number := first; number <= last; number++ {
			if !has[number] {
				return false
			}
		}
		return true
	}
	static, known := statics[id]
	if !known {
		static = []string{"", "", ""}
	}
	b.candidate = candidate{"cam_" + id, round(s.mean, 2)}
	b.core = full(2016, 2018) && static[0] != "" && float64(bad) < 0.05*3*8760
	b.fields = append([]string{b.candidate.meter, "cambridge", "university"}, static...)
	b.fields = append(b.fields, strings.Join(names, " "), strconv.Itoa(s.rows), strconv.Itoa(s.missing), strconv.Itoa(s.zero),
		rounded(s.mean, 2), rounded(s.std, 2), rounded(s.p99, 1), rounded(s.max, 1),
		flag(full(2016, 2017)), flag(full(2016, 2018)), flag(full(cambridgeFirst, cambridgeLast)))
	return b, true
}

// cambridgeWeather writes the weather of Bedford. The archive's processed series have no
// wind, so it comes from the raw files.
func cambridgeWeather(dir string, out *group) error {
	return out.write("weather.csv.gz", []string{"timestamp", "temp_c", "wind_ms", "rh_pct", "solar_wm2"}, func(row func([]byte)) error {
		for number := cambridgeFirst; number <= cambridgeLast; number++ {
			wind, err := readWind(filepath.Join(dir, "raw_data", "hourly_weather"), number)
			if err != nil {
				return err
			}
			path := filepath.Join(dir, "processed_data", "bedford", fmt.Sprintf("%d.csv", number))
			if err := readCSV(path, placed(4), func(fields []string) error {
				line := []byte(strings.Replace(fields[0], " ", "T", 1))
				speed, ok := wind[fields[0]]
				if !ok {
					speed = math.NaN()
				}
				values := []float64{0, speed * knot, 0, 0}
				for i, at := range []int{0, 2, 3} {
					x, err := parse(fields[i+1])
					if err != nil {
						return err
					}
					values[at] = x
				}
				for _, x := range values {
					line = fixed(append(line, ','), x, 2)
				}
				row(line)
				return nil
			}); err != nil {
				return err
			}
		}
		return nil
	})
}

// readWind returns the wind speed in knots at each full hour. The raw file is in the format
// BADC-CSV: a list of attributes, the line "data", a table, and the line "end data".
func readWind(dir string, number int) (map[string]float64, error) {
	paths, err := filepath.Glob(filepath.Join(dir, fmt.Sprintf("*qcv-1_%d.csv", number)))
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("%s has no file for %d", dir, number)
	}
	file, err := os.Open(paths[0])
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() && lines.Text() != "data" {
	}
	lines.Scan()
	header := strings.Split(lines.Text(), ",")
	timeAt, speedAt := slices.Index(header, "ob_time"), slices.Index(header, "wind_speed")
	if timeAt < 0 || speedAt < 0 {
		return nil, errors.Join(fmt.Errorf("%s has no table with ob_time and wind_speed", paths[0]), lines.Err())
	}
	wind := map[string]float64{}
	for lines.Scan() {
		fields := strings.Split(lines.Text(), ",")
		if len(fields) <= max(timeAt, speedAt) {
			continue
		}
		at, speed := fields[timeAt], fields[speedAt]
		if _, seen := wind[at]; seen || speed == "" || speed == "NA" || !strings.HasSuffix(at, ":00:00") {
			continue
		}
		if wind[at], err = strconv.ParseFloat(speed, 64); err != nil {
			return nil, fmt.Errorf("%s: %w", paths[0], err)
		}
	}
	return wind, lines.Err()
}
