// Package round implements the server side of federated training without any I/O. [Machine]
// selects clients and closes rounds, [Fold] sums the counted updates, and [Server] stores and
// updates the shared weights. The coordinator drives the package with events from its ledger
// and a real clock. The simulator drives it with a virtual clock.
package round

import (
	"math/rand/v2"
	"slices"
	"time"

	"loadstar/fed"
)

// Assignment names a client that is asked to train in a round. Clients are numbered from
// 0, in the order of their names.
type Assignment struct {
	Client  int `json:"client"`
	Round   int `json:"round"`
	Version int `json:"version"`
}

// Verdict is the decision on whether a returned update counts.
type Verdict int

// Closed means that the round is over, or the client was not asked. Counted means that the
// next merge includes the update exactly once, even if the client returns it several
// times.
const (
	Closed Verdict = iota
	Counted
)

// Outcome describes how a round ended.
type Outcome struct {
	Round   int
	Version int // version of the shared weights before the merge
	Opened  time.Duration
	Closed  time.Duration
	// Merged is false if the round was abandoned and its counted updates were discarded.
	Merged bool
	Asked  int
	Lost   int
	// Late is the number of clients that were still training when the round closed and
	// whose updates will be rejected.
	Late int
	// Counted lists the assignments in the merge, in ascending order of client.
	Counted []Assignment
}

// Machine selects clients and decides when a round closes. Its decisions depend only on
// the sequence of calls and their times, so a repeated run makes the same decisions. Calls
// must be made in chronological order. It is not safe for concurrent use.
type Machine struct {
	scheduler fed.Scheduler
	seed      uint64
	fleet     int
	state     state
	running   map[int]Assignment
	waiting   map[int]Assignment
	lost      map[int]Assignment // clients lost in this round
	// away contains the clients that Ask does not select. It is not part of the saved state.
	away map[int]struct{}
}

// state is a machine's state, except for the lists of running, waiting and lost clients.
type state struct {
	Round   int           `json:"round"`
	Version int           `json:"version"`
	Opened  time.Duration `json:"opened"`
	Asked   int           `json:"asked"`
	Lost    int           `json:"lost"`
	// Draws is the number of times that Ask has selected clients in this round.
	Draws int `json:"draws"`
}

// NewMachine returns a machine that opens its first round at time 0.
func NewMachine(s fed.Scheduler, seed uint64, fleet int) *Machine {
	return &Machine{
		scheduler: s, seed: seed, fleet: fleet,
		running: map[int]Assignment{}, waiting: map[int]Assignment{}, lost: map[int]Assignment{}, away: map[int]struct{}{},
	}
}

// Round returns the number of the current round. Because rounds count from 0, it equals
// the number of closed rounds.
func (m *Machine) Round() int { return m.state.Round }

// Situation returns the scheduler's input at the given time.
func (m *Machine) Situation(now time.Duration) fed.Situation {
	return fed.Situation{
		Now: now, Opened: m.state.Opened, Asked: m.state.Asked,
		Running: len(m.running), Waiting: len(m.waiting), Lost: m.state.Lost,
	}
}

// Ask returns the clients to ask now, in ascending order. It does not select clients that are
// training, that have an update waiting for a merge, that were lost in this round, or that are
// away. No client gets the same round twice.
func (m *Machine) Ask(now time.Duration) []Assignment {
	idle := m.idle()
	n := min(m.scheduler.Ask(m.Situation(now)), idle)
	if n <= 0 {
		return nil
	}
	rng := fed.Rand(m.seed, "cohort", m.state.Round<<16|m.state.Draws&0xffff, "")
	clients := m.draw(n, idle, rng)
	slices.Sort(clients)
	asked := make([]Assignment, n)
	for i, c := range clients {
		asked[i] = Assignment{Client: c, Round: m.state.Round, Version: m.state.Version}
		m.running[c] = asked[i]
	}
	m.state.Asked += n
	m.state.Draws++
	return asked
}

// idle returns the number of clients that Ask may select.
func (m *Machine) idle() int {
	return m.fleet - len(m.running) - len(m.waiting) - len(m.lost) - len(m.away)
}

// SetAway replaces the set of clients that Ask does not select because they are unlikely to
// answer. It ignores clients that are taking part in the current round.
func (m *Machine) SetAway(clients []int) {
	clear(m.away)
	for _, c := range clients {
		if !m.busy(c) {
			m.away[c] = struct{}{}
		}
	}
}

// TakeBack records that an assignment just returned by Ask was not sent, because the client is
// unavailable.
func (m *Machine) TakeBack(a Assignment) {
	if runs, ok := m.running[a.Client]; !ok || runs != a {
		return
	}
	delete(m.running, a.Client)
	m.away[a.Client] = struct{}{}
	m.state.Asked--
}

// Postpone moves the opening of the round to now if nothing has happened in the round because
// all clients were unavailable. This keeps the deadline from passing before a client is asked.
func (m *Machine) Postpone(now time.Duration) {
	if m.state.Asked == 0 && len(m.running) == 0 && len(m.waiting) == 0 {
		m.state.Opened = now
	}
}

// Delay extends the deadline of the round because the server could not count updates for a
// while.
func (m *Machine) Delay(by time.Duration) { m.state.Opened += by }

// Restart discards the current round and its updates, and opens the given round with the given
// version of the weights.
func (m *Machine) Restart(round, version int, now time.Duration) {
	clear(m.running)
	clear(m.waiting)
	clear(m.lost)
	m.state = state{Round: round, Version: version, Opened: now}
}

// draw returns n of the idle clients at random. Its cost depends on n and not on the size of
// the fleet, unless n is close to that size.
func (m *Machine) draw(n, idle int, rng *rand.Rand) []int {
	if 2*n < idle {
		chosen := make(map[int]struct{}, n)
		clients := make([]int, 0, n)
		for len(clients) < n {
			c := rng.IntN(m.fleet)
			if _, again := chosen[c]; again || m.busy(c) {
				continue
			}
			chosen[c] = struct{}{}
			clients = append(clients, c)
		}
		return clients
	}
	all := make([]int, 0, idle)
	for c := range m.fleet {
		if !m.busy(c) {
			all = append(all, c)
		}
	}
	for i := range n {
		j := i + rng.IntN(len(all)-i)
		all[i], all[j] = all[j], all[i]
	}
	return all[:n]
}

func (m *Machine) busy(client int) bool {
	for _, of := range [...]map[int]Assignment{m.running, m.waiting, m.lost} {
		if _, ok := of[client]; ok {
			return true
		}
	}
	_, ok := m.away[client]
	return ok
}

// Return records that a client returned its update, and returns the verdict on the update.
func (m *Machine) Return(a Assignment) Verdict {
	if waits, ok := m.waiting[a.Client]; ok && waits == a {
		return Counted
	}
	if runs, ok := m.running[a.Client]; !ok || runs != a {
		return Closed
	}
	delete(m.running, a.Client)
	m.waiting[a.Client] = a
	return Counted
}

// Lose records that a client will not return its update.
func (m *Machine) Lose(a Assignment) {
	if runs, ok := m.running[a.Client]; !ok || runs != a {
		return
	}
	delete(m.running, a.Client)
	if a.Round == m.state.Round {
		m.state.Lost++
		m.lost[a.Client] = a
	}
}

// Wake returns the time at which Close must be called even if no client has returned by then.
func (m *Machine) Wake(now time.Duration) (time.Duration, bool) {
	return m.scheduler.Wake(m.Situation(now))
}

// Close must be called once all simultaneous events have been recorded. If the scheduler
// decides to close the round, Close closes it and opens the next one. If the scheduler carries
// clients over to later rounds, Close also closes a round in which no client is training, no
// client can be asked and no timer is set. If all clients are unavailable, the round stays open
// until one returns.
func (m *Machine) Close(now time.Duration) (Outcome, bool) {
	decision := m.scheduler.Decide(m.Situation(now))
	exhausted := len(m.running) == 0 && m.idle() == 0 && (len(m.away) == 0 || len(m.lost)+len(m.waiting) > 0)
	if _, set := m.Wake(now); decision == fed.Wait && !set && exhausted && m.scheduler.Carries() {
		decision = fed.Abandon
		if len(m.waiting) > 0 {
			decision = fed.MergeNow
		}
	}
	if decision == fed.Wait {
		return Outcome{}, false
	}
	o := Outcome{
		Round: m.state.Round, Version: m.state.Version, Opened: m.state.Opened, Closed: now,
		Merged: decision == fed.MergeNow, Asked: m.state.Asked, Lost: m.state.Lost, Counted: inOrder(m.waiting),
	}
	clear(m.waiting)
	clear(m.lost)
	if !m.scheduler.Carries() {
		o.Late = len(m.running)
		clear(m.running)
	}
	m.state = state{Round: m.state.Round + 1, Version: m.state.Version, Opened: now}
	if o.Merged {
		m.state.Version++
	}
	return o, true
}

func inOrder(of map[int]Assignment) []Assignment {
	all := make([]Assignment, 0, len(of))
	for _, a := range of {
		all = append(all, a)
	}
	slices.SortFunc(all, func(a, b Assignment) int { return a.Client - b.Client })
	return all
}
