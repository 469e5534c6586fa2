package bus

import (
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"loadstar/internal/finding"
	"loadstar/internal/finding/findingtest"
	"loadstar/internal/freeport"
)

// monitored runs a NATS server with a monitoring port and returns its address and that of
// the port.
func monitored(t *testing.T, sync bool) (at, monitor string) {
	t.Helper()
	o, err := NodeConfig{Name: "n", Dir: t.TempDir(), Listen: freeport.ForTest(t)}.options()
	if err != nil {
		t.Fatal(err)
	}
	host, port, err := listen(freeport.ForTest(t), false)
	if err != nil {
		t.Fatal(err)
	}
	o.HTTPHost, o.HTTPPort, o.SyncAlways = host, port, sync
	s, _, lock, err := start(t.Context(), o, logOf(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
		lock.Close()
	})
	return fmt.Sprintf("nats://%s", net.JoinHostPort(o.Host, fmt.Sprint(o.Port))), fmt.Sprintf("http://%s", net.JoinHostPort(host, fmt.Sprint(port)))
}

// The setting that makes NATS sync every message is seen on the monitoring port and nowhere
// else.
func TestSyncIsSeen(t *testing.T) {
	lazy, lazyPort := monitored(t, false)
	_, goodPort := monitored(t, true)
	b := open(t, Config{URLs: []string{lazy}, Replicas: 1})
	for _, k := range []struct {
		sync  Sync
		level finding.Level
		text  string
	}{
		{Sync{}, finding.Warn, "a client cannot see"},
		{Sync{Stated: true}, finding.OK, "--nats-synced says"},
		{Sync{Monitors: []string{goodPort}}, finding.OK, "all 1 NATS servers"},
		{Sync{Monitors: []string{goodPort, lazyPort + "/"}}, finding.Warn, "before they are on disk"},
		{Sync{Monitors: []string{lazyPort}, Stated: true}, finding.Warn, "before they are on disk"},
		{Sync{Monitors: []string{"http://127.0.0.1:1"}}, finding.Warn, "does not answer"},
	} {
		findingtest.Expect(t, b.Settings(t.Context(), k.sync), "queue's sync", k.level, k.text)
		findingtest.Expect(t, Look(t.Context(), Config{URLs: []string{lazy}, Replicas: 1}, k.sync), "queue's sync", k.level, k.text)
	}
	all := b.Settings(t.Context(), Sync{})
	findingtest.Expect(t, all, "queue", finding.OK, "0 messages wait")
	findingtest.Expect(t, all, "queue's stream", finding.OK, "kept in files")
	findingtest.Expect(t, all, "queue's nodes", finding.OK, "on 1 server")
	publish(t, b, "a", []byte("x"))
	findingtest.Expect(t, Look(t.Context(), Config{URLs: []string{lazy}}, Sync{}), "queue", finding.OK, "1 messages wait")
	findingtest.Expect(t, Look(t.Context(), Config{URLs: []string{"nats://127.0.0.1:1"}}, Sync{}), "queue", finding.Fail, "cannot connect")
}

// Look finds a stream with other settings than ours, and makes none.
func TestLookAtStream(t *testing.T) {
	at, _ := monitored(t, true)
	c := Config{URLs: []string{at}, Replicas: 1}
	findingtest.Expect(t, Look(t.Context(), c, Sync{}), "queue's stream", finding.Warn, "there is no stream")
	findingtest.Expect(t, Look(t.Context(), c, Sync{}), "queue's stream", finding.Warn, "there is no stream") // the first call made none
	b := open(t, c)
	if err := b.js.DeleteStream(t.Context(), streamName); err != nil {
		t.Fatal(err)
	}
	if _, err := b.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: streamName, Subjects: []string{resultSubject}, Storage: jetstream.MemoryStorage}); err != nil {
		t.Fatal(err)
	}
	findingtest.Expect(t, Look(t.Context(), c, Sync{}), "queue's stream", finding.Fail, "storage Memory")
}

func TestEmbeddedSettings(t *testing.T) {
	b := open(t, Config{Dir: t.TempDir()})
	all := b.Settings(t.Context(), Sync{})
	findingtest.Expect(t, all, "queue's sync", finding.OK, "syncs every message")
	findingtest.Expect(t, all, "queue", finding.OK, "0 messages")
}

// A node that is down is seen, and a cluster of which only one server is named.
func TestNodesAreSeen(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three processes")
	}
	c := startCluster(t)
	b, err := Open(t.Context(), Config{URLs: c.urls}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer shut(t, b)
	at := c.leader(t, b)
	eventually(t, "all nodes follow", func() bool {
		return findingtest.Get(t, b.Settings(t.Context(), Sync{}), "queue's nodes").Level == finding.OK
	})
	findingtest.Expect(t, b.Settings(t.Context(), Sync{}), "queue's nodes", finding.OK, "all 3 nodes")
	down := (at + 1) % 3
	c.nodes[down].kill()
	eventually(t, "the node is missed", func() bool {
		all := b.Settings(t.Context(), Sync{})
		for _, f := range all {
			if f.Check == "queue's nodes" {
				return f.Level == finding.Warn && strings.Contains(f.Text, c.configs[down].Name)
			}
		}
		return false
	})
	var one finding.List
	lookNodes(&one, &jetstream.StreamInfo{Config: jetstream.StreamConfig{Replicas: 1}}, 3)
	findingtest.Expect(t, one, "queue's nodes", finding.Warn, "on 1 of 3 servers")
}

func TestLossyVersions(t *testing.T) {
	for version, want := range map[string]bool{
		"2.9.25": true, "2.10.22": true, "2.10.23": true, "2.12.1": true, "2.12.2": true, "2.12.3": false, "2.12.10": false, "2.15.2": false, "3.0.0": false, "strange": false,
		"2.12.3-RC.1": false,
	} {
		if got := loses(version) != ""; got != want {
			t.Errorf("%s: %q", version, loses(version))
		}
	}
	if a, b := loses("2.10.22"), loses("2.12.1"); a == b {
		t.Errorf("the same reason: %s", a)
	}
}
