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
func (s *Service) Host() release.Host { return host{s.chooser, s.wakeWork} }

// host gives releases to the chooser. Its methods take the roster's lock.
type host struct {
	*chooser
	wake func() // called when there may be work
}

// Has reports whether the service has a release, or had it and no longer needs it.
func (h host) Has(id string) bool {
	h.issuing.Lock()
	defer h.issuing.Unlock()
	_, ok := h.models[id]
	return ok || h.dropped[id]
}

// Offer stores a release. Clients that trained in its run begin with the personal layers that
// they kept. The other clients fit their layers when they compare the release.
func (h host) Offer(r release.Release, load func(client string) (release.Kept, bool, error)) error {
	h.issuing.Lock()
	defer h.issuing.Unlock()
	if _, ok := h.models[r.ID]; ok || h.dropped[r.ID] {
		return nil
	}
	now := h.c.Now().Unix()
	rec := modelRecord{
		ID: r.ID, Name: fmt.Sprintf("%s@%d", r.Name, r.Number), Run: r.Run, Version: r.Version, Role: r.Role,
		Received: now, Plan: r.Plan, Shared: r.Weights,
	}
	m := h.newModel(rec)
	if m.err != nil {
		return m.err
	}
	var heads []*head
	for _, name := range h.names {
		if r.Role != release.Personal || load == nil {
			break
		}
		kept, ok, err := load(name)
		if err != nil {
			h.c.Log.Warn("cannot read a client's layers from training", "client", name, "run", r.Run, "error", err)
			continue
		}
		if !ok || len(kept.Scaling) == 0 {
			continue
		}
		scaling, err := serve.DecodeScaling(kept.Scaling)
		if err != nil {
			h.c.Log.Warn("cannot read a client's scaling from training", "client", name, "run", r.Run, "error", err)
			continue
		}
		c, err := m.serve.Client(kept.Personal, scaling)
		if err != nil {
			h.c.Log.Warn("a client's layers from training do not fit the release", "client", name, "release", rec.Name, "error", err)
			continue
		}
		heads = append(heads, newHead(r.ID, name, now, trained, c))
	}
	if err := h.addModel(rec, heads); err != nil {
		return err
	}
	// A server may offer more than the agent should keep in memory.
	if err := h.prune(); err != nil {
		return err
	}
	h.view.refresh(h.roster)
	h.wake()
	return nil
}

// Retain removes the releases that are not in the list. Clients that use a removed release
// return to their previous model at once. Models from a folder stay.
func (h host) Retain(ids []string) error {
	h.issuing.Lock()
	defer h.issuing.Unlock()
	defer h.view.refresh(h.roster)
	if gone := len(h.dropped); gone > 0 {
		maps.DeleteFunc(h.dropped, func(id string, _ bool) bool { return !slices.Contains(ids, id) })
		if gone != len(h.dropped) {
			if err := h.db.Update(h.putDropped); err != nil {
				return err
			}
		}
	}
	for id, m := range h.models {
		if m.Folder || slices.Contains(ids, id) {
			continue
		}
		if err := h.withdraw(m); err != nil {
			return err
		}
	}
	return nil
}

// Reports returns the clients' reports to the server, one a week, after the week has ended. A new
// client reports the previous week at once. Reports of successive days would reveal a single day's
// numbers, so reports are weekly and rounded. The client's own page shows more.
//
// Codes of a faulty meter are reported when they change, at most every ten minutes, because somebody
// must look at the meter. Codes that can reveal an empty house wait for the weekly report.
func (h host) Reports() ([]release.Report, func()) {
	if !h.c.ShareScores {
		return nil, func() {}
	}
	h.issuing.Lock()
	defer h.issuing.Unlock()
	now := h.c.Now().Unix()
	yesterday := now/day - 1
	sunday := yesterday - (yesterday+4)%7 // 1970-01-01 was a Thursday
	var (
		reports []release.Report
		names   []string
		told    = map[string][]string{}
		prompt  []string // clients with a report between two weekly ones
	)
	for _, name := range h.names {
		m := h.members[name]
		found, err := h.view.current(name)
		if err != nil {
			h.c.Log.Error("cannot check readings", "client", name, "error", err)
			continue
		}
		codes := codes(found)
		if soon := m.tell(codes); !slices.Equal(soon, m.rec.Told) && (now-m.told >= tellEvery || now < m.told) {
			reports = append(reports, release.Report{Client: name, Day: now / day, Findings: soon, RelativeMAE: math.NaN(), Coverage: math.NaN(), Interim: true})
			told[name] = soon
			prompt = append(prompt, name)
		}
		// If the last reported day is later than today, the clock was wrong at that time.
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
		if m.champion.model != nil && !m.champion.model.Folder { // the agent does not report a folder's model to the server
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
		h.issuing.Lock()
		defer h.issuing.Unlock()
		err := h.db.Update(func(tx *bolt.Tx) error {
			for _, name := range h.names {
				m := h.members[name]
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
			h.c.Log.Warn("cannot record that reports were sent; they are sent again", "error", err)
		}
	}
}

// tell returns the codes that the server should know now. Codes that indicate a faulty meter
// are up to date; all other codes come from the last report.
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

// promptly reports whether a finding shows a faulty meter. Flat readings and zeros do not show
// a fault, because an empty house can cause them, too.
func promptly(code string) bool {
	return code == "impossible" || code == "unit-jump" || code == "clock-shift"
}

// tellEvery is the minimum time in seconds between two reports of a client's findings.
const tellEvery = 600

// coarse rounds a number to two decimals.
func coarse(x float64) float64 { return math.Round(100*x) / 100 }
