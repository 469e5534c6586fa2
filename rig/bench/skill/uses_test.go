package skill

import (
	"math"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"loadstar/lab/outlook"
	"loadstar/rig/bench"
	"loadstar/series"
)

// weekly returns two meters and the scores of their last days. Their load depends on the
// day of the week and the hour, has a gap, and includes the end of daylight saving.
func weekly(t *testing.T) (*series.Dataset, *outlook.Scores) {
	t.Helper()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	start := time.Date(2021, 7, 1, 0, 0, 0, 0, berlin)
	var meters []series.Meter
	s := &outlook.Scores{}
	temperature := make([]float32, 24*200)
	for _, id := range []string{"a", "b"} {
		m := series.Meter{ID: id, Start: start.Unix(), Load: make([]float32, 24*160)}
		for i := range m.Load {
			at := start.Add(time.Duration(i) * time.Hour)
			m.Load[i] = float32(1 + int(at.Weekday()))
			if at.Hour() == 18 {
				m.Load[i] *= 5
			}
		}
		m.Load[1000] = float32(math.NaN())
		meters = append(meters, m)
		c := outlook.ClientScore{ID: id}
		for day := 140; day < 150; day++ {
			c.Days = append(c.Days, start.AddDate(0, 0, day).Unix())
		}
		s.Clients, s.SumDays = append(s.Clients, c), c.Days
	}
	d, err := series.NewDataset(series.Dataset{
		Name: "weekly", Interval: time.Hour, Clock: berlin, Weather: series.Weather{Start: start.Unix(), Names: []string{"temperature"}, Columns: [][]float32{temperature}},
	}, meters)
	if err != nil {
		t.Fatal(err)
	}
	return d, s
}

// TestTotals checks the rivals of days and sums on loads that repeat every week.
func TestTotals(t *testing.T) {
	d, s := weekly(t)
	totals, err := newTotals(d, s)
	if err != nil {
		t.Fatal(err)
	}
	day := func(cutoff int64) float64 { return float64(1 + int(time.Unix(cutoff, 0).In(d.Clock).Weekday())) }
	for name, of := range map[string]func(v float64) float64{
		"naive-week":     func(v float64) float64 { return v },
		"rolling-median": func(float64) float64 { return 4 }, // the median of 1 to 7
		"rolling-mean":   func(float64) float64 { return 4 },
		"ridge-rich":     func(v float64) float64 { return v },
	} {
		r, err := totals.rival(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, cutoff := range s.SumDays {
			want := of(day(cutoff))
			energy, peak, at := r.Day("b", cutoff)
			// A day has 23 hours of the load and one hour of five times the load.
			if math.Abs(energy-28*want) > 0.3 || math.Abs(peak-5*want) > 0.1 || at != 18 {
				t.Errorf("%s on day %g: energy %g, peak %g in hour %d, want %g, %g, 18", name, day(cutoff), energy, peak, at, 28*want, 5*want)
			}
			if sum := r.Sum(cutoff); len(sum) != 24 || math.Abs(sum[3]-2*want) > 0.2 || math.Abs(sum[18]-10*want) > 0.5 {
				t.Errorf("%s on day %g: sums %g", name, day(cutoff), sum)
			}
		}
	}
	if w := totals.energy.Weather; len(w.Names) != 1 || len(w.Columns[0]) < 199 || w.Start != totals.energy.Meter(0).Start-daySeconds {
		t.Errorf("daily weather %v", w)
	}
}

// TestBoostDays checks that boosting learns the days of the week.
func TestBoostDays(t *testing.T) {
	if err := exec.Command(bench.Python, "-I", "-c", "import sklearn").Run(); err != nil {
		t.Skip("no scikit-learn here")
	}
	d, s := weekly(t)
	totals, err := newTotals(d, s)
	if err != nil {
		t.Fatal(err)
	}
	p, err := StartPeer(t.Context(), Sklearn)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	got, err := totals.boostDays(p, t.TempDir(), totals.peak)
	if err != nil {
		t.Fatal(err)
	}
	for _, cutoff := range s.SumDays {
		if want := 5 * float64(1+int(time.Unix(cutoff, 0).In(d.Clock).Weekday())); math.Abs(got["a"][cutoff]-want) > 2 {
			t.Errorf("the peak is %g, want %g", got["a"][cutoff], want)
		}
	}
}

// TestUsesTable checks that Rivals keeps an existing table of boosting, and detects a table of
// other days.
func TestUsesTable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x-uses.tsv")
	want := Uses{"boosting", &outlook.SumScore{N: 3, Clients: 2, MAE: 1.5, RelativeMAE: 0.5, RelativeMean: 0.6, Bias: -0.1}, &outlook.SumScore{N: 4}, &outlook.SumScore{N: 5}}
	if err := writeUses(path, want); err != nil {
		t.Fatal(err)
	}
	got, err := readUses(path)
	if err != nil || *got.Energy != *want.Energy || got.Sum.N != 4 || got.Peak.N != 5 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestWriteUses checks that a row has the rivals of every group, and that empty rows are
// omitted.
func TestWriteUses(t *testing.T) {
	d, _ := weekly(t)
	score := func(x float64) *outlook.SumScore {
		return &outlook.SumScore{RelativeMAE: x, RelativeMean: x + 0.1, Coverage: 0.8}
	}
	scores := &outlook.Scores{Energy: score(0.5), Sum: score(0.6), Peak: score(0.7)}
	other := &outlook.Scores{Energy: score(0.7), Sum: score(0.6), Peak: score(0.7)}
	boosting := Uses{"boosting", score(0.9), score(0.91), score(0.92)}
	var b strings.Builder
	err := WriteUses(&b, []Group{
		{Dataset: d, Runs: []string{"1", "2"}, model: "plan", seeds: []*outlook.Scores{scores, other}},
		{Dataset: d, Runs: []string{"1", "2"}, seeds: []*outlook.Scores{scores, scores}, rivals: []Uses{boosting}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| plan | 0.600 (0.700), 0 % | 0.500 (0.600), 0 % |\n| lowest and highest seed | 0.500-0.700 | 0.500-0.500 |\n", "| boosting |  | 0.910 (1.010), 0 % |\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if n := strings.Count(b.String(), "| boosting |"); n != 3 {
		t.Errorf("%d rows of boosting in\n%s", n, b.String())
	}
}
