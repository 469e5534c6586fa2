package live

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"loadstar/agent/release"
	"loadstar/fed/serve"
	"loadstar/forecast/issue"
)

const (
	day = 24 * 60 * 60 // seconds
	// replayed is the number of seconds over which a new state is replayed.
	replayed = 63 * day
	// keptIssues is how long a recorded issue is kept after its last target. Until then, the day
	// of that target may be scored again. That day may have begun 24 hours before the target.
	keptIssues = (correctable + 1) * day
	// staleAfter is the age at which a model becomes stale.
	staleAfter = 90 * day
)

// generic is a model without personal layers, with the scaling of a client.
type generic struct {
	model  *model
	day    int64 // Unix day on which the scaling was made
	client serve.Client
}

// issuer makes forecasts. The roster's lock guards it.
type issuer struct {
	*roster
	records *records
	chooser *chooser
	view    *view
}

// issueAll makes the forecasts of all clients and groups at a cutoff, and stores them in one
// transaction.
func (is *issuer) issueAll(now time.Time, cutoff int64) error {
	snap, err := is.snapshot(is.names, cutoff)
	if err != nil {
		return err
	}
	var (
		issued []*Issued
		kept   []*recorded // nil for issues that are not recorded
		writes []func(tx *bolt.Tx) error
		due    bool
	)
	for _, name := range is.names {
		m := is.members[name]
		x, r, err := is.issueOne(m, snap, now)
		if err != nil {
			return fmt.Errorf("client %s: %w", name, err)
		}
		issued, kept = append(issued, x), append(kept, r)
		if r == nil {
			continue
		}
		due = true
		writes = append(writes, func(tx *bolt.Tx) error {
			if err := putState(tx, name, asChampion, m.champion); err != nil {
				return err
			}
			if m.shadow != nil {
				return putState(tx, name, asShadow, m.shadow)
			}
			return nil
		})
	}
	for _, g := range is.groups {
		x, r, err := is.issueGroup(g, snap, issued, now)
		if err != nil {
			return fmt.Errorf("group %s: %w", g.name, err)
		}
		issued, kept = append(issued, x), append(kept, r)
		if r != nil {
			writes = append(writes, g.put)
		}
	}
	// Store the issue together with the decisions that follow from scores. An agent that was
	// killed in between would never make these decisions, because it would not repeat the
	// issue.
	if due {
		back, err := is.scoreAll(now, snap)
		if err != nil {
			return err
		}
		writes = append(writes, func(tx *bolt.Tx) error { return is.putScores(tx, back) })
	}
	err = is.db.Update(func(tx *bolt.Tx) error {
		for i, x := range issued {
			if err := putIssue(tx, x, kept[i], is.seconds()); err != nil {
				return err
			}
		}
		for _, write := range writes {
			if err := write(tx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	is.view.publish(is.roster, issued, cutoff)
	return nil
}

// issueNow makes and publishes a forecast of a client or group from all known readings. It does
// not change what the client has learned. It takes the lock.
func (is *issuer) issueNow(ctx context.Context, name string) (*Issued, error) {
	is.issuing.Lock()
	defer is.issuing.Unlock()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	now := is.c.Now()
	cutoff := is.floor(now.Unix())
	for _, g := range is.groups {
		if g.name == name {
			if cutoff > is.view.newestCutoff() {
				if err := is.issueAll(now, cutoff); err != nil {
					return nil, err
				}
			}
			return is.view.Forecast(name)
		}
	}
	m := is.members[name]
	if m == nil {
		return nil, ErrUnknown // the client was removed in the meantime
	}
	snap, err := is.snapshot([]string{name}, cutoff)
	if err != nil {
		return nil, err
	}
	state, err := m.champion.state.AppendBinary(nil)
	if err != nil {
		return nil, err
	}
	copied := *m.champion
	if copied.state, err = is.newState(); err == nil {
		err = copied.state.UnmarshalBinary(state)
	}
	if err != nil {
		return nil, err
	}
	once := &member{name: name, rec: m.rec, champion: &copied, profile: m.profile}
	x, _, err := is.issueOne(once, snap, now)
	if err != nil {
		return nil, err
	}
	m.rec.Sequence = once.rec.Sequence
	err = is.db.Update(func(tx *bolt.Tx) error {
		return putIssue(tx, x, nil, is.seconds())
	})
	if err != nil {
		return nil, err
	}
	is.view.publish(is.roster, []*Issued{x}, is.view.newestCutoff())
	return x, nil
}

// issueOne makes the forecasts of a client and of its silent contender. The result is nil
// unless the issue is recorded.
func (is *issuer) issueOne(m *member, snap *snapshot, now time.Time) (*Issued, *recorded, error) {
	cutoff, meter := snap.cutoff, snap.meters[m.name]
	gen := is.generic(m, cutoff)
	if err := is.catchUp(m, gen, cutoff); err != nil {
		return nil, nil, err
	}
	due := cutoff%(int64(m.champion.state.Every(m.champion.targets()...))*is.seconds()) == 0
	models, bare := is.ask(snap, m.name, m.champion, gen)
	if models.Reason == issue.NoHead && slices.Contains(m.rec.Refused, is.newest(release.Personal)[0].ID) {
		models.Reason = issue.Refused
	}
	x := is.issued(m.champion, m.champion.state.Issue(meter, models, cutoff), m.name, now)
	m.rec.Sequence++
	x.Sequence = m.rec.Sequence
	var silent []float32
	if m.shadow != nil {
		models, _ := is.ask(snap, m.name, m.shadow, gen)
		f := m.shadow.state.Issue(meter, models, cutoff)
		silent = values(&f)
	}
	r := record(&x.Forecast)
	r.Head = m.champion.id
	if len(silent) == len(r.Values) {
		r.Shadow = silent
	}
	if bare != nil {
		r.Bare = bare.bare[:min(len(bare.bare), r.steps())]
		for _, v := range r.Bare {
			x.Bare = append(x.Bare, float64(v))
		}
	}
	if !due {
		r = nil
	}
	return x, r, nil
}

// ask returns a runner's forecasters and, separately, the forecaster that records the forecasts
// of the client's own model.
func (is *issuer) ask(snap *snapshot, client string, r *runner, gen *generic) (issue.Models, *spy) {
	var (
		out issue.Models
		own *spy
	)
	switch reason := is.reason(r.model); {
	case r.model == nil && len(is.newest(release.Personal)) > 0:
		out.Reason = issue.NoHead
	case reason != "":
		out.Reason = reason
	default:
		x, err := snap.forecaster(r.model, client, r.client)
		if err != nil {
			is.c.Log.Error("a model cannot forecast", "model", r.model.Name, "error", err)
			out.Reason = issue.ModelFailed
			break
		}
		own = &spy{Forecaster: x}
		out.Own = own
	}
	if gen != nil {
		if x, err := snap.forecaster(gen.model, client, gen.client); err == nil {
			out.Generic = x
		}
	}
	return out, own
}

// issued sets the fields of a forecast that the ladder does not know.
func (is *issuer) issued(r *runner, f issue.Forecast, name string, now time.Time) *Issued {
	f.Client = name
	x := &Issued{Forecast: f, Issued: now.Unix()}
	if r.model != nil {
		x.Release = r.model.ref()
		x.Release.Head = r.made
		x.Release.Stale = now.Unix()-r.model.Received > staleAfter
	}
	return x
}

// catchUp replays recorded issues for a client's contenders that are new or have missed issues
// while the agent was not running. It reads the readings once for all contenders.
func (is *issuer) catchUp(m *member, gen *generic, cutoff int64) error {
	var behind []*runner
	from := cutoff
	for _, r := range []*runner{m.champion, m.shadow} {
		if r == nil {
			continue
		}
		since, err := is.missed(r, cutoff)
		if err != nil {
			return err
		}
		if since < cutoff {
			behind, from = append(behind, r), min(from, since)
		}
	}
	if len(behind) == 0 {
		return nil
	}
	d, err := is.history(m.name, from, cutoff)
	if err != nil || d == nil {
		return err
	}
	for _, r := range behind {
		if err := is.replay(d, r, gen, cutoff, nil); err != nil {
			return err
		}
	}
	return nil
}

// missed returns the time from which a contender's state must be replayed, or the cutoff if nothing
// was missed. It creates a new state if the current one cannot continue.
func (is *issuer) missed(r *runner, cutoff int64) (since int64, err error) {
	fresh := r.state.Next() == 0
	if fresh && r.begin != nil {
		if err := r.state.UnmarshalBinary(r.begin); err != nil || r.state.Next() > cutoff {
			// Either the configuration differs from the one in training, or readings are
			// missing.
			if r.state, err = is.newState(); err != nil {
				return 0, err
			}
		}
		r.begin = nil
	}
	if r.state.Next() > cutoff+2*is.seconds() { // the clock was wrong, and the state would learn nothing until that time
		if r.state, err = is.newState(); err != nil {
			return 0, err
		}
	}
	every := int64(r.state.Every(r.targets()...)) * is.seconds()
	since = r.state.Next()
	// A state that has seen the readings up to a recorded cutoff has recorded the issue at that
	// cutoff. A new state has not recorded the issue, because the state in a model's folder
	// ends before it.
	if recorded := (cutoff - 1) / every * every; since > recorded || since == recorded && !fresh {
		return cutoff, nil
	}
	since = cmp.Or(since, cutoff-replayed)
	return since, nil
}

// targets returns the number of steps that the model forecasts as a list of one element, or nil
// if there is no usable model.
func (r *runner) targets() []int {
	if r.model == nil || r.model.serve == nil {
		return nil
	}
	return []int{r.model.serve.Plan.Model.Targets.Steps()}
}

// reach returns the number of steps after a cutoff that the model forecasts, or 0 if there is
// no usable model.
func (r *runner) reach() int {
	if r.model == nil || r.model.serve == nil {
		return 0
	}
	m := r.model.serve.Plan.Model
	return m.Horizon.Steps() - 1 + m.Targets.Steps()
}

// generic returns the newest released generic model with the scaling of a client, if there is
// one and the client has two days of readings before the current day. Otherwise it returns the
// young model, or nil if there is none.
func (is *issuer) generic(m *member, cutoff int64) *generic {
	if g := is.released(m, cutoff); g != nil || is.young == nil {
		return g
	}
	return &generic{model: is.young, client: is.young.serve.Anyone()}
}

func (is *issuer) released(m *member, cutoff int64) *generic {
	models := is.newest(release.Generic)
	if len(models) == 0 || is.reason(models[0]) != "" {
		return nil
	}
	today := cutoff / day
	if g := &m.profile; g.model == models[0] && g.day == today {
		return g
	}
	first, end, ok, err := is.c.Store.Span(m.name)
	if err != nil || !ok || min(end, today*day)-first < 2*day {
		return nil
	}
	d, err := is.history(m.name, today*day-365*day, today*day)
	if err != nil || d == nil {
		return nil
	}
	scaling, err := models[0].serve.Scaling(d, 0, today*day)
	if err != nil {
		return nil
	}
	c, err := models[0].serve.Client(nil, scaling)
	if err != nil {
		return nil
	}
	m.profile = generic{model: models[0], day: today, client: c}
	return &m.profile
}
