package live

import (
	"fmt"
	"maps"
	"math"
	"slices"

	bolt "go.etcd.io/bbolt"

	"loadstar/agent/release"
	"loadstar/fed/serve"
)

// Host returns the receiver of a server's releases.
func (s *Service) Host() release.Host { return host{s} }

type host struct{ s *Service }

// Has reports whether the service has a release, or had it and does not need it any more.
func (h host) Has(id string) bool {
	h.s.issuing.Lock()
	defer h.s.issuing.Unlock()
	_, ok := h.s.models[id]
	return ok || h.s.dropped[id]
}

// Offer stores a release. Clients that took part in its run begin with the personal layers
// that they kept; for the others, layers are fitted when the release is compared.
func (h host) Offer(r release.Release, load func(client string) (release.Kept, bool, error)) error {
	s := h.s
	s.issuing.Lock()
	defer s.issuing.Unlock()
	if _, ok := s.models[r.ID]; ok || s.dropped[r.ID] {
		return nil
	}
	now := s.c.Now().Unix()
	rec := modelRecord{
		ID: r.ID, Name: fmt.Sprintf("%s@%d", r.Name, r.Number), Run: r.Run, Version: r.Version, Role: r.Role,
		Received: now, Plan: r.Plan, Shared: r.Weights,
	}
	m := s.newModel(rec)
	if m.err != nil {
		return m.err
	}
	var heads []*head
	for _, name := range s.names {
		if r.Role != release.Personal || load == nil {
			break
		}
		kept, ok, err := load(name)
		if err != nil {
			s.c.Log.Warn("cannot read what a client kept from training", "client", name, "run", r.Run, "error", err)
			continue
		}
		if !ok || len(kept.Scaling) == 0 {
			continue
		}
		scaling, err := serve.DecodeScaling(kept.Scaling)
		if err != nil {
			s.c.Log.Warn("cannot read the scaling that a client kept from training", "client", name, "run", r.Run, "error", err)
			continue
		}
		c, err := m.serve.Client(kept.Personal, scaling)
		if err != nil {
			s.c.Log.Warn("what a client kept from training does not fit the release", "client", name, "release", rec.Name, "error", err)
			continue
		}
		heads = append(heads, newHead(r.ID, name, now, trained, c))
	}
	if err := s.addModel(rec, heads); err != nil {
		return err
	}
	// A server may offer more than the agent should keep in memory.
	if err := s.prune(); err != nil {
		return err
	}
	s.refresh()
	s.wakeWork()
	return nil
}

// Retain removes the releases that are not in the list. Clients that use one of them return
// to the model before at once. Models from a folder stay.
func (h host) Retain(ids []string) error {
	s := h.s
	s.issuing.Lock()
	defer s.issuing.Unlock()
	defer s.refresh()
	if gone := len(s.dropped); gone > 0 {
		maps.DeleteFunc(s.dropped, func(id string, _ bool) bool { return !slices.Contains(ids, id) })
		if gone != len(s.dropped) {
			if err := s.db.Update(s.putDropped); err != nil {
				return err
			}
		}
	}
	for id, m := range s.models {
		if m.Folder || slices.Contains(ids, id) {
			continue
		}
		if err := s.withdraw(m); err != nil {
			return err
		}
	}
	return nil
}

// withdraw removes a model. It forgets that clients refused it, since its ID does not come
// back.
func (s *Service) withdraw(gone *model) error {
	now := s.c.Now().Unix()
	s.c.Log.Info("a release was withdrawn", "release", gone.Name)
	ofModel := map[uint64]bool{}
	for key, ids := range s.heads {
		if key.model == gone.ID {
			for _, id := range ids {
				ofModel[id] = true
			}
		}
	}
	isGone := func(id uint64) bool { return ofModel[id] }
	for _, name := range s.names {
		m := s.members[name]
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
				r, err := s.runner(m.rec.Champion)
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
	err := s.db.Update(func(tx *bolt.Tx) error {
		for _, name := range s.names {
			if err := putChoice(tx, s.members[name]); err != nil {
				return err
			}
			if err := putState(tx, name, asChampion, s.members[name].champion); err != nil {
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
	delete(s.models, gone.ID)
	for key := range s.heads {
		if key.model == gone.ID {
			delete(s.heads, key)
		}
	}
	return nil
}

// Reports returns what clients let the server know, once a week after the week has ended. A new
// client reports at once, for the week before. Somebody who knows the numbers of two days could
// otherwise compute those of a day, so they are also rounded. The client's own page shows more.
//
// Codes that say that a meter is wrong are reported as soon as they change, at most once in ten minutes,
// because somebody must look at it. Those that can hint at an empty house wait for the weekly report.
func (h host) Reports() ([]release.Report, func()) {
	s := h.s
	if !s.c.ShareScores {
		return nil, func() {}
	}
	s.issuing.Lock()
	defer s.issuing.Unlock()
	now := s.c.Now().Unix()
	yesterday := now/day - 1
	sunday := yesterday - (yesterday+4)%7 // 1970-01-01 was a Thursday
	var (
		reports []release.Report
		names   []string
		told    = map[string][]string{}
		prompt  []string // clients with a report between two weekly ones
	)
	for _, name := range s.names {
		m := s.members[name]
		found, err := s.current(name)
		if err != nil {
			s.c.Log.Error("cannot check readings", "client", name, "error", err)
			continue
		}
		codes := codes(found)
		if soon := m.tell(codes); !slices.Equal(soon, m.rec.Told) && (now-m.told >= tellEvery || now < m.told) {
			reports = append(reports, release.Report{Client: name, Day: now / day, Findings: soon, RelativeMAE: math.NaN(), Coverage: math.NaN(), Interim: true})
			told[name] = soon
			prompt = append(prompt, name)
		}
		// A later day than today was reported while the clock was wrong.
		if m.rec.Reported >= sunday && m.rec.Reported <= yesterday+1 || len(m.scores.days) == 0 {
			continue
		}
		t := m.scores.total(yesterday-27, yesterday, -1)
		r := release.Report{
			Client: name, Day: sunday, Shares: m.shares(), RelativeMAE: math.NaN(), Coverage: math.NaN(),
			Drift: m.watch.alarm(), WantsRound: m.rec.WantsRound,
		}
		if t.Week > 0 {
			r.RelativeMAE = coarse(t.WeekAbs / t.Week)
		}
		if t.N > 0 {
			r.Coverage = coarse(float64(t.Hits) / float64(t.N))
		}
		if m.champion.model != nil && !m.champion.model.Folder { // a folder's model is no business of the server
			r.Release = m.champion.model.ID
		}
		for source, share := range r.Shares {
			r.Shares[source] = coarse(share)
		}
		r.Findings = codes
		told[name] = codes
		reports = append(reports, r)
		names = append(names, name)
	}
	return reports, func() {
		s.issuing.Lock()
		defer s.issuing.Unlock()
		err := s.db.Update(func(tx *bolt.Tx) error {
			for _, name := range s.names {
				m := s.members[name]
				codes, news := told[name]
				week := slices.Contains(names, name)
				if news {
					m.rec.Told = codes
				}
				if slices.Contains(prompt, name) {
					m.told = now
				}
				if week {
					m.rec.Reported = sunday
				}
				if news || week {
					if err := putMember(tx, m); err != nil {
						return err
					}
				}
			}
			return nil
		})
		if err != nil {
			s.c.Log.Warn("cannot record that reports were sent; they are sent again", "error", err)
		}
	}
}

// tell returns the codes that the server should know now: those that say that the meter is wrong,
// and of the others what the last report said.
func (m *member) tell(codes []string) (soon []string) {
	for _, code := range codes {
		if promptly(code) {
			soon = append(soon, code)
		}
	}
	for _, code := range m.rec.Told {
		if !promptly(code) {
			soon = append(soon, code)
		}
	}
	return soon
}

// promptly reports whether a finding says that a meter is wrong. An empty house can be flat or have
// zeros.
func promptly(code string) bool {
	return code == "impossible" || code == "unit-jump" || code == "clock-shift"
}

// tellEvery is the minimum time in seconds between two reports of a client's findings.
const tellEvery = 600

// coarse rounds a number to two decimals.
func coarse(x float64) float64 { return math.Round(100*x) / 100 }
