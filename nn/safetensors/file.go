package safetensors

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// File is an open .safetensors file. Numbers are read when they are needed. It is safe for
// concurrent use.
type File struct {
	r        io.ReaderAt
	data     int64 // where the numbers begin
	tensors  map[string]named
	metadata map[string]string
}

// Open reads the header of a file with the given number of bytes.
func Open(r io.ReaderAt, size int64) (*File, error) {
	f, err := open(r, size)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	return f, nil
}

func open(r io.ReaderAt, size int64) (*File, error) {
	var length [8]byte
	if size < 8 {
		return nil, errors.New("the file ends early")
	}
	if _, err := r.ReadAt(length[:], 0); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n < 2 || n > uint64(min(size-8, longestHeader)) {
		return nil, fmt.Errorf("the header is %d bytes long in a file of %d bytes; this is not a .safetensors file, or it is truncated", n, size)
	}
	text := make([]byte, n)
	if _, err := r.ReadAt(text, 8); err != nil {
		return nil, err
	}
	entries, metadata, err := parse(text)
	if err != nil {
		return nil, err
	}
	f := &File{r: r, data: 8 + int64(n), tensors: make(map[string]named, len(entries)), metadata: metadata}
	end := int64(0)
	for _, e := range entries {
		f.tensors[e.name] = e
		end = e.Offsets[1]
	}
	if f.data+end != size {
		return nil, fmt.Errorf("the file has %d bytes of numbers, but the header names %d", size-f.data, end)
	}
	return f, nil
}

// Metadata returns the metadata. The caller must not change it.
func (f *File) Metadata() map[string]string { return f.metadata }

// Shape returns the shape of a tensor, or nil and false if there is no such tensor.
func (f *File) Shape(name string) ([]int, bool) {
	t, ok := f.tensors[name]
	return slices.Clone(t.Shape), ok
}

// Float32s reads consecutive numbers of a float32 tensor, beginning with the index from.
func (f *File) Float32s(to []float32, name string, from int) error {
	b, err := f.read(name, typeFloat32, from, len(to))
	if err != nil {
		return err
	}
	for i := range to {
		to[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return nil
}

// Float64s reads consecutive numbers of a float64 tensor, beginning with the index from.
func (f *File) Float64s(to []float64, name string, from int) error {
	b, err := f.read(name, typeFloat64, from, len(to))
	if err != nil {
		return err
	}
	for i := range to {
		to[i] = math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:]))
	}
	return nil
}

// Int32s reads consecutive numbers of an int32 tensor, beginning with the index from.
func (f *File) Int32s(to []int32, name string, from int) error {
	b, err := f.read(name, typeInt32, from, len(to))
	if err != nil {
		return err
	}
	for i := range to {
		to[i] = int32(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return nil
}

func (f *File) read(name, dtype string, from, n int) ([]byte, error) {
	t, ok := f.tensors[name]
	size := width(dtype)
	switch {
	case !ok:
		return nil, fmt.Errorf("safetensors: there is no tensor %s", name)
	case t.DType != dtype:
		return nil, fmt.Errorf("safetensors: %s holds %s, not %s", name, t.DType, dtype)
	case from < 0 || n < 0 || int64(n) > (t.Offsets[1]-t.Offsets[0])/size-int64(from):
		return nil, fmt.Errorf("safetensors: %s: numbers %d to %d are outside of shape %v", name, from, from+n, t.Shape)
	}
	b := make([]byte, int64(n)*size)
	if n == 0 {
		return b, nil // a reader may return io.EOF with the last bytes
	}
	if _, err := f.r.ReadAt(b, f.data+t.Offsets[0]+int64(from)*size); err != nil {
		return nil, fmt.Errorf("safetensors: %s: %w", name, err)
	}
	return b, nil
}
