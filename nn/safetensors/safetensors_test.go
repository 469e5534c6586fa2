package safetensors

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math"
	"reflect"
	"strings"
	"testing"
)

var example = []Tensor{
	{Name: "lstm.weight_ih_l0", Shape: []int{2, 3}, Data: []float32{1, -2, 3.5, 0, float32(math.Copysign(0, -1)), 1e-42}},
	{Name: "empty", Shape: []int{0, 7}, Data: []float32{}},
	{Name: "scalar", Shape: []int{}, Data: []float32{float32(math.Inf(1))}},
	{Name: "na\"me\n", Shape: []int{1}, Data: []float32{math.MaxFloat32}},
}

func TestRoundTrip(t *testing.T) {
	meta := map[string]string{"format": "pt", "model": "bose2023"}
	var file bytes.Buffer
	if err := Write(&file, example, meta); err != nil {
		t.Fatal(err)
	}
	if n := binary.LittleEndian.Uint64(file.Bytes()); n%8 != 0 {
		t.Errorf("header of %d bytes does not align the numbers", n)
	}
	got, gotMeta, err := Read(&file, 100)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, example) || !maps.Equal(gotMeta, meta) {
		t.Errorf("read %v %v, want %v %v", got, gotMeta, example, meta)
	}
}

// TestLayout compares the written bytes with the description of the format.
func TestLayout(t *testing.T) {
	var file bytes.Buffer
	if err := Write(&file, []Tensor{{Name: "a", Shape: []int{2}, Data: []float32{1, 2}}, {Name: "b", Shape: []int{1, 1}, Data: []float32{3}}}, nil); err != nil {
		t.Fatal(err)
	}
	header := `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1,1],"data_offsets":[8,12]}}`
	for len(header)%8 != 0 {
		header += " "
	}
	want := string(binary.LittleEndian.AppendUint64(nil, uint64(len(header)))) + header +
		"\x00\x00\x80\x3f" + "\x00\x00\x00\x40" + "\x00\x00\x40\x40"
	if file.String() != want {
		t.Errorf("wrote %q, want %q", file.String(), want)
	}
}

func file(header, data string) string {
	return string(binary.LittleEndian.AppendUint64(nil, uint64(len(header)))) + header + data
}

func TestReadRefuses(t *testing.T) {
	one := `{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`
	for _, c := range []struct{ name, in, want string }{
		{"nothing", "", "ends early"},
		{"a picture", "\x89PNG\r\n\x1a\n0000000000000000", "not a .safetensors file"},
		{"a short header", file(one, "")[:20], "ends early"},
		{"short data", file(one, "\x00\x00"), "ends early"},
		{"trailing data", file(one, "\x00\x00\x00\x00x"), "more bytes"},
		{"no JSON", file("{]", ""), "header"},
		{"no object", file("null", ""), "not a JSON object"},
		{"a space first", file(" "+one, "\x00\x00\x00\x00"), "not a JSON object"},
		{"text behind", file(one+"{}", "\x00\x00\x00\x00"), "after the object"},
		{"a tensor twice", file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, "\x00\x00\x00\x00"), "twice"},
		{"no shape", file(`{"a":{"dtype":"F32","data_offsets":[0,4]}}`, "\x00\x00\x00\x00"), "two data_offsets"},
		{"a null shape", file(`{"a":{"dtype":"F32","shape":null,"data_offsets":[0,4]}}`, "\x00\x00\x00\x00"), "two data_offsets"},
		{"three offsets", file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}}`, "\x00\x00\x00\x00"), "two data_offsets"},
		{"a field in capitals", file(`{"a":{"DTYPE":"F32","shape":[1],"data_offsets":[0,4]}}`, "\x00\x00\x00\x00"), "unknown field"},
		{"bad UTF-8", file("{\"\xff\":0}", ""), "not a JSON object"},
		{"half precision", file(`{"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}}`, "\x00\x00"), "only F32"},
		{"a hole", file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, "\x00\x00\x00\x00\x00\x00\x00\x00"), "does not fit"},
		{"an overlap", file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, "\x00\x00\x00\x00"), "does not fit"},
		{"a wrong shape", file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}`, "\x00\x00\x00\x00"), "does not fit"},
		{"a negative shape", file(`{"a":{"dtype":"F32","shape":[-1,-1],"data_offsets":[0,4]}}`, "\x00\x00\x00\x00"), "shape"},
		{"an overflowing shape", file(`{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`, ""), "shape"},
		{"too many numbers", file(`{"a":{"dtype":"F32","shape":[101],"data_offsets":[0,404]}}`, ""), "more than expected"},
	} {
		_, _, err := Read(strings.NewReader(c.in), 100)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", c.name, err, c.want)
		}
	}
}

func TestWriteRefuses(t *testing.T) {
	for name, tensors := range map[string][]Tensor{
		"a wrong shape": {{Name: "a", Shape: []int{2}, Data: []float32{1}}},
		"a name twice":  {{Name: "a", Shape: []int{1}, Data: []float32{1}}, {Name: "a", Shape: []int{1}, Data: []float32{1}}},
		"a taken name":  {{Name: metadataKey, Shape: []int{1}, Data: []float32{1}}},
	} {
		if err := Write(&bytes.Buffer{}, tensors, nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func FuzzRead(f *testing.F) {
	var file bytes.Buffer
	if err := Write(&file, example, map[string]string{"k": "v"}); err != nil {
		f.Fatal(err)
	}
	f.Add(file.Bytes())
	f.Add([]byte("\x02\x00\x00\x00\x00\x00\x00\x00{}"))
	f.Fuzz(func(t *testing.T, in []byte) {
		tensors, meta, err := Read(bytes.NewReader(in), 1000)
		if err != nil {
			return
		}
		var out bytes.Buffer
		if err := Write(&out, tensors, meta); err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		again, _, err := Read(&out, 1000)
		if err != nil || len(again) != len(tensors) {
			t.Fatalf("what was written cannot be read: %v", err)
		}
	})
}
