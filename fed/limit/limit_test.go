package limit

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"loadstar/fed"
	"loadstar/internal/stateformat"
)

func TestNorm(t *testing.T) {
	for _, c := range []struct {
		x    []float32
		want float64
	}{
		{nil, 0},
		{[]float32{3, -4}, 5},
		{[]float32{1, 1, 1, 1, -1, 1, 1, 1, 1}, 3},
		{[]float32{math.MaxFloat32}, math.MaxFloat32},
		{[]float32{1, float32(math.Inf(-1))}, math.Inf(1)},
	} {
		if got := Norm(c.x); got != c.want {
			t.Errorf("%v: %g, want %g", c.x, got, c.want)
		}
	}
}

// A clipped vector is within the bound and keeps its direction. Clipping it again changes
// nothing.
func TestClip(t *testing.T) {
	draw := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		x := make([]float32, 1+draw.IntN(50))
		for i := range x {
			x[i] = float32(draw.NormFloat64() * math.Exp(10*draw.NormFloat64()))
		}
		was, norm := slices.Clone(x), Norm(x)
		bound := norm * math.Exp(draw.NormFloat64())
		got := clip(x, bound)
		if got != Norm(x) || got > bound {
			t.Fatalf("norm %g, returned %g, bound %g", Norm(x), got, bound)
		}
		if norm <= bound && !slices.Equal(x, was) {
			t.Fatal("a vector within the bound has changed")
		}
		if norm > bound && got < bound*(1-1e-5) {
			t.Fatalf("norm %g, far below the bound %g", got, bound)
		}
		once := slices.Clone(x)
		if again := clip(x, bound); again != got || !slices.Equal(x, once) {
			t.Fatal("clipping again has changed the vector")
		}
	}
	for _, bound := range []float64{0, -1, math.NaN()} {
		if x := []float32{3, 4}; clip(x, bound) != 5 || x[0] != 3 {
			t.Errorf("a bound of %g changes a vector to %v", bound, x)
		}
	}
	if x := []float32{math.SmallestNonzeroFloat32, 1}; clip(x, 1e-60) > 1e-60 {
		t.Errorf("%v is beyond a bound that float32 cannot express", x)
	}
	if x := []float32{float32(math.NaN()), 1}; !math.IsNaN(clip(x, 1)) || x[1] != 1 {
		t.Errorf("a vector that is not finite has become %v", x)
	}
}

// Clamped numbers are within the bound even if float32 cannot represent it, and keep their
// sign.
func TestClamp(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	x := []float32{0.5, -0.5, 3, -3, math.MaxFloat32, inf, -inf, nan, 0}
	clamp(x, 1)
	if want := []float32{0.5, -0.5, 1, -1, 1, inf, -inf}; !slices.Equal(x[:7], want) || x[7] == x[7] || x[8] != 0 {
		t.Errorf("%v, want %v", x, want)
	}
	for _, bound := range []float64{0.1, 1. / 3, 0.06, 1e-50, 1e300} {
		x := []float32{math.MaxFloat32, -math.MaxFloat32}
		clamp(x, bound)
		if float64(x[0]) > bound || x[1] != -x[0] || float64(x[0]) < min(bound, math.MaxFloat32)*(1-1e-6) && bound > 1e-40 {
			t.Errorf("bound %g: %v", bound, x)
		}
	}
	for _, bound := range []float64{0, -1, math.NaN()} {
		if x := []float32{3}; true {
			if clamp(x, bound); x[0] != 3 {
				t.Errorf("a bound of %g changes 3 to %g", bound, x[0])
			}
		}
	}
}

func TestApply(t *testing.T) {
	u := fed.Update{Claimed: math.MaxInt, Delta: []float32{30, 40}, Control: []float32{0, 9}, Loss: 7, TrainLoss: 1e9}
	Apply(fed.Limits{Norm: 5, Control: 3, Examples: 12, Loss: 2}, &u)
	if !slices.Equal(u.Delta, []float32{3, 4}) || !slices.Equal(u.Control, []float32{0, 3}) ||
		u.Examples != 12 || u.Loss != 2 || u.TrainLoss != 2 || u.Norm != 5 || u.ControlNorm != 3 {
		t.Errorf("%+v", u)
	}
	// The number 30 is clamped to 4 before the norm is limited, so that one large number does
	// not shrink the others.
	u = fed.Update{Claimed: 1, Delta: []float32{30, -3}}
	for range 2 { // the second pass changes nothing
		if Apply(fed.Limits{Norm: 2.5, Coordinate: 4}, &u); !slices.Equal(u.Delta, []float32{2, -1.5}) || u.Norm != 2.5 {
			t.Errorf("%+v", u)
		}
	}
	u = fed.Update{Claimed: 8, Delta: []float32{30, 40}, TrainLoss: 5}
	if Apply(fed.Limits{}, &u); u.Examples != 8 || u.Norm != 50 || u.TrainLoss != 5 {
		t.Errorf("without limits: %+v", u)
	}
}

func tallyOf(norms ...float64) (t Tally) {
	for _, n := range norms {
		t.Add(&fed.Update{Norm: n, ControlNorm: 2 * n, Claimed: int(100 * n), TrainLoss: n / 4})
	}
	return t
}

func repeated(norm float64, n int) Tally { return tallyOf(slices.Repeat([]float64{norm}, n)...) }

// Limits are based on medians, so a few updates of any size change them by at most one bucket.
func TestHistory(t *testing.T) {
	first := fed.Limits{Norm: 7, Control: 8, Examples: 1, Loss: 1000}
	h := History{Factor: 3, First: first}
	if h.Limits() != first {
		t.Errorf("before the first merge: %+v", h.Limits())
	}
	h.Add(repeated(1e9, 7))
	if h.Limits() != first {
		t.Errorf("seven updates have changed the limits to %+v", h.Limits())
	}
	h.Add(repeated(2, 25))
	want := fed.Limits{Norm: 6, Control: 12, Examples: 200, Loss: 5}
	if h.Limits() != want {
		t.Errorf("%+v, want %+v", h.Limits(), want)
	}
	// The merge of 7 updates is now outside the window, and fewer than half of the updates are
	// hostile.
	last := repeated(2, 25)
	hostile := tallyOf(1e300, 1e300, 1e-300, 0, math.NaN())
	last.Merge(&hostile)
	h.Add(last)
	if h.Limits() != want || len(h.merges) != 2 {
		t.Errorf("%+v of %d merges, want %+v of 2", h.Limits(), len(h.merges), want)
	}
	if h = (History{}); true {
		h.Add(repeated(1, 99))
	}
	if h.Limits() != (fed.Limits{}) {
		t.Errorf("without a factor: %+v", h.Limits())
	}
}

// If clients withhold a size, such as a loss that must not leave the agent, the size keeps its
// first limit.
func TestUntold(t *testing.T) {
	h := History{Factor: 3, First: fed.Limits{Norm: 7, Control: 8, Examples: 1, Loss: 1000}}
	var untold Tally
	for range 40 {
		untold.Add(&fed.Update{Norm: 1})
	}
	h.Add(untold)
	if got, want := h.Limits(), (fed.Limits{Norm: 3, Control: 8, Examples: 1, Loss: 1000}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// With one update per merge, the window contains 32 merges, so a single client does not set the
// limits.
func TestWindow(t *testing.T) {
	h := History{Factor: 3}
	for i := range 100 {
		norm := 1.
		if i%5 == 0 {
			norm = 1e6
		}
		h.Add(tallyOf(norm))
		if l := h.Limits(); i >= least && l.Norm != 3 {
			t.Fatalf("after merge %d: %+v", i, l)
		}
	}
	if len(h.merges) != window {
		t.Errorf("%d merges are kept, want %d", len(h.merges), window)
	}
}

// The order of updates and of partial tallies does not matter, and the median equals the one
// found by sorting, up to the width of a bucket.
func TestTally(t *testing.T) {
	draw := rand.New(rand.NewPCG(3, 4))
	var norms []float64
	for range 1001 {
		norms = append(norms, math.Exp(draw.NormFloat64()))
	}
	a, b := tallyOf(norms...), Tally{}
	slices.Reverse(norms)
	for part := range slices.Chunk(norms, 100) {
		some := tallyOf(part...)
		b.Merge(&some)
	}
	if encoded(a) != encoded(b) {
		t.Error("the tally depends on the order")
	}
	slices.Sort(norms)
	if got, want := a.norms.median(), norms[500]; got > want || got < want*(1-1./64) {
		t.Errorf("median %g, want %g", got, want)
	}
}

func encoded(t Tally) string {
	h := History{Factor: 3, merges: []Tally{t}}
	var w stateformat.Writer
	h.Write(&w)
	return string(w.State())
}

func TestHistoryState(t *testing.T) {
	h := History{Factor: 3, First: fed.Limits{Norm: 1, Control: 2, Examples: 3, Loss: 4}}
	h.Add(repeated(2, 9))
	h.Add(tallyOf(1, 5, 0.25))
	var w stateformat.Writer
	h.Write(&w)
	var got History
	r := stateformat.NewReader(w.State())
	got.Read(r)
	if err := r.Done(); err != nil || fmt.Sprint(got) != fmt.Sprint(h) || got.Limits() != h.Limits() {
		t.Errorf("%v, %v; want %v", got, err, h)
	}
}

// TestRound checks the numbers that leave an agent. They have two digits, norms are rounded up
// within their limit, and rounding twice is the same as rounding once.
func TestRound(t *testing.T) {
	u := fed.Update{Claimed: 12_345, Loss: 0.01234, TrainLoss: 0.9951, Norm: 0.4301, ControlNorm: 0.43}
	Round(&u)
	RoundNorms(fed.Limits{}, &u)
	if u.Claimed != 12_000 || u.Loss != 0.012 || u.TrainLoss != 1 || u.Norm != 0.44 || u.ControlNorm != 0.43 {
		t.Errorf("%+v", u)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		norm := math.Exp(40*rng.Float64() - 20)
		x := fed.Update{Norm: norm}
		RoundNorms(fed.Limits{}, &x)
		once := x.Norm
		RoundNorms(fed.Limits{}, &x)
		if once < norm || once > 1.1*norm || x.Norm != once {
			t.Fatalf("%g is rounded up to %g, and again to %g", norm, once, x.Norm)
		}
		x.Norm = norm
		if RoundNorms(fed.Limits{Norm: norm}, &x); x.Norm != norm {
			t.Fatalf("%g is rounded up to %g, above its limit", norm, x.Norm)
		}
	}
	for _, special := range []float64{0, math.Inf(1), math.MaxFloat64, 5e-324} {
		x := fed.Update{Norm: special, Loss: special}
		Round(&x)
		if RoundNorms(fed.Limits{}, &x); !(x.Norm >= special) {
			t.Errorf("%g becomes %g", special, x.Norm)
		}
	}
}

// The counters of a coarse tally equal the sum of the counters of its parts, and limits from
// coarse tallies are at most a quarter below those from fine tallies.
func TestCoarse(t *testing.T) {
	draw := rand.New(rand.NewPCG(7, 8))
	var all, fine Tally
	sum := make([]uint64, Counters)
	const n = 300
	for range n {
		u := &fed.Update{
			Norm: math.Exp(8 * draw.NormFloat64()), ControlNorm: draw.Float64(), Claimed: draw.IntN(1 << 19), TrainLoss: math.Exp(4 * draw.NormFloat64()),
		}
		all.AddCoarse(u)
		fine.Add(u)
		var one Tally
		one.AddCoarse(u)
		for i, c := range one.Counters() {
			sum[i] += c
		}
	}
	if !slices.Equal(sum, all.Counters()) {
		t.Error("counters of single updates do not add up to those of all")
	}
	var back Tally
	back.SetCounters(n, sum)
	limits := func(t Tally) fed.Limits {
		h := History{Factor: 1.5}
		h.Add(t)
		return h.Limits()
	}
	a, b, f := limits(all), limits(back), limits(fine)
	if a != b {
		t.Errorf("limits %+v, after masking %+v", a, b)
	}
	for _, x := range [][2]float64{{a.Norm, f.Norm}, {a.Control, f.Control}, {a.Loss, f.Loss}, {float64(a.Examples), float64(f.Examples)}} {
		if ratio := x[0] / x[1]; ratio > 1 || ratio < 0.75 {
			t.Errorf("a coarse limit is %g of the fine one", ratio)
		}
	}
	var ends Tally
	ends.AddCoarse(&fed.Update{Norm: 1e-300, TrainLoss: math.Inf(1), Claimed: 0})
	c := ends.Counters()
	if c[0] != 1 || c[Counters-1] != 1 {
		t.Error("sizes out of range are not at the ends")
	}
}
