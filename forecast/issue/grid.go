package issue

import "time"

// grid contains the steps of a meter, which are counted from 1970.
type grid struct {
	interval time.Duration
	seconds  int64
	perDay   int
	phase    int64 // seconds by which steps start after a multiple of the interval
	clock    clock
}

// step returns the number of the step that contains a time, counted from 1970.
func (g *grid) step(at int64) int {
	n := at / g.seconds
	if at%g.seconds < 0 {
		n--
	}
	return int(n)
}

// start returns the start of a step in Unix seconds.
func (g *grid) start(step int) int64 { return int64(step)*g.seconds + g.phase }

// stepAfter returns the start of the first step that does not begin before a time.
func (g *grid) stepAfter(at int64) int64 {
	start := g.start(g.step(at - g.phase))
	if start < at {
		start += g.seconds
	}
	return start
}

// back returns the step at the same clock time the given number of days earlier.
func (g *grid) back(step, days int) int {
	return g.step(g.clock.back(g.start(step), days))
}
