package read

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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
		} else if d.Name != strings.TrimSuffix(filepath.Base(f), ".yaml") || !d.Rooted {
			t.Errorf("%s describes %s", f, d.Name)
		}
	}
}
