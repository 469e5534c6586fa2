package state

import (
	"fmt"
	"slices"

	bolt "go.etcd.io/bbolt"

	"loadstar/internal/boltfile"
)

// Chain is an agent's knowledge of the versions of a run's shared weights.
type Chain struct {
	// Version is the newest accepted version, and Weights contains its weights.
	Version int64
	Weights []float32
	// Hashes identifies the most recently accepted weights, oldest first.
	Hashes []string
	Trail  Trail
}

// Trail contains the heads of a run that an agent has seen. A head identifies the weights of a
// version, and contains the previous head's hash.
type Trail struct {
	// Version and Hash describe the newest head. Hash is empty if there is none.
	Version int64  `json:"version"`
	Hash    []byte `json:"hash"`
	// Known contains the weights of the last versions, oldest first.
	Known []KnownVersion `json:"known,omitempty"`
	// Forked describes how the server has contradicted itself, or is empty.
	Forked string `json:"forked,omitempty"`
}

// Weights returns the hash of a version's weights, or an empty value if it is not known.
func (t *Trail) Weights(version int64) string {
	for _, k := range t.Known {
		if k.Version == version {
			return k.Weights
		}
	}
	return ""
}

// KnownVersion contains the version of a head and the hash of its weights.
type KnownVersion struct {
	Version int64  `json:"version"`
	Weights string `json:"weights"`
}

// chainRecord is a Chain on disk.
type chainRecord struct {
	Version int64    `json:"version"`
	Weights value    `json:"weights"`
	Hashes  []string `json:"hashes"`
	Trail   Trail    `json:"trail,omitzero"`
}

// hashesKept is the maximum number of hashes in a chain, and of known versions in a trail. It is
// above the number of versions to which an operator can return.
const hashesKept = 32

// Chain returns the chain of a run, and whether there is one.
func (s *Store) Chain(run string) (c Chain, found bool, err error) {
	err = s.view(func(tx *bolt.Tx) error {
		var r chainRecord
		if found, err = boltfile.Get(tx.Bucket(chainsBucket), []byte(run), &r); err != nil || !found {
			return err
		}
		data, err := r.Weights.find(tx)
		if err != nil {
			return err
		}
		if err := r.Weights.check(run, data); err != nil {
			return fmt.Errorf("the weights of version %d: %w", r.Version, err)
		}
		c = Chain{Version: r.Version, Hashes: r.Hashes, Trail: r.Trail, Weights: make([]float32, len(data)/4)}
		copy(raw(c.Weights), data)
		return release(tx)
	})
	return c, found && err == nil && len(c.Hashes) > 0, err
}

// Follow stores the trail of a run, which must have begun. It never replaces a trail with an older
// one, and it keeps a recorded fork.
func (s *Store) Follow(run string, t Trail) error {
	key := []byte(run)
	return s.update("follow", func(tx *bolt.Tx) error {
		if begun := tx.Bucket(runsBucket).Get(key); begun == nil {
			return fmt.Errorf("run %s has not begun", run)
		}
		var r chainRecord
		if _, err := boltfile.Get(tx.Bucket(chainsBucket), key, &r); err != nil {
			r = chainRecord{}
		}
		if r.Trail.Forked != "" {
			t.Forked = r.Trail.Forked
		}
		if t.Version >= r.Trail.Version || len(r.Trail.Hash) == 0 {
			t.Known = t.Known[max(0, len(t.Known)-hashesKept):]
			r.Trail = t
		}
		r.Trail.Forked = t.Forked
		return boltfile.Put(tx.Bucket(chainsBucket), key, r)
	})
}

// Trails returns the trails of the runs that were used last, at most n of them, newest first.
func (s *Store) Trails(n int) (runs []string, trails []Trail, err error) {
	err = s.view(func(tx *bolt.Tx) error {
		live, _, err := listRuns(tx)
		if err != nil {
			return err
		}
		for _, x := range slices.Backward(live) {
			var r chainRecord
			if _, err := boltfile.Get(tx.Bucket(chainsBucket), []byte(x.name), &r); err != nil || len(r.Trail.Hash) == 0 {
				continue // a damaged chain contains nothing to compare
			}
			if runs, trails = append(runs, x.name), append(trails, r.Trail); len(runs) == n {
				break
			}
		}
		return nil
	})
	return runs, trails, err
}

// Accept adds a version to the chain of a run. The run must have begun ([Store.Begin]). If
// nothing changes, Accept does not write. A chain that is damaged begins again with this
// version.
func (s *Store) Accept(run string, version int64, hash string, weights []float32) error {
	key := []byte(run)
	change := func(tx *bolt.Tx) (r chainRecord, changes bool) {
		if _, err := boltfile.Get(tx.Bucket(chainsBucket), key, &r); err != nil {
			r = chainRecord{Version: -1}
		} else if len(r.Hashes) == 0 {
			r.Version = -1
		}
		return r, version > r.Version || !slices.Contains(r.Hashes, hash)
	}
	var changes bool
	err := s.view(func(tx *bolt.Tx) error {
		_, changes = change(tx)
		return nil
	})
	if err != nil || !changes {
		return err
	}
	var unused uint64
	err = s.update("accept", func(tx *bolt.Tx) error {
		if begun := tx.Bucket(runsBucket).Get(key); begun == nil {
			return fmt.Errorf("run %s has not begun", run)
		}
		r, _ := change(tx)
		r.Hashes = slices.DeleteFunc(r.Hashes, func(h string) bool { return h == hash })
		r.Hashes = append(r.Hashes, hash)
		r.Hashes = r.Hashes[max(0, len(r.Hashes)-hashesKept):]
		if version >= r.Version {
			unused = r.Weights.ID
			var err error
			if r.Weights, err = putValue(tx, run, raw(weights)); err != nil {
				return err
			}
			r.Version = version
		}
		return boltfile.Put(tx.Bucket(chainsBucket), key, r)
	})
	if err != nil {
		return err
	}
	s.discard(unused)
	return s.Sweep()
}
