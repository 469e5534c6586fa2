package serve

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"loadstar/fed/recipe"
	"loadstar/forecast/issue"
	"loadstar/nn/kernel"
	"loadstar/series"
)

const hour = 3600

// sample describes a generated dataset and a plan.
type sample struct {
	zone     string
	interval time.Duration
	meters   int
	days     int
	start    string // a day in UTC
	weather  bool
	missing  float64
	plan     string
	ahead    int // days of weather after the last reading
}

const densePlan = "{name: test, algorithm: fedavg, model: {name: dense, targets: 24}}"

const windowPlan = "{name: test, algorithm: fedavg, partition: head, model: {name: fekri2023, targets: 24, lookback: 48, inputs: [load, hour, day_of_week, 'load@target-168h']}}"

func (x sample) dataset(t testing.TB) *series.Dataset {
	t.Helper()
	if x.zone == "" {
		x.zone = "Europe/Berlin"
	}
	if x.interval == 0 {
		x.interval = time.Hour
	}
	if x.start == "" {
		x.start = "2021-01-13"
	}
	zone, err := time.LoadLocation(x.zone)
	if err != nil {
		t.Fatal(err)
	}
	begin, err := time.Parse(time.DateOnly, x.start)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 1))
	perDay := int(24 * time.Hour / x.interval)
	d := series.Dataset{Name: "generated", Generated: true, Interval: x.interval, Clock: zone, Country: "DE"}
	if x.weather {
		c := make([]float32, (x.days+x.ahead)*perDay)
		for i := range c {
			c[i] = float32(10 + 5*math.Sin(float64(i)/float64(perDay)*2*math.Pi) + random.NormFloat64())
		}
		d.Weather = series.Weather{Start: begin.Unix(), Names: []string{"temperature"}, Columns: [][]float32{c}}
	}
	var meters []series.Meter
	for k := range x.meters {
		m := series.Meter{ID: fmt.Sprintf("m/%d", k), Start: begin.Unix(), Load: make([]float32, x.days*perDay)}
		for i := range m.Load {
			at := begin.Add(time.Duration(i) * x.interval).In(zone)
			v := 2 + float64(k) + math.Sin(float64(at.Hour())/4) + 0.3*float64(at.Weekday()) + 0.3*random.ExpFloat64()
			if m.Load[i] = float32(v); random.Float64() < x.missing {
				m.Load[i] = float32(math.NaN())
			}
		}
		meters = append(meters, m)
	}
	out, err := series.NewDataset(d, meters)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func best(t testing.TB) *kernel.Set {
	t.Helper()
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// folder writes the folder of an untrained run and returns its path. Every client has
// different personal weights.
func (x sample) folder(t testing.TB, d *series.Dataset) string {
	t.Helper()
	if x.plan == "" {
		x.plan = densePlan
	}
	p, err := recipe.Read([]byte(x.plan))
	if err != nil {
		t.Fatal(err)
	}
	q, err := recipe.Frame(p, d)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	text, err := recipe.Write(p)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, planName), func(w *os.File) error { _, err := w.Write(text); return err })
	initial := q.Model.InitialWeights(1)
	write(t, filepath.Join(dir, sharedName), func(w *os.File) error {
		return q.Model.WriteWeights(w, initial, q.Partition.Shared(), nil)
	})
	var clients []string
	for i := range d.Len() {
		id := d.Meter(i).ID
		clients = append(clients, id)
		w := slices.Clone(initial)
		random := rand.New(rand.NewPCG(uint64(i), 2))
		for _, l := range q.Partition.Personal() {
			for j := range l.Len() {
				w[l.Offset()+j] += float32(0.01 * random.NormFloat64())
			}
		}
		write(t, filepath.Join(dir, personalDir, WeightsFile(id)), func(to *os.File) error {
			return q.Model.WriteWeights(to, w, q.Partition.Personal(), nil)
		})
	}
	write(t, filepath.Join(dir, ScalingName), func(w *os.File) error {
		return WriteScaling(w, q, d.Interval, clients, func(i int) (recipe.Scaling, error) { return scalingOf(q, d.Meter(i)), nil })
	})
	return dir
}

func scalingOf(q *recipe.Problem, m series.Meter) recipe.Scaling {
	var r series.Ranges
	if len(q.Inputs) > 0 {
		r = q.Framer.Ranges(m)
	}
	return q.Scaling(m, r)
}

func write(t testing.TB, path string, f func(*os.File) error) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	w, err := os.Create(path)
	if err == nil {
		err = f(w)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB, dir string) *Folder {
	t.Helper()
	f, err := Open(dir, nil, best(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func newState(t testing.TB, d *series.Dataset, h int) *issue.State {
	t.Helper()
	s, err := issue.NewState(issue.Config{Step: d.Interval, Clock: d.Clock, H: h})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// issueAt makes one issue for a client, with its current state.
func issueAt(t testing.TB, f *Folder, d *series.Dataset, s *issue.State, i int, cutoff int64) issue.Forecast {
	t.Helper()
	tails, err := NewTails(d, cutoff, 48)
	if err != nil {
		t.Fatal(err)
	}
	frame, err := f.Model.Frame(tails)
	if err != nil {
		t.Fatal(err)
	}
	m, err := tails.Meter(i)
	if err != nil {
		t.Fatal(err)
	}
	c, err := f.Client(m.ID)
	if err != nil {
		t.Fatal(err)
	}
	return s.Issue(m, issue.Models{Own: frame.Forecaster(m, c)}, cutoff)
}

func encoded(t testing.TB, s *issue.State) []byte {
	t.Helper()
	b, err := s.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
