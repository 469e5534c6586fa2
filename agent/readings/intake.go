package readings

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"loadstar/series/store"
)

// Limits of the intake.
const (
	flushValues = 512  // number of samples that are stored without waiting for the next flush
	maxWaiting  = 8192 // maximum number of samples that wait if the disk is full
	maxAhead    = 5 * time.Minute
	maxAge      = 45 * 24 * time.Hour
)

// Errors that callers distinguish.
var (
	// ErrClosed means that an intake has ended.
	ErrClosed = errors.New("the agent is stopping")
	// errClock means that the system's clock is wrong, so no time can be trusted.
	errClock = errors.New("the system's clock is wrong")
	// ErrClient means that the agent has no such client.
	ErrClient = errors.New("there is no such client")
	errFull   = errors.New("too many samples wait to be stored")
)

// Intake ingests readings and samples, and stores many samples in one transaction. All
// sources of readings share it. It is safe for concurrent use.
type Intake struct {
	c     Config
	stats Stats
	wake  chan struct{}
	// documents has a place for each request that is being read.
	documents chan struct{}
	bounds    bounds

	mu       sync.Mutex
	clients  map[string]Client
	batch    []message
	waiting  int // samples in the batch
	failed   error
	closed   bool
	received map[string]received

	// Only flush uses the following fields, one call at a time.
	flushing sync.Mutex
	tracks   map[string]track
	arrived  map[string]time.Time // arrival of a client's newest sample
}

// message contains the samples of one call of Add.
type message struct {
	samples []Sample
	done    func(error)
}

// NewIntake returns an intake that continues where the last one with the same store ended.
func NewIntake(c Config) (*Intake, error) {
	if c.Store == nil || c.Interval <= 0 {
		return nil, errors.New("an intake needs a store and its interval")
	}
	if c.Flush <= 0 {
		c.Flush = time.Minute
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Clock == nil {
		c.Clock = func() error { return nil }
	}
	if c.Log == nil {
		c.Log = func(string, ...any) {}
	}
	i := &Intake{c: c, wake: make(chan struct{}, 1), documents: make(chan struct{}, maxDocuments), clients: c.Clients, tracks: map[string]track{}, arrived: map[string]time.Time{}, received: map[string]received{}}
	i.bounds = bounds{i: i, of: map[string]bound{}}
	for name := range c.Clients {
		if err := store.CheckName(name); err != nil {
			return nil, fmt.Errorf("client %.60q: %w", name, err)
		}
	}
	return i, nil
}

// SetClients replaces the clients after a reload of the configuration.
func (i *Intake) SetClients(clients map[string]Client) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.clients = clients
}

// Stats returns the counts of everything that was ingested.
func (i *Intake) Stats() *Stats { return &i.stats }

// Err returns the error of the last flush, or nil if it stored everything.
func (i *Intake) Err() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.failed
}

// Add takes the samples of one message, in order of time for each client, and returns soon.
// It calls done once, with nil when the changes of these and earlier samples are on disk, or
// with an error if the message must be sent again. Unusable samples are counted, and must not
// be sent again. Done may be called before Add returns. It must not call the intake.
func (i *Intake) Add(samples []Sample, done func(error)) {
	i.mu.Lock()
	var err error
	switch {
	case i.closed:
		err = ErrClosed
	case i.c.Clock() != nil:
		err = errClock
	case i.waiting+len(samples) > maxWaiting || len(i.batch) >= maxWaiting:
		err = errFull
	default:
		i.batch = append(i.batch, message{slices.Clone(samples), done})
		i.waiting += len(samples)
		i.note(samples)
	}
	full := i.waiting >= flushValues && i.failed == nil
	i.mu.Unlock()
	if err != nil {
		done(err)
	} else if full {
		i.Flush()
	}
}

// Flush requests that all added samples are stored, and does not wait.
func (i *Intake) Flush() {
	select {
	case i.wake <- struct{}{}:
	default:
	}
}

// Run stores samples until the context ends, then stores the rest and returns. Samples that
// cannot be stored are kept and stored later.
func (i *Intake) Run(ctx context.Context) error {
	ticker := time.NewTicker(i.c.Flush)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return i.end()
		case <-ticker.C:
		case <-i.wake:
		}
		if err := i.flush(); err != nil {
			i.c.Log("readings are not stored and will be stored later: %v", err)
		}
	}
}

// end stores the rest. Messages that cannot be stored must be sent again.
func (i *Intake) end() error {
	i.mu.Lock()
	i.closed = true
	i.mu.Unlock()
	err := i.flush()
	i.mu.Lock()
	rest := i.batch
	i.batch = nil
	i.mu.Unlock()
	for _, m := range rest {
		m.done(errors.Join(ErrClosed, err))
	}
	return err
}

// flush stores the waiting samples in one transaction.
func (i *Intake) flush() error {
	i.flushing.Lock()
	defer i.flushing.Unlock()
	i.mu.Lock()
	batch, clients := i.batch, i.clients
	i.mu.Unlock()
	now := i.c.Now()
	f := flushOf{i: i, now: now, clients: clients, tracks: map[string]track{}}
	for _, m := range batch {
		for _, s := range m.samples {
			if err := f.take(s); err != nil {
				return i.result(err)
			}
		}
	}
	if i.c.Clock() == nil {
		if err := f.tick(); err != nil {
			return i.result(err)
		}
	}
	result, err := f.store()
	if err != nil {
		return i.result(err)
	}
	maps.Copy(i.tracks, f.tracks)
	i.stats.result("samples", result)
	i.stats.add("samples", "ignored", f.ignored)
	i.stats.add("samples", "bad", f.bad)
	i.mu.Lock()
	i.batch = i.batch[len(batch):]
	if len(i.batch) == 0 {
		i.batch = nil
	}
	for _, m := range batch {
		i.waiting -= len(m.samples)
	}
	i.mu.Unlock()
	for _, m := range batch {
		m.done(nil)
	}
	return i.result(nil)
}

func (i *Intake) result(err error) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.failed = err
	return err
}

// flushOf is the work of one flush. Its changes take effect only if the transaction succeeds.
type flushOf struct {
	i        *Intake
	now      time.Time
	clients  map[string]Client
	tracks   map[string]track
	readings []store.Reading
	ignored  int
	bad      int
}

// take adds one sample.
func (f *flushOf) take(s Sample) error {
	c, ok := f.clients[s.Client]
	if !ok || !fits(s, f.now) {
		f.ignored++
		return nil
	}
	j := f.judge(s.Client, c)
	if s.Kind == Interval {
		kw, quality := j.quality(s.Value, store.OK)
		f.readings = append(f.readings, store.Reading{Client: s.Client, Time: s.At.Unix(), KW: float32(kw), Quality: quality})
		return nil
	}
	k, err := f.track(s.Client)
	if err != nil {
		return err
	}
	if !k.add(j, s) {
		f.ignored++
		return nil
	}
	f.i.arrived[s.Client] = f.now
	f.tracks[s.Client] = k
	return nil
}

// fits reports whether a sample has a possible value and time.
func fits(s Sample, now time.Time) bool {
	return usable(s) && !s.At.After(now.Add(maxAhead)) && !s.At.Before(now.Add(-maxAge))
}

// tick completes the steps that have ended.
func (f *flushOf) tick() error {
	for _, name := range slices.Sorted(maps.Keys(f.clients)) {
		k, err := f.track(name)
		if err != nil {
			return err
		}
		j := f.judge(name, f.clients[name])
		if k.any && k.tick(j, f.meterTime(name, k.since)) {
			f.tracks[name] = k
		}
	}
	return nil
}

// meterTime returns the current time on a client's time scale, in milliseconds. It is the
// time of the client's newest sample plus the time since that sample arrived. A broker that
// delivers stored messages sends old samples, and their steps must stay open until all have
// arrived.
func (f *flushOf) meterTime(client string, newest int64) int64 {
	at, ok := f.i.arrived[client]
	if !ok { // after a start, a broker may still have samples
		at = f.now
		f.i.arrived[client] = at
	}
	return min(f.now.UnixMilli(), newest+f.now.Sub(at).Milliseconds())
}

// track returns the state of a client's samples. It drops a state from the future, which a
// wrong clock caused. With such a state, all samples would look too old until the clock reaches
// the state's time.
func (f *flushOf) track(client string) (track, error) {
	k, err := f.latest(client)
	if k.any && k.since > f.now.Add(maxAhead).UnixMilli() {
		f.i.c.Log("the clock was set back; the samples of client %s start anew", client)
		k = track{}
		f.tracks[client], f.i.arrived[client] = k, f.now
	}
	return k, err
}

func (f *flushOf) latest(client string) (track, error) {
	if k, ok := f.tracks[client]; ok {
		return k, nil
	}
	if k, ok := f.i.tracks[client]; ok {
		return k, nil
	}
	note, err := f.i.c.Store.Note(noteKey(client))
	if err != nil {
		return track{}, err
	}
	if note == nil {
		f.i.tracks[client] = track{}
		return track{}, nil
	}
	k, err := decodeTrack(note)
	if err != nil {
		return k, fmt.Errorf("client %s: %w", client, err)
	}
	f.i.tracks[client] = k
	return k, nil
}

func noteKey(client string) string { return "samples/" + client }

func (f *flushOf) store() (store.Result, error) {
	if len(f.tracks) == 0 && len(f.readings) == 0 {
		return store.Result{}, nil
	}
	notes := map[string][]byte{}
	for name, k := range f.tracks {
		notes[noteKey(name)] = k.encode()
	}
	bad, err := f.i.bounds.judge(f.readings, f.clients, f.now, notes)
	if err != nil {
		return store.Result{}, err
	}
	f.bad = len(bad)
	return f.i.c.Store.Put(f.now, f.readings, notes)
}

// judge returns the rules that complete a client's steps.
func (f *flushOf) judge(name string, c Client) *judge {
	return &judge{interval: f.i.c.Interval.Milliseconds(), client: name, net: c.Net, out: &f.readings}
}
