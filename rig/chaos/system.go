package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"loadstar/internal/mtls"
	"loadstar/internal/testkit"
	"loadstar/rig/faultfs"
	"loadstar/rig/patroni"
	"loadstar/rig/product"
)

// The kinds of parts of a system.
const (
	kindServer      = "server" // with all roles
	kindGateway     = "gateway"
	kindCoordinator = "coordinator"
	kindPostgres    = "postgres"
	kindAgent       = "agent"
	kindKeeper      = "keeper"

	// Parts that a fault hits at the same time.
	kindShared = "shared disk" // the blobs, and all processes that write them
	kindSite   = "site"        // all servers and their stores; with a single server, the agents, too
)

// layout describes the processes of a system.
type layout struct {
	// cluster selects PostgreSQL, three gateways and two coordinators, each in its own
	// process. Otherwise one server does everything.
	cluster bool
	agents  int
	// private adds a keeper, and makes agents train only private plans.
	private bool
	// data is the prepared dataset. Its meters are divided among the agents.
	data string
	// own is the prepared dataset of the coordinators, or empty.
	own string
	// standbys means that PostgreSQL runs on three machines, which replicate as the field
	// replication describes.
	standbys    bool
	replication patroni.Options
	// clocks means that the clocks of servers, agents and PostgreSQL can be set. The binary
	// must be built with buildWithClock.
	clocks bool
	// s3 means that blobs are in an S3 store that can fail, instead of a folder.
	s3 bool
	// links means that servers reach PostgreSQL over a link that can be bad.
	links bool
	// serve contains further arguments of the servers. They replace the usual ones.
	serve []string
	// faulty gives each process a separate disk that can fail.
	faulty bool
}

// system is a running fleet on this machine, with all files in one folder.
type system struct {
	layout
	bin, dir string

	address  string   // address of the gateways
	operator string   // folder of the operator's credentials
	auditor  *auditor // nil without private plans
	ledger   *ledger
	servers  []part
	hosts    []*process // the agents
	// revoked contains the numbers of agents that were revoked, and their clients. These agents
	// do not learn which of their results were counted.
	revoked        map[int]bool
	revokedClients map[string]bool
	machines       *patroni.Cluster        // with standbys
	store          *badStore               // with s3
	bad            map[string][]*forwarder // links that can be bad, by the name of their destination
	closers        []io.Closer
	disks          *faultfs.Server // nil if disks do not fail
}

const (
	poll = 100 * time.Millisecond
	lead = 2 * time.Second
)

// anyPlan makes agents train plans that are smaller than their default policy allows, so that
// tests are fast.
var anyPlan = []string{"--policy", "none"}

// start starts the servers of a system, but no agents.
func start(ctx context.Context, bin, dir string, l layout) (*system, error) {
	s := &system{layout: l, bin: bin, dir: dir, bad: map[string][]*forwarder{}}
	for _, sub := range []string{"logs", "servers", "agents"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, err
		}
	}
	if l.faulty {
		var err error
		if s.disks, err = faultfs.Start(); err != nil {
			return nil, err
		}
	}
	if l.clocks {
		if err := s.startClocks(); err != nil {
			return nil, err
		}
	}
	begin := s.one
	if l.cluster {
		begin = s.many
	}
	if err := begin(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	for i := range l.agents {
		if err := s.disk(s.agentDir(i)); err != nil {
			return nil, errors.Join(err, s.Close())
		}
		name := fmt.Sprintf("agent-%02d", i+1)
		s.hosts = append(s.hosts, s.process(kindAgent, name, "agent", "run", "--dir", s.agentDir(i), "--data", l.data,
			"--part", fmt.Sprintf("%d/%d", i+1, l.agents), "--workers", "1", "--log-format", "json", "--log-level", "debug"))
		s.hosts[i].args = append(s.hosts[i].args, anyPlan...)
		if l.private {
			s.hosts[i].args = append(s.hosts[i].args, s.auditor.trusted()...)
		}
	}
	return s, nil
}

func (s *system) process(kind, name string, args ...string) *process {
	return &process{kind: kind, name: name, bin: s.bin, args: args, env: s.clockEnv(kind), log: filepath.Join(s.dir, "logs", name+".log")}
}

func (s *system) agentDir(i int) string {
	return filepath.Join(s.dir, "agents", fmt.Sprintf("%02d", i+1))
}

func (s *system) serverDir(name string) string { return filepath.Join(s.dir, "servers", name) }
func (s *system) blobs() string                { return filepath.Join(s.dir, "blobs") }
func (s *system) database() string             { return filepath.Join(s.dir, "pg") }

// disk makes a folder a separate disk, if disks can fail.
func (s *system) disk(at string) error {
	if s.disks == nil {
		return nil
	}
	name, err := filepath.Rel(s.dir, at)
	if err != nil {
		return err
	}
	return s.disks.New(filepath.Join(s.dir, "disks", strings.ReplaceAll(name, "/", "-")), at)
}

// synced makes everything on a disk durable, for files that the test itself has written.
func (s *system) synced(at string) error {
	if s.disks == nil {
		return nil
	}
	return s.disks.Settle(at)
}

// serve returns a server process that is not started yet, and the address of its health
// checks.
func (s *system) serve(kind, name string, args ...string) (p *process, watch string, err error) {
	port, err := testkit.FreePort()
	if err != nil {
		return nil, "", err
	}
	watch = loopback(port)
	dir := s.serverDir(name)
	if err := s.disk(dir); err != nil {
		return nil, "", err
	}
	// The lease is longer than the whole test, so that no turn is lost.
	all := append([]string{
		"serve", "--dir", dir, "--watch", watch, "--set", "agents.poll=" + poll.String(), "--set", "rounds.lead=" + lead.String(), "--set", "rounds.lease=10m",
	}, args...)
	return s.process(kind, name, append(all, s.layout.serve...)...), watch, nil
}

// ownData returns the arguments of a process with the role coordinator.
func (s *system) ownData() []string {
	if s.own == "" {
		return nil
	}
	return []string{"--set", "rounds.data=" + s.own}
}

// one starts a single server that has all roles.
func (s *system) one(ctx context.Context) error {
	port, err := testkit.FreePort()
	if err != nil {
		return err
	}
	dir, args := s.serverDir("server"), append(s.ownData(), "--listen", loopback(port))
	if s.private {
		if err := mtls.MakeDir(dir); err != nil {
			return err
		}
		more, err := startKeeper(ctx, s, "sqlite:"+filepath.Join(dir, "ledger.db"))
		if err != nil {
			return err
		}
		args = append(args, more...)
	}
	p, watch, err := s.serve(kindServer, "server", args...)
	if err != nil {
		return err
	}
	s.address, s.operator = "https://"+loopback(port), filepath.Join(dir, "operator")
	s.ledger = sqliteLedger(filepath.Join(dir, "ledger.db"))
	s.servers = append(s.servers, p)
	if err := p.Start(); err != nil {
		return err
	}
	return s.ready(ctx, p, watch)
}

// many starts a cluster, with one process for each role.
func (s *system) many(ctx context.Context) error {
	at, err := s.startDatabase()
	if err != nil {
		return err
	}
	blobs := s.blobs()
	if s.s3 {
		if blobs, err = s.startStore(); err != nil {
			return err
		}
	}
	common := []string{"--database", at, "--blobs", blobs}
	if s.private {
		more, err := startKeeper(ctx, s, at)
		if err != nil {
			return err
		}
		common = append(common, more...)
	}
	if err := s.disk(s.blobs()); err != nil {
		return err
	}
	var gateways []string
	var watches []string
	var processes []*process
	add := func(kind string, n int, more ...string) error {
		for i := range n {
			args := append([]string{"--roles", kind}, common...)
			if kind == kindGateway {
				port, err := testkit.FreePort()
				if err != nil {
					return err
				}
				gateways = append(gateways, loopback(port))
				args = append(args, "--listen", loopback(port))
			}
			p, watch, err := s.serve(kind, fmt.Sprintf("%s-%d", kind, i+1), append(args, more...)...)
			if err != nil {
				return err
			}
			processes, watches = append(processes, p), append(watches, watch)
			s.servers = append(s.servers, p)
		}
		return nil
	}
	if err := errors.Join(add(kindGateway, 3), add(kindCoordinator, 2, s.ownData()...)); err != nil {
		return err
	}
	port, err := testkit.FreePort()
	if err != nil {
		return err
	}
	f, err := forward(loopback(port), gateways...)
	if err != nil {
		return err
	}
	s.closers = append(s.closers, f)
	s.bad[linkAgents] = []*forwarder{f}
	s.address, s.operator = "https://"+loopback(port), filepath.Join(s.dir, "servers", processes[0].name, "operator")
	for i, p := range processes {
		if i > 0 { // copy the certificate authority from the first server, as documented
			from, to := filepath.Join(s.dir, "servers", processes[0].name, "pki"), filepath.Join(s.dir, "servers", p.name, "pki")
			if err := errors.Join(copyPrivate(from, to), s.synced(s.serverDir(p.name))); err != nil {
				return err
			}
		}
		if err := p.Start(); err != nil {
			return err
		}
		if i == 0 {
			if err := s.ready(ctx, p, watches[0]); err != nil {
				return err
			}
		}
	}
	for i, p := range processes {
		if err := s.ready(ctx, p, watches[i]); err != nil {
			return err
		}
	}
	return nil
}

func copyPrivate(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	files, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(from, f.Name()))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, f.Name()), b, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// ready waits until a server reports that it is ready.
func (s *system) ready(ctx context.Context, p part, watch string) error {
	if err := product.Ready(ctx, watch, nil); err != nil {
		return fmt.Errorf("%s: %w\n%s", p.Name(), err, p.Log(2000))
	}
	return nil
}

// Close kills all running processes.
func (s *system) Close() error {
	var all []error
	for _, p := range s.hosts {
		all = append(all, p.Kill())
	}
	// PostgreSQL is killed last, since the other processes log errors without it.
	for i := len(s.servers) - 1; i >= 0; i-- {
		all = append(all, s.servers[i].Kill())
	}
	for _, c := range s.closers {
		all = append(all, c.Close())
	}
	if s.ledger != nil {
		s.ledger.Close()
	}
	if s.disks != nil {
		all = append(all, s.disks.Close())
	}
	return errors.Join(all...)
}

// parts returns all servers and agents of the system.
func (s *system) parts() []part {
	all := append([]part(nil), s.servers...)
	for _, p := range s.hosts {
		all = append(all, p)
	}
	return all
}

// exits returns the processes that ended by themselves, with their last log lines.
func (s *system) exits() (all []string) {
	for _, p := range s.parts() {
		if p, ok := p.(*process); ok {
			for _, e := range p.Exits() {
				all = append(all, p.name+" ended by itself, "+e)
			}
		}
	}
	return all
}

// logs returns the ends of all logs, for an error report.
func (s *system) logs(bytes int) string {
	var b strings.Builder
	for _, p := range s.parts() {
		fmt.Fprintf(&b, "--- %s\n%s\n", p.Name(), p.Log(bytes))
	}
	return b.String()
}
