// Package state stores data that an agent must not lose. Clients keep values from one round
// to the next, such as personal layers. The store also contains the results that the server
// has not decided yet, and the accepted versions of the weights.
//
// A client's values change only when the result that was trained with them is counted.
// Training writes the new values next to the old ones ([Store.Stage]). A result is on
// disk before it is sent ([Store.Put]). One transaction removes the result and, if it
// was counted, switches its clients to the new values ([Store.Decide]).
//
// The store is one bbolt file. Values are written once, under an identifier, and small records
// point to the current values. Deciding a result therefore rewrites only the records, never the
// values. Values that no record points to are garbage; [Store.Sweep] and the next [Open] remove
// them.
package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	bolt "go.etcd.io/bbolt"

	"loadstar/internal/boltfile"
)

// Errors that callers distinguish.
var (
	// ErrLocked means that another agent uses the store's folder.
	ErrLocked = errors.New("another agent is using it")
	// ErrDamaged means that the file's content is not what the store wrote.
	ErrDamaged = boltfile.ErrDamaged
	// ErrDecided means that a result was removed because the server has decided it.
	ErrDecided = errors.New("the result is already decided")
	// ErrForgotten means that a run was deleted to make room for newer ones.
	ErrForgotten = errors.New("its personal layers were deleted to make room for newer runs")
)

// Limits of the store.
const (
	runsKept = 8
	// runsKnown is the maximum number of deleted runs whose names are stored, so that Begin
	// can refuse them.
	runsKnown = 256
	// maxName is the longest name of a run or client, in bytes.
	maxName = 1 << 10
)

// The buckets, with the types of their keys and values. Identifiers are big-endian, so that
// bbolt sorts them by number.
var (
	metaBucket    = []byte("meta")    // format; rounds -> dayRecord
	runsBucket    = []byte("runs")    // run -> runRecord
	keptBucket    = []byte("kept")    // run, 0, client -> keptRecord
	resultsBucket = []byte("results") // identifier -> resultRecord
	chainsBucket  = []byte("chains")  // run -> chainRecord
	membersBucket = []byte("members") // identity of a keeper -> Member
	valuesBucket  = []byte("values")  // identifier -> values, never modified
)

// format is the version of the file format. Open refuses files with a newer version.
const format = "1"

// Store is an open file. It is safe for concurrent use.
type Store struct {
	db *bolt.DB
	// path is the file's name. It is empty during Open, which adds the name to errors itself.
	path string

	mu sync.Mutex
	// undecided maps a client of a run to its undecided result.
	undecided map[string]uint64
	// garbage lists the identifiers of values that no record points to.
	garbage []uint64
	// pins lists the runs of the last call of Pin.
	pins []string
	// failed is the error of a failed write. All later writes return it (see update).
	failed error
	disk   func(step Step, what string) error // nil unless the fleet is simulated
}

// Step is a point at which a simulation can make a write fail.
type Step string

// The steps of a write. After an error before the write, nothing is on disk.
const (
	BeforeWrite Step = "before write"
	AfterWrite  Step = "after write"
)

// Open opens the store in a folder. It creates the folder and the file if necessary.
func Open(dir string) (*Store, error) { return OpenWith(dir, nil) }

// OpenWith is like Open, for a simulation of the fleet. The store calls disk at each step of a
// write, with a string that identifies the write.
func OpenWith(dir string, disk func(step Step, what string) error) (s *Store, err error) {
	path := filepath.Join(dir, "agent.db")
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		}
	}()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	s = &Store{undecided: map[string]uint64{}, disk: disk}
	if err := s.open(path); err != nil {
		if s.db != nil {
			_ = s.db.Close() // nothing was written
		}
		return nil, err
	}
	s.path = path
	return s, nil
}

// open reads all records, so that damage is detected before the store is used.
func (s *Store) open(path string) error {
	var err error
	if s.db, err = boltfile.OpenDB(path); errors.Is(err, boltfile.ErrLocked) {
		return ErrLocked
	} else if err != nil {
		return err
	}
	if err = s.update("create", create); err == nil {
		err = s.view(s.survey)
	}
	if err == nil {
		err = s.Sweep()
	}
	return err
}

// create creates the buckets of a new file, and refuses a file of another format.
func create(tx *bolt.Tx) error {
	for _, name := range [][]byte{metaBucket, runsBucket, keptBucket, resultsBucket, chainsBucket, membersBucket, valuesBucket} {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return err
		}
	}
	meta := tx.Bucket(metaBucket)
	switch got := meta.Get([]byte("format")); {
	case got == nil:
		return meta.Put([]byte("format"), []byte(format))
	case string(got) != format:
		return fmt.Errorf("written by a newer Loadstar (format %s, this one reads up to %s): upgrade", got, format)
	}
	return nil
}

// survey finds the undecided results and the garbage in the file.
func (s *Store) survey(tx *bolt.Tx) error {
	used := map[uint64]bool{}
	err := boltfile.Each(tx.Bucket(keptBucket), func(_ []byte, r *keptRecord) error {
		used[r.Value.ID], used[r.Scaling.ID] = true, true
		return nil
	})
	if err != nil {
		return err
	}
	err = boltfile.Each(tx.Bucket(resultsBucket), func(key []byte, r *resultRecord) error {
		used[r.Numbers.ID] = true
		for _, c := range r.Clients {
			used[c.Value.ID], used[c.Scaling.ID] = true, true
			s.undecided[keptKey(r.Run, c.Name)] = binary.BigEndian.Uint64(key)
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = boltfile.Each(tx.Bucket(chainsBucket), func(_ []byte, r *chainRecord) error {
		used[r.Weights.ID] = true
		return nil
	})
	if err != nil {
		return err
	}
	cursor := tx.Bucket(valuesBucket).Cursor()
	for key, _ := cursor.First(); key != nil; key, _ = cursor.Next() {
		if id := binary.BigEndian.Uint64(key); !used[id] {
			s.garbage = append(s.garbage, id)
		}
	}
	return nil
}

// Close closes the file. All writes are already on disk.
func (s *Store) Close() error { return s.db.Close() }

// view runs a read transaction.
func (s *Store) view(look func(tx *bolt.Tx) error) error {
	return s.locate(boltfile.Guard(func() error { return s.db.View(look) }))
}

// locate adds the file's name to an error about damage, because a person must replace the file.
func (s *Store) locate(err error) error {
	if s.path == "" || !errors.Is(err, ErrDamaged) {
		return err
	}
	return fmt.Errorf("%s: %w", s.path, err)
}

// update runs a write transaction. The string what describes it. When update returns, the
// change is on disk. After a failed write the content of the disk is unknown, so all further
// writes fail. Opening the file again shows which writes took effect.
func (s *Store) update(what string, change func(tx *bolt.Tx) error) error {
	s.mu.Lock()
	failed := s.failed
	s.mu.Unlock()
	if failed != nil {
		return failed
	}
	var refused error
	err := s.step(BeforeWrite, what)
	if err == nil {
		err = s.locate(boltfile.Guard(func() error {
			return s.db.Update(func(tx *bolt.Tx) error {
				refused = change(tx)
				return refused
			})
		}))
	}
	if err == nil {
		err = s.step(AfterWrite, what)
	}
	switch {
	case err == nil:
		return s.view(release)
	case refused == nil:
		s.mu.Lock()
		s.failed = err
		s.mu.Unlock()
	}
	return err
}

func (s *Store) step(at Step, what string) error {
	if s.disk == nil {
		return nil
	}
	return s.disk(at, what)
}

// sweepAtOnce is the number of values that Sweep removes in one transaction. It is small
// because bbolt rewrites the neighbours of each removed value.
const sweepAtOnce = 32

// Sweep removes all garbage from the file.
func (s *Store) Sweep() error {
	for {
		s.mu.Lock()
		n := min(len(s.garbage), sweepAtOnce)
		some := s.garbage[:n:n]
		s.garbage = s.garbage[n:]
		s.mu.Unlock()
		if n == 0 {
			return nil
		}
		err := s.update(fmt.Sprint("sweep ", some), func(tx *bolt.Tx) error {
			values := tx.Bucket(valuesBucket)
			for _, id := range some {
				if err := values.Delete(idKey(id)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err // the next Open finds the garbage again
		}
	}
}

// Discard marks staged values that are in no result as garbage.
func (s *Store) Discard(g Staged) { s.discard(g.value.ID, g.scaling.ID) }

// discard marks values as garbage for Sweep.
func (s *Store) discard(ids ...uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if id != 0 {
			s.garbage = append(s.garbage, id)
		}
	}
}

func idKey(id uint64) []byte { return binary.BigEndian.AppendUint64(nil, id) }

// keptKey is the key of a client's values in a run. Names contain no zero byte, so the key
// is unique.
func keptKey(run, client string) string { return run + "\x00" + client }

// CheckName checks that a name is valid for a run or client.
func CheckName(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("the name has %d bytes, want 1 to %d", len(name), maxName)
	}
	for i := range len(name) {
		if name[i] == 0 {
			return errors.New("the name contains a zero byte")
		}
	}
	return nil
}
