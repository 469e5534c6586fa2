package aggregate

import (
	"encoding"
	"fmt"
	"math"
	"slices"

	"loadstar/fed"
)

var (
	_ fed.Aggregator             = (*PerClient)(nil)
	_ encoding.BinaryMarshaler   = (*PerClient)(nil)
	_ encoding.BinaryUnmarshaler = (*PerClient)(nil)
)

// PerClient divides each client's update by the typical size of that client's updates
// (FedAvgAdaptive: bose2024, figure 5, lines 6 to 9):
//
//	v_c = Beta1 v_c + (1-Beta1) delta_c^2,   v_c = 0 at first
//	D   = mean_c(delta_c / (sqrt(v_c) + Epsilon))
//
// All updates have equal weight in the mean. A coordinate where the update is 0
// contributes 0. Beta1 is within [0, 1) and Epsilon is not negative. With the zero value
// of PerClient, only the signs of the updates matter.
//
// PerClient stores 8 bytes per shared weight for every client that has ever returned an update:
// 340 kB per client if all layers of bose2023's model are shared, 3.4 GB for 10,000 clients.
//
// Deviations: the paper prints sqrt(v + epsilon), and it prints sums where it means averages.
// The paper moves one copy of the shared weights per client. According to its formula, all
// copies are equal after each round, so there is only one here. According to its text, each
// client has distinct parameters; server.states: client selects this reading (client.Copy).
type PerClient struct {
	Beta1, Epsilon float64

	v map[fed.ClientID][]float64
}

// Needs implements [fed.Aggregator].
func (*PerClient) Needs() fed.Needs { return fed.Needs{EachUpdate: true} }

// Aggregate implements [fed.Aggregator].
func (a *PerClient) Aggregate(dst []float64, m *fed.Merge) error {
	if !(a.Beta1 >= 0 && a.Beta1 < 1) || !(a.Epsilon >= 0) {
		return fmt.Errorf("aggregate: beta1 is %g and epsilon %g, want beta1 within [0, 1) and epsilon not negative", a.Beta1, a.Epsilon)
	}
	if err := checkUpdates(dst, m); err != nil {
		return err
	}
	if err := a.checkLength(len(dst)); err != nil {
		return err
	}
	if a.v == nil {
		a.v = make(map[fed.ClientID][]float64)
	}
	clear(dst)
	n := float64(len(m.Updates))
	for k := range m.Updates {
		u := &m.Updates[k]
		v := a.v[u.Client]
		if v == nil {
			v = make([]float64, len(dst))
			a.v[u.Client] = v
		}
		for i, delta := range u.Delta {
			d := float64(delta)
			v[i] = float64(a.Beta1*v[i]) + float64((1-a.Beta1)*float64(d*d))
			if d != 0 { // in float64 the square of d does not underflow, so v is not 0 and the term is finite
				dst[i] += d / (math.Sqrt(v[i]) + a.Epsilon) / n
			}
		}
	}
	return nil
}

func (a *PerClient) checkLength(want int) error {
	for _, v := range a.v { // all have the same length
		if len(v) != want {
			return fmt.Errorf("aggregate: %d weights, want %d as in earlier merges", want, len(v))
		}
		break
	}
	return nil
}

// MarshalBinary encodes the second moments of all clients.
func (a *PerClient) MarshalBinary() ([]byte, error) {
	var s perClientState
	for client := range a.v {
		s.Clients = append(s.Clients, string(client))
	}
	slices.Sort(s.Clients)
	for _, client := range s.Clients {
		s.V = append(s.V, a.v[fed.ClientID(client)])
	}
	return s.encode(), nil
}

// UnmarshalBinary reads what MarshalBinary wrote. The next merge then gives the same bits
// as a merge by the aggregator that wrote the state. The state does not include the
// settings.
func (a *PerClient) UnmarshalBinary(b []byte) error {
	var s perClientState
	if err := s.decode(b); err != nil {
		return err
	}
	if len(s.V) > 0 {
		if err := a.checkLength(len(s.V[0])); err != nil {
			return err
		}
	}
	v := make(map[fed.ClientID][]float64, len(s.V))
	for k, client := range s.Clients {
		if len(s.V[k]) != len(s.V[0]) || !finite(s.V[k]) || slices.ContainsFunc(s.V[k], func(x float64) bool { return x < 0 }) {
			return perClientFormat.Damaged("client %s does not have %d finite, non-negative second moments", client, len(s.V[0]))
		}
		v[fed.ClientID(client)] = s.V[k]
	}
	if len(v) != len(s.V) {
		return perClientFormat.Damaged("%d vectors for %d clients", len(s.V), len(v))
	}
	a.v = v
	return nil
}
