// Package server assembles the gateway, the aggregator and the coordinator into a server.
// They run in one process or in several.
package server

import (
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
	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"

	"loadstar/internal/backoff"
	"loadstar/internal/graceful"
	"loadstar/internal/port"
	"loadstar/server/access"
	"loadstar/server/aggregator"
	"loadstar/server/blob"
	"loadstar/server/bus"
	"loadstar/server/coordinator"
	"loadstar/server/gateway"
	"loadstar/server/ledger"
	"loadstar/server/operator"
	"loadstar/server/owndata"
	"loadstar/server/pki"
	"loadstar/server/region"
	"loadstar/server/terms"
	"loadstar/server/web"
)

// The roles that a server process can have.
const (
	Gateway     = "gateway"
	Aggregator  = "aggregator"
	Coordinator = "coordinator"
)

// Roles returns all roles.
func Roles() []string { return []string{Gateway, Aggregator, Coordinator} }

// Config configures a server.
type Config struct {
	// Dir is the server's folder. It holds the certificate authority. It also holds the
	// database, the queue and the blobs, unless they are configured elsewhere.
	Dir   string
	Roles []string
	// Listen is the address for agents and operators, and Hosts lists the names under
	// which they reach it. Watch is the address for metrics and health checks, without
	// TLS.
	Listen, Watch string
	Hosts         []string
	// Database is sqlite:PATH or postgres://…; empty means SQLite in Dir.
	Database string
	// NATS lists the servers of a NATS cluster; empty means an embedded server.
	NATS []string
	// Blobs is a folder or s3://…; empty means a folder in Dir.
	Blobs string
	// Version is that of the program, for people.
	Version string
	// Web configures the dashboard, which processes with the role gateway serve. It is nil
	// if there is none.
	Web *web.Config
	// Data is the coordinator's own data, or nil.
	Data *owndata.Data
	// Hub makes this server a region: instead of driving its own runs, it relays the hub's
	// tasks. Linger is how long a region waits for further results of a round before it
	// sends a sum.
	Hub    *Hub
	Linger time.Duration
	// AgentClients is the maximum number of clients of an agent or region.
	AgentClients int
	// Aggregators is the number of goroutines that count results in this process.
	Aggregators int

	Certificates, Lease, Lead, Poll, MaxPoll time.Duration
	Rate                                     float64
	Log                                      *slog.Logger
	// Ready is called with the address for agents when all roles have started.
	Ready func(address string)
}

// Hub configures a region's connection to its hub.
type Hub struct {
	Address string
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
	// ackWait is how long the bus waits for an answer before it delivers a result again. A
	// round is delayed by this time if an aggregator dies while it holds results. Counting
	// takes much less time; if it takes longer, a result is delivered twice but counted
	// once.
	ackWait = 5 * time.Second
)

// soleCoordinator is the name of the coordinator if only one process can use the folder.
const soleCoordinator = "alone"

// server is the state of a running server process.
type server struct {
	Config
	authority *pki.Authority
	ledger    *ledger.Ledger
	bus       *bus.Bus
	blobs     blob.Store
	terms     *terms.Cache
	registry  *prometheus.Registry
	ready     atomic.Bool // all roles have started
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
			return nil // cancelled while starting
		}
		return err
	}
	defer s.close()
	return s.serve(ctx)
}

// open opens the services that the roles share: certificate authority, ledger, blobs and
// bus.
func (s *server) open(ctx context.Context) (err error) {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return err
	}
	if s.authority, err = pki.Open(filepath.Join(s.Dir, pkiDir)); err != nil {
		return err
	}
	if s.Database == "" {
		s.Database = "sqlite:" + filepath.Join(s.Dir, ledgerFile)
	}
	if s.ledger, err = s.openLedger(ctx); err != nil {
		return err
	}
	if s.blobs, err = s.openBlobs(ctx); err != nil {
		return err
	}
	s.blobs = blob.Cached(s.blobs, blobCache)
	c := bus.Config{URLs: s.NATS, Replicas: min(len(s.NATS), 3)}
	if len(s.NATS) == 0 {
		c = bus.Config{Dir: filepath.Join(s.Dir, "nats")}
	} else if c.Replicas == 2 {
		c.Replicas = 1
	}
	c.AckWait = ackWait
	if s.bus, err = bus.Open(ctx, c, s.Log); err != nil {
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

// openLedger opens the ledger. It waits for an unreachable database, because after a power
// failure the database may start later than this server.
func (s *server) openLedger(ctx context.Context) (*ledger.Ledger, error) {
	retry := backoff.Backoff{Base: 100 * time.Millisecond, Cap: 5 * time.Second}
	for {
		l, err := ledger.Open(ctx, s.Database)
		if err == nil || !ledger.Unreachable(err) {
			return l, err
		}
		s.Log.Warn("waiting for the database", "error", err)
		if retry.Wait(ctx) != nil {
			return nil, err
		}
	}
}

// openBlobs opens a folder or s3://HOST/BUCKET/PREFIX. The scheme s3+http means a store
// without TLS. The store's keys are read from the environment.
func (s *server) openBlobs(ctx context.Context) (blob.Store, error) {
	scheme, rest, _ := strings.Cut(s.Blobs, "://")
	if scheme == "s3" || scheme == "s3+http" {
		host, bucket, _ := strings.Cut(rest, "/")
		bucket, prefix, _ := strings.Cut(bucket, "/")
		return blob.S3(ctx, blob.S3Config{Endpoint: host, Bucket: bucket, Prefix: prefix, Plaintext: scheme == "s3+http"})
	}
	if s.Blobs == "" {
		s.Blobs = filepath.Join(s.Dir, blobsDir)
	}
	return blob.Files(s.Blobs)
}

func (s *server) close() {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownGrace)
	defer cancel()
	if s.bus != nil {
		if err := s.bus.Close(ctx); err != nil {
			s.Log.Warn("cannot close the bus", "error", err)
		}
	}
	if s.ledger != nil {
		if err := s.ledger.Close(); err != nil {
			s.Log.Warn("cannot close the ledger", "error", err)
		}
	}
}

// serve runs the configured roles. If one of them ends, all end.
func (s *server) serve(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	var agents net.Listener
	if slices.Contains(s.Roles, Gateway) { // before the port for monitoring, which matters less
		var err error
		if agents, err = port.Listen("--listen", s.Listen); err != nil {
			return err
		}
		defer agents.Close()
	}
	if s.Watch != "" {
		l, err := port.Listen("--watch", s.Watch)
		if err != nil {
			return err
		}
		group.Go(func() error { return serveHTTP(ctx, l, s.monitoring()) })
	}
	if slices.Contains(s.Roles, Coordinator) {
		woken, err := s.bus.Woken(ctx)
		if err != nil {
			return err
		}
		group.Go(func() error {
			if s.Hub != nil {
				return region.Run(ctx, region.Config{
					Ledger: s.ledger, Blobs: s.blobs, Terms: s.terms, Hub: s.Hub.Address, Client: s.Hub.Client, Renew: s.Hub.Renew,
					Name: s.name(), Version: s.Version, Lead: s.Lead, Linger: s.Linger, Poll: min(s.Poll, time.Second),
					Wake: s.bus.Wake, Woken: woken, Log: s.Log, Metrics: s.registry,
				})
			}
			return coordinator.Run(ctx, coordinator.Config{
				Ledger: s.ledger, Blobs: s.blobs, Name: s.name(), Lease: s.Lease, Reach: s.pace().Latest, Lead: s.Lead, Poll: min(s.Poll, time.Second),
				Data: s.Data, Wake: s.bus.Wake, Woken: woken, Log: s.Log, Metrics: s.registry,
			})
		})
	}
	if slices.Contains(s.Roles, Aggregator) {
		group.Go(func() error {
			return aggregator.Run(ctx, aggregator.Config{
				Ledger: s.ledger, Bus: s.bus, Terms: s.terms, Batch: aggregator.DefaultBatch, Bytes: aggregator.DefaultBytes, Workers: s.Aggregators, Log: s.Log, Metrics: s.registry,
			})
		})
	}
	address := ""
	if agents != nil {
		if err := s.gateway(ctx, group, agents); err != nil {
			return err
		}
		address = agents.Addr().String()
	}
	s.ready.Store(true)
	s.Log.Info("serving", "roles", strings.Join(s.Roles, ","), "address", address)
	if s.Ready != nil {
		s.Ready(address)
	}
	return group.Wait()
}

func (s *server) pace() gateway.Pace {
	return gateway.Pace{Poll: s.Poll, MaxPoll: s.MaxPoll, Rate: s.Rate}
}

// name returns a unique name for this coordinator.
func (s *server) name() string {
	if len(s.NATS) == 0 && strings.HasPrefix(s.Database, "sqlite:") {
		return soleCoordinator // the embedded bus locks the folder, so there is only one process
	}
	host, _ := os.Hostname()
	return fmt.Sprintf("%s-%d-%s", host, os.Getpid(), strings.ToLower(rand.Text()[:6]))
}

// writeOperator writes the certificate of the user local to the server's folder, unless it
// is there, and records it in the ledger, which lists all certificates that are accepted. It
// also records one that an older server wrote, which kept no list.
func (s *server) writeOperator(ctx context.Context) error {
	c, err := s.authority.WriteOperator(filepath.Join(s.Dir, "operator"), operatorLife, func(serial string) (bool, error) {
		c, _, err := s.ledger.CertificateOf(ctx, serial)
		if errors.Is(err, ledger.ErrNotFound) {
			return false, nil
		}
		return !c.Revoked.IsZero(), err
	})
	if err != nil {
		return err
	}
	now := time.Now()
	return s.ledger.RecordLocal(ctx, ledger.Certificate{Serial: pki.Serial(c), User: ledger.LocalUser, Issued: now, Expires: c.NotAfter}, now)
}

// gateway serves agents and operators on one port.
func (s *server) gateway(ctx context.Context, group *errgroup.Group, l net.Listener) error {
	if err := s.writeOperator(ctx); err != nil {
		return err
	}
	settings, err := s.authority.TLS(s.Hosts)
	if err != nil {
		return err
	}
	g := gateway.New(gateway.Config{
		Ledger: s.ledger, Blobs: s.blobs, Bus: s.bus, Terms: s.terms, Authority: s.authority,
		Certificates: s.Certificates, Lease: s.Lease, Pace: s.pace(),
		Clients: s.AgentClients, Uploads: maxUploads, Region: s.Hub != nil, Log: s.Log, Metrics: s.registry,
	})
	users := access.New(s.ledger, s.Log)
	w := operator.Config{Ledger: s.ledger, Access: users, Authority: s.authority, Pin: s.authority.Pin(), Wake: s.bus.Wake, Revoked: g.Revoked, Closing: ctx.Done(), Log: s.Log, Version: s.Version, Quiet: s.pace().Quiet}
	if s.Hub != nil {
		w.Hub = s.Hub.Address
	}
	var page *web.Web
	if s.Web != nil {
		if page, err = web.Open(*s.Web); err != nil {
			return err
		}
		w.Page = page.URL()
	}
	o := operator.New(w)
	mux := http.NewServeMux()
	mux.Handle("/", g.Handler())
	mux.Handle("/loadstar.v1.OperatorService/", o.Handler())
	if page != nil {
		group.Go(func() error {
			return page.Run(ctx, web.Services{API: o, Access: users, Log: s.Log, Metrics: s.registry})
		})
	}
	group.Go(func() error { return g.Run(ctx) })
	group.Go(func() error {
		h := newHTTP(pki.Middleware(users.Certificates(mux)))
		h.TLSConfig = settings
		return graceful.Serve(ctx, h, shutdownGrace, func() error { return h.ServeTLS(netutil.LimitListener(l, maxConnections), "", "") })
	})
	return nil
}
