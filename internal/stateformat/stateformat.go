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
// golden file; see package golden.
package stateformat

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
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
	Version uint32
	// Bare means that early versions of the program wrote this kind of state without a
	// header. Such a state has format 0.
	Bare bool
}

const (
	magicSize  = 8
	headerSize = magicSize + 4 + 8
	sumSize    = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Newer returns the error for a state of a format that this program does not know.
func Newer(name string, found, newest uint64) error {
	return fmt.Errorf("%s: %w (format %d, this one reads up to %d): upgrade", name, ErrNewer, found, newest)
}

// Damaged returns an error with the reason why a state is invalid.
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

// Unwrap checks the header and the checksum. It returns the format and the state, which is
// a part of b. If f.Bare is set, bytes that do not start with the magic are a state of
// format 0.
func (f Format) Unwrap(b []byte) (version uint32, state []byte, err error) {
	if len(b) < magicSize || string(b[:magicSize]) != f.Magic {
		if f.Bare && len(b) > 0 {
			return 0, b, nil
		}
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
		return 0, nil, f.Damaged("it says format 0, which has no header")
	}
	return version, b[headerSize:end], nil
}

// DecodeGob decodes a gob. It is nil unless the program imports the package format0.
var DecodeGob func(r io.Reader, v any) error

// Gob decodes a state of format 0, which is encoded as a gob, into v.
func (f Format) Gob(b []byte, v any) error {
	if DecodeGob == nil {
		return f.Damaged("it has no header, and this program does not read states of format 0")
	}
	r := bytes.NewReader(b)
	if err := DecodeGob(r, v); err != nil {
		return f.Damaged("it has no header and is not a valid state of format 0: %v", err)
	}
	if r.Len() > 0 {
		return f.Damaged("%d bytes follow the state of format 0", r.Len())
	}
	return nil
}

// Read decodes a state of format 1 or later. fields must read all fields from the reader.
func (f Format) Read(state []byte, fields func(*Reader)) error {
	r := NewReader(state)
	fields(r)
	if err := r.Done(); err != nil {
		return fmt.Errorf("%s: %w", f.Name, err)
	}
	return nil
}
