package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
	"loadstar/rig/faultfs"
	"loadstar/rig/product"
)

// patient is the time without progress after which a test fails. It is long, because the
// machine may be busy.
const patient = 2 * time.Minute

var shared struct {
	sync.Once
	dir, bin string
	err      error
}

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == faultfs.Child {
		main()
		return
	}
	code := m.Run()
	if shared.dir != "" {
		os.RemoveAll(shared.dir)
	}
	os.Exit(code)
}

// binary builds the binary under test once, or returns $LOADSTAR_BIN.
func binary(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts dozens of processes")
	}
	shared.Do(func() {
		if shared.bin = os.Getenv("LOADSTAR_BIN"); shared.bin != "" {
			return
		}
		if shared.dir, shared.err = os.MkdirTemp("", "fleet"); shared.err == nil {
			shared.bin, shared.err = build(t.Context(), shared.dir)
		}
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.bin
}

// bench is a system under test, with its runs.
type bench struct {
	*testing.T
	*system
	token string
	runs  map[string]reference // by the name of the plan
}

// newBench starts a system without agents.
func newBench(t *testing.T, l layout, meters int) *bench {
	t.Helper()
	bin := binary(t)
	dir, err := os.MkdirTemp("", "fleet") // t.TempDir is too long for the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if l.data, err = generate(t.Context(), bin, dir, meters); err != nil {
		t.Fatal(err)
	}
	if l.own != "" {
		if l.own, err = generateOwn(t.Context(), bin, dir); err != nil {
			t.Fatal(err)
		}
	}
	s, err := start(t.Context(), bin, dir, l)
	if errors.Is(err, pgtest.ErrMissing) && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{T: t, system: s, runs: map[string]reference{}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.logs(1500))
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if b.token, err = s.command(t.Context(), "token", "create", "--uses", fmt.Sprint(l.agents)); err != nil {
		t.Fatal(err)
	}
	return b
}

// host makes the agents with numbers in [from, to) join, and starts them.
func (b *bench) host(from, to int) {
	b.Helper()
	for i := from; i < to; i++ {
		if err := b.join(b.Context(), b.token, i, patient); err != nil {
			b.Fatal(err)
		}
	}
}

// begin starts a run of a plan.
func (b *bench) begin(p plan, clients int) {
	b.Helper()
	b.runs[p.name] = reference{p, b.bin, b.data, b.own}
	if err := b.submit(b.Context(), b.dir, p, clients, patient); err != nil {
		b.Fatal(err)
	}
}

// end waits until the run of a plan has ended and returns the run.
func (b *bench) end(name string) run {
	b.Helper()
	all, err := b.finish(b.Context(), name, patient)
	if err != nil {
		b.Fatal(err)
	}
	if len(all) != 1 {
		b.Fatalf("%d runs of %s", len(all), name)
	}
	return all[0]
}

// identical checks that a run's weights are byte-identical to the simulator's.
func (b *bench) identical(name string) {
	b.Helper()
	r := b.end(name)
	if same, err := b.same(b.Context(), r, b.runs[name], patient); err != nil {
		b.Error(err)
	} else if !same {
		b.Errorf("%s: the fleet's weights differ from the simulator's", name)
	}
}

// right stops all processes and compares the ledger with the agents' logs.
func (b *bench) right(asynchronous map[string]bool) {
	b.Helper()
	if err := b.settle(b.Context(), patient); err != nil {
		b.Error(err)
	}
	if err := b.stop(patient); err != nil {
		b.Error(err)
	}
	f, err := b.check(b.Context(), asynchronous)
	if err != nil {
		b.Fatal(err)
	}
	for _, x := range f.faults {
		b.Error(x)
	}
	for _, x := range b.exits() {
		b.Error(x)
	}
	b.Logf("%d runs, %d rounds, %d receipts, lost %d, twice %d", f.runs, f.rounds, f.receipts, f.lost, f.twice)
}

// fleetSize returns the number of clients and agents of a test, and the size of a round's
// cohort. In the long test, they are the same as in make chaos.
func fleetSize() (clients, hosts, asked int) {
	return testkit.Pick(50, meters), testkit.Pick(5, agents), testkit.Pick(10, cohort)
}

// TestFleet trains a fleet with a single server and with a cluster. The weights must be
// byte-identical to the simulator's, and every turn must be counted exactly once.
func TestFleet(t *testing.T) {
	forms := map[string]layout{
		"one":     {},
		"cluster": {cluster: true},
	}
	clients, hosts, asked := fleetSize()
	for name, l := range forms {
		t.Run(name, func(t *testing.T) {
			l.agents = hosts
			b := newBench(t, l, clients)
			b.host(0, hosts)
			b.begin(planOf(0, 7, testkit.Pick(4, 6), asked), clients)
			b.identical("run-000")
			b.right(nil)
		})
	}
}

// TestFleetFedSIM trains plans with data on the server, with and without personal layers.
// The weights must be byte-identical to the simulator's.
func TestFleetFedSIM(t *testing.T) {
	clients, hosts, asked := fleetSize()
	b := newBench(t, layout{agents: hosts, own: "generate"}, clients)
	b.host(0, hosts)
	for i := range 2 {
		b.begin(fedsimOf(i, 7, testkit.Pick(3, 6), asked), clients)
	}
	b.identical("fedsim-000")
	b.identical("fedsim-001")
	b.right(nil)
}

// TestFleetComesAndGoes checks a run in which agents join after the run has started to wait
// for them, and other agents are killed and restarted.
func TestFleetComesAndGoes(t *testing.T) {
	clients, hosts, asked := fleetSize()
	b := newBench(t, layout{agents: hosts}, clients)
	b.host(0, hosts/2)
	b.begin(planOf(0, 8, 8, asked), clients)
	b.host(hosts/2, hosts)
	for i := 0; ; i++ {
		all, err := b.ledger.runs(t.Context(), "run-000")
		if err != nil {
			t.Fatal(err)
		}
		if len(all) > 0 && all[0].ended() {
			break
		}
		end := b.hosts[3*i%hosts].Kill
		if i%2 == 1 {
			end = b.hosts[3*i%hosts].Stop
		}
		if err := errors.Join(end(), b.hosts[3*i%hosts].Start()); err != nil {
			t.Fatal(err)
		}
		if i > 200 || product.Sleep(t.Context(), 300*time.Millisecond) != nil {
			t.Fatal("the run does not end")
		}
	}
	b.identical("run-000")
	b.right(nil)
}

// small returns a plan that trains within a second.
func small(algorithm string, rounds int, more string) plan {
	name := strings.Fields(algorithm)[0]
	return plan{name, fmt.Sprintf("name: %s\nalgorithm: %s\nrounds: %d\nmodel: {name: fekri2023, lookback: 6, targets: 2, split: {train: 0.7, validation: 0.15}}\nevaluate: {every: 0}\n%s",
		name, algorithm, rounds, more)}
}

// TestFleetAlgorithms trains several runs in parallel, with the algorithms that store or
// send more than weights.
func TestFleetAlgorithms(t *testing.T) {
	const clients, hosts = 40, 4
	b := newBench(t, layout{agents: hosts}, clients)
	b.host(0, hosts)
	const usual = "schedule: {cohort: 16}\nclient: {steps: 2, batch: 8}\n"
	plans := []plan{
		small("scaffold", 6, "partition: head\nschedule: {cohort: 16}\nclient: {steps: 2, batch: 8, lr: 0.05}\nserver: {weighting: examples, clip: 1}\n"),
		small("fedprox", 6, "partition: head\n"+usual),
		small("fedavgadaptive", 6, usual+"server: {states: client}\n"),
		small("fedadam", 6, "partition: head\nschedule: {cohort: 16}\nclient: {optimizer: proxadam, steps: 2, batch: 8, begin: own}\n"),
		small("fedyogi", 6, "partition: head\nserver: {coordinate: 0.8}\n"+usual),
		small("pfedme", 4, usual),
		small("perfedavg", 4, "schedule: {cohort: 16}\nclient: {steps: 2, batch: 8, query: 0.2}\n"),
		small("reptile", 6, "server: {robust: trim}\n"+usual),
	}
	for _, p := range plans {
		b.begin(p, clients)
	}
	for _, p := range plans {
		b.identical(p.name)
	}
	b.right(nil)
}

// TestFleetAsynchronous trains asynchronous plans, whose weights depend on the agents'
// timing. The counted turns in the ledger must match the agents' logs, and the loss must
// fall.
func TestFleetAsynchronous(t *testing.T) {
	const clients, hosts = 40, 4
	b := newBench(t, layout{agents: hosts}, clients)
	b.host(0, hosts)
	plans := []plan{
		small("fedasync", 120, "schedule: {cohort: 12}\nclient: {steps: 4, batch: 16}\n"),
		small("fedbuff", 40, "partition: head\nschedule: {cohort: 16, buffer: 6}\nclient: {steps: 8, batch: 16}\n"),
		small("fednorm", 20, "schedule: {cohort: 8, period: 400ms}\nclient: {steps: 4, batch: 16}\n"),
	}
	for _, p := range plans {
		if err := b.submit(t.Context(), b.dir, p, clients, patient); err != nil {
			t.Fatal(err)
		}
	}
	asynchronous := map[string]bool{}
	for _, p := range plans {
		r := b.end(p.name)
		asynchronous[r.id] = true
		b.learns(r)
	}
	b.right(asynchronous)
}

// learns checks that the loss of a run falls.
func (b *bench) learns(r run) {
	b.Helper()
	all, err := b.ledger.rounds(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	var losses []float64
	for _, x := range all {
		if x.run == r.id {
			losses = append(losses, x.loss)
		}
	}
	mean := func(x []float64) (m float64) {
		for _, v := range x {
			m += v / float64(len(x))
		}
		return m
	}
	third := len(losses) / 3
	if first, last := mean(losses[:third]), mean(losses[2*third:]); !(last < 0.9*first) {
		b.Errorf("%s: the loss changed from %.4g to %.4g", r.name, first, last)
	}
}

// TestQuantile checks quantile with values computed by hand.
func TestQuantile(t *testing.T) {
	var all []time.Duration
	for i := 100; i > 0; i-- {
		all = append(all, time.Duration(i))
	}
	for share, want := range map[float64]time.Duration{0.5: 50, 0.99: 99, 1: 100} {
		if got := quantile(all, share); got != want {
			t.Errorf("quantile %v is %d, want %d", share, got, want)
		}
	}
	if got := quantile(all[:1], 0.5); got != 100 {
		t.Errorf("the quantile of one value is %d", got)
	}
}

// TestTail checks that tail starts at the beginning of a line.
func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte("first\nsecond\nthird\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := tail(path, 10); got != "third" {
		t.Errorf("tail is %q", got)
	}
	if got := tail(path, 100); product.LastLine(got) != "third" || !strings.HasPrefix(got, "first") {
		t.Errorf("tail is %q", got)
	}
}
