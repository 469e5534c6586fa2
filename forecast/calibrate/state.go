package calibrate

import (
	"math"
	"slices"

	"loadstar/internal/stateformat"
)

var trackerFormat = stateformat.Format{Name: "state of a forecast tracker", Magic: "LODTRACK", Version: 1}

// AppendBinary appends the tracker's state to b. A tracker with the same configuration can
// continue from it with [Tracker.UnmarshalBinary].
func (t *Tracker) AppendBinary(b []byte) ([]byte, error) {
	var w stateformat.Writer
	t.writeConfig(&w)
	w.Int(int64(t.next))
	w.Float64(t.lowest)
	w.Int(int64(len(t.open)))
	for _, is := range t.open {
		w.Int(int64(is.last))
		w.Float32s(is.rows)
	}
	writeRing(&w, &t.errors, func(s *errorSums) {
		w.Float64(s.model)
		w.Float64(s.reference)
		w.Int(int64(s.n))
	})
	if t.c.Correct {
		writeRing(&w, &t.residuals, func(day *[]residual) {
			all := make([]float32, 0, 2*len(*day))
			for _, r := range *day {
				all = append(all, r.sum, r.n)
			}
			w.Float32s(all)
		})
	}
	if t.bounds != nil {
		t.bounds.write(&w)
	}
	return append(b, trackerFormat.Wrap(w.State())...), nil
}

// UnmarshalBinary replaces the tracker's state with one that AppendBinary wrote. If the state
// belongs to a tracker with a different configuration or is damaged, it returns an error and
// does not change the tracker.
func (t *Tracker) UnmarshalBinary(b []byte) error {
	fresh, err := Decode(t.c, b)
	if err == nil {
		*t = *fresh
	}
	return err
}

// Decode returns a tracker with a state that AppendBinary wrote. It returns an error if the
// state belongs to a tracker with a different configuration or is damaged.
func Decode(c Config, b []byte) (*Tracker, error) {
	_, b, err := trackerFormat.Unwrap(b)
	if err != nil {
		return nil, err
	}
	t, err := New(c)
	if err != nil {
		return nil, err
	}
	var want stateformat.Writer
	t.writeConfig(&want)
	if n := len(want.State()); len(b) < n || !slices.Equal(b[:n], want.State()) {
		return nil, trackerFormat.Damaged("it belongs to forecasts with other levels, targets or steps")
	}
	reader := &stateReader{}
	if err := trackerFormat.Read(b[len(want.State()):], func(r *stateformat.Reader) {
		reader.Reader = r
		t.read(reader)
	}); err != nil {
		return nil, err
	}
	if reader.invalid {
		return nil, trackerFormat.Damaged("a step, a count or a forecast in it is impossible")
	}
	return t, nil
}

func (t *Tracker) writeConfig(w *stateformat.Writer) {
	w.Float64s(t.c.Levels)
	for _, n := range []int{t.c.Point, t.c.Horizon, t.c.Targets, t.c.StepsPerDay} {
		w.Int(int64(n))
	}
	w.Bool(t.c.Correct)
}

// maxStep limits the steps in a stored state, so that computations with them cannot overflow.
// It fits into 32 bits, for agents on small devices.
const maxStep = 1 << 30

// stateReader reads numbers, and records whether all of them were valid.
type stateReader struct {
	*stateformat.Reader
	invalid bool
}

func (r *stateReader) check(ok bool) { r.invalid = r.invalid || !ok }

func (r *stateReader) count(most int) int {
	n := r.Int()
	r.check(n >= 0 && n <= int64(most))
	return int(n)
}

func (r *stateReader) number() float64 {
	x := r.Float64()
	r.check(!math.IsNaN(x) && !math.IsInf(x, 0))
	return x
}

// read reads the state of a fresh tracker.
func (t *Tracker) read(r *stateReader) {
	t.next = r.count(maxStep)
	t.lowest = r.Float64()
	r.check(!math.IsNaN(t.lowest) && !math.IsInf(t.lowest, -1))
	newest := -1
	for range r.Count(16) {
		is := issue{last: r.count(maxStep), rows: r.Float32s()}
		n := t.columns()
		r.check(is.last >= newest && len(is.rows) == t.c.Targets*n && possible(is.rows, n))
		newest = is.last
		t.open = append(t.open, is)
	}
	readRing(r, &t.errors, func(s *errorSums) {
		s.model, s.reference, s.n = r.number(), r.number(), r.count(maxStep)
	})
	if t.c.Correct {
		var all []float32
		readRing(r, &t.residuals, func(day *[]residual) {
			all = r.AppendFloat32s(all[:0])
			if r.check(len(all) == 2*len(*day)); r.invalid {
				return
			}
			for i := range *day {
				(*day)[i] = residual{all[2*i], all[2*i+1]}
				r.check(all[2*i]-all[2*i] == 0 && all[2*i+1] >= 0 && all[2*i+1] < 1<<24)
			}
		})
	}
	if t.bounds != nil {
		t.bounds.read(r)
	}
}

// possible reports whether all forecasts in rows of n numbers are finite. A reference may be
// NaN.
func possible(rows []float32, n int) bool {
	for ; len(rows) >= n; rows = rows[n:] {
		wrong := float32(0) // remains 0 unless a number is not finite
		for i, v := range rows[:n] {
			if i != 2 {
				wrong += v - v
			}
		}
		if reference := float64(rows[2]); wrong != 0 || math.IsInf(reference, 0) {
			return false
		}
	}
	return true
}

func (b *bounds) write(w *stateformat.Writer) {
	average := func(a average) {
		w.Float64(a.v)
		w.Int(int64(a.n))
	}
	for _, h := range b.hours {
		average(h)
	}
	for _, k := range b.blocks {
		w.Int(int64(k.n))
		for _, o := range k.levels {
			w.Float64(o.theta)
			average(o.size)
			w.Float32s(o.seen)
		}
	}
}

func (b *bounds) read(r *stateReader) {
	average := func(a *average, most int) {
		a.v, a.n = r.number(), r.count(most)
		r.check(a.v >= 0)
	}
	for i := range b.hours {
		average(&b.hours[i], b.mostHour)
	}
	start := startDays * b.c.StepsPerDay
	for i := range b.blocks {
		k := &b.blocks[i]
		k.n = r.count(start + 1)
		for j := range k.levels {
			o := &k.levels[j]
			o.theta = r.number()
			average(&o.size, b.mostBlock)
			o.seen = r.Float32s()
			r.check(len(o.seen) <= start && slices.IsSorted(o.seen) && !slices.ContainsFunc(o.seen, func(v float32) bool { return v-v != 0 }))
			r.check(k.n > start == (o.seen == nil) || k.n == 0 || j == b.fixed)
		}
	}
}

func writeRing[T any](w *stateformat.Writer, r *ring[T], write func(*T)) {
	w.Bool(r.begun)
	w.Int(int64(r.newest))
	for i := range r.days {
		write(&r.days[i])
	}
}

func readRing[T any](r *stateReader, to *ring[T], read func(*T)) {
	to.begun = r.Bool()
	to.newest = r.count(maxStep)
	for i := range to.days {
		read(&to.days[i])
	}
}
