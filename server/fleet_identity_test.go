package server_test

import (
	"bytes"
	"flag"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"loadstar/internal/testkit/pgtest"
	"loadstar/nn/kernel"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/series"
	"loadstar/server"
	"loadstar/server/keepers"
)

// The plans of TestPrivateIdentity. Those marked with fleet are trained by agents too.
var identityPlans = []struct {
	fleet   bool
	text    string
	keepers string // of the private form
}{
	{true, "algorithm: fedavg, client: {steps: 1, batch: 8}", "k1"},
	{true, "algorithm: fedavg, server: {weighting: examples}, client: {steps: 1, batch: 8}", "k1, k2"},
	{true, "algorithm: scaffold, client: {steps: 1, batch: 8}", "k2, k1"},
	{true, "algorithm: fedadam, partition: head, client: {steps: 1, batch: 8}", "k1"},
	{true, "algorithm: fedprox, server: {weighting: examples}, client: {steps: 1, batch: 8}", "k2"},
	{true, "algorithm: reptile, client: {steps: 1, batch: 8}", "k1"},
	{false, "algorithm: scaffold, server: {weighting: examples}, client: {steps: 1, batch: 8}", "k1"},
	{false, "algorithm: fedavg, partition: head, client: {steps: 1, batch: 8}", "k1"},
	{false, "algorithm: fedprox, client: {steps: 2, batch: 8}", "k1"},
	{false, "algorithm: fedavgm, client: {steps: 1, batch: 8}", "k1"},
	{false, "algorithm: fedavgm, server: {weighting: examples}, client: {steps: 1, batch: 8}", "k1"},
	{false, "algorithm: fedadagrad, client: {steps: 1, batch: 8}", "k1"},
	{false, "algorithm: fedadam, server: {weighting: examples}, client: {steps: 1, batch: 8}", "k1"},
	{false, "algorithm: fedyogi, client: {steps: 1, batch: 8}", "k1"},
	{false, "algorithm: fedsgd", "k1"},
	{false, "algorithm: perfedavg", "k1"},
	{false, "algorithm: fedmeta", "k1"},
	{false, "algorithm: pfedme", "k1"},
	{false, "algorithm: fedavg, client: {steps: 2, batch: 8, optimizer: adam, moments: averaged}", "k1"},
	{false, "algorithm: fedavg, partition: head, client: {steps: 2, batch: 8, begin: own}", "k1"},
}

var identityAll = flag.Bool("identity", false, "all plans and databases of TestPrivateIdentity")

// TestPrivateIdentity trains plans in the simulator, which adds updates without masks: as private ones
// they have the weights of the plain ones, byte for byte. Fleets with keepers, on SQLite and
// PostgreSQL, have the weights of the simulator. The draws of a fleet differ between a plain and a
// private plan, so that two sums never repeat the same training.
func TestPrivateIdentity(t *testing.T) {
	if testing.Short() {
		t.Skip("runs fleets")
	}
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	plans := identityPlans
	databases := map[string]string{"sqlite": "sqlite:" + filepath.Join(t.TempDir(), "ledger.db")}
	if *identityAll {
		databases["postgres"] = "postgres://postgres@" + pgtest.Single(t).Addr() + "/postgres?sslmode=disable"
	} else {
		plans = plans[4:6] // the others are in TestPrivateFleet
	}
	const common = ", rounds: 3, schedule: {cohort: 9}, evaluate: {every: 0}"
	forms := func(i int) (plain, hidden string) {
		x := plans[i]
		text := strings.Replace(x.text, "server: {", "server: {clip: 0, ", 1)
		if text == x.text {
			text += ", server: {clip: 0}"
		}
		return "{" + text + common + "}", "{" + text + common + ", privacy: {mode: private, keepers: [" + x.keepers + "], least: 2, check: none}}"
	}
	d, different, trained := generated(t, 9), 0, 0
	for i, x := range plans {
		plain, hidden := forms(i)
		if !bytes.Equal(simulatedAs(t, plain, d, nil, nil, k), simulatedAs(t, hidden, d, nil, nil, k)) {
			different++
			t.Errorf("{%s}: the simulator's private weights are others", x.text)
		}
		if x.fleet {
			trained++
		}
	}
	for name, database := range databases {
		s := &site{t: t, dir: filepath.Join(t.TempDir(), name)}
		var all []*auditor
		var addresses []keepers.Address
		for i := range 2 {
			a := s.auditor(fmt.Sprintf("keeper%d", i+1))
			a.admit(database)
			a.start()
			all, addresses = append(all, a), append(addresses, a.address(fmt.Sprintf("k%d", i+1)))
		}
		_, at := s.serve("hub", "127.0.0.1:0", func(c *server.Config) { c.Database, c.Keepers = database, addresses })
		operator := s.operator("hub", at)
		s.enrol(operator, at, d, k, all...)
		for i, x := range plans {
			if !x.fleet {
				continue
			}
			_, hidden := forms(i)
			run, err := operator.StartRun(t.Context(), &v1.StartRunRequest{Plan: hidden, Clients: 9})
			if err != nil {
				t.Fatal(err)
			}
			got := s.finished(operator, run.Run)
			for _, r := range got.Rounds {
				if r.Counted != 9 || r.State != "merged" {
					t.Errorf("%s, {%s}: round %v", name, x.text, r)
				}
			}
			if !bytes.Equal(s.weights("hub", at, got), simulated(t, run.Run, hidden, d, k)) {
				different++
				t.Errorf("%s, {%s}: the fleet's weights are not the simulator's", name, x.text)
			}
		}
	}
	fmt.Printf("identity %d plans, %d fleets x %d, different %d\n", len(plans), trained, len(databases), different)
}

// enrol starts three agents with a third of the clients each, and waits until they are members.
func (s *site) enrol(operator v1.OperatorServiceClient, at string, d *series.Dataset, k *kernel.Set, all ...*auditor) {
	s.t.Helper()
	s.enrolAgents(3, operator, at, d, k, all...)
}

// enrolAgents is enrol for a number of agents.
func (s *site) enrolAgents(agents int, operator v1.OperatorServiceClient, at string, d *series.Dataset, k *kernel.Set, all ...*auditor) {
	s.t.Helper()
	// An agent that announces itself before the server knows the keeper would wait for an hour.
	time.Sleep(500 * time.Millisecond)
	for i := range agents {
		part, err := d.Part(i+1, agents)
		if err != nil {
			s.t.Fatal(err)
		}
		id := fmt.Sprintf("agent%d", i+1)
		s.hostPrivate(id, s.join(id, at, operator), part, k, all...)
	}
	for _, a := range all {
		for end := time.Now().Add(patient); len(a.keeper.Members()) < agents; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				s.t.Fatal("the agents do not enrol")
			}
		}
	}
	time.Sleep(300 * time.Millisecond) // until the last agent has its receipt
}
