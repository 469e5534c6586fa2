package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"loadstar/agent"
	"loadstar/agent/identity"
	"loadstar/agent/state"
	"loadstar/fed/recipe"
	"loadstar/fed/round"
	"loadstar/internal/mtls"
	"loadstar/internal/protocol"
	"loadstar/nn/kernel"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/series"
	"loadstar/series/synth"
	"loadstar/server"
)

// patient is the time for which a test waits for an event that must happen. It is long enough
// for a machine under heavy load.
const patient = 5 * time.Minute

// site runs servers, agents and regions in the test's process.
type site struct {
	t   *testing.T
	dir string
}

// process is a server, agent or region of a site that can be stopped.
type process struct {
	stop func()
}

func (s *site) spawn(name string, run func(ctx context.Context) error) *process {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	p := &process{stop: sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil && !errors.Is(err, context.Canceled) {
				s.t.Errorf("%s: %v", name, err)
			}
		case <-time.After(patient):
			s.t.Errorf("%s does not stop", name)
		}
	})}
	s.t.Cleanup(p.stop)
	return p
}

// serve starts a server in a folder. A restarted server keeps its address.
func (s *site) serve(name, address string, change func(*server.Config)) (*process, string) {
	s.t.Helper()
	ready := make(chan string, 1)
	c := server.Config{
		Dir: filepath.Join(s.dir, name), Roles: server.Roles(), Listen: address, Hosts: []string{"127.0.0.1"},
		Certificates: time.Hour, Lease: 10 * time.Minute, Lead: 10 * time.Second, Poll: 30 * time.Millisecond, MaxPoll: time.Hour,
		Rate: 1e6, AgentClients: 100, Linger: 200 * time.Millisecond, Log: s.log(name), Ready: func(at string) { ready <- at },
	}
	if change != nil {
		change(&c)
	}
	p := s.spawn(name, func(ctx context.Context) error { return server.Run(ctx, c) })
	select {
	case at := <-ready:
		return p, at
	case <-time.After(patient):
		s.t.Fatalf("%s does not start", name)
	}
	return nil, ""
}

// asRegion joins the hub as a region and returns the region's configuration.
func (s *site) asRegion(name, at string, atHub v1.OperatorServiceClient) func(*server.Config) {
	s.t.Helper()
	i := s.join(name+"/hub", at, atHub)
	return func(c *server.Config) {
		c.Hub = &server.Hub{Address: i.Server(), Name: i.ID(), Client: i.HTTPClient(), Renew: i.RenewIfDue}
	}
}

func (s *site) log(name string) *slog.Logger {
	if !testing.Verbose() {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, nil)).With("at", name)
}

// operator returns a client for the operators' API that uses the operator's certificate in a
// server's folder.
func (s *site) operator(name, address string) v1.OperatorServiceClient {
	s.t.Helper()
	c, err := mtls.ReadFolder(filepath.Join(s.dir, name, "operator"))
	if err != nil {
		s.t.Fatal(err)
	}
	return v1.NewOperatorServiceClient(mtls.Client(mtls.Transport(c.TLS())), "https://"+address)
}

// join joins a server with a new token and returns the identity.
func (s *site) join(name, address string, o v1.OperatorServiceClient) *identity.Identity {
	s.t.Helper()
	token, err := o.CreateToken(s.t.Context(), &v1.CreateTokenRequest{Uses: 1, TtlSeconds: 3600})
	if err != nil {
		s.t.Fatal(err)
	}
	shareSecret(s.t, filepath.Join(s.dir, name))
	i, err := identity.Join(s.t.Context(), filepath.Join(s.dir, name), "https://"+address, token.Token, name)
	if err != nil {
		s.t.Fatal(err)
	}
	return i
}

// fleetSecret is the secret of all agents in tests, with which the simulator repeats a run.
var fleetSecret = [32]byte{7}

// shareSecret writes the agents' secret to the folder of an agent that has not joined yet.
func shareSecret(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, state.SecretFile), fmt.Appendf(nil, "%x", fleetSecret), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (s *site) host(name string, i *identity.Identity, d *series.Dataset, k *kernel.Set) {
	s.spawn(name, func(ctx context.Context) error {
		return agent.Run(ctx, agent.Config{
			Dir: filepath.Join(s.dir, name), Server: i.Server(), Client: i.HTTPClient(), Dataset: d, Kernel: k, Log: s.log(name),
		})
	})
}

func generated(t *testing.T, meters int) *series.Dataset {
	t.Helper()
	g, err := synth.New(synth.Config{Seed: 3, Meters: meters, Start: time.Date(2018, 2, 20, 0, 0, 0, 0, time.UTC), Days: 30, Zone: "UTC"})
	if err != nil {
		t.Fatal(err)
	}
	d := series.Dataset{Name: "generated", Generated: true, Interval: time.Hour, Clock: time.UTC, StaticNames: []string{"floor_area"}}
	var all []series.Meter
	for i := range meters {
		load := make([]float32, g.Len())
		b := g.Building(i, load)
		all = append(all, series.Meter{ID: fmt.Sprintf("meter-%03d", i), Start: g.Time(0).Unix(), Load: load, Static: []float32{float32(b.FloorArea)}})
	}
	made, err := series.NewDataset(d, all)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// TestRegion checks that a region's clients are counted once each, as if they were the hub's
// own clients, and that the final weights equal those of the simulator, even if hub and region
// are restarted during the run.
func TestRegion(t *testing.T) {
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	for name, plan := range map[string]string{
		"a sum":        "{algorithm: fedadam, partition: head, rounds: 12, client: {steps: 1, batch: 8}, server: {clip: 0.9, coordinate: 0.5}, schedule: {cohort: 6}, evaluate: {every: 2, windows: 8}}",
		"control":      "{algorithm: scaffold, rounds: 6, client: {steps: 1, batch: 8}, server: {clip: 0.9}, schedule: {cohort: 6}, evaluate: {every: 0}}",
		"each update":  "{algorithm: fedavgadaptive, rounds: 6, client: {steps: 1, batch: 8}, server: {clip: 0.9}, schedule: {cohort: 6}, evaluate: {every: 1, windows: 8}}",
		"trimmed":      "{algorithm: fedavg, rounds: 6, client: {steps: 2, batch: 8}, server: {robust: trim}, schedule: {cohort: 6}, evaluate: {every: 0}}",
		"asynchronous": "{algorithm: fedbuff, rounds: 10, client: {steps: 1, batch: 8}, schedule: {cohort: 5, buffer: 3}, evaluate: {every: 0}}",
	} {
		if testing.Short() && name != "a sum" {
			continue // one case is enough for the short form of the test
		}
		t.Run(name, func(t *testing.T) {
			s := &site{t: t, dir: t.TempDir()}
			d := generated(t, 9)
			hub, at := s.serve("hub", "127.0.0.1:0", nil)
			atHub := s.operator("hub", at)
			asRegion := s.asRegion("region", at, atHub)
			region, regionAt := s.serve("region", "127.0.0.1:0", asRegion)
			atRegion := s.operator("region", regionAt)
			for i := range 3 {
				part, err := d.Part(i+1, 3)
				if err != nil {
					t.Fatal(err)
				}
				id := "agent" + string(rune('1'+i))
				if i == 0 {
					s.host(id, s.join(id, at, atHub), part, k)
				} else {
					s.host(id, s.join(id, regionAt, atRegion), part, k)
				}
			}
			run, err := atHub.StartRun(t.Context(), &v1.StartRunRequest{Plan: plan, Clients: 9})
			if err != nil {
				t.Fatal(err)
			}
			if name == "a sum" {
				time.Sleep(time.Second)
				hub.stop()
				time.Sleep(300 * time.Millisecond)
				region.stop()
				s.serve("region", regionAt, asRegion)
				s.serve("hub", at, nil)
			}
			got := s.finished(atHub, run.Run)
			for _, r := range got.Rounds {
				if name != "asynchronous" && (r.Asked != 6 || r.Counted != 6 || r.State != "merged") {
					t.Errorf("round %v", r)
				}
				if r.Evaluated != 0 && (r.Evaluated != r.Counted || r.RelativeMae <= 0) || r.Evaluated == 0 && name == "each update" {
					t.Errorf("round %d: %d clients evaluated, mean %v", r.Round, r.Evaluated, r.RelativeMae)
				}
			}
			if name == "asynchronous" {
				if got.Run.Version != 10 {
					t.Errorf("version %d", got.Run.Version)
				}
				return
			}
			if !bytes.Equal(s.weights("hub", at, got), simulated(t, run.Run, plan, d, k)) {
				t.Error("the weights differ from the simulator's")
			}
		})
	}
}

func (s *site) finished(o v1.OperatorServiceClient, run string) *v1.GetRunResponse {
	s.t.Helper()
	for end := time.Now().Add(patient); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		r, err := o.GetRun(s.t.Context(), &v1.GetRunRequest{Run: run, Rounds: 1000})
		if err != nil || r.Run.State == "waiting" || r.Run.State == "running" {
			continue
		}
		if r.Run.State != "finished" {
			s.t.Fatalf("the run is %s: %s", r.Run.State, r.Run.Reason)
		}
		return r
	}
	s.t.Fatal("the run does not finish")
	return nil
}

// weights fetches the newest shared weights of a run from a server.
func (s *site) weights(name, address string, r *v1.GetRunResponse) []byte {
	s.t.Helper()
	c, err := mtls.ReadFolder(filepath.Join(s.dir, name, "operator"))
	if err != nil {
		s.t.Fatal(err)
	}
	b, err := protocol.FetchBlob(s.t.Context(), mtls.Client(mtls.Transport(c.TLS())), "https://"+address, r.Run.Weights, 1<<20)
	if err != nil {
		s.t.Fatal(err)
	}
	p, err := recipe.Read([]byte(r.Plan))
	if err != nil {
		s.t.Fatal(err)
	}
	q, err := recipe.Frame(p, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	var file bytes.Buffer
	if err := q.WriteShared(&file, round.ReadFloats(nil, b), p.Name, int(r.Run.Version)); err != nil {
		s.t.Fatal(err)
	}
	return file.Bytes()
}

// simulated returns the final shared weights of the simulator.
func simulated(t *testing.T, run, plan string, d *series.Dataset, k *kernel.Set) []byte {
	t.Helper()
	return simulatedWith(t, run, plan, d, nil, k)
}
