package keeper

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// leaks reports whether the server can compute something about too few agents from what it has
// seen of a round. The server knows all keys and updates of its own agents. Everything else is
// a linear equation: a masked result is an update plus a mask of each keeper, and an answer is
// a sum of masks. The server learns the combinations of these equations in which no mask is
// left.
func (g *game) leaks(s *seen) bool {
	if s.plain {
		return true
	}
	hostile := 0
	for _, a := range g.agents {
		if a.hostile {
			hostile++
		}
	}
	least := max(2, int(g.keepers[0].options.Rules.Least)-hostile)
	var pushes []*push
	for _, p := range s.pushes {
		if !p.of.hostile {
			pushes = append(pushes, p)
		}
	}
	e := &equations{columns: map[string]int{}}
	for i, p := range pushes {
		row := map[int]int64{i: 1}
		for k := range g.keepers {
			row[e.mask(len(pushes), k, maskID(s.q, p.MaskedResult))]++
		}
		e.rows = append(e.rows, row)
	}
	own := map[string]bool{}
	for _, p := range s.pushes {
		if p.of.hostile {
			own[maskID(s.q, p.MaskedResult)] = true
		}
	}
	for k, answers := range s.answers {
		for _, set := range answers {
			row := map[int]int64{}
			for id := range set {
				if !own[id] {
					row[e.mask(len(pushes), k, id)]++
				}
			}
			if len(row) > 0 {
				e.rows = append(e.rows, row)
			}
		}
	}
	known := e.without(len(pushes))
	return small(known, len(pushes), least, func(column int) string { return pushes[column].of.name })
}

// equations are rows with a column for each update and each mask. The columns of the updates
// come first.
type equations struct {
	columns map[string]int // of masks
	rows    []map[int]int64
}

func (e *equations) mask(updates, keeper int, id string) int {
	name := string(rune('0'+keeper)) + id
	if _, found := e.columns[name]; !found {
		e.columns[name] = updates + len(e.columns)
	}
	return e.columns[name]
}

// prime is the order of the finite field in which equations are solved.
const prime = 1<<31 - 1

func inverse(x int64) int64 {
	result, power := int64(1), x
	for n := prime - 2; n > 0; n >>= 1 {
		if n&1 == 1 {
			result = result * power % prime
		}
		power = power * power % prime
	}
	return result
}

// subtract subtracts f times a row from another row.
func subtract(from, row map[int]int64, f int64) {
	for c, x := range row {
		if y := (from[c] + (prime-f)*x) % prime; y != 0 {
			from[c] = y
		} else {
			delete(from, c)
		}
	}
}

// without returns a basis of the combinations in which no mask is left.
func (e *equations) without(updates int) (known []map[int]int64) {
	pivots := map[int]map[int]int64{}
	// There are few answers, and they are long. They come last, so that rows stay short.
	for _, row := range e.rows {
		for {
			column := -1
			for c := range row {
				if c >= updates && c > column {
					column = c
				}
			}
			if column < 0 {
				if len(row) > 0 {
					known = append(known, row)
				}
				break
			}
			p := pivots[column]
			if p == nil {
				f := inverse(row[column])
				for c := range row {
					row[c] = row[c] * f % prime
				}
				pivots[column] = row
				break
			}
			subtract(row, p, row[column])
		}
	}
	return known
}

// small reports whether a combination of rows concerns fewer than least agents. It reduces the
// rows with several random orders of the columns, and counts the agents in each reduced row.
func small(rows []map[int]int64, columns, least int, agent func(int) string) bool {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		if len(rows) == 0 {
			return false
		}
		reduced := make([]map[int]int64, len(rows))
		for i, r := range rows {
			reduced[i] = map[int]int64{}
			subtract(reduced[i], r, prime-1)
		}
		at := 0
		for _, c := range rng.Perm(columns) {
			i := slices.IndexFunc(reduced[at:], func(r map[int]int64) bool { return r[c] != 0 })
			if i < 0 {
				continue
			}
			reduced[at], reduced[at+i] = reduced[at+i], reduced[at]
			f := inverse(reduced[at][c])
			for j, r := range reduced {
				if j != at && r[c] != 0 {
					subtract(r, reduced[at], r[c]*f%prime)
				}
			}
			if at++; at == len(reduced) {
				break
			}
		}
		for _, r := range reduced {
			agents := map[string]bool{}
			for c := range r {
				agents[agent(c)] = true
			}
			if len(agents) > 0 && len(agents) < least {
				return true
			}
		}
	}
	return false
}

// TestSmall checks equations that were written by hand.
func TestSmall(t *testing.T) {
	name := func(c int) string { return string(rune('a' + c)) }
	for i, x := range []struct {
		rows []map[int]int64
		want bool
	}{
		{nil, false},
		{[]map[int]int64{{0: 1, 1: 1, 2: 1, 3: 1}}, false},
		{[]map[int]int64{{0: 1, 1: 1, 2: 1, 3: 1}, {0: 1, 1: 1, 2: 1}}, true},               // d
		{[]map[int]int64{{0: 1, 1: 1, 2: 1, 3: 1}, {0: 1, 1: 1, 4: 1, 5: 1}}, false},        // differences concern four agents
		{[]map[int]int64{{0: 1, 1: 1, 2: 1}, {2: 1, 3: 1, 4: 1}, {0: 1, 3: 1, 4: 1}}, true}, // one combination concerns two agents
	} {
		if got := small(x.rows, 6, 3, name); got != x.want {
			t.Errorf("%d: got %t", i, got)
		}
	}
	e := &equations{columns: map[string]int{}}
	for i := range 3 { // three results of two keepers, and an answer of each for all of them
		e.rows = append(e.rows, map[int]int64{i: 1, e.mask(3, 0, name(i)): 1, e.mask(3, 1, name(i)): 1})
	}
	one := map[int]int64{e.mask(3, 0, "a"): 1, e.mask(3, 0, "b"): 1, e.mask(3, 0, "c"): 1}
	two := map[int]int64{e.mask(3, 1, "a"): 1, e.mask(3, 1, "b"): 1, e.mask(3, 1, "c"): 1}
	e.rows = append(e.rows, one)
	if known := e.without(3); len(known) != 0 {
		t.Errorf("%v from one of two keepers", known)
	}
	e.rows = append(e.rows[:3:3], map[int]int64{3: 1, 5: 1, 7: 1}, two)
	if known := e.without(3); len(known) != 1 || len(known[0]) != 3 {
		t.Errorf("%v from two keepers, want the sum of three", known)
	}
}
