package aggregate

import (
	"encoding"
	"fmt"

	"loadstar/fed"
)

var (
	_ fed.Aggregator             = (*Scaffold)(nil)
	_ fed.Starter                = (*Scaffold)(nil)
	_ encoding.BinaryMarshaler   = (*Scaffold)(nil)
	_ encoding.BinaryUnmarshaler = (*Scaffold)(nil)
)

// Scaffold is [Mean] with the server's control variate (SCAFFOLD: reddi2021, appendix
// B.2, algorithm 6; Karimireddy et al. 2020, option II):
//
//	D = mean_S(delta)
//	c = c + |S|/N mean_S(delta of c_i),   c = 0 at first
//
// where S are the updates of the merge and N is the size of the fleet. Both means use the
// plan's weighting. The zero value is ready for use.
//
// Deviations: reddi2021 weighs both means by n_i/n, the clients' shares of the examples;
// server.weighting: examples selects this. The default is uniform, as in Karimireddy et al. c
// is stored as float64 and sent as float32. If a round is abandoned at its deadline, the
// clients whose updates were already counted have changed their c_i, but c stays the same. A
// plan with deadlines should therefore have a quorum that is nearly always met.
type Scaffold struct {
	c    []float64 // nil before the first merge, which means 0
	sent []float32 // c as float32; nil after a merge, until the next task needs it
}

// Needs implements [fed.Aggregator].
func (*Scaffold) Needs() fed.Needs { return fed.Needs{Control: true} }

// Start implements [fed.Starter]. All tasks of a version share one control variate. Start
// panics if the number of shared weights differs from that in earlier merges.
func (a *Scaffold) Start(t *fed.Task) {
	if a.c != nil && len(a.c) != len(t.Shared) {
		panic(fmt.Sprintf("aggregate: a control variate of %d weights for a task of %d", len(a.c), len(t.Shared)))
	}
	if len(a.sent) != len(t.Shared) || a.sent == nil {
		a.sent = make([]float32, len(t.Shared))
		for i, x := range a.c {
			a.sent[i] = float32(x)
		}
	}
	t.Control = a.sent
}

// Aggregate implements [fed.Aggregator].
func (a *Scaffold) Aggregate(dst []float64, m *fed.Merge) error {
	if m.Fleet < 1 {
		return fmt.Errorf("aggregate: the fleet has %d clients, want at least 1", m.Fleet)
	}
	if a.c != nil && len(a.c) != len(dst) {
		return fmt.Errorf("aggregate: the control variate has %d weights, want %d as in the merge", len(a.c), len(dst))
	}
	for _, s := range m.Sums {
		if s.Delta == nil || s.Control == nil || s.Control.Len() != len(dst) || s.Control.Updates() != s.Delta.Updates() {
			return fmt.Errorf("aggregate: not every update of version %d has a control variate change of %d weights", s.Version, len(dst))
		}
	}
	if err := (Mean{}).Aggregate(dst, m); err != nil {
		return err
	}
	var updates, weight float64
	for _, s := range m.Sums {
		updates += float64(s.Control.Updates())
		weight += float64(s.Control.Weight())
	}
	c, total := make([]float64, len(dst)), make([]float64, len(dst))
	for _, s := range m.Sums {
		s.Control.Total(total)
		for i, x := range total {
			c[i] += x
		}
	}
	// The change of c is |S|/N · total/weight, with only one rounding if |S| equals the
	// weight.
	share := weight / updates * float64(m.Fleet)
	for i := range c {
		c[i] /= share
	}
	for i, x := range a.c {
		c[i] += x
	}
	if !finite(c) {
		return fmt.Errorf("aggregate: the control variate is not finite: %w", fed.ErrDiverged)
	}
	a.c, a.sent = c, nil
	return nil
}

// MarshalBinary encodes the server's control variate.
func (a *Scaffold) MarshalBinary() ([]byte, error) {
	s := scaffoldState{C: a.c}
	return s.encode(), nil
}

// UnmarshalBinary reads what MarshalBinary wrote. The next merge then gives the same bits
// as a merge by the aggregator that wrote the state.
func (a *Scaffold) UnmarshalBinary(b []byte) error {
	var s scaffoldState
	if err := s.decode(b); err != nil {
		return err
	}
	if !finite(s.C) {
		return scaffoldFormat.Damaged("the control variate is not finite")
	}
	if a.c != nil && len(a.c) != len(s.C) {
		return fmt.Errorf("aggregate: the saved control variate has %d weights, want %d", len(s.C), len(a.c))
	}
	a.c, a.sent = s.C, nil
	return nil
}
