package issue_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"loadstar/forecast/issue"
	"loadstar/internal/testkit"
	"loadstar/series"
	"loadstar/series/read"
)

// TestPathsOfHomes sums the scenarios of real homes over 24 hours. P10 to P90 of the sums must
// contain about 80 % of the measured sums. If the hours were drawn independently, the range
// would contain far fewer, because errors cancel out.
func TestPathsOfHomes(t *testing.T) {
	path, root := testkit.Dataset(t, "sgsc-core19")
	description, err := read.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	d, err := read.Open(description, root)
	if err != nil {
		t.Fatal(err)
	}
	const day, paths, days = 86400, 50, 150
	random := rand.New(rand.NewPCG(1, 2))
	var joint, independent, n float64
	for i := 0; i < d.Len(); i += 2 {
		m := d.Meter(i)
		load := func(at int64) float64 {
			if step := (at - m.Start) / d.Seconds(); step < int64(len(m.Load)) {
				return float64(m.Load[step])
			}
			return math.NaN()
		}
		s, err := issue.NewState(issue.Config{Step: d.Interval, Clock: d.Clock, H: 24})
		if err != nil {
			t.Fatal(err)
		}
		var earlier []issue.Forecast
		for at := m.Start/day*day + 40*day; at < m.Start+(40+days)*day; at += day / 4 {
			f := s.Issue(m, issue.Models{Own: &monthly{m, d.Interval}}, at)
			if at%day != 0 {
				continue
			}
			if len(earlier) >= paths+14 && issue.AddPaths(&f, earlier, load, paths) {
				together, apart, sum := make([]float64, paths), make([]float64, paths), 0.0
				for _, r := range f.Rows {
					sum += load(r.Time)
					for k, from := range random.Perm(paths) {
						together[k] += r.Paths[k]
						apart[k] += r.Paths[from]
					}
				}
				if !math.IsNaN(sum) {
					n++
					joint += inside(sum, together)
					independent += inside(sum, apart)
				}
			}
			earlier = append(earlier, f)
		}
	}
	t.Logf("P10 to P90 of the sum of 24 hours has %.3f of %.0f sums, with independent draws %.3f", joint/n, n, independent/n)
	if n < 500 || joint/n < 0.74 || joint/n > 0.86 {
		t.Errorf("P10 to P90 of the sum has %.3f of %.0f sums, want 0.8", joint/n, n)
	}
	if independent/n > 0.6 {
		t.Errorf("independent draws have %.3f, so this test shows nothing", independent/n)
	}
}

// monthly is a model that forecasts the quantiles of the loads at the same time of day on the
// last 28 days.
type monthly struct {
	m    series.Meter
	step time.Duration
}

func (f *monthly) Name() string             { return "monthly" }
func (f *monthly) Step() time.Duration      { return f.step }
func (f *monthly) Span() (first, n int)     { return 1, 24 }
func (f *monthly) Levels() ([]float64, int) { return []float64{0.1, 0.5, 0.9}, 1 }

func (f *monthly) Ready(int64) (series.Readiness, issue.Reason) { return series.Complete, "" }

func (f *monthly) Forecast(out []float64, cutoff int64) error {
	for i := range 24 {
		at := int((cutoff-f.m.Start)/3600) + i
		var loads []float64
		for day := 1; day <= 28; day++ {
			if v := f.m.Load[at-24*day]; !series.Missing(v) {
				loads = append(loads, float64(v))
			}
		}
		slices.Sort(loads)
		for k, share := range []int{1, 5, 9} {
			out[3*i+k] = loads[share*(len(loads)-1)/10]
		}
	}
	return nil
}

// inside returns 1 if v is between the 5th and the 45th of 50 sorted numbers, and 0 otherwise.
func inside(v float64, of []float64) float64 {
	slices.Sort(of)
	n := len(of)
	if v >= (of[n/10-1]+of[n/10])/2 && v <= (of[n-n/10-1]+of[n-n/10])/2 {
		return 1
	}
	return 0
}
