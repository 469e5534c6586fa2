// Package safetensors reads and writes named tensors in the .safetensors format, which
// PyTorch, NumPy and JAX support: eight bytes with the length of a JSON header, the header,
// and the numbers of all tensors, little-endian.
//
// Reading is strict: it returns an error for missing, unknown or repeated fields in the header,
// for tensors that overlap or leave gaps, and for unknown types. It never allocates more than
// the limit allows. [Read] reads whole files, which must contain only float32 tensors. A [File]
// also supports the other types, and can read parts of a tensor.
package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"unicode/utf8"
)

// Tensor is a named array of numbers in row-major order.
type Tensor struct {
	Name  string
	Shape []int
	Data  []float32
	// Float64 and Int32 contain the numbers of tensors of these types. At most one of the
	// three slices is not nil.
	Float64 []float64
	Int32   []int32
}

// The types of numbers.
const (
	typeFloat32 = "F32"
	typeFloat64 = "F64"
	typeInt32   = "I32"
)

// kind returns the type and the count of the tensor's numbers.
func (t *Tensor) kind() (dtype string, n int, err error) {
	switch {
	case t.Float64 != nil && t.Int32 == nil && t.Data == nil:
		return typeFloat64, len(t.Float64), nil
	case t.Int32 != nil && t.Float64 == nil && t.Data == nil:
		return typeInt32, len(t.Int32), nil
	case t.Float64 == nil && t.Int32 == nil:
		return typeFloat32, len(t.Data), nil
	}
	return "", 0, errors.New("the tensor has numbers of several types")
}

// width returns the number of bytes of a number, or 0 if the type is unknown.
func width(dtype string) int64 {
	switch dtype {
	case typeFloat32, typeInt32:
		return 4
	case typeFloat64:
		return 8
	}
	return 0
}

// maxHeader is the maximum size of the JSON header that Read accepts, in bytes. Each tensor
// needs about 100 bytes. The header of a [File] may have up to longestHeader bytes, because of
// longer metadata.
const (
	maxHeader     = 4 << 20
	longestHeader = 256 << 20
)

const metadataKey = "__metadata__"

// entry is a tensor's entry in the header.
type entry struct {
	DType   string   `json:"dtype"`
	Shape   []int    `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// Write writes the tensors in order. metadata may be nil.
func Write(w io.Writer, tensors []Tensor, metadata map[string]string) error {
	var header bytes.Buffer
	header.WriteByte('{')
	field := func(key string, value any) error {
		if header.Len() > 1 {
			header.WriteByte(',')
		}
		for i, x := range []any{key, value} {
			text, err := json.Marshal(x)
			if err != nil {
				return err
			}
			if i == 1 {
				header.WriteByte(':')
			}
			header.Write(text)
		}
		return nil
	}
	if len(metadata) > 0 {
		if err := field(metadataKey, metadata); err != nil {
			return err
		}
	}
	var offset int64
	names := map[string]bool{metadataKey: true}
	for _, t := range tensors {
		n, err := elements(t.Shape)
		dtype, have, mixed := t.kind()
		switch {
		case err != nil || mixed != nil:
			return fmt.Errorf("safetensors: %s: %w", t.Name, errors.Join(err, mixed))
		case n != int64(have):
			return fmt.Errorf("safetensors: %s: %d numbers for shape %v", t.Name, have, t.Shape)
		case names[t.Name]:
			return fmt.Errorf("safetensors: two tensors are named %s", t.Name)
		}
		names[t.Name] = true
		shape := t.Shape
		if shape == nil {
			shape = []int{} // a scalar has an empty array; nil would become null
		}
		end := offset + width(dtype)*n
		if err := field(t.Name, entry{dtype, shape, [2]int64{offset, end}}); err != nil {
			return err
		}
		offset = end
	}
	header.WriteByte('}')
	for header.Len()%8 != 0 {
		header.WriteByte(' ') // aligns the numbers
	}
	if header.Len() > longestHeader {
		return fmt.Errorf("safetensors: the header has %d bytes, which is too long", header.Len())
	}
	out := binary.LittleEndian.AppendUint64(nil, uint64(header.Len()))
	if _, err := w.Write(append(out, header.Bytes()...)); err != nil {
		return err
	}
	for _, t := range tensors {
		out = out[:0]
		for _, v := range t.Data {
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
		}
		for _, v := range t.Float64 {
			out = binary.LittleEndian.AppendUint64(out, math.Float64bits(v))
		}
		for _, v := range t.Int32 {
			out = binary.LittleEndian.AppendUint32(out, uint32(v))
		}
		if _, err := w.Write(out); err != nil {
			return err
		}
	}
	return nil
}

// Read reads a file with at most limit numbers. It returns the tensors in the order of their
// data, and the metadata.
func Read(r io.Reader, limit int) ([]Tensor, map[string]string, error) {
	tensors, metadata, err := read(r, limit)
	if err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = errors.New("the file ends early")
		}
		return nil, nil, fmt.Errorf("safetensors: %w", err)
	}
	return tensors, metadata, nil
}

func read(r io.Reader, limit int) ([]Tensor, map[string]string, error) {
	var length uint64
	if err := binary.Read(r, binary.LittleEndian, &length); err != nil {
		return nil, nil, err
	}
	if length < 2 || length > maxHeader {
		return nil, nil, fmt.Errorf("the header is %d bytes long; this is not a .safetensors file, or it has over %d bytes of names", length, maxHeader)
	}
	text := make([]byte, length)
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, nil, err
	}
	entries, metadata, err := parse(text)
	if err != nil {
		return nil, nil, err
	}
	var tensors []Tensor
	for _, e := range entries {
		switch {
		case e.DType != typeFloat32:
			return nil, nil, fmt.Errorf("%s holds %s; only F32 is read", e.name, e.DType)
		case e.Offsets[1] > 4*int64(limit):
			return nil, nil, fmt.Errorf("the file has over %d numbers, which is more than expected", limit)
		}
		tensors = append(tensors, Tensor{Name: e.name, Shape: e.Shape})
	}
	for i := range tensors {
		n := int((entries[i].Offsets[1] - entries[i].Offsets[0]) / 4)
		buf := make([]byte, 4*n)
		if _, err := io.ReadFull(r, buf); err != nil {
			return nil, nil, err
		}
		data := make([]float32, n)
		for j := range data {
			data[j] = math.Float32frombits(binary.LittleEndian.Uint32(buf[4*j:]))
		}
		tensors[i].Data = data
	}
	switch _, err := io.ReadFull(r, make([]byte, 1)); {
	case err == nil:
		return nil, nil, errors.New("the file has more bytes than the header names")
	case !errors.Is(err, io.EOF):
		return nil, nil, err
	}
	return tensors, metadata, nil
}

// parse parses and checks a header. It returns the entries in the order of their data.
func parse(text []byte) ([]named, map[string]string, error) {
	if text[0] != '{' || !utf8.Valid(text) {
		return nil, nil, errors.New("header: not a JSON object")
	}
	header, err := object(text)
	if err != nil {
		return nil, nil, fmt.Errorf("header: %w", err)
	}
	var metadata map[string]string
	var entries []named
	for _, f := range header {
		if f.key == metadataKey {
			err = json.Unmarshal(f.value, &metadata)
		} else {
			var e named
			e, err = parseEntry(f.key, f.value)
			entries = append(entries, e)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("header: %s: %w", f.key, err)
		}
	}
	slices.SortFunc(entries, func(a, b named) int {
		return cmp.Or(cmp.Compare(a.Offsets[0], b.Offsets[0]), cmp.Compare(a.Offsets[1], b.Offsets[1]), cmp.Compare(a.name, b.name))
	})
	var offset int64
	for _, e := range entries {
		n, err := elements(e.Shape)
		switch size := width(e.DType); {
		case err != nil:
			return nil, nil, fmt.Errorf("%s: %w", e.name, err)
		case size == 0:
			return nil, nil, fmt.Errorf("%s holds %s; only F32, F64 and I32 are read", e.name, e.DType)
		case e.Offsets[0] != offset || e.Offsets[1] != offset+size*n:
			return nil, nil, fmt.Errorf("%s: shape %v does not fit offsets %v after byte %d", e.name, e.Shape, e.Offsets, offset)
		}
		offset = e.Offsets[1]
	}
	return entries, metadata, nil
}

// named is a header entry with the name of its tensor.
type named struct {
	name string
	entry
}

// field is a member of a JSON object.
type field struct {
	key   string
	value json.RawMessage
}

// object returns the members of a JSON object in order. A repeated key is an error.
func object(text []byte) ([]field, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("not a JSON object")
	}
	var fields []field
	seen := map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, err
		}
		f := field{key: t.(string)}
		if seen[f.key] {
			return nil, fmt.Errorf("%s occurs twice", f.key)
		}
		seen[f.key] = true
		if err := dec.Decode(&f.value); err != nil {
			return nil, err
		}
		fields = append(fields, f)
	}
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	if rest := text[dec.InputOffset():]; len(bytes.TrimRight(rest, " ")) > 0 {
		return nil, errors.New("there is text after the object")
	}
	return fields, nil
}

// parseEntry parses a tensor's entry, which must have exactly three fields.
func parseEntry(name string, text []byte) (named, error) {
	e := named{name: name}
	fields, err := object(text)
	if err != nil {
		return e, err
	}
	var offsets []int64
	for _, f := range fields {
		switch f.key {
		case "dtype":
			err = json.Unmarshal(f.value, &e.DType)
		case "shape":
			err = json.Unmarshal(f.value, &e.Shape)
		case "data_offsets":
			err = json.Unmarshal(f.value, &offsets)
		default:
			err = errors.New("unknown field")
		}
		if err != nil {
			return e, fmt.Errorf("%s: %w", f.key, err)
		}
	}
	if len(fields) != 3 || e.Shape == nil || len(offsets) != 2 {
		return e, errors.New("want dtype, shape and two data_offsets")
	}
	e.Offsets = [2]int64(offsets)
	return e, nil
}

// elements returns the number of elements of a shape.
func elements(shape []int) (int64, error) {
	n := int64(1)
	for _, d := range shape {
		if d < 0 || d > 0 && n > math.MaxInt32/int64(d) {
			return 0, fmt.Errorf("shape %v", shape)
		}
		n *= int64(d)
	}
	return n, nil
}
