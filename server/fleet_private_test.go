package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"loadstar/agent"
	"loadstar/agent/identity"
	"loadstar/fed/mask"
	"loadstar/fed/member"
	"loadstar/fed/policy"
	"loadstar/internal/protocol"
	"loadstar/internal/testkit/pgtest"
	"loadstar/keeper"
	"loadstar/lab/sim"
	"loadstar/nn/kernel"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/series"
	"loadstar/server"
	"loadstar/server/keepers"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

// auditor is a keeper that a test can stop and start again.
type auditor struct {
	*site
	dir, at string
	pin     member.Pin
	servers []member.Pin
	process *process
	keeper  *keeper.Keeper
}

func (s *site) auditor(name string) *auditor {
	s.t.Helper()
	a := &auditor{site: s, dir: filepath.Join(s.dir, name), at: "127.0.0.1:0"}
	var err error
	if a.pin, err = keeper.Create(a.dir); err != nil {
		s.t.Fatal(err)
	}
	// The address is known before the server starts.
	l, err := net.Listen("tcp", a.at)
	if err != nil {
		s.t.Fatal(err)
	}
	a.at = l.Addr().String()
	if err := l.Close(); err != nil {
		s.t.Fatal(err)
	}
	return a
}

func (a *auditor) start() {
	a.t.Helper()
	k, err := keeper.Open(a.dir, keeper.Options{Fleet: "fleet", Rules: &v1.KeeperRules{Least: 2, Quorum: 500, Cell: 100, Invited: true}, Log: a.log("keeper")})
	if err != nil {
		a.t.Fatal(err)
	}
	l, err := net.Listen("tcp", a.at)
	if err != nil {
		a.t.Fatal(err)
	}
	a.keeper = k
	p := a.spawn("keeper", func(ctx context.Context) error { return k.Serve(ctx, l, a.servers) })
	a.process = &process{stop: sync.OnceFunc(func() {
		p.stop()
		if err := k.Close(); err != nil {
			a.t.Error(err)
		}
	})}
	a.t.Cleanup(a.process.stop)
}

func (a *auditor) address(name string) keepers.Address {
	return keepers.Address{Name: name, URL: "https://" + a.at, Identity: a.pin}
}

// deciding returns the keeper that chooses results.
func deciding(all []*auditor) *auditor {
	return slices.MaxFunc(all, func(a, b *auditor) int { return bytes.Compare(a.pin[:], b.pin[:]) })
}

// directions returns the seed of a run's random vectors.
func (a *auditor) directions(run string) mask.Seed {
	a.t.Helper()
	r, err := a.keeper.State(&v1.KeeperStateRequest{Run: run})
	if err != nil {
		a.t.Fatal(err)
	}
	return mask.Seed(r.Directions)
}

// admit allows the server with a given database to call the keeper.
func (a *auditor) admit(database string) {
	a.t.Helper()
	l, err := ledger.Open(a.t.Context(), database)
	if err != nil {
		a.t.Fatal(err)
	}
	key, err := l.KeepersKey(a.t.Context())
	if err = errors.Join(err, l.Close()); err != nil {
		a.t.Fatal(err)
	}
	pin, err := member.ParsePin(keepers.Fingerprint(key))
	if err != nil {
		a.t.Fatal(err)
	}
	a.servers = append(a.servers, pin)
}

// hostPrivate runs an agent that trains only private plans, with the given keepers.
func (s *site) hostPrivate(name string, i *identity.Identity, d *series.Dataset, k *kernel.Set, all ...*auditor) {
	p := policy.None()
	p.Private, p.LeastMembers = policy.PrivateRequire, 2
	var codes []string
	for _, a := range all {
		p.Keepers = append(p.Keepers, a.pin.String())
		code, err := a.keeper.Invite(1, time.Now().Add(time.Hour), name)
		if err != nil {
			s.t.Fatal(err)
		}
		codes = append(codes, a.pin.String()+" "+code.String()+"\n")
	}
	invitations := filepath.Join(s.dir, name+".invitations")
	if err := os.WriteFile(invitations, []byte(strings.Join(codes, "")), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.spawn(name, func(ctx context.Context) error {
		return agent.Run(ctx, agent.Config{
			Dir: filepath.Join(s.dir, name), Server: i.Server(), Client: i.HTTPClient(), Dataset: d, Kernel: k, Log: s.log(name), Policy: &p, Name: i.ID(), Invitations: invitations,
		})
	})
}

// TestPrivateFleet trains private plans in a fleet of real agents with real keepers. The weights
// equal the simulator's, even if a keeper is unavailable and the servers restart in the
// meantime.
func TestPrivateFleet(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a fleet")
	}
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	const common = "rounds: 3, client: {steps: 1, batch: 8}, schedule: {cohort: 9}"
	for name, x := range map[string]struct {
		plan     string
		keepers  int
		postgres bool
	}{
		"none":           {"{algorithm: fedadam, partition: head, " + common + ", privacy: {mode: private, keepers: [k1], least: 2, check: none}, evaluate: {every: 1, windows: 8}}", 1, false},
		"postgres":       {"{algorithm: fedavg, server: {weighting: examples}, " + common + ", privacy: {mode: private, keepers: [k1], least: 2, check: none}, evaluate: {every: 1, windows: 8}}", 1, true},
		"two":            {"{algorithm: scaffold, " + common + ", privacy: {mode: private, keepers: [k2, k1], least: 2, check: none}, evaluate: {every: 0}}", 2, false},
		"two norm":       {"{algorithm: fedavg, server: {weighting: examples}, " + common + ", privacy: {mode: private, keepers: [k1, k2], least: 2, check: norm}, evaluate: {every: 0}}", 2, false},
		"nearest":        {"{algorithm: fedavg, server: {robust: nearest}, " + common + ", privacy: {mode: private, keepers: [k1, k2], least: 2}, evaluate: {every: 0}}", 2, false},
		"norm":           {"{algorithm: fedavg, " + common + ", privacy: {mode: private, keepers: [k1], least: 2, check: norm}, evaluate: {every: 1, windows: 8}}", 1, false},
		"region":         {"{algorithm: scaffold, " + common + ", privacy: {mode: private, keepers: [k1, k2], least: 5, check: none}, evaluate: {every: 1, windows: 8}}", 2, false},
		"region norm":    {"{algorithm: fedadam, partition: head, " + common + ", privacy: {mode: private, keepers: [k1], least: 5, check: norm}, evaluate: {every: 0}}", 1, false},
		"region nearest": {"{algorithm: fedavg, server: {robust: nearest}, " + common + ", privacy: {mode: private, keepers: [k1, k2], least: 2}, evaluate: {every: 0}}", 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // the tests spend most of their time waiting
			s := &site{t: t, dir: t.TempDir()}
			d := generated(t, 9)
			database := "sqlite:" + filepath.Join(s.dir, "ledger.db")
			if x.postgres {
				database = "postgres://postgres@" + pgtest.Single(t).Addr() + "/postgres?sslmode=disable"
			}
			var all []*auditor
			var addresses []keepers.Address
			for i := range x.keepers {
				a := s.auditor(fmt.Sprintf("keeper%d", i+1))
				a.admit(database)
				a.start()
				all, addresses = append(all, a), append(addresses, a.address(fmt.Sprintf("k%d", i+1)))
			}
			change := func(c *server.Config) { c.Database, c.Keepers = database, addresses }
			hub, at := s.serve("hub", "127.0.0.1:0", change)
			operator := s.operator("hub", at)
			agents := 3
			if strings.HasSuffix(name, "nearest") {
				agents = 9 // each simulated client is a separate agent
			}
			servers := []door{{operator, at}}
			restart := func() {}
			if strings.HasPrefix(name, "region") { // every second agent is behind the region
				agents = max(agents, 5)
				asRegion := s.asRegion("region", at, operator)
				region, regionAt := s.serve("region", "127.0.0.1:0", asRegion)
				servers = append(servers, door{s.operator("region", regionAt), regionAt})
				restart = func() {
					region.stop()
					s.serve("region", regionAt, asRegion)
				}
			}
			s.enrol(agents, servers, d, k, all...)
			run, err := operator.StartRun(t.Context(), &v1.StartRunRequest{Plan: x.plan, Clients: 9})
			if err != nil {
				t.Fatal(err)
			}
			s.reached(operator, run.Run, 1)
			all[0].process.stop()
			s.until(operator, run.Run, func(r *v1.Run) bool {
				return strings.HasPrefix(r.Waits, "keeper k1 has not answered since 20") || r.State == "finished"
			})
			hub.stop()
			restart()
			s.serve("hub", at, change)
			all[0].start()
			got := s.finished(operator, run.Run)
			for _, r := range got.Rounds {
				if r.Counted != 9 || r.State != "merged" || strings.Contains(x.plan, "every: 1") && (r.Evaluated != 9 || r.RelativeMae <= 0) {
					t.Errorf("round %v", r)
				}
			}
			of := &sim.Replay{Run: run.Run, Secret: fleetSecret, Directions: deciding(all).directions(run.Run)}
			weights := s.weights("hub", at, got)
			if !bytes.Equal(weights, simulatedAs(t, x.plan, d, nil, of, k)) {
				t.Error("the weights differ from the simulator's")
			}
			if strings.HasSuffix(name, "nearest") {
				same := true
				for try := 0; same && try < 10; try++ { // other vectors often choose the same results
					of.Directions[0]++
					same = bytes.Equal(weights, simulatedAs(t, x.plan, d, nil, of, k))
				}
				if same {
					t.Error("the weights do not depend on what the keeper has chosen")
				}
			}
		})
	}
}

// TestInventedMembers lets a region name members that the keeper does not know. The keeper refuses the
// sum and names the rule, or, if it checks norms, the result.
func TestInventedMembers(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a fleet")
	}
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	for _, check := range []string{"none", "norm"} {
		t.Run(check, func(t *testing.T) {
			t.Parallel()
			s := &site{t: t, dir: t.TempDir()}
			d := generated(t, 9)
			database := "sqlite:" + filepath.Join(s.dir, "ledger.db")
			a := s.auditor("keeper")
			a.admit(database)
			a.start()
			_, at := s.serve("hub", "127.0.0.1:0", func(c *server.Config) {
				c.Database, c.Keepers = database, []keepers.Address{a.address("k1")}
			})
			operator := s.operator("hub", at)
			honest, err := d.Part(1, 2)
			if err != nil {
				t.Fatal(err)
			}
			s.enrol(2, []door{{operator, at}}, honest, k, a)
			i := s.join("liar", at, operator)
			liar := v1.NewAgentServiceClient(i.HTTPClient(), i.Server(), protocol.Client())
			if _, err := liar.Announce(t.Context(), &v1.AnnounceRequest{Clients: []string{"x", "y"}, Inputs: []string{"floor_area"}, StepSeconds: 3600, Generated: true}); err != nil {
				t.Fatal(err)
			}
			plan := "{algorithm: fedavg, rounds: 3, client: {steps: 1, batch: 8}, schedule: {cohort: 0, quorum: 0.5}, privacy: {mode: private, keepers: [k1], least: 2, check: " + check + "}, evaluate: {every: 0}}"
			run, err := operator.StartRun(t.Context(), &v1.StartRunRequest{Plan: plan, Clients: int64(honest.Len() + 2)})
			if err != nil {
				t.Fatal(err)
			}
			var last *v1.Run
			for sent := map[int64]bool{}; last == nil || last.State == "waiting" || last.State == "running"; time.Sleep(20 * time.Millisecond) {
				r, err := operator.GetRun(t.Context(), &v1.GetRunRequest{Run: run.Run})
				if err != nil {
					t.Fatal(err)
				}
				last = r.Run
				q, err := liar.Exchange(t.Context(), &v1.ExchangeRequest{})
				if err != nil {
					t.Fatal(err)
				}
				for _, task := range q.Tasks {
					if sent[task.Round] {
						continue
					}
					sent[task.Round] = true
					said := s.invent(liar, i.ID(), r.Plan, task)
					if rejected := said.Outcome == v1.Outcome_OUTCOME_REJECTED && strings.Contains(said.Reason, "keeper k1 refused: member: "); rejected != (check == "norm") {
						t.Errorf("the hub's answer is %v: %s", said.Outcome, said.Reason)
					}
				}
			}
			if check == "norm" {
				if last.State != "finished" || last.Version != 3 {
					t.Errorf("the run of the honest agents is %v", last)
				}
				return
			}
			if last.State != "failed" || last.Version != 0 || !strings.Contains(last.Reason, "keeper k1 refused: member: ") {
				t.Errorf("the run is %v", last)
			}
		})
	}
}

// invent sends a result of a member that is not enrolled.
func (s *site) invent(region v1.AgentServiceClient, id, plan string, task *v1.Task) *v1.Received {
	s.t.Helper()
	of, err := terms.Read(plan, task.Plan, task.Fleet)
	if err != nil {
		s.t.Fatal(err)
	}
	q := &v1.Result{
		Run: task.Run, Round: task.Round, Version: task.Version, Form: v1.Form_FORM_MASKED,
		Members: []*v1.MaskedResult{{Agent: id + ".nobody", Clients: int64(len(task.Clients)), Nonce: make([]byte, 16)}},
	}
	for _, c := range task.Clients {
		q.Shares = append(q.Shares, &v1.Share{Client: c})
	}
	said, err := protocol.SendResult(s.t.Context(), region, nil, q, make([]byte, of.MaskedBytes()), 4<<20, false)
	if err != nil {
		s.t.Fatal(err)
	}
	return said
}
