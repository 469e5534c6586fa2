package live

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"loadstar/forecast/issue"
)

// ErrClock means that the time cannot be trusted, so no forecast is made.
var ErrClock = errors.New("the system's clock cannot be trusted")

// view contains the data that readers see: the newest forecasts, the state of clients and
// models, scores, and problems. Mu guards its fields. No method holds mu while it reads the
// file or the store. Only refresh reads the roster, and its caller holds the roster's lock.
type view struct {
	*inputs
	records *records

	mu          sync.RWMutex
	cutoff      int64 // cutoff of the newest issue
	forecasts   map[string]*Issued
	status      map[string]ClientStatus
	checks      map[string]checkedNow
	scores      map[string][]Score
	modelStatus []ModelStatus
	counters    Counters
	failure     error
	subscribers []func([]*Issued)
	busy        chan struct{} // closed when the current issue ends; nil if there is none
}

func newView(re *records) *view {
	return &view{
		inputs: re.inputs, records: re,
		forecasts: map[string]*Issued{}, status: map[string]ClientStatus{}, checks: map[string]checkedNow{}, scores: map[string][]Score{},
		counters: Counters{Issues: map[string]uint64{}, Rows: map[issue.Source]uint64{}, DriftAlarms: map[string]uint64{}},
	}
}

// Clients returns the state of all clients and groups, sorted by name.
func (v *view) Clients() []ClientStatus {
	v.mu.RLock()
	status := v.status // replaced as a whole, never modified
	v.mu.RUnlock()
	var out []ClientStatus
	for _, name := range slices.Sorted(maps.Keys(status)) {
		out = append(out, v.withReadings(status[name]))
	}
	return out
}

// withReadings adds the newest reading to a state. Readings may have arrived since the newest
// forecast, when the state was computed.
func (v *view) withReadings(x ClientStatus) ClientStatus {
	names := x.Members
	if len(names) == 0 {
		names = []string{x.Name}
	}
	for i, name := range names {
		var newest int64
		var days float64
		if first, end, ok, err := v.c.Store.Span(name); err == nil && ok {
			newest, days = end, float64(end-first)/day
		}
		if i == 0 {
			x.Newest, x.Days = newest, days
		}
		x.Newest, x.Days = min(x.Newest, newest), min(x.Days, days)
		found, err := v.current(name)
		if err != nil {
			v.c.Log.Error("cannot check readings", "client", name, "error", err)
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
func (v *view) Client(name string) (ClientStatus, error) {
	v.mu.RLock()
	x, ok := v.status[name]
	v.mu.RUnlock()
	if !ok {
		return x, ErrUnknown
	}
	return v.withReadings(x), nil
}

// Forecast returns the newest forecast of a client or group. The caller must not change it.
func (v *view) Forecast(client string) (*Issued, error) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if _, ok := v.status[client]; !ok {
		return nil, ErrUnknown
	}
	x := v.forecasts[client]
	if x == nil {
		return nil, ErrNoForecast
	}
	return x, nil
}

// Readings returns the load of a client, or the sum of a group's members, in the steps of
// [from, to), with NaN where it is missing. Both times are moved back to the grid.
func (v *view) Readings(client string, from, to int64) (begin int64, load []float32, err error) {
	x, err := v.Client(client)
	if err != nil {
		return 0, nil, err
	}
	begin = v.floor(from)
	load, err = v.load(v.stored, client, x.Members, begin, max(v.floor(to), begin))
	return begin, load, err
}

// Scores returns the errors of a client's forecasts over 1, 7 and 28 days, for all leads
// together and for blocks of leads.
func (v *view) Scores(client string) ([]Score, error) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	x, ok := v.scores[client]
	if !ok {
		return nil, ErrUnknown
	}
	return slices.Clone(x), nil
}

// Models returns the agent's models, newest first.
func (v *view) Models() []ModelStatus {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return slices.Clone(v.modelStatus)
}

func (v *view) newestCutoff() int64 {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.cutoff
}

// Ready returns nil if the service issues forecasts, and otherwise the reason.
func (v *view) Ready() error {
	if err := v.trusted(); err != nil {
		return err
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.failure == nil && v.cutoff == 0 {
		return ErrNoForecast
	}
	return v.failure
}

// Counters returns totals since the agent started.
func (v *view) Counters() Counters {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return Counters{Issues: maps.Clone(v.counters.Issues), Rows: maps.Clone(v.counters.Rows), DriftAlarms: maps.Clone(v.counters.DriftAlarms)}
}

// Subscribe makes the service call f with all forecasts of each cutoff after it has stored
// them. f must not block for long or call the service's writing methods, and is not called
// concurrently.
func (v *view) Subscribe(f func([]*Issued)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.subscribers = append(v.subscribers, f)
}

// Issued returns the forecasts made at a lead for the steps in [from, to), with the measured loads.
// Issues are kept for 7 days after their last step. A step appears if a forecast was recorded at
// that lead or a longer one. The nearest lead is used.
func (v *view) Issued(client string, from, to int64, lead time.Duration) ([]Said, error) {
	x, err := v.Client(client)
	if err != nil {
		return nil, err
	}
	to = min(to, v.floor(v.c.Now().Unix())+int64(v.c.H)*v.seconds())
	return v.records.said(client, x.Members, from, to, lead)
}

// restore publishes the newest forecasts of an earlier service.
func (v *view) restore(newest []*Issued) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, x := range newest {
		v.cutoff = max(v.cutoff, x.Cutoff)
		v.forecasts[x.Client] = x
	}
}

// forget removes the forecasts of all but the known clients and groups.
func (v *view) forget(known []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	maps.DeleteFunc(v.forecasts, func(name string, _ *Issued) bool { return !slices.Contains(known, name) })
}

// passed marks a cutoff as the newest, although its issue failed.
func (v *view) passed(cutoff int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.cutoff = max(v.cutoff, cutoff)
}

// countAlarm counts an alarm about a client's model.
func (v *view) countAlarm(client string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.counters.DriftAlarms[client]++
}

// publish shows the forecasts of an issue to readers. The caller must hold the roster's lock.
func (v *view) publish(ro *roster, issued []*Issued, cutoff int64) {
	v.mu.Lock()
	v.cutoff = max(v.cutoff, cutoff)
	for _, x := range issued {
		v.forecasts[x.Client] = x
		v.counters.Issues[x.Client]++
		for _, r := range x.Rows {
			v.counters.Rows[r.Source]++
		}
	}
	subscribers := slices.Clone(v.subscribers)
	v.mu.Unlock()
	v.refresh(ro)
	for _, f := range subscribers {
		f(issued)
	}
}

// refresh computes the states that readers see. The caller must hold the roster's lock, or be
// the only user.
func (v *view) refresh(ro *roster) {
	status, scores := map[string]ClientStatus{}, map[string][]Score{}
	v.mu.RLock()
	forecasts, cutoff := maps.Clone(v.forecasts), v.cutoff
	v.mu.RUnlock()
	today := cutoff / day
	for _, name := range ro.names {
		m := ro.members[name]
		x := ClientStatus{Name: name, Drift: m.watch.alarm(), WantsRound: m.rec.WantsRound, Pinned: m.rec.Pinned}
		if f := forecasts[name]; f != nil {
			switch next := m.champion.model; {
			case next == nil && f.Release.Release != "":
				x.Next = "last week's load"
			case next != nil && next.Name != f.Release.Release:
				x.Next = next.Name
			}
		}
		scores[name] = v.records.scoresOf(m.scores, today)
		status[name] = x.with(forecasts[name], m.scores, today)
	}
	for _, g := range ro.groups {
		x := ClientStatus{Name: g.name, Members: g.members}
		scores[g.name] = v.records.scoresOf(g.scores, today)
		status[g.name] = x.with(forecasts[g.name], g.scores, today)
	}
	models := ro.describeModels()
	v.mu.Lock()
	v.status, v.scores, v.modelStatus = status, scores, models
	v.mu.Unlock()
}

// with adds the newest forecast and the scores of the last 28 days.
func (x ClientStatus) with(f *Issued, h *history, today int64) ClientStatus {
	t := h.total(today-27, today, -1)
	x.Scores = t.score(28, 0, 0)
	if f == nil || len(f.Rows) == 0 {
		return x
	}
	short := *f
	short.Rows = nil
	x.Forecast, x.Source, x.Reason, x.Quality = &short, f.Rows[0].Source, f.Rows[0].Reason, issue.OK
	for _, r := range f.Rows {
		if r.Time >= f.Cutoff+day {
			break
		}
		if r.Quality == issue.Missing || r.Quality == issue.Estimated && x.Quality == issue.OK {
			x.Quality = r.Quality
		}
	}
	return x
}

// setBack discards the newest issue if it is in the future. A wrong clock caused such an issue,
// which would silence the service until the clock reaches the issue's time.
func (v *view) setBack(cutoff int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.cutoff <= cutoff+2*v.seconds() {
		return
	}
	v.c.Log.Warn("the newest forecast is from the future, because the clock was wrong; forecasts start again", "cutoff", time.Unix(v.cutoff, 0).UTC())
	v.cutoff = 0
}

// fail records the reason why forecasts cannot be made. Nil means that they can be made.
func (v *view) fail(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.failure = err
}

// begin marks the start of an issue, and returns a function that marks its end.
func (v *view) begin() func() {
	c := make(chan struct{})
	v.mu.Lock()
	v.busy = c
	v.mu.Unlock()
	return func() {
		v.mu.Lock()
		v.busy = nil
		v.mu.Unlock()
		close(c)
	}
}

// Yield waits until no forecasts are being made. Training calls it between its steps, so
// that forecasts come first.
func (v *view) Yield(ctx context.Context) {
	v.mu.RLock()
	busy := v.busy
	v.mu.RUnlock()
	if busy == nil {
		return
	}
	select {
	case <-busy:
	case <-ctx.Done():
	}
}
