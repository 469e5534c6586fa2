package live

import (
	"fmt"

	bolt "go.etcd.io/bbolt"

	"loadstar/forecast/issue"
)

// The roles of the states of a client.
const (
	asChampion = "champion"
	asShadow   = "shadow"
	asGroup    = "group"
)

// member is a client. Only the holder of Service.issuing changes it.
type member struct {
	name     string
	rec      clientRecord
	champion *runner
	shadow   *runner // nil if there is no trial
	scores   *history
	watch    *watch
	findings []Finding
	checked  bool // findings are known since the service was opened
	// told is when findings were last reported since the service was opened, in Unix seconds.
	told     int64
	revision uint64
	// profile is the generic model with the scaling of the client, made once a day.
	profile generic
}

// openMember loads a client.
func (s *Service) openMember(name string) (*member, error) {
	m := &member{name: name}
	err := s.db.View(func(tx *bolt.Tx) error {
		if _, err := getJSON(tx, clientsBucket, []byte(name), clientFormat, &m.rec); err != nil {
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
	if m.champion, err = s.runner(m.rec.Champion); err != nil {
		s.c.Log.Error("cannot use a client's model; its fallbacks serve", "client", name, "error", err)
		m.rec.back()
		if m.champion, err = s.runner(0); err != nil {
			return nil, err
		}
		m.rec.Champion = 0
	}
	if m.rec.TrialFrom != 0 {
		if m.shadow, err = s.runner(m.rec.Shadow); err != nil {
			s.c.Log.Error("cannot use a client's earlier model", "client", name, "error", err)
			m.shadow, m.rec.TrialFrom = nil, 0
		}
	}
	return m, s.db.View(func(tx *bolt.Tx) error {
		if err := s.loadState(tx, name, asChampion, m.champion); err != nil || m.shadow == nil {
			return err
		}
		return s.loadState(tx, name, asShadow, m.shadow)
	})
}

// A stored state begins with the number of the head that it belongs to.

// loadState loads the state of a runner, if the stored one belongs to it. Otherwise the
// state stays empty, and is replayed from the readings.
func (s *Service) loadState(tx *bolt.Tx, name, role string, r *runner) error {
	b, err := get(tx, statesBucket, stateKey(name, role), stateFormat)
	if b == nil || err != nil {
		return err
	}
	if len(b) < 8 || string(b[:8]) != string(numberKey(r.id)) {
		return nil
	}
	if err := r.state.UnmarshalBinary(b[8:]); err != nil {
		// The configuration has changed, for example the number of hours to forecast.
		s.c.Log.Warn("cannot continue a client's state; it is replayed from its readings", "client", name, "reason", err)
		r.state, err = s.newState()
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

// spy is a forecaster that keeps its newest point forecasts.
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
