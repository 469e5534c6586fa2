package run

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
)

// TestLevelColumns checks that all quantiles of a model are columns, in CSV and Parquet, and
// that readers that do not know these columns can still read the table.
func TestLevelColumns(t *testing.T) {
	dir := t.TempDir()
	levels := []float64{0.05, 0.1, 0.5, 0.9, 0.975}
	at := time.Unix(1500000000, 0).UTC()
	rows := []Forecast{
		{Client: "a,b", Cutoff: at, Time: at, Actual: 1, Forecast: 2, LastWeek: 3, P10: 0.1, P50: 0.5, P90: 0.9, Levels: []float64{0.05, 0.975}},
		{Client: "c", Cutoff: at, Time: at, Actual: 4, Levels: []float64{math.NaN(), 7}},
	}
	path := filepath.Join(dir, "forecasts")
	if err := writeTable(path, slices.Values(rows), levelColumns(OtherLevels(levels), "")...); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path + ".csv")
	if err != nil {
		t.Fatal(err)
	}
	if head := "unique_id,cutoff,ds,y,forecast,last_week,P10,P50,P90,P05,P97.5\n"; !strings.HasPrefix(string(text), head) || !bytes.HasSuffix(text, []byte(",,7\n")) {
		t.Errorf("the table is\n%s", text)
	}
	got, err := Read[Forecast](dir, "forecasts")
	if err != nil || len(got) != 2 || !reflect.DeepEqual(got[0], rows[0]) || got[1].Levels[1] != 7 {
		t.Errorf("read %+v, %v", got, err)
	}
	type row struct {
		ID   string    `parquet:"unique_id"`
		Time time.Time `parquet:"ds,timestamp(millisecond)"`
		P90  float64   `parquet:"P90"`
		P05  float64   `parquet:"P05"`
		P975 float64   `parquet:"P97.5"`
	}
	file, err := parquet.ReadFile[row](path + ".parquet")
	if err != nil || len(file) != 2 || file[0] != (row{"a,b", at, 0.9, 0.05, 0.975}) || file[1].P975 != 7 || !math.IsNaN(file[1].P05) {
		t.Errorf("Parquet: %+v, %v", file, err)
	}
	if err := writeTable(path, slices.Values(rows), "P05"); err == nil {
		t.Error("a row with two values was written to one column")
	}
	if got := levelColumns([]float64{0.1, 0.5}, "pinball_", "below_"); !slices.Equal(got, []string{"pinball_P10", "below_P10", "pinball_P50", "below_P50"}) {
		t.Errorf("columns %v", got)
	}
}
