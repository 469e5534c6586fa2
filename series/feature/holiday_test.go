package feature

import (
	"strings"
	"sync"
	"testing"
	"time"
)

// days returns the holidays of a year as month and day.
func days(t *testing.T, code string, year int) string {
	t.Helper()
	is, err := Holidays(code)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for d := time.Date(year, 1, 1, 23, 0, 0, 0, time.UTC); d.Year() == year; d = d.AddDate(0, 0, 1) {
		if is(d) {
			found = append(found, d.Format("0102"))
		}
	}
	return strings.Join(found, " ")
}

func TestKnownDates(t *testing.T) {
	for _, c := range []struct {
		code string
		year int
		want string
	}{
		{"GB", 2011, "0101 0103 0422 0425 0429 0502 0530 0829 1225 1226 1227"},
		{"GB", 2012, "0101 0102 0406 0409 0507 0604 0605 0827 1225 1226"},
		{"GB", 2013, "0101 0329 0401 0506 0527 0826 1225 1226"},
		{"GB", 2016, "0101 0325 0328 0502 0530 0829 1225 1226 1227"},
		{"GB-ENG", 2017, "0101 0102 0414 0417 0501 0529 0828 1225 1226"},
		{"GB-SCT", 2017, "0101 0102 0103 0414 0501 0529 0807 1130 1225 1226"},
		{"GB-NIR", 2017, "0101 0102 0317 0414 0417 0501 0529 0712 0828 1225 1226"},
		{"US", 2016, "0101 0118 0215 0530 0704 0905 1010 1111 1124 1125 1225 1226"},
		{"US", 2017, "0101 0102 0116 0220 0529 0704 0904 1009 1110 1111 1123 1124 1225"},
		{"US", 2021, "0101 0118 0215 0531 0618 0619 0704 0705 0906 1011 1111 1125 1126 1224 1225 1231"},
		{"AU-NSW", 2012, "0101 0102 0126 0406 0407 0408 0409 0425 0611 1001 1225 1226"},
		{"AU-NSW", 2013, "0101 0126 0128 0329 0330 0331 0401 0425 0610 1007 1225 1226"},
		{"DE-BY", 2018, "0101 0106 0330 0402 0501 0510 0521 0531 1003 1101 1225 1226"},
		{"PT", 2014, "0101 0418 0420 0425 0501 0610 0815 1208 1225"},
		{"PT", 2016, "0101 0325 0327 0425 0501 0526 0610 0815 1005 1101 1201 1208 1225"},
		{"LU", 2018, "0101 0402 0501 0510 0521 0623 0815 1101 1225 1226"},
		{"FI", 2019, "0101 0106 0419 0421 0422 0501 0530 0609 0621 0622 1102 1206 1224 1225 1226"},
		{"FR", 2018, "0101 0402 0501 0508 0510 0521 0714 0815 1101 1111 1225"},
	} {
		if got := days(t, c.code, c.year); got != c.want {
			t.Errorf("%s %d: %s\nwant %s", c.code, c.year, got, c.want)
		}
	}
}

// TestOwnZone checks that the day is taken in the time's own zone.
func TestOwnZone(t *testing.T) {
	is, err := Holidays("US")
	if err != nil {
		t.Fatal(err)
	}
	west := time.FixedZone("west", -8*3600)
	if at := time.Date(2018, 7, 4, 23, 0, 0, 0, west); !is(at) || is(at.UTC()) {
		t.Error("the day of a time is not that of its zone")
	}
}

func TestEveryCode(t *testing.T) {
	for _, code := range holidayCodes() {
		if n := len(strings.Fields(days(t, code, 2019))); n < 5 || n > 30 {
			t.Errorf("%s has %d holidays in 2019", code, n)
		}
	}
	for _, code := range []string{"AT", "BE", "CH", "DE", "DK", "ES", "FI", "FR", "GB", "IE", "IT", "LU", "NL", "NO", "PT", "SE", "US", "CA", "AU", "NZ"} {
		if _, err := Holidays(code); err != nil {
			t.Error(err)
		}
	}
}

func TestUnknownCode(t *testing.T) {
	for code, want := range map[string]string{
		"UK": "perhaps GB", "gb": "perhaps GB", "au_nsw": "perhaps AU-NSW", "AU-NWS": "AU-ACT, AU-NSW, AU-NT",
		"FX": "FI, FR", "": "GB, US", "??": "GB, US",
	} {
		if _, err := Holidays(code); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %s", code, err, want)
		}
	}
}

// TestConcurrentUse fails under the race detector if two calendars share state. It uses Japan,
// for whose holidays the library stores intermediate results.
func TestConcurrentUse(t *testing.T) {
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			is, err := Holidays("JP")
			if err != nil {
				t.Error(err)
				return
			}
			for year := 2000; year < 2040; year++ {
				is(time.Date(year, 3, 20, 0, 0, 0, 0, time.UTC))
			}
		})
	}
	wait.Wait()
}
