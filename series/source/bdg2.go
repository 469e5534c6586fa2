package source

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

var bdg2 = Source{
	Name:       "bdg2",
	About:      "91 buildings at two sites, hourly, 2016-2017",
	Folder:     "bdg2-hog-robin",
	Address:    "https://doi.org/10.1038/s41597-020-00712-x",
	Repository: "https://github.com/hkuedl/Make-Smart-Meter-Really-Smart",
	Commit:     "d1c674f",
	Paths:      []string{"dataset/BDG2_dataset"},
	From:       "a checkout of the repository",
	Licence:    "CC BY-SA 4.0, Miller et al., Building Data Genome Project 2",
	convert:    convertBDG2,
	sums: map[string]string{
		"load_hog.csv.gz":      "7e71ea25f503910201e8a4717ffee9c2fbd789711b4cc28203f087e64c224403",
		"load_robin.csv.gz":    "32054eb8a5df2e28037520d7ecf977a9bab2065f72cba370117e4e78c4445111",
		"meters.csv":           "9adb33c64759a81a3e964b2ef62afd3cb3635adc48acac230ffa5ac5532534b6",
		"weather_hog.csv.gz":   "2029d9d884cb0c361c86280e8c9e3188aa0aaf8cd7730c99956a248e18808b7d",
		"weather_robin.csv.gz": "538f3a83155f87c00dad3d533c05eaab597caf1ba8e33c9da620cf7d80ba0aab",
	},
}

// bdg2Hours is the number of hours of 2016 and 2017.
const bdg2Hours = 17544

var bdg2Start = time.Date(2016, 1, 1, 0, 0, 0, 0, time.UTC)

// extract contains the source's file for one building.
type extract struct {
	name, site, use      string
	temperature, holiday []float64
	load                 []float64
}

func convertBDG2(from string, out *group) error {
	paths, err := filepath.Glob(filepath.Join(from, "dataset", "BDG2_dataset", "*.csv"))
	if err != nil {
		return err
	}
	if len(paths) == 0 {
		return fmt.Errorf("%s has no files dataset/BDG2_dataset/*.csv", from)
	}
	slices.Sort(paths)
	var meters [][]string
	candidates := map[string][]candidate{}
	for len(paths) > 0 {
		site, _, _ := strings.Cut(filepath.Base(paths[0]), "_")
		end := slices.IndexFunc(paths, func(path string) bool { return !strings.HasPrefix(filepath.Base(path), site+"_") })
		if end < 0 {
			end = len(paths)
		}
		rows, err := convertSite(strings.ToLower(site), paths[:end], out)
		if err != nil {
			return err
		}
		for _, row := range rows {
			meters = append(meters, row.fields)
			candidates[site] = append(candidates[site], row.candidate)
		}
		paths = paths[end:]
	}
	core := map[string]bool{}
	for _, site := range candidates {
		for meter := range spread(site, 42) {
			core[meter] = true
		}
	}
	names := []string{
		"meter_id", "group", "use", "n_rows", "n_missing", "n_zero", "frac_repeat", "mean_kw", "std_kw", "p99_kw", "max_kw", "core42",
	}
	return out.write("meters.csv", names, func(row func([]byte)) error {
		for _, fields := range meters {
			row([]byte(strings.Join(append(fields, flag(core[fields[0]])), ",")))
		}
		return nil
	})
}

// convertSite writes the load and the weather of a site, and returns the rows of its meters.
func convertSite(site string, paths []string, out *group) ([]building, error) {
	var meters []building
	var first *extract
	err := out.write("load_"+site+".csv.gz", []string{"meter_id", "timestamp", "load_kw"}, func(row func([]byte)) error {
		for _, path := range paths {
			e, ok, err := readExtract(path)
			if err != nil {
				return err
			}
			if !ok {
				continue
			}
			if first == nil {
				first = e
			}
			if !slices.Equal(first.temperature, e.temperature) {
				return fmt.Errorf("%s has a different temperature from the other buildings of the site", path)
			}
			writeSeries(e.name, bdg2Start, time.Hour, e.load, func(line []byte, x float64) []byte { return shortest(line, round(x, 3)) }, row)
			meters = append(meters, e.describe())
		}
		return nil
	})
	if err != nil || first == nil {
		return nil, err
	}
	return meters, out.write("weather_"+site+".csv.gz", []string{"timestamp", "temp_c", "holiday"}, func(row func([]byte)) error {
		for i, x := range first.temperature {
			line := append(bdg2Start.Add(time.Duration(i)*time.Hour).AppendFormat(nil, stampLayout), ',')
			line = append(shortest(line, x), ',')
			row(strconv.AppendInt(line, int64(first.holiday[i]), 10))
		}
		return nil
	})
}

// readExtract reads a building's file. The source has columns for month, day and hour instead
// of a time, so a file is ok only if its rows are the hours of 2016 and 2017 in order.
func readExtract(path string) (e *extract, ok bool, err error) {
	name := strings.TrimSuffix(filepath.Base(path), ".csv")
	parts := strings.Split(name, "_")
	if len(parts) != 3 {
		return nil, false, fmt.Errorf("%s is not named SITE_USE_NAME.csv", path)
	}
	e = &extract{name: name, site: strings.ToLower(parts[0]), use: parts[1]}
	ok = true
	at := bdg2Start
	err = readCSV(path, named("month", "day", "hour", "airTemp", "holiday", "value"), func(row []string) error {
		for i, want := range []int{int(at.Month()), at.Day(), at.Hour()} {
			got, err := strconv.Atoi(row[i])
			if err != nil {
				return err
			}
			ok = ok && got == want
		}
		at = at.Add(time.Hour)
		for i, values := range []*[]float64{&e.temperature, &e.holiday, &e.load} {
			x, err := parse(row[3+i])
			if err != nil {
				return err
			}
			*values = append(*values, x)
		}
		return nil
	})
	return e, ok && len(e.load) == bdg2Hours, err
}

func (e *extract) describe() building {
	s := summarize(e.load)
	repeats := 0
	for i, x := range e.load[1:] {
		if x-e.load[i] == 0 {
			repeats++
		}
	}
	return building{
		candidate: candidate{e.name, round(s.mean, 2)},
		fields: []string{
			e.name, e.site, e.use, strconv.Itoa(s.rows), strconv.Itoa(s.missing), strconv.Itoa(s.zero),
			rounded(float64(repeats)/float64(len(e.load)), 3),
			rounded(s.mean, 2), rounded(s.std, 2), rounded(s.p99, 1), rounded(s.max, 1),
		},
	}
}
