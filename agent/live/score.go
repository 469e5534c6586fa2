package live

import (
	"math"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"loadstar/internal/stateformat"
)

const (
	keptDays = 40 // days of scores that are kept
	// correctable is the number of days whose scores are made again when earlier readings
	// were corrected.
	correctable = 7
)

// blocks are the ends of the blocks of leads, in hours. Later leads form the last block.
var blocks = []int{1, 6, 24, 48}

// sums are the errors of one day's forecasts in a block of leads.
type sums struct {
	Rows, Fallback int // forecasts, and those that are not from a model
	N              int // forecasts with a known load and a value
	Abs            float64
	Hits           int // loads within the outer levels
	Pinball        []float64
	// Errors of last week's load, with the forecasts' errors in the same steps.
	WeekAbs, Week float64
	// Errors of the model alone, and of last week's load in the same steps.
	Bare, BareWeek float64
	BareN          int
	// Pinball loss and absolute error of the contender that runs silently, and of the served
	// forecasts in the same steps.
	ShadowN                               int
	Shadow, ShadowServed, ShadowAbs, Both float64
}

func (a *sums) add(b *sums) {
	a.Rows += b.Rows
	a.Fallback += b.Fallback
	a.N += b.N
	a.Abs += b.Abs
	a.Hits += b.Hits
	if len(a.Pinball) < len(b.Pinball) {
		a.Pinball = append(a.Pinball, make([]float64, len(b.Pinball)-len(a.Pinball))...)
	}
	for i, v := range b.Pinball {
		a.Pinball[i] += v
	}
	a.WeekAbs += b.WeekAbs
	a.Week += b.Week
	a.Bare += b.Bare
	a.BareWeek += b.BareWeek
	a.BareN += b.BareN
	a.ShadowN += b.ShadowN
	a.Shadow += b.Shadow
	a.ShadowServed += b.ShadowServed
	a.ShadowAbs += b.ShadowAbs
	a.Both += b.Both
}

// energySums are the errors of forecasts of a day's energy, in kWh.
type energySums struct {
	N                            int
	Abs, Signed, Energy, WeekAbs float64 // WeekAbs: of last week's energy
}

func (a *energySums) add(b energySums) {
	a.N += b.N
	a.Abs += b.Abs
	a.Signed += b.Signed
	a.Energy += b.Energy
	a.WeekAbs += b.WeekAbs
}

// dayScore has the sums of a UTC day by block, and those of the energy of 24 hours after an issue
// on that day that is the first of its local day.
type dayScore struct {
	Day    int64
	Blocks []sums
	Energy energySums
}

// history has the scores of a client, by ascending day.
type history struct{ days []dayScore }

// set replaces the scores of a day, and drops the oldest days.
func (h *history) set(d dayScore) {
	i, found := slices.BinarySearchFunc(h.days, d.Day, func(x dayScore, day int64) int { return int(x.Day - day) })
	if found {
		h.days[i] = d
	} else {
		h.days = slices.Insert(h.days, i, d)
	}
	if n := len(h.days) - keptDays; n > 0 {
		h.days = slices.Delete(h.days, 0, n)
	}
}

// total adds up the days in [from, to]. Block -1 means all blocks.
func (h *history) total(from, to int64, block int) (t sums) {
	for _, d := range h.days {
		if d.Day < from || d.Day > to {
			continue
		}
		for b := range d.Blocks {
			if block < 0 || b == block {
				t.add(&d.Blocks[b])
			}
		}
	}
	return t
}

// energy adds up the errors of energies of the newest days, as many as are asked for.
func (h *history) energy(days int, today int64) EnergyScore {
	var t energySums
	for _, d := range slices.Backward(h.days) {
		if t.N < days && d.Day >= today-int64(days)-1 {
			t.add(d.Energy)
		}
	}
	if t.N == 0 || t.WeekAbs == 0 || t.Energy == 0 {
		return EnergyScore{}
	}
	return EnergyScore{Days: t.N, MAE: t.Abs / float64(t.N), RelativeMAE: t.Abs / t.WeekAbs, Bias: t.Signed / math.Abs(t.Energy)}
}

// score turns sums into the public form.
func (t *sums) score(days, first, last int) Score {
	x := Score{Days: days, First: first, Last: last, Steps: t.N, MAE: t.Abs / float64(t.N), RelativeMAE: math.NaN()}
	if t.Week > 0 {
		x.RelativeMAE = t.WeekAbs / t.Week
	}
	for _, p := range t.Pinball {
		x.Pinball = append(x.Pinball, p/float64(t.N))
	}
	x.Coverage = float64(t.Hits) / float64(t.N)
	x.Fallback = float64(t.Fallback) / float64(t.Rows)
	return x
}

// pinball is the loss of a forecast q of a level.
func pinball(level, q, load float64) float64 {
	if load >= q {
		return float64(level * (load - q))
	}
	return float64((1 - level) * (q - load))
}

// scoreAll makes the scores of the days that have changed since the last time, and decides
// what follows from them. It returns the clients that went back to the model before. The
// caller stores the result with putScores.
func (s *Service) scoreAll(now time.Time, cutoff int64) (back []*member, err error) {
	today := cutoff / day
	for _, name := range s.names {
		m := s.members[name]
		from := today - 1
		if revision, err := s.c.Store.Revision(name); err != nil {
			return nil, err
		} else if revision != m.revision {
			m.revision, from = revision, today-correctable
		}
		if n := len(m.scores.days); n > 0 {
			from = max(min(from, m.scores.days[n-1].Day), today-correctable)
		}
		if err := s.scoreDays(m.name, nil, m.scores, from, today, cutoff); err != nil {
			return nil, err
		}
		champion := m.champion
		if err := s.follow(m, now, cutoff); err != nil {
			return nil, err
		}
		if m.champion != champion {
			back = append(back, m)
		}
	}
	for _, g := range s.groups {
		if err := s.scoreDays(g.name, g.members, g.scores, today-1, today, cutoff); err != nil {
			return nil, err
		}
	}
	return back, nil
}

// putScores stores the scores of all clients and groups, and the states of the clients that
// went back to the model before.
func (s *Service) putScores(tx *bolt.Tx, back []*member) error {
	for _, m := range back {
		if err := putState(tx, m.name, asChampion, m.champion); err != nil {
			return err
		}
	}
	for _, name := range s.names {
		if err := putChoice(tx, s.members[name]); err != nil {
			return err
		}
	}
	for _, g := range s.groups {
		if err := put(tx, scoresBucket, []byte(g.name), scoreFormat, encodeScores(g.scores, &watch{})); err != nil {
			return err
		}
	}
	return nil
}

// scoreDays scores the recorded issues of a client or group with targets in the given days.
func (s *Service) scoreDays(name string, members []string, h *history, from, to, cutoff int64) error {
	step := s.seconds()
	begin := from*day - 15*day // for last week's load
	load, err := s.load(name, members, begin, cutoff)
	if err != nil {
		return err
	}
	at := func(t int64) float64 {
		if t < begin || t >= cutoff {
			return math.NaN()
		}
		return float64(load[(t-begin)/step])
	}
	fresh := make([]dayScore, to-from+1)
	for i := range fresh {
		fresh[i] = dayScore{Day: from + int64(i), Blocks: make([]sums, len(blocks)+1)}
	}
	reach := int64(s.c.H) * step
	begun := int64(0) // the local day of the last issue
	err = s.db.View(func(tx *bolt.Tx) error {
		return eachTime(tx, issuedBucket, name, from*day-reach, cutoff, func(_ int64, b []byte) error {
			_, state, err := issuedFormat.Unwrap(b)
			var r recorded
			if err == nil {
				err = r.decode(state)
			}
			if err != nil || r.Levels != len(s.c.Levels) {
				return err // the configuration had other levels then
			}
			if midnight := s.midnight(r.Cutoff); midnight != begun {
				begun = midnight
				if d := r.Cutoff/day - from; d >= 0 && d < int64(len(fresh)) {
					fresh[d].Energy = s.scoreEnergy(&r, at)
				}
			}
			for i := range r.steps() {
				t := r.Cutoff + int64(i)*step
				if d := t/day - from; d >= 0 && d < int64(len(fresh)) {
					s.scoreRow(&fresh[d].Blocks[s.block(i)], &r, i, at(t), s.weekBefore(at, t))
				}
			}
			return nil
		})
	})
	if err != nil {
		return err
	}
	for _, d := range fresh {
		h.set(d)
	}
	return nil
}

// midnight returns the last local midnight at or before a time.
func (s *Service) midnight(t int64) int64 {
	y, m, d := time.Unix(t, 0).In(s.c.Site.Clock).Date()
	return time.Date(y, m, d, 0, 0, 0, 0, s.c.Site.Clock).Unix()
}

// scoreEnergy scores the energy that an issue forecasts for 24 hours. It is empty if the issue is
// shorter, or if a mean, a load, or a load of the week before is not known.
func (s *Service) scoreEnergy(r *recorded, at func(int64) float64) energySums {
	n := day / s.seconds()
	if n > int64(r.steps()) {
		return energySums{}
	}
	var forecast, energy, week float64
	for i := range n {
		t := r.Cutoff + i*s.seconds()
		forecast += float64(r.Means[i])
		energy += at(t)
		week += s.weekBefore(at, t)
	}
	if math.IsNaN(forecast + energy + week) {
		return energySums{}
	}
	hours := s.c.Site.Interval.Hours()
	return energySums{
		N: 1, Abs: hours * math.Abs(forecast-energy), Signed: hours * (forecast - energy), Energy: hours * energy, WeekAbs: hours * math.Abs(week-energy),
	}
}

// scoreRow adds step i of a recorded issue.
func (s *Service) scoreRow(t *sums, r *recorded, i int, load, week float64) {
	row := r.Values[i*r.Levels:][:r.Levels]
	t.Rows++
	if src := r.Sources[i]; src != 1 && src != 2 { // neither model nor generic
		t.Fallback++
	}
	point := float64(row[s.point])
	if math.IsNaN(load) || math.IsNaN(point) {
		return
	}
	abs := math.Abs(load - point)
	t.N++
	t.Abs += abs
	if load >= float64(row[0]) && load <= float64(row[r.Levels-1]) {
		t.Hits++
	}
	if t.Pinball == nil {
		t.Pinball = make([]float64, r.Levels)
	}
	served := 0.0
	for k, q := range row {
		p := pinball(s.c.Levels[k], float64(q), load)
		t.Pinball[k] += p
		served += p
	}
	if !math.IsNaN(week) {
		t.WeekAbs += abs
		t.Week += math.Abs(load - week)
		if i < len(r.Bare) && r.Bare[i] == r.Bare[i] {
			t.Bare += math.Abs(load - float64(r.Bare[i]))
			t.BareWeek += math.Abs(load - week)
			t.BareN++
		}
	}
	if len(r.Shadow) > 0 {
		silent := r.Shadow[i*r.Levels:][:r.Levels]
		if p := float64(silent[s.point]); !math.IsNaN(p) {
			t.ShadowN++
			for k, q := range silent {
				t.Shadow += pinball(s.c.Levels[k], float64(q), load)
			}
			t.ShadowServed += served
			t.ShadowAbs += math.Abs(load - p)
			t.Both += abs
		}
	}
}

// block returns the block of a step after the cutoff, counted from 0.
func (s *Service) block(i int) int {
	hours := int((time.Duration(i+1)*s.c.Site.Interval + time.Hour - 1) / time.Hour)
	b, _ := slices.BinarySearch(blocks, hours)
	return b
}

// weekBefore returns the load at the same clock time 7 days before, or 14.
func (s *Service) weekBefore(at func(int64) float64, t int64) float64 {
	clock := time.Unix(t, 0).In(s.c.Site.Clock)
	for _, days := range []int{7, 14} {
		if v := at(clock.AddDate(0, 0, -days).Unix()); !math.IsNaN(v) {
			return v
		}
	}
	return math.NaN()
}

// load returns the readings of a client, or the sum of those of a group, in [from, to).
func (s *Service) load(name string, members []string, from, to int64) ([]float32, error) {
	if members == nil {
		m, err := s.c.Store.Load(name, from, to)
		return m.Load, err
	}
	sum := make([]float32, (to-from)/s.seconds())
	for _, x := range members {
		m, err := s.c.Store.Load(x, from, to)
		if err != nil {
			return nil, err
		}
		for i, v := range m.Load {
			sum[i] += v
		}
	}
	return sum, nil
}

func encodeScores(h *history, w *watch) []byte {
	var x stateformat.Writer
	x.Int(int64(len(h.days)))
	for _, d := range h.days {
		x.Int(d.Day)
		x.Int(int64(d.Energy.N))
		for _, v := range []float64{d.Energy.Abs, d.Energy.Signed, d.Energy.Energy, d.Energy.WeekAbs} {
			x.Float64(v)
		}
		x.Int(int64(len(d.Blocks)))
		for i := range d.Blocks {
			b := &d.Blocks[i]
			for _, n := range []int{b.Rows, b.Fallback, b.N, b.Hits, b.BareN, b.ShadowN} {
				x.Int(int64(n))
			}
			x.Float64s(b.Pinball)
			for _, v := range []float64{b.Abs, b.WeekAbs, b.Week, b.Bare, b.BareWeek, b.Shadow, b.ShadowServed, b.ShadowAbs, b.Both} {
				x.Float64(v)
			}
		}
	}
	w.encode(&x)
	return x.State()
}

func decodeScores(b []byte) (*history, *watch, error) {
	h, w := &history{}, &watch{}
	if b == nil {
		return h, w, nil
	}
	err := scoreFormat.Read(b, func(x *stateformat.Reader) {
		h.days = make([]dayScore, x.Count(16))
		for i := range h.days {
			d := &h.days[i]
			d.Day = x.Int()
			d.Energy.N = int(x.Int())
			for _, v := range []*float64{&d.Energy.Abs, &d.Energy.Signed, &d.Energy.Energy, &d.Energy.WeekAbs} {
				*v = x.Float64()
			}
			d.Blocks = make([]sums, x.Count(18*8))
			for j := range d.Blocks {
				b := &d.Blocks[j]
				for _, n := range []*int{&b.Rows, &b.Fallback, &b.N, &b.Hits, &b.BareN, &b.ShadowN} {
					*n = int(x.Int())
				}
				b.Pinball = x.Float64s()
				for _, v := range []*float64{&b.Abs, &b.WeekAbs, &b.Week, &b.Bare, &b.BareWeek, &b.Shadow, &b.ShadowServed, &b.ShadowAbs, &b.Both} {
					*v = x.Float64()
				}
			}
		}
		w.decode(x)
	})
	return h, w, err
}
