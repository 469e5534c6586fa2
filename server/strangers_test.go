package server

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"loadstar/internal/protocol"
	"loadstar/internal/testkit"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/pki"
)

// procedures lists the agents' procedures except Join.
var procedures = []string{
	v1.AgentServiceRenewProcedure, v1.AgentServiceAnnounceProcedure, v1.AgentServiceExchangeProcedure,
}

// certify returns an HTTP client with a certificate from an authority.
func (st *station) certify(a *pki.Authority, who pki.Identity, ttl time.Duration) *http.Client {
	st.Helper()
	return st.http(st.certified(a, who, ttl))
}

// TestStrangers checks that callers without a valid certificate are refused, and that the
// bodies of their requests are not read.
func TestStrangers(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	a := st.join("a0")
	other, err := pki.Open(t.TempDir(), pki.Keys{})
	testkit.Must(t, err)
	who := pki.Identity{Role: pki.Agent, ID: a.id}

	for name, h := range map[string]*http.Client{"no certificate": st.nobody(), "an operator": st.operatorHTTP()} {
		for _, p := range procedures {
			st.unharmed(name+" "+p, "identity", 1, func() {
				if r := st.post(h, p, "application/proto", &unread{t: t, left: 32 << 20}); r.StatusCode != http.StatusUnauthorized {
					t.Errorf("%s, %s: %s", name, p, r.Status)
				}
			})
		}
	}
	for name, h := range map[string]*http.Client{"no certificate": st.nobody(), "an agent": a.http} {
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
	} {
		if _, err := v1.NewAgentServiceClient(h, st.url, protocol.Client()).Exchange(t.Context(), &v1.ExchangeRequest{}); !hungUp(err) {
			t.Errorf("%s certificate: %v", name, err)
		}
	}
	// The error for an agent with an expired certificate describes what to do.
	_, err = v1.NewAgentServiceClient(st.certify(st.authority, who, time.Nanosecond), st.url, protocol.Client()).Exchange(t.Context(), &v1.ExchangeRequest{})
	st.wantCode("an expired certificate", err, connect.CodeUnauthenticated)
	// A valid certificate of an agent that has never joined is refused too.
	h := st.certify(st.authority, pki.Identity{Role: pki.Agent, ID: "ghost"}, time.Hour)
	st.unharmed("an agent that never joined", "unknown", 1, func() {
		_, err := v1.NewAgentServiceClient(h, st.url, protocol.Client()).Exchange(t.Context(), &v1.ExchangeRequest{})
		st.wantCode("an agent that never joined", err, connect.CodeUnauthenticated)
	})
	if r, err := st.nobody().Get(st.url + "/loadstar.v1.Nothing/At"); err != nil || r.StatusCode != http.StatusNotFound {
		t.Error(r, err)
	}
}

// hungUp reports whether a call failed without a response, because the connection was
// refused.
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

// unread is an endless body that fails the test if the server reads much of it.
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
	// The network buffers some bytes before the server reads them. With HTTP/1.1, the sender's
	// kernel determines how many.
	if u.read.Add(int64(n)) > 8<<20 {
		u.t.Error("the body of an unauthenticated request was read")
		return 0, io.EOF
	}
	return n, nil
}

// TestExpires checks that a connection gives no access after the certificate with which it was
// opened has expired, and that a new connection with an expired certificate gives none either.
func TestExpires(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	var h *http.Client
	var c v1.AgentServiceClient
	var err error
	// On a loaded machine, a short-lived certificate may expire before the first call.
	for life := 3 * time.Second; h == nil || err != nil; life *= 2 {
		if life > patient {
			t.Fatal(err)
		}
		h = st.joinFor(life).http
		c = v1.NewAgentServiceClient(h, st.url, protocol.Client())
		_, err = c.Exchange(t.Context(), &v1.ExchangeRequest{})
	}
	testkit.Eventually(st, "the certificate expires", func() bool {
		_, err = c.Exchange(t.Context(), &v1.ExchangeRequest{})
		return err != nil
	})
	st.wantCode("on the old connection", err, connect.CodeUnauthenticated)
	h.CloseIdleConnections()
	_, err = c.Exchange(t.Context(), &v1.ExchangeRequest{})
	st.wantCode("on a new connection", err, connect.CodeUnauthenticated)
	if _, err := st.join("a0").Exchange(t.Context(), &v1.ExchangeRequest{}); err != nil {
		t.Errorf("with a good certificate: %v", err)
	}
}
