package calibrate

import (
	"math"
	"slices"

	"loadstar/internal/stateformat"
)

var trackerFormat = stateformat.Format{Name: "state of a forecast tracker", Magic: "LODTRACK", Version: 1}

// AppendBinary appends the tracker's state to b. A tracker of the same configuration
// continues from it with [Tracker.UnmarshalBinary].
func (t *Tracker) AppendBinary(b []byte) ([]byte, error) {
	var w stateformat.Writer
	t.writeConfig(&w)
	w.Int(int64(t.next))
	w.Float64(t.lowest)
	w.Int(int64(len(t.open)))
	for _, is := range t.open {
		w.Int(int64(is.last))
		w.Float64s(is.rows)
	}
	writeRing(&w, &t.errors, func(s *errorSums) {
		w.Float64(s.model)
		w.Float64(s.reference)
		w.Int(int64(s.n))
	})
	if t.c.Correct {
		writeRing(&w, &t.residuals, func(day *[]residual) {
			for _, r := range *day {
				w.Float64(r.sum)
				w.Int(int64(r.n))
			}
		})
	}
	for i := range t.intervals {
		writeRing(&w, &t.intervals[i].scores, func(day *[]float32) { w.Float32s(*day) })
	}
	return append(b, trackerFormat.Wrap(w.State())...), nil
}

// UnmarshalBinary replaces the tracker's state by one that AppendBinary wrote. It returns
// an error, and leaves the tracker as it is, if the state belongs to a tracker of another
// configuration or is damaged.
func (t *Tracker) UnmarshalBinary(b []byte) error {
	_, b, err := trackerFormat.Unwrap(b)
	if err != nil {
		return err
	}
	fresh, err := New(t.c)
	if err != nil {
		return err
	}
	var want stateformat.Writer
	t.writeConfig(&want)
	if n := len(want.State()); len(b) < n || !slices.Equal(b[:n], want.State()) {
		return trackerFormat.Damaged("it belongs to forecasts with other levels, targets or steps")
	}
	valid := true
	if err := trackerFormat.Read(b[len(want.State()):], func(r *stateformat.Reader) { valid = fresh.read(r) }); err != nil {
		return err
	}
	if !valid {
		return trackerFormat.Damaged("a step, a count or a forecast in it is impossible")
	}
	*t = *fresh
	return nil
}

func (t *Tracker) writeConfig(w *stateformat.Writer) {
	w.Float64s(t.c.Levels)
	for _, n := range []int{t.c.Point, t.c.Horizon, t.c.Targets, t.c.StepsPerDay} {
		w.Int(int64(n))
	}
	w.Bool(t.c.Correct)
}

// maxStep limits the steps in a stored state, so that computing with them cannot overflow.
const maxStep = 1 << 50

// read reads the state of a fresh tracker, and reports whether it is possible.
func (t *Tracker) read(r *stateformat.Reader) bool {
	valid := true
	check := func(ok bool) { valid = valid && ok }
	step := func() int {
		n := r.Int()
		check(n >= 0 && n < maxStep)
		return int(n)
	}
	t.next = step()
	t.lowest = r.Float64()
	check(!math.IsNaN(t.lowest) && !math.IsInf(t.lowest, -1))
	newest := -1
	for range r.Count(16) {
		is := issue{last: step(), rows: r.Float64s()}
		check(is.last >= newest && is.last <= t.next && len(is.rows) == t.c.Targets*t.columns())
		newest = is.last
		t.open = append(t.open, is)
	}
	number := func() float64 {
		x := r.Float64()
		check(!math.IsNaN(x) && !math.IsInf(x, 0))
		return x
	}
	readRing(r, &t.errors, step, func(s *errorSums) { s.model, s.reference, s.n = number(), number(), step() })
	if t.c.Correct {
		readRing(r, &t.residuals, step, func(day *[]residual) {
			for i := range *day {
				(*day)[i] = residual{number(), step()}
			}
		})
	}
	for i := range t.intervals {
		readRing(r, &t.intervals[i].scores, step, func(day *[]float32) { *day = r.Float32s() })
	}
	return valid
}

func writeRing[T any](w *stateformat.Writer, r *ring[T], write func(*T)) {
	w.Bool(r.begun)
	w.Int(int64(r.newest))
	for i := range r.days {
		write(&r.days[i])
	}
}

func readRing[T any](r *stateformat.Reader, to *ring[T], step func() int, read func(*T)) {
	to.begun = r.Bool()
	to.newest = step()
	for i := range to.days {
		read(&to.days[i])
	}
}
