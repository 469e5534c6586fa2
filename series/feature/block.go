package feature

import "loadstar/series"

// farInput limits inputs, so that an outlier does not dominate a step of training.
const farInput = 8

// blockSize is the number of examples whose inputs are written together.
const blockSize = 64

// block is a block of examples whose inputs are being written, one group after the other.
// Steps are counted from the meter's first step.
type block struct {
	frame   *Frame
	columns *columns
	first   int // the meter's first step on the frame's clock

	x           []float32
	row         int // the input to write next
	down, right int // distance between inputs and between examples in x

	n      int
	origin [blockSize]int32
	target [blockSize]int32
	number [blockSize]int32 // of the target
	level  [blockSize]float32
	// days has the steps at the target's clock time 1 to 7 days before. A step after the
	// origin is replaced by the newest one up to it.
	days [8][blockSize]int32
	// known is the newest step at the target's clock time, whole days before the target if
	// necessary, whose quartiles depend on loads up to the origin alone.
	known [blockSize]int32
	steps [blockSize]int32 // scratch
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

// before returns the given step, or the newest one at the same clock time a multiple of
// days before it for which the load days before is not after the origin.
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
		if t := int(b.target[e]); t < len(b.columns.load) {
			y[e] = b.columns.load[t] - b.level[e]
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

// next returns the place of the next input in x.
func (b *block) next() int {
	at := b.row * b.down
	b.row++
	return at
}

// loads writes the load at a step of each example, without the level.
func (b *block) loads(steps *[blockSize]int32) {
	at, load, x := b.next(), b.columns.load, b.x
	for e, step := range steps[:b.n] {
		x[at] = limit(load[step] - b.level[e])
		at += b.right
	}
}

// shifted writes the load a number of steps after a step of each example, but not before
// the oldest step of the last 168 hours or after the origin.
func (b *block) shifted(steps *[blockSize]int32, by int32) {
	oldest := int32(7*b.frame.clock.perDay - 1)
	for e := range b.n {
		b.steps[e] = min(max(steps[e]+by, b.origin[e]-oldest), b.origin[e])
	}
	b.loads(&b.steps)
}

// originDays writes the load at the origin's clock time a number of days before.
func (b *block) originDays(days int) {
	for e := range b.n {
		b.steps[e] = int32(max(b.frame.clock.back(b.first+int(b.origin[e]), days)-b.first, 0))
	}
	b.loads(&b.steps)
}

func (b *block) recent() {
	load, x, right := b.columns.load, b.x, b.right
	origins := b.origin[:b.n]
	levels := b.level[:len(origins)]
	for i := range b.frame.clock.perDay {
		at := b.next()
		for e, origin := range origins {
			x[at] = limit(load[int(origin)-i] - levels[e])
			at += right
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
	at, load := b.next(), b.columns.load
	for e := range b.n {
		sum := float32(0)
		for k := 1; k <= 7; k++ {
			sum += load[b.days[k][e]]
		}
		b.x[at] = limit(sum/7 - b.level[e])
		at += b.right
	}
}

func (b *block) day() {
	mean, most, least := b.next(), b.next(), b.next()
	for e := range b.n {
		s, level := &b.columns.at[b.origin[e]], b.level[e]
		b.x[mean], b.x[most], b.x[least] = limit(s.mean-level), limit(s.most-level), limit(s.least-level)
		mean, most, least = mean+b.right, most+b.right, least+b.right
	}
}

func (b *block) profiles() {
	at := b.rows(7)
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

// rows skips n inputs and returns the place of the first.
func (b *block) rows(n int) int {
	at := b.row * b.down
	b.row += n
	return at
}

// write writes consecutive inputs of example e, the first of which is at the place at.
func (b *block) write(at, e int, values ...float32) {
	at += e * b.right
	for _, v := range values {
		b.x[at] = v
		at += b.down
	}
}

// set writes input i after the place at for example e.
func (b *block) set(at, e, i int, v float32) { b.x[at+i*b.down+e*b.right] = v }

func (b *block) quartiles() {
	at := b.rows(6)
	for e := range b.n {
		level, then, now := b.level[e], &b.columns.at[b.known[e]], &b.columns.at[b.origin[e]]
		b.write(at, e,
			limit(then.q25-level), limit(then.median-level), limit(then.q75-level),
			limit(now.median-level), limit(now.q25-level), limit(now.q75-level))
	}
}

func (b *block) levels() {
	at := b.rows(6)
	for e := range b.n {
		origin := b.origin[e]
		now, before := &b.columns.at[origin], &b.columns.at[origin-1]
		b.write(at, e,
			1.5*b.columns.at[b.known[e]].medianRank,
			1.5*now.medianRank,
			2*(b.columns.rank[origin]-now.medianRank),
			2*(b.columns.rank[origin-1]-before.medianRank),
			limit(now.level),
			limit(now.spread))
	}
}

func (b *block) ranks() {
	rank, x, right := b.columns.rank, b.x, b.right
	origins := b.origin[:b.n]
	for i := range b.frame.clock.perDay {
		at := b.next()
		for _, origin := range origins {
			x[at] = 1.5 * rank[int(origin)-i]
			at += right
		}
	}
	for k := 1; k <= 7; k++ {
		at := b.next()
		for _, step := range b.days[k][:b.n] {
			x[at] = 1.5 * rank[step]
			at += right
		}
	}
	at := b.rows(3)
	for e := range b.n {
		s := &b.columns.at[b.origin[e]]
		b.write(at, e, 1.5*rank[min(b.days[1][e]+1, b.origin[e])], 2*s.dayRank, 2*s.weekRank)
	}
}
