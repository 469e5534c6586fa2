package serve

import (
	"math"
	"testing"
	"time"

	"loadstar/forecast/issue"
	"loadstar/internal/testkit"
	"loadstar/nn/kernel"
	"loadstar/series"
	"loadstar/series/read"
)

func TestHalf(t *testing.T) {
	for h := range 1 << 16 {
		if h>>10&31 == 31 {
			continue // not finite
		}
		v := fromHalf(uint16(h))
		if got := toHalf(v); got != uint16(h) {
			t.Fatalf("%#x is %g, which becomes %#x", h, v, got)
		}
	}
	for v, want := range map[float32]float32{0.1: 0.099975586, 1e9: 65504, -70000: -65504, 1e-9: 0, 2049: 2048, 2051: 2052, 65503: 65504} {
		if got := fromHalf(toHalf(v)); got != want {
			t.Errorf("%g becomes %g, want %g", v, got, want)
		}
	}
}

// TestSkill compares the model with the previous day's load, on real buildings with three days
// of readings.
func TestSkill(t *testing.T) {
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	m, err := NewGeneric(k)
	if err != nil {
		t.Fatal(err)
	}
	desc, err := read.Load(testkit.Sample(t))
	if err != nil {
		t.Fatal(err)
	}
	d, err := read.Open(desc, "")
	if err != nil {
		t.Fatal(err)
	}
	from, _ := d.Span()
	const hour, day = 3600, 86400
	at := (from/day + 60) * day
	var model, before float64
	for i := range d.Len() {
		x := d.Meter(i)
		part, err := d.With([]series.Meter{x.Cut(at-3*day, at, hour)})
		if err != nil {
			t.Fatal(err)
		}
		s, err := issue.NewState(issue.Config{Step: time.Hour, Clock: d.Clock, H: 24})
		if err != nil {
			t.Fatal(err)
		}
		tails, err := NewTails(part, at, 25)
		if err != nil {
			t.Fatal(err)
		}
		frame, err := m.Frame(tails)
		if err != nil {
			t.Fatal(err)
		}
		meter, err := tails.Meter(0)
		if err != nil {
			t.Fatal(err)
		}
		f := s.Issue(meter, issue.Models{Generic: frame.Forecaster(meter, m.Anyone())}, at)
		truth := x.Cut(at-day, at+day, hour).Load
		for h, row := range f.Rows {
			if row.Source != issue.Generic {
				t.Fatalf("meter %s: %+v", x.ID, row)
			}
			if e := math.Abs(row.Values[1] - float64(truth[24+h])); e == e && !series.Missing(truth[h]) {
				model += e
				before += math.Abs(float64(truth[h] - truth[24+h]))
			}
		}
	}
	if !(model < 0.95*before) {
		t.Errorf("error %g, that of the day before %g", model, before)
	}
}
