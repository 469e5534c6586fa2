package safetensors

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"
)

func mixed(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	err := Write(&b, []Tensor{
		{Name: "mean", Shape: []int{2}, Float64: []float64{math.Pi, -1e300}},
		{Name: "profile", Shape: []int{2, 3}, Data: []float32{1, 2, 3, 4, 5, 6}},
		{Name: "count", Shape: []int{2}, Int32: []int32{-7, math.MaxInt32}},
		{Name: "none", Shape: []int{0, 4}, Float64: []float64{}},
	}, map[string]string{"clients": `["a","b"]`})
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestFile(t *testing.T) {
	b := mixed(t)
	f, err := Open(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	mean, row, count := make([]float64, 1), make([]float32, 3), make([]int32, 2)
	for _, err := range []error{f.Float64s(mean, "mean", 1), f.Float32s(row, "profile", 3), f.Int32s(count, "count", 0), f.Float64s(nil, "none", 0)} {
		if err != nil {
			t.Error(err)
		}
	}
	if mean[0] != -1e300 || !slices.Equal(row, []float32{4, 5, 6}) || !slices.Equal(count, []int32{-7, math.MaxInt32}) {
		t.Error(mean, row, count)
	}
	if shape, ok := f.Shape("profile"); !ok || !slices.Equal(shape, []int{2, 3}) || f.Metadata()["clients"] != `["a","b"]` {
		t.Error(shape, ok, f.Metadata())
	}
	if _, ok := f.Shape("other"); ok {
		t.Error("a tensor that does not exist")
	}
	for name, err := range map[string]error{
		"unknown":  f.Float64s(mean, "other", 0),
		"type":     f.Float32s(row, "mean", 0),
		"integers": f.Int32s(count, "profile", 0),
		"end":      f.Float32s(row, "profile", 4),
		"start":    f.Float32s(row, "profile", -1),
		"overflow": f.Float32s(row, "profile", math.MaxInt-1),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, _, err := Read(bytes.NewReader(b), 100); err == nil || !strings.Contains(err.Error(), "only F32") {
		t.Errorf("Read of other types: %v", err)
	}
	if err := Write(&bytes.Buffer{}, []Tensor{{Name: "a", Shape: []int{1}, Data: []float32{1}, Int32: []int32{1}}}, nil); err == nil {
		t.Error("numbers of two types: no error")
	}
}

func FuzzOpen(f *testing.F) {
	b := mixed(f)
	f.Add(b)
	f.Add(b[:len(b)-1])
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\x7f{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := Open(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		for name, e := range file.tensors {
			n := 1
			for _, d := range e.Shape {
				n *= d
			}
			if int64(n)*width(e.DType) > int64(len(b)) {
				t.Fatalf("%s: shape %v in %d bytes", name, e.Shape, len(b))
			}
			switch e.DType {
			case typeFloat32:
				err = file.Float32s(make([]float32, n), name, 0)
			case typeFloat64:
				err = file.Float64s(make([]float64, n), name, 0)
			case typeInt32:
				err = file.Int32s(make([]int32, n), name, 0)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	})
}
