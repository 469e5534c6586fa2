package serveropt

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
)

// state is what is saved of an optimizer. Without any step M and V are empty.
type state struct {
	Kind string
	M, V []float64
}

func encode(s state) ([]byte, error) {
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(s)
	return b.Bytes(), err
}

// decode reads the state of an optimizer that has one of so many weights already, or
// of none.
func decode(b []byte, kind string, have int) (state, error) {
	var s state
	r := bytes.NewReader(b)
	if err := gob.NewDecoder(r).Decode(&s); err != nil {
		return state{}, fmt.Errorf("serveropt: reading saved state: %w", err)
	}
	switch {
	case r.Len() > 0:
		return state{}, fmt.Errorf("serveropt: %d bytes after the saved state", r.Len())
	case s.Kind != kind:
		return state{}, fmt.Errorf("serveropt: the saved state is of the kind %q, want %q", s.Kind, kind)
	case have > 0 && len(s.M) != have:
		return state{}, fmt.Errorf("serveropt: the saved state is of %d weights, want %d", len(s.M), have)
	}
	for _, x := range [][]float64{s.M, s.V} {
		for _, f := range x {
			if f-f != 0 {
				return state{}, errors.New("serveropt: the saved state is not finite")
			}
		}
	}
	return s, nil
}
