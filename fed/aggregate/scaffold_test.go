package aggregate

import (
	"slices"
	"testing"

	"loadstar/fed"
)

// TestScaffold checks the server's control variate c for a fleet of 4 clients with equal
// weights.
//
//	round 1: changes of c_i (2, 0) and (6, -4): c = (8, -4)/4 = (2, -1)
//	round 2: one change of (-4, 2):             c = (2, -1) + (-1, 1/2) = (1, -1/2)
//
// Weighted by examples (1 and 3), round 1 gives 2/4 · (2 + 18, 0 - 12)/4 = (2.5, -1.5),
// and round 2 with 3 examples adds 1/4 · (-12, 6)/3 = (-1, 1/2).
func TestScaffold(t *testing.T) {
	shared := []float32{9, 9}
	with := func(u fed.Received, control ...float32) fed.Received {
		u.Control = control
		return u
	}
	rounds := [][]fed.Received{
		{with(update("a", 1, shared, 1, -2), 2, 0), with(update("b", 3, shared, 5, 2), 6, -4)},
		{with(update("b", 3, shared, 1, 1), -4, 2)},
	}
	rounds[0][1].Version = 5
	for _, c := range []struct {
		uniform bool
		want    [][]float64
		control [][]float32 // the server's c before each round and at the end
	}{
		{true, [][]float64{{3, 0}, {1, 1}}, [][]float32{{0, 0}, {2, -1}, {1, -.5}}},
		{false, [][]float64{{4, 1}, {1, 1}}, [][]float32{{0, 0}, {2.5, -1.5}, {1.5, -1}}},
	} {
		a := &Scaffold{}
		var given [][]float32
		start := func() {
			first, second := fed.Task{Shared: shared}, fed.Task{Shared: shared}
			a.Start(&first)
			a.Start(&second)
			if !slices.Equal(first.Control, second.Control) {
				t.Errorf("two tasks of one version have the control variates %v and %v", first.Control, second.Control)
			}
			given = append(given, first.Control)
		}
		for round, updates := range rounds {
			start()
			m := newMerge(t, shared, 7, updates, c.uniform, 1)
			m.Fleet = 4
			wantDisplacement(t, a, m, c.want[round]...)
		}
		start()
		// Compare the control variates of all tasks only now, because a later merge must not
		// change the control variate of an earlier task.
		if !slices.EqualFunc(given, c.control, slices.Equal) {
			t.Errorf("control variates %v, want %v", given, c.control)
		}

		saved := save(t, a)
		b := &Scaffold{}
		b.Start(&fed.Task{Shared: shared})
		if err := b.UnmarshalBinary(saved); err != nil {
			t.Fatal(err)
		}
		task := fed.Task{Shared: shared}
		b.Start(&task)
		if !slices.Equal(task.Control, given[2]) {
			t.Errorf("the control variate is %v, from a saved state %v", given[2], task.Control)
		}
	}
}

func TestScaffoldLength(t *testing.T) {
	shared := []float32{0, 0}
	a := &Scaffold{}
	m := newMerge(t, shared, 7, []fed.Received{update("a", 1, shared, 1, 2)}, false, 1)
	wantDisplacement(t, a, m, 1, 2)
	defer func() {
		if recover() == nil {
			t.Error("no panic for a task of another length")
		}
	}()
	a.Start(&fed.Task{Shared: shared[:1]})
}
