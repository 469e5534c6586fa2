package aggregate

import (
	"cmp"
	"encoding"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"loadstar/fed"
	"loadstar/fed/exact"
	"loadstar/internal/stateformat"

	"pgregory.net/rapid"
)

// aggregators lists every aggregator of the package, with different settings.
var aggregators = []struct {
	name string
	new  func() fed.Aggregator
}{
	{"mean", func() fed.Aggregator { return Mean{} }},
	{"fedbuff", func() fed.Aggregator { return Buffered{} }},
	{"fedbuff polynomial", func() fed.Aggregator { return Buffered{Polynomial(.5)} }},
	{"fedasync", func() fed.Aggregator { return Async{Alpha: .6} }},
	{"fedasync hinge", func() fed.Aggregator { return Async{.6, Hinge(10, 1)} }},
	{"fednorm", func() fed.Aggregator { return FedNorm{} }},
	{"fednorm max-lambda examples", func() fed.Aggregator { return FedNorm{PeakMaxLambda: true, ByExamples: true} }},
	{"fedavgadaptive", func() fed.Aggregator { return &PerClient{Beta1: .9, Epsilon: 1e-3} }},
	{"fedavgadaptive signs", func() fed.Aggregator { return &PerClient{} }},
	{"fedsim", func() fed.Aggregator { return FedSIM{Delta: .25, Beta: .25, Rounds: 3} }},
	{"fedsim server-gradient", func() fed.Aggregator { return FedSIM{Delta: .25, Beta: .25, ServerGradient: true} }},
	{"fedsim first-order", func() fed.Aggregator { return FedSIM{Beta: .25, FirstOrder: true} }},
	{"scaffold", func() fed.Aggregator { return &Scaffold{} }},
}

type tester interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// cubic is a fed.ServerData with the loss sum(w^4)/4, whose gradient is w^3.
type cubic struct{}

func (cubic) Gradient(g, w []float32) error {
	for i, x := range w {
		g[i] = x * x * x
	}
	return nil
}

func newScale(t tester) exact.Scale {
	t.Helper()
	s, err := exact.NewScale(16, 1000, 100)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// newMerge returns a merge of the given updates. It sums them by version, in an order that
// depends on parts, and sorts the individual updates.
func newMerge(t tester, shared []float32, version int, updates []fed.Received, uniform bool, parts int) *fed.Merge {
	t.Helper()
	m := &fed.Merge{Version: version, Shared: shared, Fleet: 10, Server: cubic{}}
	scale := newScale(t)
	for i := range max(parts, 1) {
		for k, u := range updates {
			if k%max(parts, 1) != i {
				continue
			}
			weight := int64(u.Examples)
			if uniform {
				weight = 1
			}
			part := fed.Sums{Version: u.Version, Delta: exact.NewSum(scale, len(shared)), Control: exact.NewSum(scale, len(shared))}
			if err := part.Delta.Add(weight, u.Delta); err != nil {
				t.Fatal(err)
			}
			if u.Control == nil {
				u.Control = make([]float32, len(shared))
			}
			if err := part.Control.Add(weight, u.Control); err != nil {
				t.Fatal(err)
			}
			at, found := slices.BinarySearchFunc(m.Sums, u.Version, func(s fed.Sums, v int) int { return cmp.Compare(s.Version, v) })
			if !found {
				m.Sums = slices.Insert(m.Sums, at, part)
				continue
			}
			if err := part.Delta.Merge(m.Sums[at].Delta); err != nil {
				t.Fatal(err)
			}
			if err := part.Control.Merge(m.Sums[at].Control); err != nil {
				t.Fatal(err)
			}
			m.Sums[at] = part
		}
	}
	m.Updates = slices.Clone(updates)
	slices.SortFunc(m.Updates, func(a, b fed.Received) int {
		return cmp.Or(cmp.Compare(a.Client, b.Client), cmp.Compare(a.Version, b.Version))
	})
	return m
}

// update returns an update of version 7 that was trained from the given weights.
func update(client fed.ClientID, examples int, from []float32, delta ...float32) fed.Received {
	return fed.Received{Update: fed.Update{Client: client, Version: 7, Examples: examples, Delta: delta}, From: from}
}

// wantDisplacement fails unless the aggregator returns the wanted displacement, up to a
// relative error of 1e-12.
func wantDisplacement(t *testing.T, a fed.Aggregator, m *fed.Merge, want ...float64) {
	t.Helper()
	dst := garbage(len(want))
	if err := a.Aggregate(dst, m); err != nil {
		t.Fatal(err)
	}
	for i := range want {
		if !near(dst[i], want[i]) {
			t.Errorf("%+v: displacement %v, want %v", a, dst, want)
			return
		}
	}
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-12*max(math.Abs(a), math.Abs(b)) }

// garbage returns a dst with arbitrary values. An aggregator must overwrite all of them.
func garbage(n int) []float64 {
	dst := make([]float64, n)
	for i := range dst {
		dst[i] = math.NaN()
	}
	return dst
}

func sameBits(a, b []float64) bool {
	return slices.EqualFunc(a, b, func(x, y float64) bool { return math.Float64bits(x) == math.Float64bits(y) })
}

// drawn contains the random updates of a merge, which can be added in any order.
type drawn struct {
	shared  []float32
	version int
	updates []fed.Received
}

// drawMerge generates random updates of up to five clients, trained from weights of up to
// four versions.
func drawMerge(t *rapid.T, length int) drawn {
	vector := rapid.SliceOfN(rapid.Float32Range(-2, 2), length, length)
	history := rapid.SliceOfN(vector, 1, 4).Draw(t, "weights")
	d := drawn{shared: history[len(history)-1], version: len(history) - 1}
	d.updates = rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) fed.Received {
		version := rapid.IntRange(0, d.version).Draw(t, "version")
		return fed.Received{
			Update: fed.Update{
				Client:   fed.ClientID(rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(t, "client")),
				Version:  version,
				Examples: rapid.IntRange(1, 1000).Draw(t, "examples"),
				Delta:    vector.Draw(t, "delta"),
				Control:  vector.Draw(t, "control"),
				Loss:     rapid.Float64Range(0, 10).Draw(t, "loss"),
			},
			From: history[version],
		}
	}), 1, 8, func(u fed.Received) string { return fmt.Sprint(u.Client, u.Version) }).Draw(t, "updates")
	return d
}

func (d drawn) merge(t tester, round int) *fed.Merge {
	m := newMerge(t, d.shared, d.version, d.updates, false, 1)
	m.Round = round
	return m
}

func (d drawn) shuffled(t *rapid.T, round int) *fed.Merge {
	m := newMerge(t, d.shared, d.version, rapid.Permutation(d.updates).Draw(t, "order"), false, rapid.IntRange(1, 4).Draw(t, "parts"))
	m.Round = round
	return m
}

// dump returns all contents of a merge as text.
func dump(m *fed.Merge) string {
	var b strings.Builder
	fmt.Fprint(&b, m.Round, m.Version, m.Shared, m.Fleet)
	for _, s := range m.Sums {
		delta, _ := s.Delta.MarshalBinary()
		control, _ := s.Control.MarshalBinary()
		fmt.Fprintf(&b, " %d %x %x", s.Version, delta, control)
	}
	for _, u := range m.Updates {
		fmt.Fprintf(&b, " %+v", u)
	}
	return b.String()
}

// overwrite replaces all contents of a merge with other values.
func overwrite(m *fed.Merge) {
	for _, s := range m.Sums {
		s.Delta.Reset()
		s.Control.Reset()
	}
	for _, u := range m.Updates {
		for i := range u.Delta {
			u.Delta[i], u.Control[i] = 99, 99
		}
	}
}

func save(t tester, a fed.Aggregator) []byte {
	t.Helper()
	s, ok := a.(encoding.BinaryMarshaler)
	if !ok {
		return nil
	}
	b, err := s.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestConformance checks every aggregator against the contract of fed.Aggregator.
func TestConformance(t *testing.T) {
	for _, c := range aggregators {
		t.Run(c.name, func(t *testing.T) {
			t.Run("empty", func(t *testing.T) { conformEmpty(t, c.new) })
			t.Run("shapes", func(t *testing.T) { conformShapes(t, c.new) })
			t.Run("order", func(t *testing.T) {
				rapid.Check(t, func(t *rapid.T) { conformOrder(t, c.new) })
			})
			if _, ok := c.new().(encoding.BinaryMarshaler); !ok {
				return
			}
			t.Run("saved", func(t *testing.T) {
				rapid.Check(t, func(t *rapid.T) { conformSaved(t, c.new) })
			})
		})
	}
}

func conformEmpty(t *testing.T, fresh func() fed.Aggregator) {
	scale := newScale(t)
	for name, m := range map[string]*fed.Merge{
		"no sums": {Shared: []float32{1}, Fleet: 1, Server: cubic{}},
		"empty sums": {Shared: []float32{1}, Fleet: 1, Server: cubic{}, Sums: []fed.Sums{
			{Delta: exact.NewSum(scale, 1), Control: exact.NewSum(scale, 1)},
			{Version: 1, Delta: exact.NewSum(scale, 1), Control: exact.NewSum(scale, 1)},
		}, Version: 1},
	} {
		if err := fresh().Aggregate(make([]float64, 1), m); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// conformShapes checks that merges that break the contract of fed.Merge are errors, and
// that an error does not change the aggregator's state.
func conformShapes(t *testing.T, fresh func() fed.Aggregator) {
	good := func() *fed.Merge {
		shared := []float32{1, 2}
		a, b := update("a", 2, shared, 1, -1), update("b", 3, shared, .5, .25)
		b.Version = 6
		a.Loss, b.Loss = 1, 2
		return newMerge(t, shared, 7, []fed.Received{a, b}, false, 1)
	}
	each := fresh().Needs().EachUpdate
	nan := float32(math.NaN())
	for _, c := range []struct {
		name    string
		applies bool
		spoil   func(m *fed.Merge)
	}{
		{"length of the sum", !each, func(m *fed.Merge) { m.Sums[1].Delta = exact.NewSum(newScale(t), 3) }},
		{"no sum", !each, func(m *fed.Merge) { m.Sums[1].Delta = nil }},
		{"sum newer than the weights", !each, func(m *fed.Merge) { m.Version = 6 }},
		{"sums out of order", !each, func(m *fed.Merge) { slices.Reverse(m.Sums) }},
		{"no control", fresh().Needs().Control, func(m *fed.Merge) { m.Sums[0].Control = nil }},
		{"length of the control", fresh().Needs().Control, func(m *fed.Merge) { m.Sums[0].Control = exact.NewSum(newScale(t), 3) }},
		{"a control is missing", fresh().Needs().Control, func(m *fed.Merge) { m.Sums[0].Control.Reset() }},
		{"no fleet", fresh().Needs().Control, func(m *fed.Merge) { m.Fleet = 0 }},
		{"length of an update", each, func(m *fed.Merge) { m.Updates[1].Delta = []float32{1} }},
		{"length received", each, func(m *fed.Merge) { m.Updates[1].From = []float32{1} }},
		{"length shared", each, func(m *fed.Merge) { m.Shared = []float32{1} }},
		{"a NaN", each, func(m *fed.Merge) { m.Updates[1].Delta = []float32{1, nan} }},
		{"a NaN received", each, func(m *fed.Merge) { m.Updates[1].From = []float32{1, nan} }},
		{"an infinite weight", each, func(m *fed.Merge) { m.Shared = []float32{1, float32(math.Inf(-1))} }},
		{"update newer than the weights", each, func(m *fed.Merge) { m.Version = 6 }},
		{"updates out of order", each, func(m *fed.Merge) { slices.Reverse(m.Updates) }},
		{"infinite loss", fresh().Needs().Loss, func(m *fed.Merge) { m.Updates[0].Loss = math.Inf(1) }},
		{"no server data", fresh().Needs().ServerData, func(m *fed.Merge) { m.Server = nil }},
	} {
		if !c.applies {
			continue
		}
		a := fresh()
		before := save(t, a)
		m := good()
		c.spoil(m)
		if err := a.Aggregate(make([]float64, 2), m); err == nil {
			t.Errorf("%s: no error", c.name)
		}
		if after := save(t, a); !slices.Equal(before, after) {
			t.Errorf("%s: the error changed the state", c.name)
		}
		if err := a.Aggregate(make([]float64, 2), good()); err != nil {
			t.Error(err)
		}
	}
}

// conformOrder checks that two orders of the same updates give the same bits. It then
// overwrites one of the merges, to check that the aggregator does not retain any part of
// it.
func conformOrder(t *rapid.T, fresh func() fed.Aggregator) {
	a, b := fresh(), fresh()
	for round := range 2 {
		d := drawMerge(t, 2)
		m, o := d.merge(t, round), d.shuffled(t, round)
		for i := range o.Updates { // copies, because overwrite changes them
			o.Updates[i].Delta, o.Updates[i].Control = slices.Clone(o.Updates[i].Delta), slices.Clone(o.Updates[i].Control)
		}
		before := dump(m)
		x, y := garbage(2), garbage(2)
		if err := a.Aggregate(x, m); err != nil {
			t.Fatal(err)
		}
		if err := b.Aggregate(y, o); err != nil {
			t.Fatal(err)
		}
		if !sameBits(x, y) {
			t.Fatalf("%v in one order, %v in another", x, y)
		}
		if !finite(x) {
			t.Fatalf("%v", x)
		}
		if after := dump(m); after != before {
			t.Fatalf("Aggregate changed the merge from %s to %s", before, after)
		}
		overwrite(o)
		if !slices.Equal(save(t, a), save(t, b)) {
			t.Fatal("the states differ")
		}
	}
}

// conformSaved checks that an aggregator restored from saved state gives the same bits as
// the original. It saves the state before the first merge and between merges.
func conformSaved(t *rapid.T, fresh func() fed.Aggregator) {
	a := fresh()
	for round := range 3 {
		b := fresh()
		if err := b.(encoding.BinaryUnmarshaler).UnmarshalBinary(save(t, a)); err != nil {
			t.Fatal(err)
		}
		d := drawMerge(t, 2)
		x, y := garbage(2), garbage(2)
		if err := a.Aggregate(x, d.merge(t, round)); err != nil {
			t.Fatal(err)
		}
		if err := b.Aggregate(y, d.merge(t, round)); err != nil {
			t.Fatal(err)
		}
		if !sameBits(x, y) || !slices.Equal(save(t, a), save(t, b)) {
			t.Fatalf("%v without interruption, %v from a saved state", x, y)
		}
	}
}

// TestBadState checks that an aggregator rejects states that are damaged or belong to
// another aggregator.
func TestBadState(t *testing.T) {
	shared := []float32{0, 0}
	merge := newMerge(t, shared, 7, []fed.Received{update("a", 1, shared, 1, 2), update("b", 1, shared, 2, 1)}, false, 1)
	for name, fresh := range map[string]func() fed.Aggregator{
		"scaffold":  func() fed.Aggregator { return &Scaffold{} },
		"perclient": func() fed.Aggregator { return &PerClient{} },
	} {
		a := fresh()
		if err := a.Aggregate(make([]float64, 2), merge); err != nil {
			t.Fatal(err)
		}
		good := save(t, a)
		other := stateformat.Format{Name: "another state", Magic: "LODOTHER", Version: 1}
		bad := map[string][]byte{
			"nothing":         nil,
			"truncated":       good[:len(good)-1],
			"too long":        append(slices.Clone(good), 0),
			"another kind":    other.Wrap(good),
			"another length":  (&scaffoldState{C: []float64{1}}).encode(),
			"not finite":      (&scaffoldState{C: []float64{1, math.NaN()}}).encode(),
			"not a structure": []byte("control variate"),
		}
		if name == "perclient" {
			state := func(v ...[]float64) []byte {
				return (&perClientState{Clients: []string{"a", "b"}, V: v}).encode()
			}
			bad["another length"] = state([]float64{1}, []float64{1})
			bad["two lengths"] = state([]float64{1, 2}, []float64{1})
			bad["not finite"] = state([]float64{1, 2}, []float64{1, math.Inf(1)})
			bad["negative"] = state([]float64{1, 2}, []float64{1, -1})
			bad["one client twice"] = (&perClientState{Clients: []string{"a", "a"}, V: [][]float64{{1, 2}, {1, 2}}}).encode()
		}
		for what, b := range bad {
			if err := a.(encoding.BinaryUnmarshaler).UnmarshalBinary(b); err == nil {
				t.Errorf("%s, %s: no error", name, what)
			}
		}
		if !slices.Equal(save(t, a), good) {
			t.Errorf("%s: a rejected state changed the aggregator", name)
		}

		// A new aggregator does not know the number of weights yet, so it must report a
		// wrong number when it merges.
		b := fresh()
		if err := b.(encoding.BinaryUnmarshaler).UnmarshalBinary(good); err != nil {
			t.Fatal(err)
		}
		short := newMerge(t, []float32{0}, 7, []fed.Received{update("a", 1, []float32{0}, 1)}, false, 1)
		if err := b.Aggregate(make([]float64, 1), short); err == nil {
			t.Errorf("%s: no error for a merge of one weight after a state of two", name)
		}
	}
}
