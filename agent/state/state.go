// Package state is what an agent must not lose: what its clients keep from one round
// to the next, their personal layers first of all, and results that the server has
// not decided on.
//
// What a client keeps moves when the result that it was trained with is counted, and
// never otherwise. So training writes a client's new numbers beside the old ones
// ([Store.Stage]); a result ([Store.Put]) is on disk before anybody hears of it; and
// one transaction ([Store.Decide]) removes it together with the step from the old
// numbers to the new, or without.
//
// All of it is one bbolt file. Numbers are written once, under an identifier, and
// small records say which of them count: so a result of any number of clients is
// decided on by a small transaction, and what nothing points to is garbage, which is
// swept afterwards, or when the file is opened again.
package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// Errors that a caller may tell apart.
var (
	// ErrLocked says that another agent uses the folder.
	ErrLocked = errors.New("another agent uses it")
	// ErrDamaged says that the disk does not hold what was written.
	ErrDamaged = errors.New("it is damaged")
	// ErrDecided says that a result is not there any more.
	ErrDecided = errors.New("it was decided on")
	// ErrForgotten says that a run was forgotten to make room for newer ones.
	ErrForgotten = errors.New("what its clients keep was forgotten to make room for newer runs")
)

// How much is kept.
const (
	// runsKept is how many runs' numbers are there at a time.
	runsKept = 8
	// runsKnown is of how many forgotten runs that is still known.
	runsKnown = 256
	// maxName bounds the names of runs and clients.
	maxName = 1 << 10
)

// The buckets. Identifiers are big-endian, so that they are in order.
var (
	metaBucket    = []byte("meta")
	runsBucket    = []byte("runs")    // run -> runRecord
	keptBucket    = []byte("kept")    // run, 0, client -> keptRecord
	resultsBucket = []byte("results") // identifier -> resultRecord
	valuesBucket  = []byte("values")  // identifier -> numbers, which never change
)

// format is that of the file; another one is refused.
const format = "1"

// Store is an open file. It is safe for concurrent use.
type Store struct {
	db *bolt.DB

	mu sync.Mutex
	// undecided has the identifier of the result that a client of a run waits for.
	undecided map[string]uint64
	// garbage are values that nothing points to.
	garbage []uint64
	// failed is why nothing more is written: see update.
	failed error
}

// Open opens the store in a folder, and makes both if they are not there.
func Open(dir string) (s *Store, err error) {
	path := filepath.Join(dir, "agent.db")
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		}
	}()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	s = &Store{undecided: map[string]uint64{}}
	if err := s.open(path); err != nil {
		if s.db != nil {
			s.db.Close() // nothing was written
		}
		return nil, err
	}
	return s, nil
}

// open also looks at all records, so that damage shows before anything is done.
func (s *Store) open(path string) error {
	if err := s.openFile(path); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	err = s.update(func(tx *bolt.Tx) error {
		if tx.Size() > info.Size() {
			return fmt.Errorf("%w: it has %d bytes of %d", ErrDamaged, info.Size(), tx.Size())
		}
		return create(tx)
	})
	if err == nil {
		err = s.view(s.survey)
	}
	if err == nil {
		err = s.Sweep()
	}
	return err
}

func (s *Store) openFile(path string) error {
	var file *os.File
	options := &bolt.Options{
		Timeout: 200 * time.Millisecond, FreelistType: bolt.FreelistMapType,
		OpenFile: func(name string, flag int, mode os.FileMode) (f *os.File, err error) {
			file, err = os.OpenFile(name, flag, mode)
			return file, err
		},
	}
	err := guard(func() (err error) {
		s.db, err = bolt.Open(path, 0o600, options)
		return err
	})
	switch {
	case errors.Is(err, ErrDamaged): // what is mapped holds the lock even of a closed file
		syscall.Flock(int(file.Fd()), syscall.LOCK_UN) //nolint:errcheck // it is refused anyway
		file.Close()
	case errors.Is(err, bolterrors.ErrTimeout):
		return ErrLocked
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum), errors.Is(err, bolterrors.ErrVersionMismatch):
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return err
}

// guard makes an error of what bbolt does with a damaged file: it trusts what it
// reads, and follows it to wherever it leads.
func guard(do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if x := recover(); x != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, x)
		}
	}()
	return do()
}

// create makes the buckets of a new file, and refuses another format.
func create(tx *bolt.Tx) error {
	for _, name := range [][]byte{metaBucket, runsBucket, keptBucket, resultsBucket, valuesBucket} {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return err
		}
	}
	meta := tx.Bucket(metaBucket)
	switch got := meta.Get([]byte("format")); {
	case got == nil:
		return meta.Put([]byte("format"), []byte(format))
	case string(got) != format:
		return fmt.Errorf("it has format %s, this version reads %s", got, format)
	}
	return nil
}

// survey finds out which clients wait, and what is garbage.
func (s *Store) survey(tx *bolt.Tx) error {
	used := map[uint64]bool{}
	err := eachRecord(tx.Bucket(keptBucket), func(_ []byte, r *keptRecord) error {
		used[r.Value.ID] = true
		return nil
	})
	if err != nil {
		return err
	}
	err = eachRecord(tx.Bucket(resultsBucket), func(key []byte, r *resultRecord) error {
		used[r.Numbers.ID] = true
		for _, c := range r.Clients {
			used[c.Value.ID] = true
			s.undecided[keptKey(r.Run, c.Name)] = binary.BigEndian.Uint64(key)
		}
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

// Close closes the file. Everything that was written is on disk already.
func (s *Store) Close() error { return s.db.Close() }

// view reads the file.
func (s *Store) view(look func(tx *bolt.Tx) error) error {
	return guard(func() error { return s.db.View(look) })
}

// update changes the file: when it returns, the change is on disk. If that fails,
// nobody knows what the disk holds, and nothing more is written: whoever opens the
// file again sees the truth.
func (s *Store) update(change func(tx *bolt.Tx) error) error {
	s.mu.Lock()
	failed := s.failed
	s.mu.Unlock()
	if failed != nil {
		return failed
	}
	var refused error
	err := guard(func() error {
		return s.db.Update(func(tx *bolt.Tx) error {
			refused = change(tx)
			return refused
		})
	})
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

// sweepAtOnce bounds a transaction of Sweep: what lies beside a value that is
// removed may have to be written again.
const sweepAtOnce = 32

// Sweep removes what nothing points to any more.
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
		err := s.update(func(tx *bolt.Tx) error {
			values := tx.Bucket(valuesBucket)
			for _, id := range some {
				if err := values.Delete(idKey(id)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err // they are found again when the file is opened
		}
	}
}

// discard notes that nothing points to values any more.
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

// keptKey is under which a client's numbers of a run are found. No name has a zero
// in it.
func keptKey(run, client string) string { return run + "\x00" + client }

// CheckName says whether a run or a client can be kept under a name.
func CheckName(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("a name of %d bytes; 1 to %d are possible", len(name), maxName)
	}
	for i := range len(name) {
		if name[i] == 0 {
			return errors.New("a name with a zero byte")
		}
	}
	return nil
}
