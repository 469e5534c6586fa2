package live

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"

	"loadstar/fed/serve"
	"loadstar/forecast/issue"
	"loadstar/internal/boltfile"
	"loadstar/nn/kernel"
	"loadstar/series"
	"loadstar/series/store"
)

// Config configures a service.
type Config struct {
	// Dir is the agent's folder. Only one service may use it at a time.
	Dir string
	// Site has the name, the interval, the clock and the country of the clients.
	Site    series.Dataset
	Clients []string
	// Groups lists the members of each group.
	Groups map[string][]string
	// H is the number of steps to forecast, and Levels the quantiles, which include 0.5.
	H        int
	Levels   []float64
	Fallback issue.Fallback
	// Delay is how long after the end of a step the service waits for readings.
	Delay time.Duration
	Store *store.Store
	// Model is the folder of a model, or empty.
	Model  string
	Kernel *kernel.Set
	// Generic is a young model that forecasts for clients while no released model does, or
	// nil.
	Generic *serve.Model
	// ShareScores allows reports to the server.
	ShareScores bool
	// Now returns the time; nil means time.Now. Clock returns an error while the time cannot
	// be trusted, and may be nil.
	Now   func() time.Time
	Clock func() error
	// Log receives messages. If it is nil, they are discarded.
	Log *slog.Logger
}

// Service forecasts for the clients of a site. It is safe for concurrent use.
type Service struct {
	c     Config
	db    *boltfile.File
	point int // index of the level 0.5

	// working is held while background work is done, and issuing while forecasts are made or
	// the choice of models changes. They are locked in this order.
	working sync.Mutex
	issuing sync.Mutex
	names   []string // of the clients, sorted
	members map[string]*member
	groups  []*group
	models  map[string]*model
	heads   map[headKey][]uint64
	dropped map[string]bool // releases that prune removed
	folder  string          // ID of the model in Config.Model
	young   *model          // Config.Generic, or nil if it does not suit the site

	work chan struct{} // tells Run that there is background work

	// mu protects what readers see.
	mu          sync.RWMutex
	last        int64 // cutoff of the newest issue
	forecasts   map[string]*Issued
	status      map[string]ClientStatus
	checks      map[string]checkedNow
	scores      map[string][]Score
	modelStatus []ModelStatus
	counters    Counters
	failure     error
	subscribers []func([]*Issued)
	busy        chan struct{} // closed when the present issue ends; nil if there is none
}

// Open opens the service of an agent's folder.
func Open(c Config) (*Service, error) {
	c.Now = orDefault(c.Now, time.Now)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Levels == nil {
		c.Levels = []float64{0.1, 0.5, 0.9}
	}
	if c.Store == nil || c.Kernel == nil || c.Site.Clock == nil || c.H < 1 {
		return nil, errors.New("live: Store, Kernel, Site and H must be set")
	}
	s := &Service{
		c: c, point: slices.Index(c.Levels, 0.5), models: map[string]*model{}, heads: map[headKey][]uint64{}, dropped: map[string]bool{}, work: make(chan struct{}, 1),
		forecasts: map[string]*Issued{}, status: map[string]ClientStatus{}, checks: map[string]checkedNow{}, scores: map[string][]Score{},
		counters: Counters{Issues: map[string]uint64{}, Rows: map[issue.Source]uint64{}, DriftAlarms: map[string]uint64{}},
	}
	if s.point < 0 {
		return nil, errors.New("the levels must include 0.5")
	}
	if c.Generic != nil && c.Generic.Suits(c.Site.Interval) {
		s.young = &model{modelRecord: modelRecord{Name: c.Generic.Name}, serve: c.Generic}
	}
	var err error
	if s.db, err = openFile(c.Dir); err != nil {
		return nil, err
	}
	if err := s.open(); err != nil {
		_ = s.db.Close() // report the error that made opening fail, not a second one
		return nil, err
	}
	return s, nil
}

func orDefault(now, usual func() time.Time) func() time.Time {
	if now == nil {
		return usual
	}
	return now
}

// open loads the models and the clients.
func (s *Service) open() error {
	err := s.db.View(func(tx *bolt.Tx) error {
		if _, err := getJSON(tx, metaBucket, droppedKey, droppedFormat, &s.dropped); err != nil {
			return err
		}
		err := tx.Bucket(modelsBucket).ForEach(func(key, _ []byte) error {
			b, err := get(tx, modelsBucket, key, modelFormat)
			if err != nil {
				return err
			}
			var r modelRecord
			if err := r.decode(b); err != nil {
				return err
			}
			m := s.newModel(r)
			if m.err != nil {
				s.c.Log.Error("cannot use a stored model", "error", m.err)
			}
			s.models[r.ID] = m
			return nil
		})
		if err != nil {
			return err
		}
		return tx.Bucket(headsBucket).ForEach(func(key, _ []byte) error {
			b, err := get(tx, headsBucket, key, headFormat)
			if err != nil {
				return err
			}
			var h head
			if err := h.decode(b); err != nil {
				return err
			}
			k := headKey{h.Model, h.Client}
			s.heads[k] = append(s.heads[k], number(key))
			return nil
		})
	})
	if err != nil {
		return err
	}
	if err := s.set(s.c.Clients, s.c.Groups); err != nil {
		return err
	}
	if s.c.Model != "" {
		if err := s.openFolder(s.c.Model, s.c.Now().Unix()); err != nil {
			return err
		}
	}
	return s.restore()
}

// set sets the clients and groups. Those that stay keep what is in memory.
func (s *Service) set(clients []string, groups map[string][]string) error {
	members := map[string]*member{}
	for _, name := range clients {
		m := s.members[name]
		if m == nil {
			var err error
			if m, err = s.openMember(name); err != nil {
				return fmt.Errorf("client %s: %w", name, err)
			}
		}
		members[name] = m
	}
	var all []*group
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		g, err := s.openGroup(name, groups[name])
		if err != nil {
			return fmt.Errorf("group %s: %w", name, err)
		}
		all = append(all, g)
	}
	s.members, s.groups = members, all
	s.names = slices.Sorted(maps.Keys(members))
	return nil
}

// restore publishes the newest forecasts from the file.
func (s *Service) restore() error {
	var all []*Issued
	err := s.db.View(func(tx *bolt.Tx) error {
		for _, name := range s.all() {
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
			all = append(all, x)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, x := range all {
		s.last = max(s.last, x.Cutoff)
		s.forecasts[x.Client] = x
		if m := s.members[x.Client]; m != nil {
			m.rec.Sequence = max(m.rec.Sequence, x.Sequence)
		}
		for _, g := range s.groups {
			if g.name == x.Client {
				g.sequence = max(g.sequence, x.Sequence)
			}
		}
	}
	s.refresh()
	return nil
}

// all returns the names of clients and groups.
func (s *Service) all() []string {
	names := slices.Clone(s.names)
	for _, g := range s.groups {
		names = append(names, g.name)
	}
	return names
}

// Reconfigure replaces the clients and groups.
func (s *Service) Reconfigure(clients []string, groups map[string][]string) error {
	s.working.Lock()
	defer s.working.Unlock()
	s.issuing.Lock()
	defer s.issuing.Unlock()
	if err := s.set(clients, groups); err != nil {
		return err
	}
	s.mu.Lock()
	known := s.all()
	maps.DeleteFunc(s.forecasts, func(name string, _ *Issued) bool { return !slices.Contains(known, name) })
	s.mu.Unlock()
	s.refresh()
	return nil
}

// Close closes the file.
func (s *Service) Close() error {
	s.working.Lock()
	defer s.working.Unlock()
	s.issuing.Lock()
	defer s.issuing.Unlock()
	return s.db.Close()
}

// seconds returns the length of a step.
func (s *Service) seconds() int64 { return int64(s.c.Site.Interval / time.Second) }

// floor returns the end of the newest complete step at a time.
func (s *Service) floor(unix int64) int64 { return unix - unix%s.seconds() }

// ahead is the number of steps after a cutoff for which weather may be needed.
func (s *Service) ahead() int { return max(s.c.H, int(48*time.Hour/s.c.Site.Interval)) }

// dataset returns readings and weather. Weather after the end is what was known then.
func (s *Service) dataset(names []string, from, to int64) (*series.Dataset, []store.Mark, error) {
	site := s.c.Site
	var (
		marks []store.Mark
		err   error
	)
	if site.Weather, marks, err = s.c.Store.Weather(from, to+int64(s.ahead())*s.seconds(), to); err != nil {
		return nil, nil, err
	}
	d, err := s.c.Store.Dataset(site, names, from, to, store.Estimated)
	return d, marks, err
}

// history returns the readings of a client that issues in [from, to) may use, or nil if it
// has none. They begin with the client's first reading, as they do in a file.
func (s *Service) history(name string, from, to int64) (*series.Dataset, error) {
	first, _, ok, err := s.c.Store.Span(name)
	from = max(serve.Tail(from), first, 0)
	if err != nil || !ok || from >= to {
		return nil, err
	}
	d, _, err := s.dataset([]string{name}, from, to)
	return d, err
}

// tails returns the readings that forecasts at a cutoff use.
func (s *Service) tails(names []string, cutoff int64) (*serve.Tails, error) {
	from := serve.Tail(cutoff)
	d, marks, err := s.dataset(names, from, cutoff)
	if err != nil {
		return nil, err
	}
	t, err := serve.NewTails(d, cutoff, s.ahead())
	if err != nil {
		return nil, err
	}
	worst := store.Known
	for _, mark := range marks[min(len(marks), int((cutoff-from)/s.seconds())):] {
		worst = max(worst, mark)
	}
	for _, name := range d.Weather.Names {
		switch worst {
		case store.Persisted:
			t.Weather[name] = issue.WeatherPersisted
		case store.Climatology:
			t.Weather[name] = issue.WeatherClimatology
		}
	}
	return t, nil
}

// publish shows the forecasts of an issue to readers.
func (s *Service) publish(issued []*Issued, cutoff int64) {
	s.mu.Lock()
	s.last = max(s.last, cutoff)
	for _, x := range issued {
		s.forecasts[x.Client] = x
		s.counters.Issues[x.Client]++
		for _, r := range x.Rows {
			s.counters.Rows[r.Source]++
		}
	}
	subscribers := slices.Clone(s.subscribers)
	s.mu.Unlock()
	s.refresh()
	for _, f := range subscribers {
		f(issued)
	}
}

// refresh makes the states that readers see. The caller holds s.issuing, or is the only one.
func (s *Service) refresh() {
	status, scores := map[string]ClientStatus{}, map[string][]Score{}
	s.mu.RLock()
	forecasts, last := maps.Clone(s.forecasts), s.last
	s.mu.RUnlock()
	today := last / day
	for _, name := range s.names {
		m := s.members[name]
		x := ClientStatus{Name: name, Drift: m.watch.alarm(), WantsRound: m.rec.WantsRound, Pinned: m.rec.Pinned}
		if f := forecasts[name]; f != nil {
			switch next := m.champion.model; {
			case next == nil && f.Release.Release != "":
				x.Next = "last week's load"
			case next != nil && next.Name != f.Release.Release:
				x.Next = next.Name
			}
		}
		scores[name] = s.scoresOf(m.scores, today)
		status[name] = x.with(forecasts[name], m.scores, today)
	}
	for _, g := range s.groups {
		x := ClientStatus{Name: g.name, Members: g.members}
		scores[g.name] = s.scoresOf(g.scores, today)
		status[g.name] = x.with(forecasts[g.name], g.scores, today)
	}
	models := s.describeModels()
	s.mu.Lock()
	s.status, s.scores, s.modelStatus = status, scores, models
	s.mu.Unlock()
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

// scoresOf returns the scores of 1, 7 and 28 days by block of leads.
func (s *Service) scoresOf(h *history, today int64) (out []Score) {
	perHour := int(time.Hour / s.c.Site.Interval)
	for _, days := range []int{1, 7, 28} {
		from := today - int64(days) + 1
		total := h.total(from, today, -1)
		all := total.score(days, 0, 0)
		all.Energy = h.energy(days, today)
		out = append(out, all)
		first := 1
		for b := range len(blocks) + 1 {
			last := s.c.H
			if b < len(blocks) {
				last = min(last, blocks[b]*perHour)
			}
			if t := h.total(from, today, b); t.Rows > 0 {
				out = append(out, t.score(days, first, last))
			}
			first = last + 1
		}
	}
	return out
}

// describeModels lists the models and who uses them.
func (s *Service) describeModels() []ModelStatus {
	var out []ModelStatus
	for _, m := range s.models {
		x := ModelStatus{ModelRef: m.ref(), Received: m.Received}
		for _, name := range s.names {
			c := s.members[name]
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
