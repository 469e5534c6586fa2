package state

import (
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// keptRecord is what counts of a client in a run.
type keptRecord struct {
	Round int64 `json:"round"` // that was counted last
	Value value `json:"value"`
}

// Kept says what is known of a client in a run.
type Kept struct {
	// First says that nothing of the client was counted yet: there are no numbers.
	First bool
	// Round is the last one that was counted, unless First.
	Round int64
}

// Load fills dst with what a client keeps, and leaves it alone if that is nothing.
// Numbers of another length are an error.
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
			return fmt.Errorf("%d bytes are kept, the plan has %d", len(data), 4*len(dst))
		}
		copy(raw(dst), data)
		return release(tx)
	})
	if err == nil && found && r.Value.ID != 0 && checksum(key, raw(dst)) != r.Value.Sum {
		err = fmt.Errorf("%w: numbers do not match their checksum", ErrDamaged)
	}
	if err != nil {
		return Kept{}, fmt.Errorf("what client %s keeps: %w", client, err)
	}
	return Kept{First: !found, Round: r.Round}, nil
}

// Staged are a client's new numbers, which count for nothing yet.
type Staged struct {
	client string
	value  value
}

// Stage writes what a client will keep if its result is counted. It is garbage until
// a result has it.
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

// Discard gives up what was staged and is in no result.
func (s *Store) Discard(all ...Staged) {
	for _, g := range all {
		s.discard(g.value.ID)
	}
}
