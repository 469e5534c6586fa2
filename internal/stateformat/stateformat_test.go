package stateformat

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"slices"
	"strings"
	"testing"
)

var sample = Format{Name: "sample", Magic: "LODTEST\x00", Version: 2}

func sampleState() []byte {
	var w Writer
	w.Int(-7)
	w.Float64(math.Inf(-1))
	w.Bool(true)
	w.String("two words")
	w.Bytes([]byte{1, 2})
	w.Float32s([]float32{0.5, -3})
	w.Float64s(nil)
	w.Float64s([]float64{1e300})
	return w.State()
}

func TestHeader(t *testing.T) {
	// The expected bytes have the layout in the package comment. The checksum was computed
	// bit by bit with a script that gives 0xe3069283 for "123456789".
	got := Format{Name: "sample", Magic: "LODTEST\x00", Version: 2}.Wrap([]byte("abc"))
	want := []byte("LODTEST\x00\x02\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00abc\x24\xc9\xd0\x80")
	if !bytes.Equal(got, want) {
		t.Fatalf("%q", got)
	}
	version, state, err := sample.Unwrap(got)
	if version != 2 || string(state) != "abc" || err != nil {
		t.Errorf("%d, %q, %v", version, state, err)
	}
}

func TestFields(t *testing.T) {
	r := NewReader(sampleState())
	if n, x, b := r.Int(), r.Float64(), r.Bool(); n != -7 || !math.IsInf(x, -1) || !b {
		t.Error(n, x, b)
	}
	if s, b := r.String(), r.Bytes(); s != "two words" || !bytes.Equal(b, []byte{1, 2}) {
		t.Error(s, b)
	}
	if x, y, z := r.Float32s(), r.Float64s(), r.Float64s(); !slices.Equal(x, []float32{0.5, -3}) || y != nil || !slices.Equal(z, []float64{1e300}) {
		t.Error(x, y, z)
	}
	if err := r.Done(); err != nil {
		t.Error(err)
	}
}

func TestRejected(t *testing.T) {
	whole := sample.Wrap(sampleState())
	newer := sample
	newer.Version = 3
	other := bytes.Clone(whole)
	other[0] = 'l'
	none := sample.Wrap(nil)
	none[magicSize] = 0
	binary.LittleEndian.PutUint32(none[headerSize:], crc32.Checksum(none[:headerSize], castagnoli))
	for name, c := range map[string]struct {
		b    []byte
		is   error
		want string
	}{
		"nothing":       {nil, ErrDamaged, `does not begin with "LODTEST\x00"`},
		"another magic": {other, ErrDamaged, "does not begin with"},
		"only a magic":  {whole[:10], ErrDamaged, "cut off after 10 bytes"},
		"cut off":       {whole[:len(whole)-1], ErrDamaged, "bytes, but the header says"},
		"longer":        {append(bytes.Clone(whole), 0), ErrDamaged, "bytes, but the header says"},
		"format 0":      {none, ErrDamaged, "it says format 0"},
		"newer":         {newer.Wrap(nil), ErrNewer, "sample: written by a newer Loadstar (format 3, this one reads up to 2): upgrade"},
	} {
		_, _, err := sample.Unwrap(c.b)
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// FuzzUnwrap reads fields in an order that depends on the data. It checks that nothing
// panics, and that no field allocates more memory than the data has bytes.
func FuzzUnwrap(f *testing.F) {
	f.Add(sample.Wrap(sampleState()), []byte("ifbsyxde"))
	f.Add(sampleState(), []byte("ifbsyxde"))
	f.Add([]byte{255, 255, 255, 255, 255, 255, 255, 127}, []byte("x"))
	f.Fuzz(func(t *testing.T, b, order []byte) {
		_, state, err := sample.Unwrap(b)
		if err != nil {
			return
		}
		if !bytes.Contains(b, state) {
			t.Fatal("the state is not a part of the bytes")
		}
		r, size := NewReader(state), 0
		for _, field := range order {
			switch field % 7 {
			case 0:
				r.Int()
			case 1:
				r.Bool()
			case 2:
				size += len(r.String())
			case 3:
				size += len(r.Bytes())
			case 4:
				size += 4 * len(r.Float32s())
			case 5:
				size += 8 * len(r.Float64s())
			case 6:
				r.Count(1)
			}
		}
		if r.Done() == nil && size > len(state) {
			t.Fatalf("%d bytes of fields in a state of %d", size, len(state))
		}
	})
}
