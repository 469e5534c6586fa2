package round

import (
	"encoding/binary"
	"fmt"
	"math"

	"loadstar/fed"
	"loadstar/fed/exact"
)

// The numbers of a result, as they travel and are stored: of one update its change
// of the shared weights and, if the rules need it, of the control variate, as float32;
// of a sum the same two as exact.Sum writes them. All little-endian.

// UpdateBytes returns how long the numbers of an update are.
func (r Rules) UpdateBytes(shared int) int {
	if r.Needs.Control {
		return 8 * shared
	}
	return 4 * shared
}

// AppendUpdate appends the numbers of an update.
func (r Rules) AppendUpdate(b []byte, u *fed.Update) []byte {
	b = AppendFloats(b, u.Delta)
	if r.Needs.Control {
		b = AppendFloats(b, u.Control)
	}
	return b
}

// ReadUpdate reads the numbers of an update of so many shared weights into u, whose
// slices it uses again. Whether they can be counted, Add says.
func (r Rules) ReadUpdate(u *fed.Update, b []byte, shared int) error {
	if len(b) != r.UpdateBytes(shared) {
		return fmt.Errorf("an update of %d bytes, want %d", len(b), r.UpdateBytes(shared))
	}
	u.Delta = ReadFloats(u.Delta, b[:4*shared])
	u.Control = u.Control[:0]
	if r.Needs.Control {
		u.Control = ReadFloats(u.Control, b[4*shared:])
	}
	return nil
}

// AppendFloats appends float32s.
func AppendFloats(b []byte, x []float32) []byte {
	for _, f := range x {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	return b
}

// ReadFloats reads float32s into x, which it grows where it must.
func ReadFloats(x []float32, b []byte) []float32 {
	if n := len(b) / 4; cap(x) < n {
		x = make([]float32, n)
	} else {
		x = x[:n]
	}
	for i := range x {
		x[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return x
}

// Sums returns what was counted, by version in ascending order. It is the fold's own.
func (f *Fold) Sums() []fed.Sums {
	sums, _ := f.contents()
	return sums
}

// AppendSums appends the numbers of a sum.
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

// AddSums counts all updates of a sum over so many shared weights, and returns how
// many and how heavy they are. The numbers may be a stranger's; if it returns an
// error, nothing has changed.
func (f *Fold) AddSums(version, shared int, b []byte) (updates int, weight int64, err error) {
	if f.rules.Needs.EachUpdate {
		return 0, 0, fmt.Errorf("a sum, where each update is needed")
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
		return 0, 0, fmt.Errorf("a sum of %d updates with %d control variates", updates, s.Control.Updates())
	}
	s.Version = version
	return updates, s.Delta.Weight(), f.Join(&Fold{rules: f.rules, sums: []fed.Sums{s}, n: updates})
}
