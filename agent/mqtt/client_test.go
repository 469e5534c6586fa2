package mqtt

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/internal/testkit"
)

const meterTopic = "meters/a"

var meter = Source{Client: "a", Topic: meterTopic, Value: "e", Unit: "kWh", Time: "t"}

// dated returns a message with its own time, and its line in a journal.
func dated(i int) (payload, line string) {
	return fmt.Sprintf(`{"e":%d.5,"t":%d}`, i, 1794700000+i), fmt.Sprintf("a %d %d.500", (1794700000+i)*1000, i)
}

// TestAcknowledgedAfterStored checks that a message that was received but not stored is
// delivered again to the next process, and that a stored message is not delivered again.
func TestAcknowledgedAfterStored(t *testing.T) {
	c := newMosquitto(t, false).config
	c.Sources = []Source{meter, {Client: "b", Topic: "meters/b", Unit: "kWh"}}
	path := filepath.Join(t.TempDir(), "journal")
	first := newJournal(t, path, 0)
	client, stop := start(t, c, first, noForecasts{})
	ready(t, client)
	p := newPeer(t, c)
	payload, line := dated(1)
	p.publish(t, meterTopic, payload, false)
	testkit.Eventually(t, "the first message", func() bool { return client.Status().Messages[Taken] == 1 })
	first.store()
	lost, lostLine := dated(2)
	p.publish(t, meterTopic, lost, false)
	p.publish(t, "meters/b", "7.5", false)
	testkit.Eventually(t, "two more messages", func() bool { return client.Status().Messages[Taken] == 3 })
	stop() // neither message is on disk

	if got := lines(t, path); len(got) != 1 || !got[line] {
		t.Fatalf("stored %v, want %s", got, line)
	}
	away, awayLine := dated(3)
	p.publish(t, meterTopic, away, false)
	p.publish(t, "meters/b", "8.5", false)
	second := newJournal(t, path, 0)
	client, _ = start(t, c, second, noForecasts{})
	ready(t, client)
	p.publish(t, "meters/b", "9.5", false)
	testkit.Eventually(t, "the messages", func() bool { m := client.Status().Messages; return m[Taken] == 3 && m[Undated] == 2 })
	second.store()
	got := lines(t, path)
	if !got[line] || !got[lostLine] || !got[awayLine] || len(got) != 4 {
		t.Errorf("stored %v", got)
	}
	fresh := 0
	for l := range got {
		if strings.HasPrefix(l, "b ") && strings.HasSuffix(l, " 9.500") {
			fresh++
		}
	}
	if fresh != 1 {
		t.Errorf("the values of b without a time are %v; only 9.5 has a known time", got)
	}
}

// TestRetained checks that a message that the broker has retained is accepted only with its
// own time.
func TestRetained(t *testing.T) {
	c := Config{Broker: embedded(t), Sources: []Source{meter, {Client: "b", Topic: "meters/b", Unit: "kWh"}}}
	p := newPeer(t, c)
	payload, line := dated(1)
	p.publish(t, meterTopic, payload, true)
	p.publish(t, "meters/b", "7.5", true)
	path := filepath.Join(t.TempDir(), "journal")
	j := newJournal(t, path, 10*time.Millisecond)
	client, _ := start(t, c, j, noForecasts{})
	testkit.Eventually(t, "both messages", func() bool { m := client.Status().Messages; return m[Taken] >= 1 && m[Undated] >= 1 })
	testkit.Eventually(t, "the journal", func() bool { return lines(t, path)[line] })
	// The agent accepts a new message that has the retained flag. QoS 1 may deliver earlier
	// messages again.
	p.publish(t, "meters/b", "8.5", true)
	testkit.Eventually(t, "the new message", func() bool {
		return slices.ContainsFunc(slices.Collect(maps.Keys(lines(t, path))), func(l string) bool { return strings.HasSuffix(l, " 8.500") })
	})
}

// TestStoreFails checks that messages are delivered again after they could not be stored.
func TestStoreFails(t *testing.T) {
	c := Config{Broker: embedded(t), Sources: []Source{meter}}
	path := filepath.Join(t.TempDir(), "journal")
	j := newJournal(t, path, 20*time.Millisecond)
	j.mu.Lock()
	j.fail = errors.New("no space left on device")
	j.mu.Unlock()
	client, _ := start(t, c, j, noForecasts{})
	ready(t, client)
	payload, line := dated(1)
	newPeer(t, c).publish(t, meterTopic, payload, false)
	testkit.Eventually(t, "two deliveries", func() bool { return client.Status().Messages[Taken] >= 2 })
	j.mu.Lock()
	j.fail = nil
	j.mu.Unlock()
	testkit.Eventually(t, "the journal", func() bool { return lines(t, path)[line] })
}

// TestSetSources checks that topics change without a new connection.
func TestSetSources(t *testing.T) {
	c := Config{Broker: embedded(t), Sources: []Source{meter}}
	j := newJournal(t, filepath.Join(t.TempDir(), "journal"), 10*time.Millisecond)
	client, _ := start(t, c, j, noForecasts{})
	ready(t, client)
	if err := client.SetSources([]Source{{Client: "b", Topic: "meters/b", Unit: "kWh"}}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the subscription", func() bool {
		client.mu.Lock()
		defer client.mu.Unlock()
		return client.topics["meters/b"]
	})
	p := newPeer(t, c)
	payload, _ := dated(1)
	p.publish(t, meterTopic, payload, false)
	p.publish(t, "meters/b", "1", false)
	testkit.Eventually(t, "the message", func() bool { return client.Status().Messages[Taken] == 1 })
	if m := client.Status().Messages; m[UnknownTopic] != 0 {
		t.Errorf("%d messages of a topic that was left", m[UnknownTopic])
	}
}

// TestBadBrokers checks the errors for brokers that cannot be used.
func TestBadBrokers(t *testing.T) {
	for _, x := range []struct{ name, answer, want string }{
		{"MQTT 3", "\x20\x02\x00\x01", "does not support MQTT 5"},
		{"a refusal of version 5", "\x20\x03\x00\x84\x00", "does not support MQTT 5"},
		{"an end", "", "without an answer"},
		{"a password", "\x20\x03\x00\x86\x00", "refused the user name or password"},
		{"another reason", "\x20\x03\x00\x97\x00", "reason 0x97"},
		{"a huge packet", "\x20\xff\xff\xff\x7f", "packet of 268435455 bytes"},
	} {
		t.Run(x.name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					_, _ = conn.Read(make([]byte, 1000))
					_, _ = conn.Write([]byte(x.answer))
					_ = conn.Close()
				}
			}()
			c := Config{Broker: "mqtt://" + l.Addr().String()}
			if err := Check(context.Background(), c); err == nil || !strings.Contains(err.Error(), x.want) {
				t.Errorf("error %v, want %s", err, x.want)
			}
			client, _ := start(t, c, newJournal(t, filepath.Join(t.TempDir(), "j"), 0), noForecasts{})
			testkit.Eventually(t, "the problem", func() bool { return strings.Contains(client.Status().Problem, x.want) })
		})
	}
}

func TestConfigMistakes(t *testing.T) {
	for _, x := range []struct {
		config Config
		want   string
	}{
		{Config{}, "write mqtt://HOST"},
		{Config{Broker: "http://b", Agent: "a"}, "write mqtt://HOST"},
		{Config{Broker: "mqtt://u:p@b", Agent: "a"}, "contains a user"},
		{Config{Broker: "mqtt://b"}, "has no name"},
		{Config{Broker: "mqtt://b", Agent: "a", Prefix: "a/+"}, "must not contain + or #"},
		{Config{Broker: "mqtt://b", Agent: "a", Sources: []Source{{Client: "a", Topic: "#"}}}, "wildcard"},
	} {
		if _, err := New(x.config, nil, nil); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%+v: error %v, want %s", x.config, err, x.want)
		}
	}
}

// TestLimited checks the limit on packets for every way to divide the stream.
func TestLimited(t *testing.T) {
	good := "\x20\x03\x00\x00\x00" + "\x30\x80\x01" + strings.Repeat("x", 128) + "\xd0\x00"
	for size := 1; size < len(good); size++ {
		a, b := net.Pipe()
		go func() {
			for i := 0; i < len(good); i += size {
				_, _ = b.Write([]byte(good[i:min(i+size, len(good))]))
			}
			_, _ = b.Write([]byte("\x30\xff\xff\x7f")) // 2 MB
			_ = b.Close()
		}()
		l, total := &limited{Conn: a}, 0
		for {
			n, err := l.Read(make([]byte, 50))
			if total += n; err != nil {
				if !strings.Contains(err.Error(), "at most") || total > len(good)+3 {
					t.Errorf("cut into %d bytes: %v after %d bytes", size, err, total)
				}
				break
			}
		}
		_ = a.Close()
	}
}
