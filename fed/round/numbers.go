package round

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"

	"loadstar/fed"
	"loadstar/fed/exact"
)

// Encoding of a result's numbers on the wire and in storage, little-endian. An encoded
// update is the change of the shared weights, followed by the change of the control
// variate if the rules need it, both as float32. An encoded sum has the same two parts,
// each encoded by exact.Sum.

// UpdateBytes returns the length of an encoded update.
func (r Rules) UpdateBytes(shared int) int {
	if r.Needs.Control {
		return 8 * shared
	}
	return 4 * shared
}

// AppendUpdate appends the encoding of an update to b.
func (r Rules) AppendUpdate(b []byte, u *fed.Update) []byte {
	b = AppendFloats(b, u.Delta)
	if r.Needs.Control {
		b = AppendFloats(b, u.Control)
	}
	return b
}

// ReadUpdate decodes an update with the given number of shared weights into u and reuses
// u's slices. It does not check the values; Add does.
func (r Rules) ReadUpdate(u *fed.Update, b []byte, shared int) error {
	if len(b) != r.UpdateBytes(shared) {
		return fmt.Errorf("the update has %d bytes, want %d", len(b), r.UpdateBytes(shared))
	}
	u.Delta = ReadFloats(u.Delta, b[:4*shared])
	u.Control = u.Control[:0]
	if r.Needs.Control {
		u.Control = ReadFloats(u.Control, b[4*shared:])
	}
	return nil
}

// AppendFloats appends the encoding of x to b.
func AppendFloats(b []byte, x []float32) []byte {
	for _, f := range x {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	return b
}

// ReadFloats decodes b and returns the numbers. It reuses x if x is large enough.
func ReadFloats(x []float32, b []byte) []float32 {
	if n := len(b) / 4; cap(x) < n {
		x = make([]float32, n)
	} else {
		x = x[:n]
	}
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 { // the encoding equals the layout in memory
		copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x)), b)
		return x
	}
	for i := range x {
		x[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return x
}

// AppendSums appends the encoding of a sum to b.
func AppendSums(b []byte, s *fed.Sums) ([]byte, error) {
	for _, part := range []*exact.Sum{s.Delta, s.Control} {
		if part == nil {
			continue
		}
		numbers, err := part.MarshalBinary()
		if err != nil {
			return nil, err
		}
		b = append(b, numbers...)
	}
	return b, nil
}

// AddSums decodes a sum over the given number of shared weights and counts all its updates. It
// returns the number of updates and their total weight. The bytes may come from an untrusted
// sender. On an error the fold is unchanged.
func (f *Fold) AddSums(version, shared int, b []byte) (updates int, weight int64, err error) {
	if f.rules.Needs.EachUpdate {
		return 0, 0, fmt.Errorf("the result is a sum, but the algorithm needs each update")
	}
	s := f.newSums(shared)
	delta := b
	if f.rules.Needs.Control {
		half := len(b) / 2
		delta = b[:half]
		if err := s.Control.UnmarshalBinary(b[half:]); err != nil {
			return 0, 0, err
		}
	}
	if err := s.Delta.UnmarshalBinary(delta); err != nil {
		return 0, 0, err
	}
	updates = s.Delta.Updates()
	if s.Control != nil && s.Control.Updates() != updates {
		return 0, 0, fmt.Errorf("the sum has %d updates and %d control variates, want equal numbers", updates, s.Control.Updates())
	}
	if s.Control != nil {
		want := int64(updates)
		if f.rules.WeightControl {
			want = s.Delta.Weight()
		}
		if s.Control.Weight() != want {
			return 0, 0, fmt.Errorf("the sum has control variates of weight %d, want %d", s.Control.Weight(), want)
		}
	}
	s.Version = version
	return updates, s.Delta.Weight(), f.Join(&Fold{rules: f.rules, sums: []fed.Sums{s}, n: updates})
}
