package source

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The functions in this file reverse a conversion. They write a source's files from the group
// of converted files, and add rows that a conversion must drop.

// rows returns all rows of a group's file, with the named columns, or with all columns if none
// are named.
func rows(t *testing.T, path string, names ...string) [][]string {
	t.Helper()
	var all [][]string
	find := named(names...)
	if len(names) == 0 {
		find = func(header []string) ([]int, error) { return placed(len(header))(header) }
	}
	err := readCSV(path, find, func(row []string) error {
		copied := make([]string, len(row))
		for i, field := range row {
			copied[i] = strings.Clone(field)
		}
		all = append(all, copied)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// eachMeter calls each with the rows of every meter of a load table.
func eachMeter(t *testing.T, path string, names []string, each func(meter string, rows [][]string)) {
	t.Helper()
	meter := ""
	var all [][]string
	err := readCSV(path, named(append([]string{"meter_id", "timestamp"}, names...)...), func(row []string) error {
		if row[0] != meter {
			if meter != "" {
				each(meter, all)
			}
			meter, all = strings.Clone(row[0]), nil
		}
		copied := make([]string, len(row)-1)
		for i, field := range row[1:] {
			copied[i] = strings.Clone(field)
		}
		all = append(all, copied)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	each(meter, all)
}

func put(t *testing.T, path string, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func number(t *testing.T, field string) float64 {
	t.Helper()
	x, err := parse(field)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// yearOf returns the hours of a year as rows of the source's file. value returns the load of
// each hour.
func yearOf(year int, value func(hour int) string) string {
	var text strings.Builder
	text.WriteString("datetime,equipment load [kWh]\n")
	start := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)
	for at := start; at.Year() == year; at = at.Add(time.Hour) {
		fmt.Fprintf(&text, "%s,%s\n", at.Format(textLayout), value(int(at.Sub(start)/time.Hour)))
	}
	return text.String()
}

func writeCambridge(t *testing.T, group, dir string) {
	base := filepath.Join(dir, "building_data", "processed_data")
	file := func(meter, year string) string {
		return filepath.Join(base, "UCam_Building_"+strings.TrimPrefix(meter, "cam_"), "electricity", year+".csv")
	}
	statics := "building_id,gross internal area,storeys,roof area\nb9001,100.0,2,50.0\n"
	for _, m := range rows(t, filepath.Join(group, "meters.csv"), "meter_id", "floor_area_m2", "floors", "roof_area_m2") {
		if m[1] != "" {
			statics += strings.TrimPrefix(strings.Join(m, ","), "cam_") + "\n"
		}
	}
	put(t, filepath.Join(base, "UCam_buildings.csv"), statics)
	eachMeter(t, filepath.Join(group, "load_2013_2019.csv.gz"), []string{"load_kw"}, func(meter string, all [][]string) {
		texts, zeros := map[string]*strings.Builder{}, map[string]bool{}
		for _, row := range all {
			if row[1] == "0.0" {
				zeros[row[0][:4]] = true
			}
		}
		for i, row := range all {
			year := row[0][:4]
			if texts[year] == nil {
				texts[year] = &strings.Builder{}
				texts[year].WriteString("datetime,equipment load [kWh]\n")
			}
			load := row[1]
			if load == "" {
				if zeros[year] {
					continue // zeros are readings in this year, so the gap had no row
				}
				load = "0.0"
			}
			line := strings.Replace(row[0], "T", " ", 1) + "," + load + "\n"
			if i%5000 == 7 {
				line += strings.Replace(row[0], "T", " ", 1) + ",77777.7\n" // only the first of two rows is used
			}
			texts[year].WriteString(line)
		}
		for year := cambridgeFirst; year <= cambridgeLast; year++ {
			if text := texts[strconv.Itoa(year)]; text != nil {
				put(t, file(meter, strconv.Itoa(year)), text.String())
				continue
			}
			// A year without rows in the group had too many bad hours.
			put(t, file(meter, strconv.Itoa(year)), yearOf(year, func(hour int) string {
				if hour%3 == 0 {
					return "0.0"
				}
				return "20.5"
			}))
		}
		put(t, file(meter, "2012"), yearOf(2012, func(int) string { return "5.0" }))
	})
	put(t, file("cam_b9001", "2016"), yearOf(2016, func(hour int) string { return []string{"4.9", "5.0"}[hour%2] }))
	put(t, filepath.Join(base, "UCam_Building_b9002", "gas", "2016.csv"), "datetime,gas\n")
	writeCambridgeWeather(t, group, filepath.Join(dir, "aux_data", "MetOffice Weather Data"))
}

func writeCambridgeWeather(t *testing.T, group, dir string) {
	processed, raw := map[string]*strings.Builder{}, map[string]*strings.Builder{}
	for i, row := range rows(t, filepath.Join(group, "weather.csv.gz"), "timestamp", "temp_c", "rh_pct", "solar_wm2", "wind_ms") {
		year, at := row[0][:4], strings.Replace(row[0], "T", " ", 1)
		if processed[year] == nil {
			processed[year], raw[year] = &strings.Builder{}, &strings.Builder{}
			processed[year].WriteString("datetime,air_temperature [degC],rltv_hum [%],glbl_irad_amt [W/m2]\n")
			raw[year].WriteString("Conventions,G,BADC-CSV,1\ncomments,id,\"0=wind speed estimated,metres per second\"\ndata\nob_time,id,met_domain_name,wind_direction,wind_speed\n")
		}
		processed[year].WriteString(strings.Join([]string{at, row[1], row[2], row[3]}, ",") + "\n")
		speed := "NA"
		if row[4] != "" {
			speed = strconv.FormatFloat(math.Round(number(t, row[4])/knot), 'f', 1, 64)
		}
		raw[year].WriteString(at + ",03560,SYNOP,210.0," + speed + "\n")
		if i%100 == 0 {
			raw[year].WriteString(strings.Replace(at, ":00:00", ":30:00", 1) + ",03560,SYNOP,210.0,99.0\n")
			if speed != "NA" {
				raw[year].WriteString(at + ",03560,AWSHRLY,210.0,98.0\n")
			}
		}
	}
	for year := range processed {
		put(t, filepath.Join(dir, "processed_data", "bedford", year+".csv"), processed[year].String())
		put(t, filepath.Join(dir, "raw_data", "hourly_weather", "midas-open_uk-hourly-weather-obs_dv-202308_bedfordshire_00461_bedford_qcv-1_"+year+".csv"), raw[year].String()+"end data\n")
	}
}

func writeBDG2(t *testing.T, group, dir string) {
	const header = "month,weekday,day,hour,holiday,airTemp,value\n"
	for _, site := range []string{"Hog", "Robin"} {
		weather := rows(t, filepath.Join(group, "weather_"+strings.ToLower(site)+".csv.gz"), "timestamp", "temp_c", "holiday")
		line := func(text *strings.Builder, hour int, value string) {
			at, err := time.Parse(stampLayout, weather[hour][0])
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(text, "%d,%d,%d,%d,%s,%s,%s\n", at.Month(), at.Weekday(), at.Day(), at.Hour(), weather[hour][2], weather[hour][1], strings.TrimSuffix(value, ".0"))
		}
		file := func(name string) string { return filepath.Join(dir, "dataset", "BDG2_dataset", name+".csv") }
		eachMeter(t, filepath.Join(group, "load_"+strings.ToLower(site)+".csv.gz"), []string{"load_kw"}, func(meter string, all [][]string) {
			var text strings.Builder
			text.WriteString(header)
			for hour, row := range all {
				line(&text, hour, row[1])
			}
			put(t, file(meter), text.String())
		})
		// One file is too short, and the other has its hours in the wrong order.
		var short, order strings.Builder
		short.WriteString(header)
		order.WriteString(header)
		for hour := range weather {
			if hour > 3000 {
				line(&short, hour, "5")
			}
			line(&order, (hour+1)%len(weather), "5")
		}
		put(t, file(site+"_office_Victor"), short.String())
		put(t, file(site+"_office_Maryann"), order.String())
	}
}

func writeSGSC(t *testing.T, group, dir string) {
	controlled := map[string]bool{}
	for _, m := range rows(t, filepath.Join(group, "meters.csv"), "meter_id", "has_controlled_load") {
		controlled[m[0]] = m[1] == "1.0"
	}
	file, err := os.Create(filepath.Join(dir, "union.csv.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	text := bufio.NewWriter(file)
	fmt.Fprint(text, "meter_id,timestamp,general_kwh,controlled_kwh,gen_gross_kwh,gen_net_kwh,other_kwh\n")
	home := func(meter string, hours int, energy string) {
		for i := range hours {
			at := time.Date(2012, 6, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(i) * time.Hour / 2)
			fmt.Fprintf(text, "%s,%s,%s,0,0,0,0\n", meter, at.Format(stampLayout), energy)
		}
	}
	home("1", 48*399, "0.5") // too short
	eachMeter(t, filepath.Join(group, "load_30min.csv.gz"), []string{"load_kw"}, func(meter string, all [][]string) {
		for i, row := range all {
			if row[1] == "" {
				continue
			}
			milli := int(math.Round(number(t, row[1]) * 500))
			boiler := 0
			if controlled[meter] && i%7 == 0 {
				boiler = milli / 3
			}
			fmt.Fprintf(text, "%s,%s,%.3f,%.3f,0,0,0\n", strings.TrimPrefix(meter, "sgsc_"), row[0], float64(milli-boiler)/1000, float64(boiler)/1000)
			if i%1000 == 0 {
				fmt.Fprintf(text, "%s,%s,9,9,0,0,0\n", strings.TrimPrefix(meter, "sgsc_"), row[0][:14]+"15:00")
			}
		}
	})
	home("99999998", 48*500, "0.009") // nobody lives there
	home("99999999", 48*500, "NA")
	if err := text.Flush(); err != nil {
		t.Fatal(err)
	}
}
