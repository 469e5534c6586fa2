package coordinator

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"loadstar/fed/round"
	"loadstar/internal/testkit"
	"loadstar/server/blob"
	"loadstar/server/directory"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	agent = "agent"
	lease = 5 * time.Second
	lead  = 4 * time.Second
)

// small is a model with few weights.
const small = "model: {name: fekri2023, lookback: 1, targets: 1, inputs: [load]}\nevaluate: {every: 0}\n"

// site is a coordinator with its ledger, its blobs and a clock that the test sets.
type site struct {
	*testing.T
	*ledger.Ledger
	dir     string
	blobs   blob.Store
	faults  *faults
	clock   time.Time
	current *coordinator
	name    string
	reach   time.Duration
	data    *terms.OwnData
	longest time.Duration
	seen    time.Duration // 0 means that all clients are asked
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{T: t, dir: t.TempDir(), clock: time.UnixMilli(1_700_000_000_000), name: "first", data: ownData(t, 0)}
	var err error
	s.Ledger, err = ledger.Open(t.Context(), "sqlite:"+filepath.Join(s.dir, "ledger.db"))
	testkit.Must(t, err)
	t.Cleanup(func() { s.Close() })
	s.blobs, err = blob.Files(filepath.Join(s.dir, "blobs"))
	testkit.Must(t, err)
	s.faults = &faults{Store: s.blobs}
	testkit.Must(t, s.Directory.AddToken(t.Context(), []byte("token"), directory.Token{Uses: 9, Expires: s.clock.Add(1000 * time.Hour)}, "test", s.clock))
	testkit.Must(t, s.Directory.Join(t.Context(), []byte("token"), directory.Agent{ID: agent}, s.clock))
	s.restart()
	return s
}

// restart replaces the coordinator with a new one, which has only the ledger and the blobs.
func (s *site) restart() { s.current = s.coordinator(s.name) }

func (s *site) coordinator(name string) *coordinator {
	var seen func(int64) time.Duration
	if s.seen > 0 {
		seen = func(int64) time.Duration { return s.seen }
	}
	return newCoordinator(Config{
		Longest: s.longest, Seen: seen, Ledger: s.Ledger, Blobs: s.faults, Name: name, Lease: lease, Reach: func(int64) time.Duration { return s.reach }, Lead: lead, Poll: time.Second, Data: s.data, Wake: func(string) {},
		Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(), now: func() time.Time { return s.clock },
	})
}

// announce registers the clients with numbers from from up to, but not including, to.
func (s *site) announce(from, to int) {
	s.Helper()
	var names []string
	for i := from; i < to; i++ {
		names = append(names, client(i))
	}
	_, err := s.Directory.Announce(s.Context(), directory.Announcement{Agent: agent, Clients: names, Inputs: []string{"temperature"}, Step: time.Hour, Most: 1000}, s.clock)
	testkit.Must(s, err)
}

func client(i int) string { return fmt.Sprintf("c%03d", i) }

func (s *site) add(id, plan string, wanted int64) {
	s.Helper()
	testkit.Must(s, s.AddRun(s.Context(), ledger.Run{ID: id, Name: id, Plan: plan, Wanted: wanted, Created: s.clock}, "test"))
}

// turn runs one tick of the coordinator. If a fault kills it, a new one takes over.
func (s *site) turn() {
	s.Helper()
	for tries := 0; ; tries++ {
		if tries > 100 {
			s.Fatal("the coordinator died 100 times in one tick")
		}
		if s.survives(func() { s.current.tick(s.Context()) }) {
			return
		}
		s.restart()
	}
}

// survives calls do and reports whether do returned without an injected fault.
func (s *site) survives(do func()) (alive bool) {
	defer func() {
		if p := recover(); p != nil {
			if p != died {
				panic(p)
			}
			alive = false
		}
	}()
	do()
	return true
}

const died = "the process dies here"

// faults is a store that simulates the death of the process when an operation is reached for
// the first time.
type faults struct {
	blob.Store
	on   bool
	met  map[string]bool
	seen int
}

func (f *faults) meet(what, hash string) {
	f.seen++
	if f.met == nil {
		f.met = map[string]bool{}
	}
	if key := what + hash; f.on && !f.met[key] {
		f.met[key] = true
		panic(died)
	}
}

// Put fails before storing the blob the first time, and after storing the blob the second time.
func (f *faults) Put(ctx context.Context, b []byte) (string, error) {
	f.meet("before put", fmt.Sprint(len(b), string(b)))
	hash, err := f.Store.Put(ctx, b)
	f.meet("put", hash)
	return hash, err
}

func (f *faults) Get(ctx context.Context, hash string) ([]byte, error) {
	f.meet("get", hash)
	return f.Store.Get(ctx, hash)
}

func (f *faults) Delete(ctx context.Context, hash string) error {
	f.meet("delete", hash)
	return f.Store.Delete(ctx, hash)
}

// run returns a run from the ledger.
func (s *site) run(id string) ledger.Run {
	s.Helper()
	r, err := s.Run(s.Context(), id)
	testkit.Must(s, err)
	return r
}

// Run calls Ledger.Run. The method is necessary because site also embeds testing.T, which
// has a Run method too.
func (s *site) Run(ctx context.Context, id string) (ledger.Run, error) { return s.Ledger.Run(ctx, id) }

// rounds returns the rounds of a run as a string, oldest first, for comparison.
func (s *site) rounds(id string) string {
	s.Helper()
	all, err := s.Rounds(s.Context(), id, 0, 1000)
	testkit.Must(s, err)
	slices.Reverse(all)
	var b strings.Builder
	for _, r := range all {
		fmt.Fprintf(&b, "%d of %d %s asked %d counted %d late %d lost %d", r.Round, r.Version, r.State, r.Asked, r.Counted, r.Late, r.Lost)
		if r.State != ledger.RoundOpen {
			fmt.Fprintf(&b, " loss %.4f after %v", r.Loss, r.Closed.Sub(r.Opened))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func (s *site) wantRounds(id string, want ...string) {
	s.Helper()
	if got := s.rounds(id); got != strings.Join(want, "\n")+"\n" {
		s.Errorf("the rounds of %s:\n%swant\n%s", id, got, strings.Join(want, "\n"))
	}
}

func (s *site) wantState(id string, state ledger.State, reason string) {
	s.Helper()
	if r := s.run(id); r.State != state || !strings.Contains(r.Reason, reason) || (reason == "") != (r.Reason == "") {
		s.Errorf("%s is %s, %q; want %s, %q", id, r.State, r.Reason, state, reason)
	}
}

// tasks returns the leases of a run that have not expired.
func (s *site) tasks(id string) []ledger.Task {
	s.Helper()
	all, err := s.Counter.Tasks(s.Context(), agent)
	testkit.Must(s, err)
	return slices.DeleteFunc(all, func(t ledger.Task) bool { return t.Run != id || !t.Until.After(s.clock) })
}

func (s *site) terms(id string) *terms.Terms {
	s.Helper()
	r := s.run(id)
	t, err := terms.Read(r.Plan, r.PlanBlob, r.Fleet)
	testkit.Must(s, err)
	return t
}

// result returns a client's result for a task. It depends only on the task.
func result(t *terms.Terms, l ledger.Task) *terms.Result {
	n := t.Shared
	if t.Rules.Needs.Control {
		n *= 2
	}
	var no int
	fmt.Sscanf(l.Client, "c%d", &no) // the names of clients are c0, c1 and so on
	x := make([]float32, n)
	for k := range x {
		x[k] = float32(math.Sin(float64(k+7*no)+31*float64(l.Round)+0.5*float64(l.Version))) / 8
	}
	return &terms.Result{
		Version: int(l.Version), Numbers: round.AppendFloats(nil, x),
		Shares: []terms.Share{{Client: l.Client, Examples: 1 + no%5, Steps: 2, TrainLoss: 1 / float64(1+l.Round), Loss: 0.1 * float64(1+no)}},
	}
}

// count counts the results of tasks in one batch, as a gateway does.
func (s *site) count(tasks ...ledger.Task) (counted int) {
	s.Helper()
	if len(tasks) == 0 {
		return 0
	}
	t := s.terms(tasks[0].Run)
	arrivals := make([]ledger.Arrival, len(tasks))
	results := make([]*terms.Result, len(tasks))
	for i, l := range tasks {
		results[i] = result(t, l)
		x := results[i].Shares[0]
		arrivals[i] = ledger.Arrival{
			Agent: agent, Round: l.Round, Version: l.Version, Bytes: int64(len(results[i].Numbers)),
			Shares: []ledger.Share{{Client: l.Client, Examples: int64(x.Examples), Steps: int64(x.Steps), TrainLoss: x.TrainLoss}},
		}
	}
	which, err := s.Counter.Count(s.Context(), tasks[0].Run, arrivals, func(due []int) (partials []ledger.Partial, singles []ledger.Single, err error) {
		f := round.NewFold(t.Rules)
		for _, i := range due {
			r, x := results[i], results[i].Shares[0]
			if !t.Folds() {
				singles = append(singles, ledger.Single{
					Client: x.Client, Version: int64(r.Version), Examples: int64(x.Examples), Steps: int64(x.Steps), Loss: x.Loss, Numbers: r.Numbers,
				})
			} else if err := t.Add(f, r, nil); err != nil {
				return nil, nil, err
			}
		}
		for _, sum := range f.Sums() {
			b, err := round.AppendSums(nil, &sum)
			if err != nil {
				return nil, nil, err
			}
			partials = append(partials, ledger.Partial{Version: int64(sum.Version), Numbers: b})
		}
		return partials, singles, nil
	})
	testkit.Must(s, err)
	return len(which)
}

// weights returns the weights of the newest version.
func (s *site) weights(id string) []byte {
	s.Helper()
	v, err := s.Version(s.Context(), id, s.run(id).Version)
	testkit.Must(s, err)
	b, err := s.blobs.Get(s.Context(), v.Weights)
	testkit.Must(s, err)
	return b
}

// allBlobs returns the hashes of all blobs.
func (s *site) allBlobs() (all []string) {
	s.Helper()
	testkit.Must(s, filepath.WalkDir(filepath.Join(s.dir, "blobs"), func(_ string, d os.DirEntry, err error) error {
		if err == nil && blob.IsHash(d.Name()) {
			all = append(all, d.Name())
		}
		return err
	}))
	slices.Sort(all)
	return all
}
