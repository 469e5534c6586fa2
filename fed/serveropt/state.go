package serveropt

import (
	"fmt"

	"loadstar/internal/stateformat"
)

var stateFormat = stateformat.Format{Name: "server optimizer's state", Magic: "LODOPTIM", Version: 1}

// state is the saved state of an optimizer. M and V are empty before the first step.
type state struct {
	Kind string
	M, V []float64
}

func encode(s state) []byte {
	var w stateformat.Writer
	w.String(s.Kind)
	w.Float64s(s.M)
	w.Float64s(s.V)
	return stateFormat.Wrap(w.State())
}

// decode reads the state of an optimizer of the given kind. have is the number of weights
// in the optimizer's current state, or 0.
func decode(b []byte, kind string, have int) (state, error) {
	var s state
	_, b, err := stateFormat.Unwrap(b)
	if err != nil {
		return state{}, err
	}
	err = stateFormat.Read(b, func(r *stateformat.Reader) {
		s.Kind = r.String()
		s.M = r.Float64s()
		s.V = r.Float64s()
	})
	switch {
	case err != nil:
		return state{}, err
	case s.Kind != kind:
		return state{}, fmt.Errorf("serveropt: the saved state has the kind %q, want %q", s.Kind, kind)
	case have > 0 && len(s.M) != have:
		return state{}, fmt.Errorf("serveropt: the saved state has %d weights, want %d", len(s.M), have)
	}
	for _, x := range [][]float64{s.M, s.V} {
		for _, f := range x {
			if f-f != 0 {
				return state{}, stateFormat.Damaged("it is not finite")
			}
		}
	}
	return s, nil
}
