package report

import (
	"testing"
	"time"
)

// TestZone checks that a chart shows times on the clock that it names, including a clock
// without daylight saving time.
func TestZone(t *testing.T) {
	june := time.Date(2017, 6, 1, 0, 0, 0, 0, time.UTC).Unix()
	for zone, want := range map[string]int64{"America/Chicago": -5 * 3600, "America/Chicago standard time": -6 * 3600, "UTC": 0} {
		name, offsets := zoneOf(zone, []excerpt{{start: june, interval: 3600, actual: make([]float64, 24)}})
		if name != zone || len(offsets) != 1 || offsets[0] != [2]int64{june, want} {
			t.Errorf("%s: %s, %v", zone, name, offsets)
		}
	}
	if name, _ := zoneOf("Nowhere", nil); name != "UTC" {
		t.Error(name)
	}
}
