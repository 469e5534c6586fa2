package feature

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"loadstar/series"
)

// reference computes the inputs of one example from their definitions, in float64 and with
// loops over the loads. It shares only the framer's lags with the code under test.
type reference struct {
	t       *testing.T
	d       *series.Dataset
	f       *series.Framer
	m       series.Meter
	perDay  int
	train   int
	mean    float64
	std     float64
	sorted  []float64
	origin  int
	level   float64 // level of the last row
	holiday func(time.Time) bool
}

func newReference(t *testing.T, d *series.Dataset, f *series.Framer, m series.Meter) *reference {
	r := &reference{t: t, d: d, f: f, m: m, perDay: d.StepsPerDay(), train: f.Train(m)}
	for _, v := range m.Load[:r.train] {
		if !series.Missing(v) {
			r.sorted = append(r.sorted, float64(v))
		}
	}
	for _, v := range r.sorted {
		r.mean += v / float64(len(r.sorted))
	}
	for _, v := range r.sorted {
		r.std += (v - r.mean) * (v - r.mean) / float64(len(r.sorted))
	}
	r.std = math.Sqrt(r.std)
	slices.Sort(r.sorted)
	var err error
	if r.holiday, err = Holidays(d.Country); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *reference) measured(i int) bool {
	return i >= 0 && i < len(r.m.Load) && !series.Missing(r.m.Load[i])
}

// kw is the load at a step, filled if it is missing.
func (r *reference) kw(i int) float64 {
	if i > r.origin {
		r.t.Fatalf("step %d is after the origin %d", i, r.origin)
	}
	i = max(i, 0)
	if r.measured(i) {
		return float64(r.m.Load[i])
	}
	if before := r.f.Lag(r.m, i, 1); before >= 0 && before < i {
		return r.kw(before)
	}
	if i > 0 {
		return r.kw(i - 1)
	}
	return r.mean
}

func (r *reference) z(i int) float64 { return (r.kw(i) - r.mean) / r.std }

func (r *reference) rankOf(kw float64) float64 {
	below, upto := 0, 0
	for _, v := range r.sorted {
		if v < kw {
			below++
		}
		if v <= kw {
			upto++
		}
	}
	return float64(below+upto)/float64(len(r.sorted)) - 1
}

func (r *reference) rank(i int) float64 { return r.rankOf(r.kw(i)) }

// over returns the mean of f over the last n steps.
func (r *reference) over(n int, f func(i int) float64) float64 {
	sum := 0.0
	for i := r.origin - n + 1; i <= r.origin; i++ {
		sum += f(i)
	}
	return sum / float64(n)
}

func (r *reference) time(i int) time.Time { return r.f.Time(r.m, i) }

func (r *reference) profile(i int) float64 {
	kind := func(t time.Time) int {
		switch t.Weekday() {
		case time.Saturday:
			return 1
		case time.Sunday:
			return 2
		}
		return 0
	}
	sum, n, at := 0.0, 0, r.time(i)
	for j := range r.train {
		if t := r.time(j); r.measured(j) && t.Hour() == at.Hour() && kind(t) == kind(at) {
			sum += (float64(r.m.Load[j]) - r.mean) / r.std
			n++
		}
	}
	return sum / max(float64(n), 1)
}

// weeks is the mean load at the same clock time 1 to 4 weeks before a step. If the load a week
// before is not known yet, the step is moved back by whole weeks.
func (r *reference) weeks(i int) float64 {
	for r.f.Lag(r.m, i, 7) > r.origin {
		i = r.f.Lag(r.m, i, 7)
	}
	sum, n := 0.0, 0
	for _, days := range []int{7, 14, 21, 28} {
		if j := r.f.Lag(r.m, i, days); r.measured(j) {
			sum += r.z(j)
			n++
		}
	}
	if n == 0 {
		return r.profile(i)
	}
	return sum / float64(n)
}

// sameTime returns the measured loads at the clock time of a step on the 28 days before it. If
// the load a day before is not known yet, the step is moved back by whole days.
func (r *reference) sameTime(i int) (kw []float64, at int) {
	for r.f.Lag(r.m, i, 1) > r.origin {
		i = r.f.Lag(r.m, i, 1)
	}
	slot := func(t time.Time) int64 {
		return int64(t.Hour()*3600+t.Minute()*60+t.Second()) / r.d.Seconds()
	}
	midnight := func(t time.Time) time.Time {
		return time.Date(t.Year(), t.Month(), t.Day(), 0, 0, 0, 0, time.UTC)
	}
	seen := map[int]bool{}
	for j := max(i-30*r.perDay, 0); j < i; j++ {
		days := int(midnight(r.time(i)).Sub(midnight(r.time(j))).Hours()) / 24
		if slot(r.time(j)) == slot(r.time(i)) && days >= 1 && days <= 28 && r.measured(j) && !seen[days] {
			seen[days] = true
			kw = append(kw, r.kw(j))
		}
	}
	slices.Sort(kw)
	return kw, i
}

func (r *reference) quartile(i int, q float64) float64 {
	kw, at := r.sameTime(i)
	if len(kw) == 0 {
		return r.profile(at)
	}
	place := q * float64(len(kw)-1)
	low := int(place)
	high := min(low+1, len(kw)-1)
	v := kw[low] + (kw[high]-kw[low])*(place-float64(low))
	return (v - r.mean) / r.std
}

func (r *reference) medianRank(i int) float64 {
	kw, _ := r.sameTime(i)
	if len(kw) == 0 {
		return 0
	}
	return r.rankOf(kw[len(kw)/2])
}

// weather returns the value of a weather column at a step of the meter, or NaN.
func (r *reference) weather(name string, step int) float64 {
	column := r.d.Weather.Column(name)
	at := step + int((r.m.Start-r.d.Weather.Start)/r.d.Seconds())
	from, _ := r.d.Span()
	oldest := int((from - r.d.Weather.Start) / r.d.Seconds())
	for back := range int(6*time.Hour/r.d.Interval) + 1 {
		if i := at - back; i >= oldest && i >= 0 && i < len(column) && !series.Missing(column[i]) {
			return float64(column[i])
		}
	}
	return math.NaN()
}

func (r *reference) weatherMoments(name string) (mean, std float64) {
	var values []float64
	for i := range r.train {
		if v := r.weather(name, i); v == v {
			values = append(values, v)
		}
	}
	for _, v := range values {
		mean += v / float64(len(values))
	}
	for _, v := range values {
		std += (v - mean) * (v - mean) / float64(len(values))
	}
	return mean, math.Sqrt(std)
}

// row returns the inputs by name.
func (r *reference) row(at series.Example, task Task) map[string]float64 {
	o := at.Last
	r.origin = o
	t := o + task.Horizon + at.Target
	next := task.Horizon == 1 && task.Targets == 1
	week := 7 * r.perDay
	level := r.over(week, r.z)
	x := map[string]float64{}
	load := func(name string, z float64) { x[name] = min(max(z-level, -8), 8) }
	for i := range r.perDay {
		load(fmt.Sprintf("recent.%d", i), r.z(o-i))
		x[fmt.Sprintf("rank.%d", i)] = 1.5 * r.rank(o-i)
	}
	first := 1
	for r.f.Lag(r.m, t, first) > o {
		first++
	}
	lag := func(days int) int { return r.f.Lag(r.m, t, max(days, first)) }
	mean := 0.0
	for k := 1; k <= 7; k++ {
		load(fmt.Sprintf("lag.target-%dh", 24*k), r.z(lag(k)))
		x[fmt.Sprintf("rank.target-%dh", 24*k)] = 1.5 * r.rank(lag(k))
		mean += r.z(lag(k)) / 7
	}
	load("lag.mean", mean)
	inside := func(i int) int { return min(max(i, o-week+1), o) }
	load("lag.target-24h-1", r.z(inside(lag(1)-1)))
	load("lag.target-24h+1", r.z(inside(lag(1)+1)))
	load("lag.target-168h-1", r.z(inside(lag(7)-1)))
	load("lag.target-168h+1", r.z(inside(lag(7)+1)))
	load("lag.target-168h+2", r.z(inside(lag(7)+2)))
	load("lag.origin-24h", r.z(r.f.Lag(r.m, o, 1)))
	load("lag.origin-48h", r.z(r.f.Lag(r.m, o, 2)))
	load("lag.origin-144h", r.z(r.f.Lag(r.m, o, 6)))
	load("lag.oldest", r.z(o-week+1))
	most, least := math.Inf(-1), math.Inf(1)
	for i := range r.perDay {
		most, least = max(most, r.z(o-i)), min(least, r.z(o-i))
	}
	load("day.mean", r.over(r.perDay, r.z))
	load("day.max", most)
	load("day.min", least)
	load("weeks.target", r.weeks(t))
	load("weeks.before", r.weeks(t-1))
	load("weeks.after", r.weeks(t+1))
	load("weeks.origin", r.weeks(o))
	load("profile.target", r.profile(t))
	load("profile.origin", r.profile(o))
	x["weeks.deviation"] = min(max(r.over(r.perDay, func(i int) float64 { return r.z(i) - r.weeks(i) }), -8), 8)
	for _, q := range []int{25, 50, 75} {
		load(fmt.Sprintf("q%d.target", q), r.quartile(t, float64(q)/100))
		load(fmt.Sprintf("q%d.origin", q), r.quartile(o, float64(q)/100))
	}
	x["median.target"], x["median.origin"] = 1.5*r.medianRank(t), 1.5*r.medianRank(o)
	x["above.0"], x["above.1"] = 2*(r.rank(o)-r.medianRank(o)), 2*(r.rank(o-1)-r.medianRank(o-1))
	r.level = level
	x["level.mean"] = min(max(level, -8), 8)
	x["level.deviation"] = min(math.Sqrt(r.over(week, func(i int) float64 { return (r.z(i) - level) * (r.z(i) - level) })), 8)
	x["rank.target-24h+1"] = 1.5 * r.rank(inside(lag(1)+1))
	x["rank.day"], x["rank.week"] = 2*r.over(r.perDay, r.rank), 2*r.over(week, r.rank)
	r.calendar(x, t)
	weather := t
	if next {
		weather = o
	}
	r.addWeather(x, weather, o)
	x[fmt.Sprintf("lead.%d", at.Target)] = 1
	x["lead.days"] = float64(t-o) / float64(r.perDay)
	return x
}

func (r *reference) calendar(x map[string]float64, t int) {
	one := func(name string, is bool) {
		if is {
			x[name] = 1
		}
	}
	at := r.time(t)
	x[fmt.Sprintf("hour.%d", at.Hour())] = 1
	x[fmt.Sprintf("weekday.%d", (int(at.Weekday())+6)%7)] = 1
	share := float64(int64(at.Hour()*3600+at.Minute()*60)/r.d.Seconds()) / float64(r.perDay)
	for i := 1; i <= 2; i++ {
		x[fmt.Sprintf("cycle.sin%d", i)] = math.Sin(2 * math.Pi * share * float64(i))
		x[fmt.Sprintf("cycle.cos%d", i)] = math.Cos(2 * math.Pi * share * float64(i))
	}
	free := func(t time.Time) bool { return t.Weekday() == time.Saturday || t.Weekday() == time.Sunday }
	ends := func(t time.Time) bool { return t.Format("0102") >= "1224" || t.Format("0102") == "0101" }
	dayBefore, weekBefore := at.AddDate(0, 0, -1), at.AddDate(0, 0, -7)
	one("weekend", free(at))
	one("weekend.day-before", free(dayBefore))
	one("holiday", r.holiday(at))
	one("holiday.day-before", r.holiday(dayBefore))
	one("holiday.week-before", r.holiday(weekBefore))
	one("yearend", ends(at))
	one("yearend.week-before", ends(weekBefore))
}

func (r *reference) addWeather(x map[string]float64, step, origin int) {
	mean, std := r.weatherMoments("temperature")
	temperature := func(i int) float64 { return (r.weather("temperature", i) - mean) / std }
	set := func(name string, v float64) {
		if v == v {
			x[name] = min(max(v, -8), 8)
		}
	}
	now := temperature(step)
	set("temperature", now)
	set("temperature.change-1h", now-temperature(step-max(r.perDay/24, 1)))
	set("temperature.change-24h", now-temperature(step-r.perDay))
	set("temperature.warm", max(now-0.5, 0))
	set("temperature.cold", max(-0.5-now, 0))
	sum, n := 0.0, 0
	for i := range r.perDay {
		if v := temperature(step - i); v == v {
			sum += v
			n++
		}
	}
	set("temperature.deviation", now-sum/float64(n))
	set("temperature.origin", temperature(origin))
	mean, std = r.weatherMoments("wind")
	set("wind", (r.weather("wind", step)-mean)/std)
}
