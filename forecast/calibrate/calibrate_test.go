package calibrate

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// history is a made-up client: its loads, and its forecasts from every origin.
type history struct {
	c          Config
	stride     int
	loads      []float64
	forecasts  map[int][]float64
	references map[int][]float64
}

func newHistory(seed uint64, c Config, days, stride int, bias, spread func(step int) float64) *history {
	rng := rand.New(rand.NewPCG(seed, 1))
	h := &history{c: c, stride: stride, forecasts: map[int][]float64{}, references: map[int][]float64{}}
	truth := make([]float64, days*c.StepsPerDay+c.Horizon+c.Targets)
	for i := range truth {
		truth[i] = 10 + 5*math.Sin(2*math.Pi*float64(i)/float64(c.StepsPerDay))
		h.loads = append(h.loads, truth[i]+spread(i)*rng.NormFloat64())
	}
	for last := 0; last < days*c.StepsPerDay; last++ {
		if (last+1)%stride != 0 {
			continue
		}
		for i := range c.Targets {
			at := last + c.Horizon + i
			if c.Levels == nil {
				h.forecasts[last] = append(h.forecasts[last], truth[at]+bias(at))
			}
			for _, level := range c.Levels {
				h.forecasts[last] = append(h.forecasts[last], truth[at]+bias(at)+2*(level-0.5))
			}
			reference := math.NaN()
			if at >= 7*c.StepsPerDay {
				reference = h.loads[at-7*c.StepsPerDay]
			}
			h.references[last] = append(h.references[last], reference)
		}
	}
	return h
}

// served runs a tracker over the history and returns what it served at each origin.
func (h *history) served(t testing.TB) map[int][]float64 {
	t.Helper()
	tracker, err := New(h.c)
	if err != nil {
		t.Fatal(err)
	}
	out := map[int][]float64{}
	for step, load := range h.loads {
		tracker.Observe(step, load)
		if f := h.forecasts[step]; f != nil {
			out[step] = slices.Clone(f)
			tracker.Issue(step, out[step], h.references[step])
		}
	}
	return out
}

func constant(v float64) func(int) float64 { return func(int) float64 { return v } }

var dayAhead = Config{Levels: []float64{0.1, 0.5, 0.9}, Point: 1, Horizon: 1, Targets: 24, StepsPerDay: 24}

// TestAgainstPlainComputation compares the tracker's point forecasts with a computation that
// processes all earlier forecasts again for every origin.
func TestAgainstPlainComputation(t *testing.T) {
	for _, c := range []struct {
		Config
		stride int
	}{
		{dayAhead, 6},
		{Config{Levels: []float64{0.1, 0.5, 0.9}, Point: 1, Horizon: 1, Targets: 24, StepsPerDay: 24, Correct: true}, 6},
		{Config{Levels: []float64{0.1, 0.5, 0.9}, Point: 1, Horizon: 1, Targets: 1, StepsPerDay: 24, Correct: true}, 1},
		{Config{Levels: []float64{0.1, 0.5, 0.9}, Point: 1, Horizon: 3, Targets: 12, StepsPerDay: 48, Correct: true}, 6},
	} {
		h := newHistory(3, c.Config, 50, c.stride, func(at int) float64 { return float64(at%100) / 50 }, constant(1))
		for i := range 100 {
			h.loads[100+i*7] = math.NaN()
		}
		served, changed := h.served(t), 0
		for last, want := range h.plain() {
			got := served[last]
			for i := 1; i < len(want); i += 3 {
				if math.Abs(got[i]-want[i]) > 1e-5 {
					t.Fatalf("%+v, origin %d, forecast %d: %v, want %v", c, last, i, got[i], want[i])
				}
			}
			if got[1] != h.forecasts[last][1] {
				changed++
			}
		}
		if c.Correct && changed < 30 {
			t.Errorf("%+v: only %d forecasts changed", c, changed)
		}
	}
}

// plainShift returns the shift of an hour, given the residuals of the last days by step.
func plainShift(residuals map[int][]float64, hour, perDay int) float64 {
	var all []float64
	days := map[int]bool{}
	for at, of := range residuals {
		if at%perDay*24/perDay != hour {
			continue
		}
		sum := 0.0
		for _, r := range of {
			sum += r
		}
		all = append(all, sum/float64(len(of)))
		days[at/perDay] = true
	}
	if len(days) < 5 {
		return 0
	}
	slices.Sort(all)
	return 0.3 * (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}

// plain computes what served should return, for every 29th origin.
func (h *history) plain() map[int][]float64 {
	out := map[int][]float64{}
	perDay, width := h.c.StepsPerDay, len(h.c.Levels)
	weights := map[int]float64{}
	shifts := map[int][]float64{}
	shifted := func(last int) []float64 {
		rows := slices.Clone(h.forecasts[last])
		for i := range rows {
			if s := shifts[last]; s != nil {
				rows[i] += s[i/width]
			}
		}
		return rows
	}
	blended := func(last int) []float64 {
		rows := shifted(last)
		for i := range rows {
			if r := h.references[last][i/width]; !math.IsNaN(r) {
				rows[i] = weights[last]*rows[i] + (1-weights[last])*r
			}
		}
		return rows
	}
	for last := range h.loads {
		if h.forecasts[last] == nil {
			continue
		}
		day := (last + 1) / perDay
		var model, reference float64
		errorDays := map[int]bool{}
		residuals := map[int][]float64{} // by step
		for o := range last + 1 {
			if h.forecasts[o] == nil {
				continue
			}
			moved := shifted(o)
			for i := range h.c.Targets {
				at := o + h.c.Horizon + i
				d := at / perDay
				if at > last || math.IsNaN(h.loads[at]) {
					continue
				}
				if r := h.references[o][i]; !math.IsNaN(r) && d > day-14 {
					model += math.Abs(moved[i*width+1] - h.loads[at])
					reference += math.Abs(r - h.loads[at])
					errorDays[d] = true
				}
				if d >= day-14 && d < day {
					residuals[at] = append(residuals[at], h.loads[at]-h.forecasts[o][i*width+1])
				}
			}
		}
		if h.c.Correct {
			shifts[last] = make([]float64, h.c.Targets)
			for i := range h.c.Targets {
				shifts[last][i] = plainShift(residuals, (last+h.c.Horizon+i)%perDay*24/perDay, perDay)
			}
		}
		delete(errorDays, day)
		weights[last] = 1
		if h.c.Correct && len(errorDays) >= 6 {
			weights[last] = 1 / (1 + math.Pow(model/reference, 16))
		}
		if (last+1)%29 != 0 && h.stride == 1 {
			continue // the weights of all origins are needed, but not all rows
		}
		rows := blended(last)
		out[last] = rows
	}
	return out
}

// TestLaterLoads changes all loads after a step. Forecasts made at this step or earlier
// must stay the same, and later ones must change.
func TestLaterLoads(t *testing.T) {
	c := dayAhead
	c.Correct = true
	h := newHistory(5, c, 40, 6, constant(1), constant(1))
	before := h.served(t)
	for _, cut := range []int{100, 359, 500, 719} {
		changed := *h
		changed.loads = slices.Clone(h.loads)
		for i := cut + 1; i < len(changed.loads); i++ {
			changed.loads[i] = -40
		}
		same, later := 0, 0
		for last, got := range changed.served(t) {
			switch equal := slices.Equal(got, before[last]); {
			case last > cut && !equal:
				later++
			case last <= cut && !equal:
				t.Errorf("a load after step %d changed the forecasts at step %d", cut, last)
			case last <= cut:
				same++
			}
		}
		if same == 0 || later == 0 {
			t.Errorf("cut %d: %d origins before it, %d changed after it", cut, same, later)
		}
	}
}

// TestCoverage checks that intervals that are far too narrow or too wide contain about 80 %
// of the loads after calibration, even after the noise has changed.
func TestCoverage(t *testing.T) {
	for name, spread := range map[string]func(int) float64{
		"narrow": constant(3), "wide": constant(0.2), "growing": func(at int) float64 { return 0.5 + float64(at)/10000 },
	} {
		c := dayAhead
		// The median is not moved, so it must be nearer to the middle of the loads than the
		// bounds are.
		h := newHistory(7, c, 200, 6, constant(0.1), spread)
		served := h.served(t)
		inside, n, raw := 0.0, 0.0, 0.0
		for last, rows := range served {
			if last < 30*c.StepsPerDay {
				continue
			}
			for i := range c.Targets {
				load := h.loads[last+c.Horizon+i]
				n++
				if low, high := rows[i*3], rows[i*3+2]; low <= load && load <= high {
					inside++
				}
				if f := h.forecasts[last]; f[i*3] <= load && load <= f[i*3+2] {
					raw++
				}
				if rows[i*3+1] != h.forecasts[last][i*3+1] || rows[i*3] > rows[i*3+1] || rows[i*3+1] > rows[i*3+2] {
					t.Fatalf("%s: %v, before %v", name, rows[i*3:i*3+3], h.forecasts[last][i*3:i*3+3])
				}
			}
		}
		if share := inside / n; math.Abs(share-0.8) > 0.02 || math.Abs(raw/n-0.8) < 0.1 {
			t.Errorf("%s: %.3f of loads inside, %.3f before calibration; want 0.8", name, share, raw/n)
		}
	}
}

// TestFirstDays checks that intervals do not change until one day is known, and that point
// forecasts do not change until five days are known, when shifting begins.
func TestFirstDays(t *testing.T) {
	c := Config{Levels: []float64{0.1, 0.5, 0.9}, Point: 1, Horizon: 1, Targets: 1, StepsPerDay: 24, Correct: true}
	h := newHistory(9, c, 30, 1, constant(5), constant(0.1))
	served := h.served(t)
	for last, rows := range served {
		day := (last + 1) / 24
		// The first target is step 1, on day 0. The first outcome has no scale yet.
		if changed := rows[0] != h.forecasts[last][0]; changed != (last >= 25) {
			t.Errorf("origin %d, day %d: interval moved: %t", last, day, changed)
		}
		// References exist only from day 7, so a change on days 5 and 6 comes from shifting.
		if changed := rows[1] != h.forecasts[last][1]; changed != (day >= 5 && last != 5*24-1) { // step 0 has no forecast
			t.Errorf("origin %d, day %d: point moved: %t", last, day, changed)
		}
	}
}

// TestWeight checks the weight of the model for known errors.
func TestWeight(t *testing.T) {
	for _, c := range []struct{ model, reference, want float64 }{
		{1, 1, 0.5}, {1, 2, 65536. / 65537}, {2, 1, 1. / 65537}, {0, 1, 1}, {1, 0, 0}, {0, 0, 1},
	} {
		tracker, err := New(Config{Horizon: 1, Targets: 1, StepsPerDay: 2, Correct: true})
		if err != nil {
			t.Fatal(err)
		}
		for day := range 20 {
			want := 1.0
			if day >= 6 {
				want = c.want
			}
			if got := tracker.weight(day); math.Abs(got-want) > 1e-12 {
				t.Errorf("%+v, day %d: %v, want %v", c, day, got, want)
			}
			*tracker.errors.at(day, func(*errorSums) {}) = errorSums{c.model, c.reference, 1}
		}
	}
}

// TestShift checks that a constant error is reduced by shiftShare.
func TestShift(t *testing.T) {
	tracker, err := New(Config{Levels: []float64{0.1, 0.5, 0.9}, Point: 1, Horizon: 1, Targets: 1, StepsPerDay: 48, Correct: true})
	if err != nil {
		t.Fatal(err)
	}
	for step := range 20 * 48 {
		tracker.Observe(step, 10)
		// The error at noon differs from the error at other times.
		e := 1.0
		if noon := (step + 1) % 48; noon == 24 || noon == 25 {
			e = -2
		}
		f := []float64{9 - e, 10 - e, 11 - e}
		tracker.Issue(step, f, []float64{math.NaN()})
		want := 10 - e
		if (step+1)/48 >= 5 {
			want += 0.3 * e
		}
		if math.Abs(f[1]-want) > 1e-12 {
			t.Fatalf("step %d: %v, want %v", step, f[1], want)
		}
	}
}

// TestOldErrorsAreForgotten checks that a model that was bad long ago, before a gap,
// regains its full weight.
func TestOldErrorsAreForgotten(t *testing.T) {
	tracker, err := New(Config{Horizon: 1, Targets: 1, StepsPerDay: 4, Correct: true})
	if err != nil {
		t.Fatal(err)
	}
	serve := func(step int) []float64 {
		tracker.Observe(step, 0)
		f := []float64{10}
		tracker.Issue(step, f, []float64{1})
		return f
	}
	for step := range 200 {
		serve(step)
	}
	if f := serve(200); f[0] > 5 {
		t.Errorf("%v, although the reference is much better", f)
	}
	// The issue made at step 200 is never compared, because its target is omitted.
	if f := serve(200 + 29*4); f[0] != 10 {
		t.Errorf("%v after 29 days without loads; want the model's 10", f)
	}
}

// TestIntervalsDoNotCross checks that the bounds of nested intervals stay in order, even if the
// intervals are narrowed to nothing.
func TestIntervalsDoNotCross(t *testing.T) {
	c := Config{Levels: []float64{0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95}, Point: 3, Horizon: 1, Targets: 2, StepsPerDay: 24}
	for _, spread := range []float64{0, 0.01, 0.3, 2} {
		h := newHistory(11, c, 40, 1, constant(0), constant(spread))
		for last, rows := range h.served(t) {
			for i := range c.Targets {
				row := rows[i*7:][:7]
				if !slices.IsSorted(row) || row[3] != h.forecasts[last][i*7+3] {
					t.Fatalf("spread %v, origin %d: %v, before %v", spread, last, row, h.forecasts[last][i*7:][:7])
				}
			}
		}
	}
}

// TestMemory checks that a tracker does not allocate once its windows are full.
func TestMemory(t *testing.T) {
	c := dayAhead
	c.Correct = true
	h := newHistory(13, c, 80, 6, constant(0), constant(1))
	tracker, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	row := make([]float64, 72)
	advance := func(from, days int) {
		for step := from; step < from+24*days; step++ {
			tracker.Observe(step, h.loads[step])
			if f := h.forecasts[step]; f != nil {
				copy(row, f)
				tracker.Issue(step, row, h.references[step])
			}
		}
	}
	advance(0, 35)
	from := 35 * 24
	if n := testing.AllocsPerRun(10, func() { advance(from, 3); from += 3 * 24 }); n > 3*8 {
		t.Errorf("%v allocations in three days; want only those of a list of days", n)
	}
}

func TestNewRefuses(t *testing.T) {
	for _, c := range []Config{
		{},
		{Horizon: 1, Targets: 0, StepsPerDay: 24},
		{Horizon: 1, Targets: 1, StepsPerDay: 24, Point: 1},
		{Horizon: 1, Targets: 1, StepsPerDay: 24, Levels: []float64{0.9, 0.1}},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
}

// TestNoNegativeBound checks that the lower bound of a client that never had a negative load is
// not negative, and that it may be negative after a negative load.
func TestNoNegativeBound(t *testing.T) {
	for _, feeds := range []bool{false, true} {
		tracker, err := New(Config{Levels: []float64{0.1, 0.5, 0.9}, Point: 1, Horizon: 1, Targets: 1, StepsPerDay: 24})
		if err != nil {
			t.Fatal(err)
		}
		var f []float64
		for step := range 200 {
			load := float64(step % 3 * 4) // 0, 4 or 8
			if feeds && step == 5 {
				load = -0.5
			}
			tracker.Observe(step, load)
			f = []float64{0.5, 1, 1.5}
			tracker.Issue(step, f, []float64{math.NaN()})
		}
		if low := f[0]; feeds != (low < 0) || f[2] < 4 || !feeds && low != 0 {
			t.Errorf("negative load %t: %v", feeds, f)
		}
	}
	// A forecast that is itself negative does not change.
	tracker, err := New(Config{Levels: []float64{0.1, 0.5, 0.9}, Point: 1, Horizon: 1, Targets: 1, StepsPerDay: 24})
	if err != nil {
		t.Fatal(err)
	}
	tracker.Observe(0, 1)
	f := []float64{-3, -2, -1}
	if tracker.Issue(0, f, []float64{math.NaN()}); f[1] != -2 || !slices.IsSorted(f) {
		t.Errorf("%v", f)
	}
}
