package quality

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"loadstar/internal/textfmt"
	"loadstar/series"
)

// Thresholds for findings about the whole fleet.
const (
	// With fewer meters than fleetLeast, a coincidence is not evidence of a common cause.
	fleetLeast = 3
	// If half of the meters have no readings on a day, or a quarter of them have constant
	// readings, there is a common cause.
	sharedGaps, sharedFlat = 0.5, 0.25
	// A load in W that is labelled as kW is 1000 times too large. The buildings of one
	// owner differ by a factor of up to 100.
	scaleFactor = 300
	// A weather column with 5 % missing values gets a warning, as a meter does
	// (gapsWarning).
	weatherWarning = 0.05
	// A meter votes on a daylight-saving change if the correlation of its daily profiles
	// before and after the change is at least voteAlike, with or without a shift. Up to a
	// third of simulated homes without daylight saving seem to shift, so the share of
	// shifted meters must exceed voteMost.
	voteAlike, voteMost = 0.85, 0.5
	// If 5 % of the meters shift in the same fortnight, or 10 % have unusual values when clocks
	// change, this is not a coincidence.
	moveShare, changeShare = 0.05, 0.1
)

// clockVotes counts, for every daylight-saving change of a zone, the meters whose daily
// profile shifts by as much as the clock does.
type clockVotes struct {
	zone    *time.Location
	changes []clockChange
	asked   []int    // meters whose profiles before and after are similar enough to compare
	moved   [2][]int // meters whose load comes earlier when clocks go forward, and later
}

func newClockVotes(zone *time.Location, from, to int64) []clockVotes {
	var votes []clockVotes
	for _, z := range changingZones(zone, from) {
		changes := clockChanges(z, from, to)
		n := len(changes)
		votes = append(votes, clockVotes{z, changes, make([]int, n), [2][]int{make([]int, n), make([]int, n)}})
	}
	return votes
}

func (v *clockVotes) add(s *subject) {
	for i, c := range v.changes {
		x, _, ok := s.shiftAt(c)
		if !ok || x.moved < voteAlike {
			continue
		}
		v.asked[i]++
		if s.fits(x, c) {
			way := 0
			if float64(x.steps)*c.hours > 0 {
				way = 1
			}
			v.moved[way][i]++
		}
	}
}

// clockVerdict contains the votes of a fleet for one zone and one direction of the shift.
type clockVerdict struct {
	zone         *time.Location
	changes      []clockChange
	asked, moved []int
	against      bool // the load comes earlier when clocks are put forward
}

// share returns the share of voting meters that shift at change i, or -1 if too few vote.
func (v clockVerdict) share(i int) float64 {
	if v.asked[i] < fleetLeast {
		return -1
	}
	return float64(v.moved[i]) / float64(v.asked[i])
}

// total returns the sum of all changes' shares.
func (v clockVerdict) total() (sum float64) {
	for i := range v.changes {
		sum += max(0, v.share(i))
	}
	return sum
}

// findVotes adds a finding if most meters shift at daylight-saving changes. In that case, the
// dataset's clock is not the legal time of its meters, or the labels mix two clocks.
func (c *Checker) findVotes(f *FleetReport) {
	var v clockVerdict
	for _, votes := range c.votes {
		for way, moved := range votes.moved {
			if x := (clockVerdict{votes.zone, votes.changes, votes.asked, moved, way == 0}); x.total() > v.total() {
				v = x
			}
		}
	}
	known, most := 0, 0
	high, low := 0, 0 // the changes with the largest and the smallest share
	var where topPlaces
	for i, x := range v.changes {
		share := v.share(i)
		if share < 0 {
			continue
		}
		if share > voteMost {
			most++
		}
		if known == 0 || share > v.share(high) {
			high = i
		}
		if known == 0 || share < v.share(low) {
			low = i
		}
		known++
		where.add(Where{Time: time.Unix(x.unix, 0).In(c.d.Clock), Size: math.Round(100*share) / 100}, share)
	}
	if most == 0 {
		return
	}
	count := func(i int) string {
		return fmt.Sprintf("for %d of %d meters on %s", v.moved[i], v.asked[i], time.Unix(v.changes[i].unix, 0).In(c.d.Clock).Format(time.DateOnly))
	}
	if float64(most) >= shiftLawMost*float64(known) {
		f.find(codeClockShift, Warning, most, where.inOrder(), "At the daylight-saving changes of %s, the daily profile of most meters shifts, for example %s. %s Hours and lags are therefore off by one for half of the year.",
			v.zone, count(high), whyShift(v.against))
		return
	}
	f.find(codeClockShift, Warning, most, where.inOrder(), "At the daylight-saving changes of %s, the daily profile shifts %s, but only %s: the labels do not all follow the same clock.",
		v.zone, count(high), count(low))
}

// findMoves adds a finding for the days on which several meters shift by hours, although
// there is no daylight-saving change.
func (c *Checker) findMoves(f *FleetReport) {
	days := slices.Sorted(maps.Keys(c.moves))
	for len(days) > 0 {
		// Take the day on which the most meters shift, together with the days near it.
		top := slices.MaxFunc(days, func(a, b int) int { return c.moves[a] - c.moves[b] })
		meters := 0
		days = slices.DeleteFunc(days, func(day int) bool {
			near := max(day-top, top-day) <= shiftNear
			if near {
				meters += c.moves[day]
			}
			return near
		})
		if meters < fleetLeast || meters < int(moveShare*float64(f.Meters)) {
			continue
		}
		at := time.Unix(int64(top)*secondsPerDay, 0).UTC()
		at = time.Date(at.Year(), at.Month(), at.Day(), 0, 0, 0, 0, c.d.Clock)
		f.find(codeClockShift, Warning, meters, []Where{{Time: at}}, "Around %s, the daily profiles of %d meters shift by hours, although there is no daylight-saving change: the labels seem to follow another clock from then on.",
			at.Format(time.DateOnly), meters)
	}
}

// sharedDays counts, for each day of the fleet's span, the meters that exist, the meters
// without readings and the meters with constant readings.
type sharedDays struct {
	from                  int64
	there, missing, flats []int32
}

const secondsPerDay = 24 * 60 * 60

func newSharedDays(from, to int64) *sharedDays {
	n := (to - from + secondsPerDay - 1) / secondsPerDay
	return &sharedDays{from, make([]int32, n), make([]int32, n), make([]int32, n)}
}

func (x *sharedDays) add(s *subject) {
	perDay := s.d.StepsPerDay()
	offset := int((s.start - x.from) / s.d.Seconds())
	for day := offset / perDay; day*perDay < offset+len(s.load); day++ {
		first, end := max(0, day*perDay-offset), min(len(s.load), (day+1)*perDay-offset)
		if 2*(end-first) < perDay {
			continue
		}
		missing, flat := 0, 0
		for i := first; i < end; i++ {
			if series.Missing(s.load[i]) {
				missing++
			}
			if s.flat[i] {
				flat++
			}
		}
		x.there[day]++
		if 2*missing >= end-first {
			x.missing[day]++
		}
		if 2*flat >= end-first {
			x.flats[day]++
		}
	}
}

// find adds a finding for the days on which the counted meters are at least the given share of
// the existing meters.
func (x *sharedDays) find(f *FleetReport, d *series.Dataset, code Code, counts []int32, share float64, what string) {
	var where topPlaces
	runs, days := 0, 0
	var longest Where
	most := int32(0)
	shared := func(day int) bool {
		return x.there[day] >= fleetLeast && float64(counts[day]) >= share*float64(x.there[day])
	}
	for day := 0; day < len(counts); day++ {
		if !shared(day) {
			continue
		}
		first := day
		for day < len(counts) && shared(day) {
			most = max(most, counts[day])
			day++
		}
		w := Where{Time: time.Unix(x.from+int64(first)*secondsPerDay, 0).In(d.Clock), Steps: (day - first) * d.StepsPerDay()}
		where.add(w, float64(w.Steps))
		runs++
		days += day - first
		if w.Steps > longest.Steps {
			longest = w
		}
	}
	if runs > 0 {
		f.find(code, Warning, runs, where.inOrder(), "On %s up to %d meters %s at the same time; the longest period is %s from %s.",
			textfmt.Count(days, "day"), most, what, textfmt.Count(longest.Steps/d.StepsPerDay(), "day"), longest.Time.Format(time.DateOnly))
	}
}

func (f *FleetReport) find(code Code, severity Severity, count int, where []Where, format string, args ...any) {
	f.Findings = append(f.Findings, newFinding(code, severity, count, 0, where, format, args...))
}

// weather returns the coverage of each weather column.
func (c *Checker) weather() []WeatherColumn {
	w := c.d.Weather
	steps := int((c.to - c.from) / c.d.Seconds())
	offset := int((c.from - w.Start) / c.d.Seconds())
	columns := []WeatherColumn{}
	for k, name := range w.Names {
		x := WeatherColumn{Name: name, Steps: steps}
		for i := range steps {
			if at := offset + i; at < 0 || at >= len(w.Columns[k]) || series.Missing(w.Columns[k][at]) {
				x.Missing++
			}
		}
		columns = append(columns, x)
	}
	return columns
}

// findFleet looks for problems that only a comparison of all meters shows.
func (c *Checker) findFleet(f *FleetReport) {
	for _, w := range f.Weather {
		if w.Missing == 0 {
			continue
		}
		share, severity := float64(w.Missing)/float64(w.Steps), Info
		if share > weatherWarning {
			severity = Warning
		}
		f.find(codeWeather, severity, w.Missing, nil, "%s is missing for %s, %s.", w.Name, textfmt.Count(w.Missing, "step"), percent(share))
	}
	if f.Meters < fleetLeast {
		return
	}
	c.shared.find(f, c.d, codeSharedGaps, c.shared.missing, sharedGaps, "are missing")
	c.shared.find(f, c.d, codeSharedFlat, c.shared.flats, sharedFlat, "are flat")
	c.findScale(f)
	c.findTwins(f)
	c.findVotes(f)
	c.findMoves(f)
	if k := c.codes[codeClockChange]; k != nil && k.Meters() >= fleetLeast && float64(k.Meters()) >= changeShare*float64(f.Meters) {
		f.find(codeClockChange, Warning, k.Meters(), nil, "The labels of %d meters follow the legal clock, but the dataset's clock, %s, does not: they include the hours that legal clocks skip and repeat.", k.Meters(), c.d.Clock)
	}
}

// findScale looks for meters whose load is much larger or smaller than that of the other
// meters.
func (c *Checker) findScale(f *FleetReport) {
	var v []float64
	for _, m := range c.medians {
		v = append(v, m.median)
	}
	if len(v) < fleetLeast {
		return
	}
	slices.Sort(v)
	middle := v[len(v)/2]
	if middle <= 0 {
		return
	}
	var odd []string
	for _, m := range c.medians {
		if m.median > scaleFactor*middle || m.median > 0 && m.median < middle/scaleFactor {
			odd = append(odd, fmt.Sprintf("%s (%s kW)", m.id, short(m.median)))
		}
	}
	if len(odd) > 0 {
		f.find(codeScale, Warning, len(odd), nil, "Half of the meters have a median load above %s kW; far from that %s: %s.", short(middle), isAre(len(odd), "meter"), some(odd))
	}
}

// some formats the first few entries of a list for a message.
func some(list []string) string {
	if len(list) > maxWhere {
		return strings.Join(list[:maxWhere], ", ") + fmt.Sprintf(" and %d more", len(list)-maxWhere)
	}
	return strings.Join(list, ", ")
}

// digest returns a hash of a series. Equal series have equal hashes.
func digest(start int64, load []float32) uint64 {
	h := fnv.New64a()
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(start))
	h.Write(b[:])
	for _, v := range load {
		bits := math.Float32bits(v)
		if series.Missing(v) {
			bits = 0x7fc00000 // the same bits for every NaN
		}
		binary.LittleEndian.PutUint32(b[:], bits)
		h.Write(b[:4])
	}
	return h.Sum64()
}

// findTwins looks for meters with identical readings.
func (c *Checker) findTwins(f *FleetReport) {
	var twins []string
	for _, ids := range c.digests {
		if len(ids) > 1 {
			twins = append(twins, strings.Join(ids, " = "))
		}
	}
	if len(twins) == 0 {
		return
	}
	slices.Sort(twins)
	f.find(codeTwins, Warning, len(twins), nil, "Some meters have identical readings: %s.", some(twins))
}
