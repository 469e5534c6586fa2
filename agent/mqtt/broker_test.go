package mqtt

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/paho"
	broker "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/hooks/auth"
	"github.com/mochi-mqtt/server/v2/listeners"

	"loadstar/agent/readings"
	"loadstar/internal/testkit"
)

// embedded starts a broker in this process and returns its URL.
func embedded(t *testing.T) string {
	t.Helper()
	return embeddedWith(t, broker.NewDefaultServerCapabilities())
}

func embeddedWith(t *testing.T, capabilities *broker.Capabilities) string {
	t.Helper()
	b := broker.New(&broker.Options{Logger: slog.New(slog.DiscardHandler), Capabilities: capabilities})
	if err := b.AddHook(new(auth.AllowHook), nil); err != nil {
		t.Fatal(err)
	}
	l := listeners.NewTCP(listeners.Config{ID: "t", Address: "127.0.0.1:0"})
	if err := b.AddListener(l); err != nil {
		t.Fatal(err)
	}
	if err := b.Serve(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return "mqtt://" + l.Address()
}

// journal is an intake that appends samples to a file. It writes them on request or at
// intervals.
type journal struct {
	mu      sync.Mutex
	file    *os.File
	waiting []readings.Sample
	done    []func(error)
	adds    int
	flushes int
	fail    error
}

func newJournal(t testing.TB, path string, every time.Duration) *journal {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	j := &journal{file: f}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	if every > 0 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(every):
					j.store()
				}
			}
		})
	}
	t.Cleanup(func() {
		close(stop)
		wg.Wait()
		_ = f.Close()
	})
	return j
}

func (j *journal) Add(samples []readings.Sample, done func(error)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.adds++
	j.waiting = append(j.waiting, samples...)
	j.done = append(j.done, done)
}

func (j *journal) Flush() {
	j.mu.Lock()
	j.flushes++
	j.mu.Unlock()
	go j.store()
}

func (j *journal) store() {
	j.mu.Lock()
	samples, done, err := j.waiting, j.done, j.fail
	j.waiting, j.done = nil, nil
	if err == nil {
		w := bufio.NewWriter(j.file)
		for _, s := range samples {
			fmt.Fprintf(w, "%s %d %.3f\n", s.Client, s.At.UnixMilli(), s.Value)
		}
		err = errors.Join(w.Flush(), j.file.Sync())
	}
	j.mu.Unlock()
	for _, f := range done {
		f(err)
	}
}

// lines returns the distinct lines of a journal.
func lines(t testing.TB, path string) map[string]bool {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	set := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		if strings.HasSuffix(line, "\n") {
			set[strings.TrimSpace(line)] = true
		}
	}
	return set
}

// noForecasts has nothing to publish.
type noForecasts struct{}

func (noForecasts) Clients() []string                { return nil }
func (noForecasts) Forecast(string) (Forecast, bool) { return Forecast{}, false }

// start runs a client until the test ends or stop is called.
func start(t testing.TB, c Config, intake Intake, f Forecasts) (client *Client, stop func()) {
	t.Helper()
	if c.Agent == "" {
		c.Agent = "gw"
	}
	c.retry, c.probe = 200*time.Millisecond, 300*time.Millisecond
	if testing.Verbose() {
		c.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	client, err := New(c, intake, f)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := client.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	stop = func() { cancel(); wg.Wait() }
	t.Cleanup(stop)
	return client, stop
}

// ready waits until a client has subscribed and has received its backlog.
func ready(t testing.TB, c *Client) {
	t.Helper()
	testkit.Eventually(t, "the subscriptions", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.link != nil && !c.link.backlog && len(c.topics) >= len(c.decoder.sources)+2
	})
}

// peer is another program that is connected to the broker.
type peer struct {
	*autopaho.ConnectionManager
	mu       sync.Mutex
	received map[string]*paho.Publish // newest message by topic
}

func newPeer(t testing.TB, c Config, filters ...string) *peer {
	t.Helper()
	p := &peer{received: map[string]*paho.Publish{}}
	u, err := url.Parse(c.Broker)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	p.ConnectionManager, err = autopaho.NewConnection(context.Background(), autopaho.ClientConfig{
		ServerUrls: []*url.URL{u}, KeepAlive: 30, CleanStartOnInitialConnection: true,
		ReconnectBackoff:  func(int) time.Duration { return 50 * time.Millisecond },
		AttemptConnection: func(ctx context.Context, _ autopaho.ClientConfig, _ *url.URL) (net.Conn, error) { return c.dial(ctx) },
		ConnectPacketBuilder: func(p *paho.Connect, _ *url.URL) (*paho.Connect, error) {
			secret, err := c.password()
			c.credentials(p, secret)
			return p, err
		},
		ClientConfig: paho.ClientConfig{
			ClientID: "peer-" + rand.Text(), PacketTimeout: 5 * time.Second,
			OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(r paho.PublishReceived) (bool, error) {
				p.mu.Lock()
				p.received[r.Packet.Topic] = r.Packet
				p.mu.Unlock()
				return true, nil
			}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AwaitConnection(ctx); err != nil {
		t.Fatal(err)
	}
	var all paho.Subscribe
	for _, f := range filters {
		all.Subscriptions = append(all.Subscriptions, paho.SubscribeOptions{Topic: f, QoS: 1})
	}
	if len(filters) > 0 {
		if _, err := p.Subscribe(ctx, &all); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = p.Disconnect(ctx)
	})
	return p
}

// got returns the newest payload of a topic.
func (p *peer) got(topic string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.received[topic]; m != nil {
		return string(m.Payload)
	}
	return ""
}

// publish sends a message and waits for the acknowledgement.
func (p *peer) publish(t testing.TB, topic, payload string, retain bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if _, err := p.Publish(ctx, &paho.Publish{QoS: 1, Topic: topic, Payload: []byte(payload), Retain: retain}); err != nil {
		t.Fatal(err)
	}
}
