package live

import (
	"maps"
	"math"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"loadstar/internal/boltfile"
	"loadstar/internal/stateformat"
)

const (
	keptDays = 40 // number of days of scores that are kept
	// correctable is the number of past days that are scored again when readings are
	// corrected.
	correctable = 7
)

// blocks are the ends of the blocks of leads, in hours. Later leads form the last block.
var blocks = []int{1, 6, 24, 48}

// sums contains the errors of one day's forecasts in a block of leads.
type sums struct {
	Rows, Fallback int // forecasts, and those that did not come from a model
	N              int // forecasts with a known load and a value
	Abs            float64
	Hits           int // loads within the outer levels
	Pinball        []float64
	// The errors of last week's load, and the forecasts' errors in the same steps.
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
	Abs, Signed, Energy, WeekAbs float64 // WeekAbs is the error of last week's energy
}

func (a *energySums) add(b energySums) {
	a.N += b.N
	a.Abs += b.Abs
	a.Signed += b.Signed
	a.Energy += b.Energy
	a.WeekAbs += b.WeekAbs
}

// dayScore contains the sums of a UTC day by block. Its energy sums cover the 24 hours after
// the UTC day's issues that are the first of a local day.
type dayScore struct {
	Day    int64
	Blocks []sums
	Energy energySums
}

// history contains the scores of a client, by ascending day.
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

// energy adds up the errors of the energy forecasts of the given number of newest days.
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

// score converts sums to a [Score].
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

// pinball is the loss of the forecast q at a level.
func pinball(level, q, load float64) float64 {
	if load >= q {
		return float64(level * (load - q))
	}
	return float64((1 - level) * (q - load))
}

// records reads past forecasts from the file and scores them. It has no state, because clients
// and groups hold the scores.
type records struct {
	*inputs
	db *boltfile.File
}

// scoreAll computes the scores of the days that have changed since the last time, and applies
// the consequences. It returns the clients that returned to their previous model. The caller
// stores the result with putScores.
func (is *issuer) scoreAll(now time.Time, snap *snapshot) (back []*member, err error) {
	today := snap.cutoff / day
	for _, name := range is.names {
		m := is.members[name]
		from := today - 1
		if revision := snap.revisions[name]; revision != m.revision {
			m.revision, from = revision, today-correctable
		}
		if n := len(m.scores.days); n > 0 {
			from = max(min(from, m.scores.days[n-1].Day), today-correctable)
		}
		if err := is.records.scoreDays(snap, m.name, nil, m.scores, from); err != nil {
			return nil, err
		}
		champion := m.champion
		if err := is.chooser.follow(m, now, snap); err != nil {
			return nil, err
		}
		if m.champion != champion {
			back = append(back, m)
		}
	}
	for _, g := range is.groups {
		if err := is.records.scoreDays(snap, g.name, g.members, g.scores, today-1); err != nil {
			return nil, err
		}
	}
	return back, nil
}

// putScores stores the scores of all clients and groups, and the states of the clients that
// returned to their previous model.
func (is *issuer) putScores(tx *bolt.Tx, back []*member) error {
	for _, m := range back {
		if err := putState(tx, m.name, asChampion, m.champion); err != nil {
			return err
		}
	}
	for _, name := range is.names {
		if err := putChoice(tx, is.members[name]); err != nil {
			return err
		}
	}
	for _, g := range is.groups {
		if err := put(tx, scoresBucket, []byte(g.name), scoreFormat, encodeScores(g.scores, &watch{})); err != nil {
			return err
		}
	}
	return nil
}

// scoreDays scores the recorded issues of a client or group whose targets are on or after a
// given day.
func (re *records) scoreDays(snap *snapshot, name string, members []string, h *history, from int64) error {
	cutoff, today := snap.cutoff, snap.cutoff/day
	step := re.seconds()
	begin := from*day - 15*day // includes the readings for last week's load
	load, err := re.load(snap.load, name, members, begin, cutoff)
	if err != nil {
		return err
	}
	at := func(t int64) float64 {
		if t < begin || t >= cutoff {
			return math.NaN()
		}
		return float64(load[(t-begin)/step])
	}
	fresh := make([]dayScore, today-from+1)
	for i := range fresh {
		fresh[i] = dayScore{Day: from + int64(i), Blocks: make([]sums, len(blocks)+1)}
	}
	reach := int64(re.c.H) * step
	begun := int64(0) // the local day of the last issue
	err = re.db.View(func(tx *bolt.Tx) error {
		return eachTime(tx, issuedBucket, name, from*day-reach, cutoff, func(_ int64, b []byte) error {
			r, err := readRecorded(b)
			if err != nil || r.Levels != len(re.c.Levels) {
				return err // the configuration had other levels at that time
			}
			if midnight := re.midnight(r.Cutoff); midnight != begun {
				begun = midnight
				if d := r.Cutoff/day - from; d >= 0 && d < int64(len(fresh)) {
					fresh[d].Energy = re.scoreEnergy(r, at)
				}
			}
			for i := range r.steps() {
				t := r.Cutoff + int64(i)*step
				if d := t/day - from; d >= 0 && d < int64(len(fresh)) {
					re.scoreRow(&fresh[d].Blocks[re.block(i)], r, i, at(t), re.weekBefore(at, t))
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

// scoreEnergy scores the energy that an issue forecasts for 24 hours. The result is empty if the
// issue is shorter, or if a mean, a load, or a load of the previous week is unknown.
func (re *records) scoreEnergy(r *recorded, at func(int64) float64) energySums {
	n := day / re.seconds()
	if n > int64(r.steps()) {
		return energySums{}
	}
	var forecast, energy, week float64
	for i := range n {
		t := r.Cutoff + i*re.seconds()
		forecast += float64(r.Means[i])
		energy += at(t)
		week += re.weekBefore(at, t)
	}
	if math.IsNaN(forecast + energy + week) {
		return energySums{}
	}
	hours := re.c.Site.Interval.Hours()
	return energySums{
		N: 1, Abs: hours * math.Abs(forecast-energy), Signed: hours * (forecast - energy), Energy: hours * energy, WeekAbs: hours * math.Abs(week-energy),
	}
}

// scoreRow adds step i of a recorded issue.
func (re *records) scoreRow(t *sums, r *recorded, i int, load, week float64) {
	row := r.Values[i*r.Levels:][:r.Levels]
	t.Rows++
	if src := r.Sources[i]; src != 1 && src != 2 { // the source is neither a model nor generic
		t.Fallback++
	}
	point := float64(row[re.point])
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
		p := pinball(re.c.Levels[k], float64(q), load)
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
		if p := float64(silent[re.point]); !math.IsNaN(p) {
			t.ShadowN++
			for k, q := range silent {
				t.Shadow += pinball(re.c.Levels[k], float64(q), load)
			}
			t.ShadowServed += served
			t.ShadowAbs += math.Abs(load - p)
			t.Both += abs
		}
	}
}

// block returns the block of a step after the cutoff, counted from 0.
func (re *records) block(i int) int {
	hours := int((time.Duration(i+1)*re.c.Site.Interval + time.Hour - 1) / time.Hour)
	b, _ := slices.BinarySearch(blocks, hours)
	return b
}

// scoresOf returns the scores of 1, 7 and 28 days by block of leads.
func (re *records) scoresOf(h *history, today int64) (out []Score) {
	perHour := int(time.Hour / re.c.Site.Interval)
	for _, days := range []int{1, 7, 28} {
		from := today - int64(days) + 1
		total := h.total(from, today, -1)
		all := total.score(days, 0, 0)
		all.Energy = h.energy(days, today)
		out = append(out, all)
		first := 1
		for b := range len(blocks) + 1 {
			last := re.c.H
			if b < len(blocks) {
				last = min(last, blocks[b]*perHour)
			}
			if t := h.total(from, today, b); t.Rows > 0 {
				out = append(out, t.score(days, first, last))
			}
			first = last + 1
		}
	}
	return out
}

// said returns the forecasts of a client or group at a lead, like [Service.Issued].
func (re *records) said(name string, members []string, from, to int64, lead time.Duration) ([]Said, error) {
	step := re.seconds()
	first := max(int64(lead/time.Second)/step, 1)
	from = max(from, to-60*day)
	from += (step - from%step) % step
	said := map[int64]Said{}
	err := re.db.View(func(tx *bolt.Tx) error {
		return eachTime(tx, issuedBucket, name, from-int64(re.c.H)*step, to, func(_ int64, b []byte) error {
			r, err := readRecorded(b)
			if err != nil {
				return err
			}
			for i := int(first) - 1; i < r.steps(); i++ {
				t := r.Cutoff + int64(i)*step
				if t < from || t >= to {
					continue
				}
				x := Said{Time: t, Cutoff: r.Cutoff, Mean: float64(r.Means[i]), Source: sources[min(int(r.Sources[i]), len(sources)-1)], Actual: math.NaN()}
				for _, v := range r.Values[i*r.Levels:][:r.Levels] {
					x.Values = append(x.Values, float64(v))
				}
				said[t] = x // later issues have shorter leads
			}
			return nil
		})
	})
	if err != nil || len(said) == 0 {
		return nil, err
	}
	times := slices.Sorted(maps.Keys(said))
	begin, end := times[0], times[len(times)-1]+step
	load, err := re.load(re.stored, name, members, begin, end)
	if err != nil {
		return nil, err
	}
	out := make([]Said, 0, len(times))
	for _, t := range times {
		x := said[t]
		x.Actual = float64(load[(t-begin)/step])
		out = append(out, x)
	}
	return out, nil
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
