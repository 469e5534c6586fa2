package metric

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
)

// TestDieboldMarianoByHand compares the test with equation 5 computed by hand for eight
// targets.
//
//	e    1, 2, 1, 3, 1, 2, 2, 2
//	r    0, 1, 1, 1, 1, -2, 0, 2
//	d    1, 3, 0, 8, 0, 0, 4, 0       sum 16, mean 2
//	d-2  -1, 1, -2, 6, -2, -2, 2, -2
//	n^(1/3) + 1 = 3 lags
//	8γ_0 = 1 + 1 + 4 + 36 + 4 + 4 + 4 + 4 = 58
//	8γ_1 = -1 - 2 - 12 - 12 + 4 - 4 - 4 = -31
//	8γ_2 = 2 + 6 + 4 - 12 - 4 + 4 = 0
//	8γ_3 = -6 - 2 + 4 + 12 + 4 = 12
//	8V = 58 + 2 (-31 + 0 + 12) = 20,  V = 2.5
//	DM = 2 / sqrt(2.5/8) = 2 / sqrt(.3125)
//
// With absolute errors d is 1, 1, 0, 2, 0, 0, 2, 0: sum 6, mean 3/4, and 4 d - 3 is
// 1, 1, -3, 5, -3, -3, 5, -3.
//
//	16·8γ_0 = 1 + 1 + 9 + 25 + 9 + 9 + 25 + 9 = 88
//	16·8γ_1 = 1 - 3 - 15 - 15 + 9 - 15 - 15 = -53
//	16·8γ_2 = -3 + 5 + 9 - 15 - 15 + 9 = -10
//	16·8γ_3 = 5 - 3 + 9 + 25 + 9 = 45
//	128V = 88 + 2 (-53 - 10 + 45) = 52,  V = 13/32
//	DM = .75 / sqrt(13/256)
func TestDieboldMarianoByHand(t *testing.T) {
	e := []float64{1, 2, 1, 3, 1, 2, 2, 2}
	r := []float64{0, 1, 1, 1, 1, -2, 0, 2}
	for _, c := range []struct {
		power Power
		want  Comparison
	}{
		{Squared, Comparison{Statistic: 2 / math.Sqrt(.3125), MeanDifference: 2, LongRunVariance: 2.5, Lags: 3, N: 8}},
		{Absolute, Comparison{Statistic: .75 / math.Sqrt(13./256), MeanDifference: .75, LongRunVariance: 13. / 32, Lags: 3, N: 8}},
	} {
		got, err := DieboldMariano(e, r, c.power)
		if err != nil || !same(got, c.want) {
			t.Errorf("power %d: %+v, %v; want %+v", c.power, got, err, c.want)
		}
		if !got.Significant() {
			t.Errorf("%v is not significant", got.Statistic)
		}
	}
}

func same(a, b Comparison) bool {
	return a.N == b.N && a.Lags == b.Lags && near(a.Statistic, b.Statistic, 1e-12) &&
		near(a.MeanDifference, b.MeanDifference, 1e-12) && near(a.LongRunVariance, b.LongRunVariance, 1e-12)
}

// autocorrelated returns errors that can be reproduced exactly in other languages.
func autocorrelated(n int) (e, r []float64) {
	var x, y float64
	for t := range n {
		x = .75*x + float64((t*t*31+7*t)%997)/997 - .5
		y = .5*y + 1.4*(float64((t*t*57+11*t)%991)/991-.5)
		e, r = append(e, x), append(r, y)
	}
	return e, r
}

// TestDieboldMarianoNumPy compares the test with a computation in NumPy 1.24. With d =
// e**2-r**2 or abs(e)-abs(r) and z = d-d.mean():
//
//	g = np.correlate(z, z, 'full')[n-1:]/n
//	V = g[0] + 2*g[1:m+1].sum()
//	d.mean()/np.sqrt(V/n), d.mean(), V
func TestDieboldMarianoNumPy(t *testing.T) {
	for _, c := range []struct {
		power Power
		want  Comparison
	}{
		{Squared, Comparison{-2.120985545350084, -0.039488450735925086, 0.34662890316555806, 11, 1000}},
		{Absolute, Comparison{-2.6677082844125377, -0.04535700966922036, 0.28907607792768547, 11, 1000}},
		{Squared, Comparison{-2.141524962989938, -0.04109779859814526, 0.3679224808288032, 10, 999}}, // 999 < 10^3
		{Squared, Comparison{0.5289871558080996, 0.030643675474251796, 0.33557643376756097, 5, 100}},
		{Absolute, Comparison{0.2041963071845319, 0.011618629211026943, 0.32375316053616465, 5, 100}},
	} {
		e, r := autocorrelated(c.want.N)
		got, err := DieboldMariano(e, r, c.power)
		if err != nil || !same(got, c.want) {
			t.Errorf("power %d: %+v, %v; want %+v", c.power, got, err, c.want)
		}
		if got.Significant() != (c.want.N > 100) {
			t.Errorf("%v: significant is %v", got.Statistic, got.Significant())
		}
		back, err := DieboldMariano(r, e, c.power)
		if err != nil || back.Statistic != -got.Statistic {
			t.Errorf("%v, swapped %v, %v", got.Statistic, back.Statistic, err)
		}
		for i := range e { // scaling by 4 is exact
			e[i], r[i] = 4*e[i], 4*r[i]
		}
		scaled, err := DieboldMariano(e, r, c.power)
		if err != nil || scaled.Statistic != got.Statistic {
			t.Errorf("%v, in another unit %v, %v", got.Statistic, scaled.Statistic, err)
		}
	}
}

func TestSignificant(t *testing.T) {
	for statistic, want := range map[float64]bool{0: false, 1.96: false, -1.96: false, 1.961: true, -1.961: true} {
		if got := (Comparison{Statistic: statistic}).Significant(); got != want {
			t.Errorf("%v: significant is %v", statistic, got)
		}
	}
}

// TestDieboldMarianoChance compares pairs of equally good forecasts. With 11 lags and 1000
// targets, the test reports a significant difference for a little more than 5 % of the pairs.
func TestDieboldMarianoChance(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	const runs = 1000
	significant := 0
	e, r := make([]float64, 1000), make([]float64, 1000)
	for range runs {
		var x, y float64
		for i := range e {
			x, y = .6*x+rng.NormFloat64(), .6*y+rng.NormFloat64()
			e[i], r[i] = x, y
		}
		c, err := DieboldMariano(e, r, Squared)
		if err != nil {
			t.Fatal(err)
		}
		if c.Significant() {
			significant++
		}
	}
	if share := float64(significant) / runs; share < .04 || share > .09 {
		t.Errorf("%.1f %% significant, want about 6 %%", 100*share)
	}
}

func TestDieboldMarianoVariance(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	random := func(n int) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = rng.NormFloat64()
		}
		return x
	}
	constant := func(v float64, n int) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = v
		}
		return x
	}
	refuse := func(name string, e, r []float64) {
		t.Helper()
		for _, power := range []Power{Absolute, Squared} {
			if c, err := DieboldMariano(e, r, power); !errors.Is(err, ErrVariance) || c != (Comparison{}) {
				t.Errorf("%s: %+v, %v", name, c, err)
			}
		}
	}
	e := random(100)
	refuse("the same forecast", e, e)
	for range 200 {
		// With up to three targets, all lags are included, and the covariances at all
		// lags sum to (sum of deviations)^2/n = 0. Only rounding errors remain.
		n := 1 + rng.IntN(3)
		refuse("few targets", random(n), random(n))
		// All differences are equal here, but their rounded mean can differ from them.
		n = 4 + rng.IntN(500)
		refuse("a constant difference", constant(rng.NormFloat64(), n), constant(rng.NormFloat64(), n))
	}
	// d = 1, 0, 1, 0, ...: deviations ±1/2, γ_k = ±(n-k)/4n. For n = 8, with 3 lags:
	// 32V = 8 + 2(-7 + 6 - 5) = -4.
	refuse("alternating", []float64{1, 0, 1, 0, 1, 0, 1, 0}, make([]float64, 8))
}

func TestDieboldMarianoRefuses(t *testing.T) {
	for _, c := range []struct {
		name  string
		e, r  []float64
		power Power
	}{
		{"nothing", nil, nil, Squared},
		{"another length", []float64{1, 2, 3, 4, 5}, []float64{1, 2, 3, 4}, Squared},
		{"NaN", []float64{1, 2, nan, 4, 7}, make([]float64, 5), Squared},
		{"infinite", make([]float64, 5), []float64{1, 2, inf, 4, 7}, Absolute},
		{"infinite in both", []float64{1, 2, inf, 4, 7}, []float64{1, 0, inf, 4, 9}, Squared},
		{"huge", []float64{1, 2, 1e60, 4, 7}, make([]float64, 5), Squared},
		{"no such power", []float64{1, 2, 5, 4, 7}, make([]float64, 5), 3},
	} {
		if got, err := DieboldMariano(c.e, c.r, c.power); err == nil || errors.Is(err, ErrVariance) {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
	}
}

func TestLastLag(t *testing.T) {
	for n, want := range map[int]int{1: 2, 7: 2, 8: 3, 26: 3, 27: 4, 63: 4, 64: 5, 999: 10, 1000: 11, 1_000_000: 101, 999_999: 100} {
		if got := lastLag(n); got != want {
			t.Errorf("%d targets: last lag %d, want %d", n, got, want)
		}
	}
}
