// Package year runs an agent's live forecasts over a long time on a virtual clock, with real
// readings that arrive hour by hour, and measures the served forecasts.
package year

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"slices"
	"time"

	"loadstar/agent/live"
	"loadstar/forecast/issue"
	"loadstar/nn/kernel"
	"loadstar/series"
	"loadstar/series/store"
)

// Plant is a change that is planted in a client's readings, to test whether it is detected.
type Plant struct {
	Client string
	From   int64 // Unix seconds
	Factor float64
	Kind   string // kind of change, for the output
}

// Config describes the run.
type Config struct {
	// Data contains the readings before and during the run.
	Data *series.Dataset
	// Model is the folder of a model that was trained on the readings before Start.
	Model      string
	Start, End int64
	H          int
	// Settled is the time at which measuring starts, because the agent needs some weeks to
	// learn intervals.
	Settled int64
	Plants  []Plant
	// Canary is the number of steps between two checks with planted readings of future steps; 0
	// means no checks.
	Canary int
	Dir    string
	Log    *slog.Logger
	// Groups lists the members of each group.
	Groups map[string][]string
	// Each, if not nil, is called with the forecasts of each issue. Finally is called with
	// the service after the last issue.
	Each    func([]*live.Issued)
	Finally func(*live.Service)
}

// Client contains the measurements of a client after Settled.
type Client struct {
	Name string
	// Coverage is the share of loads between the lowest and the highest level.
	Coverage float64
	// The mean absolute errors of the served forecasts, of the model alone and of last
	// week's load, in the steps for which all are known.
	Served, Model, Week float64
	Steps               int
	// Alarm is the time at which drift was first detected after a change was planted, and
	// Finding the time at which a check of the readings found it; 0 means never.
	Alarm, Finding int64
	// Alarms is the number of days with a new alarm.
	Alarms int
}

// Result contains the measurements of a run.
type Result struct {
	Clients  []Client
	Issues   int
	Rows     map[issue.Source]int // rows of the first Reach steps of each forecast
	Fallback float64              // share of rows that did not come from a model
	Canaries int                  // checks with planted future readings
	Elapsed  time.Duration
}

// reach is the number of measured steps after a cutoff, as many as a day-ahead model forecasts.
const reach = 24

// run is a run in progress.
type run struct {
	Config
	step    int64
	now     int64
	store   *store.Store
	service *live.Service
	names   []string
	load    map[string]series.Meter // with the planted changes
	pending map[string][]*live.Issued
	sums    map[string]*sums
	result  *Result
	alarmed map[string]bool
}

type sums struct {
	n, hits, covered    int
	served, model, week float64
}

// Run runs an agent from Start to End.
func Run(ctx context.Context, c Config) (*Result, error) {
	began := time.Now()
	k, err := kernel.Default()
	if err != nil {
		return nil, err
	}
	r := &run{
		Config: c, step: c.Data.Seconds(), now: c.Start, load: map[string]series.Meter{}, pending: map[string][]*live.Issued{},
		sums: map[string]*sums{}, result: &Result{Rows: map[issue.Source]int{}}, alarmed: map[string]bool{},
	}
	r.store, err = store.Open(filepath.Join(c.Dir, "readings.db"), store.Config{Interval: c.Data.Interval, Clock: c.Data.Clock})
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.store.Close() }() // all writes are on disk
	if err := r.history(); err != nil {
		return nil, err
	}
	site := series.Dataset{Name: c.Data.Name, Interval: c.Data.Interval, Clock: c.Data.Clock, Country: c.Data.Country, Generated: c.Data.Generated}
	r.service, err = live.Open(live.Config{
		Dir: c.Dir, Site: site, Clients: r.names, Groups: c.Groups, H: c.H, Levels: []float64{0.1, 0.5, 0.9}, Delay: 2 * time.Minute,
		Store: r.store, Model: c.Model, Kernel: k, Log: c.Log, Now: func() time.Time { return time.Unix(r.now, 0) },
	})
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.service.Close() }() // all writes are on disk
	r.service.Subscribe(r.take)
	if c.Each != nil {
		r.service.Subscribe(c.Each)
	}
	for t := c.Start; t < c.End && ctx.Err() == nil; t += r.step {
		if err := r.hour(ctx, t); err != nil {
			return nil, err
		}
	}
	if c.Finally != nil {
		c.Finally(r.service)
	}
	r.finish()
	r.result.Elapsed = time.Since(began)
	return r.result, ctx.Err()
}

// history stores the readings from before the start.
func (r *run) history() error {
	d := r.Data
	var meters []series.Meter
	for i := range d.Len() {
		m := d.Meter(i)
		r.names = append(r.names, m.ID)
		r.sums[m.ID] = &sums{}
		r.load[m.ID] = r.planted(m)
		m.Load = m.Load[:min(max((r.Start-m.Start)/r.step, 0), int64(len(m.Load)))]
		m.Static = nil
		meters = append(meters, m)
	}
	slices.Sort(r.names)
	before := series.Dataset{Name: d.Name, Interval: d.Interval, Clock: d.Clock}
	past, err := series.NewDataset(before, meters)
	if err != nil {
		return err
	}
	if _, err = r.store.Import("history", past, time.Unix(r.Start, 0)); err != nil {
		return err
	}
	// Past weather is known. Future weather arrives day by day as a forecast that is always
	// right, as all backtests here assume.
	return r.weather(d.Weather.Start, r.Start+2*24*3600, r.Start)
}

// planted returns a meter with its planted changes.
func (r *run) planted(m series.Meter) series.Meter {
	for _, p := range r.Plants {
		if p.Client != m.ID {
			continue
		}
		m.Load = slices.Clone(m.Load)
		for i := range m.Load {
			if m.Start+int64(i)*r.step >= p.From {
				m.Load[i] = float32(float64(m.Load[i]) * p.Factor)
			}
		}
	}
	return m
}

// weather stores the weather in [from, to).
func (r *run) weather(from, to, now int64) error {
	w := r.Data.Weather
	var names []string
	var columns [][]float32
	for i, name := range w.Names {
		if name != "holiday" {
			names, columns = append(names, name), append(columns, w.Columns[i])
		}
	}
	if len(names) == 0 {
		return nil
	}
	var rows []store.WeatherRow
	for t := max(from, w.Start); t < to; t += r.step {
		i := (t - w.Start) / r.step
		if i >= int64(len(columns[0])) {
			break
		}
		row := store.WeatherRow{Time: t, Issued: min(t, now)}
		for _, c := range columns {
			row.Values = append(row.Values, c[i])
		}
		rows = append(rows, row)
	}
	const most = 20000
	for ; len(rows) > 0; rows = rows[min(most, len(rows)):] {
		if _, err := r.store.PutWeather(time.Unix(now, 0), names, rows[:min(most, len(rows))]); err != nil {
			return err
		}
	}
	return nil
}

// at returns the load of a client in the step that starts at t.
func (r *run) at(name string, t int64) float32 {
	m := r.load[name]
	i := (t - m.Start) / r.step
	if t < m.Start || i >= int64(len(m.Load)) {
		return float32(math.NaN())
	}
	return m.Load[i]
}

// hour stores the readings of the step before t, and issues the forecasts at t.
func (r *run) hour(ctx context.Context, t int64) error {
	r.now = t + 60
	if t%(24*3600) == 0 {
		if err := r.weather(t, t+3*24*3600, t); err != nil {
			return err
		}
	}
	var readings []store.Reading
	for _, name := range r.names {
		if y := r.at(name, t-r.step); !series.Missing(y) {
			readings = append(readings, store.Reading{Client: name, Time: t - r.step, KW: y})
			r.score(name, t-r.step, float64(y))
		}
	}
	if result, err := r.store.Put(time.Unix(r.now, 0), readings, nil); err != nil || len(result.Refused) > 0 {
		return fmt.Errorf("readings at %d: %v, refused: %v", t, err, result.Refused)
	}
	r.now = t + 120
	if !r.service.Tick() {
		return fmt.Errorf("no forecast at %d: %w", t, r.service.Ready())
	}
	for {
		did, err := r.service.Work(ctx)
		if err != nil {
			return err
		}
		if !did {
			break
		}
	}
	if t%(24*3600) == 0 {
		r.look(t)
	}
	if r.Canary > 0 && ((t-r.Start)/r.step)%int64(r.Canary) == int64(r.Canary)-1 {
		return r.canary(ctx, t)
	}
	return nil
}

// canary repeats a forecast after absurd readings of future steps were stored. The forecast
// must not change.
func (r *run) canary(ctx context.Context, t int64) error {
	name := r.names[int(t/r.step)%len(r.names)]
	before, err := r.service.IssueNow(ctx, name)
	if err != nil {
		return err
	}
	var absurd []store.Reading
	for u := t; u < t+48*3600; u += r.step {
		absurd = append(absurd, store.Reading{Client: name, Time: u, KW: 1e6})
	}
	later := time.Unix(t+49*3600, 0)
	if _, err := r.store.Put(later, absurd, nil); err != nil {
		return err
	}
	after, err := r.service.IssueNow(ctx, name)
	if err != nil {
		return err
	}
	for i := range absurd {
		absurd[i].KW, absurd[i].Quality = 0, store.Missing
	}
	if _, err := r.store.Put(later, absurd, nil); err != nil {
		return err
	}
	for i := range before.Rows {
		if !slices.Equal(before.Rows[i].Values, after.Rows[i].Values) || before.Rows[i].Source != after.Rows[i].Source {
			return fmt.Errorf("client %s at %d: row %d changed from %v to %v when later readings were stored", name, t, i, before.Rows[i], after.Rows[i])
		}
	}
	r.result.Canaries++
	return nil
}

// take stores the forecasts of an issue.
func (r *run) take(issued []*live.Issued) {
	for _, x := range issued {
		if r.sums[x.Client] == nil { // a group
			continue
		}
		if p := r.pending[x.Client]; len(p) > 0 && p[len(p)-1].Cutoff >= x.Cutoff {
			continue // this forecast is a canary's
		}
		r.result.Issues++
		r.pending[x.Client] = append(r.pending[x.Client], x)
		if x.Cutoff >= r.Settled {
			for _, row := range x.Rows[:min(reach, len(x.Rows))] {
				r.result.Rows[row.Source]++
			}
		}
	}
}

// score compares a load with its forecasts.
func (r *run) score(name string, t int64, y float64) {
	p := r.pending[name]
	for len(p) > 0 && p[0].Cutoff+reach*r.step <= t {
		p = p[1:]
	}
	r.pending[name] = p
	if t < r.Settled {
		return
	}
	clock := time.Unix(t, 0).In(r.Data.Clock)
	week := float64(r.at(name, clock.AddDate(0, 0, -7).Unix()))
	s := r.sums[name]
	for _, x := range p {
		i := (t - x.Cutoff) / r.step
		if i < 0 || i >= reach || x.Cutoff < r.Settled {
			continue
		}
		v := x.Rows[i].Values
		if len(v) == 0 || math.IsNaN(v[1]) {
			continue
		}
		s.covered++
		if y >= v[0] && y <= v[2] {
			s.hits++
		}
		if int(i) < len(x.Bare) && !math.IsNaN(x.Bare[i]) && !math.IsNaN(week) {
			s.n++
			s.served += math.Abs(y - v[1])
			s.model += math.Abs(y - x.Bare[i])
			s.week += math.Abs(y - week)
		}
	}
}

// look records new alarms and findings.
func (r *run) look(t int64) {
	for _, c := range r.service.Clients() {
		if len(c.Members) > 0 {
			continue
		}
		i := slices.IndexFunc(r.result.Clients, func(x Client) bool { return x.Name == c.Name })
		if i < 0 {
			i = len(r.result.Clients)
			r.result.Clients = append(r.result.Clients, Client{Name: c.Name})
		}
		x := &r.result.Clients[i]
		if c.Drift && !r.alarmed[c.Name] {
			x.Alarms++
		}
		r.alarmed[c.Name] = c.Drift
		for _, p := range r.Plants {
			if p.Client != c.Name || t < p.From {
				continue
			}
			if c.Drift && x.Alarm == 0 {
				x.Alarm = t
			}
			if len(c.Findings) > 0 && x.Finding == 0 {
				x.Finding = t
			}
		}
	}
}

func (r *run) finish() {
	for i := range r.result.Clients {
		x := &r.result.Clients[i]
		s := r.sums[x.Name]
		n := float64(s.n)
		x.Steps, x.Coverage = s.n, float64(s.hits)/float64(s.covered)
		x.Served, x.Model, x.Week = s.served/n, s.model/n, s.week/n
	}
	rows, fallback := 0, 0
	for source, n := range r.result.Rows {
		rows += n
		if source != issue.Model && source != issue.Generic {
			fallback += n
		}
	}
	r.result.Fallback = float64(fallback) / float64(rows)
}
