package forecast

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"loadstar/nn"
	"loadstar/nn/kernel"
)

func TestDenseShape(t *testing.T) {
	d, ok := DefaultsOf("dense")
	if !ok || !d.Rows || d.PerExample(24) != 1 || d.Lookback != 168 {
		t.Fatalf("defaults %+v", d)
	}
	if d, _ := DefaultsOf("fekri2023"); d.Rows || d.PerExample(24) != 24 {
		t.Errorf("defaults of fekri2023: %+v", d)
	}
	// The numbers of weights were computed by hand: trunk 96·(F+1) + 96 + 96·97 + 96, head
	// Q·(96+F+1), correction 64·(96+F+1) + 64 + Q·(64+96+F+1).
	for _, c := range []struct {
		shape                    Shape
		inputs, outputs          int
		sharedLen, correctionLen int
	}{
		{Shape{}, 140, 3, 23_751, 16_135},
		{Shape{Lookback: 168, Inputs: 171, Outputs: 3, Naive: 24}, 171, 3, 26_820, 18_212},
		{Shape{Lookback: 24, Inputs: 1, Outputs: 1, Naive: -1}, 1, 1, 9_794, 6_498},
	} {
		m := model(t, "dense", c.shape)
		net := m.Net()
		if net.Lookback() != 1 || net.Inputs() != c.inputs || net.Outputs() != c.outputs {
			t.Errorf("%+v: windows of %d by %d, %d outputs", c.shape, net.Lookback(), net.Inputs(), net.Outputs())
		}
		p, err := m.Partition(PartitionCorrection)
		if err != nil {
			t.Fatal(err)
		}
		if p.SharedLen() != c.sharedLen || p.PersonalLen() != c.correctionLen {
			t.Errorf("%+v: %d shared and %d personal weights, want %d and %d", c.shape, p.SharedLen(), p.PersonalLen(), c.sharedLen, c.correctionLen)
		}
		if got := layerNames(p.Personal()); !slices.Equal(got, []string{"correction.0", "correction.1", "correction.2"}) || !slices.Equal(got, layerNames(m.Correction())) {
			t.Errorf("personal layers %v", got)
		}
	}
	for _, naive := range []int{-2, 140, math.MaxInt} {
		if _, err := New("dense", Shape{Naive: naive}); err == nil || !strings.Contains(err.Error(), "naive forecast") {
			t.Errorf("input %d as the naive forecast: %v", naive, err)
		}
	}
	if model(t, "bose2023", Shape{}).Correction() != nil {
		t.Error("bose2023 has a correction")
	}
}

// TestDenseInitialWeights checks the distribution of the initial weights, and that the initial
// weights for a seed never change.
func TestDenseInitialWeights(t *testing.T) {
	const naive = 24
	m := model(t, "dense", Shape{Naive: naive})
	w := m.InitialWeights(1)
	hash := sha256.New()
	if err := binary.Write(hash, binary.LittleEndian, w); err != nil {
		t.Fatal(err)
	}
	if got, want := hex.EncodeToString(hash.Sum(nil))[:8], "a8ca7c0b"; got != want {
		t.Errorf("weights of seed 1 hash to %s, want %s", got, want)
	}
	for _, l := range m.Net().Layers() {
		weights := w[l.Offset() : l.Offset()+l.Len()]
		if l.Kind == nn.KindPReLU {
			for i, v := range weights {
				if v != 0.25 {
					t.Fatalf("slope %d of %s is %g", i, l.Name, v)
				}
			}
			continue
		}
		rows, columns := l.Tensors[0].Shape[0], l.Tensors[0].Shape[1]
		for i, v := range weights[rows*columns:] {
			if v != 0 {
				t.Errorf("bias %d of %s is %g", i, l.Name, v)
			}
		}
		trunk := columns
		variance := 1 / float64(columns)
		switch l.Name {
		case "correction.2":
			variance = 0
		case "head":
			variance /= 100
			trunk = denseTrunk
			for i := range rows * columns {
				want := float32(0)
				if i%columns == denseTrunk+naive {
					want = 1
				}
				if i%columns >= denseTrunk && weights[i] != want {
					t.Errorf("weight %d of the head is %g, want %g", i, weights[i], want)
				}
			}
		}
		var sum, squares float64
		for i := range rows {
			for _, v := range weights[i*columns:][:trunk] {
				sum += float64(v)
				squares += float64(v) * float64(v)
			}
		}
		n := float64(rows * trunk)
		if got := squares / n; math.Abs(got-variance) > 0.15*variance {
			t.Errorf("%s: variance %g, want %g", l.Name, got, variance)
		}
		if mean := sum / n; math.Abs(mean) > 5*math.Sqrt(variance/n) {
			t.Errorf("%s: mean %g", l.Name, mean)
		}
	}
}

// TestDenseStartsAtNaive checks that the initial forecasts are close to the naive forecast, and
// that they equal it without the trunk.
func TestDenseStartsAtNaive(t *testing.T) {
	const inputs, batch = 30, 20
	for _, naive := range []int{0, 7, 29} {
		m := model(t, "dense", Shape{Inputs: inputs, Naive: naive})
		rng := rand.New(rand.NewPCG(1, uint64(naive)))
		x := make([]float32, batch*inputs)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		w := m.InitialWeights(3)
		without := slices.Clone(w)
		head := m.Net().Layers()[4]
		for o := range 3 {
			clear(without[head.Offset()+o*(denseTrunk+inputs):][:denseTrunk])
		}
		for _, k := range kernel.Available() {
			ws := m.Net().NewWorkspace(k, batch)
			out := make([]float32, batch*3)
			ws.Predict(out, w, x)
			var sum float64
			for i, v := range out {
				e := float64(v - x[i/3*inputs+naive])
				sum += e * e
			}
			if rms := math.Sqrt(sum / float64(len(out))); rms > 0.3 || rms == 0 {
				t.Errorf("%s, input %d: the first forecasts are %g from the naive ones", k, naive, rms)
			}
			ws.Predict(out, without, x)
			for i, v := range out {
				if v != x[i/3*inputs+naive] {
					t.Fatalf("%s, input %d: output %d is %g without the trunk, want %g", k, naive, i, v, x[i/3*inputs+naive])
				}
			}
			ws.Predict(out[:3], without, x[:inputs]) // the code path for a single window
			for i, v := range out[:3] {
				if v != x[naive] {
					t.Fatalf("%s, input %d, one window: output %d is %g, want %g", k, naive, i, v, x[naive])
				}
			}
		}
	}
}

// TestDenseLearns fits a function with a kink that no linear model can fit.
func TestDenseLearns(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long on an emulator; TestGolden compares 20 steps")
	}
	const inputs, batch, steps = 6, 64, 200
	m := model(t, "dense", Shape{Inputs: inputs, Outputs: 1, Naive: -1})
	for _, k := range kernel.Available() {
		rng := rand.New(rand.NewPCG(9, 9))
		w := m.InitialWeights(1)
		g, m1, m2 := make([]float32, len(w)), make([]float32, len(w)), make([]float32, len(w))
		ws := m.Net().NewWorkspace(k, batch)
		x, y := make([]float32, batch*inputs), make([]float32, batch)
		var loss float64
		for step := range steps {
			for i := range x {
				x[i] = float32(rng.NormFloat64())
			}
			for i := range y {
				y[i] = max(x[i*inputs], x[i*inputs+1])
			}
			loss = ws.Gradient(g, w, x, y, nn.MSE{})
			k.Adam(w, g, m1, m2, kernel.AdamStep{Rate: 0.003, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Step: step + 1})
		}
		if loss > 0.06 { // the best linear forecast has 1/2 - 1/π = 0.18
			t.Errorf("%s: loss %g after %d steps", k, loss, steps)
		}
	}
}
