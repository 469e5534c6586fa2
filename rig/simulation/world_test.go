package simulation

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"loadstar/agent"
	"loadstar/agent/state"
	"loadstar/nn/kernel"
	"loadstar/series"
	"loadstar/series/synth"
	"loadstar/server/blob"
	"loadstar/server/coordinator"
	"loadstar/server/directory"
	"loadstar/server/gateway"
	"loadstar/server/ledger"
	"loadstar/server/sqlstore"
	"loadstar/server/terms"
)

const (
	runID     = "run"
	hubName   = "hub"
	relayID   = "region" // the region's identity at the hub
	cacheSize = 1 << 20
)

// base contains the data that all worlds share. It is created outside of bubbles.
type base struct {
	meters []series.Meter
	kernel *kernel.Set
	ledger []byte // an empty database with its schema
}

var shared = sync.OnceValues(func() (*base, error) {
	k, err := kernel.Default()
	if err != nil {
		return nil, err
	}
	b := &base{kernel: k}
	g, err := synth.New(synth.Config{Seed: 5, Meters: maxClients, Start: time.Date(2018, 2, 20, 0, 0, 0, 0, time.UTC), Days: 4, Zone: "UTC"})
	if err != nil {
		return nil, err
	}
	for i := range maxClients {
		load := make([]float32, g.Len())
		g.Building(i, load)
		b.meters = append(b.meters, series.Meter{ID: fmt.Sprintf("m%d", i), Start: g.Time(0).Unix(), Load: load})
	}
	dir, err := os.MkdirTemp("", "simulation")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "ledger.db")
	l, err := ledger.Open(context.Background(), "sqlite:"+path)
	if err != nil {
		return nil, err
	}
	if err := l.Close(); err != nil {
		return nil, err
	}
	b.ledger, err = os.ReadFile(path)
	return b, err
})

func (b *base) dataset(meters []series.Meter) (*series.Dataset, error) {
	return series.NewDataset(series.Dataset{Name: "simulated", Generated: true, Interval: time.Hour, Clock: time.UTC}, meters)
}

// world is a fleet in a bubble.
type world struct {
	*schedule
	*base
	setting
	t   *testing.T
	dir string

	sites  []*site // the hub, and the region if there is one
	parts  map[string]*part
	names  []string // of the parts, sorted
	begin  map[string]func(p *part)
	starts map[string]int       // how often a part was started
	again  map[string]time.Time // when parts that have ended start again
	agents []*host
	// keepers are the keepers of a private run. The run begins at the time first, when the
	// keepers know all agents.
	keepers []*auditor
	begun   bool
	first   time.Duration

	// The schedule's lock guards these.
	paces      map[string]*rand.Rand
	violations []string
	served     map[string]func() // functions that cut the calls in progress at gateways
	queries    map[string]string // names by text

	faults faults
	marks  marks
	// outageBegan is the time at which the first results were counted. resumed is the time from the
	// end of an outage to the next round whose clients are all counted.
	outageBegan, resumed time.Duration
}

// site is a server with its stores: the hub or the region.
type site struct {
	w      *world
	name   string
	file   string // of the ledger
	ledger *ledger.Ledger
	watch  *sql.DB // the test's own connection
	// prepared contains the statements of the checks.
	prepared map[string]*sql.Stmt
	blobs    map[string][]byte
	backup   *backup
	jumped   time.Duration // difference between the database's clock and the others

	// The schedule's lock guards these.
	doors  map[string]*door
	woken  map[string]chan string // of coordinators and relays
	told   map[string]chan string // of gateways
	writer *part                  // holds the ledger's write lock
	wrote  []*part                // have committed since the last check
}

// host is an agent with its clients.
type host struct {
	name    string
	site    *site
	meters  []series.Meter
	data    *series.Dataset
	revoked time.Time // zero unless it is revoked
	// enrolled means that the agent had the receipts of all keepers when the run began.
	enrolled bool
	// The schedule's lock guards these.
	busy   bool // its last check-in named turns
	member bool // it has written a membership since the last check
}

func newWorld(t *testing.T, seed uint64, dir string, set setting, only map[string]bool) (*world, error) {
	b, err := shared()
	if err != nil {
		return nil, err
	}
	w := &world{
		schedule: newSchedule(seed), base: b, setting: set, t: t, dir: dir, parts: map[string]*part{}, begin: map[string]func(*part){},
		starts: map[string]int{}, again: map[string]time.Time{}, paces: map[string]*rand.Rand{}, served: map[string]func(){}, queries: map[string]string{}, faults: newFaults(only), marks: newMarks(),
	}
	w.byName = set.stable
	hub, err := w.newSite(hubName)
	if err != nil {
		return nil, err
	}
	at, now := hub, time.Now()
	if err := hub.join(relayID, now); err != nil {
		return nil, err
	}
	w.addServer(hub, "")
	for i := range 2 {
		w.addCoordinator(hub, fmt.Sprintf("c%d", i+1))
	}
	if set.region {
		if at, err = w.newSite("region"); err != nil {
			return nil, err
		}
		w.addServer(at, "r")
		for i := range 2 {
			w.addRelay(at, hub, fmt.Sprintf("rc%d", i+1))
		}
	}
	if set.private != nil {
		if err := w.addKeepers(hub); err != nil {
			return nil, err
		}
	}
	first := 0
	for i, n := range set.clients {
		h := &host{name: w.agentName(i), site: at, meters: b.meters[first : first+n]}
		first += n
		if i == 0 { // one agent is always at the hub
			h.site = hub
		}
		if h.data, err = b.dataset(h.meters); err != nil {
			return nil, err
		}
		if err := h.site.join(h.name, now); err != nil {
			return nil, err
		}
		w.addAgent(h)
	}
	return w, w.beginRun()
}

// agentName returns the name of an agent. An agent behind a region can be in private runs only if
// its name contains the region's name.
func (w *world) agentName(i int) string {
	name := fmt.Sprint("a", i+1)
	if i > 0 && w.region && w.private != nil {
		name = relayID + "." + name
	}
	return name
}

func (w *world) addRun(hub *site) error {
	return hub.ledger.AddRun(context.Background(), ledger.Run{ID: runID, Name: runID, Plan: w.plan(), Wanted: int64(w.total()), Created: time.Now()}, "test")
}

func (w *world) newSite(name string) (*site, error) {
	at := &site{
		w: w, name: name, file: filepath.Join(w.dir, name+".db"), blobs: map[string][]byte{}, doors: map[string]*door{}, woken: map[string]chan string{}, told: map[string]chan string{},
	}
	if err := os.WriteFile(at.file, w.base.ledger, 0o600); err != nil {
		return nil, err
	}
	if err := at.openLedger(); err != nil {
		return nil, err
	}
	w.sites = append(w.sites, at)
	return at, at.ledger.Directory.AddToken(context.Background(), []byte("token"), directory.Token{Uses: 9, Expires: time.Now().Add(time.Hour)}, "test", time.Now())
}

// openLedger opens the ledger's file.
func (at *site) openLedger() (err error) {
	now := func() time.Time {
		at.w.mu.Lock()
		defer at.w.mu.Unlock()
		return time.Now().Add(at.jumped)
	}
	if at.ledger, err = ledger.OpenSimulated(context.Background(), "sqlite:"+at.file, sqlstore.Seams{Gate: at.ledgerGate, Now: now}); err != nil {
		return err
	}
	at.watch, err = sql.Open("sqlite", "file:"+at.file)
	at.prepared = map[string]*sql.Stmt{}
	return err
}

func (at *site) close() error {
	if err := at.watch.Close(); err != nil {
		return err
	}
	return at.ledger.Close()
}

func (at *site) join(agent string, now time.Time) error {
	return at.ledger.Directory.Join(context.Background(), []byte("token"), directory.Agent{ID: agent, Name: agent, Expires: now.Add(24 * time.Hour)}, now)
}

func (at *site) terms() *terms.Cache {
	return terms.NewCache(func(ctx context.Context, run string) (*terms.Terms, error) {
		r, err := at.ledger.Run(ctx, run)
		if err != nil {
			return nil, err
		}
		if r.Fleet == 0 {
			return nil, fmt.Errorf("run %s has not begun: %w", run, ledger.ErrNotFound)
		}
		return terms.Read(r.Plan, r.PlanBlob, r.Fleet)
	})
}

func (at *site) store() blob.Store { return blob.Cached(blobs{at}, cacheSize) }

// random returns the source of random numbers of one goroutine of a part.
func (w *world) random(p *part, goroutine string) func(int64) int64 {
	return w.stream("random", p.name, w.starts[p.name], goroutine).Int64N
}

// pace returns a random number for the interval between an agent's check-ins.
func (w *world) pace(agent string) float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.paces[agent] == nil {
		w.paces[agent] = w.stream("pace", agent)
	}
	return w.paces[agent].Float64()
}

var pace = gateway.Pace{Poll: 2 * time.Second, MaxPoll: time.Minute, Rate: 1000}

// add registers a part and starts it.
func (w *world) add(kind, name string, at *site, run func(p *part) func(context.Context) error) {
	w.begin[name] = func(p *part) {
		do := run(p)
		p.wg.Go(func() {
			err := do(p.ctx)
			w.mu.Lock()
			p.exited, p.err = true, err
			w.mu.Unlock()
			w.ring()
		})
	}
	w.again[name] = w.start
	i, _ := slices.BinarySearch(w.names, name)
	w.names = slices.Insert(w.names, i, name)
	w.parts[name] = &part{s: w.schedule, kind: kind, name: name, site: at, dead: true}
}

// startPart starts a new incarnation of a part.
func (w *world) startPart(name string) {
	old := w.parts[name]
	w.starts[name]++
	p := w.spawn(old.kind, name, old.site)
	w.mu.Lock()
	w.parts[name] = p
	w.mu.Unlock()
	w.begin[name](p)
}

// addServer adds the gateways of a site.
func (w *world) addServer(at *site, prefix string) {
	for i := range 2 {
		w.add("gateway", fmt.Sprintf("%sgw%d", prefix, i+1), at, func(p *part) func(context.Context) error {
			sessions := 0
			all := w.keepersOf(p, at)
			var to *gateway.Hub
			if at.name != hubName {
				to = gateway.NewHub(relayID, "http://hub", &http.Client{Transport: &link{w.sites[0], p, relayID}})
			}
			g := gateway.New(gateway.Config{
				Keepers: all, Hub: to,
				Session: func() string {
					sessions++
					return fmt.Sprint(p.name, " ", w.starts[p.name], " ", sessions)
				},
				Ledger: at.ledger, Blobs: at.store(), Wake: at.wake(p), Woken: at.listenAgents(p), Terms: at.terms(), Lease: w.lease, Pace: pace, Clients: 100, Uploads: 1 << 20,
				Region: at.name != hubName, Log: w.log(p), Metrics: prometheus.NewRegistry(), Random: w.pace,
			})
			w.mu.Lock()
			at.doors[p.name] = &door{p, g, g.Handler()}
			w.mu.Unlock()
			return func(ctx context.Context) error {
				p.wg.Go(func() { _ = all.Run(ctx) }) // always returns nil
				return g.Run(ctx)
			}
		})
	}
}

const (
	lead   = 10 * time.Second
	poll   = time.Second
	linger = 2 * time.Second
)

func (w *world) addCoordinator(at *site, name string) {
	w.add("coordinator", name, at, func(p *part) func(context.Context) error {
		all := w.keepersOf(p, at)
		c := coordinator.Config{
			Keepers: all, Ledger: at.ledger, Blobs: at.store(), Name: name, Lease: w.lease, Longest: w.longest, Reach: pace.Latest, Lead: lead, Poll: poll,
			Wake: at.wake(p), Woken: at.listen(p), WakeAgents: at.wakeAgents(p), Log: w.log(p), Metrics: prometheus.NewRegistry(),
		}
		return func(ctx context.Context) error {
			p.wg.Go(func() { _ = all.Run(ctx) }) // always returns nil
			return coordinator.Run(ctx, c)
		}
	})
}

func (w *world) addRelay(at, hub *site, name string) {
	w.add("relay", name, at, func(p *part) func(context.Context) error {
		c := coordinator.RegionConfig{
			Ledger: at.ledger, Blobs: at.store(), Terms: at.terms(), Hub: "http://hub", Client: &http.Client{Transport: &link{hub, p, relayID}}, Name: name, Lead: lead,
			Linger: linger, Poll: poll, Wake: at.wake(p), Woken: at.listen(p), WakeAgents: at.wakeAgents(p), Log: w.log(p), Metrics: prometheus.NewRegistry(), Rand: w.random(p, "work"),
		}
		return func(ctx context.Context) error { return coordinator.RunRegion(ctx, c) }
	})
}

func (w *world) addAgent(h *host) {
	w.agents = append(w.agents, h)
	w.add("agent", h.name, h.site, func(p *part) func(context.Context) error {
		sources := map[string]func(int64) int64{}
		var mu sync.Mutex
		dir := filepath.Join(w.dir, h.name)
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, state.SecretFile), fmt.Appendf(nil, "%x", fleetSecret), 0o600)); err != nil {
			w.t.Fatal(err)
		}
		c := agent.Config{
			Name: h.name, Dir: dir, Server: "http://server", Client: &http.Client{Transport: &link{h.site, p, h.name}}, Dataset: h.data, Kernel: w.kernel,
			Log: w.log(p),
			Rand: func(goroutine string) func(int64) int64 {
				mu.Lock()
				defer mu.Unlock()
				if sources[goroutine] == nil {
					sources[goroutine] = w.random(p, goroutine)
				}
				return sources[goroutine]
			},
			Disk: func(step state.Step, what string) error {
				if what == "member" {
					w.mu.Lock()
					h.member = true
					w.mu.Unlock()
				}
				return p.ask(context.Background(), fmt.Sprintf("disk %s %s", step, what), nil)
			},
		}
		w.trusting(&c)
		return func(ctx context.Context) error { return agent.Run(ctx, c) }
	})
}

// log returns the log of a part. An error in the log is a violation unless the simulation has
// caused the error.
func (w *world) log(p *part) *slog.Logger { return slog.New(errorLog{w, p}) }

type errorLog struct {
	w *world
	p *part
}

func (errorLog) Enabled(_ context.Context, l slog.Level) bool {
	return l >= slog.LevelError || *verbose
}

func (e errorLog) Handle(_ context.Context, r slog.Record) error {
	text := fmt.Sprintf("%s logs: %s", e.p.name, r.Message)
	r.Attrs(func(a slog.Attr) bool {
		text += " " + a.String()
		return true
	})
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	if *verbose {
		fmt.Fprintf(os.Stderr, "%10.3f %s\n", time.Since(e.w.start).Seconds(), text)
	}
	// An answer that takes long to arrive is older than an answer of the keeper after a restart.
	expected := strings.Contains(text, "simulated: ") || strings.Contains(text, "a keeper with the same identity that started later")
	if r.Level >= slog.LevelError && !e.p.dead && !expected {
		e.w.violations = append(e.w.violations, text)
	}
	return nil
}

func (e errorLog) WithAttrs([]slog.Attr) slog.Handler { return e }
func (e errorLog) WithGroup(string) slog.Handler      { return e }
