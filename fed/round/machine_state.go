package round

import (
	"encoding/json"
	"fmt"

	"loadstar/internal/stateformat"
)

// machineFormat is the newest format of a saved machine. The state is stored as text in a
// column of the ledger, so the format number is a field instead of a header.
const machineFormat = 1

// machineState is the saved state of a machine.
type machineState struct {
	Format  uint64       `json:"format"`
	State   state        `json:"state"`
	Running []Assignment `json:"running"`
	Waiting []Assignment `json:"waiting"`
	Lost    []Assignment `json:"lost"`
}

// MarshalJSON encodes the machine's state. It does not include the plan.
func (m *Machine) MarshalJSON() ([]byte, error) {
	return json.Marshal(machineState{machineFormat, m.state, inOrder(m.running), inOrder(m.waiting), inOrder(m.lost)})
}

// UnmarshalJSON sets a new machine with the same plan and fleet to a saved state. On an
// error the machine is unchanged.
func (m *Machine) UnmarshalJSON(b []byte) error {
	var s machineState
	// Read the format number first: in a newer format, the other fields may have different
	// types.
	if err := json.Unmarshal(b, &struct {
		Format *uint64 `json:"format"`
	}{&s.Format}); err != nil {
		return fmt.Errorf("round: %w", err)
	}
	switch {
	case s.Format > machineFormat:
		return stateformat.Newer("round state", s.Format, machineFormat)
	case s.Format == 0:
		return fmt.Errorf("round: the saved state is %w: it has no format", stateformat.ErrDamaged)
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("round: %w", err)
	}
	var where [3]map[int]Assignment
	for i, list := range [...][]Assignment{s.Running, s.Waiting, s.Lost} {
		where[i] = map[int]Assignment{}
		for _, a := range list {
			if a.Client < 0 || a.Client >= m.fleet || a.Round > s.State.Round || a.Version > s.State.Version {
				return fmt.Errorf("round: the saved state has client %d of round %d and version %d, want a client below %d, a round up to %d and a version up to %d", a.Client, a.Round, a.Version, m.fleet, s.State.Round, s.State.Version)
			}
			where[i][a.Client] = a
		}
	}
	m.state, m.running, m.waiting, m.lost = s.State, where[0], where[1], where[2]
	return nil
}
