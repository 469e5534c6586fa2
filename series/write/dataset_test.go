package write

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"loadstar/series"
	"loadstar/series/read"
)

func TestDataset(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	start := time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC).Unix()
	s := Source{
		Name: "small", About: "two meters", Zone: "UTC", Interval: time.Hour,
		Weather:    series.Weather{Start: start, Names: []string{"temperature"}, Columns: [][]float32{{1, 2, 3}}},
		LabelNames: []string{"type"}, StaticNames: []string{"floor_area"},
		Each: func(f func(series.Meter, []string) error) error {
			for _, id := range []string{"a", "b"} {
				if err := f(series.Meter{ID: id, Start: start, Load: []float32{1, 2, 3}, Static: []float32{50}}, []string{"home"}); err != nil {
					return err
				}
			}
			return nil
		},
	}
	// A folder without a description is not a dataset, so it may be overwritten.
	broken, failed := s, errors.New("no more meters")
	broken.Each = func(func(series.Meter, []string) error) error { return failed }
	if err := Dataset(dir, broken); !errors.Is(err, failed) {
		t.Errorf("%v, want %v", err, failed)
	}
	if _, err := os.Stat(filepath.Join(dir, read.FileName)); err == nil {
		t.Error("a failed conversion left a description")
	}
	if err := Dataset(dir, s); err != nil {
		t.Fatal(err)
	}
	desc, err := read.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	d, err := read.Open(desc, "")
	if err != nil {
		t.Fatal(err)
	}
	if d.Name != "small" || d.Len() != 2 || d.Interval != time.Hour || len(d.Weather.Names) != 1 || d.Meter(1).Load[2] != 3 {
		t.Errorf("%+v", d)
	}
	if err := Dataset(dir, s); err == nil || !strings.Contains(err.Error(), "already exists; choose another folder") {
		t.Error(err)
	}
}
