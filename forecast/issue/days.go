package issue

import (
	"math"
	"slices"
	"time"

	"loadstar/forecast/calibrate"
)

// DayEnergy is a forecast of the energy of a local day. Mean is the energy measured so far plus the
// means of the remaining steps, so the means of several clients add up to the mean of their sum.
// P10 and P90 are derived from the errors of earlier forecasts of a day's energy, because the
// quantiles of steps cannot be added up.
type DayEnergy struct {
	Start, End int64 // the midnights, Unix seconds
	// Mean, P10 and P90 are in kWh. P10 and P90 are NaN until the errors of some days are known.
	Mean, P10, P90 float64
}

// energyDays is the number of days, starting with the day of the cutoff, whose energies the
// state tracks.
func (s *State) energyDays() int { return max(s.tracked()/s.perDay, 1) }

func (s *State) energyConfig() calibrate.Config {
	return calibrate.Config{Levels: meanLevels[:], Point: 1, Horizon: 1, Targets: s.energyDays(), StepsPerDay: 1}
}

// midnight returns the start of a local day, given by its number.
func (c *clock) midnight(day int) int64 {
	y, m, d := time.Unix(int64(day)*86400, 0).UTC().Date()
	return time.Date(y, m, d, 0, 0, 0, 0, c.location).Unix()
}

// energies returns the energies of today, which is the day of the cutoff, and of the following
// days. The energy of the last day is NaN if the rows do not reach its end.
func (s *State) energies(rows []Row, cutoff int64, today int) []DayEnergy {
	days := make([]DayEnergy, s.energyDays())
	hours := s.c.Step.Hours()
	next := 0
	for i := range days {
		d := &days[i]
		d.Start, d.End, d.P10, d.P90 = s.clock.midnight(today+i), s.clock.midnight(today+i+1), math.NaN(), math.NaN()
		sum := 0.0
		for ; next < len(rows) && rows[next].Time < d.End; next++ {
			sum += rows[next].Mean
		}
		d.Mean = sum * hours
		if next == len(rows) && (next == 0 || rows[next-1].Time+s.seconds < d.End) {
			d.Mean = math.NaN()
		}
		if i == 0 && d.Start < cutoff {
			d.Mean += s.work.measured(d.Start, cutoff)
		}
	}
	return days
}

// energy returns the energies of days with their bounds, and records them if a recorded issue
// is due. The energy of a day is better known later in the day, so there is a tracker for each
// time of day at which issues are recorded. Between two of these times, the bounds are
// interpolated.
func (s *State) energy(rows []Row, cutoff int64, late bool) []DayEnergy {
	today := s.clock.day(cutoff)
	days := s.energies(rows, cutoff, today)
	if late {
		return days
	}
	every := s.fallback.Every()
	grid := (s.work.last + 1) / every
	earlier := s.clock.day(s.start(grid * every))
	before, after := s.byDay[grid%len(s.byDay)], s.byDay[(grid+1)%len(s.byDay)]
	if s.recorded() {
		s.recordEnergy(before, days, today-1)
	}
	below := s.boundEnergy(before, days, earlier, today-earlier)
	above := below
	share := float64(s.work.last+1-grid*every) / float64(every)
	if share > 0 {
		above = s.boundEnergy(after, days, today, 0)
	}
	for i := range days {
		a, b := below[i], above[i]
		switch {
		case math.IsNaN(a.P10):
			a = b
		case math.IsNaN(b.P10):
			b = a
		}
		days[i].P10 = float64((1-share)*a.P10) + float64(share*b.P10)
		days[i].P90 = float64((1-share)*a.P90) + float64(share*b.P90)
	}
	return days
}

// recordEnergy records the energies of days. last is the newest complete day.
func (s *State) recordEnergy(t *track, days []DayEnergy, last int) {
	if last <= t.newest {
		return
	}
	values, references := energyRows(days)
	if slices.ContainsFunc(values, math.IsNaN) {
		return
	}
	for day := max(t.newest+1, last-reachDays+2, 0); day <= last; day++ {
		t.Observe(day, s.work.measured(s.clock.midnight(day), s.clock.midnight(day+1)))
	}
	t.issue(last, values, references)
}

// energyRows returns the rows that a tracker corrects.
func energyRows(days []DayEnergy) (values, references []float64) {
	for _, d := range days {
		values, references = append(values, d.Mean, d.Mean, d.Mean), append(references, math.NaN())
	}
	return values, references
}

// boundEnergy returns days with the bounds that a tracker can compute. first is the day of the
// tracker's first target, and skip is the number of targets before days[0].
func (s *State) boundEnergy(t *track, days []DayEnergy, first, skip int) []DayEnergy {
	out := slices.Clone(days)
	last := first - 1
	if last < t.newest || !t.ripe(last) || skip >= len(days) { // days go back if the zone changes
		return out
	}
	shifted := make([]DayEnergy, len(days)) // the day of target k is days[k-skip]
	copy(shifted[skip:], days)
	values, references := energyRows(shifted)
	for i, v := range values {
		if math.IsNaN(v) {
			values[i] = 0
		}
	}
	t.Correct(last, values, references)
	for k := skip; k < len(days); k++ {
		if d := &out[k-skip]; !math.IsNaN(d.Mean) {
			d.P10, d.P90 = values[3*k], values[3*k+2]
		}
	}
	return out
}

// recorded reports whether all clients record an issue after the newest step.
func (s *State) recorded() bool { return (s.work.last+1)%s.fallback.Every() == 0 }
