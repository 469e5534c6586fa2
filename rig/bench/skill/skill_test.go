package skill

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/forecast"
	"loadstar/rig/bench"
	"loadstar/series"
	"loadstar/series/feature"
)

// meters returns a dataset of meters with a daily cycle and noise.
func meters(t *testing.T, n int) *series.Dataset {
	t.Helper()
	rng := rand.New(rand.NewPCG(4, 4))
	var all []series.Meter
	for i := range n {
		m := series.Meter{ID: string(rune('a' + i)), Load: make([]float32, 24*80)}
		for k := range m.Load {
			m.Load[k] = float32(5 + 2*math.Sin(float64(k)*math.Pi/12) + 0.3*rng.NormFloat64())
		}
		all = append(all, m)
	}
	d, err := series.NewDataset(series.Dataset{Name: "waves", Interval: time.Hour, Clock: time.UTC}, all)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestBaselinesAndResume(t *testing.T) {
	o := Options{Dataset: meters(t, 5), Targets: 24, Stride: 6, Clients: 3, Losses: Losses, Out: t.TempDir()}
	if err := o.Complete(false); err != nil || o.Losses != nil {
		t.Fatalf("options %+v, error %v", o, err)
	}
	rows, err := Run(t.Context(), o, nil)
	if err != nil {
		t.Fatal(err)
	}
	var clients []string
	for _, r := range rows {
		if !slices.Contains(clients, r.Client) {
			clients = append(clients, r.Client)
		}
	}
	if strings.Join(clients, " ") != "a b d" || len(rows) != 3*len(forecast.Baselines()) {
		t.Errorf("%d rows of clients %v", len(rows), clients)
	}
	for _, s := range Summaries(rows, 24) {
		if one := float64(s.Relative.Median) == 1; one != (s.Method == "naive-week") {
			t.Errorf("the median of %s relative to naive-week is %g", s.Method, s.Relative.Median)
		}
	}
	// An interrupted run lacks its last lines, and the line before them is incomplete.
	path := filepath.Join(o.Out, "waves-24.tsv")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text[:len(text)-40], 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), o, nil); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile(path); err != nil || string(again) != string(text) {
		t.Errorf("the continued table is\n%s, want\n%s, error %v", again, text, err)
	}
	o.Stride = 3
	if _, err := Run(t.Context(), o, nil); err == nil || !strings.Contains(err.Error(), "--out") {
		t.Errorf("other settings in the same folder: %v", err)
	}
}

// TestRows checks that the rows can be converted back to kW and that the sample of training
// rows has the right size and order.
func TestRows(t *testing.T) {
	d := meters(t, 1)
	frame, err := feature.NewFrame(d, series.Layout{Lookback: 168, Horizon: 1, Targets: 24}, series.DefaultSplit, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	m := d.Meter(0)
	r, dir := frame.Rows(m), t.TempDir()
	if n, err := writeRows(dir, m, r, 500, 6); n != 500 || err != nil {
		t.Fatal(n, err)
	}
	at := sample(examples(r, series.Train, 1), 500)
	if !slices.IsSortedFunc(at, func(a, b series.Example) int { return (a.Last-b.Last)*24 + a.Target - b.Target }) {
		t.Error("the sample is not in order")
	}
	if x := floats(t, dir, "train.x"); len(x) != 500*r.Inputs() {
		t.Errorf("%d inputs", len(x))
	}
	y, kw, zero := floats(t, dir, "test.y"), floats(t, dir, "test.kw"), floats(t, dir, "test.zero")
	test := examples(r, series.Test, 6)
	if len(y) != len(test) || len(kw) != len(test) || len(test) == 0 || test[0].Last%6 != 5 {
		t.Fatalf("%d targets, want %d", len(y), len(test))
	}
	for i, e := range test {
		if kw[i] != m.Load[e.Last+1+e.Target] || math.Abs(float64(y[i])*r.Scaling().Deviation+float64(zero[i]-kw[i])) > 1e-4 {
			t.Fatalf("row %d: target %g, zero %g kW, load %g kW", i, y[i], zero[i], kw[i])
		}
	}
}

func floats(t *testing.T, dir, name string) []float32 {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	x := make([]float32, info.Size()/4)
	if err := binary.Read(f, binary.LittleEndian, x); err != nil {
		t.Fatal(err)
	}
	return x
}

// TestPeer checks that gradient boosting learns the daily cycle. Without its library the error
// must name the package to install.
func TestPeer(t *testing.T) {
	for _, c := range []struct {
		library string
		o       Options
		method  string
	}{
		{Sklearn, Options{Losses: []string{"absolute_error"}}, "boosting-absolute_error"},
		{xgboost, Options{XGBoost: true}, "xgboost"},
		{xgboost, Options{Pooled: true}, "xgboost-pooled"},
	} {
		t.Run(c.method, func(t *testing.T) {
			if err := exec.Command(bench.Python, "-I", "-c", "import "+c.library).Run(); err != nil {
				if _, err := StartPeer(t.Context(), c.library); err == nil || !strings.Contains(err.Error(), "python3-"+c.library) {
					t.Errorf("without %s: %v", c.library, err)
				}
				if os.Getenv("CI") != "" && c.library == Sklearn {
					t.Fatal("CI needs scikit-learn: apt-get install python3-sklearn")
				}
				t.Skipf("no %s here", c.library)
			}
			c.o.Dataset, c.o.Targets, c.o.Stride = meters(t, 2), 1, 1
			rows, err := Run(t.Context(), c.o, func(int, int, string) {})
			if err != nil {
				t.Fatal(err)
			}
			last := rows[len(rows)-1]
			if last.Client != "b" || last.Method != c.method || last.Trees < 5 || last.Rows < 1000 || !(last.Test < 0.6*rows[1].Test) || !(last.CPU > 0) {
				t.Errorf("%+v, persistence %+v", last, rows[1])
			}
		})
	}
}
