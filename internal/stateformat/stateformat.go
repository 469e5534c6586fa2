// Package stateformat adds a header and a checksum to an encoded state that later versions
// of the program must be able to read. The header contains the kind and the format of the
// state.
//
//	magic      8 bytes, one for each kind of state
//	format     4 bytes, little-endian, from 1
//	length     8 bytes, little-endian, of the state
//	state      see [Writer]
//	checksum   4 bytes, little-endian, CRC-32C of all bytes before it
//
// The header is the same in every format, so a program can distinguish a state of a newer
// format from a damaged one. A change of the encoding needs a new format number and a
// golden file; see testkit.CheckGolden.
package stateformat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// Callers can distinguish these errors with errors.Is.
var (
	// ErrNewer means that a newer program wrote the state.
	ErrNewer = errors.New("written by a newer Loadstar")
	// ErrDamaged means that the bytes of the state differ from those that were written.
	ErrDamaged = errors.New("damaged")
)

// Format is one kind of state and the newest format that this program reads and writes.
type Format struct {
	Name    string // the name of the kind of state in messages
	Magic   string // 8 bytes
	Version uint32 // from 1
}

const (
	magicSize  = 8
	headerSize = magicSize + 4 + 8
	sumSize    = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Newer returns the error for a state in a format that this program does not know.
func Newer(name string, found, newest uint64) error {
	return fmt.Errorf("%s: %w (format %d, this one reads up to %d): upgrade", name, ErrNewer, found, newest)
}

// Damaged returns an error with a formatted reason why a state is invalid.
func (f Format) Damaged(format string, a ...any) error {
	return fmt.Errorf("%s: %w: %s", f.Name, ErrDamaged, fmt.Sprintf(format, a...))
}

// Wrap returns the state with a header of the newest format.
func (f Format) Wrap(state []byte) []byte {
	if len(f.Magic) != magicSize || f.Version == 0 {
		panic(fmt.Sprintf("stateformat: %q is not a magic of %d bytes, or format %d is not positive", f.Magic, magicSize, f.Version))
	}
	b := make([]byte, 0, headerSize+len(state)+sumSize)
	b = append(b, f.Magic...)
	b = binary.LittleEndian.AppendUint32(b, f.Version)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(state)))
	b = append(b, state...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// Unwrap checks the header and the checksum. It returns the number of the format and the state,
// which is a part of b.
func (f Format) Unwrap(b []byte) (version uint32, state []byte, err error) {
	if len(b) < magicSize || string(b[:magicSize]) != f.Magic {
		return 0, nil, f.Damaged("it does not begin with %q", f.Magic)
	}
	if len(b) < headerSize+sumSize {
		return 0, nil, f.Damaged("it is cut off after %d bytes", len(b))
	}
	version = binary.LittleEndian.Uint32(b[magicSize:])
	length := binary.LittleEndian.Uint64(b[magicSize+4:])
	if have := uint64(len(b) - headerSize - sumSize); length != have {
		return 0, nil, f.Damaged("it has %d bytes, but the header says %d", have, length)
	}
	end := len(b) - sumSize
	if want, got := binary.LittleEndian.Uint32(b[end:]), crc32.Checksum(b[:end], castagnoli); want != got {
		return 0, nil, f.Damaged("its checksum is %08x, want %08x", got, want)
	}
	switch {
	case version > f.Version:
		return 0, nil, Newer(f.Name, uint64(version), uint64(f.Version))
	case version == 0:
		return 0, nil, f.Damaged("it says format 0, but formats count from 1")
	}
	return version, b[headerSize:end], nil
}

// Read decodes a state. fields must read all fields from the reader.
func (f Format) Read(state []byte, fields func(*Reader)) error {
	r := NewReader(state)
	fields(r)
	if err := r.Done(); err != nil {
		return fmt.Errorf("%s: %w", f.Name, err)
	}
	return nil
}
