package round

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"loadstar/fed"
	"loadstar/fed/exact"
)

const foldLen = 3

func foldRules(t interface{ Fatal(...any) }, needs fed.Needs, updates int64) Rules {
	scale, err := exact.NewScale(2, 100, updates)
	if err != nil {
		t.Fatal(err)
	}
	control, err := exact.NewScale(8, 1, updates)
	if err != nil {
		t.Fatal(err)
	}
	return Rules{Needs: needs, Scale: scale, Control: control, Weight: func(n int) int64 { return int64(n) }}
}

func drawUpdate(t *rapid.T, client int) *fed.Update {
	numbers := func(bound float32, label string) []float32 {
		return rapid.SliceOfN(rapid.Float32Range(-bound, bound), foldLen, foldLen).Draw(t, label)
	}
	return &fed.Update{
		Client: fed.ClientID(rune('a' + client)), Version: rapid.IntRange(3, 5).Draw(t, "version"),
		Examples: rapid.IntRange(1, 100).Draw(t, "examples"), Delta: numbers(2, "delta"), Control: numbers(8, "control"),
	}
}

// shown contains the parts of a fold that an aggregator can read.
type shown struct {
	versions []int
	sums     []string // encoded
	updates  []fed.ClientID
	n        int
}

func show(t interface{ Fatal(...any) }, f *Fold) shown {
	sums, updates := f.contents()
	s := shown{n: f.Len()}
	for _, x := range sums {
		s.versions = append(s.versions, x.Version)
		for _, part := range []*exact.Sum{x.Delta, x.Control} {
			if part == nil {
				continue
			}
			b, err := part.MarshalBinary()
			if err != nil {
				t.Fatal(err)
			}
			s.sums = append(s.sums, string(b))
		}
	}
	for _, u := range updates {
		s.updates = append(s.updates, u.Client)
	}
	return s
}

func (s shown) equal(o shown) bool {
	return slices.Equal(s.versions, o.versions) && slices.Equal(s.sums, o.sums) && slices.Equal(s.updates, o.updates) && s.n == o.n
}

// The joined fold does not depend on how the updates are distributed over folds, or on the
// order in which the folds are joined.
func TestFoldJoinsInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		needs := fed.Needs{EachUpdate: rapid.Bool().Draw(t, "each"), Control: rapid.Bool().Draw(t, "control")}
		rules := foldRules(t, needs, 20)
		from := make([]float32, foldLen)
		one := NewFold(rules)
		folds := make([]*Fold, rapid.IntRange(1, 4).Draw(t, "folds"))
		for i := range folds {
			folds[i] = NewFold(rules)
			if rapid.Bool().Draw(t, "used before") { // contents from before a Reset must not matter
				if err := folds[i].Add(drawUpdate(t, 25), from); err != nil {
					t.Fatal(err)
				}
				folds[i].Reset()
			}
		}
		for c := range rapid.IntRange(0, 12).Draw(t, "updates") {
			u := drawUpdate(t, c)
			if err := one.Add(u, from); err != nil {
				t.Fatal(err)
			}
			if err := rapid.SampledFrom(folds).Draw(t, "fold").Add(u, from); err != nil {
				t.Fatal(err)
			}
		}
		all := NewFold(rules)
		for _, f := range rapid.Permutation(folds).Draw(t, "order") {
			if err := all.Join(f); err != nil {
				t.Fatal(err)
			}
		}
		if !show(t, all).equal(show(t, one)) {
			t.Fatalf("%v, want %v", show(t, all), show(t, one))
		}
	})
}

// A rejected update leaves the fold unchanged, no matter which field of the update is
// invalid.
func TestFoldRejects(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for name, c := range map[string]struct {
		spoil func(*fed.Update)
		want  error
	}{
		"too large":          {func(u *fed.Update) { u.Delta[2] = 2.01 }, exact.ErrBound},
		"NaN":                {func(u *fed.Update) { u.Delta[1] = nan }, exact.ErrFinite},
		"infinite":           {func(u *fed.Update) { u.Delta[0] = -inf }, exact.ErrFinite},
		"too heavy":          {func(u *fed.Update) { u.Examples = 101 }, exact.ErrWeight},
		"without examples":   {func(u *fed.Update) { u.Examples = 0 }, exact.ErrWeight},
		"control too large":  {func(u *fed.Update) { u.Control[2] = -9 }, exact.ErrBound},
		"control NaN":        {func(u *fed.Update) { u.Control[0] = nan }, exact.ErrFinite},
		"control missing":    {func(u *fed.Update) { u.Control = nil }, exact.ErrShape},
		"control too long":   {func(u *fed.Update) { u.Control = make([]float32, 4) }, exact.ErrShape},
		"too short":          {func(u *fed.Update) { u.Delta = u.Delta[:2] }, nil},
		"too long":           {func(u *fed.Update) { u.Delta = make([]float32, 4) }, nil},
		"of another version": {func(u *fed.Update) { u.Version, u.Delta[2] = 1, 3 }, exact.ErrBound},
	} {
		f := NewFold(foldRules(t, fed.Needs{Control: true, EachUpdate: true}, 9))
		from := make([]float32, foldLen)
		good := func(client fed.ClientID) *fed.Update {
			return &fed.Update{Client: client, Version: 4, Examples: 7, Delta: []float32{1, -2, 0.5}, Control: []float32{8, 0, -1}}
		}
		if err := f.Add(good("a"), from); err != nil {
			t.Fatal(err)
		}
		before := show(t, f)
		bad := good("b")
		c.spoil(bad)
		err := f.Add(bad, from)
		if err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if got := show(t, f); !got.equal(before) {
			t.Errorf("%s: the error changed the fold to %v from %v", name, got, before)
		}
		if err := f.Add(good("c"), from); err != nil || f.Len() != 2 {
			t.Errorf("%s: a valid update after the error: %v", name, err)
		}
	}
}

func TestFoldWhenFull(t *testing.T) {
	f := NewFold(foldRules(t, fed.Needs{Control: true}, 2))
	u := &fed.Update{Client: "a", Examples: 1, Delta: []float32{1, 1, 1}, Control: []float32{1, 1, 1}}
	from := make([]float32, foldLen)
	for i, want := range []error{nil, nil, exact.ErrFull} {
		if err := f.Add(u, from); !errors.Is(err, want) {
			t.Errorf("update %d: %v", i, err)
		}
	}
	if s := show(t, f); s.n != 2 || f.sums[0].Control.Updates() != 2 {
		t.Error(s)
	}
	if err := f.Join(f); err == nil || !strings.Contains(err.Error(), "maximum number of updates") {
		t.Error(err)
	}
}

// If the aggregator does not need individual updates, the fold stores none, and its memory
// does not grow.
func TestFoldStoresNoUpdates(t *testing.T) {
	f := NewFold(foldRules(t, fed.Needs{}, 9))
	u := &fed.Update{Client: "a", Examples: 1, Delta: []float32{1, 1, 1}}
	from := make([]float32, foldLen)
	if err := f.Add(u, from); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(5, func() { f.Add(u, from) }); n != 0 { // as above
		t.Errorf("%v allocations", n)
	}
	u.Delta[0] = 0 // the fold must not have retained this slice
	sums, updates := f.contents()
	total := make([]float64, foldLen)
	sums[0].Delta.Total(total)
	if len(updates) != 0 || total[0] != float64(f.Len()) {
		t.Error(updates, total)
	}
}
