package keeper

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"loadstar/fed/mask"
	"loadstar/fed/member"
	v1 "loadstar/proto/loadstar/v1"
)

// checked returns what the server sends to a keeper about a masked result. The products use the
// keeper's own random vectors, as in a run with only this keeper.
func (w *world) checked(k *station, q *v1.MaskedRound, p *push) *v1.CheckedResult {
	w.t.Helper()
	directions := w.directions(k, q)
	r, y := &v1.CheckedResult{Result: p.MaskedResult}, p.y
	for _, b := range q.Limits {
		products := directions.Products(y[:b.Length])
		r.Products, y = append(r.Products, products[:]...), y[b.Length:]
	}
	return r
}

func (w *world) directions(k *station, q *v1.MaskedRound) mask.Seed {
	a, err := k.State(&v1.KeeperStateRequest{Fleet: "fleet", Run: q.Run})
	if err != nil {
		w.t.Fatal(err)
	}
	return mask.Seed(a.Directions)
}

// ordered returns the keepers in the order of a round's terms.
func (w *world) ordered(q *v1.MaskedRound) (all []*station) {
	for _, pin := range q.Terms.Keepers {
		for _, k := range w.keepers {
			if own := k.Pin(); string(own[:]) == string(pin) {
				all = append(all, k)
			}
		}
	}
	return all
}

// check asks all keepers to check results, and returns the number of results that the last
// keeper accepted.
func (w *world) check(q *v1.MaskedRound, all []*push) (accepted int, err error) {
	keepers := w.ordered(q)
	last := keepers[len(keepers)-1]
	directions := w.directions(last, q)
	for batch := range slices.Chunk(all, member.MaxChecked) {
		r := &v1.KeeperCheckRequest{Round: q, Directions: directions[:]}
		for _, p := range batch {
			r.Results = append(r.Results, w.checked(last, q, p))
		}
		for _, k := range keepers {
			if k == last {
				r.Directions = nil
			}
			a, err := k.Check(r)
			if err != nil {
				return accepted, err
			}
			if err := member.Verify(k.Statement().Identity, r, a); err != nil {
				w.t.Error(err)
			}
			for i, x := range r.Results {
				if k != last {
					n := len(x.Products)
					x.Products = a.Products[i*n : (i+1)*n]
				} else if a.Accepted[i] {
					accepted++
				}
			}
		}
	}
	return accepted, nil
}

// norm returns a random vector with the given norm.
func (w *world) norm(length int, norm float64) []uint64 {
	x, v, sum := make([]float64, length), make([]uint64, length), 0.0
	for i := range x {
		x[i] = w.rng.NormFloat64()
		sum += x[i] * x[i]
	}
	for i := range x {
		v[i] = uint64(int64(math.Round(x[i] * norm / math.Sqrt(sum))))
	}
	return v
}

const testLimit = 1 << 40

// normRound returns a round in which norms are checked.
func (w *world) normRound(run string, round int64, length int) *v1.MaskedRound {
	q := w.round(run, round, length)
	q.Terms.Check, q.Limits[0].Limit = "norm", testLimit
	return q
}

func (w *world) pushOf(a *agent, q *v1.MaskedRound, part int64, x []uint64) *push {
	p := w.mask(a, q, part, mask.NewNonce(), x)
	p.Clients = 1
	return w.maskAgain(p, q)
}

// maskAgain masks a result again after its fields have changed.
func (w *world) maskAgain(p *push, q *v1.MaskedRound) *push {
	p.y = slices.Clone(p.x)
	for i, k := range w.keepers {
		c := member.Context(k.Statement(), q)
		member.Of(c, p.MaskedResult)
		key := p.of.keys[i]
		for range q.Day - p.of.day {
			key = key.Next()
		}
		seed := key.Seed(c, mask.Nonce(p.Nonce))
		seed.Add(p.y)
	}
	return p
}

// TestNorms checks a thousand updates of each kind. Each run has its own random vectors.
func TestNorms(t *testing.T) {
	const updates, runs, length = 1000, 20, 1500
	w := newWorld(t, 40, 1, testRules())
	w.fleet(10)
	for _, x := range []struct {
		kind      string
		update    func() []uint64
		wrong     bool // masked with another seed
		low, high int
	}{
		{"at the limit", func() []uint64 { return w.norm(length, testLimit) }, false, 995, updates},
		{"half of it", func() []uint64 { return w.norm(length, testLimit/2) }, false, updates, updates},
		{"nothing", func() []uint64 { return make([]uint64, length) }, false, updates, updates},
		{"two limits", func() []uint64 { return w.norm(length, 2*testLimit) }, false, 0, 60},
		{"three limits", func() []uint64 { return w.norm(length, 3*testLimit) }, false, 0, 0},
		{"one number of three limits", func() []uint64 {
			v := make([]uint64, length)
			v[w.rng.IntN(length)] = 3 * testLimit
			return v
		}, false, 0, 0},
		{"2^63 in two places", func() []uint64 {
			v := w.norm(length, testLimit/2)
			at := w.rng.IntN(length)
			v[at] += 1 << 63
			v[(at+1+w.rng.IntN(length-1))%length] += 1 << 63
			return v
		}, false, 0, 0},
		{"2^62 in four places", func() []uint64 {
			v := w.norm(length, testLimit/2)
			for range 4 {
				v[w.rng.IntN(length)] += 1 << 62
			}
			return v
		}, false, 0, 0},
		{"the mask of another seed", func() []uint64 { return w.norm(length, testLimit/2) }, true, 0, 0},
	} {
		accepted := 0
		for run := range runs {
			q := w.normRound(fmt.Sprint(x.kind, run), 0, length)
			var all []*push
			for i := range updates / runs {
				p := w.pushOf(w.agents[i%10], q, int64(i), x.update())
				if x.wrong {
					p.Nonce[3] ^= 1
				}
				all = append(all, p)
			}
			n, err := w.check(q, all)
			if err != nil {
				t.Fatal(err)
			}
			accepted += n
		}
		t.Logf("%-28s %4d of %d pass", x.kind, accepted, updates)
		if accepted < x.low || accepted > x.high {
			t.Errorf("%s: %d of %d pass, want %d to %d", x.kind, accepted, updates, x.low, x.high)
		}
	}
}

// TestUnlimited checks that a keeper refuses noise, but no update, even where there is no
// limit.
func TestUnlimited(t *testing.T) {
	w := newWorld(t, 41, 1, testRules())
	w.fleet(6)
	q := w.normRound("run", 0, 1000)
	q.Limits[0].Limit = 0
	good, noise := w.pushOf(w.agents[0], q, 0, w.norm(1000, 1<<57)), w.pushOf(w.agents[1], q, 0, w.norm(1000, 1<<57))
	noise.Nonce[0]++
	for i, p := range []*push{good, noise} {
		if n, err := w.check(q, []*push{p}); err != nil || n != 1-i {
			t.Errorf("result %d: %d accepted, %v", i, n, err)
		}
	}
}

// TestJudgedOnce checks that a result is judged only once, and that a release contains only
// accepted results.
func TestJudgedOnce(t *testing.T) {
	w := newWorld(t, 42, 1, testRules())
	w.fleet(8)
	k := w.keepers[0]
	q := w.normRound("run", 0, 100)
	var all []*push
	for _, a := range w.agents {
		all = append(all, w.pushOf(a, q, 0, w.norm(100, testLimit/2)))
	}
	if n, err := w.check(q, all[:7]); n != 7 || err != nil {
		t.Fatal(n, err)
	}
	_, err := w.open(q, all)
	want(t, err, ruleCheck)
	long := w.pushOf(w.agents[7], q, 0, w.norm(100, 4*testLimit))
	for range 2 { // the answer is the same after a restart
		if n, err := w.check(q, []*push{long}); n != 0 || err != nil {
			t.Fatal(n, err)
		}
		k.Keeper.Close()
		k.open(t)
	}
	for name, change := range map[string]func(r *v1.CheckedResult){
		"a product":   func(r *v1.CheckedResult) { r.Products[3]++ },
		"the nonce":   func(r *v1.CheckedResult) { r.Result.Nonce[0]++ },
		"the clients": func(r *v1.CheckedResult) { r.Result.Clients++ },
	} {
		for i, p := range []*push{all[0], long} {
			r := proto.CloneOf(w.checked(k, q, p))
			change(r)
			if _, err := k.Check(&v1.KeeperCheckRequest{Round: q, Results: []*v1.CheckedResult{r}}); err == nil {
				t.Errorf("%s of result %d was judged again", name, i)
			} else {
				want(t, err, ruleCheck)
			}
		}
	}
	_, err = w.open(q, append(slices.Clone(all[:7]), long))
	want(t, err, ruleCheck)
	// In another context, the same result counts as a different result.
	other := proto.CloneOf(q)
	other.Weights = "others"
	_, err = w.open(other, all[:7])
	want(t, err, ruleCheck)
	if got, err := w.open(q, all[:7]); err != nil || !slices.Equal(got, plain(q, all[:7])) {
		t.Error(err)
	}
	_, err = w.check(q, all[:1])
	want(t, err, ruleOnce)
	for name, change := range map[string]func(q *v1.KeeperCheckRequest){
		ruleTwice:   func(q *v1.KeeperCheckRequest) { q.Results = append(q.Results, q.Results[0]) },
		ruleRequest: func(q *v1.KeeperCheckRequest) { q.Results[0].Products = q.Results[0].Products[1:] },
		ruleMember:  func(q *v1.KeeperCheckRequest) { q.Results[0].Result.Agent = "nobody" },
		ruleCheck:   func(q *v1.KeeperCheckRequest) { q.Round.Terms.Check = "none" },
		ruleDay:     func(q *v1.KeeperCheckRequest) { q.Round.Day += 9 },
	} {
		q1 := w.normRound("run", 1, 100)
		r := &v1.KeeperCheckRequest{Round: q1, Results: []*v1.CheckedResult{w.checked(k, q1, w.pushOf(w.agents[0], q1, 0, w.norm(100, 1)))}}
		change(r)
		_, err := k.Check(r)
		want(t, err, name)
	}
	// A member that is too young is refused before its result is added to those of other
	// members.
	young, err := w.join("young", true)
	if err != nil {
		t.Fatal(err)
	}
	q2 := w.normRound("run", 1, 100)
	_, err = w.check(q2, []*push{w.pushOf(young, q2, 0, w.norm(100, 1))})
	want(t, err, ruleAge)
}

// TestForgets checks that the keeper removes judged results when it releases their round or
// erases their keys.
func TestForgets(t *testing.T) {
	w := newWorld(t, 43, 1, testRules())
	w.fleet(8)
	k := w.keepers[0]
	rows := func(want int) {
		t.Helper()
		if k.Keeper.Close(); true {
			k.open(t) // open counts the stored checks
		}
		if k.Keeper.state.checks != want {
			t.Errorf("%d rows, want %d", k.Keeper.state.checks, want)
		}
	}
	judge := func(run string, round int64) (*v1.MaskedRound, []*push) {
		q := w.normRound(run, round, 10)
		var all []*push
		for _, a := range w.agents {
			all = append(all, w.pushOf(a, q, 0, w.norm(10, 1000)))
		}
		if n, err := w.check(q, all); n != 8 || err != nil {
			t.Fatal(n, err)
		}
		return q, all
	}
	judge("run", 0)
	q, all := judge("run", 1)
	judge("run", 2)
	judge("rum", 1)
	rows(32)
	if _, err := w.open(q, all); err != nil {
		t.Fatal(err)
	}
	if k.Keeper.state.checks != 16 {
		t.Errorf("%d rows in memory, want 16", k.Keeper.state.checks)
	}
	rows(16)
	w.clock = w.clock.Add(48 * time.Hour)
	if err := k.Rotate(); err != nil {
		t.Fatal(err)
	}
	rows(0)
}

// TestNearest checks that the sum excludes results that oppose the others, and that the answer
// is the same after a restart.
func TestNearest(t *testing.T) {
	w := newWorld(t, 44, 2, testRules())
	w.fleet(20)
	q := w.normRound("run", 0, 400)
	q.Terms.Robust = "nearest"
	common := w.norm(400, testLimit/2)
	var all []*push
	for i, a := range w.agents {
		x := w.norm(400, testLimit/4)
		for j := range x {
			if x[j] += common[j]; i < 5 {
				x[j] = -x[j]
			}
		}
		all = append(all, w.pushOf(a, q, 0, x))
	}
	for range 2 { // the second answers must equal the first
		if n, err := w.check(q, all); n != 20 || err != nil {
			t.Fatal(n, err)
		}
	}
	keepers := w.ordered(q)
	r, sum := request(q, all), make([]uint64, q.Length)
	ask := func(k *station) (first *v1.KeeperReleaseResponse) {
		for range 2 {
			a, err := k.Release(r)
			if err != nil {
				t.Fatal(err)
			}
			if first != nil && (!bytes.Equal(a.Masks, first.Masks) || !slices.Equal(a.Chosen, first.Chosen)) {
				t.Error("another answer after a restart")
			}
			first = a
			k.Keeper.Close()
			k.open(t)
		}
		for i, x := range numbers(first.Masks) {
			sum[i] -= x
		}
		return first
	}
	chosen := ask(keepers[1]).Chosen
	if len(chosen) != 15 || chosen[0] != 5 || !slices.IsSorted(chosen) {
		t.Fatalf("chosen: %v, want 5 to 19", chosen)
	}
	all = all[5:]
	r = request(q, all)
	if a := ask(keepers[0]); len(a.Chosen) != 0 {
		t.Error("two keepers choose")
	}
	for _, p := range all {
		for i, y := range p.y {
			sum[i] += y
		}
	}
	if !slices.Equal(sum, plain(q, all)) {
		t.Error("the sum is wrong")
	}
}

// TestChain checks that only the last of three keepers decides, and that the other keepers
// reveal only masked products.
func TestChain(t *testing.T) {
	w := newWorld(t, 45, 3, testRules())
	w.fleet(6)
	q := w.normRound("run", 0, 200)
	var all []*push
	for _, a := range w.agents {
		all = append(all, w.pushOf(a, q, 0, w.norm(200, testLimit/2)))
	}
	long := w.pushOf(w.agents[0], q, 1, w.norm(200, 3*testLimit))
	if n, err := w.check(q, append(all, long)); n != 6 || err != nil {
		t.Fatal(n, err)
	}
	keepers := w.ordered(q)
	directions := w.directions(keepers[2], q)
	r := &v1.KeeperCheckRequest{Round: q, Results: []*v1.CheckedResult{w.checked(keepers[2], q, all[0])}}
	_, err := keepers[0].Check(r)
	want(t, err, ruleRequest)
	r.Directions = directions[:]
	_, err = keepers[2].Check(r)
	want(t, err, ruleRequest)
	a, err := keepers[0].Check(r)
	if err != nil || len(a.Accepted) != 0 {
		t.Fatal(a, err)
	}
	if p := [mask.Sketch]uint64(a.Products); mask.Norm(&p) < unlimited {
		t.Error("products of an update left a keeper that does not decide")
	}
	r.Directions = make([]byte, 32)
	_, err = keepers[0].Check(r)
	want(t, err, ruleCheck)
	if got, err := w.open(q, all); err != nil || !slices.Equal(got, plain(q, all)) {
		t.Error(err)
	}
}

// TestNearestLeast checks that the minimum applies to the chosen results.
func TestNearestLeast(t *testing.T) {
	rules := testRules()
	rules.Least = 8
	w := newWorld(t, 46, 1, rules)
	w.fleet(9)
	q := w.normRound("run", 0, 50)
	q.Terms.Robust = "nearest"
	var all []*push
	for _, a := range w.agents {
		all = append(all, w.pushOf(a, q, 0, w.norm(50, testLimit/2)))
	}
	if n, err := w.check(q, all); n != 9 || err != nil {
		t.Fatal(n, err)
	}
	_, err := w.open(q, all) // the keepers choose 7 of 9 results
	want(t, err, ruleLeast)
}
