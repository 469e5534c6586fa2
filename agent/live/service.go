package live

import (
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"loadstar/fed/serve"
	"loadstar/forecast/issue"
	"loadstar/nn/kernel"
	"loadstar/series"
	"loadstar/series/store"
)

// Config configures a service.
type Config struct {
	// Dir is the agent's folder. Only one service may use it at a time.
	Dir string
	// Site contains the name of the site, and the interval, clock and country of its clients.
	Site    series.Dataset
	Clients []string
	// Groups lists the members of each group.
	Groups map[string][]string
	// H is the number of steps to forecast, and Levels the quantiles, which include 0.5.
	H        int
	Levels   []float64
	Fallback issue.Fallback
	// Delay is the time for which the service waits for readings after the end of a step.
	Delay time.Duration
	Store *store.Store
	// Model is the folder of a model, or empty.
	Model  string
	Kernel *kernel.Set
	// Generic is a young model that forecasts for clients without a released model, or nil.
	Generic *serve.Model
	// ShareScores allows reports to the server.
	ShareScores bool
	// Now returns the time; nil means time.Now. Clock returns an error if the time cannot be
	// trusted. It may be nil.
	Now   func() time.Time
	Clock func() error
	// Log receives messages. If it is nil, they are discarded.
	Log *slog.Logger
}

// Service forecasts for the clients of a site. It is safe for concurrent use.
//
// Three locks are taken in this order: working, roster.issuing and view.mu.
type Service struct {
	*view   // the data that readers see
	roster  *roster
	issuer  *issuer
	chooser *chooser

	// working is held during background work, so only one piece runs at a time and the clients do
	// not change.
	working sync.Mutex
	work    chan struct{} // tells Run that there is background work
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
	in := &inputs{c: c, point: slices.Index(c.Levels, 0.5)}
	if in.point < 0 {
		return nil, errors.New("the levels must include 0.5")
	}
	db, err := openFile(c.Dir)
	if err != nil {
		return nil, err
	}
	cat := &catalog{inputs: in, db: db, models: map[string]*model{}, heads: map[headKey][]uint64{}, dropped: map[string]bool{}}
	if c.Generic != nil && c.Generic.Suits(c.Site.Interval) {
		cat.young = &model{modelRecord: modelRecord{Name: c.Generic.Name}, serve: c.Generic}
	}
	s := newService(&roster{catalog: cat}, &records{inputs: in, db: db})
	if err := s.open(); err != nil {
		_ = db.Close() // report the error that made opening fail, not this one
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

// newService connects the parts of a service.
func newService(ro *roster, re *records) *Service {
	v := newView(re)
	ch := &chooser{roster: ro, view: v}
	return &Service{view: v, roster: ro, chooser: ch, issuer: &issuer{roster: ro, records: re, chooser: ch, view: v}, work: make(chan struct{}, 1)}
}

// open loads the models and the clients.
func (s *Service) open() error {
	if err := s.roster.read(); err != nil {
		return err
	}
	if err := s.roster.set(s.c.Clients, s.c.Groups); err != nil {
		return err
	}
	if s.c.Model != "" {
		if err := s.roster.openFolder(s.c.Model, s.roster.names, s.c.Now().Unix()); err != nil {
			return err
		}
	}
	newest, err := s.roster.restore()
	if err != nil {
		return err
	}
	s.restore(newest)
	s.refresh(s.roster)
	return nil
}

// Reconfigure replaces the clients and groups.
func (s *Service) Reconfigure(clients []string, groups map[string][]string) error {
	s.working.Lock()
	defer s.working.Unlock()
	s.roster.issuing.Lock()
	defer s.roster.issuing.Unlock()
	if err := s.roster.set(clients, groups); err != nil {
		return err
	}
	s.forget(s.roster.all())
	s.refresh(s.roster)
	return nil
}

// Close closes the file.
func (s *Service) Close() error {
	s.working.Lock()
	defer s.working.Unlock()
	s.roster.issuing.Lock()
	defer s.roster.issuing.Unlock()
	return s.roster.db.Close()
}
