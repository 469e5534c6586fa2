package forecast

import (
	"math"
	"slices"
	"testing"
	"time"

	"loadstar/nn"
	"loadstar/series"
)

// quantileScorer returns a scorer for an untrained model with quantiles, and the model's
// weights.
func quantileScorer(t testing.TB, targets int) (*Scorer, []float32) {
	t.Helper()
	pinball, err := nn.NewPinball(0.1, 0.5, 0.9)
	if err != nil {
		t.Fatal(err)
	}
	model, err := New("fekri2023", Shape{Lookback: 6, Inputs: 1, Outputs: 3 * targets})
	if err != nil {
		t.Fatal(err)
	}
	return NewScorer(model, best(t), pinball), model.InitialWeights(1)
}

// TestServe checks that a bad model with narrow intervals becomes as good as the reference,
// and that its intervals contain about 80 % of the loads.
func TestServe(t *testing.T) {
	l := series.Layout{Lookback: 6, Horizon: 1, Targets: 4, Inputs: []series.Input{{Name: "load"}}}
	_, m, win := scored(t, l)
	s, w := quantileScorer(t, 4)
	plain, plainLoss, err := s.Score(w, m, win, series.Test, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, blend := range []bool{false, true} {
		s.Correct = blend
		rows := 0
		got, loss, err := s.Serve(w, m, win, func(f Forecast) error {
			rows++
			if len(f.Levels) != 3 || f.Levels[1] != f.Forecast || !slices.IsSorted(f.Levels) {
				t.Errorf("levels %v, forecast %v", f.Levels, f.Forecast)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if got.Model != plain.Overall || loss != plainLoss || got.Reference != LastWeek || rows != plain.Overall.N() {
			t.Errorf("blend %t: the model alone has %v, loss %v, %d forecasts; want %v, %v", blend, got.Model.MAE(), loss, rows, plain.Overall.MAE(), plainLoss)
		}
		if same := got.Overall == got.Model; same == blend {
			t.Errorf("blend %t: MAE %v, of the model alone %v", blend, got.Overall.MAE(), got.Model.MAE())
		}
		if blend && !(got.Overall.RelativeMAE() < 1.1 && got.Model.RelativeMAE() > 1.5) {
			t.Errorf("relative MAE %v, of the model alone %v", got.Overall.RelativeMAE(), got.Model.RelativeMAE())
		}
		raw, _ := got.Quantiles.Coverage(0.1, 0.9)
		calibrated, _ := got.Calibrated.Coverage(0.1, 0.9)
		// The median is not moved. Without blending, it is below all loads, so no load is below
		// the interval, and 90 % of loads are not above it. With blending, errors from before
		// blending began still affect the width.
		want, within := 0.9, 0.05
		if blend {
			want, within = 0.8, 0.12
		}
		if raw > 0.5 || math.Abs(calibrated-want) > within {
			t.Errorf("blend %t: coverage %v, calibrated %v", blend, raw, calibrated)
		}
	}
}

// TestServeKnowsNoLaterLoads changes the loads after a time in the test split. Forecasts
// made before this time must stay the same.
func TestServeKnowsNoLaterLoads(t *testing.T) {
	l := series.Layout{Lookback: 6, Horizon: 1, Targets: 4, Inputs: []series.Input{{Name: "load"}}}
	f, m, win := scored(t, l)
	s, w := quantileScorer(t, 4)
	s.Correct = true
	serve := func(m series.Meter, win *series.Windows) (rows []Forecast) {
		if _, _, err := s.Serve(w, m, win, func(f Forecast) error {
			f.Levels = slices.Clone(f.Levels)
			rows = append(rows, f)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return rows
	}
	before := serve(m, win)
	changed := m
	changed.Load = slices.Clone(m.Load)
	cut := f.Train(m) + (len(m.Load)-f.Train(m))*3/4
	for i := cut; i < len(m.Load); i++ {
		if !series.Missing(m.Load[i]) {
			changed.Load[i] = 50 - m.Load[i]
		}
	}
	after := serve(changed, f.Windows(changed, f.Ranges(m)))
	same, differ := 0, 0
	for i := range before {
		a, b := before[i], after[i]
		equal := a.Forecast == b.Forecast && slices.Equal(a.Levels, b.Levels)
		switch early := !a.Cutoff.After(f.Time(m, cut)); {
		case early && !equal:
			t.Fatalf("a load after %s changed the forecast made at %s", f.Time(m, cut), a.Cutoff)
		case early:
			same++
		case !equal:
			differ++
		}
	}
	if same < 100 || differ < 100 {
		t.Errorf("%d forecasts before the change, %d different after it", same, differ)
	}
}

// TestServePoints checks that a model without quantiles and without a blend is scored
// without changes.
func TestServePoints(t *testing.T) {
	l := series.Layout{Lookback: 6, Horizon: 1, Targets: 1, Inputs: []series.Input{{Name: "load"}}}
	_, m, win := scored(t, l)
	model, err := New("fekri2023", Shape{Lookback: 6, Inputs: 1, Outputs: 1})
	if err != nil {
		t.Fatal(err)
	}
	s, w := NewScorer(model, best(t), nn.MSE{}), model.InitialWeights(1)
	want, wantLoss, err := s.Score(w, m, win, series.Test, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, loss, err := s.Serve(w, m, win, nil)
	if err != nil || loss != wantLoss || got.Overall != want.Overall || got.Model != want.Overall || got.Quantiles != nil || got.Calibrated != nil {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	if got.Reference != LastValue {
		t.Errorf("the reference is %s", got.Reference)
	}
	s.Correct = true
	blended, _, err := s.Serve(w, m, win, nil)
	if err != nil || !(blended.Overall.MAE() < got.Overall.MAE()) || blended.Model != got.Overall || blended.Calibrated != nil {
		t.Errorf("blended MAE %v, of the model alone %v, %v; want %v", blended.Overall.MAE(), blended.Model.MAE(), err, got.Overall.MAE())
	}
}

// TestReferences compares the references with the baselines that have the same definition.
func TestReferences(t *testing.T) {
	for _, c := range []struct {
		horizon, targets int
		reference        Reference
		baseline         string
	}{
		{1, 1, Auto, "persistence"},
		{1, 1, LastWeek, "naive-week"},
		{4, 1, "", "naive-week"},
		{4, 1, LastValue, "persistence"},
		{1, 24, Auto, "naive-week"},
		{1, 24, LastValue, "persistence"},
		{1, 24, LastDay, "naive-day"},
		{1, 24 * 9, Auto, "naive-week"},
	} {
		_, m, _ := scored(t, series.Layout{Lookback: 1, Horizon: 1, Targets: 1, Inputs: []series.Input{{Name: "load"}}})
		for i, v := range m.Load {
			if series.Missing(v) && c.targets > 24 { // otherwise no origin would have all targets
				m.Load[i] = 5
			}
		}
		d := dataset(t, time.UTC, time.Unix(m.Start, 0), m.Load)
		b := Backtest{Dataset: d, Horizon: c.horizon, Targets: c.targets, Split: series.DefaultSplit, Part: series.Test, Reference: c.reference}
		n := 0
		scores, err := b.Run(t.Context(), c.baseline, func(f Forecast) error {
			n++
			if f.Reference != f.Forecast {
				t.Fatalf("%+v: reference %v, %s %v", c, f.Reference, c.baseline, f.Forecast)
			}
			return nil
		})
		if err != nil || n == 0 || scores[0].Overall.RelativeMAE() != 1 {
			t.Errorf("%+v: %d targets, relative MAE %v, %v", c, n, scores[0].Overall.RelativeMAE(), err)
		}
	}
}
