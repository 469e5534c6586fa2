// Package server assembles the gateway and the coordinator into a server. The gateway and the
// coordinator run in one process or in several.
package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"loadstar/fed"
	"loadstar/internal/backoff"
	"loadstar/internal/disk"
	"loadstar/internal/service"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/access"
	"loadstar/server/blob"
	"loadstar/server/coordinator"
	"loadstar/server/examine"
	"loadstar/server/gateway"
	"loadstar/server/keepers"
	"loadstar/server/ledger"
	"loadstar/server/operator"
	"loadstar/server/pki"
	"loadstar/server/sqlstore"
	"loadstar/server/terms"
	"loadstar/server/web"
)

// The roles that a server process can have.
const (
	Gateway     = "gateway"
	Coordinator = "coordinator"
)

// Roles returns all roles.
func Roles() []string { return []string{Gateway, Coordinator} }

// Config configures a server.
type Config struct {
	// Dir is the server's folder. It holds the certificate authority. It also holds the
	// database and the blobs, unless they are configured elsewhere.
	Dir   string
	Roles []string
	// Listen is the address for agents and operators, and Hosts lists the names under which they
	// reach it. Watch is the address for metrics and health checks, which are served without
	// TLS.
	Listen, Watch string
	Hosts         []string
	// Operators is a separate address for operators. If it is empty, they use Listen.
	Operators string
	// AddressRate is the number of new connections that an address may open per second. If it is
	// 0, there is no limit per address.
	AddressRate float64
	// Database is sqlite:PATH or postgres://…; empty means SQLite in Dir.
	Database string
	// AllowLoss lets the server start even if a setting can cause the loss of counted updates.
	AllowLoss bool
	// Keep determines how long the ledger keeps data that it no longer needs. Coordinators
	// delete old data.
	Keep ledger.Retention
	// Revocations is the file with the list of all revocations. Empty means a file in Dir.
	Revocations string
	// Blobs is a folder or s3://…. Empty means a folder in Dir. BlobsCA is a file with the
	// authorities that may sign the certificate of an S3 store. Empty means the system's
	// authorities.
	Blobs, BlobsCA string
	// Version is the version of the program, for display.
	Version string
	// Web configures the dashboard, which processes with the role gateway serve. It is nil
	// if there is none.
	Web *web.Config
	// Explain explains a plan for a number of clients to operators. It may be nil.
	Explain func(p *fed.Plan, clients int) (string, error)
	// Data is the coordinator's own data, or nil.
	Data *terms.OwnData
	// Hub makes this server a region, which relays the hub's tasks instead of driving its
	// own runs. Linger is the time for which a region waits for further results of a round
	// before it sends a sum.
	Hub    *Hub
	Linger time.Duration
	// Notify sends notifications of findings. It may be nil.
	Notify *examine.Notifier
	// Keepers are the keepers that private plans may name.
	Keepers []keepers.Address
	// AgentClients is the maximum number of clients of an agent or region.
	AgentClients int

	// Keys determines how the keys of the certificate authority are stored.
	Keys pki.Keys
	// Grace is the time for which an agent's certificate can be renewed after it has expired.
	Grace time.Duration

	Certificates, Lease, Lead, Poll, MaxPoll time.Duration
	// LongestTurn is the longest time that a client's turn may take; 0 means no limit.
	LongestTurn time.Duration
	// FleetSeen is the time after an agent's last call from which on its clients no longer take
	// part in runs. 0 means three times the interval between calls, but at least ten minutes.
	FleetSeen time.Duration
	Rate      float64
	Log       *slog.Logger
	// Ready is called with the address for agents when all roles have started.
	Ready func(address string)
}

// Hub configures a region's connection to its hub.
type Hub struct {
	Address string
	// Name is the region's name at the hub.
	Name string
	// Client presents the region's certificate. Renew renews the certificate if it is
	// due.
	Client *http.Client
	Renew  func(ctx context.Context, now time.Time) (bool, error)
}

const (
	maxUploads    = 256 << 20
	blobCache     = 256 << 20
	operatorLife  = 365 * 24 * time.Hour
	shutdownGrace = 10 * time.Second
)

// soleCoordinator is the name of the coordinator if only one process can use the folder.
const soleCoordinator = "alone"

// server is the state of a running server process.
type server struct {
	Config
	authority *pki.Authority
	ledger    *ledger.Ledger
	revoked   *revocations
	folder    *os.File // folder that is locked while this process runs; nil unless the database is SQLite
	blobs     blob.Store
	rawBlobs  blob.Store // without the cache
	terms     *terms.Cache
	keepers   *keepers.Set
	registry  *prometheus.Registry
	limited   *access.LimitReport
	ready     atomic.Bool // all roles have started
	running   *os.File    // file that exists while this process runs; nil if another process has it
	unclean   bool        // the previous process did not end cleanly
	// waits describes what rounds are waiting for. It is nil without the role gateway.
	waits func(context.Context) ([]string, error)
	page  string // address of the dashboard; empty if there is none
	// listens contains the addresses on which this process listens, by key of server.yaml.
	listens map[string]string
}

// Run runs the server until ctx ends, and then shuts down gracefully.
func Run(ctx context.Context, c Config) error {
	s := &server{Config: c, registry: prometheus.NewRegistry()}
	s.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, r := range c.Roles {
		if !slices.Contains(Roles(), r) {
			return fmt.Errorf("unknown role %q; the roles are %s", r, strings.Join(Roles(), ", "))
		}
	}
	if err := s.open(ctx); err != nil {
		s.close()
		if ctx.Err() != nil {
			return nil // cancelled during the start
		}
		return err
	}
	defer s.close()
	return s.serve(ctx)
}

// open opens the services that the roles share: the certificate authority, the ledger and the
// blobs.
func (s *server) open(ctx context.Context) (err error) {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return err
	}
	s.Database = cmp.Or(s.Database, "sqlite:"+filepath.Join(s.Dir, ledgerFile))
	if strings.HasPrefix(s.Database, "sqlite:") {
		if err := s.lockFolder(); err != nil {
			return err
		}
	}
	if at := sqlstore.Unverified(s.Database); at != "" {
		s.Log.Warn("the connection to the database does not verify the server's identity, so an attacker on the network can read and change everything; add sslmode=verify-full&sslrootcert=FILE to --database", "database", at)
	}
	if err := s.patiently(ctx, s.openLedger); err != nil {
		return err
	}
	s.countWork()
	s.Revocations = cmp.Or(s.Revocations, filepath.Join(s.Dir, revocationsFile))
	if err := s.patiently(ctx, s.openRevocations); err != nil {
		return err
	}
	if slices.Contains(s.Roles, Gateway) { // the other roles need no certificates
		if err := s.patiently(ctx, s.openAuthority); err != nil {
			return err
		}
		if err := s.patiently(ctx, s.writeOperator); err != nil {
			return err
		}
	}
	if s.rawBlobs, err = s.openBlobs(ctx); err != nil {
		return err
	}
	s.rawBlobs = examine.Blobs(s.rawBlobs, s.Log, s.registry)
	s.blobs = blob.Cached(s.rawBlobs, blobCache)
	if err := s.patiently(ctx, s.checkSettings); err != nil {
		return err
	}
	if err := s.patiently(ctx, s.openKeepers); err != nil {
		return err
	}
	s.terms = terms.NewCache(func(ctx context.Context, run string) (*terms.Terms, error) {
		r, err := s.ledger.Run(ctx, run)
		if err != nil {
			return nil, err
		}
		if r.Fleet == 0 {
			return nil, fmt.Errorf("run %s has not begun: %w", run, ledger.ErrNotFound)
		}
		return terms.Read(r.Plan, r.PlanBlob, r.Fleet)
	})
	return nil
}

// openKeepers creates the keepers' clients, and logs the identity by which keepers recognise
// this server.
func (s *server) openKeepers(ctx context.Context) error {
	if s.Hub != nil {
		return nil
	}
	key, err := s.ledger.KeepersKey(ctx)
	if err != nil {
		return err
	}
	s.Log.Info("keepers know this server by its identity", "identity", keepers.Fingerprint(key))
	s.keepers, err = keepers.New(ctx, keepers.Config{Addresses: s.Keepers, Key: key, Epoch: s.ledger.KeeperEpoch, Answered: s.ledger.KeeperAnswered, Log: s.Log, Metrics: s.registry})
	return err
}

func (s *server) openLedger(ctx context.Context) (err error) {
	s.ledger, err = ledger.Open(ctx, s.Database)
	return err
}

// patiently repeats a step of the start until the database responds. After a power failure, the
// database may start later than this server, and a failover can happen between two steps.
func (s *server) patiently(ctx context.Context, step func(context.Context) error) error {
	retry := backoff.Backoff{Base: 100 * time.Millisecond, Cap: 5 * time.Second}
	for {
		err := step(ctx)
		if err == nil || !sqlstore.Unreachable(err) {
			return err
		}
		s.Log.Warn("waiting for the database", "error", err)
		if retry.Wait(ctx) != nil {
			return err
		}
	}
}

// lockFolder makes sure that no other process serves from this folder. Processes that share a
// database need PostgreSQL, because SQLite does not notify one process when another has counted
// results.
func (s *server) lockFolder() error {
	f, err := os.OpenFile(filepath.Join(s.Dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := disk.TryLock(f); err != nil {
		_ = f.Close() // nothing was written to it
		return fmt.Errorf("another server uses the folder %s; stop it, or give several processes a PostgreSQL database with --database", s.Dir)
	}
	s.folder = f
	return nil
}

// countWork exports metrics of the server's queries, which account for most of the cost of an
// update.
func (s *server) countWork() {
	for name, of := range map[string]func() uint64{
		"statements":   func() uint64 { n, _ := s.ledger.Store.Work(); return n },
		"transactions": func() uint64 { _, n := s.ledger.Store.Work(); return n },
	} {
		s.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "loadstar_ledger_" + name + "_total", Help: "SQL " + name + " of this process.",
		}, func() float64 { return float64(of()) }))
	}
}

// openBlobs opens a folder or s3://HOST/BUCKET/PREFIX. The scheme s3+http selects a store
// without TLS. The store's keys are read from the environment.
func (s *server) openBlobs(ctx context.Context) (blob.Store, error) {
	scheme, rest, _ := strings.Cut(s.Blobs, "://")
	if scheme == "s3" || scheme == "s3+http" {
		host, bucket, _ := strings.Cut(rest, "/")
		bucket, prefix, _ := strings.Cut(bucket, "/")
		return blob.S3(ctx, blob.S3Config{Endpoint: host, Bucket: bucket, Prefix: prefix, Plaintext: scheme == "s3+http", CAFile: s.BlobsCA})
	}
	if s.BlobsCA != "" {
		return nil, errors.New("store.blobs_ca requires an S3 store in store.blobs")
	}
	s.Blobs = cmp.Or(s.Blobs, filepath.Join(s.Dir, blobsDir))
	return blob.Files(s.Blobs)
}

func (s *server) close() {
	if s.ledger != nil {
		if err := s.ledger.Close(); err != nil {
			s.Log.Warn("cannot close the ledger", "error", err)
		}
	}
	s.endedCleanly()
	if s.folder != nil {
		_ = s.folder.Close() // nothing was written to it
	}
}

// serve runs the configured roles. If one of them ends, it stops the others.
func (s *server) serve(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	s.limited = access.NewLimitReport(s.Log, s.registry)
	s.listens = map[string]string{}
	var agents, operators net.Listener
	if slices.Contains(s.Roles, Gateway) { // listen here first, because the port for monitoring is less important
		var err error
		if agents, err = service.Listen("--listen", s.Listen); err != nil {
			return err
		}
		s.listens["listen"] = agents.Addr().String()
		defer agents.Close()
		if s.Operators != "" {
			if operators, err = service.Listen("operators", s.Operators); err != nil {
				return err
			}
			defer operators.Close()
			s.listens["operators"] = operators.Addr().String()
		}
	}
	if s.Watch != "" {
		l, err := service.Listen("--watch", s.Watch)
		if err != nil {
			return err
		}
		s.listens["watch"] = l.Addr().String()
		group.Go(func() error { return serveHTTP(ctx, l, s.monitoring()) })
	}
	if slices.Contains(s.Roles, Coordinator) {
		woken := s.ledger.Woken(ctx)
		group.Go(func() error {
			if s.Hub != nil {
				return coordinator.RunRegion(ctx, coordinator.RegionConfig{
					Ledger: s.ledger, Blobs: s.blobs, Terms: s.terms, Hub: s.Hub.Address, Client: s.Hub.Client, Renew: s.Hub.Renew,
					Name: s.name(), Version: s.Version, Lead: s.Lead, Linger: s.Linger, Poll: min(s.Poll, time.Second),
					Wake: s.ledger.Wake, Woken: woken, WakeAgents: s.ledger.WakeAgents, Log: s.Log, Metrics: s.registry,
				})
			}
			return coordinator.Run(ctx, coordinator.Config{
				Ledger: s.ledger, Blobs: s.blobs, Name: s.name(), Lease: s.Lease, Reach: s.pace().Latest, Longest: s.LongestTurn, Seen: s.fleetSeen, Lead: s.Lead, Poll: min(s.Poll, time.Second),
				Data: s.Data, Keepers: s.keepers, Wake: s.ledger.Wake, Woken: woken, WakeAgents: s.ledger.WakeAgents, Log: s.Log, Metrics: s.registry,
			})
		})
	}
	address := ""
	if agents != nil {
		if err := s.gateway(ctx, group, agents, operators); err != nil {
			return err
		}
		address = agents.Addr().String()
	}
	group.Go(func() error { return s.revoked.run(ctx, s) })
	group.Go(func() error { return s.keepers.Run(ctx) })
	watcher := &examine.Watcher{Config: s.examination(), Log: s.Log, Unclean: s.unclean, Notify: s.Notify}
	if s.Notify != nil {
		s.Notify.Log = s.Log
		if s.Web != nil {
			s.Notify.Page = s.page
		}
	}
	watcher.Register(s.registry)
	group.Go(func() error { return watcher.Run(ctx) })
	if slices.Contains(s.Roles, Coordinator) {
		group.Go(func() error { return s.prune(ctx) })
	}
	if err := s.noteAddresses(); err != nil {
		s.Log.Warn("cannot record the addresses of this process for loadstar doctor", "error", err)
	}
	s.ready.Store(true)
	s.Log.Info("serving", "roles", strings.Join(s.Roles, ","), "address", address)
	if operators != nil {
		s.Log.Info("serving operators", "address", operators.Addr().String())
	}
	if s.Ready != nil {
		s.Ready(address)
	}
	return group.Wait()
}

// pruneEvery is the interval at which a coordinator deletes data that the ledger no longer
// needs.
const pruneEvery = time.Hour

// silence is the maximum time since the last call of any agent for which old rows are still
// deleted. After a longer time, the clock is probably wrong and would make all rows look old.
const silence = 7 * 24 * time.Hour

func (s *server) prune(ctx context.Context) error {
	for {
		n, err := s.pruneOnce(ctx, s.ledger.Now())
		if err != nil && ctx.Err() == nil {
			s.Log.Warn("cannot delete old rows of the ledger", "error", err)
		} else if n > 0 {
			s.Log.Info("deleted old rows of the ledger", "rows", n)
		}
		if backoff.Sleep(ctx, pruneEvery) != nil {
			return nil
		}
	}
}

func (s *server) pruneOnce(ctx context.Context, now time.Time) (deleted int64, err error) {
	seen, err := s.ledger.Directory.LastSeen(ctx)
	if err != nil || seen.IsZero() {
		return 0, err
	}
	if now.Sub(seen) > silence {
		s.Log.Warn("no old rows of the ledger are deleted, because no agent has called for a long time; check the clock", "last call", seen, "clock", now)
		return 0, nil
	}
	return s.ledger.Prune(ctx, s.Keep, now)
}

// leastFleetSeen is the minimum of FleetSeen if it is not configured.
const leastFleetSeen = 10 * time.Minute

func (s *server) fleetSeen(agents int64) time.Duration {
	if s.FleetSeen > 0 {
		return s.FleetSeen
	}
	return max(s.pace().Quiet(agents), leastFleetSeen)
}

func (s *server) pace() gateway.Pace {
	return gateway.Pace{Poll: s.Poll, MaxPoll: s.MaxPoll, Rate: s.Rate}
}

// name returns a unique name for this coordinator.
func (s *server) name() string {
	if strings.HasPrefix(s.Database, "sqlite:") {
		return soleCoordinator // the folder is locked, so there is only one process
	}
	host, _ := os.Hostname()
	return fmt.Sprintf("%s-%d-%s", host, os.Getpid(), strings.ToLower(rand.Text()[:6]))
}

// gateway serves agents and operators, on one port if there is no listener for operators.
func (s *server) gateway(ctx context.Context, group *errgroup.Group, agents, operators net.Listener) error {
	settings, err := s.authority.TLS(s.Hosts)
	if err != nil {
		return err
	}
	group.Go(func() error { return s.watchAuthority(ctx) })
	var hub *gateway.Hub
	if s.Hub != nil {
		hub = gateway.NewHub(s.Hub.Name, s.Hub.Address, s.Hub.Client)
	}
	g := gateway.New(gateway.Config{
		Hub: hub, Ledger: s.ledger, Blobs: s.blobs, Wake: s.ledger.Wake, Woken: s.ledger.AgentsWoken(ctx), Terms: s.terms, Authority: s.authority,
		Certificates: s.Certificates, Grace: s.Grace, Lease: s.Lease, Pace: s.pace(), SeenEvery: min(s.FleetSeen/4, time.Minute),
		Clients: s.AgentClients, Uploads: maxUploads, ByAddress: s.AddressRate > 0, Report: s.limited, Region: s.Hub != nil, Keepers: s.keepers, Log: s.Log, Metrics: s.registry,
	})
	users := access.New(s.ledger.Users, s.Log)
	w := operator.Config{Ledger: s.ledger, Access: users, Authority: s.authority, Wake: s.ledger.Wake, Revoked: g.Revoked, Closing: ctx.Done(), Log: s.Log, Version: s.Version, Quiet: s.pace().Quiet, Contact: g.Contact, Refused: g.Refused, Explain: s.Explain, Keepers: s.keepers.Has, Deadline: terms.UsualDeadline(s.LongestTurn, s.Lease)}
	if s.Hub != nil {
		w.Hub = s.Hub.Address
	}
	w.Agents, w.Apart = s.addressOf(agents), operators != nil
	var page *web.Web
	if s.Web != nil {
		if page, err = web.Open(*s.Web); err != nil {
			return err
		}
		w.Page = page.URL()
		s.page = w.Page
		s.listens["web.listen"] = page.Address()
	}
	o := operator.New(w)
	s.waits = o.Waits
	if page != nil {
		group.Go(func() error {
			return page.Run(ctx, web.Services{API: o, Access: users, Log: s.Log, AddressRate: s.AddressRate, Limited: s.limited})
		})
	}
	group.Go(func() error { return g.Run(ctx) })
	mux := http.NewServeMux()
	mux.Handle("/", g.Handler())
	calls := "/" + v1.OperatorServiceName + "/"
	if operators == nil {
		mux.Handle(calls, o.Handler())
	} else {
		mux.Handle(calls, elsewhere(errForAgents))
		own := http.NewServeMux()
		own.Handle(calls, o.Handler())
		own.Handle("/"+v1.AgentServiceName+"/", elsewhere(errForOperators))
		own.Handle("/v1/blobs/", g.Handler())
		group.Go(func() error {
			return s.serveTLS(ctx, operators, settings, users.Certificates(own), s.limitOperators())
		})
	}
	group.Go(func() error { return s.serveTLS(ctx, agents, settings, users.Certificates(mux), s.limitAgents()) })
	return nil
}
