package issue

import (
	"fmt"
	"math"
	"slices"
	"time"

	"loadstar/forecast/calibrate"
	"loadstar/series"
)

// Fallback selects the forecast that is used without a model.
type Fallback string

// The fallbacks.
const (
	// LastWeek is the load at the same clock time 7 or 14 days before, or the median of the last
	// 28 days if the median has been better.
	LastWeek Fallback = "week"
	// ExtremeDay is the day with the highest peak of the last 28 days. It is for users who must
	// not underestimate peaks.
	ExtremeDay Fallback = "extreme-day"
)

// Config describes the forecasts of a client.
type Config struct {
	// Step is the interval of the readings, and Clock the local time of the meter.
	Step  time.Duration
	Clock *time.Location
	// H is the number of steps to forecast.
	H int
	// Levels are the quantiles to forecast, in ascending order; nil means 0.1, 0.5 and 0.9.
	Levels []float64
	// Fallback is the fallback to use. If it is empty, LastWeek is used.
	Fallback Fallback
}

const (
	// maxLevels and maxDays limit a configuration.
	maxLevels = 99
	maxDays   = 14
	// trackedDays is the minimum number of days for which the errors of fallbacks are tracked.
	// Up to this limit, the state therefore does not depend on H.
	trackedDays = 2
	// reachDays is the number of days before the cutoff whose loads a forecast reads.
	reachDays = 29
)

// State is what a client's forecasts have learned from earlier errors. It is not safe for
// concurrent use.
//
// A state learns only from recorded issues, at cutoffs that are multiples of [State.Every] in
// UTC. A client that makes a forecast at every step therefore has the same state as a client
// that makes only the recorded issues.
type State struct {
	c Config
	grid
	// levels contains the levels to forecast and the levels that means require. pick contains
	// the positions in levels of the levels to forecast, and means the positions of meanLevels.
	levels []float64
	point  int
	pick   []int
	means  [len(meanLevels)]int

	next int // the first step that was not seen yet, counted from 1970; initially 0
	// hasRead means that at least one load has been read, and fedIn that a load was negative.
	hasRead, fedIn bool
	fallback       *track
	own            *track   // nil before the first forecast
	generic        *track   // nil before the first forecast
	byDay          []*track // tracks of the energies of days, by the time of recorded issues
	peaks          *track
	group          bool // the state belongs to a sum

	work work
}

// track follows the errors of one kind of forecast.
type track struct {
	*calibrate.Tracker
	c calibrate.Config
	// first and newest are the last known steps at the first and at the newest recorded issue,
	// or -1.
	first, newest int
}

// ripeDays is the number of days after the first recorded issue from which the tracker sets the
// width of intervals for forecasts that have no intervals of their own.
const ripeDays = 4

func (t *track) ripe(last int) bool {
	return t.first >= 0 && last-t.first >= ripeDays*t.c.StepsPerDay
}

// NewState returns the state of a client that has made no forecast.
func NewState(c Config) (*State, error) {
	s, err := newState(c)
	if err != nil {
		return nil, err
	}
	return s, s.addTracks()
}

// addTracks creates the tracks that every state has.
func (s *State) addTracks() (err error) {
	if s.fallback, err = s.newTrack(1, s.tracked(), false); err != nil {
		return err
	}
	for range s.perDay / s.fallback.Every() {
		t, err := newTrackOf(s.energyConfig())
		if err != nil {
			return err
		}
		s.byDay = append(s.byDay, t)
	}
	s.peaks, err = newTrackOf(s.peakConfig())
	return err
}

// newState returns a state without tracks.
func newState(c Config) (*State, error) {
	if c.Step < time.Second || c.Step%time.Second != 0 || 24*time.Hour%c.Step != 0 {
		return nil, fmt.Errorf("an interval of %s does not divide a day; want whole seconds that divide 24 hours", c.Step)
	}
	if c.Clock == nil {
		return nil, fmt.Errorf("forecasts require the clock of the meter")
	}
	s := &State{c: c, grid: grid{interval: c.Step, seconds: int64(c.Step / time.Second), perDay: int(24 * time.Hour / c.Step), clock: clock{location: c.Clock}}}
	if c.H < 1 || c.H > maxDays*s.perDay {
		return nil, fmt.Errorf("%d steps cannot be forecast; want 1 to %d, which is %d days", c.H, maxDays*s.perDay, maxDays)
	}
	if c.Levels == nil {
		s.c.Levels = []float64{0.1, 0.5, 0.9}
	}
	if len(s.c.Levels) == 0 || len(s.c.Levels) > maxLevels {
		return nil, fmt.Errorf("%d levels are not possible; want 1 to %d", len(s.c.Levels), maxLevels)
	}
	for i, level := range s.c.Levels {
		if !(level > 0 && level < 1) || i > 0 && level <= s.c.Levels[i-1] {
			return nil, fmt.Errorf("levels %v are not possible; want ascending numbers between 0 and 1", s.c.Levels)
		}
	}
	switch c.Fallback {
	case "":
		s.c.Fallback = LastWeek
	case LastWeek, ExtremeDay:
	default:
		return nil, fmt.Errorf("there is no fallback %q; there are %s and %s", string(c.Fallback), string(LastWeek), string(ExtremeDay))
	}
	s.levels = slices.Clone(s.c.Levels)
	for _, level := range meanLevels {
		if !slices.Contains(s.levels, level) {
			s.levels = append(s.levels, level)
		}
	}
	slices.Sort(s.levels)
	for i, level := range meanLevels {
		s.means[i] = slices.Index(s.levels, level)
	}
	s.point = slices.Index(s.levels, 0.5)
	for _, level := range s.c.Levels {
		s.pick = append(s.pick, slices.Index(s.levels, level))
	}
	return s, nil
}

// tracked returns the number of steps for which the errors of fallbacks are tracked. For a sum,
// it is H, because a sum has no rows beyond those of its members.
func (s *State) tracked() int {
	if s.group {
		return s.c.H
	}
	return max(s.c.H, trackedDays*s.perDay)
}

func (s *State) trackConfig(first, n int, correct bool) calibrate.Config {
	return calibrate.Config{Levels: s.levels, Point: s.point, Horizon: first, Targets: n, StepsPerDay: s.perDay, Correct: correct}
}

func (s *State) newTrack(first, n int, correct bool) (*track, error) {
	return newTrackOf(s.trackConfig(first, n, correct))
}

func newTrackOf(c calibrate.Config) (*track, error) {
	t, err := calibrate.New(c)
	if err != nil {
		return nil, err
	}
	return &track{Tracker: t, c: c, first: -1, newest: -1}, nil
}

// issue corrects forecasts and records them.
func (t *track) issue(last int, values, references []float64) {
	t.Issue(last, values, references)
	t.newest = last
	if t.first < 0 {
		t.first = last
	}
}

// Every returns the number of steps between recorded issues: at most 6 hours, and less for
// models that forecast less than a day. For models that the state has not seen yet, targets
// contains the number of steps that each of them forecasts.
func (s *State) Every(targets ...int) int {
	every := s.fallback.Every()
	for _, t := range []*track{s.own, s.generic} {
		if t != nil {
			every = gcd(every, t.Every())
		}
	}
	for _, n := range targets {
		if n > 0 {
			every = gcd(every, s.trackConfig(1, n, false).Every())
		}
	}
	return every
}

func gcd(a, b int) int {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

// Next returns the start of the first step that the state has not seen, in Unix seconds, or
// 0 if it has seen none.
func (s *State) Next() int64 {
	if s.next == 0 {
		return 0
	}
	return s.start(s.next)
}

// Advance passes new readings before the cutoff to the state. The cutoff must be the start of
// one of the meter's steps.
func (s *State) Advance(m series.Meter, cutoff int64) {
	first, end := s.step(m.Start), s.step(cutoff)
	s.phase = cutoff - int64(end)*s.seconds
	// A tracker does not need steps that no forecast reaches, so skip long gaps.
	for step := max(s.next, first, end-2*maxDays*s.perDay-reachDays*s.perDay); step < end; step++ {
		load := math.NaN()
		if at := step - first; at < len(m.Load) {
			load = float64(m.Load[at])
		}
		if math.IsInf(load, 0) {
			load = math.NaN()
		}
		s.hasRead = s.hasRead || !math.IsNaN(load)
		s.fedIn = s.fedIn || load < 0
		for _, t := range [...]*track{s.fallback, s.own, s.generic} {
			if t != nil {
				t.Observe(step, load)
			}
		}
	}
	s.next = max(s.next, end)
}

// begin prepares an issue. It reports whether the state has seen readings after the cutoff.
func (s *State) begin(m series.Meter, cutoff int64) (late bool) {
	s.Advance(m, cutoff)
	s.work.read(&s.grid, m, cutoff)
	s.work.quantiles = s.work.quantiles[:0]
	return s.next > s.work.last+1
}
