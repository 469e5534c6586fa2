package forecast

import (
	"slices"
	"testing"
	"time"

	"loadstar/nn"
	"loadstar/series"
	features "loadstar/series/feature"
)

// TestPredictColumns compares the forecasts of a predictor, which reads columns of features,
// with those of a workspace that reads rows. The forecasts must be identical bit for bit.
func TestPredictColumns(t *testing.T) {
	_, m, _ := scored(t, series.Layout{Lookback: 1, Horizon: 1, Targets: 1, Inputs: []series.Input{{Name: "load"}}})
	d := dataset(t, time.UTC, time.Unix(m.Start, 0), m.Load)
	layout := series.Layout{Lookback: 168, Horizon: 1, Targets: 70}
	f, err := features.NewFrame(d, layout, series.DefaultSplit, []string{"recent", "lags", "calendar"}, 0.5)
	if err != nil {
		t.Fatal(err)
	}
	model, err := New("dense", Shape{Inputs: f.Width(), Outputs: 1, Naive: f.Naive()})
	if err != nil {
		t.Fatal(err)
	}
	w := model.InitialWeights(3)
	rows := f.Rows(d.Meter(0))
	last := len(m.Load) - 1
	p := NewPredictor(model, best(t), nn.MAE{})
	got := make([]float64, 70)
	if err := p.Predict(got, w, rows, last); err != nil {
		t.Fatal(err)
	}
	var want []float64
	x, out := make([]float32, 70*f.Width()), make([]float32, 70)
	var at []series.Example
	for i := range 70 {
		at = append(at, series.Example{Last: last, Target: i})
	}
	rows.Gather(x, nil, at)
	model.net.NewWorkspace(best(t), 16).Predict(out, w, x)
	for i, v := range out {
		want = append(want, float64(rows.Unscale(at[i], v)))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v\nwant %v", got[:3], want[:3])
	}
}
