package quality

import (
	"math"
	"testing"
	"time"

	"loadstar/series"
)

func TestOverview(t *testing.T) {
	nan := float32(math.NaN())
	var o Overview
	o.Add(series.Meter{Start: 3600, Load: []float32{1, nan, 3}, Faults: series.Faults{Rows: 2}}, 15*time.Minute, time.UTC)
	o.Add(series.Meter{Start: 0, Load: []float32{1}, Faults: series.Faults{Rows: 1}}, 15*time.Minute, time.UTC)
	if o.Meters != 2 || o.Interval != "15m" || o.Coverage != 0.75 || o.Faults.Rows != 3 {
		t.Errorf("%+v", o)
	}
	if o.From.Unix() != 0 || o.To.Unix() != 3600+45*60 {
		t.Errorf("from %v to %v", o.From, o.To)
	}
}
