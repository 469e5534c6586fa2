package sim

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"loadstar/internal/atomicfile"
	"loadstar/internal/filelock"
	"loadstar/internal/mmap"
)

// keep holds what clients keep between rounds: for every client a fixed number of
// floats. What was stored lately is in memory, the rest in a file:
//
//	header           one page: magic, clients, floats, identity, checksums
//	client 0         slot 0, slot 1, slot 2
//	client 1         ...
//
// A slot is the floats as they lie in memory, little-endian, and a checksum, padded
// to whole pages so that a write cut short by a crash harms no neighbour. Of a
// client's slots, those that the last commit and the last settled one saw are never
// written to, so the file always holds both whole, and the disk may take its time
// over a commit. Which slot is which stands in the commit's blob and nowhere else: a
// file that was just opened holds nothing until restore.
//
// load and store are safe for concurrent use by different clients, and no lock that
// others need is held while one of them reads or writes the file. commit, restore
// and close wait for them.
type keep struct {
	path    string
	file    *os.File
	floats  int
	initial []float32
	id      [16]byte // ties a blob to its file

	all     sync.RWMutex // held for writing by what concerns all clients
	clients []kept
	wrote   atomic.Bool           // to the file since the last fsync
	failed  atomic.Pointer[error] // of the first write that failed; nothing goes on after it

	mu   sync.Mutex // guards what follows; taken after a client's lock
	ring []int32    // the clients with a value in memory, for the clock to go round
	hand int
	room int // how many the ring may hold

	memory []float32 // for as many values, mapped
}

// kept is the state of one client.
type kept struct {
	mu    sync.Mutex
	value []float32 // nil if it is in the file alone, or was never stored
	dirty bool      // value is newer than what the file holds
	used  bool      // since the hand last passed
	slot  int8      // with the newest value in the file
	last  int8      // that the last commit saw
	saved int8      // that the last settled commit saw
	sum   uint32    // of the slot's values
}

// none stands for no slot.
const none int8 = -1

const (
	keepMagic = "LODKEEP2"
	keepPage  = 4096
	// headerUsed covers magic, clients, floats, identity, and the checksums of the
	// initial values and of the header.
	headerUsed = 8 + 8 + 8 + 16 + 4 + 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// openKeep creates the file or opens it. Clients that were never stored have the
// initial values. Memory bounds the values kept in memory, in bytes; 0 keeps none.
func openKeep(path string, clients, floats int, initial []float32, memory int64) (*keep, error) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return nil, errors.New("personal weights are kept as they lie in memory, which must be little-endian")
	}
	if clients < 0 || floats < 0 || len(initial) != floats {
		return nil, fmt.Errorf("keep %d floats for each of %d clients, with %d initial ones", floats, clients, len(initial))
	}
	k := &keep{path: path, floats: floats, initial: slices.Clone(initial), clients: make([]kept, clients)}
	for i := range k.clients {
		k.clients[i].slot, k.clients[i].last, k.clients[i].saved = none, none, none
	}
	if floats > 0 {
		k.room = int(min(max(memory, 0)/int64(4*floats), int64(clients)))
	}
	var err error
	if k.file, err = os.OpenFile(path, os.O_RDWR, 0); errors.Is(err, os.ErrNotExist) {
		if err := k.create(); err != nil {
			return nil, err
		}
		k.file, err = os.OpenFile(path, os.O_RDWR, 0)
	}
	if err != nil {
		return nil, err
	}
	if err := k.check(); err != nil {
		k.file.Close()
		return nil, err
	}
	if err := k.mapMemory(); err != nil {
		k.file.Close()
		return nil, err
	}
	return k, nil
}

// mapMemory maps memory for the values that may be in it. It takes none until they
// are, and then in large pages where there are such; the garbage collector need not
// look at it.
func (k *keep) mapMemory() error {
	if k.room == 0 {
		return nil
	}
	b, err := mmap.Memory(4 * k.room * k.floats)
	if err != nil {
		return fmt.Errorf("memory for personal weights: %w", err)
	}
	k.memory = unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), k.room*k.floats)
	return nil
}

func (k *keep) unmapMemory() {
	if k.memory != nil {
		_ = mmap.Unmap(raw(k.memory)) // there is no way to recover
		k.memory = nil
	}
}

// create makes a file of holes.
func (k *keep) create() error {
	h := make([]byte, keepPage)
	copy(h, keepMagic)
	binary.LittleEndian.PutUint64(h[8:], uint64(len(k.clients)))
	binary.LittleEndian.PutUint64(h[16:], uint64(k.floats))
	rand.Read(h[24:40])
	binary.LittleEndian.PutUint32(h[40:], crc32.Checksum(raw(k.initial), castagnoli))
	binary.LittleEndian.PutUint32(h[44:], crc32.Checksum(h[:44], castagnoli))
	return atomicfile.Write(k.path, func(f *os.File) error {
		if _, err := f.Write(h); err != nil {
			return err
		}
		return f.Truncate(k.size())
	})
}

// lock keeps other runs away until the file is closed.
func lock(f *os.File) error {
	if err := filelock.Try(f); err != nil {
		return fmt.Errorf("%s: another run uses it: %w", f.Name(), err)
	}
	return nil
}

// check locks the file and holds its header against what is asked for.
func (k *keep) check() error {
	if err := lock(k.file); err != nil {
		return err
	}
	info, err := k.file.Stat()
	if err != nil {
		return err
	}
	h := make([]byte, headerUsed)
	if _, err := k.file.ReadAt(h, 0); err != nil && err != io.EOF {
		return err
	}
	clients, floats := binary.LittleEndian.Uint64(h[8:]), binary.LittleEndian.Uint64(h[16:])
	switch {
	case string(h[:8]) != keepMagic:
		return fmt.Errorf("%s: not a file of personal weights, or one of another version", k.path)
	case binary.LittleEndian.Uint32(h[44:]) != crc32.Checksum(h[:44], castagnoli):
		return fmt.Errorf("%s: the header is damaged", k.path)
	case clients != uint64(len(k.clients)) || floats != uint64(k.floats):
		return fmt.Errorf("%s keeps %d floats for each of %d clients, not %d for %d", k.path, floats, clients, k.floats, len(k.clients))
	case binary.LittleEndian.Uint32(h[40:]) != crc32.Checksum(raw(k.initial), castagnoli):
		return fmt.Errorf("%s was made with other initial weights", k.path)
	case info.Size() != k.size():
		return fmt.Errorf("%s has %d bytes instead of %d", k.path, info.Size(), k.size())
	}
	copy(k.id[:], h[24:])
	return nil
}

// slotSize returns the bytes of a slot: the values and their checksum, in whole
// pages. Without values there are no slots.
func (k *keep) slotSize() int64 {
	if k.floats == 0 {
		return 0
	}
	return (int64(4*k.floats) + 4 + keepPage - 1) / keepPage * keepPage
}

// keepSlots is one for each of two commits, and one to write to.
const keepSlots = 3

func (k *keep) size() int64 { return keepPage + keepSlots*int64(len(k.clients))*k.slotSize() }

func (k *keep) place(client int, slot int8) int64 {
	return keepPage + (keepSlots*int64(client)+int64(slot))*k.slotSize()
}

// raw views floats as the bytes that they are.
func raw(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

// checksum is that of a client's values; another client's do not pass for them.
func checksum(client int, x []float32) uint32 {
	var who [4]byte
	binary.LittleEndian.PutUint32(who[:], uint32(client))
	return crc32.Update(crc32.Checksum(who[:], castagnoli), castagnoli, raw(x))
}

// read fills dst from a slot and returns its checksum.
func (k *keep) read(client int, slot int8, dst []float32) (uint32, error) {
	if k.floats == 0 {
		return 0, nil
	}
	var sum [4]byte
	at := k.place(client, slot)
	_, err := k.file.ReadAt(raw(dst), at)
	if err == nil {
		_, err = k.file.ReadAt(sum[:], at+int64(4*k.floats))
	}
	switch {
	case err == io.EOF:
		return 0, fmt.Errorf("%s is cut off before the weights of client %d", k.path, client)
	case err != nil:
		return 0, err
	}
	got := checksum(client, dst)
	if got != binary.LittleEndian.Uint32(sum[:]) {
		return 0, fmt.Errorf("%s is damaged: the weights of client %d do not match their checksum", k.path, client)
	}
	return got, nil
}

// write puts values into a slot that neither commit saw. The caller holds the
// client's lock, or all.
func (k *keep) write(client int, src []float32) error {
	c := &k.clients[client]
	slot := int8(0)
	for slot == c.saved || slot == c.last {
		slot++
	}
	if k.floats > 0 {
		var sum [4]byte
		c.sum = checksum(client, src)
		binary.LittleEndian.PutUint32(sum[:], c.sum)
		at := k.place(client, slot)
		if _, err := k.file.WriteAt(raw(src), at); err != nil {
			return k.fail(err)
		}
		if _, err := k.file.WriteAt(sum[:], at+int64(4*k.floats)); err != nil {
			return k.fail(err)
		}
		k.wrote.Store(true) // after writing, or a settle in between would miss it
	}
	c.slot, c.dirty = slot, false
	return nil
}

// fail makes everything fail from now on: half of a value may be in the file, and
// the kernel may have dropped what it could not write, and would report success the
// next time. What the last commit saw is still there.
func (k *keep) fail(err error) error {
	k.failed.CompareAndSwap(nil, &err)
	return *k.failed.Load()
}

// load copies a client's values into dst; first says that they were never stored,
// and so are the initial ones.
func (k *keep) load(client int, dst []float32) (first bool, err error) {
	k.all.RLock()
	defer k.all.RUnlock()
	if err := k.failed.Load(); err != nil {
		return false, *err
	}
	c := &k.clients[client]
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.value != nil:
		c.used = true
		copy(dst[:k.floats], c.value)
		return false, nil
	case c.slot == none:
		copy(dst[:k.floats], k.initial)
		return true, nil
	}
	if _, err := k.read(client, c.slot, dst[:k.floats]); err != nil {
		return false, err
	}
	// A small fleet is read once; for what was only read, nothing is evicted.
	if c.value = k.claim(client); c.value != nil {
		copy(c.value, dst)
	}
	return false, nil
}

// store keeps a copy of a client's values.
func (k *keep) store(client int, src []float32) error {
	k.all.RLock()
	defer k.all.RUnlock()
	if err := k.failed.Load(); err != nil {
		return *err
	}
	if len(src) != k.floats {
		return fmt.Errorf("client %d stores %d floats where %d are kept", client, len(src), k.floats)
	}
	c := &k.clients[client]
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.value == nil {
		if c.value = k.claim(client); c.value == nil {
			if err := k.steal(client); err != nil {
				return err
			}
		}
	} else {
		c.used = true
	}
	if c.value == nil {
		return k.write(client, src)
	}
	copy(c.value, src)
	c.dirty = true
	return nil
}

// lend gives out a client's own values, to be changed in place until they are given
// back; nobody else can come to them meanwhile. It returns nil if they are not in
// memory, and there is no room for them.
func (k *keep) lend(client int) (values []float32, first bool, err error) {
	k.all.RLock()
	defer func() {
		if values == nil {
			k.all.RUnlock()
		}
	}()
	if err := k.failed.Load(); err != nil {
		return nil, false, *err
	}
	c := &k.clients[client]
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
	if c.value = k.claim(client); c.value == nil {
		if err := k.steal(client); err != nil || c.value == nil {
			return nil, first, err
		}
	}
	if first {
		copy(c.value, k.initial)
	} else if _, err := k.read(client, c.slot, c.value); err != nil {
		return nil, false, k.fail(err) // the value in memory is none
	}
	return c.value, first, nil
}

// giveBack takes lent values back, changed.
func (k *keep) giveBack(client int) {
	c := &k.clients[client]
	c.dirty = true
	c.mu.Unlock()
	k.all.RUnlock()
}

// claim takes a place in memory for a client, nil if none is free.
func (k *keep) claim(client int) []float32 {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := len(k.ring)
	if n >= k.room {
		return nil
	}
	k.ring = append(k.ring, int32(client))
	return k.memory[n*k.floats : (n+1)*k.floats : (n+1)*k.floats]
}

// steal gives a client the memory of one that was not used for long. It leaves it
// without if all others are in use, or if there is no memory at all.
func (k *keep) steal(client int) error {
	place, victim := k.victim()
	if place < 0 {
		return nil
	}
	// The victim stays in the ring, locked, until its value is in the file: k.mu
	// must not be held for so long.
	v := &k.clients[victim]
	defer v.mu.Unlock()
	if v.dirty {
		if err := k.write(victim, v.value); err != nil {
			return err
		}
	}
	k.mu.Lock()
	k.ring[place] = int32(client)
	k.mu.Unlock()
	k.clients[client].value, v.value, v.used = v.value, nil, false
	return nil
}

// victim returns a client that was not used since the hand last passed, locked, and
// its place in the ring; a place of -1 if there is none.
func (k *keep) victim() (place, client int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for range 2 * len(k.ring) {
		place, client = k.hand, int(k.ring[k.hand])
		k.hand = (k.hand + 1) % len(k.ring)
		v := &k.clients[client]
		if !v.mu.TryLock() { // in use right now
			continue
		}
		if !v.used {
			return place, client
		}
		v.used = false
		v.mu.Unlock()
	}
	return -1, 0
}

// commit hands everything stored so far to the operating system and returns what
// restore needs to come back to it. It is safe from a crash of the machine when settle
// has returned; the blob may be put on disk after that, and the next commit comes
// after that.
func (k *keep) commit() ([]byte, error) {
	k.all.Lock()
	defer k.all.Unlock()
	if err := k.failed.Load(); err != nil {
		return nil, *err
	}
	parallel(runtime.GOMAXPROCS(0), len(k.clients), func(i int) {
		if c := &k.clients[i]; c.dirty {
			_ = k.write(i, c.value) // the failure is kept and returned by every later call
		}
	})
	if err := k.failed.Load(); err != nil {
		return nil, *err
	}
	b := blob{id: k.id, slots: make([]int8, len(k.clients))}
	for i := range k.clients {
		c := &k.clients[i]
		c.last = c.slot
		b.add(i, c.slot, c.sum)
	}
	return b.encode(), nil
}

// settle waits until the last commit is on disk. Others may load and store meanwhile.
func (k *keep) settle() error {
	if k.wrote.Swap(false) {
		if err := k.file.Sync(); err != nil {
			return k.fail(err)
		}
	}
	return nil
}

// forget gives up the commit before the last, when the last one's blob is on disk.
func (k *keep) forget() {
	k.all.Lock()
	defer k.all.Unlock()
	for i := range k.clients {
		k.clients[i].saved = k.clients[i].last
	}
}

// restore goes back to exactly what a commit saw, whatever was stored after it. It
// reads all of it, and changes nothing if the file does not hold it any more.
func (k *keep) restore(encoded []byte) error {
	k.all.Lock()
	defer k.all.Unlock()
	if err := k.failed.Load(); err != nil {
		return *err
	}
	b, err := decodeBlob(encoded, len(k.clients))
	if err != nil {
		return err
	}
	if b.id != k.id {
		return fmt.Errorf("%s is not the file that the checkpoint was made with", k.path)
	}
	seen := blob{id: k.id, slots: make([]int8, len(k.clients))}
	sums := make([]uint32, len(k.clients))
	values := make([]float32, k.floats)
	for i, slot := range b.slots {
		if slot != none {
			if sums[i], err = k.read(i, slot, values); err != nil {
				return err
			}
		}
		seen.add(i, slot, sums[i])
	}
	if seen.sum != b.sum {
		return fmt.Errorf("%s does not hold the checkpoint any more: more was stored after a later one", k.path)
	}
	for i, slot := range b.slots {
		c := &k.clients[i]
		c.value, c.dirty, c.used = nil, false, false
		c.slot, c.last, c.saved, c.sum = slot, slot, slot, sums[i]
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ring, k.hand = k.ring[:0], 0
	return nil
}

// close closes the file. What was stored since the last commit is lost.
func (k *keep) close() error {
	k.all.Lock()
	defer k.all.Unlock()
	_ = k.fail(os.ErrClosed) // later calls return it
	k.unmapMemory()
	return k.file.Close()
}

// blob says in two bits per client which slot a commit saw, and has a checksum over
// what was in them.
type blob struct {
	id    [16]byte
	sum   uint32
	slots []int8
}

func (b *blob) add(client int, slot int8, sum uint32) {
	b.slots[client] = slot
	if slot == none {
		return
	}
	var entry [8]byte
	binary.LittleEndian.PutUint32(entry[:], uint32(client))
	binary.LittleEndian.PutUint32(entry[4:], sum)
	b.sum = crc32.Update(b.sum, castagnoli, entry[:])
}

const blobMagic = "LKB1"

func (b *blob) encode() []byte {
	out := append([]byte(blobMagic), b.id[:]...)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(b.slots)))
	out = binary.LittleEndian.AppendUint32(out, b.sum)
	bits := make([]byte, (len(b.slots)+3)/4)
	for i, slot := range b.slots {
		bits[i/4] |= byte(slot+1) << (i % 4 * 2)
	}
	out = append(out, bits...)
	return binary.LittleEndian.AppendUint32(out, crc32.Checksum(out, castagnoli))
}

func decodeBlob(in []byte, clients int) (*blob, error) {
	const fixed = len(blobMagic) + 16 + 4 + 4
	if len(in) < fixed+4 || !bytes.HasPrefix(in, []byte(blobMagic)) {
		return nil, errors.New("the checkpoint does not say where personal weights are")
	}
	end := len(in) - 4
	if crc32.Checksum(in[:end], castagnoli) != binary.LittleEndian.Uint32(in[end:]) {
		return nil, errors.New("the checkpoint is damaged where it says where personal weights are")
	}
	at := len(blobMagic)
	b := &blob{id: [16]byte(in[at:])}
	if n := int(binary.LittleEndian.Uint32(in[at+16:])); n != clients || end-fixed != (n+3)/4 {
		return nil, fmt.Errorf("the checkpoint has the personal weights of %d clients, not %d", n, clients)
	}
	b.sum = binary.LittleEndian.Uint32(in[at+20:])
	for i := range clients {
		slot := int8(in[fixed+i/4]>>(i%4*2)&3) - 1
		if slot >= keepSlots {
			return nil, errors.New("the checkpoint names a slot of personal weights that does not exist")
		}
		b.slots = append(b.slots, slot)
	}
	return b, nil
}
