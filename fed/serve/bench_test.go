package serve

import (
	"testing"

	"loadstar/forecast/issue"
	"loadstar/internal/proc"
)

// BenchmarkIssue measures one client's forecast of 48 hours with the model dense: features,
// model and intervals. All clients share one frame. When clients come from a folder, the
// benchmark also reads the weights, the scaling and the state of each client.
func BenchmarkIssue(b *testing.B) {
	x := sample{meters: 16, days: 120, weather: true, ahead: 3, plan: "{name: test, algorithm: fedavg, model: {name: dense, targets: 48}}"}
	d := x.dataset(b)
	f := open(b, x.folder(b, d))
	_, end := d.Span()
	states := make([][]byte, d.Len())
	r := NewReplay(d, f.Model, nil)
	for i := range states {
		c, err := f.Client(d.Meter(i).ID)
		if err != nil {
			b.Fatal(err)
		}
		s := newState(b, d, 48)
		if err := r.Advance(s, i, &c, nil, end); err != nil {
			b.Fatal(err)
		}
		states[i] = encoded(b, s)
	}
	tails, err := NewTails(d, end, 48)
	if err != nil {
		b.Fatal(err)
	}
	frame, err := f.Model.Frame(tails)
	if err != nil {
		b.Fatal(err)
	}
	type known struct {
		client Client
		state  *issue.State
	}
	read := func(b *testing.B, i int) known {
		c, err := f.Client(d.Meter(i).ID)
		if err != nil {
			b.Fatal(err)
		}
		s, err := issue.Decode(issue.Config{Step: d.Interval, Clock: d.Clock, H: 48}, states[i])
		if err != nil {
			b.Fatal(err)
		}
		return known{c, s}
	}
	for _, name := range []string{"memory", "folder"} {
		b.Run(name, func(b *testing.B) {
			all := make([]known, d.Len())
			for i := range all {
				all[i] = read(b, i)
			}
			b.ReportAllocs()
			n, start := 0, proc.CPUTime()
			for b.Loop() {
				i := n % d.Len()
				n++
				x := all[i]
				if name == "folder" {
					x = read(b, i)
				}
				m, err := tails.Meter(i)
				if err != nil {
					b.Fatal(err)
				}
				got := x.state.Issue(m, issue.Models{Own: frame.Forecaster(m, x.client)}, end)
				if name == "folder" {
					f.Release(x.client)
				}
				if got.Rows[47].Source != issue.Model {
					b.Fatalf("%+v", got.Rows[47])
				}
			}
			b.ReportMetric(float64(n)/(proc.CPUTime()-start).Seconds(), "clients/CPU-s")
		})
	}
}
