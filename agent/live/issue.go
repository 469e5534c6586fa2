package live

import (
	"errors"
	"fmt"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"loadstar/agent/release"
	"loadstar/fed/serve"
	"loadstar/forecast/issue"
	"loadstar/series"
)

const (
	day = 24 * 60 * 60 // seconds
	// replayed is how far back a new state is replayed, in seconds.
	replayed = 63 * day
	// keptIssues is how long a recorded issue is kept after its last target: until the day of
	// that target is no longer scored again. That day may have begun a day earlier.
	keptIssues = (correctable + 1) * day
	// staleAfter is the age from which a model counts as old.
	staleAfter = 90 * day
)

// generic is a model without personal layers, with the scaling of a client.
type generic struct {
	model  *model
	day    int64 // Unix day on which the scaling was made
	client serve.Client
}

// issueAll makes the forecasts of all clients and groups at a cutoff, and stores them in one
// transaction. The caller holds s.issuing.
func (s *Service) issueAll(now time.Time, cutoff int64) error {
	tails, err := s.tails(s.names, cutoff)
	if err != nil {
		return err
	}
	frames := newFrames(tails)
	var (
		issued []*Issued
		meters []series.Meter
		writes []func(tx *bolt.Tx) error
		due    bool
	)
	for i, name := range s.names {
		m := s.members[name]
		meter, err := tails.Meter(i)
		if err != nil {
			return err
		}
		x, r, err := s.issueOne(m, frames, meter, now, cutoff)
		if err != nil {
			return fmt.Errorf("client %s: %w", name, err)
		}
		issued = append(issued, x)
		meters = append(meters, meter)
		if r == nil {
			continue
		}
		due = true
		writes = append(writes, func(tx *bolt.Tx) error {
			if err := putState(tx, name, asChampion, m.champion); err != nil {
				return err
			}
			if m.shadow != nil {
				if err := putState(tx, name, asShadow, m.shadow); err != nil {
					return err
				}
			}
			return putRecorded(tx, name, r, s.seconds())
		})
	}
	for _, g := range s.groups {
		x, r, err := s.issueGroup(g, meters, issued, now, cutoff)
		if err != nil {
			return fmt.Errorf("group %s: %w", g.name, err)
		}
		issued = append(issued, x)
		if r != nil {
			writes = append(writes, func(tx *bolt.Tx) error {
				if err := g.put(tx); err != nil {
					return err
				}
				return putRecorded(tx, g.name, r, s.seconds())
			})
		}
	}
	// The decisions that follow from scores are stored with the issue. An agent that is killed
	// in between would not make them up, because it does not repeat the issue.
	if due {
		back, err := s.scoreAll(now, cutoff)
		if err != nil {
			return err
		}
		writes = append(writes, func(tx *bolt.Tx) error { return s.putScores(tx, back) })
	}
	err = s.db.Update(func(tx *bolt.Tx) error {
		for _, x := range issued {
			if err := put(tx, newestBucket, []byte(x.Client), newestFormat, encodeIssued(x)); err != nil {
				return err
			}
		}
		for _, write := range writes {
			if err := write(tx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.publish(issued, cutoff)
	return nil
}

// issueOne makes the forecast of a client, and that of the contender that runs silently. The
// result is not nil if the issue is recorded.
func (s *Service) issueOne(m *member, f *frames, meter series.Meter, now time.Time, cutoff int64) (*Issued, *recorded, error) {
	gen := s.generic(m, cutoff)
	if err := s.catchUp(m, m.champion, gen, cutoff); err != nil {
		return nil, nil, err
	}
	due := cutoff%(int64(m.champion.state.Every(m.champion.targets()...))*s.seconds()) == 0
	models, bare := s.ask(f, meter, m.champion, gen)
	if models.Reason == issue.NoHead && slices.Contains(m.rec.Refused, s.newest(release.Personal)[0].ID) {
		models.Reason = issue.Refused
	}
	x := s.issued(m.champion, m.champion.state.Issue(meter, models, cutoff), m.name, now)
	m.rec.Sequence++
	x.Sequence = m.rec.Sequence
	r := record(&x.Forecast)
	r.Head = m.champion.id
	if bare != nil {
		r.Bare = bare.bare[:min(len(bare.bare), r.steps())]
		for _, v := range r.Bare {
			x.Bare = append(x.Bare, float64(v))
		}
	}
	if m.shadow != nil {
		if err := s.catchUp(m, m.shadow, gen, cutoff); err != nil {
			return nil, nil, err
		}
		models, _ := s.ask(f, meter, m.shadow, gen)
		silent := m.shadow.state.Issue(meter, models, cutoff)
		if v := values(&silent); len(v) == len(r.Values) {
			r.Shadow = v
		}
	}
	if !due {
		r = nil
	}
	return x, r, nil
}

// ask returns the forecasters of a runner, and the spy on the client's own.
func (s *Service) ask(f *frames, meter series.Meter, r *runner, gen *generic) (issue.Models, *spy) {
	var (
		out issue.Models
		own *spy
	)
	switch reason := s.reason(r.model); {
	case r.model == nil && len(s.newest(release.Personal)) > 0:
		out.Reason = issue.NoHead
	case reason != "":
		out.Reason = reason
	default:
		x, err := f.forecaster(r.model, meter, r.client)
		if err != nil {
			s.c.Log.Error("a model cannot forecast", "model", r.model.Name, "error", err)
			out.Reason = issue.ModelFailed
			break
		}
		own = &spy{Forecaster: x}
		out.Own = own
	}
	if gen != nil {
		if x, err := f.forecaster(gen.model, meter, gen.client); err == nil {
			out.Generic = x
		}
	}
	return out, own
}

// issued adds to a forecast what the ladder does not know.
func (s *Service) issued(r *runner, f issue.Forecast, name string, now time.Time) *Issued {
	f.Client = name
	x := &Issued{Forecast: f, Issued: now.Unix()}
	if r.model != nil {
		x.Release = r.model.ref()
		x.Release.Head = r.made
		x.Release.Stale = now.Unix()-r.model.Received > staleAfter
	}
	return x
}

// catchUp replays the recorded issues that a state has missed, because it is new or because
// the agent was not running.
func (s *Service) catchUp(m *member, r *runner, gen *generic, cutoff int64) error {
	fresh := r.state.Next() == 0
	if fresh && r.begin != nil {
		if err := r.state.UnmarshalBinary(r.begin); err != nil || r.state.Next() > cutoff {
			// The configuration differs from that of the training, or readings are missing.
			if r.state, err = s.newState(); err != nil {
				return err
			}
		}
		r.begin = nil
	}
	if r.state.Next() > cutoff+2*s.seconds() { // the clock was wrong, and the state learns nothing until then
		var err error
		if r.state, err = s.newState(); err != nil {
			return err
		}
	}
	every := int64(r.state.Every(r.targets()...)) * s.seconds()
	from := r.state.Next()
	// A state that has seen the readings up to an edge has recorded the issue there, unless it
	// is new: the state of a folder ends before the issue.
	if edge := (cutoff - 1) / every * every; from > edge || from == edge && !fresh {
		return nil
	}
	if from == 0 {
		from = cutoff - replayed
	}
	d, err := s.history(m.name, from, cutoff)
	if err != nil || d == nil {
		return err
	}
	return s.replay(d, r, gen, cutoff, nil)
}

// targets returns the number of steps that the model forecasts, if there is one.
func (r *runner) targets() []int {
	if r.model == nil || r.model.serve == nil {
		return nil
	}
	return []int{r.model.serve.Plan.Model.Targets.Steps()}
}

// reach returns the number of steps after a cutoff that the model forecasts, or 0 if there is
// none.
func (r *runner) reach() int {
	if r.model == nil || r.model.serve == nil {
		return 0
	}
	m := r.model.serve.Plan.Model
	return m.Horizon.Steps() - 1 + m.Targets.Steps()
}

// replay advances the state of a runner to the cutoff, with the readings of its client. Each
// is called with the issues and with the model's own point forecasts, and may be nil.
func (s *Service) replay(d *series.Dataset, r *runner, gen *generic, cutoff int64, each func(f issue.Forecast, bare []float32)) error {
	var (
		own, other   *serve.Model
		ownC, otherC *serve.Client
	)
	if s.reason(r.model) == "" {
		own, ownC = r.model.serve, &r.client
	}
	if gen != nil {
		other, otherC = gen.model.serve, &gen.client
	}
	p := serve.NewReplay(d, own, other)
	if each != nil {
		var own *spy
		p.Wrap = func(f issue.Forecaster) issue.Forecaster {
			own = &spy{Forecaster: f}
			return own
		}
		p.Each = func(f issue.Forecast) {
			var bare []float32
			if own != nil {
				bare, own.bare = own.bare, nil
			}
			each(f, bare)
		}
	}
	return p.Advance(r.state, 0, ownC, otherC, cutoff)
}

// generic returns the newest released generic model with the scaling of a client, if there is
// one and the client has two days of readings before the present day. Otherwise it returns the
// young model, or nil if there is none.
func (s *Service) generic(m *member, cutoff int64) *generic {
	if g := s.released(m, cutoff); g != nil {
		return g
	}
	return s.youngOne()
}

// youngOne returns the young model, or nil if there is none.
func (s *Service) youngOne() *generic {
	if s.young == nil {
		return nil
	}
	return &generic{model: s.young, client: s.young.serve.Anyone()}
}

func (s *Service) released(m *member, cutoff int64) *generic {
	models := s.newest(release.Generic)
	if len(models) == 0 || s.reason(models[0]) != "" {
		return nil
	}
	today := cutoff / day
	if g := &m.profile; g.model == models[0] && g.day == today {
		return g
	}
	first, end, ok, err := s.c.Store.Span(m.name)
	if err != nil || !ok || min(end, today*day)-first < 2*day {
		return nil
	}
	d, err := s.history(m.name, today*day-365*day, today*day)
	if err != nil || d == nil {
		return nil
	}
	scaling, err := models[0].serve.Scaling(d, 0, today*day)
	if err != nil {
		return nil
	}
	c, err := models[0].serve.Client(nil, scaling)
	if err != nil {
		return nil
	}
	m.profile = generic{model: models[0], day: today, client: c}
	return &m.profile
}

// putRecorded stores a recorded issue, and removes those that are no longer needed.
func putRecorded(tx *bolt.Tx, name string, r *recorded, step int64) error {
	if err := put(tx, issuedBucket, timeKey(name, r.Cutoff), issuedFormat, r.encode()); err != nil {
		return err
	}
	var old [][]byte
	until := r.Cutoff - int64(r.steps())*step - keptIssues
	err := eachTime(tx, issuedBucket, name, 0, until, func(at int64, _ []byte) error {
		old = append(old, timeKey(name, at))
		return nil
	})
	for _, k := range old {
		err = errors.Join(err, tx.Bucket(issuedBucket).Delete(k))
	}
	return err
}

// frames has a frame for each model, for the same readings.
type frames struct {
	tails *serve.Tails
	of    map[*model]*serve.Frame
}

func newFrames(tails *serve.Tails) *frames {
	return &frames{tails: tails, of: map[*model]*serve.Frame{}}
}

func (f *frames) forecaster(m *model, meter series.Meter, c serve.Client) (issue.Forecaster, error) {
	frame := f.of[m]
	if frame == nil {
		var err error
		if frame, err = m.serve.Frame(f.tails); err != nil {
			return nil, err
		}
		f.of[m] = frame
	}
	return frame.Forecaster(meter, c), nil
}
