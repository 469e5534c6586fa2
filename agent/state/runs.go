package state

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"

	bolt "go.etcd.io/bbolt"

	"loadstar/internal/boltfile"
)

// runRecord is the record of a run for which clients train, or of a deleted run.
type runRecord struct {
	// Used orders runs by their last use; a higher number is more recent.
	Used uint64 `json:"used"`
	// Forgotten means that the values of the run are deleted.
	Forgotten bool `json:"forgotten,omitempty"`
	// Private means that the deleted run had masked results. Its record is kept, because
	// otherwise a run that began again would be masked a second time.
	Private bool `json:"private,omitempty"`
	// Pinned means that the values of the run must not be deleted.
	Pinned bool `json:"pinned,omitempty"`
	// Tasks are the newest tasks of the clients' training, oldest first.
	Tasks []taskRecord `json:"tasks,omitempty"`
	// Masked are the newest rounds with masked results, oldest first.
	Masked []maskedRecord `json:"masked,omitempty"`
}

// Begin must be called before clients train for a run. Repeated calls are cheap. An agent does
// not learn when a run ends, so the store keeps the most recently used runs. If it has too many
// runs, Begin deletes the least recently used one and returns the identifiers of its undecided
// results. It does not delete pinned runs ([Store.Pin]). A deleted run cannot continue. For
// such a run, Begin returns [ErrForgotten].
func (s *Store) Begin(run string) (dropped []uint64, err error) {
	if err := CheckName(run); err != nil {
		return nil, err
	}
	current, err := s.current(run)
	if current || err != nil {
		return nil, err
	}
	var clients []string
	var garbage []uint64
	err = s.update("begin", func(tx *bolt.Tx) error {
		runs := tx.Bucket(runsBucket)
		used, err := runs.NextSequence()
		if err != nil {
			return err
		}
		var r runRecord
		if _, err := boltfile.Get(runs, []byte(run), &r); err != nil {
			return err
		}
		if err := boltfile.Put(runs, []byte(run), runRecord{Used: used, Pinned: r.Pinned || s.pinned(run), Tasks: r.Tasks, Masked: r.Masked}); err != nil {
			return err
		}
		live, forgotten, err := listRuns(tx)
		if err != nil {
			return err
		}
		live = slices.DeleteFunc(live, func(r namedRun) bool { return r.pinned })
		for ; len(live) > runsKept; live = live[1:] {
			ids, unused, keys, err := forget(tx, live[0].name)
			if err != nil {
				return err
			}
			dropped, garbage, clients = append(dropped, ids...), append(garbage, unused...), append(clients, keys...)
			if err := boltfile.Put(runs, []byte(live[0].name), runRecord{Used: live[0].used, Forgotten: true, Private: live[0].private}); err != nil {
				return err
			}
			if !live[0].private {
				forgotten = append(forgotten, live[0])
			}
		}
		for ; len(forgotten) > runsKnown; forgotten = forgotten[1:] {
			if err := runs.Delete([]byte(forgotten[0].name)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.settle(clients, garbage)
	return dropped, s.Sweep()
}

// current reports whether a run is already the most recently used one, so Begin need
// not write.
func (s *Store) current(run string) (current bool, err error) {
	err = s.view(func(tx *bolt.Tx) error {
		runs := tx.Bucket(runsBucket)
		var r runRecord
		found, err := boltfile.Get(runs, []byte(run), &r)
		if err != nil {
			return err
		}
		if r.Forgotten {
			return ErrForgotten
		}
		current = found && r.Used == runs.Sequence()
		return nil
	})
	return current, err
}

// namedRun is a run with its position in the order of use.
type namedRun struct {
	name    string
	used    uint64
	pinned  bool
	private bool
}

// listRuns returns the runs, least recently used first, without deleted private ones.
func listRuns(tx *bolt.Tx) (live, forgotten []namedRun, err error) {
	err = boltfile.Each(tx.Bucket(runsBucket), func(key []byte, r *runRecord) error {
		n := namedRun{string(key), r.Used, r.Pinned, len(r.Masked) > 0}
		switch {
		case !r.Forgotten:
			live = append(live, n)
		case !r.Private:
			forgotten = append(forgotten, n)
		}
		return nil
	})
	for _, list := range [][]namedRun{live, forgotten} {
		slices.SortFunc(list, func(a, b namedRun) int { return cmp.Compare(a.used, b.used) })
	}
	return live, forgotten, err
}

// Pin protects the values of the given runs, and releases all other runs. A run that has not
// begun is pinned when it begins. If nothing changes, Pin does not write.
func (s *Store) Pin(runs []string) error {
	s.mu.Lock()
	s.pins = slices.Clone(runs)
	s.mu.Unlock()
	change := map[string]runRecord{}
	look := func(tx *bolt.Tx) error {
		clear(change)
		return boltfile.Each(tx.Bucket(runsBucket), func(key []byte, r *runRecord) error {
			if pin := slices.Contains(runs, string(key)) && !r.Forgotten; pin != r.Pinned {
				r.Pinned = pin
				change[string(key)] = *r
			}
			return nil
		})
	}
	if err := s.view(look); err != nil || len(change) == 0 {
		return err
	}
	return s.update("pin", func(tx *bolt.Tx) error {
		if err := look(tx); err != nil {
			return err
		}
		for run, r := range change {
			if err := boltfile.Put(tx.Bucket(runsBucket), []byte(run), r); err != nil {
				return err
			}
		}
		return nil
	})
}

// pinned reports whether a run was in the last list of pinned runs.
func (s *Store) pinned(run string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.pins, run)
}

// forget deletes a run. It returns the deleted results, the identifiers of values that have
// become garbage, and the clients of the results.
func forget(tx *bolt.Tx, run string) (dropped, garbage []uint64, clients []string, err error) {
	err = boltfile.Each(tx.Bucket(resultsBucket), func(key []byte, r *resultRecord) error {
		if r.Run == run {
			dropped = append(dropped, binary.BigEndian.Uint64(key))
		}
		return nil
	})
	if err != nil {
		return nil, nil, nil, err
	}
	for _, id := range dropped {
		keys, unused, err := decide(tx, id, false)
		if err != nil {
			return nil, nil, nil, err
		}
		clients, garbage = append(clients, keys...), append(garbage, unused...)
	}
	chains := tx.Bucket(chainsBucket)
	var c chainRecord
	if _, err := boltfile.Get(chains, []byte(run), &c); err != nil {
		return nil, nil, nil, err
	}
	garbage = append(garbage, c.Weights.ID)
	if err := chains.Delete([]byte(run)); err != nil {
		return nil, nil, nil, err
	}
	kept := tx.Bucket(keptBucket)
	prefix := []byte(keptKey(run, ""))
	var keys [][]byte
	cursor := kept.Cursor()
	for key, data := cursor.Seek(prefix); bytes.HasPrefix(key, prefix); key, data = cursor.Next() {
		var r keptRecord
		if err := boltfile.Decode(key, data, &r); err != nil {
			return nil, nil, nil, err
		}
		garbage = append(garbage, r.Value.ID, r.Scaling.ID)
		keys = append(keys, bytes.Clone(key))
	}
	for _, key := range keys {
		if err := kept.Delete(key); err != nil {
			return nil, nil, nil, err
		}
	}
	return dropped, garbage, clients, nil
}
