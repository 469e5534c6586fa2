package series

import (
	"math"
	"slices"
	"sync"
)

// The framer finds examples as runs, not individually. Each column is complete in certain runs
// of steps, and an example needs several consecutive steps of every column. A run of complete
// steps in a column therefore allows a run of examples. The examples of a meter are the
// intersection of the runs that all its columns allow. The runs of columns that all meters
// share are computed once.

// span is a run of steps, or of examples identified by the step of their last input. It
// includes from and excludes to.
type span struct{ from, to int }

// present appends to runs the runs of values in x that are not missing.
func present(runs []span, x []float32) []span {
	for i := 0; i < len(x); {
		if Missing(x[i]) {
			i++
			continue
		}
		from := i
		// A sum is NaN if any term is NaN.
		for i+8 <= len(x) && !Missing(x[i]+x[i+1]+x[i+2]+x[i+3]+x[i+4]+x[i+5]+x[i+6]+x[i+7]) {
			i += 8
		}
		for i < len(x) && !Missing(x[i]) {
			i++
		}
		runs = append(runs, span{from, i})
	}
	return runs
}

// allow appends to dst those examples in among that a column allows. The column allows an
// example if it is complete in the last need steps up to the step that is ahead steps after
// the example's last input. Runs are the column's runs of complete values; value i belongs to
// step i-offset. Steps before 0 are ignored.
func allow(dst, among, runs []span, offset, need, ahead int) []span {
	for _, r := range runs {
		from, to := max(r.from-offset, 0)+need-1-ahead, r.to-offset-ahead
		for len(among) > 0 && among[0].to <= from {
			among = among[1:]
		}
		for _, a := range among {
			if a.from >= to {
				break
			}
			if both := (span{max(a.from, from), min(a.to, to)}); both.from < both.to {
				dst = append(dst, both)
			}
		}
	}
	return dst
}

// sharedColumn is a calendar or weather column, which all meters share, with an index that
// is computed once.
type sharedColumn struct {
	start int64
	data  []float32

	once   sync.Once
	runs   []span
	blocks []Range // the value range of each block of blockSteps values
}

const blockSteps = 64

func (s *sharedColumn) index() {
	s.once.Do(func() {
		s.runs = present(nil, s.data)
		for block := range slices.Chunk(s.data, blockSteps) {
			s.blocks = append(s.blocks, nowhere.over(block))
		}
	})
}

// over returns the value range of data[from:to].
func (s *sharedColumn) over(from, to int) Range {
	s.index()
	r := nowhere
	first, last := (from+blockSteps-1)/blockSteps, to/blockSteps
	if first >= last {
		return r.over(s.data[from:to])
	}
	r = r.over(s.data[from : first*blockSteps])
	for _, b := range s.blocks[first:last] {
		r = r.join(b)
	}
	return r.over(s.data[last*blockSteps : to])
}

// nowhere is the empty range, to which values are added.
var nowhere = Range{float32(math.Inf(1)), float32(math.Inf(-1))}

// over returns the range widened to include the values that are not missing. If two values
// compare equal, the first one becomes the bound. This matters for 0 and -0.
func (r Range) over(values []float32) Range {
	for _, v := range values {
		if v < r.Low {
			r.Low = v
		}
		if v > r.High {
			r.High = v
		}
	}
	return r
}

// join returns the range widened to include the range of values that come later in the
// series.
func (r Range) join(later Range) Range {
	if later.Low < r.Low {
		r.Low = later.Low
	}
	if later.High > r.High {
		r.High = later.High
	}
	return r
}

// finder contains the buffers of one call of Windows.find, which later calls reuse.
type finder struct{ load, lagged, now, next []span }

var finders = sync.Pool{New: func() any { return new(finder) }}

// find finds the runs of examples without missing values and stores them in w.
func (w *Windows) find() {
	l := &w.frame.layout
	load := w.target.data
	reach := l.Horizon + l.Targets - 1 // from the last input to the last target
	s := finders.Get().(*finder)
	defer finders.Put(s)
	s.load = present(s.load[:0], load)
	s.now = s.now[:0]
	if all := (span{l.Lookback - 1, len(load) - reach}); all.from < all.to {
		s.now = append(s.now, all)
	}
	narrow := func(runs []span, offset, need, ahead int) {
		s.next = allow(s.next[:0], s.now, runs, offset, need, ahead)
		s.now, s.next = s.next, s.now
	}
	narrow(s.load, 0, l.Targets, reach)
	for i := range w.columns {
		switch c := &w.columns[i]; {
		case c.data == nil:
			if Missing(c.fixed) {
				s.now = s.now[:0]
			}
		case c.shared != nil:
			c.shared.index()
			narrow(c.shared.runs, c.offset, l.Lookback, 0)
		case c.lag != nil:
			s.lagged = c.lag.runs(s.lagged[:0], s.load, c.offset, c.back)
			narrow(s.lagged, 0, l.Lookback, 0)
		default:
			narrow(s.load, c.offset, l.Lookback, 0)
		}
	}
	w.keep(s.now)
}
