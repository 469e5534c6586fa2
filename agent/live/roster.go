package live

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"

	bolt "go.etcd.io/bbolt"

	"loadstar/forecast/issue"
)

// The roles of a client's states.
const (
	asChampion = "champion"
	asShadow   = "shadow"
	asGroup    = "group"
)

// roster contains the clients and groups, and the catalog of models. Its lock is issuing, which
// is held while forecasts are made or the choice of models changes. The caller of a method of
// roster, catalog, issuer or chooser must hold it, unless the method takes the lock itself.
type roster struct {
	*catalog
	issuing sync.Mutex
	names   []string // names of the clients, sorted
	members map[string]*member
	groups  []*group
}

// member is a client. Only the holder of roster.issuing changes it.
type member struct {
	name     string
	rec      clientRecord
	champion *runner
	shadow   *runner // nil if there is no trial
	scores   *history
	watch    *watch
	findings []Finding
	checked  bool // the findings have been computed since the service was opened
	// told is the time at which findings were last reported since the service was opened, in
	// Unix seconds.
	told     int64
	revision uint64
	// profile is the generic model with the scaling of the client, created once a day.
	profile generic
}

// set sets the clients and groups. Clients and groups that stay keep their state in memory.
func (ro *roster) set(clients []string, groups map[string][]string) error {
	members := map[string]*member{}
	for _, name := range clients {
		m := ro.members[name]
		if m == nil {
			var err error
			if m, err = ro.openMember(name); err != nil {
				return fmt.Errorf("client %s: %w", name, err)
			}
		}
		members[name] = m
	}
	var all []*group
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		g, err := ro.openGroup(name, groups[name])
		if err != nil {
			return fmt.Errorf("group %s: %w", name, err)
		}
		all = append(all, g)
	}
	ro.members, ro.groups = members, all
	ro.names = slices.Sorted(maps.Keys(members))
	return nil
}

// all returns the names of clients and groups.
func (ro *roster) all() []string {
	names := slices.Clone(ro.names)
	for _, g := range ro.groups {
		names = append(names, g.name)
	}
	return names
}

// restore returns the newest forecasts from the file, and continues their sequences.
func (ro *roster) restore() (newest []*Issued, err error) {
	err = ro.db.View(func(tx *bolt.Tx) error {
		for _, name := range ro.all() {
			b, err := get(tx, newestBucket, []byte(name), newestFormat)
			if err != nil {
				return err
			}
			if b == nil {
				continue
			}
			x, err := decodeIssued(b)
			if err != nil {
				return err
			}
			newest = append(newest, x)
		}
		return nil
	})
	for _, x := range newest {
		if m := ro.members[x.Client]; m != nil {
			m.rec.Sequence = max(m.rec.Sequence, x.Sequence)
		}
		for _, g := range ro.groups {
			if g.name == x.Client {
				g.sequence = max(g.sequence, x.Sequence)
			}
		}
	}
	return newest, err
}

// openMember loads a client.
func (ro *roster) openMember(name string) (*member, error) {
	m := &member{name: name}
	err := ro.db.View(func(tx *bolt.Tx) error {
		if err := getJSON(tx, clientsBucket, []byte(name), clientFormat, &m.rec); err != nil {
			return err
		}
		b, err := get(tx, scoresBucket, []byte(name), scoreFormat)
		if err != nil {
			return err
		}
		m.scores, m.watch, err = decodeScores(b)
		return err
	})
	if err != nil {
		return nil, err
	}
	if m.champion, err = ro.runner(m.rec.Champion); err != nil {
		ro.c.Log.Error("cannot use a client's model; the client uses fallbacks", "client", name, "error", err)
		m.rec.back()
		if m.champion, err = ro.runner(0); err != nil {
			return nil, err
		}
		m.rec.Champion = 0
	}
	if m.rec.TrialFrom != 0 {
		if m.shadow, err = ro.runner(m.rec.Shadow); err != nil {
			ro.c.Log.Error("cannot use a client's earlier model", "client", name, "error", err)
			m.shadow, m.rec.TrialFrom = nil, 0
		}
	}
	return m, ro.db.View(func(tx *bolt.Tx) error {
		if err := ro.loadState(tx, name, asChampion, m.champion); err != nil || m.shadow == nil {
			return err
		}
		return ro.loadState(tx, name, asShadow, m.shadow)
	})
}

// A stored state begins with the number of the head that it belongs to.

// loadState loads the state of a runner if the stored state belongs to it. Otherwise
// the state stays empty and is replayed from the readings.
func (ro *roster) loadState(tx *bolt.Tx, name, role string, r *runner) error {
	b, err := get(tx, statesBucket, stateKey(name, role), stateFormat)
	if b == nil || err != nil {
		return err
	}
	if len(b) < 8 || string(b[:8]) != string(numberKey(r.id)) {
		return nil
	}
	if err := r.state.UnmarshalBinary(b[8:]); err != nil {
		// The configuration has changed, for example the number of hours to forecast.
		ro.c.Log.Warn("cannot continue a client's state; it is replayed from its readings", "client", name, "reason", err)
		r.state, err = ro.newState()
		return err
	}
	return nil
}

func putState(tx *bolt.Tx, name, role string, r *runner) error {
	b, err := r.state.AppendBinary(numberKey(r.id))
	if err != nil {
		return fmt.Errorf("client %s: %w", name, err)
	}
	return put(tx, statesBucket, stateKey(name, role), stateFormat, b)
}

func stateKey(name, role string) []byte { return []byte(name + "\x00" + role) }

// putMember stores a client's record.
func putMember(tx *bolt.Tx, m *member) error {
	return putJSON(tx, clientsBucket, []byte(m.name), clientFormat, &m.rec)
}

// putChoice stores a client's record, its scores and its watch.
func putChoice(tx *bolt.Tx, m *member) error {
	if err := put(tx, scoresBucket, []byte(m.name), scoreFormat, encodeScores(m.scores, m.watch)); err != nil {
		return err
	}
	return putMember(tx, m)
}

// spy is a forecaster that remembers its newest point forecasts.
type spy struct {
	issue.Forecaster
	bare []float32 // by step after the cutoff, NaN where there is none
}

func (s *spy) Forecast(out []float64, cutoff int64) error {
	err := s.Forecaster.Forecast(out, cutoff)
	if err != nil {
		return err
	}
	first, n := s.Span()
	levels, point := s.Levels()
	width := max(len(levels), 1)
	s.bare = make([]float32, first-1+n)
	for i := range s.bare {
		s.bare[i] = nan
		if j := i - (first - 1); j >= 0 {
			s.bare[i] = float32(out[j*width+point])
		}
	}
	return nil
}

// describeModels lists the models and their clients.
func (ro *roster) describeModels() []ModelStatus {
	var out []ModelStatus
	for _, m := range ro.models {
		x := ModelStatus{ModelRef: m.ref(), Received: m.Received}
		for _, name := range ro.names {
			c := ro.members[name]
			switch {
			case c.champion.model == m && c.shadow != nil:
				x.Trial = append(x.Trial, name)
				x.Serving = append(x.Serving, name)
			case c.champion.model == m:
				x.Serving = append(x.Serving, name)
			case slices.Contains(c.rec.Refused, m.ID):
				x.Refused = append(x.Refused, name)
			}
		}
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b ModelStatus) int {
		return cmp.Or(cmp.Compare(b.Received, a.Received), cmp.Compare(b.Version, a.Version), cmp.Compare(a.Release, b.Release))
	})
	return out
}
