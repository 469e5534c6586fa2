package series

import (
	"fmt"
	"sort"
)

// Origins holds the origins of a meter's examples. An origin is the step of the newest load
// that a forecast knows. Origins are stored as runs of consecutive steps, because most series
// have few gaps.
type Origins struct {
	frame *Framer
	runs  []run // all origins
	parts [4]part
	// train and validation are the first steps after the splits of the same names.
	train, validation int
}

// run is a run of consecutive origins. First is the first origin of the run, and before is
// the number of origins in all earlier runs. The before field of the next run therefore
// gives the end of this run.
type run struct{ first, before int32 }

// part is the range of origins in one split, given by the number of the first origin and the
// count.
type part struct{ first, n int32 }

// Origins returns the origins of a meter at which the given function returns true. The
// function is called in chronological order, for every step whose targets are all in the
// meter's span.
func (f *Framer) Origins(m Meter, valid func(last int) bool) Origins {
	o := f.noOrigins(m)
	var runs []span
	for last := range max(len(m.Load)-f.reach(), 0) {
		if !valid(last) {
			continue
		}
		if n := len(runs); n > 0 && runs[n-1].to == last {
			runs[n-1].to++
		} else {
			runs = append(runs, span{last, last + 1})
		}
	}
	o.keep(runs)
	return o
}

// BeforeTest returns the number of steps of a meter before its test split.
func (f *Framer) BeforeTest(m Meter) int {
	_, validation := f.cuts(m)
	return validation
}

// noOrigins returns an empty Origins for a meter.
func (f *Framer) noOrigins(m Meter) Origins {
	o := Origins{frame: f}
	o.train, o.validation = f.cuts(m)
	return o
}

// reach returns the number of steps from an origin to its last target.
func (f *Framer) reach() int { return f.layout.Horizon + f.layout.Targets - 1 }

// keep stores a meter's runs of origins, and the range of origins in each split (train,
// validation, test). A split is a period of time, so its origins are consecutive.
func (o *Origins) keep(runs []span) {
	o.runs = make([]run, 0, len(runs))
	total := 0
	for _, r := range runs {
		o.runs = append(o.runs, run{int32(r.from), int32(total)})
		total += r.to - r.from
	}
	before := func(step int) int { // the number of origins before step
		n := 0
		for _, r := range runs {
			if r.from >= step {
				break
			}
			n += min(r.to, step) - r.from
		}
		return n
	}
	horizon, reach := o.frame.layout.Horizon, o.frame.reach()
	o.parts[All] = part{0, int32(total)}
	o.parts[Train] = part{0, int32(before(o.train - reach))}
	first := before(o.train - horizon)
	o.parts[Validation] = part{int32(first), int32(max(before(o.validation-reach)-first, 0))}
	first = before(o.validation - horizon)
	o.parts[Test] = part{int32(first), int32(total - first)}
}

// place returns the index of the run that contains origin k.
func (o *Origins) place(k int) int {
	return sort.Search(len(o.runs), func(i int) bool { return int(o.runs[i].before) > k }) - 1
}

// Frame returns the framer that found the origins.
func (o *Origins) Frame() *Framer { return o.frame }

// Len returns the number of origins in the given part of the span.
func (o *Origins) Len(p Part) int { return int(o.parts[p].n) }

// At returns origin k of a part, in chronological order.
func (o *Origins) At(p Part, k int) int {
	if k < 0 || k >= o.Len(p) {
		panic(fmt.Sprintf("series: origin %d of %d", k, o.Len(p)))
	}
	k += int(o.parts[p].first)
	r := o.runs[o.place(k)]
	return int(r.first) + k - int(r.before)
}

// Each calls f with every origin of a part, in chronological order.
func (o *Origins) Each(p Part, f func(last int) error) error {
	k := int(o.parts[p].first)
	end := k + o.Len(p)
	for i := o.place(k); k < end; i++ {
		until := end
		if i+1 < len(o.runs) {
			until = min(until, int(o.runs[i+1].before))
		}
		for ; k < until; k++ {
			if err := f(int(o.runs[i].first) + k - int(o.runs[i].before)); err != nil {
				return err
			}
		}
	}
	return nil
}
