package outlook

import (
	"context"
	"fmt"
	"sync"
	"time"

	"loadstar/fed/serve"
	"loadstar/forecast/issue"
	"loadstar/internal/textfmt"
	"loadstar/series"
)

// heldDays is the number of days before the cutoff that are not used to fit personal layers.
// Only such days can show the quality of the fitted layers.
const heldDays = 14

const daySeconds = 86400

// made is the forecast of one meter.
type made struct {
	forecast issue.Forecast
	fitted   bool
	// shapeless means that scenarios were requested, but there are too few earlier forecasts.
	shapeless bool
	inputs    *serve.Inputs // nil unless they were requested and the model can forecast
}

// producer makes forecasts. It is safe for concurrent use.
type producer struct {
	c      Config
	states issue.Config
	replay *serve.Replay

	mu     sync.Mutex
	frames map[int64]*frame // by cutoff
}

// frame contains the data that all meters with the same cutoff share.
type frame struct {
	once  sync.Once
	tails *serve.Tails
	model *serve.Frame // nil if there is no model
	young *serve.Frame // frame of the generic model, or nil if there is none
	err   error
}

// maxFrames is the number of frames in memory.
const maxFrames = 64

func newProducer(c Config) (*producer, error) {
	d := c.Dataset
	p := &producer{c: c, frames: map[int64]*frame{}, replay: serve.NewReplay(d, c.own(), c.Generic)}
	p.states = issue.Config{Step: d.Interval, Clock: d.Clock, H: c.H, Levels: c.Levels, Fallback: c.Fallback}
	_, err := issue.NewState(p.states) // checks the configuration
	return p, err
}

// forecast makes the forecast of meter i.
func (p *producer) forecast(ctx context.Context, i int) (m made, err error) {
	d := p.c.Dataset
	meter := d.Meter(i)
	cutoff := p.c.At
	if cutoff == 0 {
		cutoff = endOf(d, meter)
	}
	if off := (cutoff - meter.Start) % d.Seconds(); off != 0 {
		return m, fmt.Errorf("meter %s: %s is not the start of a step; its steps of %s start at %s", meter.ID,
			time.Unix(cutoff, 0).In(d.Clock).Format(time.RFC3339), textfmt.Duration(d.Interval), time.Unix(cutoff-off, 0).In(d.Clock).Format(time.RFC3339))
	}
	var client *serve.Client
	reason, isNew := issue.NoRelease, false
	if p.c.Model != nil {
		if client, reason, isNew, err = p.c.Model.client(ctx, i, cutoff, p.c.FitSteps); err != nil {
			return m, err
		}
	}
	m.fitted = isNew && client != nil
	if client != nil {
		defer p.c.Model.folder.Release(*client)
	}
	f, err := p.frame(cutoff)
	if err != nil {
		return m, err
	}
	tail, err := f.tails.Meter(i)
	if err != nil {
		return m, err
	}
	state, err := p.state(meter, cutoff, isNew)
	if err != nil {
		return m, err
	}
	models := issue.Models{Reason: reason}
	var anyone *serve.Client
	if f.young != nil {
		c := p.c.Generic.Anyone()
		anyone = &c
		models.Generic = f.young.Forecaster(tail, c)
	}
	if err := p.replay.Advance(state, i, client, anyone, cutoff); err != nil {
		return m, err
	}
	if client != nil {
		models.Own = f.model.Forecaster(tail, *client)
	}
	if p.c.Inputs != nil && client != nil {
		if in, err := f.model.Inputs(tail, *client); err == nil {
			m.inputs = &in
		}
	}
	m.forecast = state.Issue(tail, models, cutoff)
	m.forecast.Model, _ = p.c.name()
	if p.c.Paths > 0 {
		m.shapeless, err = p.addPaths(&m.forecast, i, client, anyone, isNew)
	}
	return m, err
}

// endOf returns the end of a meter's newest reading, or its start if there is none.
func endOf(d *series.Dataset, m series.Meter) int64 {
	n := len(m.Load)
	for n > 0 && series.Missing(m.Load[n-1]) {
		n--
	}
	return m.Start + int64(n)*d.Seconds()
}

// Span returns the period that the readings of a dataset cover.
func Span(d *series.Dataset) string {
	var first, end int64
	for i := range d.Len() {
		m := d.Meter(i)
		if e := endOf(d, m); e > m.Start {
			if first == 0 || m.Start < first {
				first = m.Start
			}
			end = max(end, e)
		}
	}
	if end == 0 {
		return fmt.Sprintf("%s has no readings", d.Name)
	}
	at := func(unix int64) string { return time.Unix(unix, 0).In(d.Clock).Format(minute) }
	return fmt.Sprintf("the readings of %s reach from %s to %s", d.Name, at(first), at(end))
}

// buffers contains memory for encoded states.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// state returns the state from which the forecast of a meter continues.
func (p *producer) state(meter series.Meter, cutoff int64, isNew bool) (*issue.State, error) {
	days := int64(p.c.Calibrate / (24 * time.Hour))
	if isNew && (days == 0 || days > heldDays) {
		days = heldDays
	}
	if days > 0 {
		s, err := issue.NewState(p.states)
		if err != nil {
			return nil, err
		}
		if from := cutoff - days*daySeconds; from > meter.Start {
			s.Advance(meter, from)
		}
		return s, nil
	}
	if p.c.Model == nil {
		return issue.NewState(p.states)
	}
	buffer := buffers.Get().(*[]byte)
	defer buffers.Put(buffer)
	encoded, err := p.c.Model.folder.State(meter.ID, *buffer)
	switch {
	case err != nil:
		return nil, err
	case encoded == nil:
		return issue.NewState(p.states)
	}
	*buffer = encoded
	// If a state is damaged, belongs to another version or other forecasts, or contains
	// readings after the cutoff, a replay creates a new one.
	s, err := issue.Decode(p.states, encoded)
	if err != nil || s.Next() > cutoff {
		return issue.NewState(p.states)
	}
	return s, nil
}

func (p *producer) frame(cutoff int64) (*frame, error) {
	p.mu.Lock()
	f := p.frames[cutoff]
	if f == nil {
		if len(p.frames) >= maxFrames {
			clear(p.frames)
		}
		f = &frame{}
		p.frames[cutoff] = f
	}
	p.mu.Unlock()
	f.once.Do(func() { f.err = p.open(f, cutoff) })
	return f, f.err
}

func (p *producer) open(f *frame, cutoff int64) (err error) {
	d, ahead := p.c.Dataset, 0
	for _, m := range []*serve.Model{p.c.own(), p.c.Generic} {
		if m != nil {
			ahead = max(ahead, m.Reach(d.Interval)+1)
		}
	}
	if f.tails, err = serve.NewTails(d, cutoff, ahead); err != nil {
		return err
	}
	// Weather after the cutoff counts as a weather forecast. If its time has passed, it was
	// measured, so the forecasts are better than they could have been at the cutoff.
	w := &d.Weather
	for i, name := range w.Names {
		from := int((cutoff - w.Start) / d.Seconds())
		for at := max(from, 0); at < min(from+ahead, len(w.Columns[i])); at++ {
			if !series.Missing(w.Columns[i][at]) && w.Start+int64(at)*d.Seconds() < p.c.Now.Unix() && f.tails.Weather[name] == "" {
				f.tails.Weather[name] = issue.WeatherObserved
			}
		}
	}
	if m := p.c.own(); m != nil {
		if f.model, err = m.Frame(f.tails); err != nil {
			return err
		}
	}
	if p.c.Generic != nil {
		f.young, err = p.c.Generic.Frame(f.tails)
	}
	return err
}
