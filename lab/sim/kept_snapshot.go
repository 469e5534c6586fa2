package sim

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"runtime"

	"golang.org/x/sync/errgroup"

	"loadstar/internal/stateformat"
)

// Commit writes all values to the file, without waiting for the disk, and returns the snapshot
// that [Kept.Restore] needs. The caller then calls [Kept.Sync], saves the snapshot on disk,
// calls [Kept.Release], and only then commits again.
func (s *Kept) Commit() ([]byte, error) {
	s.all.Lock()
	defer s.all.Unlock()
	if err := s.failed.Load(); err != nil {
		return nil, *err
	}
	if err := s.flush(); err != nil {
		return nil, err
	}
	b := snapshot{id: s.id, slots: make([]int8, len(s.clients))}
	for i := range s.clients {
		c := &s.clients[i]
		c.last = c.slot
		b.add(i, c.slot, c.sum)
	}
	return b.encode(), nil
}

// flush writes all values that are newer in memory than in the file, using all CPUs. The
// caller must hold s.all.
func (s *Kept) flush() error {
	const chunk = 256 // clients per goroutine; one goroutine per client would cost more than the write
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for from := 0; from < len(s.clients); from += chunk {
		g.Go(func() error {
			for i := from; i < min(from+chunk, len(s.clients)); i++ {
				if c := &s.clients[i]; c.dirty {
					if err := s.write(i, c.value); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// Sync waits until the last commit is on disk. Other goroutines may load and store values
// in the meantime.
func (s *Kept) Sync() error {
	if s.wrote.Swap(false) {
		if err := s.file.Sync(); err != nil {
			return s.fail(err)
		}
	}
	return nil
}

// Release allows the store to overwrite the commit before the last one. The caller must
// have saved the last commit's snapshot.
func (s *Kept) Release() {
	s.all.Lock()
	defer s.all.Unlock()
	for i := range s.clients {
		s.clients[i].saved = s.clients[i].last
	}
}

// Restore returns to the state of a commit and discards everything stored after it. It
// reads and checks all values of that state. If the file no longer contains them, Restore
// returns an error and changes nothing.
func (s *Kept) Restore(encoded []byte) error {
	s.all.Lock()
	defer s.all.Unlock()
	if err := s.failed.Load(); err != nil {
		return *err
	}
	b, err := decodeSnapshot(encoded, len(s.clients))
	if err != nil {
		return err
	}
	if b.id != s.id {
		return fmt.Errorf("%s does not belong to this checkpoint", s.path)
	}
	seen := snapshot{id: s.id, slots: make([]int8, len(s.clients))}
	sums := make([]uint32, len(s.clients))
	values := make([]float32, s.floats)
	for i, slot := range b.slots {
		if slot != none {
			if sums[i], err = s.read(i, slot, values); err != nil {
				return err
			}
		}
		seen.add(i, slot, sums[i])
	}
	if seen.sum != b.sum {
		return fmt.Errorf("%s no longer contains the values of this checkpoint, because later commits have overwritten them", s.path)
	}
	for i, slot := range b.slots {
		c := &s.clients[i]
		c.value, c.dirty, c.used = nil, false, false
		c.slot, c.last, c.saved, c.sum = slot, slot, slot, sums[i]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ring, s.hand = s.ring[:0], 0
	return nil
}

// snapshot records, in two bits per client, which slot belongs to a commit, with a
// checksum over the values in those slots.
type snapshot struct {
	id    [16]byte
	sum   uint32
	slots []int8
}

func (b *snapshot) add(client int, slot int8, sum uint32) {
	b.slots[client] = slot
	if slot == none {
		return
	}
	var entry [8]byte
	binary.LittleEndian.PutUint32(entry[:], uint32(client))
	binary.LittleEndian.PutUint32(entry[4:], sum)
	b.sum = crc32.Update(b.sum, castagnoli, entry[:])
}

const (
	// In a snapshot, snapshotMagic is followed by the format number as a digit.
	snapshotMagic  = "LKB"
	snapshotFormat = 1
)

func (b *snapshot) encode() []byte {
	out := append([]byte(snapshotMagic), '0'+snapshotFormat)
	out = append(out, b.id[:]...)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(b.slots)))
	out = binary.LittleEndian.AppendUint32(out, b.sum)
	bits := make([]byte, (len(b.slots)+3)/4)
	for i, slot := range b.slots {
		bits[i/4] |= byte(slot+1) << (i % 4 * 2)
	}
	out = append(out, bits...)
	return binary.LittleEndian.AppendUint32(out, crc32.Checksum(out, castagnoli))
}

func decodeSnapshot(in []byte, clients int) (*snapshot, error) {
	const fixed = len(snapshotMagic) + 1 + 16 + 4 + 4
	if len(in) < fixed+4 || !bytes.HasPrefix(in, []byte(snapshotMagic)) {
		return nil, errors.New("the checkpoint has no snapshot of the personal weights")
	}
	end := len(in) - 4
	if crc32.Checksum(in[:end], castagnoli) != binary.LittleEndian.Uint32(in[end:]) {
		return nil, errors.New("the checkpoint's snapshot of the personal weights is damaged")
	}
	if format := in[len(snapshotMagic)]; format > '0'+snapshotFormat {
		return nil, stateformat.Newer("snapshot of the personal weights in the checkpoint", uint64(format-'0'), snapshotFormat)
	}
	at := len(snapshotMagic) + 1
	b := &snapshot{id: [16]byte(in[at:])}
	if n := int(binary.LittleEndian.Uint32(in[at+16:])); n != clients || end-fixed != (n+3)/4 {
		return nil, fmt.Errorf("the checkpoint has the personal weights of %d clients, not %d", n, clients)
	}
	b.sum = binary.LittleEndian.Uint32(in[at+20:])
	for i := range clients {
		slot := int8(in[fixed+i/4]>>(i%4*2)&3) - 1
		if slot >= slotsPerClient {
			return nil, errors.New("the checkpoint names a slot of personal weights that does not exist")
		}
		b.slots = append(b.slots, slot)
	}
	return b, nil
}
