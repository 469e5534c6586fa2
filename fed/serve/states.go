package serve

import (
	"encoding/binary"
	"fmt"
	"io"

	"loadstar/internal/stateformat"
)

// A states file contains the states of all clients, the wrapped index, and the length of the
// index in 8 bytes. The file can therefore be written in one pass, and a client's state can be
// read without reading the others. Every state has its own checksum.
var statesFormat = stateformat.Format{Name: "states.bin", Magic: "LODSTATS", Version: 1}

// maxState is the maximum size of a client's state in bytes.
const maxState = 64 << 20

// WriteStates writes states.bin. at returns the encoded state of client i, or nil if it has
// none.
func WriteStates(w io.Writer, clients []string, at func(i int) ([]byte, error)) error {
	var index stateformat.Writer
	index.Int(int64(len(clients)))
	for i, id := range clients {
		b, err := at(i)
		if err != nil {
			return err
		}
		if len(b) > maxState {
			return fmt.Errorf("the state of %s has %d bytes; the maximum is %d", id, len(b), maxState)
		}
		index.String(id)
		index.Int(int64(len(b)))
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	end := statesFormat.Wrap(index.State())
	end = binary.LittleEndian.AppendUint64(end, uint64(len(end)))
	_, err := w.Write(end)
	return err
}

// place is the position of a client's state in states.bin.
type place struct{ from, n int64 }

// readIndex reads the index of a states file with the given number of bytes.
func readIndex(r io.ReaderAt, size int64) (map[string]place, error) {
	var length [8]byte
	if size < 8 {
		return nil, statesFormat.Damaged("it has %d bytes", size)
	}
	if _, err := r.ReadAt(length[:], size-8); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > uint64(size-8) {
		return nil, statesFormat.Damaged("an index of %d bytes in a file of %d", n, size)
	}
	b := make([]byte, n)
	states := size - 8 - int64(n)
	if _, err := r.ReadAt(b, states); err != nil {
		return nil, err
	}
	_, b, err := statesFormat.Unwrap(b)
	if err != nil {
		return nil, err
	}
	places := map[string]place{}
	valid, at := true, int64(0)
	err = statesFormat.Read(b, func(r *stateformat.Reader) {
		for range r.Count(16) {
			id, n := r.String(), r.Int()
			if _, twice := places[id]; twice || n < 0 || n > maxState {
				valid = false
				return
			}
			places[id] = place{at, n}
			at += n
		}
	})
	switch {
	case !valid || err == nil && at != states:
		return nil, statesFormat.Damaged("its index does not fit its states")
	case err != nil:
		return nil, err
	}
	return places, nil
}
