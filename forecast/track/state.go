package track

import (
	"math"
	"slices"

	"loadstar/internal/stateformat"
)

var recordFormat = stateformat.Format{Name: "scores of forecasts", Magic: "LODSCORE", Version: 1}

// AppendBinary appends the record to b.
func (r *Record) AppendBinary(b []byte) ([]byte, error) {
	var w stateformat.Writer
	r.writeConfig(&w)
	w.Bool(r.begun)
	w.Int(int64(r.newest))
	for d := range r.days {
		for i := range r.days[d] {
			r.days[d][i].write(&w)
		}
	}
	return append(b, recordFormat.Wrap(w.State())...), nil
}

// UnmarshalBinary replaces the record by one that AppendBinary wrote. It returns an error,
// and leaves the record as it is, if the bytes are damaged or belong to forecasts of other
// levels or steps.
func (r *Record) UnmarshalBinary(b []byte) error {
	_, b, err := recordFormat.Unwrap(b)
	if err != nil {
		return err
	}
	var want stateformat.Writer
	r.writeConfig(&want)
	n := len(want.State())
	if len(b) < n || !slices.Equal(b[:n], want.State()) {
		return recordFormat.Damaged("it belongs to forecasts of other levels or steps")
	}
	fresh := &Record{levels: r.levels, point: r.point, step: r.step}
	valid := true
	err = recordFormat.Read(b[n:], func(from *stateformat.Reader) {
		fresh.begun = from.Bool()
		newest := from.Int()
		fresh.newest = int(newest)
		valid = newest >= 0 && newest < 1<<40 && (fresh.begun || newest == 0)
		for d := range fresh.days {
			for i := range fresh.days[d] {
				valid = fresh.days[d][i].read(from, len(r.levels)) && valid
			}
		}
	})
	if err == nil && !valid {
		err = recordFormat.Damaged("a day or a sum in it is impossible")
	}
	if err == nil {
		*r = *fresh
	}
	return err
}

func (r *Record) writeConfig(w *stateformat.Writer) {
	w.Float64s(r.levels)
	w.Int(int64(r.point))
	w.Int(r.step)
}

// write writes a bucket. An empty one takes one byte.
func (b *bucket) write(w *stateformat.Writer) {
	empty := true
	for _, n := range b.rows {
		empty = empty && n == 0
	}
	if w.Bool(!empty); empty {
		return
	}
	for _, n := range b.rows {
		w.Int(int64(n))
	}
	for _, n := range []uint32{b.n, b.withWeek, b.withModel} {
		w.Int(int64(n))
	}
	for _, x := range []float64{b.served, b.servedWith, b.week, b.model, b.weekWithModel} {
		w.Float64(x)
	}
	w.Bool(b.levels != nil)
	for _, l := range b.levels {
		w.Float64(l.pinball)
		w.Int(int64(l.below))
		w.Int(int64(l.above))
	}
}

// read reads a bucket and reports whether it is possible.
func (b *bucket) read(r *stateformat.Reader, levels int) bool {
	if !r.Bool() {
		return true
	}
	valid := true
	count := func(most uint32) uint32 {
		n := r.Int()
		valid = valid && n >= 0 && n <= int64(most)
		return uint32(n)
	}
	sum := func() float64 {
		x := r.Float64()
		valid = valid && x >= 0 && !math.IsInf(x, 0)
		return x
	}
	const most = 1 << 24 // so that sums over all buckets fit
	rows := uint32(0)
	for i := range b.rows {
		b.rows[i] = count(most)
		rows += b.rows[i]
	}
	b.n = count(rows)
	b.withWeek = count(b.n)
	b.withModel = count(b.withWeek)
	b.served, b.servedWith, b.week, b.model, b.weekWithModel = sum(), sum(), sum(), sum(), sum()
	if !r.Bool() {
		return valid && b.n == 0 && rows > 0
	}
	b.levels = make([]levelSums, levels)
	for i := range b.levels {
		b.levels[i] = levelSums{pinball: sum(), below: count(b.n), above: count(b.n)}
		valid = valid && b.levels[i].below+b.levels[i].above <= b.n
	}
	return valid && b.n > 0
}
