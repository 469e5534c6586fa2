package fleet

import (
	"strings"
	"testing"
	"time"
)

func TestGrowth(t *testing.T) {
	// series returns 40 samples. Except for outliers, the samples of the second quarter equal
	// from, and those of the last quarter equal to.
	series := func(from, to vitals) (all []vitals) {
		for i := range 40 {
			v := from
			if i >= 30 {
				v = to
			}
			if i%5 == 0 {
				v.rss, v.files = v.rss*3, v.files*3 // an outlier
			}
			if i < 10 {
				v = vitals{rss: 1 << 40, files: 1e6, goroutines: 1e6} // the warm-up must not matter
			}
			all = append(all, v)
		}
		return all
	}
	const mb = 1 << 20
	flat := vitals{rss: 200 * mb, files: 1000, goroutines: 3000}
	for name, c := range map[string]struct {
		to   vitals
		want string // name of the measurement that has grown
	}{
		"flat":                 {flat, ""},
		"less":                 {vitals{100 * mb, 500, 1500}, ""},
		"within":               {vitals{226 * mb, 1058, 3182}, ""},
		"memory":               {vitals{226.1 * mb, 1000, 3000}, "grew from 200 to 226 MB of memory"},
		"files":                {vitals{200 * mb, 1059, 3000}, "from 1000 to 1059 open files"},
		"goroutines":           {vitals{200 * mb, 1000, 3183}, "from 3000 to 3183 goroutines"},
		"memory and goroutine": {vitals{2000 * mb, 1000, 30_000}, "MB of memory\nfrom the second quarter to the last the server grew from 3000 to 30000 goroutines"},
	} {
		early, late, grown := growth(series(flat, c.to), allowed(time.Hour))
		if early != flat || late != c.to {
			t.Errorf("%s: from %v to %v", name, early, late)
		}
		if (grown == nil) != (c.want == "") || grown != nil && !strings.Contains(grown.Error(), c.want) {
			t.Errorf("%s: %v", name, grown)
		}
	}
	// A test of only a minute has a wide tolerance, so that it finds only large leaks.
	if _, _, grown := growth(series(flat, vitals{rss: 282 * mb, files: 1000, goroutines: 3000}), allowed(time.Minute)); grown != nil {
		t.Error(grown)
	}
	if _, _, grown := growth(series(flat, vitals{rss: 283 * mb, files: 1000, goroutines: 3000}), allowed(time.Minute)); grown == nil {
		t.Error("a short soak lets 83 MB pass")
	}
	for n := range 8 { // any number of samples, even none
		growth(series(flat, flat)[:n+1], allowed(time.Minute))
	}
}
