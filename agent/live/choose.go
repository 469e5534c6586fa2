package live

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	bolt "go.etcd.io/bbolt"

	"loadstar/agent/release"
)

// Limits for choosing models.
const (
	testDays  = 14          // a contender is compared over this many recent days
	leastDays = 3           // a comparison needs forecasts on at least this many days
	between   = 6 * 60 * 60 // seconds between the issues that are compared
	tolerance = 1.02        // a contender may be worse by this factor; ties go to the newer model
	// The correction and the blend with last week hide the errors of a bad model. So the
	// bare model is judged as well, with more tolerance. It competes with the champion's
	// bare model, or with last week's load if no model is in use.
	bareTolerance, bareOfWeek = 1.1, 1.5
	hopeless                  = 2.0
	trialDays                 = 7         // number of days for which the previous champion runs silently
	better                    = 0.98      // the previous champion returns if its error is lower by this factor
	fitDays                   = 14        // minimum days of readings for fitting personal layers
	fitSpan                   = 366 * day // span of the readings that are used for fitting
	refitSpan                 = 56 * day
	refitRest                 = 7 * day // minimum time between two refits of a client
	judgeRest                 = day     // time after which a comparison without a result is repeated
	// A client without a model retries a refused model after this time. Last week's load is
	// hard to beat in some weeks and poor in others.
	retryRest = testDays * day
)

// job is the comparison of a client's models, which takes longer than an issue.
type job struct {
	client string
	model  *model
	refit  bool
}

// chooser decides which model each client uses. It compares new models with those in use,
// watches the models in use, and removes unused ones. The roster's lock guards it. A comparison
// takes a long time and runs without the lock (see compare.go).
type chooser struct {
	*roster
	view *view
}

// nextJob returns the next comparison that is due, or nil.
func (ch *chooser) nextJob(now int64) *job {
	models := ch.newest(release.Personal)
	for _, name := range ch.names {
		m := ch.members[name]
		if !m.checked {
			ch.recheck(m)
		}
		// Readings that do not show the client's use of energy are useless for judging models.
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
			if ch.reason(x) != "" || now-m.rec.Judged[x.ID] < rest {
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

// work compares the next due model with the model in use, and applies the verdict. It takes the
// lock before and after the comparison. It reports whether a comparison was due.
func (ch *chooser) work(ctx context.Context) (bool, error) {
	now := ch.c.Now()
	ch.issuing.Lock()
	j := ch.nextJob(now.Unix())
	var champion runner
	if j != nil {
		champion = *ch.members[j.client].champion
	}
	ch.issuing.Unlock()
	if j == nil {
		return false, nil
	}
	verdict, err := ch.compare(ctx, j, &champion, now)
	if ctx.Err() != nil {
		return true, nil
	}
	if err != nil {
		ch.c.Log.Error("cannot compare a model", "client", j.client, "model", j.model.Name, "error", err)
	}
	ch.issuing.Lock()
	defer ch.issuing.Unlock()
	err = ch.settle(j, champion.id, verdict, err, now.Unix())
	ch.view.refresh(ch.roster)
	return true, err
}

// pin sets whether a client keeps its model.
func (ch *chooser) pin(client string, to bool) error {
	return ch.change(client, func(m *member) error {
		m.rec.Pinned = to
		return ch.db.Update(func(tx *bolt.Tx) error { return putMember(tx, m) })
	})
}

// leave returns a client to its previous model at a user's request.
func (ch *chooser) leave(client string) error {
	return ch.change(client, func(m *member) error {
		before := *m
		if err := ch.rollback(m, ch.c.Now().Unix()); err != nil {
			return err
		}
		err := ch.db.Update(func(tx *bolt.Tx) error {
			if err := putState(tx, m.name, asChampion, m.champion); err != nil {
				return err
			}
			return putChoice(tx, m)
		})
		if err != nil {
			*m = before
		}
		return err
	})
}

// change changes a client. It takes the lock.
func (ch *chooser) change(client string, do func(*member) error) error {
	ch.issuing.Lock()
	defer ch.issuing.Unlock()
	m := ch.members[client]
	if m == nil {
		return fmt.Errorf("%s: %w", client, ErrUnknown)
	}
	if err := do(m); err != nil {
		return err
	}
	ch.view.refresh(ch.roster)
	return nil
}

// digits rounds a number for the log to four digits.
func digits(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }

// settle applies a verdict.
func (ch *chooser) settle(j *job, against uint64, v verdict, failed error, now int64) error {
	m := ch.members[j.client]
	if m == nil || m.champion.id != against || ch.models[j.model.ID] == nil {
		return nil // the client has changed its model in the meantime; it is compared again
	}
	if m.rec.Judged == nil {
		m.rec.Judged = map[string]int64{}
	}
	log := ch.c.Log.With("client", j.client, "model", j.model.Name)
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
		return ch.install(m, v.winner, now)
	case j.refit:
		m.rec.Refit, m.rec.WantsRound = now, true
		log.Info("refitting the client's layers did not help; a new round of training might")
	case v.planted:
		m.rec.refuse(j.model.ID)
		log.Warn("the client refuses a model, because its forecasts leave the range of the readings", "reason", v.why)
	default:
		m.rec.refuse(j.model.ID)
		m.rec.Judged[j.model.ID] = now
		log.Warn("the client refuses a model, because its forecasts would become worse")
	}
	return ch.db.Update(func(tx *bolt.Tx) error { return putMember(tx, m) })
}

// install makes a head a client's champion. The previous champion becomes the shadow,
// which runs silently.
func (ch *chooser) install(m *member, h *head, now int64) error {
	rec, w := m.rec, m.watch.anew(now)
	id := ch.numberOf(h)
	err := ch.db.Update(func(tx *bolt.Tx) (err error) {
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
	if !slices.Contains(ch.heads[key], id) {
		ch.heads[key] = append(ch.heads[key], id)
	}
	champion, err := ch.runner(id)
	if err != nil {
		return err
	}
	m.rec, m.shadow, m.champion, m.watch = rec, m.champion, champion, w
	return ch.prune()
}

// follow ends the trial of a client's champion. After some days of forecasts by champion
// and shadow, the better one stays.
func (ch *chooser) follow(m *member, now time.Time, snap *snapshot) error {
	if m.shadow != nil {
		today := snap.cutoff / day
		from := m.rec.TrialFrom/day + 1 // the first whole day of the trial
		t := m.scores.total(from, today, -1)
		days := today - from
		switch {
		case days >= leastDays && t.ShadowN > 0 && t.Shadow < better*t.ShadowServed && t.ShadowAbs < better*t.Both:
			ch.c.Log.Warn("a client returns to its previous model, which is better", "client", m.name,
				"days", days, "pinball_relative", t.Shadow/t.ShadowServed)
			left := m.champion.model
			if err := ch.rollback(m, now.Unix()); err != nil {
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
	return ch.observeDrift(m, now, snap)
}

// rollback returns a client to its previous champion, and refuses the current model. If the
// previous champion ran silently, it continues with its state. The caller stores the client
// and the state of its champion.
func (ch *chooser) rollback(m *member, now int64) error {
	if m.champion.model == nil {
		return errors.New("there is no model to roll back")
	}
	leaves, rec := m.champion, m.rec
	rec.Before, rec.Refused = slices.Clone(rec.Before), slices.Clone(rec.Refused)
	rec.Judged = maps.Clone(rec.Judged)
	rec.back()
	next := m.shadow
	if next == nil || next.id != rec.Champion {
		var err error
		if next, err = ch.runner(rec.Champion); err != nil {
			return err
		}
	}
	if next.model == nil || next.model.ID != leaves.model.ID {
		rec.refuse(leaves.model.ID)
	}
	m.rec, m.champion, m.shadow, m.watch = rec, next, nil, m.watch.anew(now)
	return nil
}

// prune removes unused models except the newest three, and heads that are neither in use nor
// waiting for a comparison. It remembers removed releases, because a release that is received
// again would look newer than those in use.
func (ch *chooser) prune() error {
	const kept = 3
	used := map[uint64]bool{}
	usedModel := map[string]bool{}
	for _, role := range []release.Role{release.Personal, release.Generic} {
		all := ch.newest(role)
		slices.SortStableFunc(all, func(a, b *model) int { // models that fit the site come first
			return cmp.Compare(len(ch.reason(a)), len(ch.reason(b)))
		})
		for i, m := range all {
			usedModel[m.ID] = i < kept || m.ID == ch.folder
		}
	}
	for _, m := range ch.members {
		for _, id := range append([]uint64{m.rec.Champion, m.rec.Shadow}, m.rec.Before...) {
			used[id] = true
		}
	}
	for key, ids := range ch.heads {
		for _, id := range ids {
			if used[id] {
				usedModel[key.model] = true
			}
		}
	}
	return ch.db.Update(func(tx *bolt.Tx) error {
		for key, ids := range ch.heads {
			m := ch.members[key.client]
			waiting := m != nil && usedModel[key.model] && (!slices.Contains(m.rec.Refused, key.model) || m.champion.model == nil && m.rec.retries(key.model))
			left := slices.DeleteFunc(slices.Clone(ids), func(id uint64) bool { return !used[id] && !waiting })
			for _, id := range ids {
				if !slices.Contains(left, id) {
					if err := tx.Bucket(headsBucket).Delete(numberKey(id)); err != nil {
						return err
					}
				}
			}
			if ch.heads[key] = left; len(left) == 0 {
				delete(ch.heads, key)
			}
		}
		for id := range ch.models {
			if !usedModel[id] {
				if err := tx.Bucket(modelsBucket).Delete([]byte(id)); err != nil {
					return err
				}
				ch.dropped[id] = !ch.models[id].Folder && ch.models[id].serve != nil
				delete(ch.models, id)
			}
		}
		return ch.putDropped(tx)
	})
}

// withdraw removes a model. It forgets that clients refused it, because its ID is never used
// again.
func (ch *chooser) withdraw(gone *model) error {
	now := ch.c.Now().Unix()
	ch.c.Log.Info("a release was withdrawn", "release", gone.Name)
	ofModel := map[uint64]bool{}
	for key, ids := range ch.heads {
		if key.model == gone.ID {
			for _, id := range ids {
				ofModel[id] = true
			}
		}
	}
	isGone := func(id uint64) bool { return ofModel[id] }
	for _, name := range ch.names {
		m := ch.members[name]
		changed := m.champion.model == gone
		m.rec.Before = slices.DeleteFunc(m.rec.Before, isGone)
		if isGone(m.rec.Shadow) {
			m.shadow, m.rec.Shadow, m.rec.TrialFrom = nil, 0, 0
		}
		if changed {
			silent := m.shadow
			m.rec.back()
			if silent != nil && silent.id == m.rec.Champion {
				m.champion = silent
			} else {
				r, err := ch.runner(m.rec.Champion)
				if err != nil {
					return err
				}
				m.champion = r
			}
			m.shadow = nil
			m.watch = m.watch.anew(now)
		}
		delete(m.rec.Judged, gone.ID)
		m.rec.Refused = slices.DeleteFunc(m.rec.Refused, func(id string) bool { return id == gone.ID })
	}
	err := ch.db.Update(func(tx *bolt.Tx) error {
		for _, name := range ch.names {
			if err := putChoice(tx, ch.members[name]); err != nil {
				return err
			}
			if err := putState(tx, name, asChampion, ch.members[name].champion); err != nil {
				return err
			}
		}
		for id := range ofModel {
			if err := tx.Bucket(headsBucket).Delete(numberKey(id)); err != nil {
				return err
			}
		}
		return tx.Bucket(modelsBucket).Delete([]byte(gone.ID))
	})
	if err != nil {
		return err
	}
	delete(ch.models, gone.ID)
	for key := range ch.heads {
		if key.model == gone.ID {
			delete(ch.heads, key)
		}
	}
	return nil
}
