package live

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"loadstar/fed/serve"
	"loadstar/forecast/issue"
	"loadstar/series"
)

// A comparison takes a long time, so the methods in this file are called without the roster's lock,
// and take it where they need it.

// verdict is the result of a comparison.
type verdict struct {
	judged   bool // there were enough forecasts
	accepted bool
	winner   *head
	// champion and contender contain the errors per step.
	champion, contender tally
	// planted means that a calendar flag makes the contender's forecasts leave the range of
	// the readings.
	planted bool
	why     string
}

// tally adds up errors.
type tally struct {
	n            int
	abs, pinball float64
	// of the model alone
	bareAbs float64
}

// tried is a replayed issue with the model's own point forecasts.
type tried struct {
	issue.Forecast
	bare []float32
}

// compare replays the last days of a client with its champion and with a contender.
func (ch *chooser) compare(ctx context.Context, j *job, champion *runner, now time.Time) (verdict, error) {
	cutoff := ch.floor(now.Unix())
	first, end, ok, err := ch.c.Store.Span(j.client)
	if err != nil {
		return verdict{}, err
	}
	if !ok || end-first < leastDays*day {
		return verdict{why: "too few readings"}, nil
	}
	d, err := ch.history(j.client, cutoff-fitSpan, cutoff)
	if err != nil || d == nil {
		return verdict{why: "too few readings"}, err
	}
	var contenders []*head
	if !j.refit {
		if contenders, err = ch.loadHeads(j.model.ID, j.client); err != nil {
			return verdict{}, err
		}
	}
	// If there are no weights from training, or if they lose narrowly, fit weights to the
	// readings before the days of the comparison. If weights from training lose by far, the
	// release is not what it claims to be, even if fitting could improve it.
	v := verdict{why: "too few readings"}
	for _, h := range contenders {
		v, err = ch.contest(d, champion, h, cutoff)
		if err != nil || v.accepted || v.planted || v.judged && v.contender.bareAbs > hopeless*v.champion.bareAbs {
			return v, err
		}
	}
	if end-first < fitDays*day || ctx.Err() != nil {
		return v, ctx.Err()
	}
	h, err := ch.fit(ctx, d, j, champion, cutoff)
	if errors.Is(err, serve.ErrShort) {
		return v, nil
	} else if err != nil {
		return v, err
	}
	if h == nil {
		return verdict{judged: true, champion: tally{n: 1}, contender: tally{n: 1}}, nil
	}
	return ch.contest(d, champion, h, cutoff)
}

// fit fits the personal layers of a client. It returns nil if the shared layers alone are far
// worse than the champion's.
func (ch *chooser) fit(ctx context.Context, d *series.Dataset, j *job, champion *runner, cutoff int64) (*head, error) {
	from := origin(fitted)
	if j.refit {
		from = refit
		var err error
		if d, err = ch.history(j.client, cutoff-refitSpan, cutoff); err != nil {
			return nil, err
		}
	}
	c, how, err := j.model.serve.Fit(ctx, d, 0, cutoff, nil, serve.FitSteps)
	if err != nil {
		return nil, err
	}
	if old := champion.model; old != nil && old != j.model {
		if _, present, err := old.serve.Fit(ctx, d, 0, cutoff, nil, 1); err == nil && how.Before > hopeless*present.Before {
			ch.c.Log.Warn("the shared layers of a model are far worse than those in use", "client", j.client, "model", j.model.Name,
				"loss", how.Before, "loss_in_use", present.Before)
			return nil, nil
		}
	}
	ch.c.Log.Info("fitted personal layers", "client", j.client, "model", j.model.Name, "loss_before", digits(how.Before), "loss_after", digits(how.After))
	return newHead(j.model.ID, j.client, cutoff, from, c), nil
}

// contest compares a contender with the champion.
func (ch *chooser) contest(d *series.Dataset, champion *runner, h *head, cutoff int64) (verdict, error) {
	v := verdict{winner: h}
	x := &runner{}
	ch.issuing.Lock() // a release may arrive in the meantime
	err := ch.fill(x, h)
	ch.issuing.Unlock()
	if err != nil {
		return v, err
	}
	old, err := ch.trial(d, champion, cutoff)
	if err != nil {
		return v, err
	}
	fresh, err := ch.trial(d, x, cutoff)
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
			i := (t - m.Start) / ch.seconds()
			if t >= cutoff || i < 0 || i >= int64(len(m.Load)) || series.Missing(m.Load[i]) || !known(a.Rows[k], ch.point) || !known(b.Rows[k], ch.point) {
				continue
			}
			if k < x.reach() {
				reached++
			}
			if b.Rows[k].Source == issue.Model {
				own++
			}
			load := float64(m.Load[i])
			if base := ch.bareOf(champion, a, k, m, t); k < len(b.bare) && b.bare[k] == b.bare[k] && !math.IsNaN(base) {
				v.champion.bareAbs += math.Abs(load - base)
				v.contender.bareAbs += math.Abs(load - float64(b.bare[k]))
			}
			v.champion.add(ch.c.Levels, ch.point, a.Rows[k].Values, load)
			v.contender.add(ch.c.Levels, ch.point, b.Rows[k].Values, load)
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
	// Few calendar flags are set on the latest days. A model can be accurate on these days and
	// far off when a flag is set for the first time.
	f, err := x.model.serve.TryFlags(d, 0, x.client, cutoff)
	if err != nil {
		return v, err
	}
	if v.planted = f.Outside(); v.planted {
		v.accepted, v.why = false, f.String()
	}
	return v, nil
}

// bareOf returns the bare forecast of the champion's model for row k of an issue, or last
// week's load if there is no model.
func (ch *chooser) bareOf(champion *runner, x tried, k int, m series.Meter, t int64) float64 {
	if champion.model != nil {
		if k < len(x.bare) {
			return float64(x.bare[k])
		}
		return math.NaN()
	}
	return ch.weekBefore(func(u int64) float64 {
		if i := (u - m.Start) / ch.seconds(); u >= m.Start && u < x.Cutoff && i < int64(len(m.Load)) {
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
// model is left out, because over 14 days a few clients would prefer it by chance and lose
// accuracy later.
func (ch *chooser) trial(d *series.Dataset, r *runner, cutoff int64) (map[int64]tried, error) {
	fresh := *r
	var err error
	if fresh.state, err = ch.newState(); err != nil {
		return nil, err
	}
	out := map[int64]tried{}
	err = ch.replay(d, &fresh, nil, cutoff, func(f issue.Forecast, bare []float32) {
		if f.Cutoff >= cutoff-testDays*day && f.Cutoff%between == 0 {
			out[f.Cutoff] = tried{f, bare}
		}
	})
	return out, err
}

// loadHeads returns the client's weights from training the model, which are one head or none. It
// takes the lock.
func (ch *chooser) loadHeads(model, client string) (out []*head, err error) {
	ch.issuing.Lock()
	ids := slices.Clone(ch.heads[headKey{model, client}])
	ch.issuing.Unlock()
	err = ch.db.View(func(tx *bolt.Tx) error {
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
