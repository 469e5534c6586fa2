package source

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// neighborhoods are the folders of the states. Their names begin with the state.
var neighborhoods = []string{
	"data/datasets/ca_alameda_county_neighborhood",
	"data/datasets/tx_travis_county_neighborhood",
	"data/datasets/vt_chittenden_county_neighborhood",
}

var resstock = Source{
	Name:       "resstock",
	About:      "247 simulated homes in three states, hourly, 2018",
	Folder:     "resstock-ca-tx-vt",
	Address:    "https://github.com/intelligent-environments-lab/CityLearn",
	Repository: "https://github.com/intelligent-environments-lab/CityLearn",
	Commit:     "b8bad31",
	Paths:      neighborhoods,
	From:       "a checkout of the repository",
	Licence:    "MIT, CityLearn; CC BY 4.0, NREL End-Use Load Profiles (confirm at the source)",
	convert:    convertResStock,
	sums: map[string]string{
		"load_ca.csv.gz":    "ffb223c250cef8826806f8bee679a9ba86a862a88901cef8f1e2781b2f7d9677",
		"load_tx.csv.gz":    "bf264354109e5de8033b5d6bc498025385a8b328d8ff3256803c1acc42054f08",
		"load_vt.csv.gz":    "9ecc83b817a68d047409bfec3c1d241685f07c2b0ddcb0b9653d7e710dbed193",
		"meters.csv":        "300171372d2e39cf575bdb84c51e57c98794cc9d7b999265ffae40ceccb6f72b",
		"weather_ca.csv.gz": "280ba59e79762e6c05c0d93f69c4e1740b83692fedf6975827901008577c2af6",
		"weather_tx.csv.gz": "4c9b14093b504012fcb03e7e9091c86431aaf301fbe92388fa797cbcf508201c",
		"weather_vt.csv.gz": "424b97f291cc5abb6d6f9a6e48c9d187db4f2efbb54134da03bb8369c83f69f2",
	},
}

const (
	resstockHours = 8760
	// heatPump is the fixed coefficient of performance with which heating and cooling are
	// converted to electric load.
	heatPump = 3.0
)

var resstockStart = time.Date(2018, 1, 1, 0, 0, 0, 0, time.UTC)

func convertResStock(from string, out *group) error {
	var meters [][]string
	core := map[string]bool{}
	for _, path := range neighborhoods {
		dir := filepath.Join(from, filepath.FromSlash(path))
		state, _, _ := strings.Cut(filepath.Base(dir), "_")
		homes, err := convertState(state, dir, out)
		if err != nil {
			return err
		}
		var candidates []candidate
		for _, home := range homes {
			meters = append(meters, home.fields)
			candidates = append(candidates, home.candidate)
		}
		for meter := range spread(candidates, 42) {
			core[meter] = true
		}
		if err := convertEPW(state, filepath.Join(dir, "weather.epw"), out); err != nil {
			return err
		}
	}
	names := []string{
		"meter_id", "group", "use", "roof_area_m2", "occupants_max", "cooling_peak_th_kw", "heating_peak_th_kw", "n_rows", "n_missing",
		"mean_kw", "std_kw", "p99_kw", "max_kw", "mean_plug_kw", "core42",
	}
	return out.write("meters.csv", names, func(row func([]byte)) error {
		for _, fields := range meters {
			row([]byte(strings.Join(append(fields, flag(core[fields[0]])), ",")))
		}
		return nil
	})
}

// convertState writes the loads of a state's homes and returns their rows.
func convertState(state, dir string, out *group) ([]building, error) {
	roofs, err := readRoofs(filepath.Join(dir, "schema.json"))
	if err != nil {
		return nil, err
	}
	paths, err := filepath.Glob(filepath.Join(dir, "resstock*.csv"))
	if err != nil {
		return nil, err
	}
	number := map[string]int{}
	for _, path := range paths {
		if number[path], err = strconv.Atoi(strings.TrimSuffix(path[strings.LastIndexByte(path, '-')+1:], ".csv")); err != nil {
			return nil, err
		}
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("%s has no files resstock*.csv", dir)
	}
	slices.SortFunc(paths, func(a, b string) int { return number[a] - number[b] })
	var homes []building
	columns := []string{"meter_id", "timestamp", "load_kw", "plug_kw", "dhw_kw", "cooling_th_kw", "heating_th_kw"}
	err = out.write("load_"+state+".csv.gz", columns, func(row func([]byte)) error {
		for _, path := range paths {
			key := strings.TrimSuffix(filepath.Base(path), ".csv")
			roof, ok := roofs[key]
			if !ok {
				return fmt.Errorf("%s has no building %s", filepath.Join(dir, "schema.json"), key)
			}
			h, err := readHome(path)
			if err != nil {
				return err
			}
			h.meter = fmt.Sprintf("%s_%d", state, number[path])
			h.write(row)
			homes = append(homes, h.describe(state, roof))
		}
		return nil
	})
	return homes, err
}

// readRoofs returns the roof area of each building.
func readRoofs(path string) (map[string]float64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var schema struct {
		Buildings map[string]struct {
			PV struct {
				Autosize struct {
					Roof float64 `json:"roof_area"`
				} `json:"autosize_attributes"`
			} `json:"pv"`
		} `json:"buildings"`
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	roofs := map[string]float64{}
	for name, b := range schema.Buildings {
		roofs[name] = b.PV.Autosize.Roof
	}
	return roofs, nil
}

// home holds the series of a home.
type home struct {
	meter                                        string
	load, plug, water, cooling, heating, persons []float64
}

func readHome(path string) (*home, error) {
	h := &home{}
	firstHour := ""
	err := readCSV(path, named("non_shiftable_load", "dhw_demand", "cooling_demand", "heating_demand", "occupant_count", "hour"), func(row []string) error {
		if firstHour == "" {
			firstHour = row[5]
		}
		for i, values := range []*[]float64{&h.plug, &h.water, &h.cooling, &h.heating, &h.persons} {
			x, err := parse(row[i])
			if err != nil {
				return err
			}
			*values = append(*values, x)
		}
		i := len(h.plug) - 1
		h.load = append(h.load, h.plug[i]+h.water[i]+(h.cooling[i]+h.heating[i])/heatPump)
		return nil
	})
	if err == nil && (len(h.load) != resstockHours || firstHour != "1") {
		err = fmt.Errorf("%s does not have the %d hours of a year from hour 1", path, resstockHours)
	}
	return h, err
}

func (h *home) write(row func([]byte)) {
	hour := 0
	writeSeries(h.meter, resstockStart, time.Hour, h.load, func(line []byte, x float64) []byte {
		line = fixed(line, round(x, 3), 3)
		for _, values := range [][]float64{h.plug, h.water, h.cooling, h.heating} {
			line = fixed(append(line, ','), round(values[hour], 3), 3)
		}
		hour++
		return line
	}, row)
}

func (h *home) describe(state string, roof float64) building {
	s := summarize(h.load)
	return building{
		candidate: candidate{h.meter, round(s.mean, 3)},
		fields: []string{
			h.meter, state, "home", decimal(roof, 1),
			rounded(slices.Max(h.persons), 1), rounded(slices.Max(h.cooling), 2), rounded(slices.Max(h.heating), 2),
			strconv.Itoa(s.rows), strconv.Itoa(s.missing),
			rounded(s.mean, 3), rounded(s.std, 3), rounded(s.p99, 2), rounded(s.max, 2), rounded(summarize(h.plug).mean, 3),
		},
	}
}

// decimal rounds a number as Python does outside of arrays: exactly, without scaling.
func decimal(x float64, digits int) string {
	exact, err := strconv.ParseFloat(strconv.FormatFloat(x, 'f', digits, 64), 64)
	if err != nil {
		exact = math.NaN()
	}
	return string(shortest(nil, exact))
}

// convertEPW writes the weather of an EnergyPlus weather file, which has eight lines above
// its rows.
func convertEPW(state, path string, out *group) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimRight(strings.ReplaceAll(string(text), "\r\n", "\n"), "\n"), "\n")
	if len(lines) != 8+resstockHours {
		return fmt.Errorf("%s has %d lines, not %d", path, len(lines), 8+resstockHours)
	}
	return out.write("weather_"+state+".csv.gz", []string{"timestamp", "temp_c", "wind_ms", "rh_pct", "solar_wm2"}, func(row func([]byte)) error {
		for i, text := range lines[8:] {
			fields := strings.Split(text, ",")
			if len(fields) < 22 {
				return fmt.Errorf("%s, line %d has %d fields", path, 9+i, len(fields))
			}
			line := resstockStart.Add(time.Duration(i)*time.Hour).AppendFormat(nil, stampLayout)
			for _, at := range []int{6, 21, 8, 13} {
				x, err := strconv.ParseFloat(strings.TrimSpace(fields[at]), 64)
				if err != nil {
					return fmt.Errorf("%s, line %d: %w", path, 9+i, err)
				}
				line = fixed(append(line, ','), x, 2)
			}
			row(line)
		}
		return nil
	})
}
