package series_test

import (
	"fmt"
	"log"
	"time"

	"loadstar/series"
)

// This example makes training windows from a meter with a gap. Windows with missing values
// are skipped.
func ExampleFramer() {
	start := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	b := series.NewBuilder(time.Hour)
	for hour, kw := range []float64{1, 2, 3, 4, 5, 6, 7, 8} {
		if hour == 2 {
			continue // no reading
		}
		at := start.Add(time.Duration(hour) * time.Hour)
		if err := b.Meter("house").Add(series.Instant{Unix: at.Unix()}, kw); err != nil {
			log.Fatal(err)
		}
	}
	meters, err := b.Meters()
	if err != nil {
		log.Fatal(err)
	}
	d, err := series.NewDataset(series.Dataset{Name: "demo", Interval: time.Hour, Clock: time.UTC}, meters)
	if err != nil {
		log.Fatal(err)
	}
	layout := series.Layout{Lookback: 2, Horizon: 1, Targets: 1, Inputs: []series.Input{{Name: "load"}, {Name: "hour", AtTarget: true}}}
	framer, err := series.NewFramer(d, layout, series.DefaultSplit)
	if err != nil {
		log.Fatal(err)
	}
	windows := framer.Windows(d.Meter(0), nil)
	x, y := make([]float32, 4), make([]float32, 1)
	for k := range windows.Len(series.All) {
		windows.Gather(x, y, []series.Example{{Last: windows.At(series.All, k)}})
		fmt.Println("inputs", x, "target", y)
	}
	// Output:
	// inputs [4 4 5 5] target [6]
	// inputs [5 5 6 6] target [7]
	// inputs [6 6 7 7] target [8]
}
