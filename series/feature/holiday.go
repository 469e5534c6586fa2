package feature

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rickar/cal/v2"
)

func init() {
	// The holiday library computes dates in this zone. A zone whose clocks change at
	// midnight would move some holidays to the day before.
	cal.DefaultLoc = time.UTC
}

// computing serialises calls of the library, which changes some of its holidays while it
// computes them.
var computing sync.Mutex

// Holidays returns a function that reports whether the day of a time, in the time's own zone,
// is a public holiday or the substitute for one. The code is an ISO 3166 code of a country,
// such as GB, or of a region, such as AU-NSW. The function is safe for concurrent use.
func Holidays(code string) (func(time.Time) bool, error) {
	holidays, ok := byCode[code]
	if !ok {
		return nil, unknown(code)
	}
	years := map[int]*[367]bool{} // indexed by day of the year
	return func(t time.Time) bool {
		computing.Lock()
		defer computing.Unlock()
		if years[t.Year()] == nil {
			years[t.Year()] = compute(holidays, t.Year())
		}
		return years[t.Year()][t.YearDay()]
	}, nil
}

// compute returns the days of a year that are holidays. The substitute of a holiday may fall in
// a different year from the holiday.
func compute(holidays []*cal.Holiday, year int) *[367]bool {
	days := new([367]bool)
	for _, h := range holidays {
		for y := year - 1; y <= year+1; y++ {
			actual, observed := h.Calc(y)
			for _, d := range []time.Time{actual, observed} {
				if !d.IsZero() && d.Year() == year {
					days[d.YearDay()] = true
				}
			}
		}
	}
	return days
}

func holidayCodes() []string { return slices.Sorted(maps.Keys(byCode)) }

// unknown returns the error about an unknown code. It lists the regions of the same country,
// or the countries whose codes have a letter in common.
func unknown(code string) error {
	upper := strings.ToUpper(strings.ReplaceAll(strings.TrimSpace(code), "_", "-"))
	if upper == "UK" || strings.HasPrefix(upper, "UK-") {
		upper = "GB" + upper[2:]
	}
	country, _, _ := strings.Cut(upper, "-")
	var near []string
	for _, c := range holidayCodes() {
		if c == upper {
			near = []string{c}
			break
		}
		if strings.HasPrefix(c, country) && country != "" {
			near = append(near, c)
		}
	}
	if near == nil {
		for _, c := range holidayCodes() {
			if !strings.Contains(c, "-") && strings.ContainsAny(c, country) {
				near = append(near, c)
			}
		}
	}
	if near == nil {
		near = []string{"GB", "US", "AU-NSW"}
	}
	return fmt.Errorf("the holidays of country %q are unknown; use an ISO 3166 code, perhaps %s", code, strings.Join(near, ", "))
}
