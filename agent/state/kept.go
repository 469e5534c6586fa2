package state

import (
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// keptRecord is the record on disk that points to a client's current values in a run.
type keptRecord struct {
	Round int64 `json:"round"` // last counted round
	Value value `json:"value"`
}

// Kept describes a client's values in a run.
type Kept struct {
	// First means that no result of the client was counted yet, so there are no values.
	First bool
	// Round is the last counted round. It is not set if First is.
	Round int64
}

// Load copies a client's current values to dst. It leaves dst unchanged if the client has
// no values, and fails if their number differs from len(dst).
func (s *Store) Load(run, client string, dst []float32) (Kept, error) {
	key := keptKey(run, client)
	var r keptRecord
	found := false
	err := s.view(func(tx *bolt.Tx) error {
		var err error
		if found, err = getRecord(tx.Bucket(keptBucket), []byte(key), &r); !found || err != nil {
			return err
		}
		data, err := r.Value.find(tx)
		if err != nil {
			return err
		}
		if len(data) != 4*len(dst) {
			return fmt.Errorf("%d bytes are stored, the plan needs %d", len(data), 4*len(dst))
		}
		copy(raw(dst), data)
		return release(tx)
	})
	if err == nil && found && r.Value.ID != 0 && checksum(key, raw(dst)) != r.Value.Sum {
		err = fmt.Errorf("%w: the values do not match their checksum", ErrDamaged)
	}
	if err != nil {
		return Kept{}, fmt.Errorf("reading the values of client %s: %w", client, err)
	}
	return Kept{First: !found, Round: r.Round}, nil
}

// Staged refers to a client's new values, which are not current yet.
type Staged struct {
	client string
	value  value
}

// Stage writes the values that a client keeps if its result is counted. If no result ever
// refers to them, the next Open removes them as garbage.
func (s *Store) Stage(run, client string, kept []float32) (Staged, error) {
	if err := CheckName(client); err != nil {
		return Staged{}, err
	}
	g := Staged{client: client}
	if len(kept) == 0 {
		return g, nil
	}
	err := s.update(func(tx *bolt.Tx) error {
		var err error
		g.value, err = putValue(tx, keptKey(run, client), raw(kept))
		return err
	})
	return g, err
}

// Discard marks staged values that are in no result as garbage.
func (s *Store) Discard(all ...Staged) {
	for _, g := range all {
		s.discard(g.value.ID)
	}
}
