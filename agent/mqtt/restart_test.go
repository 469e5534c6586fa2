package mqtt

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"
	broker "github.com/mochi-mqtt/server/v2"

	"loadstar/internal/testkit"
)

// TestBrokerRestart restarts a broker with TLS and passwords while a meter publishes.
// Everything that the broker acknowledged to the meter must be stored.
func TestBrokerRestart(t *testing.T) {
	m := newMosquitto(t, true)
	c := m.config
	c.Sources = []Source{meter}
	path := filepath.Join(t.TempDir(), "journal")
	client, _ := start(t, c, newJournal(t, path, 50*time.Millisecond), noForecasts{})
	ready(t, client)
	stop := sender(t, c, dated, 1<<30, 500*time.Microsecond)
	for range testkit.Pick(2, 20) {
		time.Sleep(time.Duration(100+rand.IntN(300)) * time.Millisecond)
		m.restart(t, time.Duration(rand.IntN(300))*time.Millisecond)
	}
	time.Sleep(300 * time.Millisecond)
	sent := stop()
	complete(t, path, sent)
	t.Logf("%d messages; %v", sent, client.Status().Messages)
}

// sender publishes at most n messages, until stop is called. stop returns the number of
// messages that the broker has acknowledged. It first waits for a hundred of them, because a
// busy machine is slow.
func sender(t *testing.T, c Config, message func(i int) (payload, line string), n int, pause time.Duration) (stop func() int) {
	t.Helper()
	p := newPeer(t, c)
	var end atomic.Bool
	var wg sync.WaitGroup
	var sent atomic.Int64
	wg.Go(func() {
		for !end.Load() && sent.Load() < int64(n) {
			payload, _ := message(int(sent.Load()))
			ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
			_, err := p.Publish(ctx, &paho.Publish{QoS: 1, Topic: meterTopic, Payload: []byte(payload)})
			cancel()
			if err != nil { // send it again, because it was not acknowledged
				time.Sleep(5 * time.Millisecond)
				continue
			}
			sent.Add(1)
			time.Sleep(pause)
		}
	})
	return func() int {
		testkit.Eventually(t, "100 acknowledged messages", func() bool { return sent.Load() >= 100 })
		end.Store(true)
		wg.Wait()
		return int(sent.Load())
	}
}

// complete waits until a journal has all messages.
func complete(t *testing.T, path string, sent int) {
	t.Helper()
	missing := ""
	testkit.Eventually(t, "the messages", func() bool {
		got := lines(t, path)
		for i := range sent {
			if _, line := dated(i); !got[line] {
				missing = fmt.Sprintf("message %d of %d", i, sent)
				return false
			}
		}
		missing = ""
		return true
	})
	if missing != "" {
		t.Error(missing)
	}
}

// TestWindow checks that messages flow even if the intake stores only when the window is full.
// Mosquitto states a small window, but sends as many messages as the agent allows.
func TestWindow(t *testing.T) {
	for _, x := range []struct {
		name    string
		lines   []string
		flushes int // at most
	}{
		{"default", nil, 12},
		{"large", []string{"max_inflight_messages 1000"}, 12},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := newMosquitto(t, false, x.lines...).config
			// Messages without a value are acknowledged immediately, but only after earlier
			// ones.
			c.Sources = []Source{meter}
			path := filepath.Join(t.TempDir(), "journal")
			j := newJournal(t, path, 0)
			client, _ := start(t, c, j, noForecasts{})
			ready(t, client)
			p := newPeer(t, c)
			const n = 1000
			for i := range n {
				payload, _ := dated(i)
				if i%10 > 0 {
					payload = `{"state":"ON"}`
				}
				p.publish(t, meterTopic, payload, false)
			}
			testkit.Eventually(t, "all messages", func() bool { m := client.Status().Messages; return m[Taken] == n/10 && m[NoValue] == n*9/10 })
			j.mu.Lock()
			defer j.mu.Unlock()
			if j.flushes > x.flushes {
				t.Errorf("%d flushes for %d messages", j.flushes, n)
			}
			t.Logf("%d flushes", j.flushes)
		})
	}
}

// TestRefusals checks the errors for a wrong password, a wrong certificate and a wrong
// name.
func TestRefusals(t *testing.T) {
	m := newMosquitto(t, true)
	if err := Check(context.Background(), m.config); err != nil {
		t.Error(err)
	}
	wrong := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(wrong, []byte("guess"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		name, want string
		change     func(*Config)
	}{
		{"password", "authorize", func(c *Config) { c.PasswordFile = wrong }},
		{"no password file", "cannot read the broker's password", func(c *Config) { c.PasswordFile += "x" }},
		{"name", "certificate is valid for broker.test, not other.test", func(c *Config) { c.ServerName = "other.test" }},
		{"authority", "certificate signed by unknown authority", func(c *Config) { c.CAFile = "" }},
		{"no certificates", "contains no certificates", func(c *Config) { c.CAFile = wrong }},
		{"no TLS", "without an answer", func(c *Config) { c.Broker = "mqtt://" + m.address }},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := m.config
			x.change(&c)
			if err := Check(context.Background(), c); err == nil || !strings.Contains(err.Error(), x.want) {
				t.Errorf("error %v, want %s", err, x.want)
			}
		})
	}
}

// TestSmallWindow checks that a broker's own small window does not stop the flow.
func TestSmallWindow(t *testing.T) {
	limits := broker.NewDefaultServerCapabilities()
	limits.ReceiveMaximum, limits.MaximumInflight = 8, 8
	c := Config{Broker: embeddedWith(t, limits), Sources: []Source{meter}}
	path := filepath.Join(t.TempDir(), "journal")
	client, _ := start(t, c, newJournal(t, path, 0), noForecasts{})
	ready(t, client)
	p := newPeer(t, c)
	send := func(from, to int) {
		for i := from; i < to; i++ {
			payload, _ := dated(i)
			if i%4 == 3 {
				payload = `{"state":"ON"}` // this message also fills the window
			}
			p.publish(t, meterTopic, payload, false)
		}
		_, last := dated(to - 2)
		testkit.Eventually(t, "the journal", func() bool { return lines(t, path)[last] })
	}
	begin := time.Now()
	send(0, 8)
	if d := time.Since(begin); d < 300*time.Millisecond {
		t.Errorf("stored after %v: the window was not known yet", d)
	}
	client.mu.Lock()
	if client.flow.wide || client.flow.flushAt() != 6 {
		t.Errorf("%+v", client.flow)
	}
	client.mu.Unlock()
	time.Sleep(200 * time.Millisecond) // this broker drops messages that do not fit into the window
	send(8, 14)                        // from now on, three quarters are enough
}
