package issue

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"loadstar/series"
)

const (
	hour = 3600
	day  = 24 * hour
)

var nan = float32(math.NaN())

// fake is a model whose forecast is the load of the day before plus an error.
type fake struct {
	m      series.Meter
	step   time.Duration
	first  int
	n      int
	levels []float64
	ready  series.Readiness
	reason Reason
	fail   error
	add    float64 // added to every forecast
	asked  int
}

func newFake(m series.Meter, n int) *fake {
	return &fake{m: m, step: time.Hour, first: 1, n: n, levels: []float64{0.1, 0.5, 0.9}, ready: series.Complete}
}

func (f *fake) Name() string             { return "fake@1" }
func (f *fake) Step() time.Duration      { return f.step }
func (f *fake) Span() (first, n int)     { return f.first, f.n }
func (f *fake) Levels() ([]float64, int) { return f.levels, len(f.levels) / 2 }

func (f *fake) Ready(int64) (series.Readiness, Reason) { return f.ready, f.reason }

func (f *fake) Forecast(out []float64, cutoff int64) error {
	f.asked++
	if f.fail != nil {
		return f.fail
	}
	last := int((cutoff-f.m.Start)/int64(f.step/time.Second)) - 1
	width := max(len(f.levels), 1)
	for i := range f.n {
		v := 1.0
		if at := last - 23 + i%24; at >= 0 && at < len(f.m.Load) && !series.Missing(f.m.Load[at]) {
			v = float64(f.m.Load[at])
		}
		for k := range width {
			out[i*width+k] = v + f.add + 0.2*float64(k-width/2)
		}
	}
	return nil
}

var errFake = errors.New("fake")

// meter returns a meter whose load has a weekly pattern and noise, starting on 2021-01-01 UTC.
func meter(days int, zone *time.Location) series.Meter {
	random := rand.New(rand.NewPCG(7, 7))
	begin := time.Date(2021, 1, 1, 0, 0, 0, 0, time.UTC)
	m := series.Meter{ID: "a", Start: begin.Unix(), Load: make([]float32, days*24)}
	for i := range m.Load {
		at := begin.Add(time.Duration(i) * time.Hour).In(zone)
		m.Load[i] = float32(3 + 2*math.Sin(float64(at.Hour())/24*2*math.Pi) + 0.2*float64(at.Weekday()) + 0.2*random.NormFloat64())
	}
	return m
}

func location(t testing.TB, name string) *time.Location {
	t.Helper()
	l, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func state(t testing.TB, c Config) *State {
	t.Helper()
	if c.Step == 0 {
		c.Step = time.Hour
	}
	if c.Clock == nil {
		c.Clock = time.UTC
	}
	if c.H == 0 {
		c.H = 48
	}
	s, err := NewState(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// without returns a copy of a meter without the loads from one hour up to, but not including,
// another.
func without(m series.Meter, from, to int) series.Meter {
	m.Load = append([]float32(nil), m.Load...)
	for i := max(from, 0); i < to; i++ {
		m.Load[i] = nan
	}
	return m
}
