package stateformat

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// Writer encodes the fields of a state one after the other. Numbers are little-endian. Strings
// and slices are preceded by their length as 8 bytes. Equal fields give equal bytes on every
// machine. The zero value is ready for use.
type Writer struct{ b []byte }

// State returns the encoded fields.
func (w *Writer) State() []byte { return w.b }

// Int writes a number as 8 bytes.
func (w *Writer) Int(n int64) { w.b = binary.LittleEndian.AppendUint64(w.b, uint64(n)) }

// Float64 writes all bits of a number, which may be NaN or infinite.
func (w *Writer) Float64(x float64) { w.Int(int64(math.Float64bits(x))) }

// Bool writes one byte.
func (w *Writer) Bool(x bool) {
	if x {
		w.b = append(w.b, 1)
	} else {
		w.b = append(w.b, 0)
	}
}

// String writes a string.
func (w *Writer) String(s string) {
	w.Int(int64(len(s)))
	w.b = append(w.b, s...)
}

// Bytes writes a part of the state that is already encoded.
func (w *Writer) Bytes(b []byte) {
	w.Int(int64(len(b)))
	w.b = append(w.b, b...)
}

// Float32s writes a vector.
func (w *Writer) Float32s(x []float32) {
	w.Int(int64(len(x)))
	for _, v := range x {
		w.b = binary.LittleEndian.AppendUint32(w.b, math.Float32bits(v))
	}
}

// Float64s writes a vector.
func (w *Writer) Float64s(x []float64) {
	w.Int(int64(len(x)))
	for _, v := range x {
		w.b = binary.LittleEndian.AppendUint64(w.b, math.Float64bits(v))
	}
}

// Reader decodes the fields that a [Writer] wrote. They must be read in the order in which they
// were written. After the first error, it returns zero values, so callers check the error only
// once, with [Reader.Done]. An empty slice is read as nil. Slices are copies.
type Reader struct {
	b   []byte
	err error
}

// NewReader returns a reader of an encoded state.
func NewReader(state []byte) *Reader { return &Reader{b: state} }

// Done returns the first error, or an error if unread bytes are left.
func (r *Reader) Done() error {
	if r.err == nil && len(r.b) > 0 {
		r.err = fmt.Errorf("%w: %d bytes follow the last field", ErrDamaged, len(r.b))
	}
	return r.err
}

// take returns the next n bytes, or nil after an error.
func (r *Reader) take(n int) []byte {
	if r.err == nil && n > len(r.b) {
		r.err = fmt.Errorf("%w: a field has %d bytes, but only %d are left", ErrDamaged, n, len(r.b))
	}
	if r.err != nil {
		return nil
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}

// Int reads a number.
func (r *Reader) Int() int64 {
	if b := r.take(8); b != nil {
		return int64(binary.LittleEndian.Uint64(b))
	}
	return 0
}

// Count reads the number of the elements that follow, each of at least size bytes. It
// checks the number against the remaining bytes, so damaged data cannot make the caller
// allocate too much memory.
func (r *Reader) Count(size int) int {
	n := r.Int()
	if r.err == nil && (n < 0 || n > int64(len(r.b)/size)) {
		r.err = fmt.Errorf("%w: %d elements of at least %d bytes, but only %d bytes are left", ErrDamaged, n, size, len(r.b))
	}
	if r.err != nil {
		return 0
	}
	return int(n)
}

// Float64 reads a number.
func (r *Reader) Float64() float64 { return math.Float64frombits(uint64(r.Int())) }

// Bool reads one byte.
func (r *Reader) Bool() bool {
	b := r.take(1)
	if b != nil && b[0] > 1 {
		r.err = fmt.Errorf("%w: %d is neither true nor false", ErrDamaged, b[0])
	}
	return r.err == nil && b[0] == 1
}

// String reads a string.
func (r *Reader) String() string { return string(r.take(r.Count(1))) }

// Bytes reads a part of the state that Writer.Bytes wrote.
func (r *Reader) Bytes() []byte { return append([]byte(nil), r.take(r.Count(1))...) }

// View is like Bytes, but does not copy the bytes.
func (r *Reader) View() []byte { return r.take(r.Count(1)) }

// Float32s reads a vector.
func (r *Reader) Float32s() []float32 { return r.AppendFloat32s(nil) }

// AppendFloat32s reads a vector and appends it to x.
func (r *Reader) AppendFloat32s(x []float32) []float32 {
	n := r.Count(4)
	if n == 0 {
		return x
	}
	b := r.take(4 * n)
	x = slices.Grow(x, n)[:len(x)+n]
	to := x[len(x)-n:]
	for ; len(to) >= 2 && len(b) >= 8; to, b = to[2:], b[8:] {
		two := binary.LittleEndian.Uint64(b)
		to[0], to[1] = math.Float32frombits(uint32(two)), math.Float32frombits(uint32(two>>32))
	}
	if len(to) > 0 {
		to[0] = math.Float32frombits(binary.LittleEndian.Uint32(b))
	}
	return x
}

// Float64s reads a vector.
func (r *Reader) Float64s() []float64 {
	n := r.Count(8)
	if n == 0 {
		return nil
	}
	b, x := r.take(8*n), make([]float64, n)
	for i := range x {
		x[i] = math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:]))
	}
	return x
}
