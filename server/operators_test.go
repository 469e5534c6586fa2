package server

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	dto "github.com/prometheus/client_model/go"

	"loadstar/internal/protocol"
	"loadstar/internal/testkit"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/pki"
)

// TestOperatorsAddress checks that if operators have a separate address, the server refuses
// operators at the agents' address, and agents at the operators' address. The response with a
// new token contains the agents' address.
func TestOperatorsAddress(t *testing.T) {
	t.Parallel()
	at := testkit.AddressFor(t)
	st := newStation(t, func(c *Config) { c.Operators = at })
	theirs := v1.NewOperatorServiceClient(st.operatorHTTP(), "https://"+at)

	token, err := theirs.CreateToken(t.Context(), &v1.CreateTokenRequest{Uses: 1, TtlSeconds: 3600})
	testkit.Must(t, err)
	if token.Server != st.url {
		t.Errorf("agents are to join %q, want %q", token.Server, st.url)
	}
	_, err = st.operator.ListRuns(t.Context(), &v1.ListRunsRequest{})
	st.wantCode("an operator at the agents' address", err, connect.CodePermissionDenied)
	if err == nil || !strings.Contains(err.Error(), "operators") {
		t.Errorf("the error does not say which address to use: %v", err)
	}

	a := st.join("a0") // announces at the agents' address
	if _, err := a.Exchange(t.Context(), &v1.ExchangeRequest{}); err != nil {
		t.Error(err)
	}
	// The error code must be one after which agents keep their results and retry.
	h := st.certify(st.authority, pki.Identity{Role: pki.Agent, ID: a.id}, time.Hour)
	_, err = v1.NewAgentServiceClient(h, "https://"+at, protocol.Client()).Exchange(t.Context(), &v1.ExchangeRequest{})
	st.wantCode("an agent at the operators' address", err, connect.CodeUnavailable)
	_, err = v1.NewAgentServiceClient(st.nobody(), "https://"+at, protocol.Client()).Join(t.Context(), &v1.JoinRequest{})
	st.wantCode("a join at the operators' address", err, connect.CodeUnavailable)
	_, err = v1.NewOperatorServiceClient(h, "https://"+at).ListRuns(t.Context(), &v1.ListRunsRequest{})
	st.wantCode("an agent with an operator's call", err, connect.CodePermissionDenied)
}

// TestSharedAddress checks that if operators share the agents' address, the server does not
// name it, because the caller knows it.
func TestSharedAddress(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	token, err := st.operator.CreateToken(t.Context(), &v1.CreateTokenRequest{Uses: 1, TtlSeconds: 3600})
	testkit.Must(t, err)
	if token.Server != "" {
		t.Errorf("agents are to join %q", token.Server)
	}
}

// TestCountedReasons checks that refused calls of outdated agents are counted by reason, and
// declined turns by code, because alerts depend on both.
func TestCountedReasons(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	a := st.join("a0")
	q := connect.NewRequest(&v1.ExchangeRequest{})
	q.Header().Set(protocol.Header, "0")
	path := "/" + v1.AgentServiceName + "/Exchange"
	_, err := connect.NewClient[v1.ExchangeRequest, v1.ExchangeResponse](a.http, st.url+path).CallUnary(t.Context(), q)
	st.wantCode("an agent that is too old", err, connect.CodeUnavailable)
	if n := st.refused()["protocol"]; n != 1 {
		t.Errorf("%v calls were refused because of the protocol, want 1", n)
	}
	for code, want := range map[string]string{"policy": "policy", "a code of the future": "other"} {
		_, err := a.Decline(t.Context(), &v1.Decline{Turns: &v1.Turns{Run: "run", Clients: []string{"a0"}}, Reason: "test", Code: code})
		testkit.Must(t, err)
		families, err := st.registry.Gather()
		testkit.Must(t, err)
		i := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == "loadstar_gateway_declined_total" })
		if i < 0 || !slices.ContainsFunc(families[i].Metric, func(m *dto.Metric) bool {
			return m.Label[0].GetValue() == want && m.GetCounter().GetValue() == 1
		}) {
			t.Errorf("no turn was counted with the code %q", want)
		}
	}
}

// TestShowsLeftOut checks that operators see which clients a run left out and, during the run,
// why agents may decline its plan.
func TestShowsLeftOut(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	rich, poor := st.join(), st.join()
	var names []string
	for i := range 10 {
		names = append(names, fmt.Sprint("rich", i))
	}
	_, err := rich.Announce(t.Context(), &v1.AnnounceRequest{Clients: names, Inputs: []string{"temperature"}, StepSeconds: 3600})
	testkit.Must(t, err)
	_, err = poor.Announce(t.Context(), &v1.AnnounceRequest{Clients: []string{"poor"}, StepSeconds: 3600})
	testkit.Must(t, err)
	run := st.start("{algorithm: fedavg, model: {name: bose2023}, client: {batch: 1}, schedule: {cohort: 4}}")
	rich.task(run, 0)
	show := func() *v1.Run {
		r, err := st.operator.GetRun(t.Context(), &v1.GetRunRequest{Run: run})
		testkit.Must(t, err)
		return r.Run
	}
	r := show()
	if r.LeftOut != "left out 1 of 11 clients: poor lacks temperature" || r.Wanted != 4 || r.Clients != 10 {
		t.Errorf("left out %q, wanted %d, clients %d", r.LeftOut, r.Wanted, r.Clients)
	}
	if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "client.batch is 1") {
		t.Errorf("warnings %q", r.Warnings)
	}
	_, err = st.operator.StopRun(t.Context(), &v1.StopRunRequest{Run: run})
	testkit.Must(t, err)
	if r := show(); len(r.Warnings) != 0 {
		t.Errorf("a stopped run warns: %q", r.Warnings)
	}
}
