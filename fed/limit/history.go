package limit

import (
	"maps"
	"math"
	"slices"

	"loadstar/fed"
	"loadstar/internal/stateformat"
)

const (
	// window is the minimum number of updates that determine the limits. The limits are based
	// on as many of the newest merges as are needed to reach this number. One merge is not
	// enough, because with a buffer of one it contains a single update, which must not
	// determine the limits alone.
	window = 32
	// least is the number of updates up to which the first limits remain in force.
	least = 8
	// lossFactor limits losses to a multiple of the median. Honest clients differ more in their
	// losses than in their norms.
	lossFactor = 10
)

// Tally counts the updates of a merge by size. It does not depend on the order of the
// updates, and its memory does not grow with their number. The zero value is empty.
type Tally struct {
	updates                           int64
	norms, controls, examples, losses histogram
}

// Add counts an update. Its sizes are within the limits, except for the number of examples,
// which Add counts as the client claims it. A few false claims hardly change the median,
// whereas a limit based on limited numbers could never grow.
func (t *Tally) Add(u *fed.Update) {
	t.updates++
	t.norms.add(u.Norm)
	t.controls.add(u.ControlNorm)
	t.examples.add(float64(u.Claimed))
	t.losses.add(u.TrainLoss)
}

// A coarse tally has few counters, because agents mask them: four for each power of two from
// 2^-20 to 2^20. Numbers outside this range count as its nearest bound.
const (
	perPower             = 4
	powers               = 40
	coarsest, coarseLast = 0x1p-20, 0x1p20 * (1 - 0x1p-20)
	// Counters is the number of counters of a coarse tally.
	Counters = 4 * perPower * powers
)

// AddCoarse counts an update as Add does, with sizes rounded down to the lower ends of coarse
// buckets.
func (t *Tally) AddCoarse(u *fed.Update) {
	t.updates++
	t.norms.add(coarse(u.Norm))
	t.controls.add(coarse(u.ControlNorm))
	t.examples.add(coarse(float64(u.Claimed)))
	t.losses.add(coarse(u.TrainLoss))
}

const coarseBits = 52 - 2 // four buckets for each power of two

// coarse rounds a size down to the lower end of its coarse bucket.
func coarse(x float64) float64 {
	if !(x > 0) {
		return 0
	}
	return math.Float64frombits(math.Float64bits(min(max(x, coarsest), coarseLast)) >> coarseBits << coarseBits)
}

// Counters returns a coarse tally's counters for norms, norms of control variates, numbers of
// examples, and losses. The counters of several tallies can be added up.
func (t *Tally) Counters() []uint64 {
	c := make([]uint64, Counters)
	for i, h := range t.all() {
		for b, n := range *h {
			c[i*perPower*powers+counterOf(b)] += uint64(n)
		}
	}
	return c
}

// SetCounters replaces the tally with a coarse tally of the given number of updates. It
// replaces an impossible counter with the nearest possible value, because a client that sends
// nonsense must not spoil a round.
func (t *Tally) SetCounters(updates int64, c []uint64) {
	*t = Tally{updates: updates}
	for i, h := range t.all() {
		for j, n := range c[i*perPower*powers : (i+1)*perPower*powers] {
			if n := min(max(int64(n), 0), updates); n > 0 {
				if *h == nil {
					*h = histogram{}
				}
				(*h)[bucketOf(j)] = n
			}
		}
	}
}

// firstCounter is the coarse bucket of the smallest size.
var firstCounter = int(math.Float64bits(coarsest) >> coarseBits)

// counterOf returns the counter of a bucket, and bucketOf the lowest bucket of a counter.
func counterOf(bucket int) int {
	return min(max(bucket>>(coarseBits-bucketBits)-firstCounter, 0), perPower*powers-1)
}

func bucketOf(counter int) int { return (counter + firstCounter) << (coarseBits - bucketBits) }

// Merge counts all updates of another tally.
func (t *Tally) Merge(o *Tally) {
	t.updates += o.updates
	for i, h := range t.all() {
		h.merge(*o.all()[i])
	}
}

// all returns the histograms in the order in which they are encoded.
func (t *Tally) all() [4]*histogram {
	return [4]*histogram{&t.norms, &t.controls, &t.examples, &t.losses}
}

// histogram counts numbers by the leading bits of their floating-point representation: 64
// buckets for each power of two.
type histogram map[int]int64

const (
	bucketBits = 52 - 6
	// Numbers outside the range from 2^-60 to 2^60 count as its nearest bound, so there are at
	// most 7680 buckets.
	smallest, largest = 0x1p-60, 0x1p60
)

// add counts a number. It skips 0, which an agent sends for withheld sizes, and numbers
// that cannot be sizes.
func (h *histogram) add(x float64) {
	if !(x > 0) {
		return
	}
	if *h == nil {
		*h = histogram{}
	}
	(*h)[int(math.Float64bits(min(max(x, smallest), largest))>>bucketBits)]++
}

func (h *histogram) merge(o histogram) {
	if *h == nil && len(o) > 0 {
		*h = histogram{}
	}
	for b, n := range o {
		(*h)[b] += n
	}
}

// median returns the lower end of the median's bucket, which is at most 1/64 below the
// median. It returns 0 if the histogram is empty.
func (h histogram) median() float64 {
	var n int64
	for _, of := range h {
		n += of
	}
	n = (n + 1) / 2
	for _, b := range slices.Sorted(maps.Keys(h)) {
		if n -= h[b]; n <= 0 {
			return math.Float64frombits(uint64(b) << bucketBits)
		}
	}
	return 0
}

// History contains the earlier updates that determine the limits. The zero value sets no
// limits.
type History struct {
	// Factor is the multiple of a median at which the limit is set. 0 means no limits.
	Factor float64
	// First contains the limits for the first versions.
	First  fed.Limits
	merges []Tally
}

// Add adds the updates of a merge. The history takes ownership of the tally.
func (h *History) Add(t Tally) {
	if h.Factor == 0 {
		return
	}
	h.merges = append(h.merges, t)
	n := h.updates()
	for len(h.merges) > 1 && n-h.merges[0].updates >= window {
		n -= h.merges[0].updates
		h.merges = h.merges[1:]
	}
}

func (h *History) updates() (n int64) {
	for i := range h.merges {
		n += h.merges[i].updates
	}
	return n
}

// Limits returns the limits for updates that are trained from the current version.
func (h *History) Limits() fed.Limits {
	if h.Factor == 0 || h.updates() < least {
		return h.First
	}
	var all Tally
	for i := range h.merges {
		all.Merge(&h.merges[i])
	}
	l := h.First
	for _, x := range []struct {
		limit  *float64
		median float64
		factor float64
	}{
		{&l.Norm, all.norms.median(), h.Factor},
		{&l.Control, all.controls.median(), h.Factor},
		{&l.Loss, all.losses.median(), lossFactor},
	} {
		if x.median > 0 {
			*x.limit = x.factor * x.median
		}
	}
	if m := all.examples.median(); m > 0 {
		// The factor for examples is 1, because the factor for norms multiplies it, and a fifth
		// of the clients, all at both limits, must not outweigh the others.
		l.Examples = max(int64(m), 1)
	}
	return l
}

// Write encodes the history.
func (h *History) Write(w *stateformat.Writer) {
	w.Float64(h.Factor)
	WriteLimits(w, h.First)
	w.Int(int64(len(h.merges)))
	for i := range h.merges {
		t := &h.merges[i]
		w.Int(t.updates)
		for _, x := range t.all() {
			w.Int(int64(len(*x)))
			for _, b := range slices.Sorted(maps.Keys(*x)) {
				w.Int(int64(b))
				w.Int((*x)[b])
			}
		}
	}
}

// Read decodes what Write wrote.
func (h *History) Read(r *stateformat.Reader) {
	h.Factor = r.Float64()
	h.First = ReadLimits(r)
	for range r.Count(5 * 8) {
		t := Tally{updates: r.Int()}
		for _, x := range t.all() {
			for range r.Count(2 * 8) {
				if *x == nil {
					*x = histogram{}
				}
				b := int(r.Int())
				(*x)[b] = r.Int()
			}
		}
		h.merges = append(h.merges, t)
	}
}

// WriteLimits encodes limits except the limit of coordinates, which follows from the plan.
func WriteLimits(w *stateformat.Writer, l fed.Limits) {
	w.Float64(l.Norm)
	w.Float64(l.Control)
	w.Int(l.Examples)
	w.Float64(l.Loss)
}

// ReadLimits decodes what WriteLimits wrote.
func ReadLimits(r *stateformat.Reader) fed.Limits {
	return fed.Limits{Norm: r.Float64(), Control: r.Float64(), Examples: r.Int(), Loss: r.Float64()}
}
