package metric

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

type row []float64

func quantiles(t *testing.T, levels []float64, rows []row) *Quantiles {
	t.Helper()
	q, err := NewQuantiles(levels...)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if err := q.Add(r[:len(r)-1], r[len(r)-1]); err != nil {
			t.Fatal(err)
		}
	}
	return q
}

// TestQuantilesByHand compares the scores with values computed by hand for four targets
// and the quantiles P10, P50 and P90.
//
//	forecasts  actual  errors (actual - forecast)  pinball
//	2, 5, 6    4       2, -1, -2                   .1·2 = .2, .5·1 = .5, .1·2 = .2
//	1, 2, 3    3       2, 1, 0 (on the bound: inside)    .2, .5, 0
//	5, 6, 9    4       -1, -2, -5                  .9·1 = .9, 1, .1·5 = .5
//	4, 6, 8    4       0, -2, -4 (on the bound: inside)  0, 1, .1·4 = .4
//	mean                                           1.3/4, 3/4, 1.1/4
func TestQuantilesByHand(t *testing.T) {
	q := quantiles(t, []float64{.1, .5, .9}, []row{{2, 5, 6, 4}, {1, 2, 3, 3}, {5, 6, 9, 4}, {4, 6, 8, 4}})
	for i, want := range []float64{1.3 / 4, 3. / 4, 1.1 / 4} {
		if got := q.Losses()[i]; !near(got, want, 1e-14) {
			t.Errorf("level %d: loss %v, want %v", i, got, want)
		}
	}
	for _, s := range q.Scores() {
		if want := map[string]float64{"pinball": .45, "coverage": .75, "crps": .9}[s.Name]; !near(s.Value, want, 1e-14) {
			t.Errorf("%s is %v, want %v", s.Name, s.Value, want)
		}
	}
	// In the interval from the median to P90: 4 is not in 5..6, 3 is in 2..3, 4 is not in
	// 6..9 or 6..8.
	if got, err := q.Coverage(.5, .9); err != nil || got != .25 {
		t.Errorf("coverage of the upper half %v, %v", got, err)
	}
	for _, levels := range [][2]float64{{.1, .8}, {.2, .9}, {.9, .1}, {.5, .5}, {nan, .9}} {
		if got, err := q.Coverage(levels[0], levels[1]); err == nil {
			t.Errorf("coverage of %v: %v", levels, got)
		}
	}
}

func TestQuantilesJSON(t *testing.T) {
	for _, c := range []struct {
		levels []float64
		rows   []row
		want   string
	}{
		// The pinball loss is .25·1 for both quantiles.
		{[]float64{.25, .75}, []row{{1, 3, 2}}, `{"n":1,"pinball":0.25,"coverage":1,"crps":0.5,"coverage_lower":0.25,"coverage_upper":0.75}`},
		{[]float64{.4, .5}, nil, `{"n":0,"pinball":null,"coverage":null,"crps":null,"coverage_lower":null,"coverage_upper":null}`},
	} {
		q := quantiles(t, c.levels, c.rows)
		for _, v := range []any{q, *q} {
			if got, err := json.Marshal(v); err != nil || string(got) != c.want {
				t.Errorf("%s, %v; want %s", got, err, c.want)
			}
		}
	}
}

// generatedRows returns test data that can be reproduced exactly in other languages.
func generatedRows() (levels []float64, rows []row) {
	levels = []float64{2. / 16, 5. / 16, 8. / 16, 11. / 16, 14. / 16}
	for i := range 500 {
		actual := float64((i*7919)%1000)/128 - 1
		var r row
		for _, level := range levels {
			r = append(r, actual+float64((i*i*31+7*i)%997)/256-2+(level-.5)*float64(i%5+1))
		}
		rows = append(rows, append(r, actual))
	}
	return levels, rows
}

// TestQuantilesNumPy compares the scores with those that NumPy 1.24 computes. With i =
// np.arange(500), L the levels, F and a as in generatedRows, D = a[:,None]-F:
func TestQuantilesNumPy(t *testing.T) {
	levels, rows := generatedRows()
	q := quantiles(t, levels, rows)
	// np.where(D >= 0, L*D, (L-1)*D).mean(0)
	for i, want := range []float64{0.2411220703125, 0.40844580078125, 0.48355078125, 0.44604638671875, 0.2851201171875} {
		if got := q.Losses()[i]; !near(got, want, 1e-14) {
			t.Errorf("level %d: loss %v, want %v", i, got, want)
		}
	}
	for _, c := range []struct {
		name      string
		got, want float64
	}{
		{"loss", q.Loss(), 0.37285703125},
		{"CRPS", q.CRPS(), 0.7457140625},
	} {
		if !near(c.got, c.want, 1e-14) {
			t.Errorf("%s %v, want %v", c.name, c.got, c.want)
		}
	}
	// ((F[:,0] <= a) & (a <= F[:,4])).mean(), and the same for columns 1 and 3
	for _, c := range [][3]float64{{2. / 16, 14. / 16, .568}, {5. / 16, 11. / 16, .288}} {
		if got, err := q.Coverage(c[0], c[1]); err != nil || !near(got, c[2], 1e-15) {
			t.Errorf("coverage %v, %v; want %v", got, err, c[2])
		}
	}
}

// TestCRPSNormal compares the CRPS with the closed form for a normally distributed
// forecast, σ (z (2Φ(z) - 1) + 2φ(z) - 1/√π) with z = (actual - μ)/σ. With more levels,
// the mean over quantiles converges to the closed form.
func TestCRPSNormal(t *testing.T) {
	const mu, sigma, k = 3, 2, 2000
	var levels, forecasts []float64
	for i := range k {
		level := (float64(i) + .5) / k
		levels = append(levels, level)
		forecasts = append(forecasts, mu+sigma*math.Sqrt2*math.Erfinv(2*level-1))
	}
	for _, actual := range []float64{3, 4, -1, 12} {
		q := quantiles(t, levels, []row{append(append(row{}, forecasts...), actual)})
		z := (actual - mu) / sigma
		want := sigma * (z*math.Erf(z/math.Sqrt2) + 2*math.Exp(-z*z/2)/math.Sqrt(2*math.Pi) - 1/math.Sqrt(math.Pi))
		if got := q.CRPS(); math.Abs(got-want) > 1e-3 {
			t.Errorf("actual %v: CRPS %v, want %v", actual, got, want)
		}
	}
}

// TestMedianIsMAE checks that the CRPS of the median alone is the mean absolute error.
func TestMedianIsMAE(t *testing.T) {
	var p Point
	q := quantiles(t, []float64{.5}, nil)
	for _, x := range generated() {
		if err := p.Add(x[0], x[1], x[2]); err != nil {
			t.Fatal(err)
		}
		if err := q.Add(x[:1], x[1]); err != nil {
			t.Fatal(err)
		}
	}
	if !near(p.MAE(), q.CRPS(), 1e-15) {
		t.Errorf("CRPS %v, MAE %v", q.CRPS(), p.MAE())
	}
}

func TestLevels(t *testing.T) {
	for _, c := range []struct {
		levels       []float64
		even         bool
		lower, upper float64
	}{
		{[]float64{.1, .2, .3, .4, .5, .6, .7, .8, .9}, true, .1, .9}, // although 1-.9 != .1
		{[]float64{.05, .5, .95}, true, .05, .95},
		{[]float64{.5}, true, nan, nan},
		{[]float64{.3, .7}, true, .3, .7},
		{[]float64{.05, .1, .5, .9, .95}, false, .05, .95}, // not evenly spaced
		{[]float64{.1, .2, .3}, false, nan, nan},           // evenly spaced, but not symmetric
		{[]float64{.1}, false, nan, nan},
		{[]float64{.05, .1, .9}, false, .1, .9},
	} {
		q := quantiles(t, c.levels, []row{make(row, len(c.levels)+1)})
		if crps := q.CRPS(); math.IsNaN(crps) == c.even {
			t.Errorf("%v: CRPS %v", c.levels, crps)
		}
		lower, upper, ok := q.Central()
		if !near(lower, c.lower, 0) || !near(upper, c.upper, 0) || ok == math.IsNaN(c.lower) {
			t.Errorf("%v: central interval %v to %v, %v", c.levels, lower, upper, ok)
		}
		if coverage, _ := q.Scores().Get("coverage"); math.IsNaN(coverage) == ok {
			t.Errorf("%v: coverage %v", c.levels, coverage)
		}
	}
	for _, levels := range [][]float64{{}, {0}, {1}, {.5, .5}, {.5, .4}, {-.1, .5}, {nan}, {.1, nan}, {.1, inf}} {
		if _, err := NewQuantiles(levels...); err == nil {
			t.Errorf("quantiles %v", levels)
		}
	}
}

func TestQuantilesOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	levels, rows := generatedRows()
	for _, r := range rows {
		scale := math.Pow(10, float64(rng.IntN(7)))
		for i := range r {
			r[i] *= scale
		}
	}
	whole := quantiles(t, levels, rows)
	for range 30 {
		rng.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
		shuffled := quantiles(t, levels, rows)
		for i, s := range shuffled.Scores() {
			if want := whole.Scores()[i].Value; !near(s.Value, want, 1e-14) {
				t.Errorf("%s is %v in a different order, was %v", s.Name, s.Value, want)
			}
		}
		if shuffled.n != whole.n {
			t.Errorf("%d targets, want %d", shuffled.n, whole.n)
		}
	}
}

func TestQuantilesRefuse(t *testing.T) {
	for _, c := range []struct {
		row
		want string
	}{
		{row{1, 2, 3}, "2 quantile forecasts"},
		{row{1, 3, 2, 2}, "cross"},
		{row{nan, 2, 3, 2}, "P10 forecast NaN"},
		{row{1, 2, nan, 2}, "P90 forecast NaN"},
		{row{1, 2, inf, 2}, "P90 forecast +Inf"},
		{row{1, 2, 3, nan}, "actual NaN"},
		{row{1, 2, 3, -inf}, "actual -Inf"},
		{row{inf, inf, inf, inf}, "P10 forecast +Inf"},
		{row{1, 2, 1e300, 2}, "P90 forecast 1e+300"},
	} {
		q := quantiles(t, []float64{.1, .5, .9}, []row{{1, 2, 3, 4}})
		before, _ := json.Marshal(q)
		last := len(c.row) - 1
		if err := q.Add(c.row[:last], c.row[last]); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: error %v, want %q", c.row, err, c.want)
		}
		if after, _ := json.Marshal(q); string(after) != string(before) {
			t.Errorf("%v: counted despite the error: %s, was %s", c.row, after, before)
		}
	}
	if err := quantiles(t, []float64{.1, .5, .9}, nil).Add([]float64{2, 2, 2}, 2); err != nil {
		t.Errorf("equal quantiles were rejected as crossing: %v", err)
	}
}

// TestQuantilesOwnLevels checks that the levels are copied, so the caller may reuse its
// slice.
func TestQuantilesOwnLevels(t *testing.T) {
	levels := []float64{.1, .9}
	q := quantiles(t, levels, nil)
	levels[0] = .5
	if lower, _, _ := q.Central(); lower != .1 {
		t.Errorf("the lowest level became %v", lower)
	}
}

func TestShares(t *testing.T) {
	q, err := NewQuantiles(.1, .9)
	if err != nil {
		t.Fatal(err)
	}
	for _, actual := range []float64{0, 1, 2, 9} { // a load that equals the forecast is not above the forecast
		if err := q.Add([]float64{1, 2}, actual); err != nil {
			t.Fatal(err)
		}
	}
	if got := q.Shares(); got[0] != .5 || got[1] != .75 {
		t.Errorf("shares %v", got)
	}
	for level, want := range map[float64]string{.05: "P05", .1: "P10", .5: "P50", .975: "P97.5", .999: "P99.9", .025: "P02.5"} {
		if got := LevelName(level); got != want {
			t.Errorf("level %v is %s, want %s", level, got, want)
		}
	}
}
