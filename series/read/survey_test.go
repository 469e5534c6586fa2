package read

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/series/table"
)

func TestUnitOf(t *testing.T) {
	for name, want := range map[string]string{
		"load_kw": "kW", "Usage [kWh]": "kWh", "KWH/hh (per half hour) ": "kWh", "energy_consumption..kwh": "kWh", "power_w": "W",
		"MWh": "MWh", "Wh": "Wh", "y": "", "value": "", "window": "", "flow": "", "knowhow": "", "load (kW)": "kW", "P_MW": "MW",
	} {
		if got := table.UnitOf(name); got != want {
			t.Errorf("the unit of %q is %q, want %q", name, got, want)
		}
	}
}

func TestLook(t *testing.T) {
	const load = "meter_id,timestamp,load_kw\na,2020-01-01 00:00,1\na,2020-01-01 00:30,1\na,2020-01-01 01:00,1\n"
	for _, c := range []struct {
		name  string
		files map[string]string
		hints Hints
		check func(s *Survey, d *Description) bool
		want  string // text of an error
	}{
		{"the usual names", map[string]string{
			"load.csv": load, "weather.csv": "timestamp,temp_c\n2020-01-01 00:00,1\n2020-01-01 00:30,1\n", "meters.csv": "meter_id,floor_area\na,1\n", "x.csv": "a,b\n",
		}, Hints{}, func(s *Survey, d *Description) bool {
			return !s.Zoned && d.Interval == "30m" && d.Unit == "kW" && slices.Equal(d.Load.Files, []string{"load.csv"}) && len(d.Load.Columns) == 0 &&
				slices.Equal(d.Weather.Files, []string{"weather.csv"}) && d.Weather.Interval == "" && slices.Equal(d.Meters.Files, []string{"meters.csv"}) && slices.Equal(s.Left, []string{"x.csv"})
		}, ""},
		{"German weather and meters", map[string]string{
			"last.csv": "Zeit;Haus 1;Haus 2\n;kWh;kWh\n01.07.2025 00:15;0,5;1,5\n01.07.2025 00:30;0,5;1,5\n", "meter.csv": "Zähler;Fläche\nHaus 1;80\n",
			"wetter.csv": "Zeit;Lufttemperatur [°C]\n01.07.2025 00:00;10,5\n01.07.2025 12:00;10,5\n",
		}, Hints{}, func(_ *Survey, d *Description) bool {
			return d.Load.Columns["meter"] == MeterIsColumn && d.Unit == "kWh" && d.Meters.Columns["meter"] == "Zähler" && d.Weather.Stamp == StampStart &&
				d.Weather.Date == "dd.mm.yyyy" && d.Weather.Decimal == "," && d.Weather.Columns["temperature"] == "Lufttemperatur [°C]" && d.Weather.Interval == "12h"
		}, ""},
		{"times with an offset", map[string]string{"a.csv": "unique_id,ds,y\na,2020-01-01T00:00:00Z,1\na,2020-01-01T01:00:00Z,1\n"}, Hints{}, func(s *Survey, d *Description) bool {
			return s.Zoned && d.Unit == "" && d.Interval == "1h"
		}, ""},
		{"rows by time", map[string]string{"a.csv": "ds,unique_id,y\n2020-01-01 00:00,a,1\n2020-01-01 00:00,b,1\n2020-01-01 00:15,a,1\n2020-01-01 00:15,b,1\n"}, Hints{}, func(_ *Survey, d *Description) bool {
			return d.Interval == "15m"
		}, ""},
		{"newest first", map[string]string{"a.csv": "ds,unique_id,y\n2020-01-01 02:00,a,1\n2020-01-01 01:00,a,1\n2020-01-01 00:00,a,1\n"}, Hints{}, func(_ *Survey, d *Description) bool {
			return d.Interval == "1h"
		}, ""},
		{"many files", map[string]string{"l/1.csv": load, "l/2.csv": load, "l/3.csv": load, "l/4.csv": load, "m.csv": "meter_id,x\n"}, Hints{}, func(_ *Survey, d *Description) bool {
			return slices.Equal(d.Load.Files, []string{"l/*.csv"})
		}, ""},
		{"many files among others", map[string]string{"1.csv": load, "2.csv": load, "3.csv": load, "4.csv": load, "m.csv": "meter_id,x\n"}, Hints{}, func(_ *Survey, d *Description) bool {
			return len(d.Load.Files) == 4
		}, ""},
		{"files that are named", map[string]string{"1.csv": load, "2.csv": load}, Hints{Load: []string{"2*"}}, func(s *Survey, d *Description) bool {
			return slices.Equal(d.Load.Files, []string{"2.csv"}) && slices.Equal(s.Left, []string{"1.csv"})
		}, ""},
		{"columns that are named", map[string]string{"1.csv": "Uhrzeit,W1,W2\n2020-01-01 00:00,1,2\n2020-01-01 01:00,1,2\n"}, Hints{Columns: map[string]string{"time": "Uhrzeit", "load": "W2"}}, func(_ *Survey, d *Description) bool {
			return d.Load.Columns["load"] == "W2" && d.Load.Columns["meter"] == MeterIsFile
		}, ""},
		{"one row", map[string]string{"1.csv": "meter_id,timestamp,load_kw\na,2020-01-01,1\n"}, Hints{Interval: time.Hour}, func(_ *Survey, d *Description) bool {
			return d.Interval == "1h"
		}, ""},
		{"one row without an interval", map[string]string{"1.csv": "meter_id,timestamp,load_kw\na,2020-01-01,1\n"}, Hints{}, nil, "1.csv: no meter has two rows, so the interval cannot be detected; set the interval"},
		{"other columns", map[string]string{"1.csv": load, "2.csv": strings.Replace(load, "load_kw", "usage", 1)}, Hints{}, nil, "2.csv: its columns differ from those of 1.csv"},
		{"no known columns", map[string]string{"1.csv": "a,b\n1,2\n"}, Hints{}, nil, "contains no load table with columns for time, load and meter; 1.csv has a, b"},
		{"a named file without a time", map[string]string{"1.csv": "meter_id,b\n1,2\n"}, Hints{Load: []string{"1.csv"}}, nil, "1.csv: found no time column; name it with --column time=NAME; the columns are meter_id, b"},
		{"times that cannot be read", map[string]string{"1.csv": "meter_id,timestamp,load_kw\na,1.1.2020 0:00,1\na,1.Feb 0:00,1\na,1.Feb 0:00,1\n"}, Hints{Columns: map[string]string{"time": "timestamp"}}, nil, "1.csv: line 3: time"},
		{"no tables", map[string]string{"1.doc": ""}, Hints{}, nil, "contains no file that ends in .csv"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range c.files {
				path := filepath.Join(dir, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			s, err := look(dir, c.hints)
			switch {
			case c.want != "":
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v, want %s", err, c.want)
				}
			case err != nil:
				t.Error(err)
			case !c.check(s, s.Description):
				t.Errorf("%+v, %+v", s, s.Description)
			}
		})
	}
}
