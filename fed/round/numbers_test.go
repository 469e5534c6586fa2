package round

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"loadstar/fed"
	"loadstar/fed/exact"
)

// A decoded update equals the encoded one bit for bit, including NaNs and signs of zero.
func TestUpdateNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		control := rapid.Bool().Draw(t, "control")
		rules := foldRules(t, fed.Needs{Control: control}, 9)
		n := rapid.IntRange(0, 9).Draw(t, "length")
		draw := func(label string) []float32 {
			x := make([]float32, n)
			for i := range x {
				x[i] = math.Float32frombits(rapid.Uint32().Draw(t, label))
			}
			return x
		}
		u := &fed.Update{Delta: draw("delta")}
		if control {
			u.Control = draw("control")
		}
		b := rules.AppendUpdate([]byte("before"), u)
		if !bytes.HasPrefix(b, []byte("before")) {
			t.Fatal("AppendUpdate changed the existing bytes")
		}
		b = b[len("before"):]
		if len(b) != rules.UpdateBytes(n) {
			t.Fatalf("%d bytes, want %d", len(b), rules.UpdateBytes(n))
		}
		got := fed.Update{Client: "a", Examples: 3, Delta: make([]float32, rapid.IntRange(0, 12).Draw(t, "had")), Control: []float32{7}}
		if err := rules.ReadUpdate(&got, b, n); err != nil {
			t.Fatal(err)
		}
		if !sameBits(got.Delta, u.Delta) || !sameBits(got.Control, u.Control) || got.Client != "a" || got.Examples != 3 {
			t.Fatalf("%+v, want %+v", got, u)
		}
		for _, wrong := range []int{0, 1, len(b) - 1, len(b) + 1, len(b) + 4, 2 * len(b)} {
			if wrong == len(b) || wrong < 0 {
				continue
			}
			if err := rules.ReadUpdate(&got, make([]byte, wrong), n); err == nil {
				t.Fatalf("%d bytes were read as an update of %d weights", wrong, n)
			}
		}
	})
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// The encoding of an update is little-endian, with the changes of weights before those of
// control variates.
func TestUpdateLayout(t *testing.T) {
	rules := foldRules(t, fed.Needs{Control: true}, 9)
	b := rules.AppendUpdate(nil, &fed.Update{Delta: []float32{1, -2}, Control: []float32{0.5, 0}})
	if want := "\x00\x00\x80\x3f\x00\x00\x00\xc0\x00\x00\x00\x3f\x00\x00\x00\x00"; string(b) != want {
		t.Errorf("%x, want %x", b, want)
	}
}

func TestReadFloats(t *testing.T) {
	had := make([]float32, 0, 8)
	got := ReadFloats(had, AppendFloats(nil, []float32{3, 4}))
	if !slices.Equal(got, []float32{3, 4}) || &got[:1][0] != &had[:1][0] {
		t.Errorf("%v, or the given memory was not used", got)
	}
	if got = ReadFloats(got[:1], AppendFloats(nil, make([]float32, 9))); len(got) != 9 {
		t.Errorf("%d numbers from more than the given memory holds", len(got))
	}
	if got = ReadFloats(nil, []byte{1, 2, 3}); len(got) != 0 {
		t.Errorf("%v from three bytes", got)
	}
}

// If updates are summed in groups, and the sums are encoded, decoded and joined, the
// result equals the sum of the same updates added one by one.
func TestSumsEncodedAndJoined(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rules := foldRules(t, fed.Needs{Control: rapid.Bool().Draw(t, "control")}, 20)
		from := make([]float32, foldLen)
		one, all := NewFold(rules), NewFold(rules)
		for range rapid.IntRange(0, 4).Draw(t, "groups") {
			group := NewFold(rules)
			for c := range rapid.IntRange(0, 5).Draw(t, "updates") {
				u := drawUpdate(t, c)
				for _, f := range []*Fold{one, group} {
					if err := f.Add(u, from); err != nil {
						t.Fatal(err)
					}
				}
			}
			for _, s := range group.Sums() {
				b, err := AppendSums(nil, &s)
				if err != nil {
					t.Fatal(err)
				}
				n, weight, err := all.AddSums(s.Version, foldLen, b)
				if err != nil || n != s.Delta.Updates() || weight != s.Delta.Weight() {
					t.Fatalf("%d updates of weight %d, %v", n, weight, err)
				}
			}
		}
		if !show(t, all).equal(show(t, one)) {
			t.Fatalf("%v, want %v", show(t, all), show(t, one))
		}
	})
}

// sumBytes returns the encoded sum of two updates.
func sumBytes(t testing.TB, rules Rules) []byte {
	t.Helper()
	f := NewFold(rules)
	for range 2 {
		u := &fed.Update{Version: 4, Examples: 7, Delta: []float32{1, -2, 0.5}, Control: []float32{8, 0, -1}}
		if err := f.Add(u, make([]float32, foldLen)); err != nil {
			t.Fatal(err)
		}
	}
	b, err := AppendSums(nil, &f.Sums()[0])
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestAddSumsRejects(t *testing.T) {
	put := func(at int, v int64) func([]byte) []byte {
		return func(b []byte) []byte {
			binary.LittleEndian.PutUint64(b[at:], uint64(v))
			return b
		}
	}
	const half = 24 + 8*foldLen // length of either half of a sum with control variates
	for name, c := range map[string]struct {
		spoil func([]byte) []byte
		want  string
	}{
		"nothing":              {func([]byte) []byte { return nil }, "bytes"},
		"one half":             {func(b []byte) []byte { return b[:half] }, "bytes"},
		"too short":            {func(b []byte) []byte { return b[:len(b)-1] }, ""},
		"too long":             {func(b []byte) []byte { return append(b, 0) }, "bytes"},
		"other scale":          {put(0, 3), "fractional bits"},
		"control other scale":  {put(half, 3), "fractional bits"},
		"more than the scale":  {put(8, 10), "10 updates"},
		"fewer than none":      {put(8, -1), "-1 updates"},
		"too light":            {put(16, 1), "weight of 1"},
		"too heavy":            {put(16, 201), "weight of 201"},
		"a number too large":   {put(24, math.MaxInt64), "beyond the bound"},
		"a number too small":   {put(24+16, math.MinInt64), "beyond the bound"},
		"control too large":    {put(half+24, math.MaxInt64/2), "beyond the bound"},
		"control too heavy":    {put(half+16, 3), "weight of 3"},
		"control of others":    {func(b []byte) []byte { return put(half+8, 1)(put(half+16, 1)(put(half+24, 0)(b))) }, "1 control variates"},
		"control of no number": {func(b []byte) []byte { return put(half+8, 0)(b) }, "0 updates"},
	} {
		rules := foldRules(t, fed.Needs{Control: true}, 9)
		f := NewFold(rules)
		if _, _, err := f.AddSums(4, foldLen, sumBytes(t, rules)); err != nil {
			t.Fatal(err)
		}
		before := show(t, f)
		if _, _, err := f.AddSums(4, foldLen, c.spoil(sumBytes(t, rules))); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if _, _, err := f.AddSums(1, foldLen, c.spoil(sumBytes(t, rules))); err == nil {
			t.Errorf("%s: accepted as another version", name)
		}
		if got := show(t, f); !got.equal(before) {
			t.Errorf("%s: the error changed the fold to %v from %v", name, got, before)
		}
		if _, _, err := f.AddSums(4, foldLen, sumBytes(t, rules)); err != nil || f.Len() != 4 {
			t.Errorf("%s: a valid sum after the error: %v", name, err)
		}
	}
	each := foldRules(t, fed.Needs{EachUpdate: true}, 9)
	if _, _, err := NewFold(each).AddSums(4, foldLen, sumBytes(t, foldRules(t, fed.Needs{}, 9))); err == nil || !strings.Contains(err.Error(), "each update") {
		t.Error(err)
	}
}

// A sum that exceeds the maximum number of updates leaves the fold unchanged, including
// its control variates.
func TestAddSumsWhenFull(t *testing.T) {
	rules := foldRules(t, fed.Needs{Control: true}, 3)
	f, b := NewFold(rules), sumBytes(t, rules)
	if _, _, err := f.AddSums(4, foldLen, b); err != nil {
		t.Fatal(err)
	}
	before := show(t, f)
	if _, _, err := f.AddSums(4, foldLen, b); !errors.Is(err, exact.ErrFull) {
		t.Error(err)
	}
	if got := show(t, f); !got.equal(before) {
		t.Errorf("%v, before %v", got, before)
	}
	if _, _, err := f.AddSums(5, foldLen, b); err != nil {
		t.Errorf("a sum of another version should be accepted: %v", err)
	}
}

// checkFold fails if a fold cannot be merged or encoded after decoding untrusted bytes.
func checkFold(t *testing.T, f *Fold, before shown, err error) {
	t.Helper()
	after := show(t, f)
	if err != nil {
		if !after.equal(before) {
			t.Errorf("%v after the error %v, before %v", after, err, before)
		}
		return
	}
	n := 0
	for _, s := range f.Sums() {
		n += s.Delta.Updates()
		total := make([]float64, foldLen)
		s.Delta.Total(total)
		for _, x := range total {
			if math.Abs(x) > 2*float64(s.Delta.Weight()) {
				t.Errorf("the sum has %g at a total weight of %d, but coordinates are within ±2", x, s.Delta.Weight())
			}
		}
	}
	if n != f.Len() {
		t.Errorf("the sums have %d updates, the fold counted %d", n, f.Len())
	}
}

func FuzzAddSums(f *testing.F) {
	for _, control := range []bool{false, true} {
		b := sumBytes(f, foldRules(f, fed.Needs{Control: control}, 9))
		f.Add(4, control, b)
		f.Add(5, control, b)
		f.Add(4, !control, b)
		f.Add(4, control, b[:len(b)/2])
		rng := rand.New(rand.NewPCG(1, 2))
		for range 20 {
			spoiled := slices.Clone(b)
			spoiled[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
			f.Add(-1, control, spoiled)
		}
	}
	f.Fuzz(func(t *testing.T, version int, control bool, b []byte) {
		rules := foldRules(t, fed.Needs{Control: control}, 9)
		fold := NewFold(rules)
		if _, _, err := fold.AddSums(4, foldLen, sumBytes(t, rules)); err != nil {
			t.Fatal(err)
		}
		before := show(t, fold)
		_, _, err := fold.AddSums(version, foldLen, b)
		checkFold(t, fold, before, err)
	})
}

func FuzzReadUpdate(f *testing.F) {
	rules := foldRules(f, fed.Needs{Control: true}, 9)
	good := rules.AppendUpdate(nil, &fed.Update{Delta: []float32{1, -2, 0.5}, Control: []float32{8, 0, -1}})
	f.Add(7, true, good)
	f.Add(7, false, good[:12])
	f.Add(0, true, good[:12])
	f.Add(101, false, AppendFloats(nil, []float32{float32(math.NaN()), float32(math.Inf(1)), 3}))
	f.Fuzz(func(t *testing.T, examples int, control bool, b []byte) {
		rules := foldRules(t, fed.Needs{Control: control}, 9)
		fold := NewFold(rules)
		before := show(t, fold)
		u := fed.Update{Version: 1, Examples: examples}
		err := rules.ReadUpdate(&u, b, foldLen)
		if err == nil {
			if got := rules.AppendUpdate(nil, &u); !bytes.Equal(got, b) {
				t.Errorf("%x was decoded as %x", b, got)
			}
			err = fold.Add(&u, make([]float32, foldLen))
		}
		checkFold(t, fold, before, err)
	})
}
