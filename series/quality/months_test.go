package quality_test

import (
	"math"
	"testing"
	"time"

	"loadstar/series"
	"loadstar/series/quality"
)

func TestMonths(t *testing.T) {
	// February has 28 days in 2026. The first meter starts in the middle of January, and a
	// gap lasts from 31 January, 20:00, to 1 February, 03:00.
	clock := tokyo(t)
	start := time.Date(2026, 1, 30, 0, 0, 0, 0, clock)
	load := make([]float32, 5*24)
	for i := range load {
		load[i] = float32(10 + i/24)
	}
	for i := 44; i < 51; i++ {
		load[i] = float32(math.NaN())
	}
	load[119] = float32(math.NaN()) // after the last reading: not a gap
	other := []float32{100, 200}
	d := dataset(t, clock, series.Meter{ID: "a", Start: start.Unix(), Load: load}, series.Meter{ID: "b", Start: start.Add(24 * time.Hour).Unix(), Load: other})

	one := quality.Months(d, 0)
	if len(one) != 2 || one[0].Month != "2026-01" || one[1].Month != "2026-02" || len(one[0].Days) != 31 || len(one[1].Days) != 28 {
		t.Fatalf("months %+v", one)
	}
	jan, feb := one[0], one[1]
	if jan.Readings != 44 || jan.Missing != 4 || jan.Longest != 4 || feb.Readings != 68 || feb.Missing != 3 || feb.Longest != 3 {
		t.Errorf("January %d, %d, %d; February %d, %d, %d", jan.Readings, jan.Missing, jan.Longest, feb.Readings, feb.Missing, feb.Longest)
	}
	if jan.Days[0].Mean != nil || *jan.Days[29].Mean != 10 || *jan.Days[30].Mean != 11 || jan.Days[30].Missing != 4 || *feb.Peak != 14 {
		t.Errorf("days %+v", jan.Days)
	}

	both := quality.Months(d, -1)
	if both[0].Readings != 46 || *both[0].Peak != 200 || both[0].Missing != 4 || *both[0].Days[30].Mean != (20*11+300)/22.0 {
		t.Errorf("both: %+v", both[0])
	}
}
