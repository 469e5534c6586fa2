package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"loadstar/agent/identity"
	"loadstar/internal/mtls"
	"loadstar/internal/protocol"
	"loadstar/internal/testkit"
	v1 "loadstar/proto/loadstar/v1"
)

// TestOthersClients checks that an agent cannot act for another agent's clients.
func TestOthersClients(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	a, b := st.join("a0"), st.join("b0")
	run := st.start(small)
	a.task(run, 0)
	task := b.task(run, 0)
	mine := []*v1.Turns{{Run: run, Clients: []string{"b0"}}}
	st.unharmed("a check-in", "closed", 0, func() {
		s, err := a.Exchange(t.Context(), &v1.ExchangeRequest{Training: mine, Pushed: mine})
		testkit.Must(t, err)
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
		_, err := a.Decline(t.Context(), &v1.Decline{Turns: mine[0]})
		testkit.Must(t, err)
	})
	st.unharmed("an announcement", "client", 1, func() {
		s, err := a.Announce(t.Context(), &v1.AnnounceRequest{Clients: []string{"b0"}, StepSeconds: 60})
		if err != nil || !slices.Equal(s.Refused, []string{"b0"}) {
			t.Errorf("%v, %v", s, err)
		}
	})
	// The same calls succeed for the client's own agent.
	if s, err := b.Exchange(t.Context(), &v1.ExchangeRequest{}); err != nil || len(s.Tasks) != 1 {
		t.Errorf("%v, %v", s, err)
	}
	if s, err := b.Push(t.Context(), st.update(task, "b0", 1)); err != nil || s.Outcome != v1.Outcome_OUTCOME_COUNTED {
		t.Errorf("%v, %v", s, err)
	}
	testkit.Eventually(st, "the result is counted", func() bool { return b.heard(run, 0, "b0") == v1.Outcome_OUTCOME_COUNTED })
	if o := a.heard(run, 0, "b0"); o != v1.Outcome_OUTCOME_CLOSED {
		t.Errorf("another agent gets %v", o)
	}
}

// TestRevocation checks that a revoked agent is refused from its next call on, and that no
// round waits for it.
func TestRevocation(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	a, b := st.join("a0", "a1"), st.join("b0")
	run := st.start(small)
	task := a.task(run, 0)
	b.task(run, 0)

	_, err := st.operator.Revoke(t.Context(), &v1.RevokeRequest{Client: "a0"})
	testkit.Must(t, err)
	before := st.refused()["closed"]
	for what, q := range map[string]*v1.Result{"an update": st.update(task, "a0", 1), "a sum": st.sum(task, "a0", "a1")} {
		if s, err := a.Push(t.Context(), q); err != nil || s.Outcome != v1.Outcome_OUTCOME_CLOSED {
			t.Errorf("%s: %v, %v", what, s, err)
		}
	}
	if n := st.refused()["closed"] - before; n != 2 {
		t.Errorf("refused %g times", n)
	}
	if s, err := a.Exchange(t.Context(), &v1.ExchangeRequest{}); err != nil || len(s.Tasks) != 1 || !slices.Equal(s.Tasks[0].Clients, []string{"a1"}) {
		t.Errorf("%v, %v", s, err)
	}
	if s, err := a.Announce(t.Context(), &v1.AnnounceRequest{Clients: []string{"a0", "a1"}, StepSeconds: 3600}); err != nil || !slices.Equal(s.Refused, []string{"a0"}) {
		t.Errorf("%v, %v", s, err)
	}

	if r, err := a.http.Get(st.url + "/v1/blobs/" + task.Weights); err != nil || r.StatusCode != http.StatusOK {
		t.Fatal(r, err)
	}
	_, err = st.operator.Revoke(t.Context(), &v1.RevokeRequest{Agent: a.id})
	testkit.Must(t, err)
	// Test Push first, because Push does not look up an agent that has just checked in, so only
	// the revocation can end the cached trust.
	calls := []struct {
		what string
		call func() error
	}{
		{"push", func() error { return second(a.Push(t.Context(), st.update(task, "a1", 1))) }},
		{"decline", func() error {
			return second(a.Decline(t.Context(), &v1.Decline{Turns: &v1.Turns{Run: run, Clients: []string{"a1"}}}))
		}},
		{"check-in", func() error { return second(a.Exchange(t.Context(), &v1.ExchangeRequest{})) }},
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
	testkit.Eventually(st, "the coordinator has withdrawn the leases", func() bool { return !strings.Contains(st.dump(), `"a1" %!q(int64=1)`) && leases(st) == 1 })
	st.unharmed("a revoked agent", "revoked", float64(len(calls)+1), func() {
		for _, c := range calls {
			st.wantCode(c.what, c.call(), connect.CodePermissionDenied)
		}
		if r, err := a.http.Get(st.url + "/v1/blobs/" + task.Weights); err != nil || r.StatusCode != http.StatusForbidden {
			t.Error(r, err)
		}
	})
	// The round continues with the other agent.
	if s, err := b.Push(t.Context(), st.update(task, "b0", 1)); err != nil || s.Outcome != v1.Outcome_OUTCOME_COUNTED {
		t.Errorf("%v, %v", s, err)
	}
	if next := b.task(run, 1); next.Version != 1 || !slices.Equal(next.Clients, []string{"b0"}) {
		t.Errorf("%v", next)
	}
	// The clients stay bound to the revoked agent until an operator frees them. Then another
	// agent may take them over, except a client that was itself revoked.
	if s, err := b.Announce(t.Context(), &v1.AnnounceRequest{Clients: []string{"a0", "a1", "b0"}, StepSeconds: 3600}); err != nil || !slices.Equal(s.Refused, []string{"a0", "a1"}) || s.Reason != "client a0 is revoked" {
		t.Errorf("%v, %v", s, err)
	}
	_, err = st.operator.FreeClients(t.Context(), &v1.FreeClientsRequest{Agent: b.id})
	st.wantCode("freeing the clients of an agent that is not revoked", err, connect.CodeFailedPrecondition)
	if s, err := st.operator.FreeClients(t.Context(), &v1.FreeClientsRequest{Agent: a.id}); err != nil || s.Clients != 1 {
		t.Errorf("%v, %v", s, err)
	}
	if s, err := b.Announce(t.Context(), &v1.AnnounceRequest{Clients: []string{"a0", "a1", "b0"}, StepSeconds: 3600}); err != nil || !slices.Equal(s.Refused, []string{"a0"}) {
		t.Errorf("%v, %v", s, err)
	}
	for _, q := range []*v1.RevokeRequest{{}, {Client: "a", Agent: "b"}} {
		_, err = st.operator.Revoke(t.Context(), q)
		st.wantCode("no subject, or two", err, connect.CodeInvalidArgument)
	}
	for _, q := range []*v1.RevokeRequest{{Client: "nobody"}, {Agent: "nobody"}, {Agent: a.id}} {
		_, err = st.operator.Revoke(t.Context(), q)
		st.wantCode("an unknown subject", err, connect.CodeNotFound)
	}
}

// leases returns the number of leases in the ledger.
func leases(st *station) int {
	all, err := st.ledger.Relay.Leased(st.Context())
	testkit.Must(st, err)
	return len(all)
}

// TestTokens checks that exactly as many agents can join with a token as it has uses, even
// concurrently.
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
		t.Errorf("%d joined, and %d were refused", joined.Load(), refused.Load())
	}
	if n, err := st.ledger.Directory.Agents(t.Context()); err != nil || n != 3 {
		t.Errorf("%d agents, %v", n, err)
	}
	good, err := mtls.ParseJoinToken(st.token(1))
	testkit.Must(t, err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.Must(t, err)
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	testkit.Must(t, err)
	nobody := v1.NewAgentServiceClient(st.nobody(), st.url, protocol.Client())
	for what, c := range map[string]struct {
		q      *v1.JoinRequest
		code   connect.Code
		reason string
	}{
		"used up":          {&v1.JoinRequest{Secret: must2(mtls.ParseJoinToken(token)).Secret(), Csr: csr}, connect.CodePermissionDenied, "token"},
		"unknown":          {&v1.JoinRequest{Secret: make([]byte, 20), Csr: csr}, connect.CodePermissionDenied, "token"},
		"no secret":        {&v1.JoinRequest{Csr: csr}, connect.CodePermissionDenied, "token"},
		"no request":       {&v1.JoinRequest{Secret: good.Secret()}, connect.CodeInvalidArgument, "csr"},
		"half a request":   {&v1.JoinRequest{Secret: good.Secret(), Csr: csr[:len(csr)-3]}, connect.CodeInvalidArgument, "csr"},
		"another's":        {&v1.JoinRequest{Secret: good.Secret(), Csr: append(slices.Clone(csr[:len(csr)-1]), csr[len(csr)-1]^1)}, connect.CodeInvalidArgument, "csr"},
		"a long name":      {&v1.JoinRequest{Secret: good.Secret(), Csr: csr, Name: strings.Repeat("n", 300)}, connect.CodeInvalidArgument, "name"},
		"unreadable names": {&v1.JoinRequest{Secret: good.Secret(), Csr: csr, Name: "a\x1b[2Jb"}, connect.CodeInvalidArgument, "name"},
	} {
		st.unharmed(what, c.reason, 1, func() {
			_, err := nobody.Join(t.Context(), c.q)
			st.wantCode(what, err, c.code)
		})
	}
	// None of the failed attempts has used up the token.
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

// TestForgotten checks that if the server does not know an agent's clients, for instance after
// a restore from an old backup, its response asks the agent to announce its clients.
func TestForgotten(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	a := st.join()
	for _, clients := range [][]string{nil, {"a0"}} {
		if len(clients) > 0 {
			_, err := a.Announce(t.Context(), &v1.AnnounceRequest{Clients: clients, StepSeconds: 3600})
			testkit.Must(t, err)
		}
		s, err := a.Exchange(t.Context(), &v1.ExchangeRequest{})
		testkit.Must(t, err)
		if s.Announce != (len(clients) == 0) {
			t.Errorf("with clients %v, announce is %v", clients, s.Announce)
		}
	}
}

// TestAnnouncements checks that the server limits the length and the number of names that an
// agent sends, and refuses unprintable names.
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
		"too many clients":       {&v1.AnnounceRequest{Clients: many, StepSeconds: 60}, "clients"},
		"too many inputs":        {&v1.AnnounceRequest{Clients: one, Inputs: many[:65], StepSeconds: 60}, "data"},
		"no step":                {&v1.AnnounceRequest{Clients: one}, "data"},
		"a negative step":        {&v1.AnnounceRequest{Clients: one, StepSeconds: -60}, "data"},
		"a long step":            {&v1.AnnounceRequest{Clients: one, StepSeconds: math.MaxInt64}, "data"},
		"no name":                {&v1.AnnounceRequest{Clients: []string{"a", ""}, StepSeconds: 60}, "name"},
		"a long name":            {&v1.AnnounceRequest{Clients: []string{strings.Repeat("a", 129)}, StepSeconds: 60}, "name"},
		"a new line":             {&v1.AnnounceRequest{Clients: []string{"a\nb"}, StepSeconds: 60}, "name"},
		"an escape":              {&v1.AnnounceRequest{Clients: []string{"a\x1b[31m"}, StepSeconds: 60}, "name"},
		"a zero":                 {&v1.AnnounceRequest{Clients: []string{"a\x00"}, StepSeconds: 60}, "name"},
		"right to left":          {&v1.AnnounceRequest{Clients: []string{"a\u202eb"}, StepSeconds: 60}, "name"},
		"an invisible character": {&v1.AnnounceRequest{Clients: []string{"a\u200bb"}, StepSeconds: 60}, "name"},
		"input with space":       {&v1.AnnounceRequest{Clients: one, Inputs: []string{"wind speed"}, StepSeconds: 60}, "name"},
		"unprintable input":      {&v1.AnnounceRequest{Clients: one, Inputs: []string{"w\tx"}, StepSeconds: 60}, "name"},
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
		q      *v1.ExchangeRequest
		reason string
	}{
		"more turns than clients": {&v1.ExchangeRequest{Training: turns(1, many...)}, "clients"},
		"turns of many runs":      {&v1.ExchangeRequest{Training: turns(9, many[:10_000]...)}, "clients"},
		"a repeated turn":         {&v1.ExchangeRequest{Pushed: turns(257, "a")}, "clients"},
		"turns without clients":   {&v1.ExchangeRequest{Pushed: turns(257)}, "clients"},
		"a client without a name": {&v1.ExchangeRequest{Training: turns(1, "")}, "name"},
		"an unprintable name":     {&v1.ExchangeRequest{Pushed: turns(1, "a\x00")}, "name"},
		"a run without a name":    {&v1.ExchangeRequest{Pushed: []*v1.Turns{{Clients: one}}}, "name"},
	} {
		st.unharmed(what, c.reason, 1, func() {
			_, err := a.Exchange(t.Context(), c.q)
			st.wantCode(what, err, connect.CodeInvalidArgument)
		})
	}
	for what, c := range map[string]struct {
		q      *v1.Decline
		reason string
	}{
		"nothing":         {&v1.Decline{}, "clients"},
		"nobody":          {&v1.Decline{Turns: &v1.Turns{Run: "run"}}, "clients"},
		"too many":        {&v1.Decline{Turns: turns(1, many...)[0]}, "clients"},
		"a long reason":   {&v1.Decline{Turns: turns(1, "a")[0], Reason: strings.Repeat("why ", 300)}, "clients"},
		"a long run name": {&v1.Decline{Turns: &v1.Turns{Run: strings.Repeat("r", 1<<20), Clients: one}}, "name"},
	} {
		st.unharmed("decline "+what, c.reason, 1, func() {
			_, err := a.Decline(t.Context(), c.q)
			st.wantCode(what, err, connect.CodeInvalidArgument)
		})
	}
	// A client may take part in eight runs at a time.
	_, err := a.Exchange(t.Context(), &v1.ExchangeRequest{Training: turns(8, many[:10_000]...), Pushed: turns(8, many[:10_000]...)})
	testkit.Must(t, err)
	// An agent may announce the maximum number of clients with any printable names, and may
	// repeat the announcement.
	fine := append(slices.Clone(many[:9_998]), "Zähler 7 / Süd", "'; DROP TABLE clients; --")
	s, err := a.Announce(t.Context(), &v1.AnnounceRequest{Clients: fine, Inputs: []string{"wind"}, StepSeconds: 60})
	if err != nil || len(s.Refused) > 0 {
		t.Errorf("%v, %v", s, err)
	}
	if n, err := st.ledger.Directory.CountClients(t.Context(), time.Time{}); err != nil || n != 10_000 {
		t.Errorf("%d clients, %v", n, err)
	}
}
