package feature

import (
	"runtime"
	"testing"
	"time"
	"unsafe"

	"loadstar/series"
)

// TestMemory checks that the memory estimate is an upper bound, and at most twice the memory
// used.
func TestMemory(t *testing.T) {
	if got := unsafe.Sizeof(instant{}); got != instantBytes {
		t.Errorf("an instant has %d bytes", got)
	}
	if got := unsafe.Sizeof(point{}); got != pointBytes {
		t.Errorf("a point has %d bytes", got)
	}
	if got := unsafe.Sizeof(summary{}); got != summaryBytes {
		t.Errorf("a summary has %d bytes", got)
	}
	if got := unsafe.Sizeof(slot{}); got > slotBytes {
		t.Errorf("a slot has %d bytes", got)
	}
	for _, task := range []Task{{Horizon: 1, Targets: 1}, {Horizon: 1, Targets: 24}, {Horizon: 24, Targets: 145}} {
		for _, interval := range []time.Duration{time.Hour, 5 * time.Minute} {
			if testing.Short() && interval < time.Hour {
				continue // takes long on an emulator
			}
			d := yearOf(t, interval)
			task.StepsPerDay = d.StepsPerDay()
			shared, meter := Memory(d, task)
			var f *Frame
			tables := allocated(func() {
				var err error
				f, err = NewFrame(d, series.Layout{Lookback: 7 * task.StepsPerDay, Horizon: task.Horizon, Targets: task.Targets}, series.Split{Train: 0.8, Validation: 0.1}, nil, 0.1)
				if err != nil {
					t.Fatal(err)
				}
			})
			r := f.Rows(d.Meter(0))
			columns := allocated(func() { r.columns() })
			t.Logf("%v, %v: tables %d of %d KB, columns %d of %d KB", task, interval, tables>>10, shared>>10, columns>>10, meter>>10)
			if tables > shared || tables < shared/2 || columns > meter || columns < meter/2 {
				t.Errorf("%v, %v: the tables have %d bytes, want at most %d; the columns of a meter %d, want at most %d", task, interval, tables, shared, columns, meter)
			}
		}
	}
}

// yearOf returns a dataset of a meter with a year of readings in a zone that changes its
// clocks.
func yearOf(t *testing.T, interval time.Duration) *series.Dataset {
	t.Helper()
	zone, err := time.LoadLocation("Europe/London")
	if err != nil {
		t.Fatal(err)
	}
	start := time.Date(2021, 1, 1, 0, 0, 0, 0, zone).Unix()
	load := make([]float32, 365*int(24*time.Hour/interval))
	for i := range load {
		load[i] = float32(i%997) / 100
	}
	d, err := series.NewDataset(series.Dataset{
		Name: "year", Interval: interval, Clock: zone, Country: "GB",
		Weather: series.Weather{Start: start, Names: []string{"temperature", "wind"}, Columns: [][]float32{load, load}},
	}, []series.Meter{{ID: "a", Start: start, Load: load}})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// allocated returns the bytes that f allocates, including those that are garbage when it
// returns.
func allocated(f func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}
