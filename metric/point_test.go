package metric

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

var nan, inf = math.NaN(), math.Inf(1)

// triple is a forecast, the actual value and the reference forecast.
type triple [3]float64

func accumulate(t testing.TB, floor float64, triples []triple) *Point {
	t.Helper()
	p := &Point{MAPEFloor: floor}
	for _, x := range triples {
		if err := p.Add(x[0], x[1], x[2]); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// check compares all scores with want, in the order in which Scores returns them.
func check(t *testing.T, p *Point, want [8]float64) {
	t.Helper()
	for i, s := range p.Scores() {
		if !near(s.Value, want[i], 1e-14) {
			t.Errorf("%s is %v, want %v", s.Name, s.Value, want[i])
		}
	}
}

func TestNames(t *testing.T) {
	var names []string
	for _, score := range new(Point).Scores() {
		names = append(names, score.Name)
	}
	if got := strings.Join(names, " "); got != "mae rmse nmae wape mape smape relative_mae bias" {
		t.Error(got)
	}
}

func TestPoint(t *testing.T) {
	for _, c := range []struct {
		name           string
		floor          float64
		triples        []triple
		want           [8]float64 // mae rmse nmae wape mape smape relative bias
		mape, relative int        // number of targets that the MAPE and the relative MAE leave out
	}{
		{
			// errors       1, -2, 3          sum 2, absolute 6, squares 14
			// actuals      1, 4, 5           sum 10, so nmae = wape = 6/10
			// percentages  1/1, 2/4, 3/5     sum 2.1
			// symmetric    2/3, 4/6, 6/13    sum 4/3 + 6/13 = 70/39
			// reference errors 1, 3, 1           sum 5, so relative = 6/5
			name:    "three targets",
			triples: []triple{{2, 1, 0}, {2, 4, 1}, {8, 5, 4}},
			want:    [8]float64{2, math.Sqrt(14. / 3), .6, .6, .7, 70. / 117, 1.2, 2. / 3},
		},
		{
			// As above with a target of zero (error 1, symmetric 2/1), which is not in
			// the MAPE, and one without a reference (error 0), which is not in the relative MAE.
			// absolute 7, squares 15, sum 3 of 5; actuals 20; symmetric 70/39 + 2;
			// reference errors 5 + 2; percentages 2.1 + 0 of 4
			name:    "left out",
			triples: []triple{{2, 1, 0}, {2, 4, 1}, {8, 5, 4}, {1, 0, 2}, {10, 10, nan}},
			want:    [8]float64{1.4, math.Sqrt(3), .35, .35, .525, (70./39 + 2) / 5, 1, .6},
			mape:    1, relative: 1,
		},
		{
			// A target with an error of 5 and no reference counts in the MAE, but not in the
			// relative MAE.
			name:     "the same targets above and below",
			triples:  []triple{{15, 10, nan}, {9, 10, 8}},
			want:     [8]float64{3, math.Sqrt(13), .3, .3, .3, (10./25 + 2./19) / 2, .5, 2},
			relative: 1,
		},
		{
			// With a floor of 4, the MAPE includes actuals of either sign whose magnitude
			// is above 4: 1/5 and 4/8. errors 1, 2, -1, 4; actuals 4, 3, 5, -8 (sum 4,
			// absolute 20) symmetric 2/9, 4/8, 2/9, 8/12
			name:    "a floor",
			floor:   4,
			triples: []triple{{5, 4, 4}, {5, 3, 3}, {4, 5, 5}, {-4, -8, -4}},
			want:    [8]float64{2, math.Sqrt(5.5), 2, .4, .35, (4./9 + .5 + 2./3) / 4, 2, 1.5},
			mape:    2,
		},
		{
			name:    "no targets",
			triples: nil,
			want:    [8]float64{nan, nan, nan, nan, nan, nan, nan, nan},
		},
		{
			// Errors 3 and 0. The load is zero, so no error can be divided by it. The load never
			// changes, so there is no reference error to divide by. Symmetric 6/3 and, for 0
			// forecast as 0, 0.
			name:    "all zero",
			triples: []triple{{3, 0, 0}, {0, 0, 0}},
			want:    [8]float64{1.5, math.Sqrt(4.5), nan, nan, nan, 1, nan, 1.5},
			mape:    2,
		},
		{
			// A perfect forecast of a load that never changes gives 0/0, which is not a
			// relative MAE of 0.
			name:    "perfect on a flat line",
			triples: []triple{{7, 7, 7}, {7, 7, 7}},
			want:    [8]float64{0, 0, 0, 0, 0, 0, nan, 0},
		},
		{
			// With a mean load of -2, the NMAE would be negative, so it is undefined.
			name:    "export",
			triples: []triple{{0, -4, -2}, {0, 0, 0}},
			want:    [8]float64{2, math.Sqrt(8), nan, 1, 1, 1, 2, 2},
			mape:    1,
		},
		{
			name:     "reference never known",
			triples:  []triple{{3, 2, nan}},
			want:     [8]float64{1, 1, .5, .5, .5, .4, nan, 1},
			relative: 1,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := accumulate(t, c.floor, c.triples)
			check(t, p, c.want)
			if p.N() != len(c.triples) || p.mapeLeftOut != c.mape || p.relativeLeftOut != c.relative {
				t.Errorf("%d targets, %d and %d left out; want %d, %d and %d",
					p.N(), p.mapeLeftOut, p.relativeLeftOut, len(c.triples), c.mape, c.relative)
			}
		})
	}
}

// generated returns test data that can be reproduced exactly in other languages.
func generated() []triple {
	triples := make([]triple, 500)
	for i := range triples {
		triples[i] = triple{
			float64((i*7919+i*i*37)%1000) / 90,
			float64((i*7919)%1000)/100 - 1,
			float64((i*i*13+5)%1000) / 95,
		}
		if i%7 == 3 {
			triples[i][2] = nan
		}
	}
	return triples
}

// TestPointNumPy compares the scores with those that NumPy 1.24 computes. With i =
// np.arange(500), f, a and b as in generated, e = f-a, k = abs(a) > .5, g = ~np.isnan(b):
func TestPointNumPy(t *testing.T) {
	p := accumulate(t, .5, generated())
	check(t, p, [8]float64{
		3.8068355555555553, // abs(e).mean()
		4.661819374079524,  // np.sqrt((e**2).mean())
		0.9505207379664308, // abs(e).mean()/a.mean()
		0.9262373614490402, // abs(e).sum()/abs(a).sum()
		1.7234515202709546, // (abs(e[k])/abs(a[k])).mean()
		0.9343458298031126, // (2*abs(e)/(abs(f)+abs(a))).mean()
		1.0284689691007773, // abs(e[g]).sum()/abs(b[g]-a[g]).sum()
		1.4172222222222222, // e.mean()
	})
	if p.mapeLeftOut != 51 || p.relativeLeftOut != 71 { // (~k).sum(), (~g).sum()
		t.Errorf("%d and %d left out, want 51 and 71", p.mapeLeftOut, p.relativeLeftOut)
	}
}

// TestPointOrder checks that scores do not depend on the order of the targets. Loads range from
// watts to megawatts, and errors cancel in the bias.
func TestPointOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	triples := make([]triple, 3000)
	for i := range triples {
		actual := rng.ExpFloat64() * math.Pow(10, float64(rng.IntN(7)))
		e := actual * (1 + rng.NormFloat64())
		if i%2 == 1 { // the negative of the previous error, up to a millionth
			e = (triples[i-1][1] - triples[i-1][0]) * (1 + 1e-6*rng.Float64())
		}
		triples[i] = triple{actual + e, actual, actual * rng.Float64()}
		if rng.IntN(10) == 0 {
			triples[i][2] = nan
		}
	}
	whole := accumulate(t, 10, triples)
	for range 50 {
		rng.Shuffle(len(triples), func(i, j int) { triples[i], triples[j] = triples[j], triples[i] })
		shuffled := accumulate(t, 10, triples)
		for i, s := range shuffled.Scores() {
			if want := whole.Scores()[i].Value; !near(s.Value, want, 1e-14) {
				t.Errorf("%s is %v in a different order, was %v", s.Name, s.Value, want)
			}
		}
		if shuffled.N() != whole.N() || shuffled.mapeLeftOut != whole.mapeLeftOut || shuffled.relativeLeftOut != whole.relativeLeftOut {
			t.Error("counts depend on the order")
		}
	}
}

func TestAddRefuses(t *testing.T) {
	for _, c := range []struct {
		triple
		want string
	}{
		{triple{nan, 1, 1}, "forecast NaN"},
		{triple{inf, 1, 1}, "forecast +Inf"},
		{triple{-inf, 1, 1}, "forecast -Inf"},
		{triple{1, nan, 1}, "actual NaN"},
		{triple{1, inf, 1}, "actual +Inf"},
		{triple{inf, inf, 1}, "forecast +Inf"},
		{triple{1, inf, nan}, "actual +Inf"},
		{triple{1, 1, inf}, "reference forecast +Inf"},
		{triple{1, 1, -inf}, "reference forecast -Inf"},
		{triple{1e200, -1e200, 1}, "forecast 1e+200"},
		{triple{1e300, 1e300, 1}, "forecast 1e+300"},
		{triple{1, 1e-300, 1}, "raise the MAPE floor"},
	} {
		p := accumulate(t, 0, []triple{{1, 2, 3}})
		before := *p
		err := p.Add(c.triple[0], c.triple[1], c.triple[2])
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: error %v, want %q", c.triple, err, c.want)
		}
		if *p != before {
			t.Errorf("%v: counted despite the error", c.triple)
		}
	}
	for _, floor := range []float64{-1, nan} {
		if err := (&Point{MAPEFloor: floor}).Add(1, 1, 1); err == nil {
			t.Errorf("a floor of %v was accepted", floor)
		}
	}
}

func TestPointJSON(t *testing.T) {
	for _, c := range []struct {
		triples []triple
		want    string
	}{
		{nil, `{"n":0,"mae":null,"rmse":null,"nmae":null,"wape":null,"mape":null,"smape":null,"relative_mae":null,"bias":null,` +
			`"mape_floor":0.5,"mape_left_out":0,"relative_mae_left_out":0}`},
		// errors 1 and -2; actuals 1 and .5; symmetric 2/3 and 4/2
		{[]triple{{2, 1, nan}, {-1.5, .5, .5}}, `{"n":2,"mae":1.5,"rmse":1.5811388300841898,"nmae":2,"wape":2,"mape":1,"smape":1.3333333333333333,"relative_mae":null,"bias":-0.5,` +
			`"mape_floor":0.5,"mape_left_out":1,"relative_mae_left_out":1}`},
	} {
		p := accumulate(t, .5, c.triples)
		for _, v := range []any{p, *p} {
			if got, err := json.Marshal(v); err != nil || string(got) != c.want {
				t.Errorf("%s, %v; want %s", got, err, c.want)
			}
		}
	}
}

func TestGet(t *testing.T) {
	s := accumulate(t, 0, []triple{{2, 1, 0}}).Scores()
	if v, ok := s.Get("bias"); v != 1 || !ok {
		t.Error(v, ok)
	}
	if v, ok := s.Get("BIAS"); !math.IsNaN(v) || ok {
		t.Error(v, ok)
	}
}

// FuzzPoint checks properties for any numbers: values that are not finite are rejected,
// scores agree with the plain formulas, and JSON can be written.
func FuzzPoint(f *testing.F) {
	seed := func(triples ...triple) {
		var data []byte
		for _, x := range triples {
			data, _ = binary.Append(data, binary.LittleEndian, x)
		}
		f.Add(data)
	}
	seed(generated()[:20]...)
	seed(triple{1e100, -1e99, 1}, triple{0, 5e-324, nan}, triple{math.Copysign(0, -1), 0, inf}, triple{1e16, 1, -1e16}, triple{nan, 1, 2})
	f.Fuzz(func(t *testing.T, data []byte) {
		var whole Point
		var bias, mae, size []float64
		for len(data) >= 24 {
			var x triple
			for j := range x {
				x[j] = math.Float64frombits(binary.LittleEndian.Uint64(data[8*j:]))
			}
			data = data[24:]
			err := whole.Add(x[0], x[1], x[2])
			if err != nil {
				continue
			}
			if math.IsNaN(x[0]-x[1]) || math.IsInf(x[0]-x[1], 0) || math.IsInf(x[2], 0) {
				t.Fatalf("counted %v", x)
			}
			bias = append(bias, x[0]-x[1])
			mae = append(mae, math.Abs(x[0]-x[1]))
			size = append(size, math.Abs(x[1]))
		}
		n := float64(len(bias))
		if len(bias) > 0 {
			if got, want := whole.MAE(), exactSum(mae)/n; !near(got, want, 1e-15) {
				t.Errorf("MAE %v, want %v", got, want)
			}
			if got, want := whole.WAPE(), exactSum(mae)/exactSum(size); exactSum(size) > 0 && !near(got, want, 1e-14) {
				t.Errorf("WAPE %v, want %v", got, want)
			}
			// Sums whose terms cancel have about twice the precision of float64, but are
			// not exact.
			if got, want := whole.Bias(), exactSum(bias)/n; math.Abs(got-want) > 1e-15*math.Abs(want)+1e-28*whole.MAE() {
				t.Errorf("bias %v, want %v", got, want)
			}
			if v := whole.SMAPE(); !(v >= 0 && v <= 2+1e-15) {
				t.Errorf("sMAPE %v", v)
			}
			if whole.RMSE() < whole.MAE()*(1-1e-15) && whole.MAE() > 1e-150 { // squares underflow
				t.Errorf("RMSE %v below MAE %v", whole.RMSE(), whole.MAE())
			}
		}
		text, err := json.Marshal(whole)
		if err != nil {
			t.Fatal(err)
		}
		var back map[string]Number
		if err := json.Unmarshal(text, &back); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		for _, s := range whole.Scores() {
			if got := float64(back[s.Name]); got != s.Value && !math.IsNaN(got) {
				t.Errorf("%s is %v in JSON, was %v", s.Name, got, s.Value)
			}
		}
	})
}
