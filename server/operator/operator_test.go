package operator

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"loadstar/internal/mtls"
	"loadstar/internal/testkit"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/directory"
	"loadstar/server/ledger"
)

const plan = "{name: trial, algorithm: fedavg, rounds: 7, schedule: {cohort: 2}, evaluate: {every: 0}}"

// TestCaller checks that only users may call, and that the server does not read the body of any
// other caller's request.
func TestCaller(t *testing.T) {
	t.Parallel()
	d := newFixture(t)
	local := d.who
	d.as(nil)
	_, err := d.ListRuns(t.Context(), &v1.ListRunsRequest{})
	d.code("nobody", err, connect.CodePermissionDenied)
	body := &greedy{Reader: bytes.NewReader(make([]byte, 32<<20))}
	r, err := d.http.Post(d.url+v1.OperatorServiceStartRunProcedure, "application/proto", body)
	testkit.Must(t, err)
	r.Body.Close()
	if r.StatusCode != http.StatusForbidden || body.n.Load() > 4<<20 {
		t.Errorf("%s, after %d bytes", r.Status, body.n.Load())
	}
	d.as(local)
	for _, kind := range []string{"application/proto", "application/json", "application/grpc"} {
		r, err := d.http.Post(d.url+v1.OperatorServiceStartRunProcedure, kind, strings.NewReader("\xff\xff no message"))
		testkit.Must(t, err)
		r.Body.Close()
		if r.StatusCode != 400 && r.StatusCode != 200 || r.StatusCode == 200 && r.Trailer.Get("Grpc-Status")+r.Header.Get("Grpc-Status") == "0" {
			t.Errorf("%s: %s", kind, r.Status)
		}
	}
	_, err = d.StartRun(t.Context(), &v1.StartRunRequest{Plan: strings.Repeat("#", 3<<20)})
	d.code("a long body", err, connect.CodeResourceExhausted)
}

type greedy struct {
	io.Reader
	n atomic.Int64
}

func (g *greedy) Read(p []byte) (int, error) {
	n, err := g.Reader.Read(p)
	g.n.Add(int64(n))
	return n, err
}

func TestTokens(t *testing.T) {
	t.Parallel()
	d := newFixture(t)
	before := time.Now()
	s, err := d.CreateToken(t.Context(), &v1.CreateTokenRequest{Note: "for the substation", Uses: 2, TtlSeconds: 3600})
	testkit.Must(t, err)
	after := time.Now()
	token, err := mtls.ParseJoinToken(s.Token)
	testkit.Must(t, err)
	if token.Pin() != d.authority.Pin() || s.Expires < before.Add(time.Hour).UnixMilli() || s.Expires > after.Add(time.Hour).UnixMilli() {
		t.Errorf("pin %s, expires %v", token.Pin(), time.UnixMilli(s.Expires))
	}
	for i, want := range []bool{true, true, false} {
		err := d.ledger.Directory.Join(t.Context(), token.Hash(), directory.Agent{ID: fmt.Sprint(i)}, time.Now())
		if (err == nil) != want {
			t.Errorf("use %d: %v", i, err)
		}
	}
	for what, q := range map[string]*v1.CreateTokenRequest{
		"no uses":       {TtlSeconds: 60},
		"negative uses": {Uses: -1, TtlSeconds: 60},
		"many uses":     {Uses: 1_000_001, TtlSeconds: 60},
		"short":         {Uses: 1, TtlSeconds: 59},
		"long":          {Uses: 1, TtlSeconds: 366*24*3600 + 1},
		"negative":      {Uses: 1, TtlSeconds: -60},
		"endless":       {Uses: 1, TtlSeconds: math.MaxInt64},
		"wraps around":  {Uses: 1, TtlSeconds: math.MaxInt64/int64(time.Second)*2 + 3600},
		"long note":     {Uses: 1, TtlSeconds: 60, Note: strings.Repeat("n", 257)},
	} {
		_, err := d.CreateToken(t.Context(), q)
		d.code(what, err, connect.CodeInvalidArgument)
	}
	if _, err := d.ListAudit(t.Context(), &v1.ListAuditRequest{After: fmt.Sprintf("%016x-00000001-x", time.Now().Add(24*time.Hour).UnixMilli())}); connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Errorf("events after one of tomorrow: %v", err)
	}
	audit, err := d.ListAudit(t.Context(), &v1.ListAuditRequest{Limit: 1000})
	testkit.Must(t, err)
	i := slices.IndexFunc(audit.Events, func(e *v1.Event) bool { return e.Action == "create token" })
	if i < 0 || audit.Events[i].Actor != "user local via web" || !strings.Contains(audit.Events[i].Detail, "agents 2, until") {
		t.Fatalf("%v", audit.Events)
	}
	for _, e := range audit.Events {
		if strings.Contains(fmt.Sprint(e), s.Token) || strings.Contains(fmt.Sprint(e), strings.Split(s.Token, "-")[1]) {
			t.Error("the secret is in the audit log")
		}
	}
}

func TestClients(t *testing.T) {
	t.Parallel()
	d := newFixture(t)
	var names []string
	for i := range 120 {
		names = append(names, fmt.Sprintf("c%03d", i))
	}
	d.members("a", names...)
	d.members("b", "other")
	var got []string
	for after, pages := "", 0; ; pages++ {
		s, err := d.ListClients(t.Context(), &v1.ListClientsRequest{After: after, Limit: 50})
		testkit.Must(t, err)
		if s.Total != 121 || s.Agents != 2 {
			t.Errorf("%d clients of %d agents", s.Total, s.Agents)
		}
		if len(s.Clients) == 0 {
			if pages != 3 {
				t.Errorf("%d pages", pages)
			}
			break
		}
		for _, c := range s.Clients {
			got = append(got, c.Name)
		}
		after = s.Clients[len(s.Clients)-1].Name
	}
	if !slices.Equal(got, append(names, "other")) {
		t.Error(got)
	}
	for limit, want := range map[int32]int{0: 100, -5: 100, 1: 1, math.MaxInt32: 121} {
		if s, err := d.ListClients(t.Context(), &v1.ListClientsRequest{Limit: limit}); err != nil || len(s.Clients) != want {
			t.Errorf("limit %d: %d, %v", limit, len(s.GetClients()), err)
		}
	}
	_, err := d.Revoke(t.Context(), &v1.RevokeRequest{Client: "c000"})
	testkit.Must(t, err)
	_, err = d.Revoke(t.Context(), &v1.RevokeRequest{Agent: "b"})
	testkit.Must(t, err)
	if !slices.Equal(d.revoked, []string{"b"}) {
		t.Errorf("the gateway was notified of %q", d.revoked)
	}
	s, err := d.ListClients(t.Context(), &v1.ListClientsRequest{Limit: 1000})
	testkit.Must(t, err)
	for _, c := range s.Clients {
		if c.Revoked != (c.Name == "c000" || c.Name == "other") || c.AgentName != "name of "+c.Agent {
			t.Errorf("%v", c)
		}
	}
	// On a busy machine, the numbers may be some seconds old.
	for end := time.Now().Add(time.Minute); s.Total != 119 || s.Agents != 1; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d clients of %d agents", s.Total, s.Agents)
		}
		s, err = d.ListClients(t.Context(), &v1.ListClientsRequest{Limit: 1})
		testkit.Must(t, err)
	}
	for what, c := range map[string]struct {
		q    *v1.RevokeRequest
		code connect.Code
	}{
		"neither":       {&v1.RevokeRequest{}, connect.CodeInvalidArgument},
		"both":          {&v1.RevokeRequest{Client: "c001", Agent: "a"}, connect.CodeInvalidArgument},
		"again":         {&v1.RevokeRequest{Client: "c000"}, connect.CodeNotFound},
		"unknown":       {&v1.RevokeRequest{Agent: "zzz"}, connect.CodeNotFound},
		"SQL injection": {&v1.RevokeRequest{Client: "c001' OR '1'='1"}, connect.CodeNotFound},
	} {
		_, err := d.Revoke(t.Context(), c.q)
		d.code(what, err, c.code)
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	d := newFixture(t)
	for batch, want := range map[int]string{32: "", 1: "agents with default settings decline this plan: client.batch is 1, the minimum is 32 (policy.least_batch)"} {
		s, err := d.StartRun(t.Context(), &v1.StartRunRequest{Plan: fmt.Sprintf("algorithm: fedavg\nclient: {batch: %d, steps: 64}\n", batch)})
		testkit.Must(t, err)
		if got := strings.Join(s.Warnings, "\n"); got != want {
			t.Errorf("batch %d: %q", batch, got)
		}
	}
	for clients, want := range map[int64]string{20: "", 12: "agents with default settings decline this plan with a fleet of 12: the smallest number of clients in a round is 6, the minimum is 10 (policy.least_cohort); the smallest number of updates in a merge is 6, the minimum is 10 (policy.least_merge)"} {
		s, err := d.StartRun(t.Context(), &v1.StartRunRequest{Plan: "algorithm: fedavg\nclient: {batch: 32, steps: 64}\n", Clients: clients})
		testkit.Must(t, err)
		if got := strings.Join(s.Warnings, "\n"); got != want {
			t.Errorf("%d clients: %q", clients, got)
		}
	}
}

func TestRuns(t *testing.T) {
	t.Parallel()
	d := newFixture(t)
	var ids []string
	for i := range 3 {
		s, err := d.StartRun(t.Context(), &v1.StartRunRequest{Plan: plan, Clients: int64(i)})
		testkit.Must(t, err)
		ids = append(ids, s.Run)
		// Runs are sorted by their time of creation in milliseconds, so the times must
		// differ.
		time.Sleep(2 * time.Millisecond)
	}
	if !slices.Equal(d.woken, ids) {
		t.Errorf("notified for %v, want %v", d.woken, ids)
	}
	for i, want := range []int64{2, 2, 2} { // a run waits for at least its cohort
		if r, err := d.ledger.Run(t.Context(), ids[i]); err != nil || r.Wanted != want || r.Plan != plan {
			t.Errorf("%+v, %v", r, err)
		}
	}
	many, err := d.StartRun(t.Context(), &v1.StartRunRequest{Plan: plan, Clients: 500})
	testkit.Must(t, err)
	if r, err := d.ledger.Run(t.Context(), many.Run); err != nil || r.Wanted != 500 {
		t.Errorf("%+v, %v", r, err)
	}
	for what, c := range map[string]struct {
		q    *v1.StartRunRequest
		want string
	}{
		"no plan":        {&v1.StartRunRequest{}, ""},
		"no YAML":        {&v1.StartRunRequest{Plan: "{]"}, ""},
		"unknown key":    {&v1.StartRunRequest{Plan: "algorithm: fedavg\nround: 3\n"}, "rounds"},
		"simulator only": {&v1.StartRunRequest{Plan: "algorithm: pooled\n"}, "simulate"},
		"fleet scaling":  {&v1.StartRunRequest{Plan: "algorithm: fedavg\nmodel: {scaling: fleet}\n"}, "scaling"},
		"long":           {&v1.StartRunRequest{Plan: plan + strings.Repeat("#", maxPlan)}, "too long"},
		"negative":       {&v1.StartRunRequest{Plan: plan, Clients: -1}, "negative"},
	} {
		_, err := d.StartRun(t.Context(), c.q)
		d.code(what, err, connect.CodeInvalidArgument)
		if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	list, err := d.ListRuns(t.Context(), &v1.ListRunsRequest{})
	testkit.Must(t, err)
	if len(list.Runs) != 4 || list.Runs[0].Id != many.Run || list.Runs[3].Id != ids[0] {
		t.Errorf("%v", list.Runs)
	}
	if r := list.Runs[3]; r.Name != "trial" || r.Algorithm != "fedavg" || r.Rounds != 7 || r.State != "waiting" || r.Created == 0 || r.Started != 0 {
		t.Errorf("%v", r)
	}
	if list, err = d.ListRuns(t.Context(), &v1.ListRunsRequest{Limit: 2}); err != nil || len(list.Runs) != 2 {
		t.Errorf("%v, %v", list, err)
	}
	_, err = d.StopRun(t.Context(), &v1.StopRunRequest{Run: ids[0]})
	testkit.Must(t, err)
	_, err = d.StopRun(t.Context(), &v1.StopRunRequest{Run: ids[0]})
	d.code("stopped again", err, connect.CodeFailedPrecondition)
	_, err = d.StopRun(t.Context(), &v1.StopRunRequest{Run: "none"})
	d.code("stop of none", err, connect.CodeNotFound)
	_, err = d.GetRun(t.Context(), &v1.GetRunRequest{Run: "none"})
	d.code("none", err, connect.CodeNotFound)
	got, err := d.GetRun(t.Context(), &v1.GetRunRequest{Run: ids[0]})
	if err != nil || got.Run.State != "stopped" || got.Run.Finished == 0 || got.Plan != plan || len(got.Rounds) != 0 {
		t.Errorf("%v, %v", got, err)
	}
	audit, err := d.ListAudit(t.Context(), &v1.ListAuditRequest{Limit: 1})
	if err != nil || len(audit.Events) != 1 || audit.Events[0].Action != "stop run" || audit.Events[0].Subject != ids[0] {
		t.Errorf("%v, %v", audit, err)
	}
}

// drive begins a run and returns a function that closes its current round.
func (d *fixture) drive(run string) func(state string) {
	d.Helper()
	ctx := d.Context()
	lead, err := d.ledger.Lead(ctx, "test", time.Hour, time.Now())
	testkit.Must(d, err)
	do := func(do func(x *ledger.Drive) error) {
		d.Helper()
		testkit.Must(d, d.ledger.Drive(ctx, lead, run, do))
	}
	do(func(x *ledger.Drive) error {
		if _, err := x.Begin(ledger.Run{Plan: plan}, ledger.Version{Weights: "w0"}, directory.Filter{}, time.Now()); err != nil {
			return err
		}
		return x.Save("{}", ledger.Round{Opened: time.Now()})
	})
	var n, version int64
	return func(state string) {
		d.Helper()
		do(func(x *ledger.Drive) error {
			r := ledger.Round{Round: n, Version: version, State: state, Closed: time.Now(), Asked: 2, Counted: 1, Loss: 0.25}
			if err := x.Close(r, "{}", false); err != nil {
				return err
			}
			n++
			if state == ledger.RoundMerging {
				version++
				if err := x.Publish(r, ledger.Version{Weights: fmt.Sprint("w", version)}, "server"); err != nil {
					return err
				}
			}
			return x.Save("{}", ledger.Round{Round: n, Version: version, Opened: time.Now()})
		})
	}
}

// TestWatch checks that a watcher receives every closed round, once and in order, and the end
// of the run.
func TestWatch(t *testing.T) {
	t.Parallel()
	d := newFixture(t)
	d.members("a", "c0", "c1")
	s, err := d.StartRun(t.Context(), &v1.StartRunRequest{Plan: plan})
	testkit.Must(t, err)
	next := d.drive(s.Run)
	next(ledger.RoundMerging) // this round closes before the first watcher calls
	w, err := d.WatchRun(t.Context(), &v1.WatchRunRequest{Run: s.Run})
	testkit.Must(t, err)
	defer w.Close()
	hear := func() *v1.WatchRunResponse {
		t.Helper()
		if !w.Receive() {
			t.Fatal(w.Err())
		}
		return w.Msg()
	}
	if m := hear(); m.Round != nil || m.Run.State != "running" || m.Run.Round != 1 || m.Run.Version != 1 || m.Run.Weights != "w1" || m.Run.Clients != 2 {
		t.Errorf("%v", m)
	}
	next(ledger.RoundAbandoned)
	next(ledger.RoundMerging)
	for i, want := range []string{"abandoned", "merged"} {
		if m := hear(); m.Round.GetRound() != int64(1+i) || m.Round.GetState() != want || m.Round.GetLoss() != 0 || m.Round.GetCounted() != 1 {
			t.Errorf("%v, want %s", m, want)
		}
	}
	next(ledger.RoundMerging)
	_, err = d.StopRun(t.Context(), &v1.StopRunRequest{Run: s.Run})
	testkit.Must(t, err)
	if m := hear(); m.Round.GetRound() != 3 {
		t.Errorf("%v", m)
	}
	if m := hear(); m.Round != nil || m.Run.State != "stopped" {
		t.Errorf("%v", m)
	}
	if w.Receive() || w.Err() != nil {
		t.Errorf("after the end: %v, %v", w.Msg(), w.Err())
	}
	got, err := d.GetRun(t.Context(), &v1.GetRunRequest{Run: s.Run, Rounds: 2})
	if err != nil || len(got.Rounds) != 2 || got.Rounds[0].Round != 4 || got.Rounds[1].Round != 3 {
		t.Errorf("%v, %v", got, err)
	}
}

// TestWatchers checks that the number of watchers is limited, and that they do not delay a
// shutdown.
func TestWatchers(t *testing.T) {
	t.Parallel()
	d := newFixture(t)
	s, err := d.StartRun(t.Context(), &v1.StartRunRequest{Plan: plan})
	testkit.Must(t, err)
	watch := func() (*connect.ServerStreamForClient[v1.WatchRunResponse], error) {
		w, err := d.WatchRun(t.Context(), &v1.WatchRunRequest{Run: s.Run})
		testkit.Must(t, err)
		t.Cleanup(func() { w.Close() })
		if !w.Receive() {
			return w, w.Err()
		}
		return w, nil
	}
	var all []*connect.ServerStreamForClient[v1.WatchRunResponse]
	for range maxWatchers {
		w, err := watch()
		testkit.Must(t, err)
		all = append(all, w)
	}
	_, err = watch()
	d.code("one more", err, connect.CodeResourceExhausted)
	none, err := d.WatchRun(t.Context(), &v1.WatchRunRequest{Run: "none"})
	testkit.Must(t, err)
	none.Receive()
	d.code("none, and no room", none.Err(), connect.CodeResourceExhausted)
	none.Close()
	all[0].Close()
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err = watch(); err == nil || time.Now().After(end) {
			break
		}
	}
	testkit.Must(t, err)
	close(d.closing)
	for _, w := range all[1:] { // only the shutdown ends these watchers
		for w.Receive() {
		}
		d.code("the end", w.Err(), connect.CodeUnavailable)
	}
}

// TestLedgerClosed checks that if the ledger is closed, calls fail as unavailable, not with an
// error such as "not found".
func TestLedgerClosed(t *testing.T) {
	t.Parallel()
	d := newFixture(t)
	testkit.Must(t, d.ledger.Close())
	for what, err := range map[string]error{
		"runs":    second(d.ListRuns(t.Context(), &v1.ListRunsRequest{})),
		"clients": second(d.ListClients(t.Context(), &v1.ListClientsRequest{})),
		"start":   second(d.StartRun(t.Context(), &v1.StartRunRequest{Plan: plan})),
		"stop":    second(d.StopRun(t.Context(), &v1.StopRunRequest{Run: "r"})),
		"revoke":  second(d.Revoke(t.Context(), &v1.RevokeRequest{Agent: "a"})),
		"token":   second(d.CreateToken(t.Context(), &v1.CreateTokenRequest{Uses: 1, TtlSeconds: 60})),
		"audit":   second(d.ListAudit(t.Context(), &v1.ListAuditRequest{})),
	} {
		d.code(what, err, connect.CodeUnavailable)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := d.ListRuns(ctx, &v1.ListRunsRequest{})
	d.code("given up", err, connect.CodeCanceled)
}

func second[T any](_ T, err error) error { return err }
