package live

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
)

// Site returns what all clients have in common.
func (s *Service) Site() Site {
	return Site{
		Name: s.c.Site.Name, Zone: s.c.Site.Clock, Step: s.c.Site.Interval, H: s.c.H, Levels: slices.Clone(s.c.Levels), Generated: s.c.Site.Generated,
	}
}

// Clients returns the state of all clients and groups, sorted by name.
func (s *Service) Clients() []ClientStatus {
	s.mu.RLock()
	status := s.status // replaced as a whole, never changed
	s.mu.RUnlock()
	var out []ClientStatus
	for _, name := range slices.Sorted(maps.Keys(status)) {
		out = append(out, s.withReadings(status[name]))
	}
	return out
}

// withReadings returns a state with the newest reading of now. The state is that of the
// newest forecast, and readings may have arrived since.
func (s *Service) withReadings(x ClientStatus) ClientStatus {
	names := x.Members
	if len(names) == 0 {
		names = []string{x.Name}
	}
	for i, name := range names {
		var newest int64
		var days float64
		if first, end, ok, err := s.c.Store.Span(name); err == nil && ok {
			newest, days = end, float64(end-first)/day
		}
		if i == 0 {
			x.Newest, x.Days = newest, days
		}
		x.Newest, x.Days = min(x.Newest, newest), min(x.Days, days)
		found, err := s.current(name)
		if err != nil {
			s.c.Log.Error("cannot check readings", "client", name, "error", err)
		}
		for _, code := range codes(found) {
			if !slices.Contains(x.Findings, code) {
				x.Findings = append(x.Findings, code)
			}
		}
	}
	return x
}

// Client returns the state of a client or group.
func (s *Service) Client(name string) (ClientStatus, error) {
	s.mu.RLock()
	x, ok := s.status[name]
	s.mu.RUnlock()
	if !ok {
		return x, ErrUnknown
	}
	return s.withReadings(x), nil
}

// Forecast returns the newest forecast of a client or group. The caller must not change it.
func (s *Service) Forecast(client string) (*Issued, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if _, ok := s.status[client]; !ok {
		return nil, ErrUnknown
	}
	x := s.forecasts[client]
	if x == nil {
		return nil, ErrNoForecast
	}
	return x, nil
}

// Issued returns what was forecast at a lead for the steps in [from, to), with what
// happened. Issues are kept for 7 days after their last step. A step appears if one was
// recorded at that lead, or else at the next longer one.
func (s *Service) Issued(client string, from, to int64, lead time.Duration) ([]Said, error) {
	if _, err := s.Client(client); err != nil {
		return nil, err
	}
	step := s.seconds()
	first := max(int64(lead/time.Second)/step, 1)
	to = min(to, s.floor(s.c.Now().Unix())+int64(s.c.H)*step)
	from = max(from, to-60*day)
	from += (step - from%step) % step
	said := map[int64]Said{}
	err := s.db.View(func(tx *bolt.Tx) error {
		return eachTime(tx, issuedBucket, client, from-int64(s.c.H)*step, to, func(_ int64, b []byte) error {
			_, state, err := issuedFormat.Unwrap(b)
			var r recorded
			if err == nil {
				err = r.decode(state)
			}
			if err != nil {
				return err
			}
			for i := int(first) - 1; i < r.steps(); i++ {
				t := r.Cutoff + int64(i)*step
				if t < from || t >= to {
					continue
				}
				x := Said{Time: t, Cutoff: r.Cutoff, Mean: float64(r.Means[i]), Source: sources[min(int(r.Sources[i]), len(sources)-1)], Actual: math.NaN()}
				for _, v := range r.Values[i*r.Levels:][:r.Levels] {
					x.Values = append(x.Values, float64(v))
				}
				said[t] = x // later issues have shorter leads
			}
			return nil
		})
	})
	if err != nil || len(said) == 0 {
		return nil, err
	}
	times := slices.Sorted(maps.Keys(said))
	begin, end := times[0], times[len(times)-1]+step
	load, err := s.load(client, s.membersOf(client), begin, end)
	if err != nil {
		return nil, err
	}
	out := make([]Said, 0, len(times))
	for _, t := range times {
		x := said[t]
		x.Actual = float64(load[(t-begin)/step])
		out = append(out, x)
	}
	return out, nil
}

// Readings returns the load of a client, or the sum of a group's members, in the steps of
// [from, to), NaN where it is missing. Both times are moved back to the grid.
func (s *Service) Readings(client string, from, to int64) (begin int64, load []float32, err error) {
	x, err := s.Client(client)
	if err != nil {
		return 0, nil, err
	}
	begin = s.floor(from)
	load, err = s.load(client, x.Members, begin, max(s.floor(to), begin))
	return begin, load, err
}

// membersOf returns the members of a group, or nil for a client.
func (s *Service) membersOf(name string) []string {
	x, _ := s.Client(name) // an unknown name has no members
	return x.Members
}

// Scores returns the errors of a client's forecasts over 1, 7 and 28 days, for all leads
// together and for blocks of leads.
func (s *Service) Scores(client string) ([]Score, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	x, ok := s.scores[client]
	if !ok {
		return nil, ErrUnknown
	}
	return slices.Clone(x), nil
}

// Models returns the models that the agent has, the newest first.
func (s *Service) Models() []ModelStatus {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Clone(s.modelStatus)
}

// IssueNow makes a forecast of a client or group at once, from all readings that are known.
// It does not change what the client learns.
func (s *Service) IssueNow(ctx context.Context, client string) (*Issued, error) {
	if err := s.trusted(); err != nil {
		return nil, err
	}
	if _, err := s.Client(client); err != nil {
		return nil, err
	}
	s.issuing.Lock()
	defer s.issuing.Unlock()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	now := s.c.Now()
	cutoff := s.floor(now.Unix())
	for _, g := range s.groups {
		if g.name == client {
			if cutoff > s.newestCutoff() {
				if err := s.issueAll(now, cutoff); err != nil {
					return nil, err
				}
			}
			return s.Forecast(client)
		}
	}
	m := s.members[client]
	tails, err := s.tails([]string{client}, cutoff)
	if err != nil {
		return nil, err
	}
	state, err := m.champion.state.AppendBinary(nil)
	if err != nil {
		return nil, err
	}
	copied := *m.champion
	if copied.state, err = s.newState(); err == nil {
		err = copied.state.UnmarshalBinary(state)
	}
	if err != nil {
		return nil, err
	}
	once := &member{name: client, rec: m.rec, champion: &copied, profile: m.profile}
	meter, err := tails.Meter(0)
	if err != nil {
		return nil, err
	}
	x, _, err := s.issueOne(once, newFrames(tails), meter, now, cutoff)
	if err != nil {
		return nil, err
	}
	m.rec.Sequence = once.rec.Sequence
	err = s.db.Update(func(tx *bolt.Tx) error {
		return put(tx, newestBucket, []byte(client), newestFormat, encodeIssued(x))
	})
	if err != nil {
		return nil, err
	}
	s.publish([]*Issued{x}, s.newestCutoff())
	return x, nil
}

func (s *Service) newestCutoff() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.last
}

// Pin keeps a client's model until Unpin.
func (s *Service) Pin(client string) error { return s.pin(client, true) }

// Unpin allows a client's model to change again.
func (s *Service) Unpin(client string) error { return s.pin(client, false) }

func (s *Service) pin(client string, to bool) error {
	return s.change(client, func(m *member) error {
		m.rec.Pinned = to
		return s.db.Update(func(tx *bolt.Tx) error { return putMember(tx, m) })
	})
}

// Rollback returns a client to the model that it used before, and refuses the present one.
func (s *Service) Rollback(client string) error {
	return s.change(client, func(m *member) error {
		before := *m
		if err := s.rollback(m, s.c.Now().Unix()); err != nil {
			return err
		}
		err := s.db.Update(func(tx *bolt.Tx) error {
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

func (s *Service) change(client string, do func(*member) error) error {
	s.issuing.Lock()
	defer s.issuing.Unlock()
	m := s.members[client]
	if m == nil {
		return fmt.Errorf("%s: %w", client, ErrUnknown)
	}
	if err := do(m); err != nil {
		return err
	}
	s.refresh()
	return nil
}

// ErrClock means that the time cannot be trusted, so nothing is forecast.
var ErrClock = errors.New("the system's clock cannot be trusted")

func (s *Service) trusted() error {
	if s.c.Clock == nil {
		return nil
	}
	if err := s.c.Clock(); err != nil {
		return fmt.Errorf("%w: %w", ErrClock, err)
	}
	return nil
}

// Ready returns nil if the service issues forecasts, or an error that says why it does not.
func (s *Service) Ready() error {
	if err := s.trusted(); err != nil {
		return err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.failure == nil && s.last == 0 {
		return ErrNoForecast
	}
	return s.failure
}

// Counters returns totals since the agent started.
func (s *Service) Counters() Counters {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return Counters{Issues: maps.Clone(s.counters.Issues), Rows: maps.Clone(s.counters.Rows), DriftAlarms: maps.Clone(s.counters.DriftAlarms)}
}

// Subscribe calls f with all forecasts of an issue, after they were stored. F must not
// block for long or call the service's writing methods, and is not called concurrently.
func (s *Service) Subscribe(f func([]*Issued)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subscribers = append(s.subscribers, f)
}
