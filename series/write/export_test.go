package write

import (
	"path/filepath"
	"testing"

	"loadstar/series"
	"loadstar/series/read"
)

// TestExport checks that data init reads an export, and recognises it as synthetic.
func TestExport(t *testing.T) {
	path := filepath.Join(t.TempDir(), "export.csv")
	meters := fleet()
	for i := range meters {
		meters[i].Start = start
	}
	err := Export(path, Source{
		About: "synthetic data, not measurements", Zone: "Europe/Berlin", Interval: interval,
		Each: func(f func(series.Meter, []string) error) error {
			for _, m := range meters {
				if err := f(m, nil); err != nil {
					return err
				}
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := read.Setup{Given: read.Description{Zone: "Europe/Berlin", Stamp: read.StampStart}}.Run(path)
	if err != nil {
		t.Fatal(err)
	}
	if !got.Dataset.Generated || got.Dataset.Len() != len(meters) {
		t.Fatalf("generated %v, %d meters: %q", got.Dataset.Generated, got.Dataset.Len(), got.Lines)
	}
	for i, want := range meters {
		if m := got.Dataset.Meter(i); m.ID != want.ID || m.Start != want.Start || !same(m.Load, want.Load) {
			t.Errorf("meter %s differs from %s", m.ID, want.ID)
		}
	}
}
