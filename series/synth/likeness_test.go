package synth

import (
	"math"
	"slices"
	"sync"
	"testing"
	"time"
)

// fleet contains a year of hourly load without faults, for twenty buildings of each type.
type fleet struct {
	*Generator
	building []Building
	load     [][]float32
}

var oneYear = sync.OnceValues(func() (*fleet, error) {
	g, err := New(Config{Seed: 1, Meters: 20 * len(kinds)})
	if err != nil {
		return nil, err
	}
	f := &fleet{Generator: g}
	for i := range g.Config().Meters {
		load := make([]float32, g.Len())
		f.building = append(f.building, g.Building(i, load))
		f.load = append(f.load, load)
	}
	return f, nil
})

func year(t *testing.T) *fleet {
	t.Helper()
	if testing.Short() {
		t.Skip("generates a year of 280 buildings")
	}
	f, err := oneYear()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fleet) of(name string) (numbers []int) {
	for i, b := range f.building {
		if b.Type == name {
			numbers = append(numbers, i)
		}
	}
	return numbers
}

// mean returns the mean load of building i over the local hours for which want returns
// true.
func (f *fleet) mean(i int, want func(time.Time) bool) float64 {
	zone := f.Config().Start.Location()
	var sum, n float64
	for k, x := range f.load[i] {
		if want(f.Time(k).In(zone)) {
			sum += float64(x)
			n++
		}
	}
	return sum / n
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// TestIntensity compares the annual use per area with EIA's Commercial Buildings Energy
// Consumption Survey 2012, table C14. The table contains the quartiles of building-level
// intensity in kWh per square foot, for the activity closest to each type. For offices and
// warehouses, the quartiles cover buildings of all sizes.
func TestIntensity(t *testing.T) {
	f := year(t)
	const squareFeet = 10.764 // per square metre
	for name, quartiles := range map[string][2]float64{
		"small-office":             {3.8, 17.2},
		"medium-office":            {3.8, 17.2},
		"large-office":             {3.8, 17.2},
		"small-hotel":              {8.4, 19.5},
		"large-hotel":              {8.4, 19.5},
		"warehouse":                {3.8, 17.2},
		"retail-standalone":        {4.9, 18.8},
		"retail-strip-mall":        {6.2, 21.8},
		"primary-school":           {5.6, 13.7},
		"secondary-school":         {5.6, 13.7},
		"hospital":                 {20.5, 43.9},
		"outpatient":               {6.3, 19},
		"quick-service-restaurant": {18.9, 73.2},
		"full-service-restaurant":  {18.9, 73.2},
	} {
		var use, peak []float64
		for _, i := range f.of(name) {
			mean := f.mean(i, func(time.Time) bool { return true })
			use = append(use, mean*8760/f.building[i].FloorArea/squareFeet)
			peak = append(peak, float64(slices.Max(f.load[i]))/mean)
		}
		if len(use) != 20 {
			t.Fatalf("%d buildings of type %s", len(use), name)
		}
		if m := median(use); m < quartiles[0] || m > quartiles[1] {
			t.Errorf("%s: median %.1f kWh/ft2 a year, want %v", name, m, quartiles)
		}
		if lo, hi := slices.Min(use), slices.Max(use); lo < quartiles[0]/2 || hi > 2*quartiles[1] || hi < 1.4*lo {
			t.Errorf("%s: %.1f to %.1f kWh/ft2 a year", name, lo, hi)
		}
		if lo, hi := slices.Min(peak), slices.Max(peak); lo < 1.3 || hi > 8 {
			t.Errorf("%s: peaks are %.1f to %.1f times the mean", name, lo, hi)
		}
	}
}

// TestLikeMeasured compares the medians over the fleet with the quartiles over the 49
// measured buildings of site Hog of the Building Data Genome 2 (2016 and 2017, in
// shared/data/bdg2-hog-robin; computed by a separate program).
func TestLikeMeasured(t *testing.T) {
	f := year(t)
	figures := map[string][]float64{}
	for _, load := range f.load {
		for name, v := range likeness(load) {
			figures[name] = append(figures[name], v)
		}
	}
	for name, hog := range map[string][2]float64{
		"deviation over mean":                       {.301, .507},
		"autocorrelation, hour":                     {.937, .966},
		"autocorrelation, day":                      {.726, .900},
		"autocorrelation, week":                     {.782, .894},
		"persistence error over mean":               {.048, .092},
		"week-before error over mean":               {.102, .166},
		"1st percentile over mean":                  {.323, .540},
		"99th percentile of hourly jumps over mean": {.294, .533},
	} {
		if m := median(figures[name]); m < hog[0] || m > hog[1] {
			t.Errorf("%s: %.3f, measured buildings have %v", name, m, hog)
		}
	}
}

func likeness(load []float32) map[string]float64 {
	n := float64(len(load))
	var mean, variance float64
	for _, x := range load {
		mean += float64(x) / n
	}
	for _, x := range load {
		variance += (float64(x) - mean) * (float64(x) - mean) / n
	}
	lagged := func(lag int, f func(now, before float64) float64) float64 {
		sum := 0.0
		for k, x := range load[lag:] {
			sum += f(float64(x)-mean, float64(load[k])-mean)
		}
		return sum / float64(len(load)-lag)
	}
	correlation := func(lag int) float64 {
		return lagged(lag, func(a, b float64) float64 { return a * b }) / variance
	}
	miss := func(lag int) float64 {
		return lagged(lag, func(a, b float64) float64 { return math.Abs(a - b) }) / mean
	}
	sorted := slices.Sorted(slices.Values(load))
	var jumps []float64
	for k := range load[1:] {
		jumps = append(jumps, math.Abs(float64(load[k+1]-load[k])))
	}
	slices.Sort(jumps)
	return map[string]float64{
		"deviation over mean":                       math.Sqrt(variance) / mean,
		"autocorrelation, hour":                     correlation(1),
		"autocorrelation, day":                      correlation(24),
		"autocorrelation, week":                     correlation(168),
		"persistence error over mean":               miss(1),
		"week-before error over mean":               miss(168),
		"1st percentile over mean":                  float64(sorted[len(sorted)/100]) / mean,
		"99th percentile of hourly jumps over mean": jumps[len(jumps)*99/100] / mean,
	}
}

func weekend(at time.Time) bool { return at.Weekday() == time.Saturday || at.Weekday() == time.Sunday }

func TestWeekends(t *testing.T) {
	f := year(t)
	for name, want := range map[string][2]float64{
		"small-office": {.4, .85}, "medium-office": {.4, .85}, "large-office": {.45, .9}, "primary-school": {.35, .9},
		"hospital": {.88, 1.03}, "small-hotel": {.9, 1.12}, "large-hotel": {.9, 1.12}, "full-service-restaurant": {.9, 1.2},
	} {
		var ratios []float64
		for _, i := range f.of(name) {
			ratios = append(ratios, f.mean(i, weekend)/f.mean(i, func(at time.Time) bool { return !weekend(at) }))
		}
		if lo, hi := slices.Min(ratios), slices.Max(ratios); lo < want[0] || hi > want[1] {
			t.Errorf("%s: weekends use %.2f to %.2f of workdays, want %v", name, lo, hi, want)
		}
	}
}

// TestClosed checks that Thanksgiving resembles the adjacent Sundays, and that schools
// are empty in July.
func TestClosed(t *testing.T) {
	f := year(t)
	on := func(m time.Month, days ...int) func(time.Time) bool {
		return func(at time.Time) bool {
			return at.Month() == m && slices.Contains(days, at.Day()) && at.Hour() >= 9 && at.Hour() < 16
		}
	}
	for _, name := range []string{"small-office", "medium-office", "secondary-school", "warehouse"} {
		var like []float64
		for _, i := range f.of(name) {
			workday, sunday := f.mean(i, on(11, 13, 14, 15, 20)), f.mean(i, on(11, 18, 25))
			like = append(like, (f.mean(i, on(11, 22))-sunday)/(workday-sunday))
		}
		if m := median(like); math.Abs(m) > .35 {
			t.Errorf("%s: Thanksgiving is at %.2f between Sunday (0) and a workday (1)", name, m)
		}
	}
	var emptied []float64
	for _, i := range f.of("primary-school") {
		// The loads are compared at nine, when there is little cooling.
		morning := func(m time.Month) float64 {
			return f.mean(i, func(at time.Time) bool { return at.Month() == m && !weekend(at) && at.Hour() == 9 })
		}
		emptied = append(emptied, morning(7)/morning(5))
	}
	if m := median(emptied); m > .9 {
		t.Errorf("the load of primary schools at nine in July is %.2f of that in May", m)
	}
}

// TestWeatherResponse checks that nearly all buildings use more energy on warm summer workdays
// than on cool ones and, if they have electric heating, more on cold winter workdays than on
// mild ones. Some buildings are exceptions, because occupants move in or out.
func TestWeatherResponse(t *testing.T) {
	f := year(t)
	var summer, winter, schools []float64
	for i, b := range f.building {
		switch b.Type {
		case "primary-school", "secondary-school": // summer breaks outweigh cooling
			schools = append(schools, f.response(i, 5, 9))
		default:
			summer = append(summer, f.response(i, 6, 7, 8))
		}
		if b.ElectricHeat {
			winter = append(winter, -f.response(i, 12, 1, 2))
		}
	}
	for _, c := range []struct {
		name         string
		correlations []float64
	}{{"in summer", summer}, {"schools in May and September", schools}, {"in winter, negative", winter}} {
		slices.Sort(c.correlations)
		if m, low := median(c.correlations), c.correlations[len(c.correlations)/20]; m < .6 || low < .2 {
			t.Errorf("correlation of load and temperature %s: median %.2f, 5 %% quantile %.2f", c.name, m, low)
		}
	}
}

// response returns the correlation of mean load and mean temperature over the workdays of
// the given months.
func (f *fleet) response(i int, months ...time.Month) float64 {
	zone := f.Config().Start.Location()
	var x, y []float64
	for k := 0; k+24 <= f.Len(); k += 24 {
		at := f.Time(k + 12).In(zone)
		if weekend(at) || !slices.Contains(months, at.Month()) || holiday(at) != noHoliday {
			continue
		}
		var load, temperature float64
		for j := k; j < k+24; j++ {
			load += float64(f.load[i][j])
			temperature += float64(f.Weather().Temperature[j])
		}
		x, y = append(x, load), append(y, temperature)
	}
	return correlation(x, y)
}

func correlation(x, y []float64) float64 {
	n := float64(len(x))
	var mx, my, xx, yy, xy float64
	for k := range x {
		mx += x[k] / n
		my += y[k] / n
	}
	for k := range x {
		xx += (x[k] - mx) * (x[k] - mx)
		yy += (y[k] - my) * (y[k] - my)
		xy += (x[k] - mx) * (y[k] - my)
	}
	return xy / math.Sqrt(xx*yy)
}

// TestWeather checks that the weather of several seeds is plausible for a year at an inland
// place at 41 degrees north.
func TestWeather(t *testing.T) {
	for seed := range uint64(6) {
		g := generator(t, Config{Seed: seed, Meters: 1})
		w := g.Weather()
		zone := g.Config().Start.Location()
		month := make([][]float64, 13)
		var damp, wind, sun float64
		n := float64(g.Len())
		for k := range g.Len() {
			at := g.Time(k).In(zone)
			month[at.Month()] = append(month[at.Month()], float64(w.Temperature[k]))
			damp += float64(w.Humidity[k]) / n
			wind += float64(w.Wind[k]) / n
			sun += float64(w.Solar[k]) / n
			if at.Hour() == 1 && w.Solar[k] != 0 || w.Solar[k] < 0 || w.Solar[k] > 1050 {
				t.Fatalf("seed %d: %v W/m2 at %v", seed, w.Solar[k], at)
			}
			if w.Humidity[k] < 5 || w.Humidity[k] > 100 || w.Wind[k] < 0 || w.Wind[k] > 25 {
				t.Fatalf("seed %d: humidity %v, wind %v at %v", seed, w.Humidity[k], w.Wind[k], at)
			}
		}
		mean := func(m int) float64 {
			s := 0.0
			for _, x := range month[m] {
				s += x
			}
			return s / float64(len(month[m]))
		}
		if jan, jul := mean(1), mean(7); jan < -9 || jan > 2 || jul < 20 || jul > 28 {
			t.Errorf("seed %d: January has %.1f degrees, July %.1f", seed, jan, jul)
		}
		if slices.Min(month[1]) < -32 || slices.Max(month[7]) > 43 || slices.Max(month[7]) < 28 {
			t.Errorf("seed %d: from %v to %v degrees", seed, slices.Min(month[1]), slices.Max(month[7]))
		}
		if damp < 60 || damp > 80 || wind < 3 || wind > 6 || sun < 130 || sun > 190 {
			t.Errorf("seed %d: humidity %.0f %%, wind %.1f m/s, sun %.0f W/m2", seed, damp, wind, sun)
		}
	}
}
