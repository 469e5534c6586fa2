package gateway

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/ledger"
)

// mirror contains a copy of the open leases in memory, so that most calls need no query. Only
// the ledger is authoritative. The mirror assigns tasks and lets results through to be counted,
// but gives no verdicts. At worst, an outdated copy causes an agent to waste work, because the
// counting transaction checks the leases.
//
// A counted task must not be assigned again, because its agent would take the verdict on the
// first result for a verdict on the second. A gateway knows its own responses to an agent. It
// therefore takes tasks from memory only for an agent that has not called another gateway in
// the meantime (see session).
//
// A mirror may be dropped at any time.
type mirror struct {
	ledger *ledger.Ledger
	name   func() string

	mu      sync.Mutex
	session string    // a request that names another session gets its tasks from the ledger
	read    time.Time // start of the last reading of the stamps; zero if nothing is known
	stamps  ledger.Stamps
	agents  map[string]*leasesOf
	// Changes that calls make while leases are being loaded take precedence over the loaded
	// leases, because they are newer.
	loading bool
	gone    map[ledger.Turn]bool       // turns that have ended
	asked   map[string]bool            // agents whose leases were requested from the ledger
	held    map[string][]chan struct{} // held calls of agents
}

// leasesOf contains the known leases of an agent.
type leasesOf struct {
	tasks map[ledger.Turn]ledger.Task
	// unknown means that the ledger must be queried.
	unknown bool
}

const (
	// readEvery is the interval at which a gateway checks, without a notification, whether its
	// copies are outdated.
	readEvery = 500 * time.Millisecond
	// readFor is the time for which a gateway relies on its copies. A revocation in another
	// process takes effect in this one within this time.
	readFor = time.Second
)

func newMirror(l *ledger.Ledger, name func() string) *mirror {
	m := &mirror{ledger: l, name: name, held: map[string][]chan struct{}{}}
	m.drop()
	return m
}

// drop discards the whole copy.
func (m *mirror) drop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.session = m.name()
	m.read, m.stamps, m.agents = time.Time{}, ledger.Stamps{}, map[string]*leasesOf{}
	m.gone, m.asked = map[ledger.Turn]bool{}, map[string]bool{}
}

func (m *mirror) fresh(now time.Time) bool { return now.Sub(m.read) < readFor }

// current returns the name of the mirror, and whether it is up to date.
func (m *mirror) current() (session string, fresh bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.session, m.fresh(time.Now())
}

// refresh loads the leases of runs that have new leases, with one query per run. It returns the
// stamp that changes with revocations.
func (m *mirror) refresh(ctx context.Context) (revocations int64, err error) {
	m.mu.Lock()
	session := m.session
	m.mu.Unlock()
	began := time.Now()
	stamps, err := m.ledger.Counter.Stamps(ctx)
	if err != nil {
		return 0, err
	}
	m.mu.Lock()
	old, first := m.stamps, m.read.IsZero()
	m.loading = true
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.loading = false
		clear(m.gone)
		clear(m.asked)
	}()
	loaded := map[string][]ledger.OpenLease{}
	for run, stamp := range stamps.Leases {
		// Reload after a revocation too, because a revoked client loses its leases.
		if first || old.Leases[run] != stamp || old.Revocations != stamps.Revocations {
			if loaded[run], err = m.ledger.Counter.OpenLeases(ctx, run); err != nil {
				return 0, err
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.session != session { // the mirror was dropped in the meantime
		return stamps.Revocations, nil
	}
	for run := range old.Leases {
		if _, ok := stamps.Leases[run]; !ok {
			m.replace(run, nil)
		}
	}
	for run, leases := range loaded {
		m.replace(run, leases)
	}
	m.stamps, m.read = stamps, began
	return stamps.Revocations, nil
}

// replace replaces the leases of a run, and wakes the held calls of agents that have leases in
// it.
func (m *mirror) replace(run string, leases []ledger.OpenLease) {
	for _, of := range m.agents {
		maps.DeleteFunc(of.tasks, func(t ledger.Turn, _ ledger.Task) bool { return t.Run == run })
	}
	for _, l := range leases {
		if !m.gone[l.Turn] {
			m.of(l.Agent).tasks[l.Turn] = l.Task
			m.wake(l.Agent)
		}
	}
	for agent := range m.asked {
		m.of(agent).unknown = true // the requested leases may be newer or older
		m.wake(agent)
	}
	// Last, because most agents have leases in the next round too.
	maps.DeleteFunc(m.agents, func(_ string, of *leasesOf) bool { return len(of.tasks) == 0 && !of.unknown })
}

func (m *mirror) of(agent string) *leasesOf {
	x := m.agents[agent]
	if x == nil {
		x = &leasesOf{tasks: map[ledger.Turn]ledger.Task{}}
		m.agents[agent] = x
	}
	return x
}

// tasks returns an agent's open leases. It returns false if the ledger must be queried.
func (m *mirror) tasks(agent string) (all []ledger.Task, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.fresh(time.Now()) {
		return nil, false
	}
	of := m.agents[agent]
	if of == nil {
		return nil, true
	}
	if of.unknown {
		return nil, false
	}
	return slices.Collect(maps.Values(of.tasks)), true
}

// set stores the leases that the ledger has returned for an agent.
func (m *mirror) set(agent string, tasks []ledger.Task) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.loading {
		m.asked[agent] = true
	}
	of := m.of(agent)
	of.unknown = false
	clear(of.tasks)
	for _, t := range tasks {
		of.tasks[t.Turn] = t
	}
}

// hasLeases reports whether an agent has leases for all turns of a result.
func (m *mirror) hasLeases(agent string, r *v1.Result) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	of := m.agents[agent]
	if of == nil || of.unknown || !m.fresh(time.Now()) {
		return false
	}
	for _, s := range r.Shares {
		if t, ok := of.tasks[ledger.Turn{Run: r.Run, Round: r.Round, Client: s.Client}]; !ok || t.Version != r.Version {
			return false
		}
	}
	return true
}

// counted records that a result was counted.
func (m *mirror) counted(a *ledger.Arrival, run string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	of := m.agents[a.Agent]
	for _, s := range a.Shares {
		t := ledger.Turn{Run: run, Round: a.Round, Client: s.Client}
		if m.loading {
			m.gone[t] = true
		}
		if of != nil {
			delete(of.tasks, t)
		}
	}
}

// forget makes the next call of an agent read its leases from the ledger.
func (m *mirror) forget(agent string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.loading {
		m.asked[agent] = true
	}
	m.of(agent).unknown = true
}

// watch returns a channel that receives a value when an agent may have new leases, and a
// function that stops watching.
func (m *mirror) watch(agent string) (woken <-chan struct{}, stop func()) {
	ch := make(chan struct{}, 1)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held[agent] = append(m.held[agent], ch)
	return ch, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.held[agent] = slices.DeleteFunc(m.held[agent], func(x chan struct{}) bool { return x == ch })
		if len(m.held[agent]) == 0 {
			delete(m.held, agent)
		}
	}
}

// wake ends the wait of an agent's held calls. The caller must hold the lock.
func (m *mirror) wake(agent string) {
	for _, ch := range m.held[agent] {
		select {
		case ch <- struct{}{}:
		default: // already awake
		}
	}
}

// wakeAll ends the wait of all held calls.
func (m *mirror) wakeAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for agent := range m.held {
		m.wake(agent)
	}
}

// wakeOne ends the wait of an agent's held calls.
func (m *mirror) wakeOne(agent string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wake(agent)
}
