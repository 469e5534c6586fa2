package gateway

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"loadstar/fed/round"
	"loadstar/server/directory"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

// counting is a counter and a ledger with one run, whose first round is open.
type counting struct {
	*counter
	t     *testing.T
	file  string
	terms *terms.Terms
	woken chan string
}

// plant opens a round in which all clients of one agent are asked to train.
func plant(t *testing.T, algorithm string, clients, cohort int) *counting {
	t.Helper()
	ctx, now := t.Context(), time.Now()
	s := &counting{t: t, file: filepath.Join(t.TempDir(), "ledger.db"), woken: make(chan string, 1000)}
	l, err := ledger.Open(ctx, "sqlite:"+s.file)
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	must(t, l.Directory.AddToken(ctx, []byte("token"), directory.Token{Uses: 1, Expires: now.Add(time.Hour)}, "test", now))
	must(t, l.Directory.Join(ctx, []byte("token"), directory.Agent{ID: "agent"}, now))
	names, numbers := make([]string, clients), make([]int64, clients)
	for i := range names {
		names[i], numbers[i] = client(i), int64(i)
	}
	_, err = l.Directory.Announce(ctx, directory.Announcement{Agent: "agent", Clients: names, Step: time.Hour, Most: len(names)}, now)
	must(t, err)
	must(t, l.AddRun(ctx, ledger.Run{ID: "run", Created: now}, "test"))
	lead, err := l.Lead(ctx, "test", time.Hour, now)
	must(t, err)
	plan := fmt.Sprintf("algorithm: %s\nschedule: {cohort: %d}\nmodel: {name: fekri2023, lookback: 1, targets: 1, inputs: [load]}\nevaluate: {every: 0}\n", algorithm, cohort)
	must(t, l.Drive(ctx, lead, "run", func(d *ledger.Drive) error {
		if _, err := d.Begin(ledger.Run{Plan: plan}, ledger.Version{}, directory.Filter{}, now); err != nil {
			return err
		}
		if _, _, err := d.Ask(ledger.Asking{Round: 0, Version: 0, Members: numbers, Until: now.Add(time.Hour)}); err != nil {
			return err
		}
		return d.Save("{}", ledger.Round{Opened: now})
	}))
	r, err := l.Run(ctx, "run")
	must(t, err)
	s.terms, err = terms.Read(r.Plan, r.PlanBlob, r.Fleet)
	must(t, err)
	s.counter = newCounter(&Config{Ledger: l, Random: func(string) float64 { return 0 }, Wake: func(run string) { s.woken <- run }, Log: slog.New(slog.DiscardHandler)}, newMirror(nil, func() string { return "" }), newMetrics(prometheus.NewRegistry()))
	return s
}

func client(i int) string { return fmt.Sprintf("c%03d", i) }

// update returns a valid update of client i. Each client's update is different.
func (s *counting) update(i int) *arrived {
	n := s.terms.Shared
	if s.terms.Rules.Needs.Control {
		n *= 2
	}
	x := make([]float32, n)
	for k := range x {
		x[k] = float32(math.Sin(float64(k + 31*i)))
	}
	return &arrived{run: "run", agent: "agent", terms: s.terms, result: &terms.Result{
		Numbers: round.AppendFloats(nil, x), Shares: []terms.Share{{Client: client(i), Examples: 1 + i, Steps: 2, TrainLoss: float64(i), Loss: float64(i) / 8}},
	}}
}

// sum returns the updates of several clients as one sum.
func (s *counting) sum(clients ...int) *arrived {
	s.t.Helper()
	a := &arrived{run: "run", agent: "agent", terms: s.terms, result: &terms.Result{Sum: true}}
	f := round.NewFold(s.terms.Rules)
	for _, i := range clients {
		one := s.update(i)
		must(s.t, s.terms.Add(f, one.result, nil))
		a.result.Shares = append(a.result.Shares, one.result.Shares...)
	}
	var err error
	a.result.Numbers, err = round.AppendSums(nil, &f.Sums()[0])
	must(s.t, err)
	return a
}

// all counts results concurrently, and reports for each whether it was counted.
func (s *counting) all(these ...*arrived) []bool {
	s.t.Helper()
	counted := make([]bool, len(these))
	var wg sync.WaitGroup
	for i, a := range these {
		wg.Go(func() {
			var err error
			if counted[i], err = s.count(s.t.Context(), a); err != nil {
				s.t.Error(err)
			}
		})
	}
	wg.Wait()
	return counted
}

// balance checks that exactly the given clients were counted, and that the stored sums equal
// the sums of their updates bit for bit. It returns the number of batches.
func (s *counting) balance(clients ...int) int {
	s.t.Helper()
	want := round.NewFold(s.terms.Rules)
	names := make([]string, len(clients))
	for k, i := range clients {
		names[k] = client(i)
		must(s.t, s.terms.Add(want, s.update(i).result, nil))
	}
	got, batches := round.NewFold(s.terms.Rules), 0
	must(s.t, s.ledger.Partials(s.t.Context(), "run", math.MaxInt64, func(p ledger.Partial) error {
		batches++
		_, _, err := got.AddSums(int(p.Version), s.terms.Shared, p.Numbers)
		return err
	}))
	if a, b := shown(s.t, got), shown(s.t, want); a != b {
		s.t.Errorf("the stored sums of %d clients differ from the expected sums of %d", got.Len(), want.Len())
	}
	where, err := s.ledger.Counter.Standings(s.t.Context(), "agent", "run", 0, names)
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

func (s *counting) want(what string, c prometheus.Counter, n float64) {
	s.t.Helper()
	var m dto.Metric
	must(s.t, c.Write(&m))
	if got := m.GetCounter().GetValue(); got != n {
		s.t.Errorf("%g results were %s, want %g", got, what, n)
	}
}

// TestCounter checks that a result counts once, however often it is sent, in one batch or in
// several, and that sums and individual updates can be mixed, even with control variates.
func TestCounter(t *testing.T) {
	for _, algorithm := range []string{"fedavg", "scaffold"} {
		t.Run(algorithm, func(t *testing.T) {
			t.Parallel()
			s := plant(t, algorithm, 9, 9)
			s.all(s.update(0))
			// Client 0 was counted before, so no client of this sum counts.
			got := s.all(s.update(1), s.sum(2, 3, 4), s.sum(0, 5), s.update(0), s.update(8))
			if want := "[true true false false true]"; fmt.Sprint(got) != want {
				t.Errorf("%v, want %s", got, want)
			}
			s.all(s.update(1), s.sum(2, 3, 4), s.update(3))
			s.balance(0, 1, 2, 3, 4, 8)
			s.want("counted", s.metrics.counted, 4)
			s.want("late", s.metrics.late, 5)
			if run := <-s.woken; run != "run" {
				t.Error(run)
			}
			if s.length() != 0 || s.led {
				t.Errorf("%d results wait", s.length())
			}
		})
	}
}

// TestCounterLeft checks that a result is not queued again while the database is unavailable if
// its caller has given up in the meantime. Otherwise this caller would be chosen to count for
// all, and nothing would be counted.
func TestCounterLeft(t *testing.T) {
	t.Parallel()
	s := plant(t, "fedavg", 3, 3)
	s.led = true // this test counts results itself
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		_, err := s.count(ctx, s.update(0))
		left <- err
	}()
	for end := time.Now().Add(time.Minute); s.length() == 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	batch := s.take(s.update(1))
	if len(batch) != 2 {
		t.Fatalf("%d results in a batch", len(batch))
	}
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	s.putBack(batch[1:])
	if s.length() != 0 {
		t.Error("a result without a caller waits")
	}
	s.led = false
	s.all(s.update(2))
	s.balance(2)
}

// TestCounterTogether checks that results that arrive within the linger time share a
// transaction.
func TestCounterTogether(t *testing.T) {
	t.Parallel()
	const clients = 60
	s := plant(t, "fedavg", clients, clients)
	var these []*arrived
	var numbers []int
	for i := range clients {
		these, numbers = append(these, s.update(i)), append(numbers, i)
	}
	s.all(these...)
	if n := s.balance(numbers...); n > clients/2 {
		t.Errorf("%d results were counted in %d batches", clients, n)
	}
}

// TestCounterOnlyWithLease checks that a result counts only for the agent, version and round of
// its lease.
func TestCounterOnlyWithLease(t *testing.T) {
	t.Parallel()
	s := plant(t, "fedavg", 4, 4)
	bad := []*arrived{s.update(0), s.update(0), s.update(0), s.sum(0, 1)}
	bad[0].agent = "another"
	bad[1].result.Version = 1
	bad[2].round = 1
	bad[3].result.Shares[0].Client = "nobody"
	got := s.all(append(bad, s.update(3))...)
	if want := "[false false false false true]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
	s.balance(3)
}

// TestCounterBadResult checks that one result that cannot be counted does not prevent the other
// results of its batch from being counted.
func TestCounterBadResult(t *testing.T) {
	t.Parallel()
	s := plant(t, "fedavg", 8, 8)
	db, err := sql.Open("sqlite", "file:"+s.file+"?_pragma=busy_timeout(10000)")
	must(t, err)
	defer db.Close()
	_, err = db.Exec("UPDATE leases SET checksum = checksum + 1 WHERE client = $1", client(5)) // simulates damage by the disk
	must(t, err)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			counted, err := s.count(t.Context(), s.update(i))
			if bad := i == 5; counted == bad || bad != errors.Is(err, ledger.ErrDamaged) {
				t.Errorf("client %d: %t, %v", i, counted, err)
			}
		})
	}
	wg.Wait()
	s.balance(0, 1, 2, 3, 4, 6, 7)
}

// TestCounterFull checks that updates are added up correctly even if a batch contains more
// updates than fit into a sum, but some of them do not count.
func TestCounterFull(t *testing.T) {
	t.Parallel()
	s := plant(t, "fedavg", 4, 2)
	s.all(s.update(0), s.update(0), s.update(0), s.update(0), s.update(1))
	s.balance(0, 1)
	s.want("counted", s.metrics.counted, 2)
	s.want("late", s.metrics.late, 3)
}

// TestCounterEachUpdate checks that each update is stored unchanged if the algorithm needs
// individual updates.
func TestCounterEachUpdate(t *testing.T) {
	t.Parallel()
	s := plant(t, "fednorm", 9, 9)
	if s.terms.Folds() {
		t.Fatal("fednorm needs each update")
	}
	s.all(s.update(2), s.update(0), s.update(2))
	var got []string
	must(t, s.ledger.Singles(t.Context(), "run", math.MaxInt64, func(x ledger.Single) error {
		got = append(got, x.Client)
		want := s.update(2).result
		if x.Client == client(0) {
			want = s.update(0).result
		}
		w := want.Shares[0]
		if string(x.Numbers) != string(want.Numbers) || x.Examples != int64(w.Examples) || x.Steps != int64(w.Steps) || x.Loss != w.Loss || x.Version != 0 {
			t.Errorf("%s was changed", x.Client)
		}
		return nil
	}))
	if fmt.Sprint(got) != "[c000 c002]" && fmt.Sprint(got) != "[c002 c000]" {
		t.Error(got)
	}
}

// TestCounterGivesUp checks that if the caller that counts for all gives up, another one
// continues, and nothing is counted twice.
func TestCounterGivesUp(t *testing.T) {
	t.Parallel()
	const clients = 40
	s := plant(t, "fedavg", clients, clients)
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			for try := 0; ; try++ {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(try*(1+i%7))*time.Millisecond)
				_, err := s.count(ctx, s.update(i))
				cancel()
				if err == nil {
					return
				}
				if !errors.Is(err, context.DeadlineExceeded) || t.Context().Err() != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	var all []int
	for i := range clients {
		all = append(all, i)
	}
	s.balance(all...)
	s.want("counted", s.metrics.counted, clients)
	if s.length() != 0 || s.led {
		t.Errorf("%d results wait", s.length())
	}
}

// TestCounterAway checks that while the database is unavailable, a gateway reads only a few
// results.
func TestCounterAway(t *testing.T) {
	t.Parallel()
	s := plant(t, "fedavg", 2, 2)
	enter := func() (entered int) {
		for range 100 {
			if leave, ok := s.enter(); ok {
				entered++
				defer leave()
			}
		}
		return entered
	}
	if n := enter(); n != 100 {
		t.Errorf("%d of 100 were read", n)
	}
	s.failed(errors.New("a deadlock, after which it answers"))
	if n := enter(); n != 100 {
		t.Errorf("%d of 100 were read after another error", n)
	}
	s.failed(fmt.Errorf("asking: %w", &timeout{}))
	for range 2 {
		if n := enter(); n != maxTries {
			t.Errorf("%d were read while it was away, want %d", n, maxTries)
		}
	}
	s.all(s.update(0))
	if n := enter(); n != 100 {
		t.Errorf("%d of 100 were read when it was back", n)
	}
}

// timeout is a network error.
type timeout struct{}

func (*timeout) Error() string   { return "i/o timeout" }
func (*timeout) Timeout() bool   { return true }
func (*timeout) Temporary() bool { return true }
