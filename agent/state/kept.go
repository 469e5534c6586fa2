package state

import (
	"bytes"
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"loadstar/internal/boltfile"
)

// keptRecord is the record on disk that points to a client's current values in a run.
type keptRecord struct {
	Round int64 `json:"round"` // last counted round
	Value value `json:"value"`
	// Scaling is the scaling of the first counted result. It never changes.
	Scaling value `json:"scaling,omitzero"`
	// Rounds are the newest counted rounds, oldest first.
	Rounds []int64 `json:"rounds,omitempty"`
}

// Kept describes a client's values in a run.
type Kept struct {
	// First means that no result of the client has been counted yet, so the client has no
	// values.
	First bool
	// Round is the last counted round. It is not set if First is true.
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
		if found, err = boltfile.Get(tx.Bucket(keptBucket), []byte(key), &r); !found || err != nil {
			return err
		}
		data, err := r.Value.find(tx)
		if err != nil {
			return err
		}
		if len(data) != 4*len(dst) {
			return fmt.Errorf("%d bytes are stored, but the plan needs %d", len(data), 4*len(dst))
		}
		copy(raw(dst), data)
		return release(tx)
	})
	if err == nil && found {
		err = r.Value.check(key, raw(dst))
	}
	if err != nil {
		return Kept{}, fmt.Errorf("reading the values of client %s: %w", client, err)
	}
	return Kept{First: !found, Round: r.Round}, nil
}

// Read returns a client's current values in a run, and its scaling. The scaling is nil if
// it is unknown, because the values were written by an older version. Found reports whether
// a result of the client was counted.
func (s *Store) Read(run, client string) (values []float32, scaling []byte, found bool, err error) {
	key := keptKey(run, client)
	var r keptRecord
	err = s.view(func(tx *bolt.Tx) error {
		var err error
		if found, err = boltfile.Get(tx.Bucket(keptBucket), []byte(key), &r); !found || err != nil {
			return err
		}
		data, err := r.Value.find(tx)
		if err != nil {
			return err
		}
		values = make([]float32, len(data)/4)
		copy(raw(values), data)
		if data, err = r.Scaling.find(tx); err != nil {
			return err
		}
		scaling = bytes.Clone(data)
		return release(tx)
	})
	if err == nil && found {
		err = errors.Join(r.Value.check(key, raw(values)), r.Scaling.check(key, scaling))
	}
	if err != nil {
		return nil, nil, false, fmt.Errorf("reading the values of client %s: %w", client, err)
	}
	return values, scaling, found, nil
}

// Scaling returns the scaling of a client in a run, or nil if there is none yet.
func (s *Store) Scaling(run, client string) (scaling []byte, err error) {
	key := keptKey(run, client)
	var r keptRecord
	err = s.view(func(tx *bolt.Tx) error {
		if found, err := boltfile.Get(tx.Bucket(keptBucket), []byte(key), &r); !found || err != nil {
			return err
		}
		data, err := r.Scaling.find(tx)
		scaling = bytes.Clone(data)
		return err
	})
	if err == nil {
		err = r.Scaling.check(key, scaling)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the scaling of client %s: %w", client, err)
	}
	return scaling, nil
}

// Staged refers to a client's new values, which are not current yet.
type Staged struct {
	client         string
	value, scaling value
}

// Stage writes the values that a client keeps if its result is counted. If the store has no
// scaling of the client yet, scaling is the one from the client's training. Otherwise scaling
// must be empty. If no result ever refers to the values, the next Open removes them as garbage.
func (s *Store) Stage(run, client string, kept []float32, scaling []byte) (Staged, error) {
	if err := CheckName(client); err != nil {
		return Staged{}, err
	}
	g := Staged{client: client}
	if len(kept)+len(scaling) == 0 {
		return g, nil
	}
	err := s.update("stage "+client, func(tx *bolt.Tx) error {
		var err error
		if g.value, err = putValue(tx, keptKey(run, client), raw(kept)); err != nil {
			return err
		}
		g.scaling, err = putValue(tx, keptKey(run, client), scaling)
		return err
	})
	return g, err
}
