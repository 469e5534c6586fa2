package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"loadstar/internal/freeport"
)

func runChild(t *testing.T, c NodeConfig) *child {
	t.Helper()
	text, err := json.Marshal(struct {
		NodeConfig
		Ready *int `json:",omitempty"` // hides NodeConfig.Ready, a func, which cannot be encoded
	}{NodeConfig: c})
	if err != nil {
		t.Fatal(err)
	}
	p := startChild(t, "node", "NODE="+string(text))
	if !p.lines.Scan() {
		t.Fatalf("node %s does not start", c.Name)
	}
	return p
}

// cluster is three nodes, each in its own process.
type cluster struct {
	configs []NodeConfig
	nodes   []*child
	urls    []string
}

func startCluster(t *testing.T) *cluster {
	c := &cluster{}
	dir := t.TempDir()
	var routes []string
	for range 3 {
		routes = append(routes, freeport.ForTest(t))
	}
	for i := range 3 {
		name := fmt.Sprint("n", i)
		c.configs = append(c.configs, NodeConfig{
			Name: name, Dir: filepath.Join(dir, name), Listen: freeport.ForTest(t), ClusterListen: routes[i], Routes: routes,
		})
		c.urls = append(c.urls, "nats://"+c.configs[i].Listen)
		c.nodes = append(c.nodes, runChild(t, c.configs[i]))
	}
	return c
}

// leader returns the index of the node that leads the stream.
func (c *cluster) leader(t *testing.T, b *Bus) int {
	t.Helper()
	at := -1
	eventually(t, "the stream has a leader", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s, err := b.js.Stream(ctx, streamName)
		if err != nil {
			return false
		}
		info := s.CachedInfo()
		if info.Cluster == nil || info.Cluster.Leader == "" || len(info.Cluster.Replicas) != 2 {
			return false
		}
		for i, n := range c.configs {
			if n.Name == info.Cluster.Leader {
				at = i
			}
		}
		return at >= 0
	})
	return at
}

// Every accepted result is delivered even if nodes of the cluster are killed: first the
// leader, then all nodes at once. Publishers wait until the cluster is available again.
func TestClusterLosesNothing(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	b, err := Open(t.Context(), Config{URLs: c.urls, AckWait: 10 * time.Second}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer shut(t, b)

	// Without faults, results arrive in full batches and each is delivered once.
	for i := range 100 {
		publish(t, b, fmt.Sprint("batch/", i), payload(fmt.Sprint("batch/", i), 20<<10))
	}
	takes := 0
	for n := 0; n < 100; takes++ {
		got := take(t, b, 64, patient)
		for _, d := range got {
			if d.Deliveries() != 1 {
				t.Errorf("%s was delivered %d times", d.ID(), d.Deliveries())
			}
			if err := d.Done(); err != nil {
				t.Fatal(err)
			}
		}
		n += len(got)
	}
	if takes > 10 { // it takes two calls on an idle machine
		t.Errorf("%d batches of 64 for 100 results", takes)
	}
	depthIs(t, b, 0, 0)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	accepted := map[string]bool{}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(accepted)
	}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				id := fmt.Sprintf("%d/%d", w, i)
				try, stop := context.WithTimeout(t.Context(), patient)
				err := b.Publish(try, id, payload(id, 20<<10))
				stop()
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				accepted[id] = true
				mu.Unlock()
			}
		})
	}
	goesOn := func() {
		t.Helper()
		before := count()
		eventually(t, "results are accepted", func() bool { return count() > before+50 })
	}
	goesOn()
	at := c.leader(t, b)
	c.nodes[at].kill()
	goesOn() // two of three nodes are enough
	c.nodes[at] = runChild(t, c.configs[at])
	goesOn()
	for _, n := range c.nodes {
		n.kill()
	}
	if err := b.Publish(t.Context(), "x", make([]byte, 17<<20)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v", err)
	}
	begin := time.Now()
	if got, err := b.Take(t.Context(), 1, 0, time.Second); err == nil || len(got) > 0 || time.Since(begin) < time.Second {
		t.Errorf("%d results, %v, after %v, without a server", len(got), err, time.Since(begin))
	}
	if err := b.Healthy(); err == nil {
		t.Error("healthy without a server")
	}
	for i := range c.nodes {
		c.nodes[i] = runChild(t, c.configs[i])
	}
	goesOn()
	cancel()
	wg.Wait()
	eventually(t, "the bus is healthy again", func() bool { return b.Healthy() == nil })

	seen := map[string]bool{}
	for end := time.Now().Add(patient); time.Now().Before(end); {
		got, err := b.Take(t.Context(), 64, 0, time.Second)
		if err != nil {
			t.Log(err)
		}
		for _, d := range got {
			if !bytes.Equal(d.Data(), payload(d.ID(), 20<<10)) {
				t.Errorf("%s is corrupt", d.ID())
			}
			seen[d.ID()] = true
			_ = d.Done()
		}
		if len(got) == 0 {
			if waiting, taken, err := b.Depth(t.Context()); err == nil && waiting+taken == 0 {
				break
			}
		}
	}
	lost := 0
	for id := range accepted {
		if !seen[id] {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d accepted results are lost", lost, len(accepted))
	}
	t.Logf("%d accepted, %d delivered", len(accepted), len(seen))
}

// A process may open the bus before the cluster is running.
func TestClusterStartsLater(t *testing.T) {
	t.Parallel()
	n := NodeConfig{Name: "n", Dir: t.TempDir(), Listen: freeport.ForTest(t), MaxMessage: 1 << 20}
	c := Config{URLs: []string{"nats://" + n.Listen}, Replicas: 1, MaxMessage: 1 << 20}
	type opened struct {
		b   *Bus
		err error
	}
	done := make(chan opened, 1)
	go func() {
		b, err := Open(t.Context(), c, slog.New(slog.DiscardHandler))
		done <- opened{b, err}
	}()
	time.Sleep(300 * time.Millisecond)
	node(t, n)
	o := <-done
	if o.err != nil {
		t.Fatal(o.err)
	}
	publish(t, o.b, "a", []byte("x"))
	shut(t, o.b)

	c.MaxMessage = 2 << 20
	if _, err := Open(t.Context(), c, logOf(t)); err == nil || !strings.Contains(err.Error(), "max_payload") {
		t.Errorf("a server for smaller messages: %v", err)
	}
	c.MaxMessage, c.Replicas = 1<<20, 3
	if _, err := Open(t.Context(), c, logOf(t)); err == nil || !strings.Contains(err.Error(), "replicas") {
		t.Errorf("three replicas on one server: %v", err)
	}
}
