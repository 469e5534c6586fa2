package demo

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"loadstar/agent/command"
	"loadstar/agent/identity"
	"loadstar/internal/mtls"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server"
)

// TestKeep checks that the commands that the demo prints continue with a kept folder: the
// server has the release, and an agent checks in and knows its buildings.
func TestKeep(t *testing.T) {
	if testing.Short() {
		t.Skip("trains a fleet")
	}
	c := Defaults()
	c.Clients, c.Agents, c.Rounds, c.Port, c.Keep = 8, 4, 3, 0, filepath.Join(t.TempDir(), "kept files")
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Continue) != 1+c.Agents || !strings.Contains(r.Continue[0], `/kept files/server" --listen 127.0.0.1:`) ||
		!strings.HasSuffix(r.Continue[1], `/kept files/agent-1/agent.yaml"`) {
		t.Fatalf("commands %q", r.Continue)
	}
	_, rest, _ := strings.Cut(r.Continue[0], "--listen ")
	listen, _, _ := strings.Cut(rest, " ")
	ctx, cancel := context.WithCancel(t.Context())
	log := slog.New(slog.DiscardHandler)
	ready, served, agents := make(chan string, 1), make(chan error, 1), make(chan error, 1)
	go func() {
		served <- server.Run(ctx, server.Config{
			Dir: filepath.Join(c.Keep, "server"), Roles: server.Roles(), Listen: listen, Hosts: []string{"localhost", "127.0.0.1"},
			AgentClients: 10_000, Certificates: time.Hour, Lease: time.Minute, Lead: 10 * time.Second,
			Poll: pollEvery, MaxPoll: time.Minute, Rate: 500, Log: log, Ready: func(address string) { ready <- address },
		})
	}()
	select {
	case <-ready:
	case err := <-served:
		t.Fatal(err)
	}
	began := time.Now().Unix()
	dir := filepath.Join(c.Keep, "agent-1")
	go func() {
		agents <- command.Run(ctx, command.Options{Config: filepath.Join(dir, configFile), Log: log, Out: io.Discard})
	}()
	me, err := identity.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	operator, err := mtls.ReadFolder(filepath.Join(c.Keep, "server", "operator"))
	if err != nil {
		t.Fatal(err)
	}
	api := v1.NewOperatorServiceClient(mtls.Client(mtls.Transport(operator.TLS())), me.Server())
	for seen := false; !seen; time.Sleep(pollEvery) {
		all, err := api.ListAgents(ctx, &v1.ListAgentsRequest{Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range all.Agents {
			seen = seen || a.Id == me.ID() && a.Seen > began // both times are in whole seconds
		}
		select {
		case err := <-agents:
			t.Fatalf("the agent has ended: %v", err)
		default:
		}
	}
	answer, err := http.Get(r.AgentPages[0] + "v1/clients")
	for ; err != nil; answer, err = http.Get(r.AgentPages[0] + "v1/clients") {
		select {
		case ended := <-agents:
			t.Fatalf("the agent has ended: %v; %v", ended, err)
		case <-time.After(pollEvery): // the agent can check in before its page is served
		}
	}
	said, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close() // the response was read completely
	if err != nil || strings.Count(string(said), `"newest_reading":"2026-05-01T05:00:00Z"`) != 2 || !strings.Contains(string(said), `"generated":true`) {
		t.Errorf("the agent's clients are %s, %v", said, err)
	}
	releases, err := api.ListReleases(ctx, &v1.ListReleasesRequest{})
	if err != nil || len(releases.Releases) != 1 {
		t.Errorf("releases %v, %v", releases, err)
	}
	cancel()
	if err := <-agents; err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}
