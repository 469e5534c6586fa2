package aggregator

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"loadstar/fed/round"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/bus"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	run   = "run"
	agent = "agent"
)

// site is a ledger and a bus with one run, whose first round is open.
type site struct {
	t      *testing.T
	ledger *ledger.Ledger
	file   string
	bus    *bus.Bus
	book   *terms.Cache
	terms  *terms.Terms
	ids    atomic.Int64
	*metrics
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// plant opens a round in which all clients of one agent are asked to train.
func plant(t *testing.T, algorithm string, clients, cohort int) *site {
	t.Helper()
	ctx := t.Context()
	s := &site{t: t, file: filepath.Join(t.TempDir(), "ledger.db")}
	var err error
	s.ledger, err = ledger.Open(ctx, "sqlite:"+s.file)
	must(t, err)
	t.Cleanup(func() { s.ledger.Close() })
	s.bus, err = bus.Open(ctx, bus.Config{Dir: filepath.Join(t.TempDir(), "nats"), AckWait: 5 * time.Second}, slog.New(slog.DiscardHandler))
	must(t, err)
	t.Cleanup(func() { must(t, s.bus.Close(context.Background())) })
	now := time.Now()
	must(t, s.ledger.AddToken(ctx, []byte("token"), ledger.Token{Uses: 1, Expires: now.Add(time.Hour)}, "test", now))
	must(t, s.ledger.Join(ctx, []byte("token"), ledger.Agent{ID: agent}, now))
	names, numbers := make([]string, clients), make([]int64, clients)
	for i := range names {
		names[i], numbers[i] = client(i), int64(i)
	}
	_, err = s.ledger.Announce(ctx, ledger.Announcement{Agent: agent, Clients: names, Step: time.Hour, Most: len(names)}, now)
	must(t, err)
	must(t, s.ledger.AddRun(ctx, ledger.Run{ID: run, Created: now}, "test"))
	lead, err := s.ledger.Lead(ctx, "test", time.Hour, now)
	must(t, err)
	plan := fmt.Sprintf("algorithm: %s\nschedule: {cohort: %d}\nmodel: {name: fekri2023, lookback: 1, targets: 1, inputs: [load]}\nevaluate: {every: 0}\n", algorithm, cohort)
	must(t, s.ledger.Drive(ctx, lead, run, func(d *ledger.Drive) error {
		if _, err := d.Begin(ledger.Run{Plan: plan}, ledger.Version{}, ledger.Filter{}, now); err != nil {
			return err
		}
		if _, _, err := d.Ask(ledger.Asking{Round: 0, Version: 0, Members: numbers, Until: now.Add(time.Hour)}); err != nil {
			return err
		}
		return d.Save("{}", ledger.Round{Opened: now})
	}))
	s.book = terms.NewCache(func(ctx context.Context, id string) (*terms.Terms, error) {
		r, err := s.ledger.Run(ctx, id)
		if err != nil {
			return nil, err
		}
		return terms.Read(r.Plan, r.PlanBlob, r.Fleet)
	})
	s.terms, err = s.book.Of(ctx, run)
	must(t, err)
	return s
}

func client(i int) string { return fmt.Sprintf("c%03d", i) }

// start runs an aggregator until the test ends or stop is called.
func (s *site) start(workers int, change func(c *Config)) (stop func()) {
	s.t.Helper()
	registry := prometheus.NewRegistry()
	c := Config{
		Ledger: s.ledger, Bus: s.bus, Terms: s.book, Batch: 64, Bytes: 8 << 20, Workers: workers,
		Log: slog.New(slog.DiscardHandler), Metrics: registry,
	}
	if change != nil {
		change(&c)
	}
	a := &aggregator{Config: c, metrics: newMetrics(registry)}
	s.metrics = a.metrics
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() { a.work(ctx) })
	}
	stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	s.t.Cleanup(stop)
	return stop
}

// arrival returns a valid update of client i. Each client's update is different.
func (s *site) arrival(i int) *v1.Arrival {
	n := s.terms.Shared
	if s.terms.Rules.Needs.Control {
		n *= 2
	}
	x := make([]float32, n)
	for k := range x {
		x[k] = float32(math.Sin(float64(k + 31*i)))
	}
	return &v1.Arrival{
		Run: run, Agent: agent, Form: v1.Form_FORM_UPDATE, Numbers: round.AppendFloats(nil, x),
		Shares: []*v1.Share{{Client: client(i), Examples: int64(1 + i), Steps: 2, TrainLoss: float64(i), Loss: float64(i) / 8}},
	}
}

// sum returns the updates of several clients as one sum.
func (s *site) sum(clients ...int) *v1.Arrival {
	s.t.Helper()
	a := &v1.Arrival{Run: run, Agent: agent, Form: v1.Form_FORM_SUM}
	f := round.NewFold(s.terms.Rules)
	for _, i := range clients {
		one := s.arrival(i)
		must(s.t, s.terms.Add(f, terms.Of(one), nil))
		a.Shares = append(a.Shares, one.Shares...)
	}
	var err error
	a.Numbers, err = round.AppendSums(nil, &f.Sums()[0])
	must(s.t, err)
	return a
}

func (s *site) publish(all ...*v1.Arrival) {
	s.t.Helper()
	for _, a := range all {
		b, err := proto.Marshal(a)
		must(s.t, err)
		must(s.t, s.bus.Publish(s.t.Context(), fmt.Sprint(s.ids.Add(1)), b))
	}
}

// settled waits until the bus is empty.
func (s *site) settled() {
	s.t.Helper()
	s.until("the bus is empty", func() bool {
		waiting, taken, err := s.bus.Depth(s.t.Context())
		must(s.t, err)
		return waiting+taken == 0
	})
}

func (s *site) until(what string, ok func() bool) {
	s.t.Helper()
	for end := time.Now().Add(5 * time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("timed out waiting until %s", what)
		}
	}
}

// balance checks that exactly the given clients were counted, and that the stored sums
// equal the sums of their updates bit for bit. It returns the number of batches.
func (s *site) balance(clients ...int) int {
	s.t.Helper()
	want := round.NewFold(s.terms.Rules)
	names := make([]string, len(clients))
	for k, i := range clients {
		names[k] = client(i)
		must(s.t, s.terms.Add(want, terms.Of(s.arrival(i)), nil))
	}
	got, batches := round.NewFold(s.terms.Rules), 0
	must(s.t, s.ledger.Partials(s.t.Context(), run, math.MaxInt64, func(p ledger.Partial) error {
		batches++
		_, _, err := got.AddSums(int(p.Version), s.terms.Shared, p.Numbers)
		return err
	}))
	if a, b := shown(s.t, got), shown(s.t, want); a != b {
		s.t.Errorf("the stored sums of %d clients differ from the expected sums of %d", got.Len(), want.Len())
	}
	where, err := s.ledger.Standings(s.t.Context(), agent, run, 0, names)
	must(s.t, err)
	for _, name := range names {
		if where[name].State != ledger.Counted {
			s.t.Errorf("%s has no receipt", name)
		}
	}
	return batches
}

func shown(t *testing.T, f *round.Fold) string {
	text := fmt.Sprint(f.Len())
	for _, s := range f.Sums() {
		b, err := round.AppendSums(nil, &s)
		must(t, err)
		text += fmt.Sprintf(" %d %x", s.Version, b)
	}
	return text
}

func value(t *testing.T, c prometheus.Counter) float64 {
	t.Helper()
	var m dto.Metric
	must(t, c.Write(&m))
	return m.GetCounter().GetValue()
}

func (s *site) want(what string, c prometheus.Counter, n float64) {
	s.t.Helper()
	if got := value(s.t, c); got != n {
		s.t.Errorf("%g results were %s, want %g", got, what, n)
	}
}

// A result counts once, however often it is delivered, in one batch or in several. Sums and
// individual updates can be mixed, even with control variates.
func TestCounts(t *testing.T) {
	for _, algorithm := range []string{"fedavg", "scaffold"} {
		t.Run(algorithm, func(t *testing.T) {
			t.Parallel()
			s := plant(t, algorithm, 9, 9)
			woken, err := s.bus.Woken(t.Context())
			must(t, err)
			// Client 0 was counted before, so no client of this sum counts.
			overlapping := s.sum(0, 5)
			s.publish(s.arrival(0), s.arrival(1), s.sum(2, 3, 4), s.arrival(1), s.sum(2, 3, 4), overlapping, s.arrival(3))
			s.start(1, nil)
			s.settled()
			if n := s.balance(0, 1, 2, 3, 4); n != 1 {
				t.Errorf("results that waited together were counted in %d batches", n)
			}
			s.want("counted", s.counted, 3)
			s.want("stale", s.stale, 4)
			select {
			case id := <-woken:
				if id != run {
					t.Error(id)
				}
			case <-time.After(5 * time.Minute):
				t.Error("no notification")
			}
			other := s.arrival(0) // different numbers for a client that was already counted
			other.Numbers = s.arrival(7).Numbers
			s.publish(other, s.arrival(0), s.arrival(8))
			s.settled()
			s.balance(0, 1, 2, 3, 4, 8)
			s.want("stale", s.stale, 6)
			s.want("dropped", s.dropped, 0)
		})
	}
}

// A result counts only for the agent, version and round of its lease.
func TestCountsOnlyWithLease(t *testing.T) {
	t.Parallel()
	s := plant(t, "fedavg", 4, 4)
	bad := []*v1.Arrival{s.arrival(0), s.arrival(0), s.arrival(0), s.sum(0, 1)}
	bad[0].Agent = "another"
	bad[1].Version = 1
	bad[2].Round = 1
	bad[3].Shares[0].Client = "nobody"
	s.publish(append(bad, s.arrival(3))...)
	s.start(2, nil)
	s.settled()
	s.balance(3)
	s.want("counted", s.counted, 1)
	s.want("stale", s.stale, 4)
}

// Invalid results are dropped and do not block valid ones.
func TestDropsInvalidResults(t *testing.T) {
	t.Parallel()
	s := plant(t, "fedavg", 4, 4)
	must(t, s.bus.Publish(t.Context(), "garbage", []byte("\xff\xff\xff\xff no message")))
	must(t, s.bus.Publish(t.Context(), "nothing", nil))
	strange, short, wild, heavy, nobody := s.arrival(1), s.arrival(1), s.arrival(1), s.sum(1, 2), s.arrival(1)
	strange.Run = "another"
	short.Numbers = short.Numbers[4:]
	wild.Numbers = round.AppendFloats(nil, []float32{float32(math.NaN())})
	wild.Numbers = append(wild.Numbers, s.arrival(1).Numbers[4:]...)
	heavy.Shares[0].Examples++
	nobody.Shares = nil
	s.publish(strange, short, wild, heavy, nobody, s.arrival(0))
	s.start(1, nil)
	s.settled()
	s.balance(0)
	s.want("dropped", s.dropped, 7)
	s.want("counted", s.counted, 1)
	s.publish(s.arrival(1)) // a valid result still counts
	s.settled()
	s.balance(0, 1)
}

// No result is lost while the ledger fails, and none is counted twice when it works again.
func TestLedgerFails(t *testing.T) {
	t.Parallel()
	s := plant(t, "fedavg", 6, 6)
	db, err := sql.Open("sqlite", "file:"+s.file+"?_pragma=busy_timeout(10000)")
	must(t, err)
	defer db.Close()
	// Counting writes this table last, so everything before it is rolled back.
	_, err = db.Exec("ALTER TABLE partials RENAME TO away")
	must(t, err)
	var all []*v1.Arrival
	for i := range 6 {
		all = append(all, s.arrival(i))
	}
	s.publish(all...)
	s.start(2, nil)
	s.until("results are redelivered", func() bool { return value(s.t, s.redelivered) >= 6 })
	waiting, taken, err := s.bus.Depth(t.Context())
	if err != nil || waiting+taken != 6 {
		t.Errorf("%d wait and %d are taken, %v", waiting, taken, err)
	}
	s.want("counted", s.counted, 0)
	_, err = db.Exec("ALTER TABLE away RENAME TO partials")
	must(t, err)
	s.settled()
	s.balance(0, 1, 2, 3, 4, 5)
	s.want("counted", s.counted, 6)
	s.want("dropped", s.dropped, 0)
}

// No result is lost or counted twice if the ledger cannot even read the run.
func TestLedgerClosed(t *testing.T) {
	t.Parallel()
	s := plant(t, "fedavg", 2, 2)
	gone, err := ledger.Open(t.Context(), "sqlite:"+s.file)
	must(t, err)
	must(t, gone.Close())
	s.publish(s.arrival(0), s.arrival(1))
	stop := s.start(1, func(c *Config) {
		c.Terms = terms.NewCache(func(ctx context.Context, id string) (*terms.Terms, error) {
			_, err := gone.Run(ctx, id)
			return nil, err
		})
	})
	s.until("results are redelivered", func() bool { return value(s.t, s.redelivered) >= 2 })
	stop()
	s.want("dropped", s.dropped, 0)
	s.start(1, nil)
	s.settled()
	s.balance(0, 1)
}

// A batch may hold more updates than a sum has room for, if some of them do not count.
// Those that count are then still added up correctly.
func TestFull(t *testing.T) {
	t.Parallel()
	s := plant(t, "fedavg", 4, 2)
	a := s.arrival(0)
	s.publish(a, a, a, a, s.arrival(1))
	s.start(1, nil)
	s.settled()
	s.balance(0, 1)
	s.want("counted", s.counted, 2)
	s.want("stale", s.stale, 3)
	s.want("dropped", s.dropped, 0)
}

// If the algorithm needs individual updates, each update is stored unchanged.
func TestEachUpdate(t *testing.T) {
	t.Parallel()
	s := plant(t, "fednorm", 9, 9)
	if s.terms.Folds() {
		t.Fatal("fednorm needs each update")
	}
	sum := plant(t, "fedavg", 9, 9).sum(5, 6)
	s.publish(s.arrival(2), s.arrival(0), s.arrival(2), sum)
	s.start(1, nil)
	s.settled()
	var got []string
	must(t, s.ledger.Singles(t.Context(), run, math.MaxInt64, func(x ledger.Single) error {
		got = append(got, x.Client)
		want := s.arrival(2)
		if x.Client == client(0) {
			want = s.arrival(0)
		}
		w := want.Shares[0]
		if string(x.Numbers) != string(want.Numbers) || x.Examples != w.Examples || x.Steps != w.Steps || x.Loss != w.Loss || x.Version != 0 {
			t.Errorf("%s was changed", x.Client)
		}
		return nil
	}))
	if strings.Join(got, " ") != "c000 c002" {
		t.Error(got)
	}
	must(t, s.ledger.Partials(t.Context(), run, math.MaxInt64, func(ledger.Partial) error {
		t.Error("a sum was stored")
		return nil
	}))
	s.want("dropped", s.dropped, 1)
}

// Each result is counted exactly once, even though two aggregators run concurrently, each
// result is delivered twice, and a third aggregator is stopped and restarted.
func TestConcurrentAggregators(t *testing.T) {
	t.Parallel()
	const n = 150
	s := plant(t, "fedavg", n, n)
	small := func(c *Config) { c.Batch = 8 }
	s.start(2, small)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range n {
			s.publish(s.arrival(i), s.arrival((i*7)%n))
		}
	}()
	for alive := true; alive; {
		stop := s.start(2, small)
		select {
		case <-done:
			alive = false
		case <-time.After(20 * time.Millisecond):
		}
		stop()
	}
	s.settled()
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	s.balance(all...)
}

// Run returns when its context ends.
func TestRun(t *testing.T) {
	s := plant(t, "fedavg", 2, 2)
	s.publish(s.arrival(0))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- Run(ctx, Config{
			Ledger: s.ledger, Bus: s.bus, Terms: s.book, Batch: 4, Bytes: 1 << 20, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		})
	}()
	s.settled()
	cancel()
	must(t, <-ended)
	s.balance(0)
}
