package series

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

// bruteForce is a reference implementation of the framer: it looks up every value by its
// time and tries every example.
type bruteForce struct {
	d *Dataset
	l Layout
	s Split
}

// value returns the value of one input of a meter at a step.
func (f bruteForce) value(m Meter, in Input, step int) float32 {
	at := step
	if in.AtTarget {
		at += f.l.Horizon
	}
	take := func(x []float32, i int) float32 {
		if i < 0 || i >= len(x) {
			return nan
		}
		return x[i]
	}
	t := f.d.Time(m.Start, at)
	_, week := t.ISOWeek()
	switch in.Name {
	case "load":
		if in.Days > 0 {
			t = t.AddDate(0, 0, -in.Days)
			at = int(math.Floor(float64(t.Unix()-m.Start) / float64(f.d.Seconds())))
		}
		return take(m.Load, at)
	case "time_of_day":
		return float32(int64(t.Hour()*3600+t.Minute()*60) / f.d.Seconds())
	case "day_of_week":
		return float32((t.Weekday() + 6) % 7)
	case "week_of_year":
		return float32(week)
	}
	if x := f.d.Weather.Column(in.Name); x != nil {
		return take(x, at+int((m.Start-f.d.Weather.Start)/f.d.Seconds()))
	}
	return m.Static[slices.Index(f.d.StaticNames, in.Name)]
}

func (f bruteForce) ranges(m Meter) Ranges {
	r := Ranges{}
	train := int(f.s.Train*float64(len(m.Load)) + 1e-9)
	for _, in := range append([]Input{{Name: "load"}}, f.l.Inputs...) {
		static := slices.Contains(f.d.StaticNames, in.Name)
		for step := range max(train, 1) {
			if step >= train && !static { // static values are the same at all steps
				break
			}
			v := f.value(m, Input{Name: in.Name}, step)
			o, ok := r[in.Name]
			if Missing(v) {
				continue
			}
			if !ok {
				o = Range{v, v}
			}
			if v < o.Low {
				o.Low = v
			}
			if v > o.High {
				o.High = v
			}
			r[in.Name] = o
		}
	}
	return r
}

func (f bruteForce) windows(m Meter) (parts [4][]int) {
	n := len(m.Load)
	train, validation := int(f.s.Train*float64(n)+1e-9), int((f.s.Train+f.s.Validation)*float64(n)+1e-9)
	for last := f.l.Lookback - 1; last+f.l.Horizon+f.l.Targets <= n; last++ {
		complete := true
		for step := last - f.l.Lookback + 1; step <= last; step++ {
			for _, in := range f.l.Inputs {
				complete = complete && !Missing(f.value(m, in, step))
			}
		}
		first := last + f.l.Horizon
		for _, v := range m.Load[first : first+f.l.Targets] {
			complete = complete && !Missing(v)
		}
		if !complete {
			continue
		}
		parts[All] = append(parts[All], last)
		switch end := first + f.l.Targets; {
		case end <= train:
			parts[Train] = append(parts[Train], last)
		case first >= train && end <= validation:
			parts[Validation] = append(parts[Validation], last)
		case first >= validation:
			parts[Test] = append(parts[Test], last)
		}
	}
	return parts
}

// gather returns the scaled inputs and targets of the example whose last input step is
// given.
func (f bruteForce) gather(m Meter, r Ranges, last int) (x, y []float32) {
	scale := func(v float32, name string) float32 {
		if r == nil {
			return v
		}
		s := float32(0)
		if o := r[name]; o.High > o.Low {
			s = 1 / (o.High - o.Low)
		}
		return (v - r[name].Low) * s
	}
	for step := last - f.l.Lookback + 1; step <= last; step++ {
		for _, in := range f.l.Inputs {
			x = append(x, scale(f.value(m, in, step), in.Name))
		}
	}
	for i := range f.l.Targets {
		y = append(y, scale(m.Load[last+f.l.Horizon+i], "load"))
	}
	return x, y
}

// punchHoles replaces n random runs of values with missing values.
func punchHoles(rng *rand.Rand, x []float32, n int) {
	for range n {
		if len(x) > 0 {
			at := rng.IntN(len(x))
			for i := at; i < min(at+1+rng.IntN(30), len(x)); i++ {
				x[i] = nan
			}
		}
	}
}

// randomFleet returns a random layout and a random dataset, whose meters start and end at
// different times. Its weather does not cover all meters, and its clocks may have daylight
// saving time.
func randomFleet(t testing.TB, rng *rand.Rand) (*Dataset, Layout, Split) {
	t.Helper()
	var clocks []*time.Location
	for _, zone := range []string{"UTC", "Europe/Berlin", "Australia/Lord_Howe"} {
		clock, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		clocks = append(clocks, clock)
	}
	interval := []time.Duration{time.Hour, 30 * time.Minute, 2 * time.Hour}[rng.IntN(3)]
	seconds := int64(interval / time.Second)
	start := time.Date(2021, []time.Month{3, 10}[rng.IntN(2)], 20, 0, 0, 0, 0, time.UTC).Unix()
	numbers := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(rng.IntN(9)-4) * 0.3
			if x[i] == 0 && rng.IntN(2) == 0 {
				x[i] = float32(math.Copysign(0, -1))
			}
		}
		return x
	}
	var meters []Meter
	for i := range 1 + rng.IntN(4) {
		m := Meter{ID: fmt.Sprint(i), Start: start + seconds*int64(rng.IntN(200)), Load: numbers(rng.IntN(1000)), Static: []float32{float32(rng.IntN(5)), 3}}
		punchHoles(rng, m.Load, rng.IntN(12))
		if rng.IntN(8) == 0 {
			m.Static[rng.IntN(2)] = nan
		}
		meters = append(meters, m)
	}
	w := Weather{Start: start + seconds*int64(rng.IntN(200)-100), Names: []string{"temperature", "wind"}}
	if rng.IntN(5) == 0 {
		w.Start += seconds / 3 // not on the meters' grid
	}
	n := rng.IntN(1200)
	for range w.Names {
		w.Columns = append(w.Columns, numbers(n))
		punchHoles(rng, w.Columns[len(w.Columns)-1], rng.IntN(6))
	}
	d, err := NewDataset(Dataset{Name: "random", Interval: interval, Clock: clocks[rng.IntN(3)], Weather: w, StaticNames: []string{"floor_area", "storeys"}}, meters)
	if err != nil {
		t.Fatal(err)
	}
	all := inputs(t, "load", "time_of_day", "day_of_week@target", "week_of_year", "temperature", "temperature@target", "wind", "load@target-24h", "load@target-168h", "floor_area", "storeys")
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	l := Layout{Lookback: 1 + rng.IntN(30), Horizon: 1 + rng.IntN(12), Targets: 1 + rng.IntN(6), Inputs: all[:1+rng.IntN(5)]}
	return d, l, []Split{DefaultSplit, {Train: 0.5}, {Train: 0.9, Validation: 0.1}, {Train: 0.33, Validation: 0.33}}[rng.IntN(4)]
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) })
}

func TestFindAgainstBruteForce(t *testing.T) {
	examples, broken := 0, 0
	seeds := uint64(400)
	if testing.Short() {
		seeds = 80 // because emulation is slow
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 7))
		d, l, s := randomFleet(t, rng)
		f, brute := framer(t, d, l, s), bruteForce{d, l, s}
		for i := range d.Len() {
			m := d.Meter(i)
			r, want := f.Ranges(m), brute.ranges(m)
			for name, o := range want {
				if !sameBits([]float32{o.Low, o.High}, []float32{r[name].Low, r[name].High}) || len(r) != len(want) {
					t.Fatalf("seed %d, meter %d: ranges %v, want %v", seed, i, r, want)
				}
			}
			if rng.IntN(3) == 0 {
				r = nil
			}
			w, parts := f.Windows(m, r), brute.windows(m)
			for p, want := range parts {
				var each, at []int
				if err := w.Each(Part(p), func(last int) error { each = append(each, last); return nil }); err != nil {
					t.Fatal(err)
				}
				for k := range w.Len(Part(p)) {
					at = append(at, w.At(Part(p), k))
				}
				if !slices.Equal(each, want) || !slices.Equal(at, want) {
					t.Fatalf("seed %d, meter %d, part %d of %+v: examples %v, want %v", seed, i, p, l, each, want)
				}
			}
			examples += len(parts[All])
			broken += len(w.runs)
			for range min(len(parts[All]), 5) {
				last := parts[All][rng.IntN(len(parts[All]))]
				wantX, wantY := brute.gather(m, r, last)
				x, y := make([]float32, len(wantX)), make([]float32, len(wantY))
				w.Gather(x, y, []Example{{Last: last}})
				if !sameBits(x, wantX) || !sameBits(y, wantY) {
					t.Fatalf("seed %d, meter %d, example %d: %v and %v, want %v and %v", seed, i, last, x, y, wantX, wantY)
				}
			}
		}
	}
	if examples < int(seeds)*25 || broken < int(seeds)*5/2 {
		t.Errorf("only %d examples in %d runs with gaps", examples, broken)
	}
}

// TestFindConcurrently uses a new framer from several goroutines, so that the race detector
// can report unsafe sharing.
func TestFindConcurrently(t *testing.T) {
	for seed := range uint64(10) {
		d, l, s := randomFleet(t, rand.New(rand.NewPCG(seed, 9)))
		f, brute := framer(t, d, l, s), bruteForce{d, l, s}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for i := range d.Len() {
					m := d.Meter(i)
					if got, want := f.Windows(m, f.Ranges(m)).Len(Test), len(brute.windows(m)[Test]); got != want {
						t.Errorf("seed %d, meter %d: %d examples, want %d", seed, i, got, want)
					}
				}
			})
		}
		wg.Wait()
	}
}

// TestWindowsAreSmall limits the memory that a client's windows use, because a simulation
// may have ten thousand clients.
func TestWindowsAreSmall(t *testing.T) {
	d := fleet(t, time.UTC, time.Unix(0, 0), count(8760))
	f := framer(t, d, Layout{Lookback: 12, Horizon: 1, Targets: 1, Inputs: inputs(t, "load", "time_of_day", "day_of_week", "temperature", "temperature@target", "load@target-24h", "load@target-168h", "floor_area")}, DefaultSplit)
	m := d.Meter(0)
	all := make([]*Windows, 1000)
	heap := func() uint64 {
		var s runtime.MemStats
		runtime.GC()
		runtime.GC() // twice, because sync.Pool objects survive one garbage collection
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	f.Windows(m, f.Ranges(m))
	before := heap()
	for i := range all {
		all[i] = f.Windows(m, f.Ranges(m))
	}
	each := int(heap()-before) / len(all)
	t.Logf("%d bytes each", each)
	if each > 2048 {
		t.Errorf("the windows of a client use %d bytes", each)
	}
	runtime.KeepAlive(all)
}

// BenchmarkFind measures finding the examples in a year of hourly readings, with and
// without daylight saving time and gaps.
func BenchmarkFind(b *testing.B) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		b.Fatal(err)
	}
	for _, clock := range []*time.Location{time.UTC, berlin} {
		for _, gaps := range []int{0, 100} {
			b.Run(fmt.Sprintf("%s/%d gaps", clock, gaps), func(b *testing.B) {
				rng := rand.New(rand.NewPCG(1, 1))
				load := make([]float32, 8760)
				for i := range load {
					load[i] = float32(rng.NormFloat64())
				}
				for range gaps {
					load[rng.IntN(len(load))] = nan
				}
				d := fleet(b, clock, time.Date(2021, 1, 1, 0, 0, 0, 0, time.UTC), load)
				f := framer(b, d, Layout{Lookback: 12, Horizon: 1, Targets: 1, Inputs: inputs(b, "load", "time_of_day", "day_of_week", "temperature", "temperature@target", "load@target-24h", "load@target-168h", "floor_area")}, DefaultSplit)
				m := d.Meter(0)
				b.ReportAllocs()
				for b.Loop() {
					f.Windows(m, f.Ranges(m))
				}
			})
		}
	}
}
