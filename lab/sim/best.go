package sim

import "math"

// If the plan keeps each client's best weights, a client's stored state has a tail after the
// state of its trainer: the complete weights with the lowest validation error so far, and this
// error. The tail is stored with the state, so checkpoints and the memory limit include it.

// tail returns the length of the tail.
func (s *simulation) tail() int {
	if !s.setup.KeepsBest() {
		return 0
	}
	return s.setup.Problem.Model.Net().Weights() + 1
}

// slot returns the length of a client's stored state.
func (s *simulation) slot(w *worker) int { return w.client.Kept() + s.tail() }

// initialSlot returns a client's stored state before its first turn.
func (s *simulation) initialSlot(w *worker) []float32 {
	initial := append(s.setup.InitialKept(w.client), make([]float32, s.tail())...)
	if s.tail() > 0 {
		initial[len(initial)-1] = float32(math.Inf(1))
	}
	return initial
}

// best returns the weights in the tail of a state, and their error, which is infinite if
// there are none.
func (s *simulation) best(kept []float32) (weights []float32, err *float32) {
	tail := kept[len(kept)-s.tail():]
	return tail[:len(tail)-1], &tail[len(tail)-1]
}

// keepBest stores the weights in w.w if their error is the lowest so far. w.kept must contain
// the state of client i. For a client that has not trained, keepBest stores nothing.
func (s *simulation) keepBest(w *worker, i int, first bool, err float64) error {
	weights, lowest := s.best(w.kept)
	if first || !(float32(err) < *lowest) {
		return nil
	}
	copy(weights, w.w)
	*lowest = float32(err)
	return s.kept.Put(i, w.kept)
}

// keepPooledBest does the same for the only client of pooled training. The error is the mean
// relative error over all meters that have such an error.
func (s *simulation) keepPooledBest(relative []float64) error {
	sum, n := 0.0, 0
	for _, x := range relative {
		if !math.IsNaN(x) && !math.IsInf(x, 0) {
			sum += x
			n++
		}
	}
	w := s.pool.workers[0]
	first, err := s.join(w, 0)
	if err != nil || n == 0 {
		return err
	}
	return s.keepBest(w, 0, first, sum/float64(n))
}

// keepTail copies a client's stored tail to kept, because the client may have been evaluated
// after its background training began.
func (s *simulation) keepTail(client int, kept []float32) error {
	if s.tail() == 0 {
		return nil
	}
	stored := make([]float32, len(kept))
	if _, err := s.kept.Load(client, stored); err != nil {
		return err
	}
	copy(kept[len(kept)-s.tail():], stored[len(kept)-s.tail():])
	return nil
}

// earlier returns the client's best weights so far, or nothing if the plan does not keep them.
// w.kept must contain the client's state.
func (s *simulation) earlier(w *worker) [][]float32 {
	if s.tail() == 0 || len(s.fleet.holdout) > 0 {
		return nil
	}
	weights, lowest := s.best(w.kept)
	if math.IsInf(float64(*lowest), 0) {
		return nil
	}
	return [][]float32{weights}
}

// evaluated returns the number of clients whose forecasts are evaluated, and how many of them
// are listed in the table of evaluations.
func (s *simulation) evaluated() (all, listed int) {
	listed = min(s.Plan.Evaluate.Clients, len(s.fleet.clients))
	if s.setup.KeepsBest() {
		return len(s.fleet.clients), listed
	}
	return listed, listed
}
