package forecast

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"loadstar/nn"
	"loadstar/nn/kernel"
	"loadstar/nn/nntest"
	"loadstar/nn/safetensors"
)

func model(t testing.TB, name string, shape Shape) *Model {
	t.Helper()
	m, err := New(name, shape)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestParameters compares the numbers of weights with those in the papers.
func TestParameters(t *testing.T) {
	for _, c := range []struct {
		name  string
		shape Shape
		want  int
	}{
		{"bose2023", Shape{}, 42_181},
		{"bose2024", Shape{}, 60_276},
		{"fekri2023", Shape{Outputs: 8}, 5_120 + 33*8},
		{"fekri2023", Shape{Outputs: 16}, 5_120 + 33*16},
		{"fekri2023", Shape{Lookback: 168}, 5_120 + 33*8},
	} {
		if got := model(t, c.name, c.shape).Net().Weights(); got != c.want {
			t.Errorf("%s %+v has %d weights, want %d", c.name, c.shape, got, c.want)
		}
	}
}

// TestPartitionsTableV compares the total number of parameters sent and received with table V
// of bose2023. For partition P2 of bose2024, it compares this number with the size of the LSTM.
func TestPartitionsTableV(t *testing.T) {
	for _, c := range []struct {
		model, partition string
		bothWays         int
	}{
		{"bose2023", PartitionNone, 84_362},
		{"bose2023", PartitionHead, 11_520},
		{"bose2023", PartitionHeadTop, 4_800},
		{"bose2023", PartitionAll, 0},
		{"bose2024", PartitionNone, 2 * 60_276},
		{"bose2024", PartitionHead, 2 * 3_500},
		{"bose2024", PartitionAll, 0},
		{"bose2023", "fc.4", 84_362 - 2*61},
		{"bose2023", "lstm_l0, fc.0", 84_362 - 2*(2_400+28_920)},
	} {
		m := model(t, c.model, Shape{})
		p, err := m.Partition(c.partition)
		if err != nil {
			t.Fatal(err)
		}
		if got := 2 * p.SharedLen(); got != c.bothWays {
			t.Errorf("%s %s: %d parameters both ways, want %d", c.model, c.partition, got, c.bothWays)
		}
		if p.SharedLen()+p.PersonalLen() != m.Net().Weights() {
			t.Errorf("%s %s: %d shared and %d personal of %d", c.model, c.partition, p.SharedLen(), p.PersonalLen(), m.Net().Weights())
		}
	}
}

func TestPartitionErrors(t *testing.T) {
	for _, c := range []struct{ model, partition, want string }{
		{"bose2024", "head+top", "nothing would be shared"},
		{"bose2023", "tail", "lstm_l0, lstm_l1, fc.0"},
		{"bose2023", "fc.0,fc.9", `"fc.9"`},
		{"bose2023", "", "no layer"},
		{"bose2023", "correction", `bose2023 has no correction; use "head"`},
		{"dense", "head", `use "correction"`},
		{"dense", "head+top", `use "correction", so that correction.0, correction.1, correction.2 are personal`},
		{"dense", "correction.3", "trunk.0, trunk.1"},
	} {
		_, err := model(t, c.model, Shape{}).Partition(c.partition)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %q: %v, want an error with %q", c.model, c.partition, err, c.want)
		}
	}
	if _, err := New("bose2025", Shape{}); err == nil || !strings.Contains(err.Error(), "bose2023") {
		t.Errorf("unknown model: %v, want an error that lists the known ones", err)
	}
}

func TestCutAndJoin(t *testing.T) {
	m := model(t, "bose2023", Shape{})
	w := m.InitialWeights(3)
	for _, name := range []string{PartitionNone, PartitionHead, PartitionHeadTop, PartitionAll, "fc.0,lstm_l0"} {
		p, err := m.Partition(name)
		if err != nil {
			t.Fatal(err)
		}
		shared, personal := make([]float32, p.SharedLen()), make([]float32, p.PersonalLen())
		p.Cut(w, shared, personal)
		back := make([]float32, len(w))
		p.Join(back, shared, personal)
		for i := range w {
			if w[i] != back[i] {
				t.Fatalf("%s: weight %d is %g after cutting and joining, was %g", name, i, back[i], w[i])
			}
		}
		for _, f := range []func(){
			func() { p.Join(back, shared, append(personal, 0)) },
			func() { p.Cut(w[1:], shared, personal) },
			func() { p.Cut(w, append(shared, 0), personal) },
		} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s: a vector of the wrong length was accepted", name)
					}
				}()
				f()
			}()
		}
		// Mark the personal weights and check that no shared weight is marked.
		marked := make([]float32, len(w))
		for _, l := range p.Personal() {
			for i := range l.Len() {
				marked[l.Offset()+i] = 1
			}
		}
		p.Cut(marked, shared, personal)
		for i, v := range shared {
			if v != 0 {
				t.Fatalf("%s: shared weight %d is personal", name, i)
			}
		}
	}
}

// TestInitialWeights checks that the initial weights for a seed never change and are the same
// on all platforms.
func TestInitialWeights(t *testing.T) {
	for _, c := range []struct{ name, want string }{
		{"bose2023", "3155d9b6"},
		{"bose2024", "6ca0a2d0"},
		{"fekri2023", "e56657dd"},
	} {
		m := model(t, c.name, Shape{})
		w := m.InitialWeights(1)
		hash := sha256.New()
		if err := binary.Write(hash, binary.LittleEndian, w); err != nil {
			t.Fatal(err)
		}
		if got := hex.EncodeToString(hash.Sum(nil))[:8]; got != c.want {
			t.Errorf("%s: weights of seed 1 hash to %s, want %s", c.name, got, c.want)
		}
		for _, l := range m.Net().Layers() {
			x := w[l.Offset() : l.Offset()+l.Len()]
			var sum, bound float64
			for _, v := range x {
				sum += float64(v)
				bound = max(bound, math.Abs(float64(v)))
			}
			fan := map[nn.Kind]int{nn.KindLSTM: l.Tensors[0].Shape[0] / 4, nn.KindLinear: l.Tensors[0].Shape[len(l.Tensors[0].Shape)-1], nn.KindPReLU: 16}[l.Kind]
			if limit := 1 / math.Sqrt(float64(fan)); bound > limit || bound < 0.9*limit {
				t.Errorf("%s %s: weights up to %g, want within %g", c.name, l.Name, bound, limit)
			}
		}
	}
}

// TestFlops compares the result with a manual count of the operations per example in bose2023's
// matrix products. Forward:
//
//	LSTM  8→20: 2·80·( 8·12 + 20·11) =  50,560, because the first hidden state is zero
//	LSTM 20→20: 2·80·(20·12 + 20·11) =  73,600
//	head:       2·(240·120 + 120·60 + 60) = 72,120
//
// The backward pass takes twice as many, minus 2·80·8·12 = 15,360 for the gradient of the
// inputs, which is not needed.
func TestFlops(t *testing.T) {
	forward, training := model(t, "bose2023", Shape{}).Net().Flops(64)
	if forward != 64*196_280 || training != 64*(3*196_280-15_360) {
		t.Errorf("%d forward and %d in training", forward, training)
	}
}

// losses returns each loss, with the number of outputs per target that it needs.
func losses(t *testing.T) map[string]nn.Loss {
	pinball, err := nn.NewPinball(0.1, 0.5, 0.9)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]nn.Loss{"mse": nn.MSE{}, "mae": nn.MAE{}, "pinball": pinball}
}

// TestGradients checks all models, losses and kernel sets against finite
// differences in float64.
func TestGradients(t *testing.T) {
	models := Models()
	if testing.Short() {
		models = models[2:] // only the smallest, because emulation is slow
	}
	for _, s := range models {
		name := s.Name
		for lossName, loss := range losses(t) {
			if testing.Short() && lossName != "pinball" {
				continue // TestGolden covers the other kernel sets
			}
			for _, k := range kernel.Available() {
				t.Run(fmt.Sprintf("%s/%s/%s", name, lossName, k), func(t *testing.T) {
					const batch, targets = 3, 2
					m := model(t, name, Shape{Outputs: loss.Outputs(targets)})
					rng := rand.New(rand.NewPCG(5, 5))
					x, y := make([]float32, batch*m.Net().Lookback()*m.Net().Inputs()), make([]float32, batch*targets)
					for _, v := range [][]float32{x, y} {
						for i := range v {
							v[i] = float32(rng.NormFloat64())
						}
					}
					nntest.CheckGradient(t, m.Net(), k, m.InitialWeights(7), x, y, loss)
				})
			}
		}
	}
}

// TestGolden compares outputs, losses, the gradient, and the weights after 1 and 20 Adam steps
// with those of PyTorch. The tolerance is 1e-4 of each tensor's largest value. To write the
// files, run `python3 rig/bench/engine/peer.py golden forecast/testdata`. The weights differ
// most, because Adam's first steps move every weight by the sign of its gradient, even if this
// gradient is almost zero.
func TestGolden(t *testing.T) {
	for _, c := range []struct {
		file, model, loss string
		outputs           int
	}{
		{"bose2023-mse", "bose2023", "mse", 1},
		{"fekri2023-mae", "fekri2023", "mae", 8},
		{"fekri2023-pinball", "fekri2023", "pinball", 24},
		{"dense-pinball", "dense", "pinball", 3},
	} {
		golden := readGolden(t, c.file)
		x, y := golden["x"].Data, golden["y"].Data
		shape := golden["x"].Shape
		batch, inputs := shape[0], shape[len(shape)-1]
		m, loss := model(t, c.model, Shape{Inputs: inputs, Outputs: c.outputs}), losses(t)[c.loss]
		for _, k := range kernel.Available() {
			t.Run(c.file+"/"+k.Name(), func(t *testing.T) {
				w := golden.weights(t, m, "w0.")
				n := len(w)
				g, m1, m2 := make([]float32, n), make([]float32, n), make([]float32, n)
				ws := m.Net().NewWorkspace(k, batch)

				out := make([]float32, batch*c.outputs)
				ws.Predict(out, w, x)
				worst := map[string]float64{"out": distance(out, golden["out"].Data)}
				for step := range 20 {
					got, want := ws.Gradient(g, w, x, y, loss), float64(golden["losses"].Data[step])
					worst["losses"] = max(worst["losses"], math.Abs(got-want)/want)
					if step == 0 {
						worst["grad"] = golden.distance(t, m, "grad.", g)
					}
					k.Adam(w, g, m1, m2, kernel.AdamStep{Rate: 0.001, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Step: step + 1})
					if step == 0 {
						worst["w1"] = golden.distance(t, m, "w1.", w)
					}
				}
				worst["w20"] = golden.distance(t, m, "w20.", w)
				for what, d := range worst {
					t.Logf("%s: off by %.1e of the tensor's largest value", what, d)
					if d > 1e-4 {
						t.Errorf("%s: the difference is more than 1e-4", what)
					}
				}
			})
		}
	}
}

type goldenFile map[string]safetensors.Tensor

func readGolden(t *testing.T, name string) goldenFile {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name+".safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tensors, _, err := safetensors.Read(f, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	g := goldenFile{}
	for _, x := range tensors {
		g[x.Name] = x
	}
	return g
}

// weights returns a flat weight vector, assembled from the file's tensors whose names have
// the prefix.
func (g goldenFile) weights(t *testing.T, m *Model, prefix string) []float32 {
	t.Helper()
	w := make([]float32, m.Net().Weights())
	for _, l := range m.Net().Layers() {
		for _, x := range l.Tensors {
			if fmt.Sprint(g[prefix+x.Name].Shape) != fmt.Sprint(x.Shape) {
				t.Fatalf("%s has shape %v in PyTorch, %v here", x.Name, g[prefix+x.Name].Shape, x.Shape)
			}
			copy(w[x.Offset:], g[prefix+x.Name].Data)
		}
	}
	return w
}

// distance compares the tensors in got with those in the file whose names have the prefix,
// and returns the largest distance.
func (g goldenFile) distance(t *testing.T, m *Model, prefix string, got []float32) float64 {
	t.Helper()
	want := g.weights(t, m, prefix)
	worst := 0.0
	for _, l := range m.Net().Layers() {
		for _, x := range l.Tensors {
			worst = max(worst, distance(got[x.Offset:x.Offset+x.Len()], want[x.Offset:x.Offset+x.Len()]))
		}
	}
	return worst
}

// distance returns the largest difference between got and want, relative to the largest
// magnitude in want.
func distance(got, want []float32) float64 {
	var size, diff float64
	for i := range want {
		size = max(size, math.Abs(float64(want[i])))
		diff = max(diff, math.Abs(float64(got[i])-float64(want[i])))
	}
	return diff / size
}
