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

// Scaffold is [Mean] that also keeps the server's control variate (SCAFFOLD,
// reddi2021, appendix B.2, algorithm 6; Karimireddy et al. 2020, option II):
//
//	D = mean_S(delta)
//	c = c + |S|/N mean_S(delta of c_i),   c = 0 at first
//
// where S are the updates merged together and N is the fleet. The first mean weighs
// updates as the plan says, the second weighs all the same. The zero value is ready
// for use.
//
// Deviations: c is kept in float64 and sent as float32. In a round that is abandoned
// at its deadline, the clients that were counted have moved their c_i, and c does not
// follow; a plan with deadlines should have a quorum that is nearly always met.
type Scaffold struct {
	c    []float64 // nil before the first merge, that is, 0
	sent []float32 // c as it is sent, made anew after each merge; nil until asked for
}

// Needs implements [fed.Aggregator].
func (*Scaffold) Needs() fed.Needs { return fed.Needs{Control: true} }

// Start implements [fed.Starter]. The tasks of a version share one control variate.
// It panics if the task's weights are not as many as those of the merges before.
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
		return fmt.Errorf("aggregate: a fleet of %d", m.Fleet)
	}
	if a.c != nil && len(a.c) != len(dst) {
		return fmt.Errorf("aggregate: the control variate is of %d weights, the merge is of %d", len(a.c), len(dst))
	}
	for _, s := range m.Sums {
		if s.Delta == nil || s.Control == nil || s.Control.Len() != len(dst) || s.Control.Updates() != s.Delta.Updates() {
			return fmt.Errorf("aggregate: the updates of version %d have not one change of a control variate of %d weights each", s.Version, len(dst))
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
	// |S|/N · total/weight, and without rounding it twice if |S| is the weight.
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

// MarshalBinary writes the control variate.
func (a *Scaffold) MarshalBinary() ([]byte, error) {
	s := scaffoldState{C: a.c}
	return s.encode(), nil
}

// UnmarshalBinary reads what MarshalBinary wrote. The next merge then gives the same bits
// as without the interruption.
func (a *Scaffold) UnmarshalBinary(b []byte) error {
	var s scaffoldState
	if err := s.decode(b); err != nil {
		return err
	}
	if !finite(s.C) {
		return scaffoldFormat.Damaged("the control variate is not finite")
	}
	if a.c != nil && len(a.c) != len(s.C) {
		return fmt.Errorf("aggregate: a control variate of %d weights, want %d", len(s.C), len(a.c))
	}
	a.c, a.sent = s.C, nil
	return nil
}
