package calibrate

import (
	"math"
	"slices"
	"testing"
)

// plainBounds computes the served quantiles of a history without corrections. For each issue,
// it processes all earlier outcomes again.
func plainBounds(h *history, every int, raw map[int][]float64, last int) []float64 {
	c, width := h.c, len(h.c.Levels)
	blocks := (c.Targets + every - 1) / every
	type mean struct{ v, n float64 }
	add := func(m *mean, x, most float64) {
		m.n = min(m.n+1, most)
		m.v += (x - m.v) / m.n
	}
	hours := make([]mean, 24)
	hour := func(step int) int { return step % c.StepsPerDay * 24 / c.StepsPerDay }
	scale := func(step int, w float64) float64 {
		sum, n := 0.0, 0.0
		for _, m := range hours {
			if m.n > 0 {
				sum += m.v
				n++
			}
		}
		if n == 0 {
			return 0
		}
		s := sum / n
		if m := hours[hour(step)]; m.n >= 3 {
			s = max(m.v, 0.2*s)
		}
		return 0.7*s + 0.3*w
	}
	counts := make([]int, blocks)
	theta, sizes, seen := make([]float64, blocks*width), make([]mean, blocks*width), make([][]float64, blocks*width)
	for step := 0; step <= last; step++ {
		y := h.loads[step]
		for o := 0; o < step; o++ {
			target := step - o - c.Horizon
			if h.forecasts[o] == nil || target < 0 || target >= c.Targets || math.IsNaN(y) {
				continue
			}
			b, f := target/every, h.forecasts[o][target*width:][:width]
			if s := scale(step, f[width-1]-f[0]); s > 0 {
				counts[b]++
				for i, level := range c.Levels {
					x := (y - f[i]) / s
					at := b*width + i
					if counts[b] <= 3*c.StepsPerDay {
						seen[at] = append(seen[at], x)
						all := slices.Sorted(slices.Values(seen[at]))
						rank := math.Floor(level * float64(len(all)+1))
						if level > 0.5 {
							rank = math.Ceil(level * float64(len(all)+1))
						}
						theta[at] = all[max(0, min(int(rank), len(all))-1)]
					} else {
						below := 0.0
						if y <= raw[o][target*width+i] {
							below = 1
						}
						theta[at] += 0.96 / float64(c.StepsPerDay) * sizes[at].v * (level - below)
					}
					add(&sizes[at], math.Abs(x), float64(14*c.StepsPerDay))
				}
			}
			add(&hours[hour(step)], math.Abs(y-f[c.Point]), float64(14*max(c.StepsPerDay/24, 1)*c.Targets/every))
		}
	}
	out := slices.Clone(h.forecasts[last])
	raw[last] = slices.Clone(out)
	for i := range out {
		target, level := i/width, i%width
		f := h.forecasts[last][target*width:][:width]
		if b := target / every; level != c.Point && counts[b] >= c.StepsPerDay {
			out[i] += theta[b*width+level] * scale(last+c.Horizon+target, f[width-1]-f[0])
		}
		raw[last][i] = out[i]
		if level < c.Point {
			out[i] = min(max(out[i], 0), f[c.Point])
		} else {
			out[i] = max(out[i], f[c.Point])
		}
	}
	return out
}

func TestBoundsAgainstPlainComputation(t *testing.T) {
	for _, c := range []Config{
		{Levels: []float64{0.1, 0.5, 0.9}, Point: 1, Horizon: 1, Targets: 8, StepsPerDay: 24},
		{Levels: []float64{0.1, 0.5, 0.9}, Point: 1, Horizon: 2, Targets: 1, StepsPerDay: 48},
	} {
		tracker, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		h := newHistory(3, c, 9, tracker.Every(), constant(0.4), func(at int) float64 { return 0.5 + float64(at%24)/10 })
		h.loads[100], h.loads[101] = math.NaN(), math.NaN()
		served, raw := h.served(t), map[int][]float64{}
		for last := range h.loads {
			if h.forecasts[last] == nil {
				continue
			}
			want := plainBounds(h, tracker.Every(), raw, last)
			for i := range want {
				if math.Abs(want[i]-served[last][i]) > 1e-4 {
					t.Fatalf("%+v, origin %d: %v, want %v", c, last, served[last], want)
				}
			}
		}
	}
}

// TestBoundsReturn checks that intervals again contain the intended share of loads after errors
// become five times larger and then small again, and after weeks without readings.
func TestBoundsReturn(t *testing.T) {
	c := dayAhead
	perDay := c.StepsPerDay
	h := newHistory(5, c, 200, 6, constant(0), func(at int) float64 {
		if day := at / perDay; day >= 60 && day < 80 {
			return 5
		}
		return 1
	})
	for step := 120 * perDay; step < 150*perDay; step++ {
		h.loads[step] = math.NaN()
	}
	inside := func(from, to int) float64 {
		hit, n := 0.0, 0.0
		for last, rows := range h.served(t) {
			for i := range c.Targets {
				at := last + c.Horizon + i
				if y := h.loads[at]; at >= from*perDay && at < to*perDay && !math.IsNaN(y) {
					n++
					if rows[3*i] <= y && y <= rows[3*i+2] {
						hit++
					}
				}
			}
		}
		return hit / n
	}
	for _, days := range [][2]int{{20, 60}, {67, 80}, {100, 120}, {150, 160}, {160, 200}} {
		if share := inside(days[0], days[1]); math.Abs(share-0.8) > 0.06 {
			t.Errorf("days %d to %d: %.3f of loads inside", days[0], days[1], share)
		}
	}
}

// TestEveryLevelIsCalibrated checks levels that are not symmetric and do not include the
// median.
func TestEveryLevelIsCalibrated(t *testing.T) {
	c := Config{Levels: []float64{0.2, 0.6, 0.7, 0.95}, Point: 1, Horizon: 1, Targets: 24, StepsPerDay: 24}
	h := newHistory(17, c, 200, 6, constant(-1), constant(1))
	below, n := make([]float64, 4), 0.0
	for last, rows := range h.served(t) {
		if last < 20*24 {
			continue
		}
		for i := range c.Targets {
			n++
			for q, v := range rows[4*i:][:4] {
				if h.loads[last+1+i] <= v {
					below[q]++
				}
			}
		}
	}
	for q, level := range c.Levels {
		if math.Abs(below[q]/n-level) > 0.015 {
			t.Errorf("%.3f of loads below P%.0f", below[q]/n, 100*level)
		}
	}
}
