package server

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	mathrand "math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"loadstar/agent/identity"
	"loadstar/internal/jointoken"
	"loadstar/internal/mtls"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/ledger"
	"loadstar/server/pki"
)

// procedures are those of agents, but for Join.
var procedures = []string{
	v1.AgentServiceRenewProcedure, v1.AgentServiceAnnounceProcedure, v1.AgentServiceCheckInProcedure, v1.AgentServicePushProcedure, v1.AgentServiceDeclineProcedure,
}

// certify returns a client that shows a certificate of an authority.
func (st *station) certify(a *pki.Authority, who pki.Identity, ttl time.Duration) *http.Client {
	st.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(st, err)
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	must(st, err)
	chain, _, err := a.Sign(csr, who, ttl)
	must(st, err)
	operator, err := mtls.ReadFolder(st.Dir + "/operator")
	must(st, err)
	shown := tls.Certificate{Certificate: chain[:1], PrivateKey: key}
	return st.http(&tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: mtls.Pool(operator.Root),
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &shown, nil },
	})
}

// post sends a body to a procedure.
func (st *station) post(h *http.Client, procedure, kind string, body io.Reader, more ...string) *http.Response {
	st.Helper()
	q, err := http.NewRequestWithContext(st.Context(), http.MethodPost, st.url+procedure, body)
	must(st, err)
	q.Header.Set("Content-Type", kind)
	for i := 0; i < len(more); i += 2 {
		q.Header.Set(more[i], more[i+1])
	}
	r, err := h.Do(q)
	must(st, err)
	defer r.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(r.Body, 1<<20))
	must(st, err)
	return r
}

// Who has no certificate, or another's, gets nowhere, and nothing of what it sends is
// read.
func TestStrangers(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	a := st.join("a0")
	other, err := pki.Open(t.TempDir())
	must(t, err)
	who := pki.Identity{Role: pki.Agent, ID: a.id}

	for name, h := range map[string]*http.Client{"nobody": st.nobody(), "an operator": st.operatorHTTP()} {
		for _, p := range procedures {
			st.unharmed(name+" "+p, "identity", 1, func() {
				if r := st.post(h, p, "application/proto", &unread{t: t, left: 32 << 20}); r.StatusCode != http.StatusUnauthorized {
					t.Errorf("%s, %s: %s", name, p, r.Status)
				}
			})
		}
	}
	for name, h := range map[string]*http.Client{"nobody": st.nobody(), "an agent": a.http} {
		o := v1.NewOperatorServiceClient(h, st.url)
		for procedure, err := range map[string]error{
			"create token": second(o.CreateToken(t.Context(), &v1.CreateTokenRequest{Uses: 1, TtlSeconds: 3600})),
			"list clients": second(o.ListClients(t.Context(), &v1.ListClientsRequest{})),
			"revoke":       second(o.Revoke(t.Context(), &v1.RevokeRequest{Client: "a0"})),
			"start run":    second(o.StartRun(t.Context(), &v1.StartRunRequest{Plan: small})),
			"list runs":    second(o.ListRuns(t.Context(), &v1.ListRunsRequest{})),
			"get run":      second(o.GetRun(t.Context(), &v1.GetRunRequest{})),
			"stop run":     second(o.StopRun(t.Context(), &v1.StopRunRequest{})),
			"list audit":   second(o.ListAudit(t.Context(), &v1.ListAuditRequest{})),
			"watch run":    watchError(o, t.Context()),
		} {
			st.wantCode(name+": "+procedure, err, connect.CodePermissionDenied)
		}
		if r := st.post(h, v1.OperatorServiceStartRunProcedure, "application/proto", &unread{t: t, left: 32 << 20}); r.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %s", name, r.Status)
		}
	}
	for name, h := range map[string]*http.Client{
		"another root's": st.certify(other, who, time.Hour),
		"an expired":     st.certify(st.authority, who, time.Nanosecond),
	} {
		if _, err := v1.NewAgentServiceClient(h, st.url).CheckIn(t.Context(), &v1.CheckInRequest{}); !hungUp(err) {
			t.Errorf("%s certificate: %v", name, err)
		}
	}
	// A certificate of ours, for an agent that never joined.
	h := st.certify(st.authority, pki.Identity{Role: pki.Agent, ID: "ghost"}, time.Hour)
	st.unharmed("a ghost", "revoked", 1, func() {
		_, err := v1.NewAgentServiceClient(h, st.url).CheckIn(t.Context(), &v1.CheckInRequest{})
		st.wantCode("a ghost", err, connect.CodePermissionDenied)
	})
	if r, err := st.nobody().Get(st.url + "/loadstar.v1.Nothing/At"); err != nil || r.StatusCode != http.StatusNotFound {
		t.Error(r, err)
	}
}

// hungUp says that a call has failed without an answer: the connection was not made.
func hungUp(err error) bool { return err != nil && !connect.IsWireError(err) }

func second[T any](_ T, err error) error { return err }

func watchError(o v1.OperatorServiceClient, ctx context.Context) error {
	s, err := o.WatchRun(ctx, &v1.WatchRunRequest{})
	if err != nil {
		return err
	}
	defer s.Close()
	s.Receive()
	return s.Err()
}

// unread is a body of which a server that reads it takes much.
type unread struct {
	t    *testing.T
	read atomic.Int64
	left int
}

func (u *unread) Read(p []byte) (int, error) {
	n := min(len(p), u.left)
	if n == 0 {
		return 0, io.EOF
	}
	u.left -= n
	// What the network holds by itself: of HTTP/1.1, as much as the sender's kernel does.
	if u.read.Add(int64(n)) > 8<<20 {
		u.t.Error("much of a stranger's body was read")
		return 0, io.EOF
	}
	return n, nil
}

// A connection does not outlive the certificate that it was opened with.
func TestExpires(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	a := st.join("a0")
	h := st.certify(st.authority, pki.Identity{Role: pki.Agent, ID: a.id}, 3*time.Second)
	c := v1.NewAgentServiceClient(h, st.url)
	_, err := c.CheckIn(t.Context(), &v1.CheckInRequest{})
	must(t, err)
	st.soon("the certificate expires", func() bool {
		_, err = c.CheckIn(t.Context(), &v1.CheckInRequest{})
		return err != nil
	})
	st.wantCode("on the old connection", err, connect.CodeUnauthenticated)
	h.CloseIdleConnections()
	if _, err := c.CheckIn(t.Context(), &v1.CheckInRequest{}); !hungUp(err) {
		t.Errorf("on a new one: %v", err)
	}
	if _, err := a.CheckIn(t.Context(), &v1.CheckInRequest{}); err != nil {
		t.Errorf("with a good certificate: %v", err)
	}
}

// What is no message, or too much of one, is refused before it takes memory.
func TestBodies(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	a := st.join("a0")
	zipped := func(n int) io.Reader {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, err := w.Write(make([]byte, n))
		must(t, errors.Join(err, w.Close()))
		return &b
	}
	unsized := func(b []byte) io.Reader { return io.MultiReader(bytes.NewReader(b)) }
	crowd := bytes.Repeat([]byte{0x2a, 0}, 2<<20) // two million shares of nobody
	names := append(binary.AppendUvarint([]byte{0x0a}, 4<<20), bytes.Repeat([]byte{0x1a, 0}, 2<<20)...)
	for _, c := range []struct {
		name, procedure, kind string
		body                  io.Reader
		header                []string
		status                int
		reason                string
	}{
		{"garbage", v1.AgentServicePushProcedure, "application/proto", strings.NewReader("\xff\xff\xff no message"), nil, 400, "body"},
		{"cut off", v1.AgentServiceCheckInProcedure, "application/proto", strings.NewReader("\x0a\x7f"), nil, 400, "body"},
		{"not UTF-8", v1.AgentServiceAnnounceProcedure, "application/proto", strings.NewReader("\x0a\x02\xff\xfe"), nil, 400, "body"},
		{"garbage as text", v1.AgentServicePushProcedure, "application/json", strings.NewReader("{]"), nil, 400, "body"},
		{"another kind", v1.AgentServicePushProcedure, "text/plain", strings.NewReader("hello"), nil, 415, "body"},
		{"unknown compression", v1.AgentServicePushProcedure, "application/proto", strings.NewReader("x"), []string{"Content-Encoding", "br"}, 501, "body"},
		{"not compressed", v1.AgentServicePushProcedure, "application/proto", strings.NewReader("x"), []string{"Content-Encoding", "gzip"}, 400, "body"},
		{"many shares", v1.AgentServicePushProcedure, "application/proto", bytes.NewReader(crowd), nil, 400, "body"},
		{"many names", v1.AgentServiceCheckInProcedure, "application/proto", bytes.NewReader(names), nil, 400, "body"},
		{"many as text", v1.AgentServicePushProcedure, "application/json", strings.NewReader(`{"shares":[{}` + strings.Repeat(",{}", 1<<20) + "]}"), nil, 400, "body"},
		{"too long", v1.AgentServicePushProcedure, "application/proto", bytes.NewReader(make([]byte, 9<<20)), nil, 429, "size"},
		{"too long, unsaid", v1.AgentServicePushProcedure, "application/proto", unsized(make([]byte, 9<<20)), nil, 429, "body"},
		{"a bomb", v1.AgentServicePushProcedure, "application/proto", zipped(64 << 20), []string{"Content-Encoding", "gzip"}, 429, "body"},
		{"a long join", v1.AgentServiceJoinProcedure, "application/proto", bytes.NewReader(make([]byte, 64<<10)), nil, 429, "body"},
		{"gRPC without a message", v1.AgentServicePushProcedure, "application/grpc", strings.NewReader(""), nil, 200, "body"},
		{"gRPC of a length", v1.AgentServicePushProcedure, "application/grpc", strings.NewReader("\x00\xff\xff\xff\xff"), nil, 200, "body"},
		{"nothing", v1.AgentServiceDeclineProcedure, "application/proto", strings.NewReader(""), nil, 400, "clients"},
	} {
		st.unharmed(c.name, c.reason, 1, func() {
			if r := st.post(a.http, c.procedure, c.kind, c.body, c.header...); r.StatusCode != c.status {
				t.Errorf("%s: %s, want %d", c.name, r.Status, c.status)
			}
		})
	}
	st.unharmed("a GET", "body", 1, func() {
		if r, err := a.http.Get(st.url + v1.AgentServicePushProcedure); err != nil || r.StatusCode != http.StatusMethodNotAllowed {
			t.Error(r, err)
		}
	})
	// The same calls by other protocols and as text are heard.
	for _, o := range []connect.ClientOption{connect.WithGRPC(), connect.WithGRPCWeb(), connect.WithProtoJSON(), connect.WithSendGzip()} {
		if _, err := v1.NewAgentServiceClient(a.http, st.url, o).CheckIn(t.Context(), &v1.CheckInRequest{}); err != nil {
			t.Errorf("%T: %v", o, err)
		}
	}
}

// Thousands of bodies that are nearly messages: the answer is one of those that are
// meant, and the server goes on.
func TestMutatedBodies(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	a := st.join("a0", "a1", "a2")
	run := st.start(small)
	task := a.task(run, 0)
	seeds := map[string]proto.Message{
		v1.AgentServiceJoinProcedure:     &v1.JoinRequest{Secret: []byte("secret"), Csr: []byte("request"), Name: "name"},
		v1.AgentServiceRenewProcedure:    &v1.RenewRequest{Csr: []byte("request")},
		v1.AgentServiceAnnounceProcedure: &v1.AnnounceRequest{Clients: []string{"a0", "a1"}, Inputs: []string{"wind"}, StepSeconds: 3600},
		v1.AgentServiceCheckInProcedure:  &v1.CheckInRequest{Training: []*v1.Turns{{Run: run, Clients: []string{"a0"}}}, Pushed: []*v1.Turns{{Run: run, Clients: []string{"a1"}}}},
		v1.AgentServicePushProcedure:     st.sum(task, "a0", "a1", "a2"),
		v1.AgentServiceDeclineProcedure:  &v1.DeclineRequest{Turns: &v1.Turns{Run: run, Round: 7, Clients: []string{"a0"}}, Reason: "why"},
	}
	rng := mathrand.New(mathrand.NewPCG(1, 2))
	for procedure, m := range seeds {
		good, err := proto.Marshal(m)
		must(t, err)
		for i := range 60 {
			b := slices.Clone(good)
			for range 1 + rng.IntN(3) {
				at := rng.IntN(len(b))
				if rng.IntN(2) == 0 && len(b) > 64 {
					at = rng.IntN(64) // the head of a result, not its numbers
				}
				switch rng.IntN(4) {
				case 0:
					b[at] ^= 1 << rng.IntN(8)
				case 1:
					b[at] = byte(rng.Uint32())
				case 2:
					b = append(b[:at], b[min(at+1+rng.IntN(8), len(b)):]...)
				default:
					b = slices.Insert(b, at, binary.AppendUvarint(nil, rng.Uint64()>>rng.IntN(64))...)
				}
				if len(b) == 0 {
					break
				}
			}
			switch r := st.post(a.http, procedure, "application/proto", bytes.NewReader(b)); r.StatusCode {
			case 200, 400, 403, 429: // an answer, or refused as wrong, as unknown or as too much
			default:
				t.Fatalf("%s, body %d: %s\n%x", procedure, i, r.Status, b)
			}
		}
	}
	if _, err := st.join("b0").CheckIn(t.Context(), &v1.CheckInRequest{}); err != nil {
		t.Error(err)
	}
}

// Of a result everything is checked: who, what for, how long, and every number.
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
	float := func(at int, v float64) func(q *v1.PushRequest) {
		return func(q *v1.PushRequest) {
			binary.LittleEndian.PutUint32(q.Chunk[4*at:], math.Float32bits(float32(v)))
			whole(q, q.Chunk)
		}
	}
	word := func(at int, v int64) func(q *v1.PushRequest) {
		return func(q *v1.PushRequest) {
			binary.LittleEndian.PutUint64(q.Chunk[8*at:], uint64(v))
			whole(q, q.Chunk)
		}
	}
	share := func(change func(s *v1.Share)) func(q *v1.PushRequest) {
		return func(q *v1.PushRequest) { change(q.Shares[0]) }
	}
	const rejected, closed = v1.Outcome_OUTCOME_REJECTED, v1.Outcome_OUTCOME_CLOSED
	type wrong struct {
		name    string
		spoil   func(q *v1.PushRequest)
		outcome v1.Outcome
		metric  string
		reason  string
	}
	both := []wrong{
		{"no run", func(q *v1.PushRequest) { q.Run = "" }, rejected, "run", "no such run"},
		{"another run", func(q *v1.PushRequest) { q.Run = "../" + q.Run }, rejected, "run", "no such run"},
		{"a later round", func(q *v1.PushRequest) { q.Round++ }, closed, "closed", ""},
		{"a round before all", func(q *v1.PushRequest) { q.Round = math.MinInt64 }, closed, "closed", ""},
		{"a round after all", func(q *v1.PushRequest) { q.Round = math.MaxInt64 }, closed, "closed", ""},
		{"another version", func(q *v1.PushRequest) { q.Version = 1 }, rejected, "version", "version 0, not 1"},
		{"a negative version", func(q *v1.PushRequest) { q.Version = -1 }, rejected, "version", "version 0, not -1"},
		{"a huge version", func(q *v1.PushRequest) { q.Version = math.MaxInt64 }, rejected, "version", ""},
		{"a version that wraps", func(q *v1.PushRequest) { q.Version = 1 << 32 }, rejected, "version", ""},
		{"no form", func(q *v1.PushRequest) { q.Form = 0 }, rejected, "shape", "form"},
		{"an unknown form", func(q *v1.PushRequest) { q.Form = 77 }, rejected, "shape", "form"},
		{"a negative form", func(q *v1.PushRequest) { q.Form = -1 }, rejected, "shape", "form"},
		{"of nobody", func(q *v1.PushRequest) { q.Shares = nil }, rejected, "shape", "0 clients"},
		{"no size", func(q *v1.PushRequest) { q.Size = 0 }, rejected, "shape", "0 bytes"},
		{"a negative size", func(q *v1.PushRequest) { q.Size = -q.Size }, rejected, "shape", "bytes"},
		{"a huge size", func(q *v1.PushRequest) { q.Size = math.MaxInt64 }, rejected, "shape", "bytes"},
		{"one byte more", func(q *v1.PushRequest) { whole(q, append(q.Chunk, 0)) }, rejected, "shape", "bytes"},
		{"one byte less", func(q *v1.PushRequest) { whole(q, q.Chunk[1:]) }, rejected, "shape", "bytes"},
		{"a chunk beyond the end", func(q *v1.PushRequest) { q.Offset = 1 }, rejected, "shape", "chunk"},
		{"a chunk after the end", func(q *v1.PushRequest) { q.Offset, q.Chunk = q.Size+1, nil }, rejected, "shape", "chunk"},
		{"a negative offset", func(q *v1.PushRequest) { q.Offset = -1 }, rejected, "shape", "chunk"},
		{"an offset that wraps", func(q *v1.PushRequest) { q.Offset = math.MaxInt64 }, rejected, "shape", "chunk"},
		{"a chunk too large", func(q *v1.PushRequest) { q.Chunk = make([]byte, 4<<20+1) }, rejected, "shape", "chunk"},
		{"no hash", func(q *v1.PushRequest) { q.Sha256 = nil }, rejected, "shape", "chunk"},
		{"a long hash", func(q *v1.PushRequest) { q.Sha256 = append(q.Sha256, 0) }, rejected, "shape", "chunk"},
		{"another's hash", func(q *v1.PushRequest) { q.Sha256[31] ^= 1 }, rejected, "hash", "hash"},
		{"another's numbers", func(q *v1.PushRequest) { q.Chunk[5] ^= 1 }, rejected, "hash", "hash"},
		{"a nameless client", share(func(s *v1.Share) { s.Client = "" }), rejected, "shape", "name"},
		{"an unreadable client", share(func(s *v1.Share) { s.Client = "a0\x00" }), rejected, "shape", "name"},
		{"an endless client", share(func(s *v1.Share) { s.Client = strings.Repeat("a", 1000) }), rejected, "shape", "name"},
		{"a client of nobody", share(func(s *v1.Share) { s.Client = "nobody" }), closed, "closed", ""},
		{"another's client", share(func(s *v1.Share) { s.Client = "b0" }), closed, "closed", ""},
		{"a client by half", share(func(s *v1.Share) { s.Client = "a0' OR '1'='1" }), closed, "closed", ""},
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
		wrong{"the largest there is", float(1, math.MaxFloat32), rejected, "numbers", "beyond"},
		wrong{"of two clients", func(q *v1.PushRequest) { q.Shares = append(q.Shares, &v1.Share{Client: "a1", Examples: 1}) }, rejected, "shape", "one update of 2"},
		wrong{"said to be a sum", func(q *v1.PushRequest) { q.Form = v1.Form_FORM_SUM }, rejected, "shape", "bytes"},
	)
	sums := append(slices.Clone(both),
		wrong{"said to be an update", func(q *v1.PushRequest) { q.Form, q.Shares = v1.Form_FORM_UPDATE, q.Shares[:1] }, rejected, "shape", "bytes"},
		wrong{"one client too few", func(q *v1.PushRequest) { q.Shares = q.Shares[:2] }, rejected, "numbers", "a sum of 3"},
		wrong{"one client too many", func(q *v1.PushRequest) { q.Shares = append(q.Shares, &v1.Share{Client: "a3", Examples: 1}) }, rejected, "numbers", "a sum of 3"},
		wrong{"a client twice", func(q *v1.PushRequest) { q.Shares[2].Client = "a0" }, rejected, "numbers", "twice"},
		wrong{"another weight", share(func(s *v1.Share) { s.Examples++ }), rejected, "numbers", "weight"},
		wrong{"more updates than there can be", word(1, math.MaxInt64), rejected, "numbers", "updates"},
		wrong{"fewer than none", word(1, -3), rejected, "numbers", "updates"},
		wrong{"more weight than there can be", word(2, math.MaxInt64), rejected, "numbers", "weight"},
		wrong{"another scale", word(0, 1), rejected, "numbers", "behind the point"},
		wrong{"a number beyond", word(3, math.MaxInt64), rejected, "numbers", "beyond"},
		wrong{"a number below", word(4, math.MinInt64), rejected, "numbers", "beyond"},
		wrong{"too many clients", func(q *v1.PushRequest) { q.Shares = slices.Repeat(q.Shares, 3400) }, rejected, "shape", "10200 clients"},
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
	// After all that, good ones count.
	for _, q := range []*v1.PushRequest{st.sum(task, "a0", "a1", "a2"), st.update(task, "a3", 1)} {
		if s, err := a.Push(t.Context(), q); err != nil || s.Outcome != v1.Outcome_OUTCOME_ACCEPTED {
			t.Errorf("%v, %v", s, err)
		}
	}
	st.soon("they are counted", func() bool {
		return a.heard(run, 0, "a1") == v1.Outcome_OUTCOME_COUNTED && a.heard(run, 0, "a3") == v1.Outcome_OUTCOME_COUNTED
	})
	// Where each update is needed, no sum is taken.
	each := st.start(strings.NewReplacer("fedavg", "fedavgadaptive", ", max_examples: 100", "").Replace(small))
	task = a.task(each, 0)
	q := &v1.PushRequest{Run: each, Version: task.Version, Form: v1.Form_FORM_SUM, Shares: []*v1.Share{{Client: "a0", Examples: 1}}}
	st.unharmed("a sum", "shape", 1, func() {
		if s, err := a.Push(t.Context(), whole(q, make([]byte, 1000))); err != nil || s.Outcome != rejected || !strings.Contains(s.Reason, "each update") {
			t.Errorf("%v, %v", s, err)
		}
	})
}

// A result in chunks comes together, whatever comes in between; and an agent that
// begins many of them has room for one.
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
		must(t, err)
		return s.Outcome, s.NextOffset
	}
	const part = v1.Outcome_OUTCOME_PART
	n := len(all)
	for _, c := range []struct {
		from, to int
		outcome  v1.Outcome
		next     int64
	}{
		{n / 2, n, part, 0}, // the first was lost
		{0, 0, part, 0},
		{0, n / 4, part, int64(n / 4)},
		{0, n / 4, part, int64(n / 4)}, // again
		{n / 2, n, part, int64(n / 4)}, // one was lost
		{n / 4, n - 1, part, int64(n - 1)},
		{n - 1, n - 1, part, int64(n - 1)},
		{n, n, part, int64(n - 1)},
		{n - 1, n, v1.Outcome_OUTCOME_ACCEPTED, 0},
	} {
		if o, next := push(c.from, c.to); o != c.outcome || next != c.next {
			t.Fatalf("bytes %d to %d: %v, next %d; want %v, %d", c.from, c.to, o, next, c.outcome, c.next)
		}
	}
	st.soon("it is counted", func() bool { return a.heard(task.Run, 0, "a0") == v1.Outcome_OUTCOME_COUNTED })
	// Another result of the same agent takes the place of one that was begun.
	first, second := st.update(task, "a1", 2), st.update(task, "a1", 3)
	for _, q := range []*v1.PushRequest{first, second, first} {
		q.Chunk = q.Chunk[:8]
		if s, err := a.Push(t.Context(), q); err != nil || s.Outcome != part || s.NextOffset != 8 {
			t.Errorf("%v, %v", s, err)
		}
	}
	// Chunks that do not make the hash are of no use, and forgotten.
	st.unharmed("chunks of something else", "hash", 1, func() {
		first.Offset, first.Chunk = 8, make([]byte, n-8)
		if s, err := a.Push(t.Context(), first); err != nil || s.Outcome != v1.Outcome_OUTCOME_REJECTED {
			t.Errorf("%v, %v", s, err)
		}
	})
}

// The same again, or something else in its place, changes nothing: before it was
// counted, after, and after the round.
func TestReplays(t *testing.T) {
	t.Parallel()
	st := newStation(t, func(c *Config) { c.Roles = []string{Gateway, Coordinator} })
	a := st.join("a0", "a1", "a2")
	run := st.start(strings.Replace(small, "rounds: 50", "rounds: 50, schedule: {cohort: 2, over_selection: 0.5}", 1))
	task := a.task(run, 0)
	good, same, other := st.update(task, "a0", 1), st.update(task, "a0", 1), st.update(task, "a0", 2)
	withSum := st.sum(task, "a0", "a1", "a2")
	push := func(what string, q *v1.PushRequest, want v1.Outcome) {
		t.Helper()
		if s, err := a.Push(t.Context(), q); err != nil || s.Outcome != want {
			t.Errorf("%s: %v, %v, want %v", what, s, err, want)
		}
	}
	const accepted, counted, closed = v1.Outcome_OUTCOME_ACCEPTED, v1.Outcome_OUTCOME_COUNTED, v1.Outcome_OUTCOME_CLOSED
	push("the first", good, accepted)
	push("the same", same, accepted)
	push("another", other, accepted)
	push("a sum with it", withSum, accepted)
	if o := a.heard(run, 0, "a0"); o != accepted {
		t.Errorf("before it was counted: %v", o)
	}
	st.aggregate()
	st.soon("it is counted", func() bool { return a.heard(run, 0, "a0") == counted })
	push("the same", same, counted)
	push("another", other, counted)
	st.unharmed("a sum with it", "overlap", 1, func() { push("a sum with it", withSum, v1.Outcome_OUTCOME_REJECTED) })
	push("the second", st.update(task, "a1", 3), accepted)
	next := a.task(run, 1)
	if next.Version != 1 {
		t.Fatalf("version %d", next.Version)
	}
	st.unharmed("later", "closed", 2, func() {
		push("the same", same, counted)
		push("another", other, counted)
		push("too late", st.update(task, "a2", 4), closed)
		push("a sum with it", withSum, closed)
		if o := a.heard(run, 0, "a2"); o != closed {
			t.Errorf("too late: %v", o)
		}
	})
	must(t, st.ledger.Drive(t.Context(), st.lead(), run, func(d *ledger.Drive) error {
		all, err := d.Receipts(0)
		if len(all) != 2 {
			t.Errorf("%+v", all)
		}
		return err
	}))
	// The weights moved by the first two, once each.
	x, err := st.terms.Of(t.Context(), run)
	must(t, err)
	server, _, err := x.Server()
	must(t, err)
	before := server.Shared()
	v, err := st.ledger.Version(t.Context(), run, 1)
	must(t, err)
	after, err := st.blobs.Get(t.Context(), v.Weights)
	must(t, err)
	for i := range before {
		want := before[i] + float32((math.Sin(float64(i+31))+math.Sin(float64(i+93)))/2)
		if got := math.Float32frombits(binary.LittleEndian.Uint32(after[4*i:])); math.Abs(float64(got-want)) > 1e-5 {
			t.Fatalf("weight %d is %g, want %g", i, got, want)
		}
	}
}

// lead is the right to coordinate that the server's coordinator has.
func (st *station) lead() ledger.Lead {
	st.Helper()
	l, err := st.ledger.Lead(st.Context(), alone, time.Minute, time.Now())
	must(st, err)
	return l
}

// An agent speaks for its own clients alone.
func TestOthersClients(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	a, b := st.join("a0"), st.join("b0")
	run := st.start(small)
	a.task(run, 0)
	task := b.task(run, 0)
	mine := []*v1.Turns{{Run: run, Clients: []string{"b0"}}}
	st.unharmed("a check-in", "closed", 0, func() {
		s, err := a.CheckIn(t.Context(), &v1.CheckInRequest{Training: mine, Pushed: mine})
		must(t, err)
		for _, v := range s.Verdicts {
			if v.Outcome != v1.Outcome_OUTCOME_CLOSED {
				t.Errorf("%v", v)
			}
		}
		if len(s.Tasks) != 1 || !slices.Equal(s.Tasks[0].Clients, []string{"a0"}) {
			t.Errorf("%v", s.Tasks)
		}
	})
	st.unharmed("a result", "closed", 1, func() {
		if s, err := a.Push(t.Context(), st.update(task, "b0", 1)); err != nil || s.Outcome != v1.Outcome_OUTCOME_CLOSED {
			t.Errorf("%v, %v", s, err)
		}
	})
	st.unharmed("a decline", "closed", 0, func() {
		_, err := a.Decline(t.Context(), &v1.DeclineRequest{Turns: mine[0]})
		must(t, err)
	})
	st.unharmed("an announcement", "client", 1, func() {
		s, err := a.Announce(t.Context(), &v1.AnnounceRequest{Clients: []string{"b0"}, StepSeconds: 60})
		if err != nil || !slices.Equal(s.Refused, []string{"b0"}) {
			t.Errorf("%v, %v", s, err)
		}
	})
	// What the other says of it holds.
	if s, err := b.CheckIn(t.Context(), &v1.CheckInRequest{}); err != nil || len(s.Tasks) != 1 {
		t.Errorf("%v, %v", s, err)
	}
	if s, err := b.Push(t.Context(), st.update(task, "b0", 1)); err != nil || s.Outcome != v1.Outcome_OUTCOME_ACCEPTED {
		t.Errorf("%v, %v", s, err)
	}
	st.soon("it is counted", func() bool { return b.heard(run, 0, "b0") == v1.Outcome_OUTCOME_COUNTED })
	if o := a.heard(run, 0, "b0"); o != v1.Outcome_OUTCOME_CLOSED {
		t.Errorf("another hears %v", o)
	}
}

// A revoked agent is refused from its next call on, and no round waits for it.
func TestRevocation(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	a, b := st.join("a0", "a1"), st.join("b0")
	run := st.start(small)
	task := a.task(run, 0)
	b.task(run, 0)

	_, err := st.operator.Revoke(t.Context(), &v1.RevokeRequest{Client: "a0"})
	must(t, err)
	before := st.refused()["closed"]
	for what, q := range map[string]*v1.PushRequest{"an update": st.update(task, "a0", 1), "a sum": st.sum(task, "a0", "a1")} {
		if s, err := a.Push(t.Context(), q); err != nil || s.Outcome != v1.Outcome_OUTCOME_CLOSED {
			t.Errorf("%s: %v, %v", what, s, err)
		}
	}
	if n := st.refused()["closed"] - before; n != 2 {
		t.Errorf("refused %g times", n)
	}
	if s, err := a.CheckIn(t.Context(), &v1.CheckInRequest{}); err != nil || len(s.Tasks) != 1 || !slices.Equal(s.Tasks[0].Clients, []string{"a1"}) {
		t.Errorf("%v, %v", s, err)
	}
	if s, err := a.Announce(t.Context(), &v1.AnnounceRequest{Clients: []string{"a0", "a1"}, StepSeconds: 3600}); err != nil || !slices.Equal(s.Refused, []string{"a0"}) {
		t.Errorf("%v, %v", s, err)
	}

	if r, err := a.http.Get(st.url + "/v1/blobs/" + task.Weights); err != nil || r.StatusCode != http.StatusOK {
		t.Fatal(r, err)
	}
	_, err = st.operator.Revoke(t.Context(), &v1.RevokeRequest{Agent: a.id})
	must(t, err)
	// Push first: it does not look up an agent that has just checked in, so it relies on the
	// revocation to end that trust.
	calls := []struct {
		what string
		call func() error
	}{
		{"push", func() error { return second(a.Push(t.Context(), st.update(task, "a1", 1))) }},
		{"decline", func() error {
			return second(a.Decline(t.Context(), &v1.DeclineRequest{Turns: &v1.Turns{Run: run, Clients: []string{"a1"}}}))
		}},
		{"check-in", func() error { return second(a.CheckIn(t.Context(), &v1.CheckInRequest{})) }},
		{"announce", func() error {
			return second(a.Announce(t.Context(), &v1.AnnounceRequest{Clients: []string{"a9"}, StepSeconds: 1}))
		}},
		{"renew", func() error { return second(a.Renew(t.Context(), &v1.RenewRequest{})) }},
	}
	before = st.refused()["revoked"]
	for _, c := range calls {
		st.wantCode(c.what, c.call(), connect.CodePermissionDenied)
	}
	if n := st.refused()["revoked"] - before; n != float64(len(calls)) {
		t.Errorf("%g of %d calls were counted as refused", n, len(calls))
	}
	st.soon("the coordinator has withdrawn what they were asked", func() bool { return !strings.Contains(st.dump(), `"a1" %!q(int64=1)`) && leases(st) == 1 })
	st.unharmed("a revoked agent", "revoked", float64(len(calls)+1), func() {
		for _, c := range calls {
			st.wantCode(c.what, c.call(), connect.CodePermissionDenied)
		}
		if r, err := a.http.Get(st.url + "/v1/blobs/" + task.Weights); err != nil || r.StatusCode != http.StatusForbidden {
			t.Error(r, err)
		}
	})
	// The round goes on with who is left.
	if s, err := b.Push(t.Context(), st.update(task, "b0", 1)); err != nil || s.Outcome != v1.Outcome_OUTCOME_ACCEPTED {
		t.Errorf("%v, %v", s, err)
	}
	if next := b.task(run, 1); next.Version != 1 || !slices.Equal(next.Clients, []string{"b0"}) {
		t.Errorf("%v", next)
	}
	// Its clients may be taken over, but not the one that was revoked itself.
	if s, err := b.Announce(t.Context(), &v1.AnnounceRequest{Clients: []string{"a0", "a1", "b0"}, StepSeconds: 3600}); err != nil || !slices.Equal(s.Refused, []string{"a0"}) {
		t.Errorf("%v, %v", s, err)
	}
	for _, q := range []*v1.RevokeRequest{{}, {Client: "a", Agent: "b"}} {
		_, err = st.operator.Revoke(t.Context(), q)
		st.wantCode("nobody, or two", err, connect.CodeInvalidArgument)
	}
	for _, q := range []*v1.RevokeRequest{{Client: "nobody"}, {Agent: "nobody"}, {Agent: a.id}} {
		_, err = st.operator.Revoke(t.Context(), q)
		st.wantCode("who is not there", err, connect.CodeNotFound)
	}
}

// leases returns how many there are.
func leases(st *station) int {
	all, err := st.ledger.Leased(st.Context())
	must(st, err)
	return len(all)
}

// A token lets in as many as it says, however they hurry.
func TestTokens(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	token := st.token(3)
	var joined, refused atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			_, err := identity.Join(t.Context(), t.TempDir(), st.url, token, "name")
			if err == nil {
				joined.Add(1)
			} else if strings.Contains(err.Error(), "token") {
				refused.Add(1)
			} else {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if joined.Load() != 3 || refused.Load() != 5 {
		t.Errorf("%d have joined, and %d were refused", joined.Load(), refused.Load())
	}
	if n, err := st.ledger.Agents(t.Context()); err != nil || n != 3 {
		t.Errorf("%d agents, %v", n, err)
	}
	good, err := jointoken.Parse(st.token(1))
	must(t, err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	must(t, err)
	nobody := v1.NewAgentServiceClient(st.nobody(), st.url)
	for what, c := range map[string]struct {
		q      *v1.JoinRequest
		code   connect.Code
		reason string
	}{
		"used up":          {&v1.JoinRequest{Secret: must2(jointoken.Parse(token)).Secret(), Csr: csr}, connect.CodePermissionDenied, "token"},
		"unknown":          {&v1.JoinRequest{Secret: make([]byte, 20), Csr: csr}, connect.CodePermissionDenied, "token"},
		"no secret":        {&v1.JoinRequest{Csr: csr}, connect.CodePermissionDenied, "token"},
		"no request":       {&v1.JoinRequest{Secret: good.Secret()}, connect.CodeInvalidArgument, "csr"},
		"half a request":   {&v1.JoinRequest{Secret: good.Secret(), Csr: csr[:len(csr)-3]}, connect.CodeInvalidArgument, "csr"},
		"another's":        {&v1.JoinRequest{Secret: good.Secret(), Csr: append(slices.Clone(csr[:len(csr)-1]), csr[len(csr)-1]^1)}, connect.CodeInvalidArgument, "csr"},
		"an endless name":  {&v1.JoinRequest{Secret: good.Secret(), Csr: csr, Name: strings.Repeat("n", 300)}, connect.CodeInvalidArgument, "name"},
		"unreadable names": {&v1.JoinRequest{Secret: good.Secret(), Csr: csr, Name: "a\x1b[2Jb"}, connect.CodeInvalidArgument, "name"},
	} {
		st.unharmed(what, c.reason, 1, func() {
			_, err := nobody.Join(t.Context(), c.q)
			st.wantCode(what, err, c.code)
		})
	}
	// After all that the token is as good as new.
	if _, err := nobody.Join(t.Context(), &v1.JoinRequest{Secret: good.Secret(), Csr: csr, Name: "länglich 1"}); err != nil {
		t.Error(err)
	}
}

func must2[T any](x T, err error) T {
	if err != nil {
		panic(err)
	}
	return x
}

// An agent whose clients are unknown, as after a restore from an old backup, hears of it.
func TestForgotten(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	a := st.join()
	for _, clients := range [][]string{nil, {"a0"}} {
		if len(clients) > 0 {
			_, err := a.Announce(t.Context(), &v1.AnnounceRequest{Clients: clients, StepSeconds: 3600})
			must(t, err)
		}
		s, err := a.CheckIn(t.Context(), &v1.CheckInRequest{})
		must(t, err)
		if s.Announce != (len(clients) == 0) {
			t.Errorf("with clients %v it is to announce: %v", clients, s.Announce)
		}
	}
}

// What an agent says of itself is bounded, and can be shown to people.
func TestAnnouncements(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	a := st.join()
	many := make([]string, 10_001)
	for i := range many {
		many[i] = fmt.Sprintf("client %05d", i)
	}
	one := []string{"client"}
	for what, c := range map[string]struct {
		q      *v1.AnnounceRequest
		reason string
	}{
		"too many clients": {&v1.AnnounceRequest{Clients: many, StepSeconds: 60}, "clients"},
		"too many inputs":  {&v1.AnnounceRequest{Clients: one, Inputs: many[:65], StepSeconds: 60}, "data"},
		"no step":          {&v1.AnnounceRequest{Clients: one}, "data"},
		"a negative step":  {&v1.AnnounceRequest{Clients: one, StepSeconds: -60}, "data"},
		"an endless step":  {&v1.AnnounceRequest{Clients: one, StepSeconds: math.MaxInt64}, "data"},
		"no name":          {&v1.AnnounceRequest{Clients: []string{"a", ""}, StepSeconds: 60}, "name"},
		"an endless name":  {&v1.AnnounceRequest{Clients: []string{strings.Repeat("a", 129)}, StepSeconds: 60}, "name"},
		"a new line":       {&v1.AnnounceRequest{Clients: []string{"a\nb"}, StepSeconds: 60}, "name"},
		"an escape":        {&v1.AnnounceRequest{Clients: []string{"a\x1b[31m"}, StepSeconds: 60}, "name"},
		"a zero":           {&v1.AnnounceRequest{Clients: []string{"a\x00"}, StepSeconds: 60}, "name"},
		"backwards":        {&v1.AnnounceRequest{Clients: []string{"a\u202eb"}, StepSeconds: 60}, "name"},
		"an invisible":     {&v1.AnnounceRequest{Clients: []string{"a\u200bb"}, StepSeconds: 60}, "name"},
		"input with space": {&v1.AnnounceRequest{Clients: one, Inputs: []string{"wind speed"}, StepSeconds: 60}, "name"},
		"unreadable input": {&v1.AnnounceRequest{Clients: one, Inputs: []string{"w\tx"}, StepSeconds: 60}, "name"},
	} {
		st.unharmed(what, c.reason, 1, func() {
			_, err := a.Announce(t.Context(), c.q)
			st.wantCode(what, err, connect.CodeInvalidArgument)
		})
	}
	turns := func(n int, clients ...string) []*v1.Turns {
		return slices.Repeat([]*v1.Turns{{Run: "run", Clients: clients}}, n)
	}
	for what, c := range map[string]struct {
		q      *v1.CheckInRequest
		reason string
	}{
		"more turns than clients": {&v1.CheckInRequest{Training: turns(1, many...)}, "clients"},
		"turns of many runs":      {&v1.CheckInRequest{Training: turns(9, many[:10_000]...)}, "clients"},
		"a turn again and again":  {&v1.CheckInRequest{Pushed: turns(257, "a")}, "clients"},
		"turns of nobody":         {&v1.CheckInRequest{Pushed: turns(257)}, "clients"},
		"a nameless turn":         {&v1.CheckInRequest{Training: turns(1, "")}, "name"},
		"an unreadable turn":      {&v1.CheckInRequest{Pushed: turns(1, "a\x00")}, "name"},
		"a nameless run":          {&v1.CheckInRequest{Pushed: []*v1.Turns{{Clients: one}}}, "name"},
	} {
		st.unharmed(what, c.reason, 1, func() {
			_, err := a.CheckIn(t.Context(), c.q)
			st.wantCode(what, err, connect.CodeInvalidArgument)
		})
	}
	for what, c := range map[string]struct {
		q      *v1.DeclineRequest
		reason string
	}{
		"nothing":          {&v1.DeclineRequest{}, "clients"},
		"nobody":           {&v1.DeclineRequest{Turns: &v1.Turns{Run: "run"}}, "clients"},
		"too many":         {&v1.DeclineRequest{Turns: turns(1, many...)[0]}, "clients"},
		"an endless story": {&v1.DeclineRequest{Turns: turns(1, "a")[0], Reason: strings.Repeat("why ", 300)}, "clients"},
		"an endless run":   {&v1.DeclineRequest{Turns: &v1.Turns{Run: strings.Repeat("r", 1<<20), Clients: one}}, "name"},
	} {
		st.unharmed("decline "+what, c.reason, 1, func() {
			_, err := a.Decline(t.Context(), c.q)
			st.wantCode(what, err, connect.CodeInvalidArgument)
		})
	}
	// Eight runs at a time.
	_, err := a.CheckIn(t.Context(), &v1.CheckInRequest{Training: turns(8, many[:10_000]...), Pushed: turns(8, many[:10_000]...)})
	must(t, err)
	// As many as it may, with any readable name, and twice the same.
	fine := append(slices.Clone(many[:9_998]), "Zähler 7 / Süd", "'; DROP TABLE clients; --")
	s, err := a.Announce(t.Context(), &v1.AnnounceRequest{Clients: fine, Inputs: []string{"wind"}, StepSeconds: 60})
	if err != nil || len(s.Refused) > 0 {
		t.Errorf("%v, %v", s, err)
	}
	if n, err := st.ledger.CountClients(t.Context()); err != nil || n != 10_000 {
		t.Errorf("%d clients, %v", n, err)
	}
}

// Blobs are found by their hash, and by nothing else.
func TestBlobs(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	a := st.join("a0")
	task := a.task(st.start(small), 0)
	want, err := st.blobs.Get(t.Context(), task.Weights)
	must(t, err)
	get := func(h *http.Client, path, span string) (int, []byte) {
		t.Helper()
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, st.url, nil)
		must(t, err)
		q.URL.Opaque = "//" + q.URL.Host + path // as it is, without being cleaned
		if span != "" {
			q.Header.Set("Range", span)
		}
		r, err := h.Do(q)
		must(t, err)
		defer r.Body.Close()
		b, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		must(t, err)
		return r.StatusCode, b
	}
	for _, h := range []*http.Client{a.http, st.operatorHTTP()} {
		if code, b := get(h, "/v1/blobs/"+task.Weights, ""); code != 200 || !bytes.Equal(b, want) {
			t.Errorf("%d, %d bytes", code, len(b))
		}
	}
	for span, c := range map[string]struct {
		code int
		want []byte
	}{
		"bytes=0-0":                   {206, want[:1]},
		"bytes=8-":                    {206, want[8:]},
		"bytes=-4":                    {206, want[len(want)-4:]},
		"bytes=8-3":                   {416, nil},
		"bytes=99999999-":             {416, nil},
		"bytes=9223372036854775807-":  {416, nil},
		"bytes=-99999999999999999999": {416, nil},
	} {
		if code, b := get(a.http, "/v1/blobs/"+task.Weights, span); code != c.code || c.want != nil && !bytes.Equal(b, c.want) {
			t.Errorf("%s: %d, %d bytes", span, code, len(b))
		}
	}
	sum := sha256.Sum256([]byte("not there"))
	for _, path := range []string{
		"/v1/blobs/", "/v1/blobs", "/v1/blobs/../../etc/passwd", "/v1/blobs/..%2f..%2fledger.db", "/v1/blobs/%2e%2e/%2e%2e/ledger.db", "/v1/blobs/" + strings.ToUpper(task.Weights),
		"/v1/blobs/" + task.Weights[:63], "/v1/blobs/" + task.Weights + "0", "/v1/blobs/" + task.Weights + "/", "/v1/blobs/" + task.Weights + "%00", "/v1/blobs/" + task.Weights[:2] + "/" + task.Weights[2:4] + "/" + task.Weights,
		"/v1/blobs/" + fmt.Sprintf("%x", sum), "/v1/blobs//" + task.Weights, "/v1/blobs/*", "/ledger.db", "/", "/pki/root.pem",
	} {
		if code, b := get(a.http, path, ""); code < 300 || code >= 500 || bytes.Contains(b, want[:8]) || bytes.Contains(b, []byte("root:")) {
			t.Errorf("%s: %d, %.80q", path, code, b)
		}
	}
	for _, method := range []string{http.MethodPut, http.MethodPost, http.MethodDelete, http.MethodPatch} {
		q, err := http.NewRequestWithContext(t.Context(), method, st.url+"/v1/blobs/"+task.Weights, strings.NewReader("other"))
		must(t, err)
		r, err := a.http.Do(q)
		must(t, err)
		r.Body.Close()
		if r.StatusCode < 400 || r.StatusCode >= 500 {
			t.Errorf("%s: %s", method, r.Status)
		}
	}
	if again, err := st.blobs.Get(t.Context(), task.Weights); err != nil || !bytes.Equal(again, want) {
		t.Error(err)
	}
	before := st.refused()["identity"]
	if code, _ := get(st.nobody(), "/v1/blobs/"+task.Weights, ""); code != http.StatusUnauthorized || st.refused()["identity"] != before+1 {
		t.Errorf("nobody: %d", code)
	}
}

// What a straggler trains is called off at its next check-in, once its round is closed.
func TestTrainingInVain(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	a := st.join("a0", "a1", "a2")
	run := st.start(strings.Replace(small, "rounds: 50", "rounds: 50, schedule: {cohort: 2, over_selection: 0.5}", 1))
	task := a.task(run, 0)
	busy := &v1.CheckInRequest{Training: []*v1.Turns{{Run: run, Clients: task.Clients}}}
	if s, err := a.CheckIn(t.Context(), busy); err != nil || len(s.Verdicts) != 0 || len(s.Tasks) != 0 {
		t.Fatalf("%v, %v", s, err)
	}
	for _, c := range []string{"a0", "a1"} {
		if s, err := a.Push(t.Context(), st.update(task, c, 1)); err != nil || s.Outcome != v1.Outcome_OUTCOME_ACCEPTED {
			t.Fatalf("%v, %v", s, err)
		}
	}
	a.task(run, 1)
	s, err := a.CheckIn(t.Context(), busy)
	must(t, err)
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
