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

// identityPlan is a plan of TestPrivateIdentity. If fleet is set, agents also train it.
type identityPlan struct {
	fleet   bool
	text    string
	keepers string // keepers of the private plan
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

var identityAll = flag.Bool("identity", false, "all plans and forms of TestPrivateIdentity, and 200 clients on 20 agents")

// identityResult is the result that TestPrivateIdentity prints at the end.
type identityResult struct {
	Plans     int `json:"plans"`
	Fleets    int `json:"fleets"`
	Forms     int `json:"forms"`
	Different int `json:"different"`
}

// TestPrivateIdentity trains plans in the simulator, which adds updates without masks. A
// private plan must give the same weights as the plain plan, byte for byte. Fleets with
// keepers, on SQLite, on PostgreSQL and through a region, must give the weights of the
// simulator. The draws of a fleet differ between a plain and a private plan, so that two sums
// never repeat the same training.
func TestPrivateIdentity(t *testing.T) {
	if testing.Short() {
		t.Skip("runs fleets")
	}
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	plans, agents, clients := identityPlans[4:6], 3, 9 // TestPrivateFleet trains the others
	forms := []string{"region"}
	if *identityAll {
		plans, agents, clients, forms = identityPlans, 20, 200, []string{"sqlite", "postgres", "region"}
	}
	d, result := generated(t, clients), identityResult{Plans: len(plans), Forms: len(forms)}
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
	for _, form := range forms {
		s := &site{t: t, dir: t.TempDir()}
		result.Different += s.identical(form, plans, agents, d, k)
	}
	lastLine = fmt.Sprintf("identity %d plans, %d fleets x %d, different %d", result.Plans, result.Fleets, result.Forms, result.Different)
	if os.Getenv("JSON") != "" {
		text, err := json.Marshal(result)
		if err != nil {
			t.Fatal(err)
		}
		lastLine = string(text)
	}
}

// forms returns the plain and the private version of a plan. All clients train in each round.
func (x *identityPlan) forms(clients int) (plain, hidden string) {
	text := strings.Replace(x.text, "server: {", "server: {clip: 0, ", 1)
	if text == x.text {
		text += ", server: {clip: 0}"
	}
	text += fmt.Sprintf(", rounds: 3, schedule: {cohort: %d}, evaluate: {every: 0}", clients)
	return "{" + text + "}", "{" + text + ", privacy: {mode: private, keepers: [" + x.keepers + "], least: 2, check: none}}"
}

// identical trains plans in a fleet, and returns how many of them have other weights in the
// simulator. If form is region, half of the agents are behind a region.
func (s *site) identical(form string, plans []identityPlan, agents int, d *series.Dataset, k *kernel.Set) (different int) {
	s.t.Helper()
	database := "sqlite:" + filepath.Join(s.dir, "ledger.db")
	if form == "postgres" {
		database = "postgres://postgres@" + pgtest.Single(s.t).Addr() + "/postgres?sslmode=disable"
	}
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
	servers := []door{{operator, at}}
	if form == "region" {
		_, regionAt := s.serve("region", "127.0.0.1:0", s.asRegion("region", at, operator))
		servers = append(servers, door{s.operator("region", regionAt), regionAt})
	}
	s.enrol(agents, servers, d, k, all...)
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
				s.t.Errorf("%s, {%s}: round %v", form, x.text, r)
			}
		}
		if !bytes.Equal(s.weights("hub", at, got), simulated(s.t, run.Run, hidden, d, k)) {
			different++
			s.t.Errorf("%s, {%s}: the fleet's weights are not the simulator's", form, x.text)
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

// door is a server that agents join.
type door struct {
	operator v1.OperatorServiceClient
	at       string
}

// enrol starts agents that share the clients, and waits until they are members. They join the
// servers in turn.
func (s *site) enrol(agents int, servers []door, d *series.Dataset, k *kernel.Set, all ...*auditor) {
	s.t.Helper()
	// An agent that announces itself before the server knows the keepers would wait for an hour.
	time.Sleep(500 * time.Millisecond)
	for i := range agents {
		part, err := d.Part(i+1, agents)
		if err != nil {
			s.t.Fatal(err)
		}
		id := fmt.Sprintf("agent%d", i+1)
		to := servers[i%len(servers)]
		s.hostPrivate(id, s.join(id, to.at, to.operator), part, k, all...)
	}
	for _, a := range all {
		for end := time.Now().Add(patient); len(a.keeper.Members()) < agents; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				s.t.Fatal("the agents do not enrol")
			}
		}
	}
	time.Sleep(300 * time.Millisecond) // wait until the last agent has its receipt
}
