package round

import (
	"encoding"
	"fmt"

	"loadstar/fed/limit"
	"loadstar/internal/stateformat"
)

var (
	_ encoding.BinaryMarshaler   = (*Server)(nil)
	_ encoding.BinaryUnmarshaler = (*Server)(nil)
)

var serverFormat = stateformat.Format{Name: "server state", Magic: "LODSERVR", Version: 1}

// serverState is the saved state of a server.
type serverState struct {
	Version               int
	Shared                []float32
	Aggregator, Optimizer []byte // empty if the part has no state
	Limits                limit.History
}

func (v *serverState) encode() []byte {
	var w stateformat.Writer
	w.Int(int64(v.Version))
	w.Float32s(v.Shared)
	w.Bytes(v.Aggregator)
	w.Bytes(v.Optimizer)
	v.Limits.Write(&w)
	return serverFormat.Wrap(w.State())
}

func (v *serverState) decode(b []byte) error {
	_, b, err := serverFormat.Unwrap(b)
	if err != nil {
		return err
	}
	return serverFormat.Read(b, func(r *stateformat.Reader) {
		v.Version = int(r.Int())
		v.Shared = r.Float32s()
		v.Aggregator = r.Bytes()
		v.Optimizer = r.Bytes()
		v.Limits.Read(r)
	})
}

// MarshalBinary writes the weights and the state of the aggregator and the optimizer.
func (s *Server) MarshalBinary() ([]byte, error) {
	v := serverState{Version: s.version, Shared: s.shared, Limits: s.history}
	for _, part := range []struct {
		of   any
		into *[]byte
	}{{s.aggregator, &v.Aggregator}, {s.optimizer, &v.Optimizer}} {
		if m, ok := part.of.(encoding.BinaryMarshaler); ok {
			b, err := m.MarshalBinary()
			if err != nil {
				return nil, err
			}
			*part.into = b
		}
	}
	return v.encode(), nil
}

// UnmarshalBinary sets a new server with the same plan to the state that MarshalBinary wrote.
// After an error the server must not be used.
func (s *Server) UnmarshalBinary(b []byte) error {
	var v serverState
	if err := v.decode(b); err != nil {
		return err
	}
	if len(v.Shared) != len(s.shared) {
		return fmt.Errorf("round: the saved state has %d shared weights, want %d as in the plan", len(v.Shared), len(s.shared))
	}
	for _, part := range []struct {
		of   any
		from []byte
	}{{s.aggregator, v.Aggregator}, {s.optimizer, v.Optimizer}} {
		if m, ok := part.of.(encoding.BinaryUnmarshaler); ok {
			if err := m.UnmarshalBinary(part.from); err != nil {
				return err
			}
		}
	}
	s.version, s.shared, s.history = v.Version, v.Shared, v.Limits
	return nil
}
