package calibrate

import (
	"math"
	"slices"
)

// The bounds of intervals are learned by quantile tracking (Angelopoulos, Candès and Tibshirani
// 2023, conformal PID control). For each level, a block of leads has an offset theta in units
// of a scale. After each outcome, theta moves up if the load was above the issued bound, and
// down if it was below. The sizes of these steps balance if the intended share of loads is
// below the bound. The load is compared with the bound as it was issued, not with the current
// bound, because issues overlap.
//
// The values below were measured on validation data of seven groups of clients; see
// docs/adr/0019-track-the-bounds-of-intervals.md. An additional integral term, as in conformal
// PID control, brought coverage nearer to its goal, but larger steps had the same effect at the
// same cost in pinball loss.
const (
	// stepSize is the largest total move of theta in a day, in units of the usual distance
	// between loads and the model's quantile.
	stepSize = 0.96
	// startDays is the number of days at the start during which theta is the empirical quantile
	// of the outcomes so far. Bounds do not move until the first of these days is complete.
	startDays = 3
	// scaleDays is the number of days over which scales are averaged.
	scaleDays = 14
	// widthShare is the share of the model's own interval in the scale. The rest is the usual
	// error at the hour of the day, which is taken to be at least leastHour times the mean over
	// all hours.
	widthShare = 0.3
	leastHour  = 0.2
	// farthest limits theta, so that theta can return in finite time.
	farthest = 1e6
)

// bounds moves the bounds of intervals.
type bounds struct {
	c     Config
	fixed int // index of the median, which is not moved, or -1
	// hours contains the mean absolute errors of the served point forecasts by hour.
	hours [24]average
	// Outcomes of the same block of consecutive leads are pooled. A block has as many leads
	// as there are steps between recorded issues, so each block sees every step of the day.
	leads  int // number of leads in a block
	blocks []block
	// mostHour and mostBlock limit the numbers of outcomes over which averages are taken.
	mostHour, mostBlock int
}

// block contains the state of one block of leads.
type block struct {
	n      int // number of outcomes, counted until the start is over
	levels []offset
}

// offset is the distance of one level's bound from the model's quantile.
type offset struct {
	theta float64
	size  average   // mean distance between load and the model's quantile
	seen  []float32 // these distances during the start; nil afterwards
}

// average is a running mean. Once it has enough values, older values lose weight.
type average struct {
	v float64
	n int
}

func (a *average) add(x float64, most int) {
	a.n = min(a.n+1, most)
	a.v += (x - a.v) / float64(a.n)
}

func newBounds(c Config, every int) *bounds {
	b := &bounds{c: c, fixed: -1, leads: every}
	if math.Abs(c.Levels[c.Point]-0.5) < 1e-9 {
		b.fixed = c.Point
	}
	b.blocks = make([]block, (c.Targets+every-1)/every)
	n := len(c.Levels)
	all := make([]offset, len(b.blocks)*n)
	for i := range b.blocks {
		b.blocks[i].levels = all[i*n:][:n:n]
	}
	b.mostHour = max(scaleDays*max(c.StepsPerDay/24, 1)*c.Targets/every, 1)
	b.mostBlock = scaleDays * c.StepsPerDay
	return b
}

func (b *bounds) hour(step int) int { return step % b.c.StepsPerDay * 24 / b.c.StepsPerDay }

// scale returns the unit of offsets for a step, given the width of the model's interval, or
// 0 if no error is known yet.
func (b *bounds) scale(step int, width float64) float64 {
	var sum float64
	n := 0
	for i := range b.hours {
		if b.hours[i].n > 0 {
			sum += b.hours[i].v
			n++
		}
	}
	if sum == 0 {
		return 0
	}
	s := sum / float64(n)
	if h := b.hours[b.hour(step)]; h.n >= 3 {
		s = max(h.v, float64(leastHour*s))
	}
	return float64((1-widthShare)*s) + float64(widthShare*width)
}

// move moves the quantiles in a row of forecasts. It writes each quantile, and the moved
// quantile before limits are applied, to kept. Moved quantiles do not pass the median. If
// nonnegative is set, quantiles below the median are not moved below 0.
func (b *bounds) move(step, target int, row []float64, kept []float32, nonnegative bool) {
	s := b.scale(step, row[len(row)-1]-row[0])
	k := &b.blocks[target/b.leads]
	for i, from := range row {
		to := from
		if i != b.fixed && k.n >= b.c.StepsPerDay {
			to += float64(k.levels[i].theta * s)
		}
		kept[2*i], kept[2*i+1] = float32(from), float32(to)
		if nonnegative && b.c.Levels[i] < 0.5 {
			to = max(to, min(from, 0))
		}
		if b.fixed > i {
			to = min(to, row[b.fixed])
		} else if b.fixed >= 0 {
			to = max(to, row[b.fixed])
		}
		row[i] = to
	}
	slices.Sort(row) // levels are moved independently
}

// learn compares the values that move wrote to kept with the load of the step. point is the
// served point forecast.
func (b *bounds) learn(step, target int, point float64, kept []float32, load float64) {
	k := &b.blocks[target/b.leads]
	if s := b.scale(step, float64(kept[len(kept)-2]-kept[0])); s > 0 {
		k.n = min(k.n+1, startDays*b.c.StepsPerDay+1)
		for i := range k.levels {
			if i != b.fixed {
				b.learnLevel(k, i, (load-float64(kept[2*i]))/s, load, float64(kept[2*i+1]))
			}
		}
	}
	b.hours[b.hour(step)].add(math.Abs(load-point), b.mostHour)
}

// learnLevel updates one level of a block, given the load, its distance from the model's
// quantile in units of the scale, and the bound as it was issued.
func (b *bounds) learnLevel(k *block, i int, distance, load, issued float64) {
	level, o := b.c.Levels[i], &k.levels[i]
	if k.n <= startDays*b.c.StepsPerDay {
		at, _ := slices.BinarySearch(o.seen, float32(distance))
		o.seen = slices.Insert(o.seen, at, float32(distance))
		// Add one to the number of distances, because the next distance is equally likely to fall
		// into any of the gaps around them. Ranks are rounded down for lower bounds, and up for
		// upper bounds.
		rank := float64(level * float64(len(o.seen)+1))
		if level < 0.5 {
			rank = math.Floor(rank)
		} else {
			rank = math.Ceil(rank)
		}
		o.theta = float64(o.seen[max(0, min(int(rank), len(o.seen))-1)])
	} else {
		o.seen = nil
		below := 0.0
		// A load that equals a bound is inside the interval.
		if load < issued || load == issued && level > 0.5 {
			below = 1
		}
		o.theta += float64(float64(stepSize/float64(b.c.StepsPerDay)*o.size.v) * (level - below))
		o.theta = max(-farthest, min(farthest, o.theta))
	}
	o.size.add(min(math.Abs(distance), farthest), b.mostBlock)
}
