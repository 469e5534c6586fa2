package forecast

import (
	"math"
	"slices"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/series"
	"loadstar/series/read"
)

// anchor contains the results of an independent implementation with scikit-learn on the same
// windows: the mean MAE in kW of the reference forecast, and the median over clients of the MAE
// relative to this forecast. A median of 0 means that there is no such result.
type anchor struct {
	dataset                             string
	reference                           float64
	persistence, day, week, plain, rich float64
}

// oneAhead contains the results one hour ahead, with persistence as the reference. dayAhead
// contains the results for the next 24 hours with an origin every 6 hours, with naive-day
// as the reference.
var (
	oneAhead = []anchor{
		{"sgsc-core19", 0.3216, 1, 1.1047, 1.0757, 0.8830, 0.8631},
		{"cambridge-core42-2016-17", 6.3464, 1, 1.9626, 1.6226, 0.8710, 0.7304},
		{"hog-core42", 8.9702, 1, 1.8912, 1.6737, 0.8241, 0.7098},
		{"robin-core42", 6.5499, 1, 2.1775, 2.0944, 0.8094, 0.7258},
		{"resstock-ca-core42", 0.8072, 1, 1.1216, 1.1692, 0.8752, 0.8529},
		{"resstock-tx-core42", 0.7608, 1, 1.2794, 1.2700, 0.9101, 0.8759},
		{"resstock-vt-core42", 0.8199, 1, 1.3169, 1.3399, 0.8530, 0.8361},
	}
	dayAhead = []anchor{
		{"sgsc-core19", 0.3505, 1.1235, 1, 0.9976, 0, 0.8287},
		{"cambridge-core42-2016-17", 13.5812, 2.0561, 1, 0.8669, 0, 0.6316},
		{"hog-core42", 15.8460, 2.0549, 1, 1.2439, 0, 0.7165},
		{"robin-core42", 13.6877, 2.0504, 1, 1.0112, 0, 0.6913},
		{"resstock-ca-core42", 0.9023, 1.1558, 1, 1.0326, 0, 0.7891},
		{"resstock-tx-core42", 0.9448, 1.0922, 1, 1.0218, 0, 0.7316},
		{"resstock-vt-core42", 1.1124, 1.0593, 1, 1.0365, 0, 0.6528},
	}
)

// TestBaselinesAgainstScikitLearn compares all baselines with an independent implementation.
// The full test uses all groups, and the short test only the smallest one.
func TestBaselinesAgainstScikitLearn(t *testing.T) {
	if testing.Short() {
		t.Skip("it reads a core group")
	}
	for i := range oneAhead {
		if i > 0 && !testkit.Long() {
			break
		}
		t.Run(oneAhead[i].dataset, func(t *testing.T) {
			path, root := testkit.Dataset(t, oneAhead[i].dataset)
			desc, err := read.Load(path)
			if err != nil {
				t.Fatal(err)
			}
			d, err := read.Open(desc, root)
			if err != nil {
				t.Fatal(err)
			}
			b := Backtest{Dataset: d, Horizon: 1, Targets: 1, Split: series.DefaultSplit, Part: series.Test, Workers: 2}
			oneAhead[i].check(t, b, "persistence")
			b.Targets, b.Stride = 24, 6
			dayAhead[i].check(t, b, "naive-day")
		})
	}
}

func (a anchor) check(t *testing.T, b Backtest, reference string) {
	t.Helper()
	// The other implementation's naive forecasts are the loads 24 and 168 hours earlier, even
	// where the clocks change. In UTC, these loads have the same clock time as the target.
	fixed := b
	d := *b.Dataset
	d.Clock = time.UTC
	fixed.Dataset = &d
	mae := func(b Backtest, name string) (maes []float64, n int) {
		scores, err := b.Run(t.Context(), name, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := range scores {
			n += scores[i].Overall.N() + scores[i].Skipped*1e9
			maes = append(maes, scores[i].Overall.MAE())
		}
		return maes, n
	}
	ref, n := mae(fixed, reference)
	var mean float64
	for _, v := range ref {
		mean += v / float64(len(ref))
	}
	if math.Abs(mean-a.reference) > 0.0001+0.0005*a.reference {
		t.Errorf("%s, %d targets: the MAE of %s is %.4f kW, want %.4f", a.dataset, b.Targets, reference, mean, a.reference)
	}
	for _, m := range []struct {
		b    Backtest
		name string
		want float64
	}{{fixed, "persistence", a.persistence}, {fixed, "naive-day", a.day}, {fixed, "naive-week", a.week}, {b, "ridge", a.plain}, {b, "ridge-rich", a.rich}} {
		maes, count := mae(m.b, m.name)
		if count != n {
			t.Errorf("%s: %s forecasts %d targets, %s %d; want the same", a.dataset, m.name, count, reference, n)
		}
		for i := range maes {
			maes[i] /= ref[i]
		}
		got := median(slices.Clone(maes))
		t.Logf("%s, %d targets, %s: %.4f, want %.4f", a.dataset, b.Targets, m.name, got, m.want)
		if m.want > 0 && math.Abs(got-m.want) > 0.01*m.want {
			t.Errorf("%s, %d targets: the median of %s is %.4f, want %.4f within 1 %%", a.dataset, b.Targets, m.name, got, m.want)
		}
	}
}
