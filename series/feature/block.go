package feature

import "loadstar/series"

// farInput limits the magnitude of inputs, so that an outlier does not dominate a training
// step.
const farInput = 8

// blockSize is the number of examples whose inputs are written together.
const blockSize = 64

// block is a block of examples whose inputs are being written, one group after the other.
// Steps are counted from the meter's first step.
type block struct {
	frame   *Frame
	columns *columns
	first   int // the meter's first step on the frame's clock

	x    []float32 // one column per example
	down int       // distance between rows
	row  int       // the input to write next

	n      int
	origin [blockSize]int32
	target [blockSize]int32
	number [blockSize]int32 // the number of the target
	level  [blockSize]float32
	// days holds the steps at the target's clock time 1 to 7 days before the target. A step
	// after the origin is replaced by the newest step at that clock time that is not after the
	// origin.
	days [8][blockSize]int32
	// known holds the newest steps at the target's clock time whose quartiles depend only on
	// loads up to the origin. Each is the target itself or a step whole days before it.
	known [blockSize]int32
	steps [blockSize]int32 // scratch
	rows  []float32        // scratch for Gather
}

// start sets the examples of the block.
func (b *block) start(at []series.Example) {
	clock, horizon := b.frame.clock, b.frame.task.Horizon
	b.n = len(at)
	for e, x := range at {
		target := x.Last + horizon + x.Target
		b.origin[e], b.target[e], b.number[e] = int32(x.Last), int32(target), int32(x.Target)
		b.level[e] = b.columns.at[x.Last].level
		on, origin := b.first+target, b.first+x.Last
		newest := 1
		for clock.back(on, newest) > origin {
			newest++
		}
		for k := 1; k <= 7; k++ {
			b.days[k][e] = int32(max(clock.back(on, max(k, newest))-b.first, 0))
		}
		b.known[e] = int32(b.before(target, x.Last, 1))
	}
}

// before returns the given step if the step the given number of days earlier is not after the
// origin. Otherwise, it goes back by this number of days until that is so.
func (b *block) before(step, origin, days int) int {
	on := b.first + step
	for b.frame.clock.back(on, days) > b.first+origin {
		on = b.frame.clock.back(on, days)
	}
	return on - b.first
}

// targets writes the targets.
func (b *block) targets(y []float32) {
	for e := range b.n {
		y[e] = 0
		if t := int(b.target[e]); t < len(b.columns.steps) {
			y[e] = b.columns.steps[t].load - b.level[e]
		}
	}
}

func limit(v float32) float32 {
	if v > farInput {
		return farInput
	}
	if v < -farInput {
		return -farInput
	}
	return v
}

// next returns the row of the next input.
func (b *block) next() []float32 {
	row := b.x[b.row*b.down:][:b.n]
	b.row++
	return row
}

// loads writes, for each example, the load at a step minus the level.
func (b *block) loads(at *[blockSize]int32) {
	row, steps := b.next(), b.columns.steps
	from, levels := at[:len(row)], b.level[:len(row)]
	for e := range row {
		row[e] = limit(steps[from[e]].load - levels[e])
	}
}

// shifted writes, for each example, the load a number of steps after a given step, but not
// before the oldest step of the last 168 hours and not after the origin.
func (b *block) shifted(steps *[blockSize]int32, by int32) {
	oldest := int32(7*b.frame.clock.perDay - 1)
	for e := range b.n {
		b.steps[e] = min(max(steps[e]+by, b.origin[e]-oldest), b.origin[e])
	}
	b.loads(&b.steps)
}

// originDays writes the load at the origin's clock time the given number of days before the
// origin.
func (b *block) originDays(days int) {
	for e := range b.n {
		b.steps[e] = int32(max(b.frame.clock.back(b.first+int(b.origin[e]), days)-b.first, 0))
	}
	b.loads(&b.steps)
}

func (b *block) recent() {
	steps := b.columns.steps
	for i := range b.frame.clock.perDay {
		row := b.next()
		origins, levels := b.origin[:len(row)], b.level[:len(row)]
		for e := range row {
			row[e] = limit(steps[int(origins[e])-i].load - levels[e])
		}
	}
}

func (b *block) lags() {
	if b.frame.task.next() {
		for k := 2; k <= 7; k++ {
			b.loads(&b.days[k])
		}
		b.originDays(1)
		b.shifted(&b.days[7], 1)
		b.shifted(&b.days[7], 2)
		b.loads(&b.days[1])
	} else {
		for k := 1; k <= 7; k++ {
			b.loads(&b.days[k])
		}
		b.shifted(&b.days[1], -1)
		b.shifted(&b.days[1], 1)
		b.shifted(&b.days[7], -1)
		b.shifted(&b.days[7], 1)
		b.originDays(1)
		b.originDays(2)
		b.originDays(6)
		b.shifted(&b.origin, int32(1-7*b.frame.clock.perDay))
	}
	row, steps := b.next(), b.columns.steps
	for e := range row {
		sum := float32(0)
		for k := 1; k <= 7; k++ {
			sum += steps[b.days[k][e]].load
		}
		row[e] = limit(sum/7 - b.level[e])
	}
}

func (b *block) day() {
	at := b.skip(3)
	for e := range b.n {
		s, level := &b.columns.at[b.origin[e]], b.level[e]
		b.write(at, e, limit(s.mean-level), limit(s.most-level), limit(s.least-level))
	}
}

func (b *block) profiles() {
	at := b.skip(7)
	steps, profile, sums := b.frame.clock.steps[b.first:], &b.columns.scaling.Profile, b.columns.at
	for e := range b.n {
		origin, target, level := int(b.origin[e]), int(b.target[e]), b.level[e]
		b.write(at, e,
			limit(sums[b.before(target, origin, 7)].weeks-level),
			limit(sums[b.before(target-1, origin, 7)].weeks-level),
			limit(sums[b.before(target+1, origin, 7)].weeks-level),
			limit(sums[origin].weeks-level),
			limit(profile[steps[target].kind]-level),
			limit(profile[steps[origin].kind]-level),
			limit(sums[origin].deviation))
	}
}

// skip skips n inputs and returns the position of the first one in x.
func (b *block) skip(n int) int {
	at := b.row * b.down
	b.row += n
	return at
}

func (b *block) write(at, e int, values ...float32) {
	at += e
	for _, v := range values {
		b.x[at] = v
		at += b.down
	}
}

func (b *block) quartiles() {
	at := b.skip(6)
	for e := range b.n {
		level, then, now := b.level[e], &b.columns.at[b.known[e]], &b.columns.at[b.origin[e]]
		b.write(at, e,
			limit(then.q25-level), limit(then.median-level), limit(then.q75-level),
			limit(now.median-level), limit(now.q25-level), limit(now.q75-level))
	}
}

func (b *block) levels() {
	at := b.skip(6)
	for e := range b.n {
		origin := b.origin[e]
		now, before := &b.columns.at[origin], &b.columns.at[origin-1]
		b.write(at, e,
			1.5*b.columns.at[b.known[e]].medianRank,
			1.5*now.medianRank,
			2*(b.columns.steps[origin].rank-now.medianRank),
			2*(b.columns.steps[origin-1].rank-before.medianRank),
			limit(now.level),
			limit(now.spread))
	}
}

func (b *block) ranks() {
	steps := b.columns.steps
	for i := range b.frame.clock.perDay {
		row := b.next()
		origins := b.origin[:len(row)]
		for e := range row {
			row[e] = 1.5 * steps[int(origins[e])-i].rank
		}
	}
	for k := 1; k <= 7; k++ {
		row := b.next()
		days := b.days[k][:len(row)]
		for e := range row {
			row[e] = 1.5 * steps[days[e]].rank
		}
	}
	at := b.skip(3)
	for e := range b.n {
		s := &b.columns.at[b.origin[e]]
		b.write(at, e, 1.5*steps[min(b.days[1][e]+1, b.origin[e])].rank, 2*s.dayRank, 2*s.weekRank)
	}
}
