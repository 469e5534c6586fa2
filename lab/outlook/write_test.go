package outlook

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"loadstar/forecast/issue"
)

func twoRows(id string) issue.Forecast {
	nan := math.NaN()
	return issue.Forecast{
		Client: id, Cutoff: 1500000000, Levels: []float64{0.05, 0.5}, Model: "day",
		Rows: []issue.Row{
			{Time: 1500000000, Values: []float64{0.1, 2.5}, Mean: 3.125, Source: issue.Model, Quality: issue.OK},
			{Time: 1500003600, Values: []float64{nan, nan}, Mean: nan, Source: issue.None, Quality: issue.Missing, Reason: issue.NoReadings},
		},
	}
}

// TestFormats writes the same rows in all formats and reads them back.
func TestFormats(t *testing.T) {
	dir := t.TempDir()
	about := About{Levels: []float64{0.05, 0.5}, Version: "7", Generated: true}
	const want = `unique_id,cutoff,ds,P05,P50,mean,model,version,source,quality,reason,generated
"a,b",2017-07-14T02:40:00Z,2017-07-14T02:40:00Z,0.1,2.5,3.125,day,7,model,OK,,true
"a,b",2017-07-14T02:40:00Z,2017-07-14T03:40:00Z,,,,day,7,none,MISSING,no-readings,true
`
	var out bytes.Buffer
	for _, path := range []string{Stdout, "f.csv", "f.json", "f.parquet"} {
		if path != Stdout {
			path = filepath.Join(dir, path)
		}
		w, err := Create(path, &out, about)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Write(twoRows("a,b")); err != nil {
			t.Fatal(err)
		}
		if path != Stdout {
			if _, err := os.Stat(path); err == nil {
				t.Errorf("%s exists before it is complete", path)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.ReadFile(filepath.Join(dir, "f.csv"))
	if err != nil || string(file) != want || out.String() != want {
		t.Errorf("CSV:\n%s\nstandard output:\n%s\n%v", file, out.String(), err)
	}
	file, err = os.ReadFile(filepath.Join(dir, "f.json"))
	var rows []map[string]any
	if err != nil || json.Unmarshal(file, &rows) != nil || len(rows) != 2 || rows[0]["P05"] != 0.1 || rows[0]["mean"] != 3.125 || rows[1]["mean"] != nil || rows[0]["reason"] != nil ||
		rows[1]["P50"] != nil || rows[1]["reason"] != "no-readings" || rows[1]["unique_id"] != "a,b" || rows[1]["generated"] != true {
		t.Errorf("JSON: %s, %v", file, err)
	}
	type row struct {
		ID     string    `parquet:"unique_id"`
		Cutoff time.Time `parquet:"cutoff,timestamp(millisecond)"`
		Time   time.Time `parquet:"ds,timestamp(millisecond)"`
		P05    *float64  `parquet:"P05,optional"`
		P50    *float64  `parquet:"P50,optional"`
		Mean   *float64  `parquet:"mean,optional"`
		Source string    `parquet:"source"`
		Reason *string   `parquet:"reason,optional"`
	}
	table, err := parquet.ReadFile[row](filepath.Join(dir, "f.parquet"))
	if err != nil || len(table) != 2 || table[0].ID != "a,b" || *table[0].P50 != 2.5 || *table[0].Mean != 3.125 || table[1].Mean != nil || table[0].Reason != nil || table[1].P05 != nil ||
		*table[1].Reason != "no-readings" || table[1].Source != "none" || table[1].Time.Unix() != 1500003600 || table[1].Cutoff.Unix() != 1500000000 {
		t.Errorf("Parquet: %+v, %v", table, err)
	}
	testPathColumns(t)
	left, _ := filepath.Glob(filepath.Join(dir, ".*")) // the pattern is valid
	if len(left) > 0 {
		t.Errorf("temporary files are left: %v", left)
	}
}

// testPathColumns checks that scenarios are in all formats.
func testPathColumns(t *testing.T) {
	t.Helper()
	dir, about, f := t.TempDir(), About{Levels: []float64{0.05, 0.5}, Paths: 2}, twoRows("a")
	f.Rows[0].Paths = []float64{1.5, 7}
	for _, name := range []string{"f.csv", "f.json", "f.parquet"} {
		w, err := Create(filepath.Join(dir, name), nil, about)
		if err == nil {
			err = errors.Join(w.Write(f), w.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	csv, err := os.ReadFile(filepath.Join(dir, "f.csv"))
	if lines := strings.Split(string(csv), "\n"); err != nil || !strings.HasSuffix(lines[0], ",generated,path1,path2") ||
		!strings.HasSuffix(lines[1], ",false,1.5,7") || !strings.HasSuffix(lines[2], ",false,,") {
		t.Errorf("CSV:\n%s\n%v", csv, err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "f.json"))
	var rows []map[string]any
	if err != nil || json.Unmarshal(text, &rows) != nil || rows[0]["path2"] != 7.0 || rows[0]["mean"] != 3.125 || rows[1]["path1"] != nil {
		t.Errorf("JSON: %s, %v", text, err)
	}
	type row struct {
		P50   *float64 `parquet:"P50,optional"`
		Mean  *float64 `parquet:"mean,optional"`
		Path1 *float64 `parquet:"path1,optional"`
		Path2 *float64 `parquet:"path2,optional"`
	}
	table, err := parquet.ReadFile[row](filepath.Join(dir, "f.parquet"))
	if err != nil || *table[0].P50 != 2.5 || *table[0].Mean != 3.125 || *table[0].Path1 != 1.5 || *table[0].Path2 != 7 || table[1].Path1 != nil {
		t.Errorf("Parquet: %+v, %v", table, err)
	}
}

func TestDiscard(t *testing.T) {
	dir := t.TempDir()
	w, err := Create(filepath.Join(dir, "f.json"), nil, About{})
	if err != nil {
		t.Fatal(err)
	}
	w.Discard()
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v are left, %v", left, err)
	}
	if _, err := Create(filepath.Join(dir, "f.xls"), nil, About{}); err == nil || !strings.Contains(err.Error(), ".parquet or .json") {
		t.Errorf("an unknown format: %v", err)
	}
	w, err = Create(filepath.Join(dir, "empty.json"), nil, About{})
	if err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "empty.json")); err != nil || string(text) != "[]\n" {
		t.Errorf("a file without rows is %q, %v", text, err)
	}
}
