package forecast

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/metric"
	"loadstar/nn"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// scored returns a client with 200 days of load that has gaps.
func scored(t testing.TB, l series.Layout) (*series.Framer, series.Meter, *series.Windows) {
	t.Helper()
	rng := rand.New(rand.NewPCG(4, 4))
	load := make([]float32, 24*200)
	for i := range load {
		load[i] = float32(5 + 3*math.Sin(float64(i)*math.Pi/12) + rng.NormFloat64())
		if rng.IntN(200) == 0 {
			load[i] = float32(math.NaN())
		}
	}
	d := dataset(t, time.UTC, time.Date(2021, 5, 1, 0, 0, 0, 0, time.UTC), load)
	f, err := series.NewFramer(d, l, series.DefaultSplit)
	if err != nil {
		t.Fatal(err)
	}
	m := d.Meter(0)
	return f, m, f.Windows(m, f.Ranges(m))
}

func best(t testing.TB) *kernel.Set {
	t.Helper()
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-5*math.Abs(b) }

// TestScoreAgainstOneByOne compares the scores with those from forecasting each window
// separately. The loss of a window must equal the loss that the window's gradient computation
// returns.
func TestScoreAgainstOneByOne(t *testing.T) {
	pinball, err := nn.NewPinball(0.1, 0.45, 0.9)
	if err != nil {
		t.Fatal(err)
	}
	// Without the current load as an input, the reference is sometimes unknown.
	inputs := []series.Input{{Name: "load", AtTarget: true, Days: 1}, {Name: "temperature", AtTarget: true}}
	for _, c := range []struct {
		loss    nn.Loss
		targets int
		outputs int
		point   int // index of the point forecast in the target's outputs
		Reference
		stride int
	}{{nn.MSE{}, 1, 1, 0, LastValue, 0}, {nn.MAE{}, 3, 3, 0, Auto, 1}, {pinball, 2, 6, 1, "", 6}} {
		l := series.Layout{Lookback: 6, Horizon: 2, Targets: c.targets, Inputs: inputs}
		f, m, win := scored(t, l)
		model, err := New("fekri2023", Shape{Lookback: 6, Inputs: 2, Outputs: c.outputs})
		if err != nil {
			t.Fatal(err)
		}
		w := model.InitialWeights(1)
		k := best(t)
		s, ws := NewScorer(model, k, c.loss), model.Net().NewWorkspace(k, 1)
		s.Reference, s.Stride = c.Reference, c.stride
		var origins []int
		for k := range win.Len(series.Test) {
			if last := win.At(series.Test, k); c.stride == 0 || last%c.stride == c.stride-1 {
				origins = append(origins, last)
			}
		}
		limits := []int{0, 1, 100, 256, 257, 1e6}
		if testing.Short() {
			limits = []int{1, 70} // fewer cases, because emulated ARM is slow
		}
		for _, limit := range limits {
			var lasts []int
			all := len(origins)
			n := all
			if limit > 0 && limit < all {
				n = limit
			}
			for i := range n {
				lasts = append(lasts, origins[int((float64(i)+0.5)*float64(all)/float64(n))])
			}
			var overall metric.Point
			quantiles, err := metric.NewQuantiles(0.1, 0.45, 0.9)
			if err != nil {
				t.Fatal(err)
			}
			steps := make([]metric.Point, c.targets)
			var wantRows []Forecast
			var wantLoss float64
			x, y, out, g := make([]float32, 12), make([]float32, c.targets), make([]float32, c.outputs), make([]float32, len(w))
			for _, last := range lasts {
				win.Gather(x, y, []series.Example{{Last: last}})
				ws.Predict(out, w, x)
				wantLoss += ws.Gradient(g, w, x, y, c.loss) / float64(n)
				for i := range steps {
					at := last + l.Horizon + i
					var row []float64
					for _, v := range out[i*c.outputs/c.targets:][:c.outputs/c.targets] {
						row = append(row, float64(win.Unscale(series.Example{Last: last}, v)))
					}
					slices.Sort(row)
					v, actual, reference := row[c.point], float64(m.Load[at]), float64(m.Load[at-7*24])
					if c.Reference == LastValue {
						reference = float64(m.Load[last])
					}
					for _, p := range []*metric.Point{&overall, &steps[i]} {
						if err := p.Add(v, actual, reference); err != nil {
							t.Fatal(err)
						}
					}
					if err := quantiles.Add([]float64{row[0], v, row[len(row)-1]}, actual); err != nil {
						t.Fatal(err)
					}
					if len(row) == 1 {
						row = nil
					}
					wantRows = append(wantRows, Forecast{m.ID, f.Time(m, last+1), f.Time(m, at), v, actual, reference, row})
				}
			}
			var rows []Forecast
			got, loss, err := s.Score(w, m, win, series.Test, limit, func(f Forecast) error {
				f.Levels = slices.Clone(f.Levels)
				rows = append(rows, f)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			name := fmt.Sprintf("%T, limit %d of %d", c.loss, limit, all)
			if got.ID != m.ID || got.Skipped != 0 || len(got.Steps) != c.targets || !near(loss, wantLoss) {
				t.Errorf("%s: %s, %d steps, loss %v; want %v", name, got.ID, len(got.Steps), loss, wantLoss)
			}
			if pinball := c.loss == nn.Loss(pinball); (got.Quantiles != nil) != pinball || got.Calibrated != nil {
				t.Errorf("%s: quantiles %v, calibrated %v", name, got.Quantiles, got.Calibrated)
			} else if pinball {
				for j, v := range got.Quantiles.Scores() {
					if want := quantiles.Scores()[j]; !near(v.Value, want.Value) && !math.IsNaN(want.Value) {
						t.Errorf("%s: %s %v, want %v", name, v.Name, v.Value, want.Value)
					}
				}
			}
			got.Steps, steps = append(got.Steps, got.Overall, got.Model), append(steps, overall, overall)
			for i := range steps {
				a, b := &got.Steps[i], &steps[i]
				if a.N() != b.N() {
					t.Errorf("%s: %d targets, want %d", name, a.N(), b.N())
				}
				for j, v := range a.Scores() {
					if want := b.Scores()[j]; !near(v.Value, want.Value) && !math.IsNaN(want.Value) {
						t.Errorf("%s: %s %v, want %v", name, v.Name, v.Value, want.Value)
					}
				}
			}
			if !slices.EqualFunc(rows, wantRows, func(a, b Forecast) bool {
				ok := near(a.Forecast, b.Forecast) && slices.EqualFunc(a.Levels, b.Levels, func(a, b float64) bool { return math.Abs(a-b) < 1e-5 }) &&
					(a.Reference == b.Reference || math.IsNaN(a.Reference) && math.IsNaN(b.Reference))
				return ok && a.Client == b.Client && a.Cutoff.Equal(b.Cutoff) && a.Time.Equal(b.Time) && a.Actual == b.Actual
			}) {
				t.Errorf("%s: %d forecasts differ from %d", name, len(rows), len(wantRows))
			}
			// A second call must not depend on state of the first call.
			again, loss2, err := s.Score(w, m, win, series.Test, limit, nil)
			if err != nil || loss2 != loss || again.Overall != got.Overall {
				t.Errorf("%s: second loss %v, %v; want %v", name, loss2, err, loss)
			}
		}
	}
}

func TestScoreRefuses(t *testing.T) {
	model, err := New("fekri2023", Shape{Lookback: 6, Inputs: 1, Outputs: 1})
	if err != nil {
		t.Fatal(err)
	}
	w := model.InitialWeights(1)
	s := NewScorer(model, best(t), nn.MSE{})
	load := []series.Input{{Name: "load"}}
	_, m, win := scored(t, series.Layout{Lookback: 6, Horizon: 1, Targets: 2, Inputs: load})
	if _, _, err := s.Score(w, m, win, series.Test, 0, nil); err == nil || !strings.Contains(err.Error(), "2 targets") {
		t.Errorf("one output for two targets: %v", err)
	}
	f, m, win := scored(t, series.Layout{Lookback: 6, Horizon: 1, Targets: 1, Inputs: load})
	short := m
	short.Load = m.Load[:3]
	if got, loss, err := s.Score(w, short, f.Windows(short, nil), series.Test, 0, nil); err != nil || got.Overall.N() != 0 || loss == loss {
		t.Errorf("a client without windows: %d targets, loss %v, %v", got.Overall.N(), loss, err)
	}
	stop := errors.New("enough")
	calls := 0
	if _, _, err := s.Score(w, m, win, series.Test, 0, func(Forecast) error { calls++; return stop }); !errors.Is(err, stop) || calls != 1 {
		t.Errorf("the caller's error became %v after %d calls", err, calls)
	}
	s.Reference = "yesterday"
	if _, _, err := s.Score(w, m, win, series.Test, 0, nil); err == nil || !strings.Contains(err.Error(), `no reference "yesterday"`) {
		t.Errorf("an unknown reference: %v", err)
	}
	s.Reference = ""
	w[0] = float32(math.NaN())
	if _, _, err := s.Score(w, m, win, series.Test, 0, nil); err == nil || !strings.Contains(err.Error(), "is not a number") {
		t.Errorf("weights that are not finite: %v", err)
	}
}

// TestScoreAllocatesPerClient checks that the number of allocations does not depend on
// the number of batches.
func TestScoreAllocatesPerClient(t *testing.T) {
	model, err := New("fekri2023", Shape{Lookback: 6, Inputs: 1, Outputs: 1})
	if err != nil {
		t.Fatal(err)
	}
	w := model.InitialWeights(1)
	s := NewScorer(model, best(t), nn.MSE{})
	_, m, win := scored(t, series.Layout{Lookback: 6, Horizon: 1, Targets: 1, Inputs: []series.Input{{Name: "load"}}})
	run := func(limit int) float64 {
		return testing.AllocsPerRun(5, func() {
			if _, _, err := s.Score(w, m, win, series.Train, limit, nil); err != nil {
				t.Fatal(err)
			}
		})
	}
	if few, many := run(10), run(0); few != many || win.Len(series.Train) < 4*scoreBatch {
		t.Errorf("%g allocations for 10 windows, %g for %d", few, many, win.Len(series.Train))
	}
}

// BenchmarkScore scores 876 hourly windows, which cover a tenth of a year, on one core.
func BenchmarkScore(b *testing.B) {
	for _, name := range []string{"bose2023", "bose2024", "fekri2023"} {
		b.Run(name, func(b *testing.B) {
			model, err := New(name, Shape{Lookback: 12, Inputs: 8, Outputs: 1})
			if err != nil {
				b.Fatal(err)
			}
			var inputs []series.Input
			for _, in := range []string{"load", "time_of_day@target", "day_of_week@target", "day_of_year@target", "temperature", "temperature@target", "load@target-24h", "load@target-168h"} {
				input, err := series.ParseInput(in)
				if err != nil {
					b.Fatal(err)
				}
				inputs = append(inputs, input)
			}
			_, m, win := scored(b, series.Layout{Lookback: 12, Horizon: 1, Targets: 1, Inputs: inputs})
			w := model.InitialWeights(1)
			s := NewScorer(model, best(b), nn.MSE{})
			for b.Loop() {
				if _, _, err := s.Score(w, m, win, series.Train, 876, nil); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)*876/b.Elapsed().Seconds(), "windows/s")
		})
	}
}
