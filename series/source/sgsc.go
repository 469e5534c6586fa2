package source

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

var sgsc = Source{
	Name:    "sgsc",
	About:   "83 homes, half-hourly and hourly, 2012-2014",
	Folder:  "sgsc-households",
	Address: "https://data.gov.au/dataset/4e21dea3-9b87-4610-94c7-15a8a77907ef",
	Steps: []string{
		"git clone https://github.com/Sayani07/gravitas",
		"git clone https://github.com/Sayani07/paper-gravitas",
		"mkdir samples",
		"git -C gravitas cat-file blob a36e24b2 > samples/b_raw.rds",
		"git -C gravitas cat-file blob eac8d6a1 > samples/c_tbl50.rds",
		"git -C paper-gravitas cat-file blob 6bd03cd6 > samples/f_sm50.rds",
		"git -C paper-gravitas cat-file blob edc50193 > samples/h_sm50.rds",
		"Rscript datasets/sgsc-union.R samples union.csv.gz",
	},
	From:    "the file union.csv.gz that datasets/sgsc-union.R writes",
	Licence: "CC BY 3.0 Australia, Smart Grid, Smart City, Commonwealth of Australia / Ausgrid (confirm at the source)",
	convert: convertSGSC,
	sums: map[string]string{
		"load_30min.csv.gz":  "db34bc270da16693bbc9a77263bdff8773ce52842285a4e5f6299b886392b8bc",
		"load_hourly.csv.gz": "550e438b99f9b8e4c2f76ab7e7a4c9fb7d30bac5f378fb39192e82a118089460",
		"meters.csv":         "93defd55fe6b1dfa3600f5a78f61071933c0a89589df1b2339e2baf7391594a6",
	},
}

// reading is a half hour of a home in the union of the samples.
type reading struct {
	at                         time.Time
	general, controlled, other float64 // in kWh; other is generated energy
}

func convertSGSC(from string, out *group) error {
	half, err := out.create("load_30min.csv.gz", "meter_id", "timestamp", "load_kw")
	if err != nil {
		return err
	}
	hour, err := out.create("load_hourly.csv.gz", "meter_id", "timestamp", "load_kw")
	if err != nil {
		return half.close(err)
	}
	var homes []building
	err = readHouseholds(from, func(meter string, readings []reading) {
		if h := newHousehold("sgsc_"+meter, readings); h.usable() {
			h.write(half.row, hour.row)
			homes = append(homes, h.describe())
		}
	})
	if err := errors.Join(err, half.close(nil), hour.close(nil)); err != nil {
		return err
	}
	var candidates []candidate
	for _, h := range homes {
		if h.core {
			candidates = append(candidates, h.candidate)
		}
	}
	core := spread(candidates, 19)
	names := []string{
		"meter_id", "first", "last", "days", "n_missing", "n_zero", "n_hours", "n_missing_hours", "mean_kw", "std_kw", "p99_kw", "max_kw",
		"has_controlled_load", "has_pv", "core19",
	}
	return out.write("meters.csv", names, func(row func([]byte)) error {
		for _, h := range homes {
			row([]byte(strings.Join(append(h.fields, flag(core[h.candidate.meter])), ",")))
		}
		return nil
	})
}

// readHouseholds calls each with the readings of every home. The file is sorted by home and
// time, so only one home is in memory.
func readHouseholds(from string, each func(meter string, readings []reading)) error {
	if info, err := os.Stat(from); err == nil && info.IsDir() {
		from = filepath.Join(from, "union.csv.gz")
	}
	meter := ""
	last := 0
	var readings []reading
	find := named("meter_id", "timestamp", "general_kwh", "controlled_kwh", "gen_gross_kwh", "gen_net_kwh")
	if err := readCSV(from, find, func(row []string) error {
		if row[0] != meter {
			if len(readings) > 0 {
				each(meter, readings)
			}
			number, err := strconv.Atoi(row[0])
			if err != nil || number <= last {
				return fmt.Errorf("the rows are not sorted by the number of the meter: %s follows %s", row[0], meter)
			}
			meter, last = strings.Clone(row[0]), number
			readings = readings[:0]
		}
		r, err := parseReading(row)
		if err != nil {
			return err
		}
		if r.at.Minute()%30 != 0 || r.at.Second() != 0 {
			return nil
		}
		if len(readings) > 0 && !r.at.After(readings[len(readings)-1].at) {
			return fmt.Errorf("the rows of meter %s are not sorted by time", meter)
		}
		readings = append(readings, r)
		return nil
	}); err != nil {
		return err
	}
	if len(readings) > 0 {
		each(meter, readings)
	}
	return nil
}

func parseReading(row []string) (r reading, err error) {
	if r.at, err = time.Parse(stampLayout, row[1]); err != nil {
		return r, err
	}
	var gross, net float64
	for i, value := range []*float64{&r.general, &r.controlled, &gross, &net} {
		field := row[2+i]
		if field == "NA" {
			field = ""
		}
		if *value, err = parse(field); err != nil {
			return r, err
		}
	}
	for _, x := range []float64{gross, net} {
		if !math.IsNaN(x) {
			r.other += x
		}
	}
	return r, nil
}

// household holds a home's energy in each half hour from its first to its last reading.
type household struct {
	meter                 string
	first, last           time.Time
	energy                []float64 // kWh
	controlled, generated float64   // kWh in total
}

func newHousehold(meter string, readings []reading) *household {
	h := &household{meter: meter, first: readings[0].at, last: readings[len(readings)-1].at}
	h.energy = missing(int(h.last.Sub(h.first)/(30*time.Minute)) + 1)
	for _, r := range readings {
		h.energy[int(r.at.Sub(h.first)/(30*time.Minute))] = r.general + r.controlled
		if !math.IsNaN(r.controlled) {
			h.controlled += r.controlled
		}
		h.generated += r.other
	}
	return h
}

func (h *household) days() float64 { return float64(len(h.energy)) / 48 }

// usable reports whether the home has at least 400 days, with at most a fifth of the
// readings missing, and is not empty.
func (h *household) usable() bool {
	s := summarize(h.energy)
	return !(h.days() < 400 || float64(s.missing)/float64(s.rows) > 0.20 || s.mean < 0.02)
}

// power returns the mean power of each half hour in kW.
func (h *household) power() []float64 {
	power := make([]float64, len(h.energy))
	for i, x := range h.energy {
		power[i] = x * 2
	}
	return power
}

// hours returns the first full hour and the mean power of each hour. An hour without both
// halves is missing.
func (h *household) hours() (time.Time, []float64) {
	halves := h.power()
	start := h.first
	if start.Minute() != 0 {
		start = start.Add(30 * time.Minute)
		halves = halves[1:]
	}
	var hours []float64
	for len(halves) > 1 {
		hours = append(hours, (halves[0]+halves[1])/2)
		halves = halves[2:]
	}
	if len(halves) > 0 {
		hours = append(hours, math.NaN())
	}
	return start, hours
}

func (h *household) write(half, hour func([]byte)) {
	format := func(line []byte, x float64) []byte { return shortest(line, round(x, 3)) }
	writeSeries(h.meter, h.first, 30*time.Minute, h.power(), format, half)
	start, hours := h.hours()
	writeSeries(h.meter, start, time.Hour, hours, format, hour)
}

func (h *household) describe() building {
	s := summarize(h.power())
	_, hours := h.hours()
	missingHours := len(hours) - len(present(hours))
	covers := !h.first.After(time.Date(2012, 6, 15, 0, 0, 0, 0, time.UTC)) && !h.last.Before(time.Date(2014, 2, 15, 0, 0, 0, 0, time.UTC))
	// Counts have a decimal in columns in which the original table had empty fields. Those
	// fields belonged to homes that were later dropped.
	return building{
		candidate: candidate{h.meter, round(s.mean, 4)},
		core:      h.generated <= 0 && covers && float64(missingHours) < 0.02*float64(len(hours)),
		fields: []string{
			h.meter, h.first.Format(textLayout), h.last.Format(textLayout), strconv.Itoa(int(math.RoundToEven(h.days()))),
			strconv.Itoa(s.missing), strconv.Itoa(s.zero) + ".0", strconv.Itoa(len(hours)) + ".0", strconv.Itoa(missingHours) + ".0",
			rounded(s.mean, 4), rounded(s.std, 4), rounded(s.p99, 3), rounded(s.max, 3),
			flag(h.controlled > 0) + ".0", flag(h.generated > 0) + ".0",
		},
	}
}
