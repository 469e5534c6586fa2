package live

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	bolt "go.etcd.io/bbolt"

	"loadstar/agent/release"
	"loadstar/fed/serve"
	"loadstar/forecast/issue"
	"loadstar/series"
)

// The rules of staging.
const (
	testDays  = 14          // a contender is compared over the last days
	leastDays = 3           // a comparison needs forecasts of so many days
	between   = 6 * 60 * 60 // seconds between the issues that are compared
	tolerance = 1.02        // a contender may be this much worse; ties go to the newer
	// The correction and the blend with last week hide the errors of a bad model. So the
	// model alone is judged too, more generously: against the champion's model, or against
	// last week's load if there is none.
	bareTolerance, bareOfWeek = 1.1, 1.5
	hopeless                  = 2.0
	trialDays                 = 7         // the champion before runs silently for so long
	better                    = 0.98      // it returns if its error is this much lower
	fitDays                   = 14        // days of readings from which personal layers are fitted
	fitSpan                   = 366 * day // readings that are used to fit
	refitSpan                 = 56 * day
	refitRest                 = 7 * day // at most one refit of a client in this time
	judgeRest                 = day     // a comparison without a result is repeated after this time
	// A client without a model tries one that it refused again after this time: last week's load
	// is hard to beat in some weeks, such as the first ones of a term, and bad in the others.
	retryRest = testDays * day
)

// job is work that takes longer than an issue: comparing a model of a client.
type job struct {
	client string
	model  *model
	refit  bool
}

// nextJob returns the next comparison that is due, or nil.
func (s *Service) nextJob(now int64) *job {
	models := s.newest(release.Personal)
	for _, name := range s.names {
		m := s.members[name]
		if !m.checked {
			s.recheck(m)
		}
		// Readings that do not show the client's use of energy say nothing about models.
		if m.rec.Pinned || len(m.findings) > 0 {
			continue
		}
		if m.wantsRefit(now) {
			return &job{client: name, model: m.champion.model, refit: true}
		}
		for _, x := range models {
			if m.champion.model != nil && !newer(x, m.champion.model) {
				break
			}
			rest := int64(judgeRest)
			if slices.Contains(m.rec.Refused, x.ID) {
				if rest = retryRest; m.champion.model != nil || !m.rec.retries(x.ID) {
					continue
				}
			}
			if s.reason(x) != "" || now-m.rec.Judged[x.ID] < rest {
				continue
			}
			return &job{client: name, model: x}
		}
	}
	return nil
}

func newer(a, b *model) bool {
	return a.ID != b.ID && (a.Received > b.Received || a.Received == b.Received && a.Version > b.Version)
}

// Work does one piece of background work, such as comparing a new model with the one in
// use. It reports whether there was any. Run calls it between issues.
func (s *Service) Work(ctx context.Context) (bool, error) {
	s.working.Lock()
	defer s.working.Unlock()
	now := s.c.Now()
	s.issuing.Lock()
	j := s.nextJob(now.Unix())
	var champion runner
	if j != nil {
		champion = *s.members[j.client].champion
	}
	s.issuing.Unlock()
	if j == nil {
		return false, nil
	}
	verdict, err := s.compare(ctx, j, &champion, now)
	if ctx.Err() != nil {
		return true, nil
	}
	if err != nil {
		s.c.Log.Error("cannot compare a model", "client", j.client, "model", j.model.Name, "error", err)
	}
	s.issuing.Lock()
	defer s.issuing.Unlock()
	err = s.settle(j, champion.id, verdict, err, now.Unix())
	s.refresh()
	return true, err
}

// verdict is the result of a comparison.
type verdict struct {
	judged   bool // there were enough forecasts
	accepted bool
	winner   *head
	// With the errors of champion and contender per step.
	champion, contender tally
	// planted means that the contender's forecasts leave the range of the readings if a flag
	// of the calendar is set.
	planted bool
	why     string
}

// tally adds up errors.
type tally struct {
	n            int
	abs, pinball float64
	// of the model alone
	bareN   int
	bareAbs float64
}

// replayed issue, with the model's own point forecasts.
type tried struct {
	issue.Forecast
	bare []float32
}

// compare replays the last days of a client with its champion and with a contender.
func (s *Service) compare(ctx context.Context, j *job, champion *runner, now time.Time) (verdict, error) {
	cutoff := s.floor(now.Unix())
	first, end, ok, err := s.c.Store.Span(j.client)
	if err != nil {
		return verdict{}, err
	}
	if !ok || end-first < leastDays*day {
		return verdict{why: "too few readings"}, nil
	}
	d, err := s.history(j.client, cutoff-fitSpan, cutoff)
	if err != nil || d == nil {
		return verdict{why: "too few readings"}, err
	}
	var contenders []*head
	if !j.refit {
		if contenders, err = s.loadHeads(j.model.ID, j.client); err != nil {
			return verdict{}, err
		}
	}
	// With no weights from training, and also if those from training lose narrowly, weights
	// are fitted on the readings before the days of the comparison. If they lose by far, the
	// release is not what it claims to be, even if fitting could repair it.
	v := verdict{why: "too few readings"}
	for _, h := range contenders {
		v, err = s.contest(d, j, champion, h, cutoff)
		if err != nil || v.accepted || v.planted || v.judged && v.contender.bareAbs > hopeless*v.champion.bareAbs {
			return v, err
		}
	}
	if end-first < fitDays*day || ctx.Err() != nil {
		return v, ctx.Err()
	}
	h, err := s.fit(ctx, d, j, champion, cutoff)
	if errors.Is(err, serve.ErrShort) {
		return v, nil
	} else if err != nil {
		return v, err
	}
	if h == nil {
		return verdict{judged: true, champion: tally{n: 1}, contender: tally{n: 1}}, nil
	}
	return s.contest(d, j, champion, h, cutoff)
}

// fit fits the personal layers of a client. It returns nil if the shared layers alone are far
// worse than those of the champion.
func (s *Service) fit(ctx context.Context, d *series.Dataset, j *job, champion *runner, cutoff int64) (*head, error) {
	from := origin(fitted)
	if j.refit {
		from = refit
		var err error
		if d, err = s.history(j.client, cutoff-refitSpan, cutoff); err != nil {
			return nil, err
		}
	}
	c, how, err := j.model.serve.Fit(ctx, d, 0, cutoff, nil, serve.FitSteps)
	if err != nil {
		return nil, err
	}
	if old := champion.model; old != nil && old != j.model {
		if _, present, err := old.serve.Fit(ctx, d, 0, cutoff, nil, 1); err == nil && how.Before > hopeless*present.Before {
			s.c.Log.Warn("the shared layers of a model are far worse than those in use", "client", j.client, "model", j.model.Name,
				"loss", how.Before, "loss_in_use", present.Before)
			return nil, nil
		}
	}
	s.c.Log.Info("fitted personal layers", "client", j.client, "model", j.model.Name, "loss_before", digits(how.Before), "loss_after", digits(how.After))
	return newHead(j.model.ID, j.client, cutoff, from, c), nil
}

// contest compares a contender with the champion.
func (s *Service) contest(d *series.Dataset, j *job, champion *runner, h *head, cutoff int64) (verdict, error) {
	v := verdict{winner: h}
	x := &runner{}
	s.issuing.Lock() // a release may arrive meanwhile
	err := s.fill(x, h)
	s.issuing.Unlock()
	if err != nil {
		return v, err
	}
	old, err := s.trial(d, champion, cutoff)
	if err != nil {
		return v, err
	}
	fresh, err := s.trial(d, x, cutoff)
	if err != nil {
		return v, err
	}
	days := map[int64]bool{}
	m := d.Meter(0)
	own, reached := 0, 0
	for at, a := range old {
		b, ok := fresh[at]
		if !ok {
			continue
		}
		for k := range a.Rows {
			t := a.Rows[k].Time
			i := (t - m.Start) / s.seconds()
			if t >= cutoff || i < 0 || i >= int64(len(m.Load)) || series.Missing(m.Load[i]) || !known(a.Rows[k], s.point) || !known(b.Rows[k], s.point) {
				continue
			}
			if k < x.reach() {
				reached++
			}
			if b.Rows[k].Source == issue.Model {
				own++
			}
			load := float64(m.Load[i])
			if base := s.bareOf(champion, a, k, m, t); k < len(b.bare) && b.bare[k] == b.bare[k] && !math.IsNaN(base) {
				v.champion.bareN++
				v.champion.bareAbs += math.Abs(load - base)
				v.contender.bareN++
				v.contender.bareAbs += math.Abs(load - float64(b.bare[k]))
			}
			v.champion.add(s.c.Levels, s.point, a.Rows[k].Values, load)
			v.contender.add(s.c.Levels, s.point, b.Rows[k].Values, load)
			days[t/day] = true
		}
	}
	if len(days) < leastDays || own*4 < reached {
		v.why = fmt.Sprintf("only %d days of its own forecasts", len(days))
		return v, nil
	}
	v.judged = true
	limit := bareTolerance
	if champion.model == nil {
		limit = bareOfWeek
	}
	v.accepted = v.contender.pinball <= tolerance*v.champion.pinball && v.contender.abs <= tolerance*v.champion.abs &&
		v.contender.bareAbs <= limit*v.champion.bareAbs
	if !v.accepted {
		return v, nil
	}
	// The last days have few flags of the calendar. A model can be right on them, and far off
	// when a flag is set for the first time.
	f, err := x.model.serve.TryFlags(d, 0, x.client, cutoff)
	if err != nil {
		return v, err
	}
	if v.planted = f.Outside(); v.planted {
		v.accepted, v.why = false, f.String()
	}
	return v, nil
}

// bareOf returns what the champion's model alone said about row k of an issue, or last week's
// load if there is no model.
func (s *Service) bareOf(champion *runner, x tried, k int, m series.Meter, t int64) float64 {
	if champion.model != nil {
		if k < len(x.bare) {
			return float64(x.bare[k])
		}
		return math.NaN()
	}
	return s.weekBefore(func(u int64) float64 {
		if i := (u - m.Start) / s.seconds(); u >= m.Start && u < x.Cutoff && i < int64(len(m.Load)) {
			return float64(m.Load[i])
		}
		return math.NaN()
	}, t)
}

func known(r issue.Row, point int) bool { return point < len(r.Values) && !math.IsNaN(r.Values[point]) }

func (t *tally) add(levels []float64, point int, row []float64, load float64) {
	t.n++
	t.abs += math.Abs(load - row[point])
	for i, q := range row {
		t.pinball += pinball(levels[i], q, load)
	}
}

// trial returns the issues that a runner would have made in the last days, by cutoff. The young
// model takes no part: on 14 days, a few clients prefer it by chance, and lose by it later.
func (s *Service) trial(d *series.Dataset, r *runner, cutoff int64) (map[int64]tried, error) {
	fresh := *r
	var err error
	if fresh.state, err = s.newState(); err != nil {
		return nil, err
	}
	out := map[int64]tried{}
	err = s.replay(d, &fresh, nil, cutoff, func(f issue.Forecast, bare []float32) {
		if f.Cutoff >= cutoff-testDays*day && f.Cutoff%between == 0 {
			out[f.Cutoff] = tried{f, bare}
		}
	})
	return out, err
}

// digits rounds a number for the log to four digits.
func digits(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }

// settle applies a verdict. The caller holds s.issuing.
func (s *Service) settle(j *job, against uint64, v verdict, failed error, now int64) error {
	m := s.members[j.client]
	if m == nil || m.champion.id != against || s.models[j.model.ID] == nil {
		return nil // the client has changed its model in the meantime; it is compared again
	}
	if m.rec.Judged == nil {
		m.rec.Judged = map[string]int64{}
	}
	log := s.c.Log.With("client", j.client, "model", j.model.Name)
	if n := float64(v.contender.n); v.judged {
		log = log.With("mae_kw", digits(v.contender.abs/n), "mae_before_kw", digits(v.champion.abs/n),
			"pinball_relative", digits(v.contender.pinball/v.champion.pinball), "model_alone_relative", digits(v.contender.bareAbs/v.champion.bareAbs))
	}
	switch {
	case failed != nil || !v.judged:
		m.rec.Judged[j.model.ID] = now
		if j.refit {
			m.rec.Refit, m.rec.WantsRound = now, true
		}
		log.Info("a model cannot be compared yet", "reason", v.why)
	case v.accepted:
		log.Info("the client uses a new model")
		return s.install(m, v.winner, now)
	case j.refit:
		m.rec.Refit, m.rec.WantsRound = now, true
		log.Info("fitting the client's layers again did not help; a new round of training might")
	case v.planted:
		m.rec.refuse(j.model.ID)
		log.Warn("the client refuses a model, because its forecasts leave the range of the readings", "reason", v.why)
	default:
		m.rec.refuse(j.model.ID)
		m.rec.Judged[j.model.ID] = now
		log.Warn("the client refuses a model, because its forecasts would become worse")
	}
	return s.db.Update(func(tx *bolt.Tx) error { return putMember(tx, m) })
}

// install makes a head the champion of a client, whose present champion runs silently from
// now on.
func (s *Service) install(m *member, h *head, now int64) error {
	rec, w := m.rec, m.watch.anew(now)
	id := s.stored(h)
	err := s.db.Update(func(tx *bolt.Tx) (err error) {
		if id == 0 {
			if id, err = putHead(tx, h); err != nil {
				return err
			}
		}
		rec.Before = slices.Clone(m.rec.Before)
		rec.Refused = slices.DeleteFunc(slices.Clone(m.rec.Refused), func(id string) bool { return id == h.Model })
		rec.promote(id, now)
		rec.WantsRound = false
		if h.Origin == refit {
			rec.Refit = now
		}
		if err := putState(tx, m.name, asShadow, m.champion); err != nil {
			return err
		}
		return putChoice(tx, &member{name: m.name, rec: rec, scores: m.scores, watch: w})
	})
	if err != nil {
		return err
	}
	key := headKey{h.Model, h.Client}
	if !slices.Contains(s.heads[key], id) {
		s.heads[key] = append(s.heads[key], id)
	}
	champion, err := s.runner(id)
	if err != nil {
		return err
	}
	m.rec, m.shadow, m.champion, m.watch = rec, m.champion, champion, w
	return s.prune()
}

// stored returns the number of a head that is in the file already, or 0.
func (s *Service) stored(h *head) uint64 {
	if h.Origin != trained {
		return 0
	}
	for _, id := range s.heads[headKey{h.Model, h.Client}] {
		return id
	}
	return 0
}

// loadHeads returns the weights that a client has from the training of a model.
func (s *Service) loadHeads(model, client string) (out []*head, err error) {
	s.issuing.Lock()
	ids := slices.Clone(s.heads[headKey{model, client}])
	s.issuing.Unlock()
	err = s.db.View(func(tx *bolt.Tx) error {
		for _, id := range ids {
			b, err := get(tx, headsBucket, numberKey(id), headFormat)
			if b == nil || err != nil {
				return err
			}
			h := &head{}
			if err := h.decode(b); err != nil {
				return err
			}
			if h.Origin == trained {
				out = append(out, h)
				return nil
			}
		}
		return nil
	})
	return out, err
}

// follow ends the trial of a client's champion: after some days of forecasts by both, the
// better one stays.
func (s *Service) follow(m *member, now time.Time, cutoff int64) error {
	if m.shadow != nil {
		from := m.rec.TrialFrom/day + 1 // the first whole day
		t := m.scores.total(from, cutoff/day, -1)
		days := cutoff/day - from
		switch {
		case days >= leastDays && t.ShadowN > 0 && t.Shadow < better*t.ShadowServed && t.ShadowAbs < better*t.Both:
			s.c.Log.Warn("a client returns to its previous model, which is better", "client", m.name,
				"days", days, "pinball_relative", t.Shadow/t.ShadowServed)
			left := m.champion.model
			if err := s.rollback(m, now.Unix()); err != nil {
				return err
			}
			if m.rec.Judged == nil {
				m.rec.Judged = map[string]int64{}
			}
			m.rec.Judged[left.ID] = now.Unix()
			return nil
		case days >= trialDays:
			m.shadow, m.rec.TrialFrom, m.rec.Shadow = nil, 0, 0
		}
	}
	return s.observeDrift(m, now, cutoff)
}

// rollback returns a client to the champion before, and refuses the present model. The
// champion that ran silently continues with its state. The caller stores the client and the
// state of its champion.
func (s *Service) rollback(m *member, now int64) error {
	if m.champion.model == nil {
		return errors.New("there is no model to leave")
	}
	leaves, rec := m.champion, m.rec
	rec.Before, rec.Refused = slices.Clone(rec.Before), slices.Clone(rec.Refused)
	rec.Judged = maps.Clone(rec.Judged)
	rec.back()
	next := m.shadow
	if next == nil || next.id != rec.Champion {
		var err error
		if next, err = s.runner(rec.Champion); err != nil {
			return err
		}
	}
	if next.model == nil || next.model.ID != leaves.model.ID {
		rec.refuse(leaves.model.ID)
	}
	m.rec, m.champion, m.shadow, m.watch = rec, next, nil, m.watch.anew(now)
	return nil
}
