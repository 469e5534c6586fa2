package forecast

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"

	"loadstar/nn/safetensors"
)

func TestWeightsRoundTrip(t *testing.T) {
	m := model(t, "bose2023", Shape{})
	p, err := m.Partition(PartitionHead)
	if err != nil {
		t.Fatal(err)
	}
	w := m.InitialWeights(1)
	var shared, personal bytes.Buffer
	if err := m.WriteWeights(&shared, w, p.Shared(), map[string]string{"round": "7"}); err != nil {
		t.Fatal(err)
	}
	if err := m.WriteWeights(&personal, w, p.Personal(), nil); err != nil {
		t.Fatal(err)
	}
	back := make([]float32, len(w))
	meta, err := m.ReadWeights(&shared, back, p.Shared())
	if err != nil {
		t.Fatal(err)
	}
	if meta["round"] != "7" || meta["model"] != "bose2023" {
		t.Errorf("metadata %v", meta)
	}
	if _, err := m.ReadWeights(&personal, back, p.Personal()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(w, back) {
		t.Error("weights differ after writing and reading")
	}
}

// TestWeightsNames compares the tensor names with those in the golden file, which come
// from the state_dict of the same network in PyTorch.
func TestWeightsNames(t *testing.T) {
	golden := readGolden(t, "bose2023-mse")
	m := model(t, "bose2023", Shape{})
	var file bytes.Buffer
	if err := m.WriteWeights(&file, m.InitialWeights(1), m.Net().Layers(), nil); err != nil {
		t.Fatal(err)
	}
	tensors, _, err := safetensors.Read(&file, m.Net().Weights())
	if err != nil {
		t.Fatal(err)
	}
	if len(tensors) != 16 {
		t.Errorf("%d tensors, PyTorch has 16", len(tensors))
	}
	for _, x := range tensors {
		if want, ok := golden["w0."+x.Name]; !ok || !slices.Equal(x.Shape, want.Shape) {
			t.Errorf("PyTorch has no tensor %s %v", x.Name, x.Shape)
		}
	}
}

func TestReadWeightsRefuses(t *testing.T) {
	m, other := model(t, "bose2023", Shape{}), model(t, "bose2024", Shape{})
	head, err := m.Partition(PartitionHead)
	if err != nil {
		t.Fatal(err)
	}
	write := func(m *Model, edit func(w []float32)) *bytes.Buffer {
		w := m.InitialWeights(1)
		edit(w)
		var b bytes.Buffer
		if err := m.WriteWeights(&b, w, m.Net().Layers(), nil); err != nil {
			t.Fatal(err)
		}
		return &b
	}
	keep := func([]float32) {}
	// damaged writes a file with a number that WriteWeights would reject.
	damaged := func(i int, v float32) *bytes.Buffer {
		b := write(m, keep)
		at := b.Len() - 4*(m.Net().Weights()-i)
		binary.LittleEndian.PutUint32(b.Bytes()[at:], math.Float32bits(v))
		return b
	}
	var shared, narrow bytes.Buffer
	if err := m.WriteWeights(&shared, m.InitialWeights(1), head.Shared(), nil); err != nil {
		t.Fatal(err)
	}
	small := model(t, "bose2023", Shape{Inputs: 3})
	if err := small.WriteWeights(&narrow, small.InitialWeights(1), small.Net().Layers(), nil); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		file *bytes.Buffer
		part bool
		want string
	}{
		{"another model", write(other, keep), false, "weights of model bose2024"},
		{"layers missing", &shared, false, "missing"},
		{"layers too many", write(m, keep), true, "not one of the expected layers"},
		{"another width", &narrow, false, "shape"},
		{"NaN", damaged(100, float32(math.NaN())), false, "not finite"},
		{"infinity", damaged(42180, float32(math.Inf(-1))), false, "not finite"},
	} {
		layers := head.Shared()
		if !c.part {
			layers = m.Net().Layers()
		}
		w := make([]float32, m.Net().Weights())
		_, err := m.ReadWeights(c.file, w, layers)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", c.name, err, c.want)
		}
		if slices.ContainsFunc(w, func(v float32) bool { return v != 0 }) {
			t.Errorf("%s: weights were changed", c.name)
		}
	}
	w := make([]float32, other.Net().Weights())
	if _, err := other.ReadWeights(write(m, keep), w, other.Net().Layers()); err == nil || !strings.Contains(err.Error(), "weights of model bose2023") {
		t.Errorf("a different, smaller model: %v", err)
	}
}

// TestWriteWeightsOnlyTheGiven checks for every partition that a file with the shared layers
// contains no personal tensor.
func TestWriteWeightsOnlyTheGiven(t *testing.T) {
	for _, c := range []struct {
		model      string
		partitions []string
	}{
		{"bose2023", []string{PartitionNone, PartitionHead, PartitionHeadTop, PartitionAll, "fc.0,lstm_l1"}},
		{"dense", []string{PartitionNone, PartitionCorrection, PartitionAll, "correction.2,trunk.1"}},
	} {
		m := model(t, c.model, Shape{})
		for _, name := range c.partitions {
			checkOnlyShared(t, m, name)
		}
	}
}

func checkOnlyShared(t *testing.T, m *Model, name string) {
	t.Helper()
	p, err := m.Partition(name)
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	if err := m.WriteWeights(&file, m.InitialWeights(1), p.Shared(), nil); err != nil {
		t.Fatal(err)
	}
	tensors, meta, err := safetensors.Read(&file, m.Net().Weights())
	if err != nil {
		t.Fatal(err)
	}
	if meta["format"] != "pt" {
		t.Errorf("%s: metadata %v does not declare PyTorch names", name, meta)
	}
	var want []string
	for _, l := range p.Shared() {
		for _, x := range l.Tensors {
			want = append(want, x.Name)
		}
	}
	var got []string
	for _, x := range tensors {
		got = append(got, x.Name)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: wrote %v, want %v", name, got, want)
	}
	w := m.InitialWeights(1)
	w[0] = float32(math.NaN())
	if err := m.WriteWeights(&bytes.Buffer{}, w, m.Net().Layers(), nil); err == nil {
		t.Error("NaN was written")
	}
}
