package server

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"loadstar/internal/protocol"
	v1 "loadstar/proto/loadstar/v1"

	"loadstar/internal/testkit"
)

// post sends a request body of the given content type to a procedure and returns the
// response.
func (st *station) post(h *http.Client, procedure, kind string, body io.Reader, more ...string) *http.Response {
	st.Helper()
	q, err := http.NewRequestWithContext(st.Context(), http.MethodPost, st.url+procedure, body)
	testkit.Must(st, err)
	q.Header.Set("Content-Type", kind)
	q.Header.Set(protocol.Header, strconv.Itoa(protocol.Version))
	for i := 0; i < len(more); i += 2 {
		q.Header.Set(more[i], more[i+1])
	}
	r, err := h.Do(q)
	testkit.Must(st, err)
	defer r.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(r.Body, 1<<20))
	testkit.Must(st, err)
	return r
}

// TestBodies checks that malformed and oversized messages are refused before they use much
// memory.
func TestBodies(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	a := st.join("a0")
	zipped := func(n int) io.Reader {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, err := w.Write(make([]byte, n))
		testkit.Must(t, errors.Join(err, w.Close()))
		return &b
	}
	unsized := func(b []byte) io.Reader { return io.MultiReader(bytes.NewReader(b)) }
	shares := bytes.Repeat([]byte{0x2a, 0}, 2<<20) // two million empty shares
	crowd := append(binary.AppendUvarint([]byte{0x42}, uint64(len(shares))), shares...)
	names := append(binary.AppendUvarint([]byte{0x0a}, 4<<20), bytes.Repeat([]byte{0x1a, 0}, 2<<20)...)
	for _, c := range []struct {
		name, procedure, kind string
		body                  io.Reader
		header                []string
		status                int
		reason                string
	}{
		{"garbage", v1.AgentServiceExchangeProcedure, "application/proto", strings.NewReader("\xff\xff\xff no message"), nil, 400, "body"},
		{"cut off", v1.AgentServiceExchangeProcedure, "application/proto", strings.NewReader("\x0a\x7f"), nil, 400, "body"},
		{"not UTF-8", v1.AgentServiceAnnounceProcedure, "application/proto", strings.NewReader("\x0a\x02\xff\xfe"), nil, 400, "body"},
		{"garbage as text", v1.AgentServiceExchangeProcedure, "application/json", strings.NewReader("{]"), nil, 400, "body"},
		{"another kind", v1.AgentServiceExchangeProcedure, "text/plain", strings.NewReader("hello"), nil, 415, "body"},
		{"unknown compression", v1.AgentServiceExchangeProcedure, "application/proto", strings.NewReader("x"), []string{"Content-Encoding", "br"}, 501, "body"},
		{"not compressed", v1.AgentServiceExchangeProcedure, "application/proto", strings.NewReader("x"), []string{"Content-Encoding", "gzip"}, 400, "body"},
		{"many shares", v1.AgentServiceExchangeProcedure, "application/proto", bytes.NewReader(crowd), nil, 400, "body"},
		{"many names", v1.AgentServiceExchangeProcedure, "application/proto", bytes.NewReader(names), nil, 400, "body"},
		{"many as text", v1.AgentServiceExchangeProcedure, "application/json", strings.NewReader(`{"result":{"shares":[{}` + strings.Repeat(",{}", 1<<20) + "]}}"), nil, 400, "body"},
		{"too long", v1.AgentServiceExchangeProcedure, "application/proto", bytes.NewReader(make([]byte, 9<<20)), nil, 429, "size"},
		{"too long, unsaid", v1.AgentServiceExchangeProcedure, "application/proto", unsized(make([]byte, 9<<20)), nil, 429, "body"},
		{"a bomb", v1.AgentServiceExchangeProcedure, "application/proto", zipped(64 << 20), []string{"Content-Encoding", "gzip"}, 429, "body"},
		{"a long join", v1.AgentServiceJoinProcedure, "application/proto", bytes.NewReader(make([]byte, 64<<10)), nil, 429, "body"},
		{"gRPC without a message", v1.AgentServiceExchangeProcedure, "application/grpc", strings.NewReader(""), nil, 200, "body"},
		{"gRPC of a length", v1.AgentServiceExchangeProcedure, "application/grpc", strings.NewReader("\x00\xff\xff\xff\xff"), nil, 200, "body"},
		{"a decline of nothing", v1.AgentServiceExchangeProcedure, "application/proto", strings.NewReader("\x3a\x00"), nil, 400, "clients"},
	} {
		st.unharmed(c.name, c.reason, 1, func() {
			if r := st.post(a.http, c.procedure, c.kind, c.body, c.header...); r.StatusCode != c.status {
				t.Errorf("%s: %s, want %d", c.name, r.Status, c.status)
			}
		})
	}
	st.unharmed("a GET", "body", 1, func() {
		if r, err := a.http.Get(st.url + v1.AgentServiceExchangeProcedure); err != nil || r.StatusCode != http.StatusMethodNotAllowed {
			t.Error(r, err)
		}
	})
	// The calls also work with other protocols and as JSON.
	for _, o := range []connect.ClientOption{connect.WithGRPC(), connect.WithGRPCWeb(), connect.WithProtoJSON(), connect.WithSendGzip()} {
		if _, err := v1.NewAgentServiceClient(a.http, st.url, o, protocol.Client()).Exchange(t.Context(), &v1.ExchangeRequest{}); err != nil {
			t.Errorf("%T: %v", o, err)
		}
	}
	// Strangers may call Join, and 16 kB of compressed data could expand to 8 MiB.
	for _, o := range []connect.ClientOption{connect.WithClientOptions(), connect.WithGRPC(), connect.WithGRPCWeb()} {
		_, err := v1.NewAgentServiceClient(a.http, st.url, o, connect.WithSendGzip(), protocol.Client()).Join(t.Context(), &v1.JoinRequest{Name: strings.Repeat("x", 8<<20)})
		if connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), "must not be compressed") {
			t.Errorf("a compressed request to join: %v", err)
		}
	}
}

// TestMutatedBodies checks that thousands of messages with random changes each get one of the
// expected status codes, and that the server continues to work.
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
		v1.AgentServiceExchangeProcedure: &v1.ExchangeRequest{
			Training: []*v1.Turns{{Run: run, Clients: []string{"a0"}}}, Pushed: []*v1.Turns{{Run: run, Clients: []string{"a1"}}},
			Declines: []*v1.Decline{{Turns: &v1.Turns{Run: run, Round: 7, Clients: []string{"a0"}}, Reason: "why"}},
			Result:   st.sum(task, "a0", "a1", "a2"), Have: [][]byte{make([]byte, 32)}, Session: "session",
		},
	}
	rng := mathrand.New(mathrand.NewPCG(1, 2))
	for procedure, m := range seeds {
		good, err := proto.Marshal(m)
		testkit.Must(t, err)
		for i := range 60 {
			b := slices.Clone(good)
			for range 1 + rng.IntN(3) {
				at := rng.IntN(len(b))
				if rng.IntN(2) == 0 && len(b) > 64 {
					at = rng.IntN(64) // change the header of a result, not its numbers
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
			case 200, 400, 403, 429: // success, malformed, forbidden, or too many
			default:
				t.Fatalf("%s, body %d: %s\n%x", procedure, i, r.Status, b)
			}
		}
	}
	if _, err := st.join("b0").Exchange(t.Context(), &v1.ExchangeRequest{}); err != nil {
		t.Error(err)
	}
}

// TestBlobs checks that a blob can be fetched at the path with its hash, and that no other path
// returns a file from the server.
func TestBlobs(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	a := st.join("a0")
	task := a.task(st.start(small), 0)
	want, err := st.blobs.Get(t.Context(), task.Weights)
	testkit.Must(t, err)
	get := func(h *http.Client, path, span string) (int, []byte) {
		t.Helper()
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, st.url, nil)
		testkit.Must(t, err)
		q.URL.Opaque = "//" + q.URL.Host + path // prevents the client from cleaning the path
		if span != "" {
			q.Header.Set("Range", span)
		}
		r, err := h.Do(q)
		testkit.Must(t, err)
		defer r.Body.Close()
		b, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		testkit.Must(t, err)
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
		testkit.Must(t, err)
		r, err := a.http.Do(q)
		testkit.Must(t, err)
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
		t.Errorf("without a certificate: %d", code)
	}
}
