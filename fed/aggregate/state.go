package aggregate

import "loadstar/internal/stateformat"

// Formats of saved state.
var (
	scaffoldFormat  = stateformat.Format{Name: "SCAFFOLD's state", Magic: "LODSCAFF", Version: 1}
	perClientFormat = stateformat.Format{Name: "FedAvgAdaptive's state", Magic: "LODPERCL", Version: 1}
)

// scaffoldState is the saved state of a [Scaffold].
type scaffoldState struct {
	C []float64
}

func (s *scaffoldState) encode() []byte {
	var w stateformat.Writer
	w.Float64s(s.C)
	return scaffoldFormat.Wrap(w.State())
}

func (s *scaffoldState) decode(b []byte) error {
	_, b, err := scaffoldFormat.Unwrap(b)
	if err != nil {
		return err
	}
	return scaffoldFormat.Read(b, func(r *stateformat.Reader) { s.C = r.Float64s() })
}

// perClientState is the saved state of a [PerClient].
type perClientState struct {
	Clients []string // ascending
	V       [][]float64
}

func (s *perClientState) encode() []byte {
	var w stateformat.Writer
	w.Int(int64(len(s.Clients)))
	for i, client := range s.Clients {
		w.String(client)
		w.Float64s(s.V[i])
	}
	return perClientFormat.Wrap(w.State())
}

func (s *perClientState) decode(b []byte) error {
	_, b, err := perClientFormat.Unwrap(b)
	if err != nil {
		return err
	}
	return perClientFormat.Read(b, func(r *stateformat.Reader) {
		for range r.Count(16) {
			s.Clients = append(s.Clients, r.String())
			s.V = append(s.V, r.Float64s())
		}
	})
}
