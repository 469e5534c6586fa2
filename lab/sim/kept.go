package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"loadstar/internal/disk"
)

// Kept is an open file of client values, with a cache in memory.
//
// Load, Put and Lend may be called concurrently. While they read or write the file, they
// hold no lock that calls for other clients need. Commit, Restore and Close wait for calls
// in progress.
//
//	header           one page: magic, clients, floats, identity, checksums
//	client 0         slot 0, slot 1, slot 2
//	client 1         ...
//
// A slot contains the floats in memory layout, little-endian, and a checksum. Slots are
// padded to whole pages, so a write that a crash interrupts cannot damage a neighbouring
// slot.
//
// [Kept.Commit] records a state of all clients and returns a snapshot, which lists the slot of
// each client. The caller saves the snapshot with its checkpoint. Until [Kept.Release], the
// file contains the states of both the last commit and the previous one, so the file has a
// complete state even if the disk is slow. A store that was just opened has the initial values
// until [Kept.Restore].
type Kept struct {
	path    string
	file    *os.File
	floats  int
	initial []float32
	id      [16]byte // identifies the file to which a snapshot belongs

	all     sync.RWMutex // locked for writing by operations on all clients
	clients []entry
	wrote   atomic.Bool           // the file was written to since the last fsync
	failed  atomic.Pointer[error] // the first failed write; every later call returns it

	mu   sync.Mutex // guards the fields below; locked after a client's lock
	ring []int32    // the clients with a value in memory, in the order of the clock's hand
	hand int
	room int // the largest length of the ring

	memory []float32 // memory for the values of room clients
}

// entry contains the values of one client and their place in the file.
type entry struct {
	mu    sync.Mutex
	value []float32 // nil if it is not in memory or was never stored
	dirty bool      // value is newer than the value in the file
	used  bool      // used since the hand last passed it
	slot  int8      // the slot with the newest value in the file
	last  int8      // the slot in the last commit
	saved int8      // the slot in the newest commit whose snapshot was saved
	sum   uint32    // checksum in the slot with the newest value
}

// none is the value of a slot field if there is no slot.
const none int8 = -1

// OpenKept opens the file, or creates it if it does not exist. Clients that were never stored
// have the initial values. memory limits the size of the values in memory, in bytes. If memory
// is 0, values are only in the file.
func OpenKept(path string, clients, floats int, initial []float32, memory int64) (*Kept, error) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return nil, errors.New("personal weights are stored in memory layout: this machine must be little-endian")
	}
	if clients < 0 || floats < 0 || len(initial) != floats {
		return nil, fmt.Errorf("%d floats for each of %d clients need as many initial values, not %d", floats, clients, len(initial))
	}
	s := &Kept{path: path, floats: floats, initial: slices.Clone(initial), clients: make([]entry, clients)}
	for i := range s.clients {
		s.clients[i].slot, s.clients[i].last, s.clients[i].saved = none, none, none
	}
	if floats > 0 {
		s.room = int(min(max(memory, 0)/int64(4*floats), int64(clients)))
	}
	var err error
	if s.file, err = os.OpenFile(path, os.O_RDWR, 0); errors.Is(err, os.ErrNotExist) {
		if err := s.create(); err != nil {
			return nil, err
		}
		s.file, err = os.OpenFile(path, os.O_RDWR, 0)
	}
	if err != nil {
		return nil, err
	}
	if err := s.check(); err != nil {
		s.file.Close()
		return nil, err
	}
	if s.room > 0 {
		// The garbage collector does not scan mapped memory, and its pages use no memory
		// until they are written to.
		b, err := disk.MapMemory(4 * s.room * floats)
		if err != nil {
			s.file.Close()
			return nil, fmt.Errorf("%d MB for personal weights: %w", 4*s.room*floats>>20, err)
		}
		s.memory = unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), s.room*floats)
	}
	return s, nil
}

// Close closes the file and discards values that were stored since the last commit.
func (s *Kept) Close() error {
	s.all.Lock()
	defer s.all.Unlock()
	_ = s.fail(os.ErrClosed) // later calls return this error
	var err error
	if s.memory != nil {
		err = disk.Unmap(raw(s.memory))
		s.memory = nil
	}
	return errors.Join(err, s.file.Close())
}

// fail makes every later call return err. After a failed write, the file may contain an
// incomplete value. The kernel may also have dropped the data, and may report success for the
// next write. The last commit is still intact.
func (s *Kept) fail(err error) error {
	s.failed.CompareAndSwap(nil, &err)
	return *s.failed.Load()
}

// Load copies a client's values into dst. first reports that they are the initial values,
// because the client was never stored.
func (s *Kept) Load(client int, dst []float32) (first bool, err error) {
	s.all.RLock()
	defer s.all.RUnlock()
	if err := s.failed.Load(); err != nil {
		return false, *err
	}
	c := &s.clients[client]
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.value != nil:
		c.used = true
		copy(dst[:s.floats], c.value)
		return false, nil
	case c.slot == none:
		copy(dst[:s.floats], s.initial)
		return true, nil
	}
	if _, err := s.read(client, c.slot, dst[:s.floats]); err != nil {
		return false, err
	}
	// Cache the value if there is room, so that the values of a small fleet are read only once.
	// A read does not evict other values.
	if c.value = s.claim(client); c.value != nil {
		copy(c.value, dst)
	}
	return false, nil
}

// Stored reports whether a client's values were ever stored.
func (s *Kept) Stored(client int) bool {
	s.all.RLock()
	defer s.all.RUnlock()
	c := &s.clients[client]
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value != nil || c.slot != none
}

// Put stores a copy of src as the client's values.
func (s *Kept) Put(client int, src []float32) error {
	s.all.RLock()
	defer s.all.RUnlock()
	if err := s.failed.Load(); err != nil {
		return *err
	}
	if len(src) != s.floats {
		return fmt.Errorf("client %d stores %d floats, want %d", client, len(src), s.floats)
	}
	c := &s.clients[client]
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.value == nil {
		if c.value = s.claim(client); c.value == nil {
			if err := s.steal(client); err != nil {
				return err
			}
		}
	} else {
		c.used = true
	}
	if c.value == nil {
		return s.write(client, src)
	}
	copy(c.value, src)
	c.dirty = true
	return nil
}

// Lend returns a client's values for modification in place. All other calls for the client wait
// until [Kept.Return]. Lend returns nil if the values are not in memory and there is no room
// for them.
func (s *Kept) Lend(client int) (values []float32, first bool, err error) {
	s.all.RLock()
	defer func() {
		if values == nil {
			s.all.RUnlock()
		}
	}()
	if err := s.failed.Load(); err != nil {
		return nil, false, *err
	}
	c := &s.clients[client]
	c.mu.Lock()
	defer func() {
		if values == nil {
			c.mu.Unlock()
		}
	}()
	first = c.value == nil && c.slot == none
	if c.value != nil {
		c.used = true
		return c.value, false, nil
	}
	if c.value = s.claim(client); c.value == nil {
		if err := s.steal(client); err != nil || c.value == nil {
			return nil, first, err
		}
	}
	if first {
		copy(c.value, s.initial)
	} else if _, err := s.read(client, c.slot, c.value); err != nil {
		return nil, false, s.fail(err) // the value in memory is not valid
	}
	return c.value, first, nil
}

// Return stores the modified values of a client and allows other calls for it. It must follow a
// call of [Kept.Lend] that returned values.
func (s *Kept) Return(client int) {
	c := &s.clients[client]
	c.dirty = true
	c.mu.Unlock()
	s.all.RUnlock()
}
