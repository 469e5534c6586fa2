package sim

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"unsafe"

	"loadstar/internal/disk"
	"loadstar/internal/stateformat"
)

const (
	// In the file, fileMagic is followed by the format number as a digit.
	fileMagic  = "LODKEEP"
	fileFormat = 2

	page = 4096
	// headerUsed is the number of bytes used in the header: magic, clients, floats,
	// identity, and the checksums of the initial values and of the header.
	headerUsed = 8 + 8 + 8 + 16 + 4 + 4
	// slotsPerClient is 3: one slot for each of the last two commits, and one to write to.
	slotsPerClient = 3
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// create creates a sparse file, in which slots take no disk space until they are written
// to.
func (s *Kept) create() error {
	h := make([]byte, page)
	copy(h, fileMagic)
	h[7] = '0' + fileFormat
	binary.LittleEndian.PutUint64(h[8:], uint64(len(s.clients)))
	binary.LittleEndian.PutUint64(h[16:], uint64(s.floats))
	rand.Read(h[24:40])
	binary.LittleEndian.PutUint32(h[40:], crc32.Checksum(raw(s.initial), castagnoli))
	binary.LittleEndian.PutUint32(h[44:], crc32.Checksum(h[:44], castagnoli))
	return disk.Write(s.path, func(f *os.File) error {
		if _, err := f.Write(h); err != nil {
			return err
		}
		return f.Truncate(s.size())
	})
}

// check locks the file and returns an error if its header does not match the store's
// clients, floats and initial values.
func (s *Kept) check() error {
	if err := disk.TryLock(s.file); err != nil {
		return fmt.Errorf("%s: another run is using it: %w", s.path, err)
	}
	info, err := s.file.Stat()
	if err != nil {
		return err
	}
	h := make([]byte, headerUsed)
	if _, err := s.file.ReadAt(h, 0); err != nil && err != io.EOF {
		return err
	}
	clients, floats := binary.LittleEndian.Uint64(h[8:]), binary.LittleEndian.Uint64(h[16:])
	switch {
	case string(h[:7]) != fileMagic:
		return fmt.Errorf("%s: not a file of personal weights", s.path)
	case h[7] > '0'+fileFormat:
		return stateformat.Newer(s.path, uint64(h[7]-'0'), fileFormat)
	case h[7] != '0'+fileFormat:
		return fmt.Errorf("%s: personal weights of format %q, want %d: start the run again", s.path, h[7], fileFormat)
	case binary.LittleEndian.Uint32(h[44:]) != crc32.Checksum(h[:44], castagnoli):
		return fmt.Errorf("%s: the header is damaged", s.path)
	case clients != uint64(len(s.clients)) || floats != uint64(s.floats):
		return fmt.Errorf("%s contains %d floats for each of %d clients, not %d for %d", s.path, floats, clients, s.floats, len(s.clients))
	case binary.LittleEndian.Uint32(h[40:]) != crc32.Checksum(raw(s.initial), castagnoli):
		return fmt.Errorf("%s was created with different initial weights", s.path)
	case info.Size() != s.size():
		return fmt.Errorf("%s has %d bytes instead of %d", s.path, info.Size(), s.size())
	}
	copy(s.id[:], h[24:])
	return nil
}

// slotSize returns the size of a slot in bytes: the values and their checksum, rounded up
// to whole pages. It is 0 if clients have no values.
func (s *Kept) slotSize() int64 {
	if s.floats == 0 {
		return 0
	}
	return (int64(4*s.floats) + 4 + page - 1) / page * page
}

// KeptSize returns the size of a store's file. The file is sparse. It takes less disk space
// until clients have been stored three times.
func KeptSize(clients, floats int) int64 {
	s := Kept{floats: floats, clients: make([]entry, clients)}
	return s.size()
}

func (s *Kept) size() int64 { return page + slotsPerClient*int64(len(s.clients))*s.slotSize() }

// place returns the offset of a slot in the file.
func (s *Kept) place(client int, slot int8) int64 {
	return page + (slotsPerClient*int64(client)+int64(slot))*s.slotSize()
}

// raw returns the memory of x as bytes, without a copy.
func raw(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

// checksum covers the client's number as well, so that values in the slot of another client are
// detected.
func checksum(client int, x []float32) uint32 {
	var who [4]byte
	binary.LittleEndian.PutUint32(who[:], uint32(client))
	return crc32.Update(crc32.Checksum(who[:], castagnoli), castagnoli, raw(x))
}

// read reads a slot's values into dst and returns the slot's checksum.
func (s *Kept) read(client int, slot int8, dst []float32) (uint32, error) {
	if s.floats == 0 {
		return 0, nil
	}
	var sum [4]byte
	at := s.place(client, slot)
	_, err := s.file.ReadAt(raw(dst), at)
	if err == nil {
		_, err = s.file.ReadAt(sum[:], at+int64(4*s.floats))
	}
	switch {
	case err == io.EOF:
		return 0, fmt.Errorf("%s is cut off before the weights of client %d", s.path, client)
	case err != nil:
		return 0, err
	}
	got := checksum(client, dst)
	if got != binary.LittleEndian.Uint32(sum[:]) {
		return 0, fmt.Errorf("%s is damaged: the weights of client %d do not match their checksum", s.path, client)
	}
	return got, nil
}

// write writes values to a slot that belongs to neither of the last two commits. The
// caller must hold the client's lock or s.all.
func (s *Kept) write(client int, src []float32) error {
	c := &s.clients[client]
	slot := int8(0)
	for slot == c.saved || slot == c.last {
		slot++
	}
	if s.floats > 0 {
		var sum [4]byte
		c.sum = checksum(client, src)
		binary.LittleEndian.PutUint32(sum[:], c.sum)
		at := s.place(client, slot)
		if _, err := s.file.WriteAt(raw(src), at); err != nil {
			return s.fail(err)
		}
		if _, err := s.file.WriteAt(sum[:], at+int64(4*s.floats)); err != nil {
			return s.fail(err)
		}
		s.wrote.Store(true) // set only after the write, so that a concurrent Sync does not miss it
	}
	c.slot, c.dirty = slot, false
	return nil
}
