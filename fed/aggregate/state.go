package aggregate

import "loadstar/internal/stateformat"

// Formats of saved state. In format 0, the state was encoded as a gob of the struct below.
var (
	scaffoldFormat  = stateformat.Format{Name: "SCAFFOLD's state", Magic: "LODSCAFF", Version: 1, Bare: true}
	perClientFormat = stateformat.Format{Name: "FedAvgAdaptive's state", Magic: "LODPERCL", Version: 1, Bare: true}
)

// scaffoldState is the saved state of a [Scaffold].
type scaffoldState struct {
	Kind string // only in format 0
	C    []float64
}

const scaffoldKind = "control variate"

func (s *scaffoldState) encode() []byte {
	var w stateformat.Writer
	w.Float64s(s.C)
	return scaffoldFormat.Wrap(w.State())
}

func (s *scaffoldState) decode(b []byte) error {
	format, b, err := scaffoldFormat.Unwrap(b)
	if err != nil {
		return err
	}
	if format == 0 {
		if err := scaffoldFormat.Gob(b, s); err != nil {
			return err
		}
		if s.Kind != scaffoldKind {
			return scaffoldFormat.Damaged("its kind is %q, want %q", s.Kind, scaffoldKind)
		}
		return nil
	}
	return scaffoldFormat.Read(b, func(r *stateformat.Reader) { s.C = r.Float64s() })
}

// perClientState is the saved state of a [PerClient].
type perClientState struct {
	Kind    string   // only in format 0
	Clients []string // ascending
	V       [][]float64
}

const perClientKind = "per-client second moments"

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
	format, b, err := perClientFormat.Unwrap(b)
	if err != nil {
		return err
	}
	if format == 0 {
		if err := perClientFormat.Gob(b, s); err != nil {
			return err
		}
		if s.Kind != perClientKind || len(s.Clients) != len(s.V) {
			return perClientFormat.Damaged("%d vectors for %d clients, kind %q", len(s.V), len(s.Clients), s.Kind)
		}
		return nil
	}
	return perClientFormat.Read(b, func(r *stateformat.Reader) {
		for range r.Count(16) {
			s.Clients = append(s.Clients, r.String())
			s.V = append(s.V, r.Float64s())
		}
	})
}
