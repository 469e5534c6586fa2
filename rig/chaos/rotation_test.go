package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"loadstar/agent/identity"
	"loadstar/internal/testkit"
	"loadstar/rig/product"
	"loadstar/series"
)

// The sizes of TestRotation's fleet. The first agents never disconnect, so the run of their
// clients must have the simulator's weights.
const (
	rotationHosts  = 20
	rotationSteady = 16
	rotationAway   = 3 // the agents after those that never disconnect; the last agent is revoked
)

// rotation is a fleet whose certificate authority is replaced during runs.
type rotation struct {
	*bench
	ids    []string // IDs of the agents
	stop   chan struct{}
	loop   sync.WaitGroup // trains runs with the whole fleet, one after the other
	merged int64          // rounds at the end of the previous phase
	begun  time.Time
}

// TestRotation replaces the issuer and the root of a running fleet of 20 agents, lets the
// certificates of some agents expire, and revokes an agent. No round may be lost. One run
// trains with agents that never disconnect. Its weights must be the simulator's. Further runs
// train with the whole fleet and must merge all rounds.
func TestRotation(t *testing.T) {
	clients := rotationHosts * testkit.Pick(4, 10)
	b := newBench(t, layout{agents: rotationHosts, serve: []string{
		"--set", "agents.certificates=1m", "--set", "agents.grace=10m", "--set", "agents.poll=500ms", "--set", "limits.address_rate=0",
	}}, clients)
	r := &rotation{bench: b, stop: make(chan struct{}), begun: time.Now()}

	r.host(0, rotationSteady)
	// The server opens at most ten rounds a second, and all phases together take at least 65
	// seconds.
	steady := small("fedadam", testkit.Pick(1100, 3000), "partition: head\nschedule: {cohort: 16}\nclient: {steps: 1, batch: 2}\n")
	b.runs[steady.name] = reference{steady, b.bin, r.part(rotationSteady), ""}
	if err := b.submit(t.Context(), b.dir, steady, clients*rotationSteady/rotationHosts, patient); err != nil {
		t.Fatal(err)
	}
	r.until("the run of the steady agents has begun", func() bool { return r.number("SELECT count(*) FROM runs WHERE state = 'running'") == 1 })
	r.host(rotationSteady, rotationHosts)
	for i := range rotationHosts {
		x, err := identity.Open(b.agentDir(i))
		if err != nil {
			t.Fatal(err)
		}
		r.ids = append(r.ids, x.ID())
	}
	r.loop.Go(r.trainAll)
	defer r.end()
	r.takePart(rotationHosts)
	hosted := r.hosted()
	r.addUser("anna")
	r.phase("20 agents train with one issuer")

	r.pki("rotate")
	r.t("all agents have a certificate of the new issuer", func() { r.follow(rotationHosts) })
	r.refusesToRetire("0 agents use certificates", "users have 1")
	r.as("anna")
	r.pki("retire")
	r.as("anna")
	r.takePart(rotationHosts)
	r.phase("the issuer is replaced")

	away := r.hosts[rotationSteady : rotationSteady+rotationAway]
	for _, p := range away {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	}
	r.pki("rotate", "--root")
	r.t("the agents that run have a certificate of the new root", func() { r.follow(rotationHosts - rotationAway) })
	for i := range r.hosts {
		want := 2
		if i >= rotationSteady && i < rotationSteady+rotationAway {
			want = 1
		}
		if n := r.roots(i); n != want {
			t.Errorf("%s trusts %d roots, want %d", r.hosts[i].name, n, want)
		}
	}
	r.refusesToRetire("3 agents use certificates", "users have 1")
	r.as("anna")
	if n := r.certificates("anna/ca.pem"); n != 2 {
		t.Errorf("the user trusts %d roots, want 2", n)
	}
	r.refusesToRetire("3 agents use certificates", "users have 0")
	r.phase("the root is replaced, with two roots trusted and 3 agents away")

	expired := time.Now()
	for i := range away {
		x, err := identity.Open(b.agentDir(rotationSteady + i))
		if err != nil {
			t.Fatal(err)
		}
		if x.Expires().After(expired) {
			expired = x.Expires()
		}
	}
	if product.Sleep(t.Context(), time.Until(expired)+time.Second) != nil {
		t.Fatal(t.Context().Err())
	}
	for _, p := range away {
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
	}
	r.t("the agents whose certificates had expired have new ones", func() { r.follow(rotationHosts) })
	r.takePart(rotationHosts)
	r.phase("3 agents are back after their certificates had expired")

	r.pki("retire")
	r.takePart(rotationHosts)
	r.until("the user trusts only the new root", func() bool {
		r.as("anna")
		return r.certificates("anna/ca.pem") == 1
	})
	r.phase("the former root is retired")
	if r.number("SELECT count(*) FROM runs WHERE name = 'fedadam' AND state = 'running'") == 0 {
		t.Error("the run of the steady agents has ended too early to show anything; give it more rounds")
	}

	r.revoke(rotationHosts - 1)
	r.takePart(rotationHosts - 1)
	r.phase("one agent is revoked")
	if got := r.hosted(); got != hosted {
		t.Errorf("the clients of the agents have changed from %s to %s", hosted, got)
	}
	r.end()
	b.identical(steady.name)
	r.judge()
}

// end ends the training with the whole fleet once the current run is over.
func (r *rotation) end() {
	select {
	case <-r.stop:
	default:
		close(r.stop)
	}
	r.loop.Wait()
}

// part writes a dataset with the meters of the first agents, and returns its path.
func (r *rotation) part(hosts int) string {
	r.Helper()
	d, closer, err := series.OpenPrepared(r.data)
	if err != nil {
		r.Fatal(err)
	}
	defer closer.Close()
	var meters []series.Meter
	for i := range d.Len() {
		if i%rotationHosts < hosts {
			meters = append(meters, d.Meter(i))
		}
	}
	path := filepath.Join(r.dir, "steady.prepared")
	if d, err = d.With(meters); err == nil {
		err = series.WritePrepared(path, d)
	}
	if err != nil {
		r.Fatal(err)
	}
	return path
}

// trainAll trains runs with all agents until the test ends them. A round does not wait for
// disconnected agents.
func (r *rotation) trainAll() {
	for i := 0; ; i++ {
		select {
		case <-r.stop:
			return
		case <-r.Context().Done():
			return
		default:
		}
		p := small("fedavg", 8, "schedule: {cohort: 20, deadline: 10s, quorum: 0.4}\nclient: {steps: 2, batch: 8}\n")
		p = plan{fmt.Sprintf("all-%03d", i), fmt.Sprintf("%s\nseed: %d\n", strings.Replace(p.text, "name: fedavg", fmt.Sprintf("name: all-%03d", i), 1), i+1)}
		err := r.submit(r.Context(), r.dir, p, rotationSteady, patient)
		if err == nil {
			_, err = r.finish(r.Context(), p.name, patient)
		}
		if err != nil {
			r.Errorf("%s: %v", p.name, err)
			return
		}
	}
}

// pki runs a command of the certificate authority on the server's folder.
func (r *rotation) pki(args ...string) string {
	r.Helper()
	out, err := r.command(r.Context(), append([]string{"pki", "--dir", filepath.Dir(r.operator)}, args...)...)
	if err != nil {
		r.Fatal(err)
	}
	return out
}

func (r *rotation) show() string { return r.pki("show", "--json") }

// t calls do and logs how long it took.
func (r *rotation) t(what string, do func()) {
	r.Helper()
	begun := time.Now()
	do()
	r.Logf("%s after %.1f s", what, time.Since(begun).Seconds())
}

// until waits until ok returns true.
func (r *rotation) until(what string, ok func() bool) {
	r.Helper()
	for end := time.Now().Add(patient); !ok(); {
		if time.Now().After(end) || product.Sleep(r.Context(), 100*time.Millisecond) != nil {
			r.Fatalf("timed out waiting until %s", what)
		}
	}
}

func (r *rotation) number(text string, args ...any) int64 {
	r.Helper()
	n, err := r.ledger.number(r.Context(), text, args...)
	if err != nil {
		r.Fatal(err)
	}
	return n
}

// follow waits until the given number of agents use certificates of the newest issuer.
func (r *rotation) follow(agents int64) {
	r.Helper()
	var all []struct{ ID string }
	if err := json.Unmarshal([]byte(r.show()), &all); err != nil || len(all) == 0 {
		r.Fatal(err, all)
	}
	newest := all[len(all)-1].ID
	r.until(fmt.Sprintf("%d agents have certificates of issuer %s", agents, newest), func() bool {
		return r.number("SELECT count(*) FROM agents WHERE substr(serial, 1, 8) = $1", newest) == agents
	})
}

// takePart waits until new results of the given number of agents have been counted.
func (r *rotation) takePart(agents int64) {
	r.Helper()
	since := time.Now().UnixMilli()
	r.until(fmt.Sprintf("%d agents take part", agents), func() bool {
		return r.number("SELECT count(DISTINCT c.agent) FROM receipts x JOIN clients c ON c.name = x.client WHERE x.counted > $1", since) == agents
	})
}

// phase logs the end of a phase. Rounds must have been merged during the phase.
func (r *rotation) phase(what string) {
	r.Helper()
	n := r.number("SELECT count(*) FROM rounds WHERE state = 'merged'")
	r.Logf("%3.0f s: %s; %d rounds merged meanwhile", time.Since(r.begun).Seconds(), what, n-r.merged)
	if n == r.merged {
		r.Errorf("no round was merged while %s", what)
	}
	r.merged = n
}

// roots returns the number of roots that an agent trusts.
func (r *rotation) roots(i int) int {
	r.Helper()
	path, err := filepath.Rel(r.dir, filepath.Join(r.agentDir(i), "identity.pem"))
	if err != nil {
		r.Fatal(err)
	}
	return r.certificates(path) - 1 // without the agent's own certificate
}

// certificates returns the number of certificates in a file.
func (r *rotation) certificates(path string) int {
	r.Helper()
	text, err := os.ReadFile(filepath.Join(r.dir, path))
	if err != nil {
		r.Fatal(err)
	}
	return strings.Count(string(text), "BEGIN CERTIFICATE")
}

// addUser adds a user whose credentials are in a folder that the server does not know.
func (r *rotation) addUser(name string) {
	r.Helper()
	for _, args := range [][]string{{"user", "add", name, "--role", "viewer"}, {"user", "certificate", "create", name, "-o", filepath.Join(r.dir, name)}} {
		if _, err := r.command(r.Context(), args...); err != nil {
			r.Fatal(err)
		}
	}
}

// as runs a command as a user; the command must succeed.
func (r *rotation) as(name string) {
	r.Helper()
	if _, err := r.command(r.Context(), "whoami", "--operator", filepath.Join(r.dir, name)); err != nil {
		r.Fatal(err)
	}
}

// refusesToRetire checks that the previous issuer cannot be retired, and that the reasons are
// given.
func (r *rotation) refusesToRetire(reasons ...string) {
	r.Helper()
	_, err := r.command(r.Context(), "pki", "retire", "--dir", filepath.Dir(r.operator))
	for _, want := range reasons {
		if err == nil || !strings.Contains(err.Error(), want) {
			r.Errorf("retiring the issuer: %v, want %q", err, want)
		}
	}
}

// hosted returns the clients of all agents as a string.
func (r *rotation) hosted() string {
	r.Helper()
	var b strings.Builder
	err := r.ledger.rows(r.Context(), func(rows *sql.Rows) error {
		var client, agent string
		err := rows.Scan(&client, &agent)
		fmt.Fprintf(&b, "%s of %s, ", client, agent)
		return err
	}, "SELECT name, agent FROM clients ORDER BY name")
	if err != nil {
		r.Fatal(err)
	}
	return b.String()
}

// revoke revokes an agent and waits until it has noticed that the server refuses it. Another
// agent must not get its clients.
func (r *rotation) revoke(i int) {
	r.Helper()
	r.revoked, r.revokedClients = map[int]bool{i: true}, map[string]bool{}
	err := r.ledger.rows(r.Context(), func(rows *sql.Rows) error {
		var client string
		err := rows.Scan(&client)
		r.revokedClients[client] = true
		return err
	}, "SELECT name FROM clients WHERE agent = $1", r.ids[i])
	if err != nil {
		r.Fatal(err)
	}
	p, begun := r.hosts[i], time.Now()
	if _, err := r.command(r.Context(), "client", "revoke", "--agent", r.ids[i]); err != nil {
		r.Fatal(err)
	}
	r.until("the revoked agent is refused", func() bool { return strings.Contains(p.Log(4000), "the server refuses this agent") })
	took := time.Since(begun)
	r.Logf("the revoked agent is refused after %.1f s", took.Seconds())
	if took > time.Minute {
		r.Errorf("an agent that was revoked was refused after %s", took)
	}
	if err := p.Kill(); err != nil {
		r.Error(err)
	}
	p.mu.Lock()
	p.exits = nil // the agent ended because the server refused it
	p.mu.Unlock()

	token, err := r.command(r.Context(), "token", "create")
	if err != nil {
		r.Fatal(err)
	}
	dir := filepath.Join(r.dir, "agents", "other")
	if _, err := r.command(r.Context(), "agent", "join", r.address, token, "--dir", dir, "--name", "other"); err != nil {
		r.Fatal(err)
	}
	args := append([]string(nil), p.args...)
	for n, a := range args {
		if a == r.agentDir(i) {
			args[n] = dir
		}
	}
	other := r.process(kindAgent, "other", args...)
	if err := other.Start(); err != nil {
		r.Fatal(err)
	}
	r.until("another agent is refused the clients", func() bool { return strings.Contains(other.Log(4000), "the server refused clients") })
	if err := other.Stop(); err != nil {
		r.Error(err)
	}
}

// judge checks that no round was lost, that every result was counted once, and that all lost
// turns belong to agents that were disconnected or revoked.
func (r *rotation) judge() {
	r.Helper()
	ctx := context.WithoutCancel(r.Context())
	all, err := r.ledger.runs(ctx, "")
	if err != nil {
		r.Fatal(err)
	}
	whole := map[string]bool{}
	for _, x := range all {
		whole[x.id] = strings.HasPrefix(x.name, "all-")
	}
	r.right(whole)
	rounds, err := r.ledger.rounds(ctx)
	if err != nil {
		r.Fatal(err)
	}
	states := map[string]int{}
	var asked, counted, late, lost int64
	for _, x := range rounds {
		states[x.state]++
		asked, counted, late, lost = asked+x.asked, counted+x.counted, late+x.late, lost+x.lost
	}
	r.Logf("%d runs; rounds: %v; turns: asked %d, counted %d, late %d, lost %d", len(all), states, asked, counted, late, lost)
	if states["merged"] != len(rounds) {
		r.Errorf("rounds are %v, want all merged", states)
	}
	var there []any
	text := "SELECT count(*) FROM declines WHERE agent IN ("
	for i, id := range r.ids {
		if i < rotationSteady {
			there = append(there, id)
			text += fmt.Sprintf("$%d, ", len(there))
		}
	}
	if n := r.number(strings.TrimSuffix(text, ", ")+")", there...); n > 0 {
		r.Errorf("agents that were never away lost %d turns", n)
	}
}
