package terms

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"loadstar/fed"
	"loadstar/fed/limit"
	"loadstar/fed/round"
)

// TestLossLimits checks that a loss has no effect beyond ten times the usual loss, and that a
// negative loss is refused. Operators see the mean over clients, which a single client must not
// determine.
func TestLossLimits(t *testing.T) {
	limits := fed.Limits{Loss: 5}
	for _, c := range []struct{ train, loss, wantTrain, wantLoss float64 }{
		{0.5, 0.25, 0.5, 0.25},
		{5, 5, 5, 5},
		{1e99, 0.25, 5, 0.25},
		{0.5, 1e99, 0.5, 5},
		{0, 0, 0, 0},
		{-1e-9, 0.25, math.NaN(), 0},
		{0.5, -1, math.NaN(), 0},
		{1e100, 0.25, math.NaN(), 0},
	} {
		for _, algorithm := range []string{"fedavg", "fednorm"} {
			x := termsOf(t, algorithm)
			update := single(x, "a", 3)
			results := []*Result{update}
			if x.Folds() {
				results = append(results, sumOf(t, x, single(x, "a", 3), single(x, "b", 3)))
			}
			for _, r := range results {
				r.Limits = limits
				r.Shares[0].TrainLoss, r.Shares[0].Loss = c.train, c.loss
				f := round.NewFold(x.Rules)
				err := x.Add(f, r, nil)
				what := fmt.Sprintf("%s, sum %v, losses %g and %g", algorithm, r.Sum, c.train, c.loss)
				if math.IsNaN(c.wantTrain) {
					if err == nil || !strings.Contains(err.Error(), "loss") || f.Len() != 0 {
						t.Errorf("%s: %v, %d counted", what, err, f.Len())
					}
					continue
				}
				if s := r.Shares[0]; err != nil || s.TrainLoss != c.wantTrain || s.Loss != c.wantLoss {
					t.Errorf("%s: %v, counted as %g and %g", what, err, s.TrainLoss, s.Loss)
				}
			}
		}
	}
}

// limited returns a client's result whose update and control variate consist of equal numbers
// of the given size, with the claimed norms.
func limited(x *Terms, client string, number, control float32, l fed.Limits) *Result {
	r := single(x, client, 3)
	numbers := slices.Repeat([]float32{number}, x.Shared)
	r.Shares[0].Norm = limit.Norm(numbers)
	if x.Rules.Needs.Control {
		c := slices.Repeat([]float32{control}, x.Shared)
		numbers, r.Shares[0].ControlNorm = append(numbers, c...), limit.Norm(c)
	}
	r.Numbers, r.Limits = round.AppendFloats(nil, numbers), l
	return r
}

// TestLimitSum checks sums from an agent that could omit the clipping. The server refuses a sum
// that clipped updates cannot have, and a sum that is longer than the norms that the agent
// claims, because limits are derived from these norms.
func TestLimitSum(t *testing.T) {
	for _, algorithm := range []string{"fedavg", "scaffold"} {
		x := termsOf(t, algorithm)
		one := math.Sqrt(float64(x.Shared)) // the norm of numbers of 1
		limits := fed.Limits{Norm: 0.5 * one, Control: 4 * one, Examples: 30, Loss: 1}
		// The sum is computed with the agent's own limits. Only the weights are those that
		// the server expects.
		own := fed.Limits{Examples: 30}
		two := func(a, b, control float32) *Result {
			r := sumOf(t, x, limited(x, "a", a, control, own), limited(x, "b", b, control, own))
			r.Limits = limits
			return r
		}
		spoiled := func(change func(r *Result)) *Result {
			r := two(0.5, 0.5, 4)
			change(r)
			return r
		}
		for name, c := range map[string]struct {
			result *Result
			want   string
		}{
			"at the limits":             {two(0.5, 0.5, 4), ""},
			"far within":                {two(0.01, -0.02, 0.1), ""},
			"opposite":                  {two(0.5, -0.5, 4), ""},
			"of an older agent":         {spoiled(func(r *Result) { r.Shares[0].Norm, r.Shares[1].Norm = 0, 0 }), ""},
			"one too long":              {two(0.5, 0.52, 4), "the sum of updates has the norm"},
			"at the bound":              {two(2, 2, 4), "the sum of updates has the norm"},
			"at the bound, negative":    {two(-2, -2, 4), "the sum of updates has the norm"},
			"an older agent, too long":  {func() *Result { r := two(0.5, 0.52, 4); r.Shares[1].Norm = 0; return r }(), "the sum of updates has the norm"},
			"longer than claimed":       {spoiled(func(r *Result) { r.Shares[1].Norm *= 0.9 }), "the sum of updates has the norm"},
			"norms claimed too large":   {func() *Result { r := two(2, 2, 4); r.Shares[1].Norm = 1e99; return r }(), "the sum of updates has the norm"},
			"more examples than count":  {spoiled(func(r *Result) { r.Shares[1].Examples = math.MaxInt }), ""},
			"fewer examples than count": {spoiled(func(r *Result) { r.Shares[1].Examples = 29 }), "of weight"},
		} {
			f := round.NewFold(x.Rules)
			err := x.Add(f, c.result, nil)
			checkRefusal(t, algorithm+", "+name, err, c.want, f.Len())
			for _, s := range c.result.Shares {
				if err == nil && (s.Norm > limits.Norm || s.ControlNorm > limits.Control) {
					t.Errorf("%s, %s: a norm of %g or %g is beyond %+v", algorithm, name, s.Norm, s.ControlNorm, limits)
				}
			}
		}
		if !x.Rules.Needs.Control {
			continue
		}
		for name, c := range map[string]struct {
			control float32
			want    string
		}{"at the limit": {-4, ""}, "too long": {4.1, "the sum of control variates"}, "at the bound": {1 << 12, "the sum of control variates"}} {
			f := round.NewFold(x.Rules)
			checkRefusal(t, "controls "+name, x.Add(f, two(0.5, 0.5, c.control), nil), c.want, f.Len())
		}
	}
}

func checkRefusal(t *testing.T, what string, err error, want string, counted int) {
	t.Helper()
	switch {
	case want == "" && (err != nil || counted != 2):
		t.Errorf("%s: %v, %d counted, want 2", what, err, counted)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want) || counted != 0):
		t.Errorf("%s: %v, %d counted, want %q", what, err, counted, want)
	}
}

// TestLimitUpdate checks that an individual update beyond the limits counts as if its client
// had clipped it.
func TestLimitUpdate(t *testing.T) {
	for _, algorithm := range []string{"fedavg", "scaffold"} {
		x := termsOf(t, algorithm)
		one := math.Sqrt(float64(x.Shared))
		limits := fed.Limits{Norm: 0.5 * one, Control: 4 * one, Examples: 30, Loss: 1}
		hostile := limited(x, "a", -2, 1<<20, limits)
		hostile.Shares[0].Examples = math.MaxInt
		// These are powers of two, so that clipping does not round.
		honest := limited(x, "a", -0.5, 4, limits)
		honest.Shares[0].Examples = 30
		folds := [2]*round.Fold{round.NewFold(x.Rules), round.NewFold(x.Rules)}
		for i, r := range []*Result{hostile, honest} {
			if err := x.Add(folds[i], r, nil); err != nil {
				t.Fatal(err)
			}
			if s := r.Shares[0]; s.Norm > limits.Norm || s.ControlNorm > limits.Control {
				t.Errorf("%s: %+v is beyond %+v", algorithm, s, limits)
			}
		}
		if stored(t, folds[0]) != stored(t, folds[1]) {
			t.Errorf("%s: the update is not what an honest client at the limits sends", algorithm)
		}
		numbers := hostile.Numbers
		if got := math.Float32frombits(binary.LittleEndian.Uint32(numbers)); got != -2 {
			t.Errorf("%s: the result itself has changed to %g", algorithm, got)
		}
	}
}

// TestEncodeLimits checks that limits do not change when they are encoded and decoded, and that
// a version without limits still has none.
func TestEncodeLimits(t *testing.T) {
	for _, want := range []fed.Limits{{}, {Norm: 0.125, Control: 3, Examples: 1 << 40, Loss: 1e3, Coordinate: 0.06}, {Coordinate: 1}} {
		b, err := EncodeLimits(want)
		if err != nil || (b == nil) != (want == fed.Limits{}) {
			t.Fatalf("%+v: %v, %v", want, b, err)
		}
		wire, err := DecodeLimits(b)
		if got := LimitsOf(wire); err != nil || got != want {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
	}
	if _, err := DecodeLimits([]byte{0xff}); err == nil {
		t.Error("limits from nonsense")
	}
}

// TestLongSum checks that a sum is refused if it is longer than its clients' limits or claimed
// norms allow. An agent therefore cannot hide a long update among short ones.
func TestLongSum(t *testing.T) {
	x := termsOf(t, "fedavg")
	// sum returns the sum of three updates with one number each, and the norms that they claim.
	sum := func(claim float64, values ...float32) *Result {
		f := round.NewFold(x.Rules)
		r := &Result{Version: 2, Sum: true}
		for i, v := range values {
			u := single(x, fmt.Sprint(i), 2)
			clear(u.Numbers)
			binary.LittleEndian.PutUint32(u.Numbers, math.Float32bits(v))
			u.Shares[0].Examples, u.Shares[0].Norm = 1, claim
			if err := x.Add(f, u, nil); err != nil {
				t.Fatal(err)
			}
			u.Shares[0].Norm = claim
			r.Shares = append(r.Shares, u.Shares...)
		}
		var err error
		if r.Numbers, err = round.AppendSums(nil, &f.Sums()[0]); err != nil {
			t.Fatal(err)
		}
		return r
	}
	limits := fed.Limits{Norm: 0.5, Examples: 1, Loss: 10}
	for name, c := range map[string]struct {
		r    *Result
		want string
	}{
		"honest":                        {sum(0.25, 0.25, 0.25, -0.25), ""},
		"at the limit":                  {sum(0.5, 0.5, 0.5, 0.5), ""},
		"one long update":               {sum(0.25, 0.125, 0.125, 1.5), "norms allow 0.75"},
		"long updates with long claims": {sum(9, 1, 1, 1), "norms allow 1.5"},
	} {
		c.r.Limits = limits
		err := x.Prepare(c.r)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestCoordinates checks that each number of an individual update is reduced to its limit, and
// that a sum is refused if one of its numbers is larger than the clients' limits allow, even if
// the sum's norm is small.
func TestCoordinates(t *testing.T) {
	x := termsOf(t, "fedavg")
	limits := fed.Limits{Coordinate: 0.5, Examples: 1}
	with := func(client string, number float32) *Result {
		r := single(x, client, 2)
		clear(r.Numbers)
		binary.LittleEndian.PutUint32(r.Numbers, math.Float32bits(number))
		r.Shares[0].Examples = 1
		return r
	}
	folds := [2]*round.Fold{round.NewFold(x.Rules), round.NewFold(x.Rules)}
	for i, number := range []float32{-1.75, -0.5} {
		r := with("a", number)
		r.Limits = limits
		if err := x.Add(folds[i], r, nil); err != nil {
			t.Fatal(err)
		}
		if r.Shares[0].Norm != 0.5 {
			t.Errorf("%g has the norm %g", number, r.Shares[0].Norm)
		}
	}
	if stored(t, folds[0]) != stored(t, folds[1]) {
		t.Error("the update is not what an honest client at the limit sends")
	}
	for name, c := range map[string]struct {
		numbers []float32
		want    string
	}{
		"at the limit":      {[]float32{0.5, 0.5}, ""},
		"one beyond":        {[]float32{1, -0.5}, ""}, // the sum is within its limit, and so hides the number
		"the sum is beyond": {[]float32{-0.75, -0.5}, "a number of the sum of updates is 1.25, but its clients' limits allow 1"},
	} {
		r := sumOf(t, x, with("a", c.numbers[0]), with("b", c.numbers[1]))
		r.Limits = limits
		f := round.NewFold(x.Rules)
		checkRefusal(t, name, x.Add(f, r, nil), c.want, f.Len())
	}
}
