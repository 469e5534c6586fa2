package quality_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/series"
	"loadstar/series/quality"
)

// TestCheckLegalTime checks the findings if only the load or only the labels follow
// daylight saving.
func TestCheckLegalTime(t *testing.T) {
	london, chicago := zone(t, "Europe/London"), zone(t, "America/Chicago")
	start := time.Date(2016, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, clock := range []*time.Location{time.UTC, series.StandardTime(london)} {
		r := checkOne(t, clock, start, office(start, 730, london))
		f := get(t, r.Findings, "clock-shift")
		if f.Severity != quality.Info || f.Count != 4 || len(r.Findings) != 1 || !strings.Contains(f.Message, "Europe/London") || !strings.Contains(f.Message, "1 h earlier in spring, 1 h later in autumn. The labels do not follow daylight saving") {
			t.Errorf("%s: %+v", clock, r.Findings)
		}
		if off := f.Where[0].Time.Sub(time.Date(2016, 3, 27, 0, 0, 0, 0, clock)); off.Abs() > 72*time.Hour {
			t.Errorf("%s: first move on %s", clock, f.Where[0].Time)
		}
	}
	// If the labels follow the same clock as the load, there is no shift to find.
	if r := checkOne(t, london, start, office(start, 730, london)); len(r.Findings) > 0 {
		t.Errorf("found %v", codesOf(r.Findings))
	}
	// A load that follows the sun seems to shift if the labels follow legal time.
	sun := get(t, checkOne(t, london, start, office(start, 730, series.StandardTime(london))).Findings, "clock-shift")
	if !strings.Contains(sun.Message, "1 h later in spring, 1 h earlier in autumn. The labels follow daylight saving, but the load does not") {
		t.Errorf("got %+v", sun)
	}
	// The shift is also found for a clock that changes at midnight, which leaves one day
	// without a midnight.
	paulo := zone(t, "America/Sao_Paulo")
	if r := checkOne(t, paulo, start, office(start, 730, paulo)); len(r.Findings) > 0 {
		t.Errorf("found %v", codesOf(r.Findings))
	}
	// The labels follow the legal clock but are described as standard time. The skipped hour has
	// half the load, and the repeated hour has twice the load. If labels mark the end of the
	// interval, both effects appear one hour later.
	standard := series.StandardTime(chicago)
	start = time.Date(2016, 1, 1, 0, 0, 0, 0, standard)
	for _, later := range []int{0, 1} {
		load := office(start, 731, standard)
		for _, day := range []string{"2016-03-13T08", "2017-03-12T08"} {
			load[stepOf(t, start, day)+later] *= 0.5
		}
		for _, day := range []string{"2016-11-06T07", "2017-11-05T07"} {
			load[stepOf(t, start, day)+later] *= 2
		}
		r := checkOne(t, standard, start, load)
		if got := codesOf(r.Findings); !slices.Equal(got, []string{"clock-change", "clock-change"}) {
			t.Fatalf("found %v", got)
		}
		for _, f := range r.Findings {
			if f.Count != 2 || strings.Contains(f.Message, "labelled by the interval's end") != (later == 1) {
				t.Errorf("%d later: %+v", later, f)
			}
		}
	}
}

func stepOf(t *testing.T, start time.Time, utc string) int {
	t.Helper()
	at, err := time.Parse("2006-01-02T15", utc)
	if err != nil {
		t.Fatal(err)
	}
	return int(at.Sub(start).Hours())
}
