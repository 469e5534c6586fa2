package round

import (
	"fmt"
	"slices"

	"loadstar/fed"
	"loadstar/fed/limit"
	"loadstar/nn"
)

// Server stores the shared weights and computes each new version of them. It is not safe for
// concurrent use.
type Server struct {
	aggregator fed.Aggregator
	optimizer  fed.ServerOptimizer
	fleet      int
	history    limit.History
	// coordinate returns the limit of each number of an update that is trained from a version.
	// It is nil if there is no such limit.
	coordinate func(version int) float64

	decay   int // rounds over which displacements shrink to 0, or 0
	version int
	shared  []float32
	d       []float64
}

// NewServer returns a server at version 0. fleet is the number of clients. The server
// takes ownership of the weights.
func NewServer(a fed.Aggregator, o fed.ServerOptimizer, fleet int, shared []float32) *Server {
	return &Server{aggregator: a, optimizer: o, fleet: fleet, shared: shared, d: make([]float64, len(shared))}
}

// Limit makes the server limit updates to a multiple of the median of earlier updates. first
// contains the limits that apply until there are enough earlier updates. coordinate returns the
// limit of each number of an update that is trained from a version; nil means no such limit.
func (s *Server) Limit(factor float64, first fed.Limits, coordinate func(version int) float64) {
	s.history = limit.History{Factor: factor, First: first}
	s.coordinate = coordinate
}

// Decay makes the server shrink the displacements linearly to 0 over a number of rounds.
func (s *Server) Decay(rounds int) { s.decay = rounds }

// Limits returns the limits for updates that are trained from the current version.
func (s *Server) Limits() fed.Limits {
	l := s.history.Limits()
	l.Coordinate = s.Coordinate(s.version)
	return l
}

// Coordinate returns the limit of each number of an update that is trained from a version, or 0
// if there is none. The limit is derived from the plan, so it is not part of the saved state.
func (s *Server) Coordinate(version int) float64 {
	if s.coordinate == nil || s.history.Factor == 0 { // a run that began without limits continues without limits
		return 0
	}
	return s.coordinate(version)
}

// Version returns the number of the current version.
func (s *Server) Version() int { return s.version }

// Renumber sets the number of the current version. Callers use it after an operator has
// restored the weights of an earlier version as the newest version.
func (s *Server) Renumber(version int) { s.version = version }

// Shared returns the shared weights of the current version. The slice is never modified.
func (s *Server) Shared() []float32 { return s.shared }

// Task returns the task of a round, with the current version of the shared weights. Its
// slices are never modified.
func (s *Server) Task(round int) fed.Task {
	t := fed.Task{Round: round, Version: s.version, Shared: s.shared, Limits: s.Limits()}
	if a, ok := s.aggregator.(fed.Starter); ok {
		a.Start(&t)
	}
	return t
}

// Merge computes the next version of the shared weights from the updates in the fold.
// After an error the server must not be used.
func (s *Server) Merge(round int, f *Fold, data fed.ServerData) error {
	sums, updates := f.contents()
	m := &fed.Merge{
		Round: round, Version: s.version, Shared: s.shared, Fleet: s.fleet,
		Sums: sums, Updates: updates, Server: data,
	}
	if err := s.aggregator.Aggregate(s.d, m); err != nil {
		return fmt.Errorf("round %d: %w", round+1, err)
	}
	if s.decay > 0 {
		left := float64(max(s.decay-round, 0)) / float64(s.decay)
		for i := range s.d {
			s.d[i] *= left
		}
	}
	next := slices.Clone(s.shared) // earlier tasks still refer to s.shared
	s.optimizer.Step(next, s.d)
	if nn.NotFinite(next) >= 0 {
		return fmt.Errorf("round %d: the shared weights are no longer finite: %w", round+1, fed.ErrDiverged)
	}
	s.shared = next
	s.version++
	s.history.Add(f.tally)
	f.tally = limit.Tally{} // the history owns it
	return nil
}
