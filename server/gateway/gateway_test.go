package gateway

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"loadstar/internal/protocol"
	"loadstar/internal/testkit"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/blob"
	"loadstar/server/directory"
	"loadstar/server/ledger"
	"loadstar/server/pki"
	"loadstar/server/terms"
)

var must = testkit.Must

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func chunk(numbers string, offset, length int) *v1.Result {
	return &v1.Result{Checksum: protocol.Checksum([]byte(numbers)), Size: int64(len(numbers)), Offset: int64(offset), Chunk: []byte(numbers)[offset : offset+length]}
}

// TestUploads checks that incomplete results are limited in total size and to one per agent,
// and that they are discarded when no more chunks arrive.
func TestUploads(t *testing.T) {
	u := newUploads(100)
	now := time.Now()
	numbers := func(agent string) string { return strings.Repeat(agent, 40) }
	var ended []func() // by results that are complete
	add := func(agent string, offset, length int) (string, int64, error) {
		t.Helper()
		b, done, next, err := u.add(agent, chunk(numbers(agent), offset, length), now)
		if done != nil {
			ended = append(ended, done)
		}
		return string(b), next, err
	}
	if b, next, err := add("a", 0, 0); b != "" || next != 0 || err != nil || u.bytes != 0 {
		t.Errorf("a head without numbers: %q, %d, %v, and %d bytes are held", b, next, err, u.bytes)
	}
	for _, agent := range []string{"a", "b"} {
		if b, next, err := add(agent, 0, 10); b != "" || next != 10 || err != nil {
			t.Fatal(b, next, err)
		}
	}
	if _, _, err := add("c", 0, 10); !errors.Is(err, errUploads) {
		t.Errorf("120 of 100 bytes: %v", err)
	}
	if b, _, err := add("c", 0, 40); b != numbers("c") || err != nil {
		t.Errorf("a complete result needs no memory: %q, %v", b, err)
	}
	if b, _, err := add("a", 10, 30); b != numbers("a") || err != nil || u.bytes != 80 {
		t.Errorf("%q, %v, and %d bytes are held", b, err, u.bytes)
	}
	for _, done := range ended {
		done()
	}
	if u.bytes != 40 {
		t.Errorf("%d bytes are held after the results were handled", u.bytes)
	}
	if cap(u.byAgent["b"].numbers) != 40 {
		t.Errorf("%d bytes are allocated", cap(u.byAgent["b"].numbers))
	}
	// When a result replaces an incomplete one, only the new result counts towards the
	// limit.
	long := chunk(strings.Repeat("x", 90), 0, 1)
	if _, _, next, err := u.add("b", long, now); next != 1 || err != nil || u.bytes != 90 {
		t.Errorf("%d, %v, and %d bytes are held", next, err, u.bytes)
	}
	// An upload that receives almost nothing is discarded when another one needs the memory,
	// even if its chunks are repeated.
	now = now.Add(slowest)
	if _, _, _, err := u.add("c", long, now); !errors.Is(err, errUploads) {
		t.Errorf("another upload was discarded early: %v", err)
	}
	now = now.Add(time.Second)
	if _, _, next, err := u.add("b", chunk(strings.Repeat("x", 90), 5, 1), now); next != 1 || err != nil {
		t.Errorf("%d, %v", next, err)
	}
	if _, _, next, err := u.add("c", long, now); next != 1 || err != nil || u.bytes != 90 || len(u.byAgent) != 1 {
		t.Errorf("a slow upload was not discarded: %d, %v, and %d bytes are held", next, err, u.bytes)
	}
	// A large upload that would take longer than ten minutes is also discarded.
	large := newUploads(12 << 20)
	for _, x := range []struct {
		age      time.Duration
		received int64
		want     bool
	}{{time.Minute, 1 << 20, false}, {time.Minute, 512 << 10, true}, {5 * time.Minute, 5 << 20, true}, {5 * time.Minute, 7 << 20, false}} {
		large.byAgent["a"], large.bytes = &upload{numbers: make([]byte, x.received), size: 12 << 20, begun: now.Add(-x.age)}, 12<<20
		if got := large.room(1, now); got != x.want {
			t.Errorf("%d of 12 MiB after %v: there is room: %v", x.received>>20, x.age, got)
		}
	}
	now = now.Add(uploadFor)
	u.expire(now)
	if len(u.byAgent) != 1 {
		t.Error("discarded too early")
	}
	u.expire(now.Add(time.Second))
	if len(u.byAgent) != 0 || u.bytes != 0 {
		t.Errorf("%d are held, of %d bytes", len(u.byAgent), u.bytes)
	}
}

// parts counts the parts of a decoded message.
func parts(m protoreflect.Message) (n int) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				n += 1 + parts(v.List().Get(i).Message())
			}
		case f.IsList():
			n += v.List().Len()
		case f.Message() != nil:
			n += 1 + parts(v.Message())
		default:
			n++
		}
		return true
	})
	return n
}

func TestCodecs(t *testing.T) {
	heavy := make(chan struct{}, 1)
	q := &v1.ExchangeRequest{
		Training: []*v1.Turns{{Run: "r", Round: 1, Clients: []string{"a", "b"}}, {Run: "r", Round: 2}},
		Pushed:   []*v1.Turns{{Clients: []string{"c"}}},
	}
	const n = 3 + 4 + 2 + 1
	if got := parts(q.ProtoReflect()); got != n {
		t.Fatal(got)
	}
	b, err := proto.Marshal(q)
	must(t, err)
	text, err := protojson.Marshal(q)
	must(t, err)
	for most, want := range map[int]bool{n: true, n - 1: false, 1: false} {
		got := &v1.ExchangeRequest{}
		if err := (binaryCodec{most, heavy}).Unmarshal(b, got); (err == nil) != want || want && !proto.Equal(got, q) {
			t.Errorf("%d parts: %v", most, err)
		}
	}
	for most, want := range map[int]bool{20: true, 5: false} {
		got := &v1.ExchangeRequest{}
		if err := (textCodec{"json", most, heavy}).Unmarshal(text, got); (err == nil) != want || want && !proto.Equal(got, q) {
			t.Errorf("%d parts of text: %v", most, err)
		}
	}

	// While a heavy message is being served, other heavy messages wait, and small ones do not.
	small := &v1.ExchangeRequest{}
	q.Training[0].Clients = make([]string, heavyParts)
	b2, err := proto.Marshal(q)
	must(t, err)
	heavy <- struct{}{}
	must(t, binaryCodec{2 * heavyParts, heavy}.Unmarshal(b, small))
	decoded := make(chan error)
	go func() { decoded <- binaryCodec{2 * heavyParts, heavy}.Unmarshal(b2, &v1.ExchangeRequest{}) }()
	select {
	case <-decoded:
		t.Error("a heavy message was decoded while another one was served")
	case <-time.After(50 * time.Millisecond):
	}
	<-heavy
	must(t, <-decoded)
}

// A request with a large chunk is decoded like any other. Its chunk may be in a buffer that an
// earlier request has used.
func TestUnmarshalChunk(t *testing.T) {
	q := &v1.ExchangeRequest{
		Training: []*v1.Turns{{Run: "r", Round: 2}}, Have: [][]byte{{1}, {2}}, Session: "s",
		Result: &v1.Result{Run: "r", Round: 1, Shares: []*v1.Share{{Client: "c"}}, Checksum: 3, Size: 2 * smallBody, Nonce: []byte("nonce"), Part: 1},
	}
	c := binaryCodec{1000, make(chan struct{}, 1)}
	for i := range 3 {
		q.Result.Chunk = bytes.Repeat([]byte{byte(i), 7}, smallBody)
		b, err := proto.Marshal(q)
		must(t, err)
		got := &v1.ExchangeRequest{}
		if !unmarshalChunk(b, got) || !proto.Equal(got, q) {
			t.Fatalf("request %d: not decoded like others", i)
		}
		must(t, c.Unmarshal(b, got))
		if !proto.Equal(got, q) {
			t.Errorf("request %d: not decoded like others", i)
		}
		// Fields that occur twice are merged.
		twice, err := proto.Marshal(&v1.ExchangeRequest{Result: &v1.Result{Round: 9}})
		must(t, err)
		want := &v1.ExchangeRequest{}
		must(t, proto.Unmarshal(append(b, twice...), want))
		must(t, c.Unmarshal(append(b, twice...), got))
		if !proto.Equal(got, want) || got.Result.Round != 9 {
			t.Errorf("two results: got round %d", got.GetResult().GetRound())
		}
		freeChunk(got.Result)
	}
	chunks.Put(&[]byte{0: 1, 99: 1})
	numbers := make([]byte, 8*smallBody)
	chunks.Put(&numbers)
	for range 4 {
		q.Result.Chunk = []byte("some")
		b, err := proto.Marshal(q)
		must(t, err)
		got := &v1.ExchangeRequest{}
		if !unmarshalChunk(b, got) || !proto.Equal(got, q) || cap(got.Result.Chunk) > 8 {
			t.Errorf("a chunk of 4 bytes occupies %d", cap(got.Result.Chunk))
		}
	}
}

func FuzzCodec(f *testing.F) {
	for _, m := range seeds("run") {
		b, err := proto.Marshal(m)
		must(f, err)
		f.Add(b)
		text, err := protojson.Marshal(m)
		must(f, err)
		f.Add(text)
	}
	f.Add(bytes.Repeat([]byte{0x2a, 0}, 99))
	f.Add(bytes.Repeat([]byte{0x0b}, 99)) // nested groups
	f.Fuzz(func(t *testing.T, b []byte) {
		const most = 50
		heavy := make(chan struct{}, 1)
		got, want := &v1.ExchangeRequest{}, &v1.ExchangeRequest{}
		if unmarshalChunk(b, got) && (proto.Unmarshal(b, want) != nil || !proto.Equal(got, want)) {
			t.Errorf("decoded %x as %v, want %v", b, got, want)
		}
		for _, m := range seeds("run") {
			for _, c := range []interface{ Unmarshal([]byte, any) error }{binaryCodec{most, heavy}, textCodec{"json", 2 * most, heavy}} {
				got := m.ProtoReflect().New().Interface()
				if err := c.Unmarshal(b, got); err == nil && parts(got.ProtoReflect()) > 2*most {
					t.Errorf("%d parts in %x", parts(got.ProtoReflect()), b)
				}
			}
		}
	})
}

// seeds returns valid messages of agents as seeds for the fuzz test.
func seeds(run string) map[string]proto.Message {
	numbers := make([]byte, 64)
	return map[string]proto.Message{
		v1.AgentServiceJoinProcedure:     &v1.JoinRequest{Secret: []byte("secret"), Csr: []byte("request"), Name: "name"},
		v1.AgentServiceRenewProcedure:    &v1.RenewRequest{Csr: []byte("request")},
		v1.AgentServiceAnnounceProcedure: &v1.AnnounceRequest{Clients: []string{"a0", "a1"}, Inputs: []string{"wind"}, StepSeconds: 3600},
		v1.AgentServiceExchangeProcedure: &v1.ExchangeRequest{
			Training: []*v1.Turns{{Run: run, Clients: []string{"a0"}}}, Pushed: []*v1.Turns{{Run: run, Round: 1, Clients: []string{"a1", "a2"}}},
			Releases: proto.Uint64(7), Reports: []*v1.ClientReport{{Client: "a0", Day: 20000, Shares: []*v1.SourceShare{{Source: "model", Share: 1}}, Findings: []string{"flat"}}},
			Result: &v1.Result{
				Run: run, Round: 0, Form: v1.Form_FORM_UPDATE, Shares: []*v1.Share{{Client: "a0", Examples: 3, Steps: 2, TrainLoss: 0.5}}, Evaluation: &v1.Evaluation{Clients: 1, RelativeMae: 500_000},
				Checksum: protocol.Checksum(numbers), Size: int64(len(numbers)), Chunk: numbers,
			},
			Declines: []*v1.Decline{{Turns: &v1.Turns{Run: run, Clients: []string{"a2"}}, Reason: "why"}},
			Have:     [][]byte{make([]byte, 32)}, WaitMs: 1, Session: "session",
		},
	}
}

// newGateway returns a gateway with one agent that has open turns, and a handler that
// authenticates callers as that agent.
func newGateway(t testing.TB) (*Gateway, http.Handler) {
	t.Helper()
	ctx := t.Context()
	dir := t.TempDir()
	l, err := ledger.Open(ctx, "sqlite:"+filepath.Join(dir, "ledger.db"))
	must(t, err)
	t.Cleanup(func() { l.Close() })
	authority, err := pki.Open(filepath.Join(dir, "pki"), pki.Keys{})
	must(t, err)
	store, err := blob.Files(filepath.Join(dir, "blobs"))
	must(t, err)
	now := time.Now()
	must(t, l.Directory.AddToken(ctx, []byte("token"), directory.Token{Uses: 1, Expires: now.Add(time.Hour)}, "test", now))
	must(t, l.Directory.Join(ctx, []byte("token"), directory.Agent{ID: "agent"}, now))
	_, err = l.Directory.Announce(ctx, directory.Announcement{Agent: "agent", Clients: []string{"a0", "a1", "a2"}, Step: time.Hour, Most: 3}, now)
	must(t, err)
	must(t, l.AddRun(ctx, ledger.Run{ID: "run", Created: now}, "test"))
	lead, err := l.Lead(ctx, "test", time.Hour, now)
	must(t, err)
	plan := "{algorithm: fedavg, model: {name: fekri2023, lookback: 1, targets: 1, inputs: [load]}, evaluate: {every: 0}}"
	must(t, l.Drive(ctx, lead, "run", func(d *ledger.Drive) error {
		if _, err := d.Begin(ledger.Run{Plan: plan}, ledger.Version{}, directory.Filter{}, now); err != nil {
			return err
		}
		if _, _, err := d.Ask(ledger.Asking{Round: 0, Version: 0, Members: []int64{0, 1, 2}, Until: now.Add(time.Hour)}); err != nil {
			return err
		}
		return d.Save("{}", ledger.Round{Opened: now})
	}))
	g := New(Config{
		Ledger: l, Blobs: store, Wake: func(string) {}, Authority: authority, Certificates: time.Hour, Lease: time.Hour, Pace: Pace{Poll: time.Second, MaxPoll: time.Minute, Rate: 100},
		Clients: 50, Uploads: 1 << 20, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Terms: terms.NewCache(func(ctx context.Context, id string) (*terms.Terms, error) {
			r, err := l.Run(ctx, id)
			if err != nil {
				return nil, err
			}
			return terms.Read(r.Plan, r.PlanBlob, r.Fleet)
		}),
	})
	h := g.Handler()
	return g, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(pki.With(r.Context(), pki.Identity{Role: pki.Agent, ID: "agent"})))
	})
}

// FuzzHandler checks that every request, valid or not, gets one of the expected status codes.
func FuzzHandler(f *testing.F) {
	g, h := newGateway(f)
	x, err := g.Terms.Of(f.Context(), "run")
	must(f, err)
	var all []string
	for procedure := range seeds("run") {
		all = append(all, procedure)
	}
	slices.Sort(all)
	for i, procedure := range all {
		m := seeds("run")[procedure]
		if e, ok := m.(*v1.ExchangeRequest); ok {
			q := e.Result
			q.Chunk = make([]byte, x.Rules.UpdateBytes(x.Shared))
			q.Size, q.Checksum = int64(len(q.Chunk)), protocol.Checksum(q.Chunk)
		}
		b, err := proto.Marshal(m)
		must(f, err)
		f.Add(byte(i), false, b)
		text, err := protojson.Marshal(m)
		must(f, err)
		f.Add(byte(i), true, text)
	}
	f.Fuzz(func(t *testing.T, which byte, text bool, body []byte) {
		procedure := all[int(which)%len(all)]
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, procedure, bytes.NewReader(body))
		r.Header.Set("Content-Type", map[bool]string{false: "application/proto", true: "application/json"}[text])
		r.Header.Set(protocol.Header, strconv.Itoa(protocol.Version))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		switch w.Code {
		case http.StatusOK, http.StatusBadRequest, http.StatusForbidden, http.StatusTooManyRequests:
		default:
			t.Errorf("%s: %d %s", procedure, w.Code, w.Body)
		}
		if len(g.calls.by) != 0 || g.calls.bytes != 0 || g.uploads.bytes > g.Uploads {
			t.Error("a call is still registered")
		}
	})
}

// TestFailed checks that a call that panics gets an error response, and that the server
// continues.
func TestFailed(t *testing.T) {
	g, h := newGateway(t)
	g.results.terms = terms.NewCache(func(context.Context, string) (*terms.Terms, error) { panic("a bug") })
	b, err := proto.Marshal(seeds("run")[v1.AgentServiceExchangeProcedure])
	must(t, err)
	for range 2 * callsOfAgent {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, v1.AgentServiceExchangeProcedure, bytes.NewReader(b))
		r.Header.Set("Content-Type", "application/proto")
		r.Header.Set(protocol.Header, strconv.Itoa(protocol.Version))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusInternalServerError || strings.Contains(w.Body.String(), "a bug") {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
}

// TestPace checks that the interval between check-ins grows with the fleet, so that the rate of
// check-ins is limited, and that the interval stays within its bounds.
func TestPace(t *testing.T) {
	g := &Gateway{gate: newGate(), Config: Config{Lease: 10 * time.Minute, Random: func(string) float64 { return rand.Float64() }, Pace: Pace{Poll: time.Second, MaxPoll: time.Hour, Rate: 500}}}
	for _, c := range []struct {
		agents, asked int64
		busy          bool
		want          time.Duration
	}{
		{0, 0, false, time.Second},
		{10, 10, true, time.Second},
		{50_000, 1000, false, 100 * time.Second},
		{50_000, 1000, true, 2 * time.Second},
		{10_000_000, 0, false, time.Hour},
		{10_000_000, 50_000, true, 100 * time.Second},
		{10_000_000, 100_000, true, 150 * time.Second}, // a quarter of a lease
		{10, 100_000, true, time.Second},               // few agents with many clients each
	} {
		g.agents.Store(c.agents)
		g.asked.Store(c.asked)
		var sum time.Duration
		for range 1000 {
			p := g.pace(c.busy, "")
			if float64(p) < 0.8*float64(c.want)-1 || float64(p) > 1.2*float64(c.want)+1 {
				t.Fatalf("%d agents: %v, want about %v", c.agents, p, c.want)
			}
			sum += p
		}
		if mean := sum / 1000; mean < c.want*95/100 || mean > c.want*105/100 {
			t.Errorf("%d agents: %v in the mean, want %v", c.agents, mean, c.want)
		}
	}
}
