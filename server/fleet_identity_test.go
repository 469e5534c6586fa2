package server_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
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

// identityPlan is a plan of TestPrivateIdentity. Agents train it too if fleet is set.
type identityPlan struct {
	fleet   bool
	text    string
	keepers string // of the private form
}

var identityPlans = []identityPlan{
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

var identityAll = flag.Bool("identity", false, "all plans and databases of TestPrivateIdentity, and 200 clients on 20 agents")

// identityResult is what TestPrivateIdentity prints at the end.
type identityResult struct {
	Plans     int `json:"plans"`
	Fleets    int `json:"fleets"`
	Engines   int `json:"engines"`
	Different int `json:"different"`
}

// TestPrivateIdentity trains plans in the simulator, which adds updates without masks, and
// checks that a private plan yields the same weights as the plain plan, byte for byte. Fleets
// with keepers, on SQLite and PostgreSQL, yield the simulator's weights. A fleet's random draws
// differ between a plain and a private plan, so that no two sums come from the same training.
func TestPrivateIdentity(t *testing.T) {
	if testing.Short() {
		t.Skip("runs fleets")
	}
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	plans, agents, clients := identityPlans[4:6], 3, 9 // the others are in TestPrivateFleet
	databases := []string{"sqlite:" + filepath.Join(t.TempDir(), "ledger.db")}
	if *identityAll {
		plans, agents, clients = identityPlans, 20, 200
		databases = append(databases, "postgres://postgres@"+pgtest.Single(t).Addr()+"/postgres?sslmode=disable")
	}
	d, result := generated(t, clients), identityResult{Plans: len(plans), Engines: len(databases)}
	for _, x := range plans {
		plain, hidden := x.forms(clients)
		if !bytes.Equal(simulatedAs(t, plain, d, nil, nil, k), simulatedAs(t, hidden, d, nil, nil, k)) {
			result.Different++
			t.Errorf("{%s}: the simulator's private weights are others", x.text)
		}
		if x.fleet {
			result.Fleets++
		}
	}
	for _, database := range databases {
		s := &site{t: t, dir: t.TempDir()}
		result.Different += s.identical(database, plans, agents, d, k)
	}
	lastLine = fmt.Sprintf("identity %d plans, %d fleets x %d, different %d", result.Plans, result.Fleets, result.Engines, result.Different)
	if os.Getenv("JSON") != "" {
		text, err := json.Marshal(result)
		if err != nil {
			t.Fatal(err)
		}
		lastLine = string(text)
	}
}

// forms returns the plain and the private form of a plan. All clients take part in each round.
func (x *identityPlan) forms(clients int) (plain, hidden string) {
	text := strings.Replace(x.text, "server: {", "server: {clip: 0, ", 1)
	if text == x.text {
		text += ", server: {clip: 0}"
	}
	text += fmt.Sprintf(", rounds: 3, schedule: {cohort: %d}, evaluate: {every: 0}", clients)
	return "{" + text + "}", "{" + text + ", privacy: {mode: private, keepers: [" + x.keepers + "], least: 2, check: none}}"
}

// identical trains plans in a fleet, and returns the number of plans that yield different
// weights in the simulator.
func (s *site) identical(database string, plans []identityPlan, agents int, d *series.Dataset, k *kernel.Set) (different int) {
	s.t.Helper()
	engine, _, _ := strings.Cut(database, ":")
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
	s.enrol(agents, operator, at, d, k, all...)
	for _, x := range plans {
		if !x.fleet {
			continue
		}
		_, hidden := x.forms(d.Len())
		run, err := operator.StartRun(s.t.Context(), &v1.StartRunRequest{Plan: hidden, Clients: int64(d.Len())})
		if err != nil {
			s.t.Fatal(err)
		}
		got := s.finished(operator, run.Run)
		for _, r := range got.Rounds {
			if r.Counted != int64(d.Len()) || r.State != "merged" {
				s.t.Errorf("%s, {%s}: round %v", engine, x.text, r)
			}
		}
		if !bytes.Equal(s.weights("hub", at, got), simulated(s.t, run.Run, hidden, d, k)) {
			different++
			s.t.Errorf("%s, {%s}: the fleet's weights are not the simulator's", engine, x.text)
		}
	}
	return different
}

// lastLine is the last line that a command of the Makefile prints.
var lastLine string

func TestMain(m *testing.M) {
	code := m.Run()
	if lastLine != "" {
		fmt.Println(lastLine)
	}
	os.Exit(code)
}

// enrol starts agents that share the clients, and waits until they are members.
func (s *site) enrol(agents int, operator v1.OperatorServiceClient, at string, d *series.Dataset, k *kernel.Set, all ...*auditor) {
	s.t.Helper()
	// An agent that announces itself before the server knows the keepers would wait for an hour.
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
