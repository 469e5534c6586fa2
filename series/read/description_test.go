package read

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestWriteDescription(t *testing.T) {
	d := &Description{
		Name: "x: y", Zone: "Europe/Berlin", Interval: "15m", Stamp: StampEnd, Unit: "kWh",
		Load:    Table{Files: []string{"load/*.csv"}, Columns: map[string]string{"meter": MeterIsFile}},
		Weather: &Table{Files: []string{"w.csv"}, Interval: "1h", Stamp: StampStart},
	}
	path := filepath.Join(t.TempDir(), FileName)
	if err := d.Write(path); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "stamp: end # whether a time is the start or the end of its interval\n") {
		t.Errorf("no comments:\n%s", text)
	}
	back, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if back.Name != d.Name || back.Stamp != d.Stamp || back.Clock != ClockLegal || back.Load.Columns["meter"] != MeterIsFile || back.Weather.Interval != "1h" {
		t.Errorf("read back as %+v", back)
	}
	if err := (&Description{Name: "x"}).Write(path); err == nil {
		t.Error("no error for a description without a zone")
	}
}

// TestCommitted checks that the descriptions in the repository are valid.
func TestCommitted(t *testing.T) {
	files, err := filepath.Glob("../../datasets/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		d, err := Load(f)
		if err != nil {
			t.Error(err)
		} else if d.Name != strings.TrimSuffix(filepath.Base(f), ".yaml") || !d.Rooted && d.Generate == "" {
			t.Errorf("%s describes %s", f, d.Name)
		} else if d.Country == "" {
			t.Errorf("%s has no country", f)
		}
	}
}

// TestLoadTable passes a table where a dataset is expected.
func TestLoadTable(t *testing.T) {
	table := filepath.Join(t.TempDir(), "readings.csv")
	for _, c := range []struct{ file, want string }{
		{"readings.csv", "is a table, not a dataset; describe it with 'loadstar data init " + table},
		{"dataset.yaml", "is a table, not a dataset; give the folder with its dataset.yaml: " + filepath.Dir(table)},
	} {
		if err := os.WriteFile(filepath.Join(filepath.Dir(table), c.file), []byte("time;kWh\n01.01.2024;1,5\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(table); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

// TestClockOfThePeople reads labels in UTC for customers who live in London.
func TestClockOfThePeople(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	put("load.csv", "meter,time,load\na,2017-06-30 23:00,1\na,2017-07-01 00:00,2\na,2017-07-01 01:00,3\n")
	put("weather.csv", "time,temperature,holiday\n2017-07-01 00:00,15,1\n2017-07-01 01:00,16,1\n")
	text := "name: x\nzone: UTC\nclock: Europe/London\ncountry: GB\ninterval: 1h\nfrom: 2017-07-01\nload: {files: [load.csv]}\nweather: {files: [weather.csv], columns: {holiday: (none)}}\n"
	d, err := Load(put("dataset.yaml", text))
	if err != nil {
		t.Fatal(err)
	}
	got, err := Open(d, "")
	if err != nil {
		t.Fatal(err)
	}
	m := got.Meter(0)
	if at := got.Time(m.Start, 0); at.Format(time.RFC3339) != "2017-07-01T01:00:00+01:00" || m.Load[0] != 2 || len(m.Load) != 2 {
		t.Errorf("the first of %d loads is %g at %s", len(m.Load), m.Load[0], at)
	}
	if names := got.Weather.Names; len(names) != 1 || names[0] != "temperature" {
		t.Errorf("weather columns %v", names)
	}
	if got.Country != "GB" || got.Weather.Start != m.Start || got.Clock.String() != "Europe/London" {
		t.Errorf("country %q, clock %s, weather from %d, load from %d", got.Country, got.Clock, got.Weather.Start, m.Start)
	}
	if err := d.Write(filepath.Join(dir, "again.yaml")); err != nil {
		t.Fatal(err)
	}
	if back, err := Load(filepath.Join(dir, "again.yaml")); err != nil || back.Clock != d.Clock || back.Country != d.Country {
		t.Errorf("read back as %+v, %v", back, err)
	}
	if _, err := Load(put("dataset.yaml", strings.Replace(text, "GB", "UK", 1))); err == nil || !strings.Contains(err.Error(), "perhaps GB") {
		t.Errorf("error %v", err)
	}
	if _, err := Load(put("dataset.yaml", strings.Replace(text, "Europe/London", "Local", 1))); err == nil || !strings.Contains(err.Error(), `clock is "Local"`) {
		t.Errorf("error %v", err)
	}
}
