package server

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"loadstar/internal/testkit"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/ledger"
)

// TestWrongResults checks that the server verifies every part of a result: the sender, the
// turn, the size, and every number.
func TestWrongResults(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	a, b := st.join("a0", "a1", "a2", "a3"), st.join("b0")
	run := st.start(small)
	task := a.task(run, 0)
	b.task(run, 0)
	for b := 0; b < len(task.Clients); b++ {
		if task.Clients[b] != fmt.Sprint("a", b) {
			t.Fatalf("%v were asked", task.Clients)
		}
	}
	float := func(at int, v float64) func(q *v1.Result) {
		return func(q *v1.Result) {
			binary.LittleEndian.PutUint32(q.Chunk[4*at:], math.Float32bits(float32(v)))
			whole(q, q.Chunk)
		}
	}
	word := func(at int, v int64) func(q *v1.Result) {
		return func(q *v1.Result) {
			binary.LittleEndian.PutUint64(q.Chunk[8*at:], uint64(v))
			whole(q, q.Chunk)
		}
	}
	share := func(change func(s *v1.Share)) func(q *v1.Result) {
		return func(q *v1.Result) { change(q.Shares[0]) }
	}
	const rejected, closed = v1.Outcome_OUTCOME_REJECTED, v1.Outcome_OUTCOME_CLOSED
	type wrong struct {
		name    string
		spoil   func(q *v1.Result)
		outcome v1.Outcome
		metric  string
		reason  string
	}
	both := []wrong{
		{"no run", func(q *v1.Result) { q.Run = "" }, rejected, "run", "no such run"},
		{"another run", func(q *v1.Result) { q.Run = "../" + q.Run }, rejected, "run", "no such run"},
		{"a later round", func(q *v1.Result) { q.Round++ }, closed, "closed", ""},
		{"the smallest round", func(q *v1.Result) { q.Round = math.MinInt64 }, closed, "closed", ""},
		{"the largest round", func(q *v1.Result) { q.Round = math.MaxInt64 }, closed, "closed", ""},
		{"another version", func(q *v1.Result) { q.Version = 1 }, rejected, "version", "version 0, not 1"},
		{"a negative version", func(q *v1.Result) { q.Version = -1 }, rejected, "version", "version 0, not -1"},
		{"a huge version", func(q *v1.Result) { q.Version = math.MaxInt64 }, rejected, "version", ""},
		{"a version that wraps", func(q *v1.Result) { q.Version = 1 << 32 }, rejected, "version", ""},
		{"no form", func(q *v1.Result) { q.Form = 0 }, rejected, "shape", "form"},
		{"an unknown form", func(q *v1.Result) { q.Form = 77 }, rejected, "shape", "form"},
		{"a negative form", func(q *v1.Result) { q.Form = -1 }, rejected, "shape", "form"},
		{"no clients", func(q *v1.Result) { q.Shares = nil }, rejected, "shape", "0 clients"},
		{"no size", func(q *v1.Result) { q.Size = 0 }, rejected, "shape", "0 bytes"},
		{"a negative size", func(q *v1.Result) { q.Size = -q.Size }, rejected, "shape", "bytes"},
		{"a huge size", func(q *v1.Result) { q.Size = math.MaxInt64 }, rejected, "shape", "bytes"},
		{"one byte more", func(q *v1.Result) { whole(q, append(q.Chunk, 0)) }, rejected, "shape", "bytes"},
		{"one byte less", func(q *v1.Result) { whole(q, q.Chunk[1:]) }, rejected, "shape", "bytes"},
		{"a chunk beyond the end", func(q *v1.Result) { q.Offset = 1 }, rejected, "shape", "chunk"},
		{"a chunk after the end", func(q *v1.Result) { q.Offset, q.Chunk = q.Size+1, nil }, rejected, "shape", "chunk"},
		{"a negative offset", func(q *v1.Result) { q.Offset = -1 }, rejected, "shape", "chunk"},
		{"an offset that wraps", func(q *v1.Result) { q.Offset = math.MaxInt64 }, rejected, "shape", "chunk"},
		{"a chunk too large", func(q *v1.Result) { q.Chunk = make([]byte, 4<<20+1) }, rejected, "shape", "chunk"},
		{"another's checksum", func(q *v1.Result) { q.Checksum ^= 1 }, rejected, "checksum", "checksum"},
		{"another's numbers", func(q *v1.Result) { q.Chunk[5] ^= 1 }, rejected, "checksum", "checksum"},
		{"a client without a name", share(func(s *v1.Share) { s.Client = "" }), rejected, "shape", "name"},
		{"an unprintable name", share(func(s *v1.Share) { s.Client = "a0\x00" }), rejected, "shape", "name"},
		{"a long name", share(func(s *v1.Share) { s.Client = strings.Repeat("a", 1000) }), rejected, "shape", "name"},
		{"an unknown client", share(func(s *v1.Share) { s.Client = "nobody" }), closed, "closed", ""},
		{"another's client", share(func(s *v1.Share) { s.Client = "b0" }), closed, "closed", ""},
		{"an SQL injection", share(func(s *v1.Share) { s.Client = "a0' OR '1'='1" }), closed, "closed", ""},
		{"no examples", share(func(s *v1.Share) { s.Examples = 0 }), rejected, "numbers", "examples"},
		{"negative examples", share(func(s *v1.Share) { s.Examples = math.MinInt64 }), rejected, "numbers", "examples"},
		{"negative steps", share(func(s *v1.Share) { s.Steps = -1 }), rejected, "numbers", "steps"},
		{"loss NaN", share(func(s *v1.Share) { s.Loss = math.NaN() }), rejected, "numbers", "loss"},
		{"train loss infinite", share(func(s *v1.Share) { s.TrainLoss = math.Inf(1) }), rejected, "numbers", "loss"},
		{"train loss huge", share(func(s *v1.Share) { s.TrainLoss = -math.MaxFloat64 }), rejected, "numbers", "loss"},
	}
	updates := append(slices.Clone(both),
		wrong{"NaN", float(0, math.NaN()), rejected, "numbers", "not finite"},
		wrong{"infinite", float(3, math.Inf(-1)), rejected, "numbers", "not finite"},
		wrong{"beyond the bound", float(1, 2.001), rejected, "numbers", "beyond"},
		wrong{"the largest float", float(1, math.MaxFloat32), rejected, "numbers", "beyond"},
		wrong{"of two clients", func(q *v1.Result) { q.Shares = append(q.Shares, &v1.Share{Client: "a1", Examples: 1}) }, rejected, "shape", "2 clients, want 1"},
		wrong{"said to be a sum", func(q *v1.Result) { q.Form = v1.Form_FORM_SUM }, rejected, "shape", "bytes"},
	)
	sums := append(slices.Clone(both),
		wrong{"said to be an update", func(q *v1.Result) { q.Form, q.Shares = v1.Form_FORM_UPDATE, q.Shares[:1] }, rejected, "shape", "bytes"},
		wrong{"one client too few", func(q *v1.Result) { q.Shares = q.Shares[:2] }, rejected, "numbers", "holds 3 updates"},
		wrong{"one client too many", func(q *v1.Result) { q.Shares = append(q.Shares, &v1.Share{Client: "a3", Examples: 1}) }, rejected, "numbers", "holds 3 updates"},
		wrong{"a client twice", func(q *v1.Result) { q.Shares[2].Client = "a0" }, rejected, "numbers", "twice"},
		wrong{"another weight", share(func(s *v1.Share) { s.Examples++ }), rejected, "numbers", "weight"},
		wrong{"more updates than there can be", word(1, math.MaxInt64), rejected, "numbers", "updates"},
		wrong{"a negative count", word(1, -3), rejected, "numbers", "updates"},
		wrong{"more weight than there can be", word(2, math.MaxInt64), rejected, "numbers", "weight"},
		wrong{"another scale", word(0, 1), rejected, "numbers", "fractional bits"},
		wrong{"a number beyond", word(3, math.MaxInt64), rejected, "numbers", "beyond"},
		wrong{"a number below", word(4, math.MinInt64), rejected, "numbers", "beyond"},
		wrong{"too many clients", func(q *v1.Result) { q.Shares = slices.Repeat(q.Shares, 3400) }, rejected, "shape", "10200 clients"},
	)
	for kind, all := range map[string][]wrong{"update": updates, "sum": sums} {
		for _, w := range all {
			q := st.update(task, "a0", 1)
			if kind == "sum" {
				q = st.sum(task, "a0", "a1", "a2")
			}
			w.spoil(q)
			st.unharmed(kind+": "+w.name, w.metric, 1, func() {
				s, err := a.Push(t.Context(), q)
				if err != nil || s.Outcome != w.outcome || !strings.Contains(s.Reason, w.reason) {
					t.Errorf("%s, %s: %v, %v, want %v because of %q", kind, w.name, s, err, w.outcome, w.reason)
				}
			})
		}
	}
	// After all these refusals, valid results still count.
	for _, q := range []*v1.Result{st.sum(task, "a0", "a1", "a2"), st.update(task, "a3", 1)} {
		if s, err := a.Push(t.Context(), q); err != nil || s.Outcome != v1.Outcome_OUTCOME_COUNTED {
			t.Errorf("%v, %v", s, err)
		}
	}
	testkit.Eventually(st, "the results are counted", func() bool {
		return a.heard(run, 0, "a1") == v1.Outcome_OUTCOME_COUNTED && a.heard(run, 0, "a3") == v1.Outcome_OUTCOME_COUNTED
	})
	// If the algorithm needs individual updates, sums are refused.
	each := st.start(strings.NewReplacer("fedavg", "fedavgadaptive", ", max_examples: 100", "").Replace(small))
	task = a.task(each, 0)
	q := &v1.Result{Run: each, Version: task.Version, Form: v1.Form_FORM_SUM, Shares: []*v1.Share{{Client: "a0", Examples: 1}}}
	st.unharmed("a sum", "shape", 1, func() {
		if s, err := a.Push(t.Context(), whole(q, make([]byte, 1000))); err != nil || s.Outcome != rejected || !strings.Contains(s.Reason, "each update") {
			t.Errorf("%v, %v", s, err)
		}
	})
}

// TestChunks checks that a result that arrives in chunks is assembled even if chunks are lost
// or repeated. The gateway holds one incomplete result per agent.
func TestChunks(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	a := st.join("a0", "a1")
	task := a.task(st.start(small), 0)
	q := st.update(task, "a0", 1)
	all := q.Chunk
	push := func(from, to int) (v1.Outcome, int64) {
		t.Helper()
		q.Offset, q.Chunk = int64(from), all[from:to]
		s, err := a.Push(t.Context(), q)
		testkit.Must(t, err)
		return s.Outcome, s.NextOffset
	}
	const part = v1.Outcome_OUTCOME_PART
	n := len(all)
	for _, c := range []struct {
		from, to int
		outcome  v1.Outcome
		next     int64
	}{
		{n / 2, n, part, 0}, // the first chunk was lost
		{0, 0, part, 0},
		{0, n / 4, part, int64(n / 4)},
		{0, n / 4, part, int64(n / 4)}, // this chunk arrives again
		{n / 2, n, part, int64(n / 4)}, // a chunk was lost
		{n / 4, n - 1, part, int64(n - 1)},
		{n - 1, n - 1, part, int64(n - 1)},
		{n, n, part, int64(n - 1)},
		{n - 1, n, v1.Outcome_OUTCOME_COUNTED, 0},
	} {
		if o, next := push(c.from, c.to); o != c.outcome || next != c.next {
			t.Fatalf("bytes %d to %d: %v, next %d; want %v, %d", c.from, c.to, o, next, c.outcome, c.next)
		}
	}
	testkit.Eventually(st, "the result is counted", func() bool { return a.heard(task.Run, 0, "a0") == v1.Outcome_OUTCOME_COUNTED })
	// Another result from the same agent replaces an incomplete one.
	first, second := st.update(task, "a1", 2), st.update(task, "a1", 3)
	for _, q := range []*v1.Result{first, second, first} {
		q.Chunk = q.Chunk[:8]
		if s, err := a.Push(t.Context(), q); err != nil || s.Outcome != part || s.NextOffset != 8 {
			t.Errorf("%v, %v", s, err)
		}
	}
	// Chunks that do not match the checksum are discarded.
	st.unharmed("chunks of another result", "checksum", 1, func() {
		first.Offset, first.Chunk = 8, make([]byte, n-8)
		if s, err := a.Push(t.Context(), first); err != nil || s.Outcome != v1.Outcome_OUTCOME_REJECTED {
			t.Errorf("%v, %v", s, err)
		}
	})
}

// TestLeaseDuringUpload checks that each chunk of a result extends the lease of its turn, because an
// upload over a slow link can take longer than a lease.
func TestLeaseDuringUpload(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	a := st.join("a0", "a1")
	task := a.task(st.start(small), 0)
	write := st.ledger.Store.Write
	shorten := func(left time.Duration) {
		t.Helper()
		_, err := write.Exec("UPDATE leases SET until = $1", time.Now().Add(left).UnixMilli())
		testkit.Must(t, err)
		_, err = write.Exec("UPDATE stamps SET stamp = stamp + 1")
		testkit.Must(t, err)
	}
	extended := func(client string) bool {
		t.Helper()
		var until int64
		testkit.Must(t, write.QueryRow("SELECT until FROM leases WHERE client = $1", client).Scan(&until))
		return time.Until(time.UnixMilli(until)) > st.Lease/2
	}
	q := st.update(task, "a0", 1)
	all := q.Chunk
	for _, n := range []int{len(all) / 2, len(all) - 1} {
		shorten(st.Lease / 10)
		testkit.Eventually(t, "the gateway knows the leases", func() bool {
			_, err := a.Exchange(t.Context(), &v1.ExchangeRequest{Training: []*v1.Turns{{Run: task.Run, Clients: []string{"a1"}}}})
			testkit.Must(t, err)
			return extended("a1")
		})
		q.Chunk = all[q.Offset:n]
		if s, err := a.Push(t.Context(), q); err != nil || s.Outcome != v1.Outcome_OUTCOME_PART || !extended("a0") {
			t.Errorf("%d of %d bytes: %v, %v; the lease is extended: %t", n, len(all), s, err, extended("a0"))
		}
		q.Offset = int64(n)
	}
}

// TestReplays checks that sending a result again, or sending different numbers for the same
// turn, changes nothing, whether at the same time, afterwards, or after the round.
func TestReplays(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	a := st.join("a0", "a1", "a2")
	run := st.start(strings.Replace(small, "rounds: 50", "rounds: 50, schedule: {cohort: 2, over_selection: 0.5}", 1))
	task := a.task(run, 0)
	good, same, other := st.update(task, "a0", 1), st.update(task, "a0", 1), st.update(task, "a0", 2)
	withSum := st.sum(task, "a0", "a1", "a2")
	push := func(what string, q *v1.Result, want v1.Outcome) {
		t.Helper()
		if s, err := a.Push(t.Context(), q); err != nil || s.Outcome != want {
			t.Errorf("%s: %v, %v, want %v", what, s, err, want)
		}
	}
	const counted, closed = v1.Outcome_OUTCOME_COUNTED, v1.Outcome_OUTCOME_CLOSED
	if o := a.heard(run, 0, "a0"); o != v1.Outcome_OUTCOME_UNKNOWN {
		t.Errorf("before it was sent: %v", o)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { push("at the same time", proto.Clone(good).(*v1.Result), counted) })
	}
	wg.Wait()
	if o := a.heard(run, 0, "a0"); o != counted {
		t.Errorf("after it was sent: %v", o)
	}
	push("the same", same, counted)
	push("another", other, counted)
	st.unharmed("a sum that includes it", "overlap", 1, func() { push("a sum that includes it", withSum, v1.Outcome_OUTCOME_REJECTED) })
	push("the second", st.update(task, "a1", 3), counted)
	next := a.task(run, 1)
	if next.Version != 1 {
		t.Fatalf("version %d", next.Version)
	}
	st.unharmed("later", "closed", 2, func() {
		push("the same", same, counted)
		push("another", other, counted)
		push("too late", st.update(task, "a2", 4), closed)
		push("a sum that includes it", withSum, closed)
		if o := a.heard(run, 0, "a2"); o != closed {
			t.Errorf("after the round: %v", o)
		}
	})
	testkit.Must(t, st.ledger.Drive(t.Context(), st.lead(), run, func(d *ledger.Drive) error {
		all, _, err := d.Receipts(0)
		if len(all) != 2 {
			t.Errorf("%+v", all)
		}
		return err
	}))
	// Each of the first two updates must have changed the weights exactly once.
	x, err := st.terms.Of(t.Context(), run)
	testkit.Must(t, err)
	before := x.Server().Shared()
	v, err := st.ledger.Version(t.Context(), run, 1)
	testkit.Must(t, err)
	after, err := st.blobs.Get(t.Context(), v.Weights)
	testkit.Must(t, err)
	for i := range before {
		want := before[i] + float32((math.Sin(float64(i+31))+math.Sin(float64(i+93)))/2)
		if got := math.Float32frombits(binary.LittleEndian.Uint32(after[4*i:])); math.Abs(float64(got-want)) > 1e-5 {
			t.Fatalf("weight %d is %g, want %g", i, got, want)
		}
	}
}

// lead returns the lead that the station's coordinator holds.
func (st *station) lead() ledger.Lead {
	st.Helper()
	l, err := st.ledger.Lead(st.Context(), soleCoordinator, time.Minute, time.Now())
	testkit.Must(st, err)
	return l
}

// TestObsoleteTraining checks that a slow agent learns at its next check-in that its round has
// closed.
func TestObsoleteTraining(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	a := st.join("a0", "a1", "a2")
	run := st.start(strings.Replace(small, "rounds: 50", "rounds: 50, schedule: {cohort: 2, over_selection: 0.5}", 1))
	task := a.task(run, 0)
	busy := &v1.ExchangeRequest{Training: []*v1.Turns{{Run: run, Clients: task.Clients}}}
	if s, err := a.Exchange(t.Context(), busy); err != nil || len(s.Verdicts) != 0 || len(s.Tasks) != 0 {
		t.Fatalf("%v, %v", s, err)
	}
	for _, c := range []string{"a0", "a1"} {
		if s, err := a.Push(t.Context(), st.update(task, c, 1)); err != nil || s.Outcome != v1.Outcome_OUTCOME_COUNTED {
			t.Fatalf("%v, %v", s, err)
		}
	}
	a.task(run, 1)
	s, err := a.Exchange(t.Context(), busy)
	testkit.Must(t, err)
	got := map[v1.Outcome][]string{}
	for _, v := range s.Verdicts {
		if v.Run == run && v.Round == 0 {
			got[v.Outcome] = v.Clients
		}
	}
	if len(got) != 2 || !slices.Equal(got[v1.Outcome_OUTCOME_CLOSED], []string{"a2"}) || !slices.Equal(got[v1.Outcome_OUTCOME_COUNTED], []string{"a0", "a1"}) {
		t.Errorf("%v", s.Verdicts)
	}
}
