package outlook

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseTime(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for s, want := range map[string]string{
		"2026-11-15T14:00:00Z":      "2026-11-15T14:00:00Z",
		"2026-11-15 14:00+02:00":    "2026-11-15T12:00:00Z",
		"2026-11-15 14:00":          "2026-11-15T13:00:00Z",
		"2026-07-15":                "2026-07-14T22:00:00Z",
		"2026-10-25T02:30:00+02:00": "2026-10-25T00:30:00Z",
		"2026-10-25 03:00":          "2026-10-25T02:00:00Z", // after the repeated hour
		"2026-03-29 03:00":          "2026-03-29T01:00:00Z", // after the skipped hour
		"2026-10-25 02:30":          "is ambiguous in Europe/Berlin, because clocks are set back then; write it as 2026-10-25T02:30:00+02:00 or 2026-10-25T02:30:00+01:00",
		"2026-03-29 02:30":          "does not exist in Europe/Berlin",
		"tomorrow":                  "is not understood",
	} {
		at, err := ParseTime(s, berlin)
		got := at.UTC().Format(time.RFC3339)
		if err != nil {
			got = err.Error()
		}
		if got != want && (err == nil || !strings.Contains(got, want)) {
			t.Errorf("%s: %s, want %s", s, got, want)
		}
	}
	if _, err := ParseTime("2026-11-15 14:00", nil); err == nil || !strings.Contains(err.Error(), "has no offset, and the data does not state its zone") {
		t.Errorf("without a clock: %v", err)
	}
}

func TestParseNumbers(t *testing.T) {
	for s, want := range map[string]float64{"2%": 0.02, "0.5": 0.5, " 10 % ": 0.1, "0": 0, "100%": -1, "-1%": -1, "NaN": -1, "": -1} {
		if v, err := ParseShare(s); (err == nil) != (want >= 0) || err == nil && v != want {
			t.Errorf("%s: share %v, %v", s, v, err)
		}
	}
	for s, want := range map[string]int{"auto": 200, "never": 0, "17": 17, "0": -1, "-1": -1, "all": -1} {
		if n, err := ParseFit(s, 200); (err == nil) != (want >= 0) || err == nil && n != want {
			t.Errorf("%s: %d, %v", s, n, err)
		}
	}
}

func TestParseLevels(t *testing.T) {
	got, err := ParseLevels("0.05, 0.5,0.95")
	if err != nil || !slices.Equal(got, []float64{0.05, 0.5, 0.95}) {
		t.Errorf("got %v, %v", got, err)
	}
	for _, s := range []string{"", "abc", "0.9,0.1", "0.5,0.5", "5,50", "0", "1", "NaN", "0.1,"} {
		if got, err := ParseLevels(s); err == nil {
			t.Errorf("%q gives %v", s, got)
		}
	}
}

func TestNumbersForReaders(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 1.02734: "1.027", 999.94: "999.9", 2037.4: "2,037", 82248.1: "82,248", 1234567: "1,234,567", -1234: "-1,234", -123456: "-123,456"} {
		if got := amount(v); got != want {
			t.Errorf("%g is written as %s, want %s", v, got, want)
		}
	}
}
