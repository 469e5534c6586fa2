package exact

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func scaleOf(t interface{ Fatal(...any) }, bound float64, maxWeight, updates int64) Scale {
	s, err := NewScale(bound, maxWeight, updates)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestNewScale compares fraction with a manual calculation: 62 minus the bits of the bound (the
// least e with bound < 2^e), of the weight and of the number of updates. fraction is at most
// 48, and fraction plus the bits of the bound is at most 51.
func TestNewScale(t *testing.T) {
	for _, c := range []struct {
		bound            float64
		weights, updates int64
		fraction         int // 0 if NewScale must return an error
	}{
		{1, 1, 1, 48},                    // 62-1-1-1 = 59, capped
		{1, 100_000, 1000, 34},           // 62-1-17-10
		{10, 100_000, 1000, 31},          // 62-4-17-10
		{10, 1, 1, 47},                   // 62-4-1-1 = 56, capped at 51-4
		{1. / 16, 1 << 20, 1 << 20, 23},  // 62+3-21-21
		{1024, 1<<17 - 1, 1<<17 - 1, 17}, // 62-11-17-17
		{1024, 1<<18 - 1, 1<<17 - 1, 16},
		{1024, 1<<18 - 1, 1<<18 - 1, 0},
		{0x1p-32, 1, 1, 48}, // 17 bits remain for the number
		{0x1p-33, 1, 1, 48}, // 16
		{0x1p-34, 1, 1, 0},
		{0x1p-20, math.MaxInt64, 1, 0}, // the sum of the weights would overflow
		{0, 1, 1, 0},
		{-1, 1, 1, 0},
		{1e-60, 1, 1, 0},
		{1e60, 1, 1, 0},
		{math.NaN(), 1, 1, 0},
		{math.Inf(1), 1, 1, 0},
		{1, 0, 1, 0},
		{1, 1, 0, 0},
		{1, math.MinInt64, 1, 0},
	} {
		s, err := NewScale(c.bound, c.weights, c.updates)
		if s.Fraction() != c.fraction || (err == nil) != (c.fraction != 0) {
			t.Errorf("NewScale(%g, %d, %d) has %d bits, %v; want %d", c.bound, c.weights, c.updates, s.Fraction(), err, c.fraction)
		}
	}
}

// TestAdd uses units of u = 2^-17, because (1024, 2^17-1, 2^17-1) leaves 17 fractional bits.
//
//	.5u and 1.5u lie halfway between two units and round to even: 0 and 2
//	-.5u, -1.5u: 0 and -2
//	.75u: 1;  3: 393216
//
// All are added with weight 5, then again with weight 2.
func TestAdd(t *testing.T) {
	scale := scaleOf(t, 1024, 1<<17-1, 1<<17-1)
	const u = 0x1p-17
	x := []float32{.5 * u, 1.5 * u, -.5 * u, -1.5 * u, .75 * u, 3, -1024, float32(math.Copysign(0, -1)), 1e-45}
	want := []int64{0, 2, 0, -2, 1, 393216, -1024 << 17, 0, 0}
	s := NewSum(scale, len(x))
	for _, weight := range []int64{5, 2} {
		if err := s.Add(weight, x); err != nil {
			t.Fatal(err)
		}
	}
	total := make([]float64, len(x))
	s.Total(total)
	for i := range want {
		if s.v[i] != 7*want[i] || total[i] != float64(7*want[i])*u {
			t.Errorf("%g is counted as %d, %g; want %d", x[i], s.v[i], total[i], 7*want[i])
		}
	}
	if largest, rounding := s.Largest(); largest != 7*1024 || rounding != 7*u/2 {
		t.Errorf("the largest number is %g, to %g", largest, rounding)
	}
	if s.Weight() != 7 || s.Updates() != 2 || s.Len() != len(x) {
		t.Errorf("weight %d, %d updates, length %d", s.Weight(), s.Updates(), s.Len())
	}
	s.Reset()
	s.Total(total)
	if s.Weight() != 0 || s.Updates() != 0 || slices.ContainsFunc(total, func(x float64) bool { return x != 0 }) {
		t.Errorf("after Reset: %v", s)
	}
}

// TestRounding checks at every scale that rounding by addition gives the same result as
// math.RoundToEven.
func TestRounding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bound := math.Ldexp(rapid.Float64Range(.5, 1).Draw(t, "bound"), rapid.IntRange(-30, 40).Draw(t, "exponent"))
		scale, err := NewScale(bound, rapid.Int64Range(1, 1<<30).Draw(t, "weight"), rapid.Int64Range(1, 1<<20).Draw(t, "updates"))
		if err != nil {
			t.Skip(err)
		}
		x := rapid.Float32Range(-scale.bound, scale.bound).Draw(t, "x")
		want := int64(math.RoundToEven(math.Ldexp(float64(x), scale.fraction)))
		if got := count(x, scale.shift()); got != want {
			t.Fatalf("%g at %d bits is %d, want %d", x, scale.fraction, got, want)
		}
	})
}

// TestFull checks that nothing overflows with the maximum number of updates, all with the
// largest weight and the largest numbers.
func TestFull(t *testing.T) {
	for _, bound := range []float64{.1, 1, 1023.99994, 1024} {
		const most, updates = 1<<20 - 1, 255
		scale := scaleOf(t, bound, most, updates)
		s, b := NewSum(scale, 2), float32(bound)
		for range updates {
			if err := s.Add(most, []float32{b, -b}); err != nil {
				t.Fatal(err)
			}
		}
		total := make([]float64, 2)
		s.Total(total)
		want := most * updates * float64(b)
		if math.Abs(total[0]-want) > most*updates*math.Ldexp(1, -scale.fraction-1)+1e-15*want || total[1] != -total[0] {
			t.Errorf("±%g: %v, want %v", bound, total, want)
		}
		if err := s.Add(1, []float32{0, 0}); !errors.Is(err, ErrFull) {
			t.Errorf("one update too many: %v", err)
		}
		saved, _ := s.MarshalBinary()
		if err := NewSum(scale, 2).UnmarshalBinary(saved); err != nil { // valid, because it is at the limit
			t.Errorf("±%g: %v", bound, err)
		}
	}
}

// TestRejected checks that Add and Check give the same answers, and that a failed Add
// does not change the sum.
func TestRejected(t *testing.T) {
	scale := scaleOf(t, .1, 100, 10)
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, c := range []struct {
		name   string
		weight int64
		x      []float32
		want   error
	}{
		{"the bound itself", 100, []float32{0, .1, -.1}, nil},
		{"above the bound", 1, []float32{0, .1, math.Nextafter32(.1, 1)}, ErrBound},
		{"below the bound", 1, []float32{0, -math.Nextafter32(.1, 1), .1}, ErrBound},
		{"NaN", 1, []float32{.05, 0, nan}, ErrFinite},
		{"negative NaN", 1, []float32{.05, float32(math.Copysign(math.NaN(), -1)), 0}, ErrFinite},
		{"infinite", 1, []float32{.05, inf, 0}, ErrFinite},
		{"minus infinite", 1, []float32{-inf, 0, 0}, ErrFinite},
		{"no weight", 0, []float32{0, 0, 0}, ErrWeight},
		{"negative weight", -1, []float32{0, 0, 0}, ErrWeight},
		{"too heavy", 101, []float32{0, 0, 0}, ErrWeight},
		{"short", 1, []float32{0, 0}, ErrShape},
		{"long", 1, []float32{0, 0, 0, 0}, ErrShape},
	} {
		s := NewSum(scale, 3)
		if err := s.Add(7, []float32{.01, .02, .03}); err != nil {
			t.Fatal(err)
		}
		before, _ := s.MarshalBinary()
		checked := s.Check(c.weight, c.x)
		after, _ := s.MarshalBinary()
		if !bytes.Equal(before, after) {
			t.Errorf("%s: Check changed the sum", c.name)
		}
		added := s.Add(c.weight, c.x)
		if !errors.Is(checked, c.want) || !errors.Is(added, c.want) || (c.want == nil) != (added == nil) {
			t.Errorf("%s: Check says %v and Add %v, want %v", c.name, checked, added, c.want)
		}
		if added != nil && added.Error() != checked.Error() {
			t.Errorf("%s: Check says %v and Add %v", c.name, checked, added)
		}
		after, _ = s.MarshalBinary()
		if c.want != nil && !bytes.Equal(before, after) {
			t.Errorf("%s: a rejected update changed the sum", c.name)
		}
	}
	if err := NewSum(Scale{}, 1).Add(1, []float32{0}); err == nil {
		t.Error("a zero scale accepts updates")
	}
}

func TestMergeRejected(t *testing.T) {
	scale := scaleOf(t, 1, 10, 3)
	sum := func(scale Scale, length, updates int) *Sum {
		s := NewSum(scale, length)
		for range updates {
			if err := s.Add(2, make([]float32, length)); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	for _, c := range []struct {
		name string
		o    *Sum
		want error
	}{
		{"fits", sum(scale, 2, 1), nil},
		{"one too many", sum(scale, 2, 2), ErrFull},
		{"another length", sum(scale, 3, 1), ErrShape},
		{"another bound", sum(scaleOf(t, .9, 10, 3), 2, 1), ErrShape},
		{"another weight", sum(scaleOf(t, 1, 11, 3), 2, 1), ErrShape},
	} {
		s := sum(scale, 2, 2)
		if err := s.Merge(c.o); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		} else if err != nil && (s.Updates() != 2 || s.Weight() != 4) {
			t.Errorf("%s: the error changed the sum", c.name)
		}
	}
}

type update struct {
	weight int64
	x      []float32
}

func drawUpdates(t *rapid.T, length int) []update {
	number := rapid.Float32Range(-2, 2)
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) update {
		return update{rapid.Int64Range(1, 1000).Draw(t, "weight"), rapid.SliceOfN(number, length, length).Draw(t, "x")}
	}), 1, 20).Draw(t, "updates")
}

// TestOrder checks that the bits of a sum do not depend on the order of its updates or on how
// they are split into partial sums that are encoded, decoded and merged.
func TestOrder(t *testing.T) {
	const length = 3
	scale := scaleOf(t, 2, 1000, 20)
	rapid.Check(t, func(t *rapid.T) {
		updates := drawUpdates(t, length)
		whole := NewSum(scale, length)
		for _, u := range updates {
			if err := whole.Add(u.weight, u.x); err != nil {
				t.Fatal(err)
			}
		}
		parts := make([]*Sum, rapid.IntRange(1, 5).Draw(t, "parts"))
		for i := range parts {
			parts[i] = NewSum(scale, length)
		}
		for _, u := range rapid.Permutation(updates).Draw(t, "order") {
			if err := parts[rapid.IntRange(0, len(parts)-1).Draw(t, "part")].Add(u.weight, u.x); err != nil {
				t.Fatal(err)
			}
		}
		merged := NewSum(scale, length)
		for _, p := range rapid.Permutation(parts).Draw(t, "merging") {
			b, _ := p.MarshalBinary()
			sent := NewSum(scale, length)
			if err := sent.UnmarshalBinary(b); err != nil {
				t.Fatal(err)
			}
			if err := merged.Merge(sent); err != nil {
				t.Fatal(err)
			}
		}
		a, _ := whole.MarshalBinary()
		b, _ := merged.MarshalBinary()
		if !bytes.Equal(a, b) {
			t.Fatalf("%v as one sum, %v in parts", whole, merged)
		}
	})
}

// TestMeanOfOne checks the mean of a single update. The mean may differ from the update by the
// rounding to the scale (half a unit) and by two roundings to float64.
func TestMeanOfOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bound := math.Ldexp(1, rapid.IntRange(-20, 20).Draw(t, "exponent"))
		maxWeight := rapid.Int64Range(1, 1<<20).Draw(t, "max weight")
		scale, err := NewScale(bound, maxWeight, 100)
		if err != nil {
			t.Skip(err)
		}
		x := rapid.SliceOf(rapid.Float32Range(-float32(bound), float32(bound))).Draw(t, "x")
		weight := rapid.Int64Range(1, maxWeight).Draw(t, "weight")
		s, total := NewSum(scale, len(x)), make([]float64, len(x))
		if err := s.Add(weight, x); err != nil {
			t.Fatal(err)
		}
		s.Total(total)
		for i := range x {
			got, want := total[i]/float64(s.Weight()), float64(x[i])
			if math.Abs(got-want) > math.Ldexp(1, -scale.Fraction()-1)+0x1p-52*math.Abs(want) {
				t.Fatalf("the mean of %v is %v, at %d bits", want, got, scale.Fraction())
			}
		}
	})
}

// TestWeightIsRepetition checks that adding an update once with weight n is the same as adding
// it n times with weight 1.
func TestWeightIsRepetition(t *testing.T) {
	const length = 2
	scale := scaleOf(t, 2, 1000, 20000)
	rapid.Check(t, func(t *rapid.T) {
		heavy, many := NewSum(scale, length), NewSum(scale, length)
		for _, u := range drawUpdates(t, length) {
			if err := heavy.Add(u.weight, u.x); err != nil {
				t.Fatal(err)
			}
			for range u.weight {
				if err := many.Add(1, u.x); err != nil {
					t.Fatal(err)
				}
			}
		}
		if heavy.Weight() != many.Weight() || !slices.Equal(heavy.v, many.v) {
			t.Fatalf("%v by weight, %v by number", heavy, many)
		}
	})
}

func TestUnmarshalRejected(t *testing.T) {
	scale := scaleOf(t, 1, 10, 3) // 48 fractional bits
	encode := func(numbers ...int64) []byte {
		var b []byte
		for _, n := range numbers {
			b = binary.LittleEndian.AppendUint64(b, uint64(n))
		}
		return b
	}
	for _, c := range []struct {
		name string
		b    []byte
		want error
	}{
		{"fits", encode(48, 2, 20, 20<<48, -20<<48), nil},
		{"empty", encode(48, 0, 0, 0, 0), nil},
		{"nonzero without updates", encode(48, 0, 0, 1, 0), ErrBound},
		{"above the bound", encode(48, 2, 20, 20<<48+1, 0), ErrBound},
		{"below the bound", encode(48, 2, 20, 0, -20<<48-1), ErrBound},
		{"least integer", encode(48, 2, 20, 0, math.MinInt64), ErrBound},
		{"too many", encode(48, 4, 4, 0, 0), ErrWeight},
		{"negative", encode(48, -1, 0, 0, 0), ErrWeight},
		{"too light", encode(48, 2, 1, 0, 0), ErrWeight},
		{"too heavy", encode(48, 2, 21, 0, 0), ErrWeight},
		{"another scale", encode(47, 2, 20, 0, 0), ErrShape},
		{"short", encode(48, 2, 20, 0), ErrShape},
		{"long", encode(48, 2, 20, 0, 0, 0), ErrShape},
		{"nothing", nil, ErrShape},
	} {
		s := NewSum(scale, 2)
		if err := s.Add(3, []float32{.5, -.5}); err != nil {
			t.Fatal(err)
		}
		before, _ := s.MarshalBinary()
		err := s.UnmarshalBinary(c.b)
		after, _ := s.MarshalBinary()
		switch {
		case !errors.Is(err, c.want) || (err == nil) != (c.want == nil):
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		case err == nil && !bytes.Equal(after, c.b):
			t.Errorf("%s: the decoded sum differs from the encoded one", c.name)
		case err != nil && !bytes.Equal(after, before):
			t.Errorf("%s: the error changed the sum", c.name)
		}
	}
}

// FuzzSumUnmarshal decodes arbitrary bytes. If they are accepted, encoding the sum must give
// the same bytes, and adding to the sum and merging it must not overflow.
func FuzzSumUnmarshal(f *testing.F) {
	scale := scaleOf(f, .1, 1000, 8)
	full := NewSum(scale, 3)
	for _, weight := range []int64{1, 1000, 17} {
		if err := full.Add(weight, []float32{.1, -.1, 1e-9}); err != nil {
			f.Fatal(err)
		}
	}
	seed, _ := full.MarshalBinary()
	f.Add(seed)
	f.Add(seed[:len(seed)-1])
	f.Add(make([]byte, header+8*3))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := NewSum(scale, 3)
		if s.UnmarshalBinary(b) != nil {
			if s.Updates() != 0 || s.Weight() != 0 || !slices.Equal(s.v, []int64{0, 0, 0}) {
				t.Fatal("rejected bytes changed the sum")
			}
			return
		}
		if back, _ := s.MarshalBinary(); !bytes.Equal(back, b) {
			t.Fatalf("%x was written back as %x", b, back)
		}
		before := slices.Clone(s.v)
		if s.Add(1000, []float32{.1, -.1, .1}) == nil && (s.v[0] <= before[0] || s.v[1] >= before[1] || s.v[2] <= before[2]) {
			t.Fatalf("%v grew to %v", before, s.v)
		}
		for s.Updates() > 0 && 2*s.Updates() <= 8 {
			before := slices.Clone(s.v)
			if err := s.Merge(s); err != nil {
				t.Fatal(err)
			}
			for i, v := range s.v {
				if v/2 != before[i] {
					t.Fatalf("twice %v is %v", before, s.v)
				}
			}
		}
		if again, _ := s.MarshalBinary(); NewSum(scale, 3).UnmarshalBinary(again) != nil {
			t.Fatal("a sum of accepted updates is rejected")
		}
	})
}
