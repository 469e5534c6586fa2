package state

import (
	"encoding/binary"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"loadstar/internal/boltfile"
)

// Result is a result that the server has not decided: one client's update in a round of a
// run, or the sum of several clients' updates.
type Result struct {
	ID      uint64
	Run     string
	Round   int64
	Clients []string
	// Head is the result's metadata. The store does not interpret it.
	Head []byte
	// Size is the length of the result's numbers in bytes.
	Size int64
}

type resultRecord struct {
	Run     string         `json:"run"`
	Round   int64          `json:"round"`
	Clients []clientRecord `json:"clients"`
	Head    []byte         `json:"head"`
	Numbers value          `json:"numbers"`
}

// clientRecord refers to the values that a client keeps if the result is counted.
type clientRecord struct {
	Name  string `json:"name"`
	Value value  `json:"value"`
	// Scaling is set if the client had no scaling when it trained.
	Scaling value `json:"scaling,omitzero"`
}

// Put stores a result with the staged values of its clients. When it returns, the result
// is on disk. A client can have only one undecided result per run. Masked is nil unless the
// result is masked.
func (s *Store) Put(run string, round int64, clients []Staged, head, numbers []byte, masked *Masked) (Result, error) {
	if err := CheckName(run); err != nil {
		return Result{}, err
	}
	r := resultRecord{Run: run, Round: round, Head: head}
	out := Result{Run: run, Round: round, Head: head, Size: int64(len(numbers))}
	for _, c := range clients {
		r.Clients = append(r.Clients, clientRecord{c.client, c.value, c.scaling})
		out.Clients = append(out.Clients, c.client)
	}
	if err := s.vacant(&r); err != nil {
		return Result{}, err
	}
	err := s.update("put", func(tx *bolt.Tx) (err error) {
		if masked != nil {
			if err := noteMasked(tx, &r, masked); err != nil {
				return err
			}
		}
		results := tx.Bucket(resultsBucket)
		if out.ID, err = results.NextSequence(); err != nil {
			return err
		}
		if r.Numbers, err = putValue(tx, run, numbers); err != nil {
			return err
		}
		return boltfile.Put(results, idKey(out.ID), &r)
	})
	if err != nil {
		return Result{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range r.Clients {
		s.undecided[keptKey(run, c.Name)] = out.ID
	}
	return out, nil
}

// vacant checks that no client of a result has another undecided result.
func (s *Store) vacant(r *resultRecord) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(r.Clients) == 0 {
		return fmt.Errorf("the result of round %d has no clients", r.Round+1)
	}
	for _, c := range r.Clients {
		if id, ok := s.undecided[keptKey(r.Run, c.Name)]; ok {
			return fmt.Errorf("client %s in round %d: its result %d is not decided", c.Name, r.Round+1, id)
		}
	}
	return nil
}

// Results returns all undecided results, oldest first.
func (s *Store) Results() ([]Result, error) {
	var all []Result
	err := s.view(func(tx *bolt.Tx) error {
		return boltfile.Each(tx.Bucket(resultsBucket), func(key []byte, r *resultRecord) error {
			out := Result{ID: binary.BigEndian.Uint64(key), Run: r.Run, Round: r.Round, Head: r.Head, Size: r.Numbers.Bytes}
			for _, c := range r.Clients {
				out.Clients = append(out.Clients, c.Name)
			}
			all = append(all, out)
			return nil
		})
	})
	return all, err
}

// Numbers fills p with bytes of a result's numbers, starting at an offset. At offset 0, where
// a transfer begins, it checks all numbers.
func (s *Store) Numbers(id uint64, p []byte, offset int64) error {
	return s.view(func(tx *bolt.Tx) error {
		var r resultRecord
		if found, err := boltfile.Get(tx.Bucket(resultsBucket), idKey(id), &r); err != nil {
			return err
		} else if !found {
			return fmt.Errorf("result %d: %w", id, ErrDecided)
		}
		data, err := r.Numbers.find(tx)
		if err != nil {
			return err
		}
		if offset < 0 || offset > int64(len(data)) || int64(len(p)) > int64(len(data))-offset {
			return fmt.Errorf("reading %d bytes at offset %d of %d", len(p), offset, len(data))
		}
		if offset == 0 {
			if err := r.Numbers.check(r.Run, data); err != nil {
				return fmt.Errorf("the numbers of result %d: %w", id, err)
			}
		}
		copy(p, data[offset:])
		return release(tx)
	})
}

// Decide removes results in one transaction. Clients of counted results switch to their
// staged values; clients of dropped results keep their old ones. Decide ignores results
// that are already removed.
func (s *Store) Decide(counted, dropped []uint64) error {
	var decided []string
	var garbage []uint64
	err := s.update(fmt.Sprint("decide ", counted, dropped), func(tx *bolt.Tx) error {
		for i, ids := range [][]uint64{counted, dropped} {
			for _, id := range ids {
				clients, unused, err := decide(tx, id, i == 0)
				if err != nil {
					return err
				}
				decided, garbage = append(decided, clients...), append(garbage, unused...)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.settle(decided, garbage)
	return s.Sweep()
}

// settle updates the fields undecided and garbage after a transaction that decided results.
func (s *Store) settle(clients []string, garbage []uint64) {
	s.mu.Lock()
	for _, key := range clients {
		delete(s.undecided, key)
	}
	s.mu.Unlock()
	s.discard(garbage...)
}

// decide removes a result. It returns the keys of the result's clients and the identifiers
// of values that have become garbage.
func decide(tx *bolt.Tx, id uint64, counted bool) (clients []string, garbage []uint64, err error) {
	results, kept := tx.Bucket(resultsBucket), tx.Bucket(keptBucket)
	var r resultRecord
	if found, err := boltfile.Get(results, idKey(id), &r); !found || err != nil {
		return nil, nil, err
	}
	garbage = append(garbage, r.Numbers.ID)
	for _, c := range r.Clients {
		key := keptKey(r.Run, c.Name)
		clients = append(clients, key)
		if !counted {
			garbage = append(garbage, c.Value.ID, c.Scaling.ID)
			continue
		}
		var old keptRecord
		if _, err := boltfile.Get(kept, []byte(key), &old); err != nil {
			return nil, nil, err
		}
		garbage = append(garbage, old.Value.ID)
		scaling := old.Scaling
		if scaling.ID == 0 {
			scaling = c.Scaling
		} else {
			garbage = append(garbage, c.Scaling.ID)
		}
		if err := boltfile.Put(kept, []byte(key), keptRecord{Round: r.Round, Value: c.Value, Scaling: scaling, Rounds: newest(append(old.Rounds, r.Round))}); err != nil {
			return nil, nil, err
		}
	}
	return clients, garbage, results.Delete(idKey(id))
}
