package year

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/agent/live"
	"loadstar/fed/serve"
	"loadstar/internal/testkit"
	"loadstar/lab/outlook"
	"loadstar/nn/kernel"
	"loadstar/series"
	"loadstar/series/read"
)

// TestLiveEqualsBacktest runs an agent through the test split of whole groups, and scores its
// forecasts like a backtest of the same run. The scores of every client that uses the run's
// weights must be the same to the last bit. The usual test covers some days of a few buildings.
// LOADSTAR_RUNS may be a folder with trained runs of the groups.
func TestLiveEqualsBacktest(t *testing.T) {
	if testing.Short() {
		t.Skip("trains a model")
	}
	if !testkit.Long() {
		d, model := fixture(t)
		from := start + 7*86400
		if r := compareLive(t, before(t, d, from+5*86400), model, from); r.same < 3 {
			t.Errorf("only %d clients have the run's weights", r.same)
		}
		return
	}
	for _, group := range []string{"sgsc-core19", "resstock-vt-core42", "cambridge-core42-2016-17"} {
		t.Run(group, func(t *testing.T) {
			path, root := testkit.Dataset(t, group)
			description, err := read.Load(path)
			if err != nil {
				t.Fatal(err)
			}
			d, err := read.Open(description, root)
			if err != nil {
				t.Fatal(err)
			}
			model := filepath.Join(os.Getenv("LOADSTAR_RUNS"), group)
			if os.Getenv("LOADSTAR_RUNS") == "" {
				model = train(t, d, dayAhead, t.TempDir())
			}
			r := compareLive(t, withWeather(t, recent(t, d)), model, 0)
			live, replayed := r.live, r.replayed
			t.Logf("%s: %d of %d clients have the run's weights and the same scores in %.0f s", group, r.same, len(replayed.Clients), r.seconds)
			for _, x := range []struct {
				name string
				s    *outlook.Scores
			}{{"live", live}, {"backtest", replayed}} {
				t.Logf("%s %s: MAE %.3f of last week's, coverage %.1f %%; energy %s; sum %s; peak %s", group, x.name, x.s.RelativeMAE, 100*x.s.Coverage, x.s.Energy, x.s.Sum, x.s.Peak)
			}
			// Some buildings refuse the model at first, because last week's load was better in
			// the days before, or fit their own layers. The figures of the group therefore
			// differ.
			if 10*r.same < 7*len(replayed.Clients) {
				t.Errorf("only %d clients have the run's weights", r.same)
			}
			if live.RelativeMAE > 1.05*replayed.RelativeMAE {
				t.Errorf("live forecasts have %.3f of last week's error, those of the backtest %.3f", live.RelativeMAE, replayed.RelativeMAE)
			}
		})
	}
}

// recent returns readings from before 2015, which agents refuse, shifted by 28 years, so that
// the weekdays are the same. Holidays that depend on Easter move, but the test split of our
// group has none.
func recent(t *testing.T, d *series.Dataset) *series.Dataset {
	t.Helper()
	if first, _ := d.Span(); first >= time.Date(2015, 1, 1, 0, 0, 0, 0, time.UTC).Unix() {
		return d
	}
	if len(d.Weather.Names) > 0 {
		t.Fatal("the weather must move too")
	}
	var meters []series.Meter
	for i := range d.Len() {
		m := d.Meter(i)
		m.Start += 28 * 1461 / 4 * 86400
		meters = append(meters, m)
	}
	out, err := series.NewDataset(series.Dataset{Name: d.Name, Interval: d.Interval, Clock: d.Clock, Country: d.Country, StaticNames: d.StaticNames}, meters)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// withWeather returns the dataset without gaps in its weather. An agent fills gaps from the days
// before, whereas a file leaves them unknown, so the two would have slightly different
// intervals.
func withWeather(t *testing.T, d *series.Dataset) *series.Dataset {
	t.Helper()
	w := d.Weather
	w.Columns = slices.Clone(w.Columns)
	for i, c := range w.Columns {
		c = slices.Clone(c)
		for at := 1; at < len(c); at++ {
			if series.Missing(c[at]) {
				c[at] = c[at-1]
			}
		}
		w.Columns[i] = c
	}
	var meters []series.Meter
	for i := range d.Len() {
		meters = append(meters, d.Meter(i))
	}
	out, err := series.NewDataset(series.Dataset{Name: d.Name, Generated: d.Generated, Interval: d.Interval, Clock: d.Clock, Country: d.Country, Weather: w, StaticNames: d.StaticNames}, meters)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

type compared struct {
	live, replayed *outlook.Scores
	same           int
	seconds        float64
}

// compareLive scores a year's agent and a backtest, both from the same cutoff on.
func compareLive(t *testing.T, d *series.Dataset, run string, from int64) (r compared) {
	t.Helper()
	began := time.Now()
	// States of the run know the test split, so both sides begin with a replay.
	folder := filepath.Join(t.TempDir(), "day-ahead")
	if err := os.CopyFS(folder, os.DirFS(run)); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(folder, serve.StatesName)); err != nil {
		t.Fatal(err)
	}
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	m, err := outlook.Open(folder, d, k)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	b := outlook.Backtest{Model: m, Dataset: d, From: from, Workers: 2}
	s, err := b.Scorer()
	if err != nil {
		t.Fatal(err)
	}
	// The agent begins some steps earlier, because it uses last week's load until it has tried
	// the model. Both sides then replay issues from the same time on.
	const recorded = 6 * 3600
	b.From = (s.First() + recorded - 1) / recorded * recorded
	if s, err = b.Scorer(); err != nil {
		t.Fatal(err)
	}
	if r.replayed, err = b.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, end := d.Span()
	var log bytes.Buffer
	_, err = Run(t.Context(), Config{
		Data: d, Model: folder, Start: b.From - 2*3600, End: end, H: 24, Settled: b.From, Dir: t.TempDir(), Log: slog.New(slog.NewTextHandler(&log, nil)),
		Each: func(all []*live.Issued) {
			for _, x := range all {
				s.Add(x.Forecast, x.Cutoff%recorded == 0)
			}
		},
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
	if r.live, err = s.Scores(); err != nil {
		t.Fatal(err)
	}
	if len(r.live.Clients) != len(r.replayed.Clients) {
		t.Fatalf("%d clients live, %d in the backtest", len(r.live.Clients), len(r.replayed.Clients))
	}
	for i, a := range r.live.Clients {
		b := r.replayed.Clients[i]
		if a.Model < b.Model || strings.Contains(log.String(), "fitted personal layers\" client="+a.ID) {
			t.Logf("%s: live, the model makes %.1f %% of the rows, or its layers were fitted anew; relative MAE %.3f, in the backtest %.3f", a.ID, 100*a.Model, a.RelativeMAE, b.RelativeMAE)
			continue
		}
		r.same++
		if a.Rows != b.Rows || a.MAE != b.MAE || a.RelativeMAE != b.RelativeMAE || a.Coverage != b.Coverage || !reflect.DeepEqual(a.Energy, b.Energy) || !reflect.DeepEqual(a.Peak, b.Peak) {
			t.Errorf("%s: live %d rows, MAE %v, coverage %v, energy %v, peak %v\nbacktest %d rows, MAE %v, coverage %v, energy %v, peak %v",
				a.ID, a.Rows, a.MAE, a.Coverage, a.Energy, a.Peak, b.Rows, b.MAE, b.Coverage, b.Energy, b.Peak)
		}
	}
	r.seconds = time.Since(began).Seconds()
	return r
}
