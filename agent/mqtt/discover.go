package mqtt

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/paho"

	"loadstar/agent/readings"
)

// Found is a topic that looks like a meter's.
type Found struct {
	Topic string
	// Values describes the received values, such as energy 31.02 kWh.
	Values []string
	Source Source
}

// maxFound limits the meters that Discover remembers, and maxSeen the messages that it examines.
const (
	maxFound = 256
	maxSeen  = 20000
)

// Check connects to the broker once and returns the reason for a failure, or nil.
func Check(ctx context.Context, c Config) error {
	if _, err := NewDecoder(c.Sources); err != nil {
		return err
	}
	return c.visit(ctx, nil, func(*autopaho.ConnectionManager) error { return nil })
}

// Discover listens to all topics for some time and returns those that look like meters,
// sorted by topic. It publishes nothing, so it needs no permission to write.
func Discover(ctx context.Context, c Config, listen time.Duration) ([]Found, error) {
	var mu sync.Mutex
	found := map[string]Found{}
	seen := 0
	receive := func(r paho.PublishReceived) (bool, error) {
		mu.Lock()
		defer mu.Unlock()
		if seen++; seen > maxSeen || strings.HasPrefix(r.Packet.Topic, "$") || len(r.Packet.Topic) > maxTopic {
			return true, nil
		}
		for _, f := range recognize(r.Packet.Topic, r.Packet.Payload) {
			key := f.Topic + "\n" + f.Source.Value
			if _, ok := found[key]; ok || len(found) < maxFound {
				found[key] = f
			}
		}
		return true, nil
	}
	err := c.visit(ctx, receive, func(m *autopaho.ConnectionManager) error {
		ack, err := m.Subscribe(ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: "#"}}})
		if err != nil && ack != nil {
			return errors.New("the broker does not allow this user to subscribe to all topics (#); allow it in the broker's access rules, or write the topics into agent.yaml by hand")
		} else if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(listen):
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	mu.Lock()
	defer mu.Unlock()
	list := make([]Found, 0, len(found))
	used := map[string]bool{}
	for _, key := range slices.Sorted(maps.Keys(found)) {
		f := found[key]
		for n, name := 2, f.Source.Client; used[f.Source.Client]; n++ {
			f.Source.Client = name + "-" + strconv.Itoa(n)
		}
		used[f.Source.Client] = true
		list = append(list, f)
	}
	return list, nil
}

// visit connects with a session that ends with the connection, and calls f.
func (c Config) visit(ctx context.Context, receive func(paho.PublishReceived) (bool, error), f func(*autopaho.ConnectionManager) error) error {
	c.Agent = cmp.Or(c.Agent, "visit")
	if err := c.complete(); err != nil {
		return err
	}
	u, err := url.Parse(c.Broker)
	if err != nil {
		return err
	}
	if receive == nil {
		receive = func(paho.PublishReceived) (bool, error) { return true, nil }
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 1)
	m, err := autopaho.NewConnection(ctx, autopaho.ClientConfig{
		ServerUrls: []*url.URL{u}, KeepAlive: keepAlive, CleanStartOnInitialConnection: true,
		ReconnectBackoff: func(int) time.Duration { return 0 },
		AttemptConnection: func(ctx context.Context, _ autopaho.ClientConfig, _ *url.URL) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			return c.dial(ctx)
		},
		ConnectPacketBuilder: func(p *paho.Connect, _ *url.URL) (*paho.Connect, error) {
			secret, err := c.password()
			if err != nil {
				return nil, err
			}
			c.credentials(p, secret)
			size, receive := uint32(maxPacket), uint16(window)
			p.Properties = &paho.ConnectProperties{MaximumPacketSize: &size, ReceiveMaximum: &receive}
			return p, nil
		},
		OnConnectError: func(err error) {
			select {
			case failed <- explain(err):
			default:
			}
			cancel()
		},
		OnConnectionDown: func() bool { return false },
		ClientConfig: paho.ClientConfig{
			ClientID:          "loadstar-visit-" + rand.Text()[:10],
			OnPublishReceived: []func(paho.PublishReceived) (bool, error){receive},
		},
	})
	if err != nil {
		return err
	}
	if err := m.AwaitConnection(ctx); err != nil {
		<-m.Done()
		select {
		case err = <-failed:
		default:
		}
		return fmt.Errorf("cannot connect to %s: %w", c.Broker, err)
	}
	err = f(m)
	end, stop := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer stop()
	_ = m.Disconnect(end) // the connection may already be broken
	return err
}

// recognize returns the meters in a message.
func recognize(topic string, payload []byte) []Found {
	var found []Found
	for _, s := range guesses(topic, payload) {
		f := Found{Topic: topic}
		for _, kind := range []string{"counter", "power"} {
			if s.Kind = kind; s.Unit != "" {
				s.Kind = "" // the unit determines it
			}
			d, err := NewDecoder([]Source{s})
			if err != nil {
				continue // the preset has no value of that kind
			}
			samples, outcome := d.Decode(Message{Topic: topic, Payload: payload, Arrived: time.Now()})
			if outcome != Taken {
				continue
			}
			if len(f.Values) == 0 {
				f.Source = s
			}
			text := "power " + strconv.FormatFloat(samples[0].Value*1e3, 'g', 6, 64) + " W"
			if samples[0].Kind == readings.Counter {
				text = "energy " + strconv.FormatFloat(samples[0].Value, 'g', 8, 64) + " kWh"
			}
			if f.Values = append(f.Values, text); s.Kind == "" {
				break
			}
		}
		if len(f.Values) > 0 {
			found = append(found, f)
		}
	}
	return found
}

// convention describes how one kind of device names its topics.
type convention struct {
	levels int // minimum number of levels of a topic
	fits   func(topic) bool
	// sources returns the values to read from a matching topic. The list may be empty.
	sources func(t topic, payload []byte) []Source
}

// conventions are tried in this order, and the first one that matches is used.
var conventions = []convention{
	{3, func(t topic) bool { return t.back(2) == "events" && t.back(1) == "rpc" }, shellyEvents},
	{3, func(t topic) bool { return t.back(2) == "status" }, func(t topic, _ []byte) []Source {
		client := t.back(3)
		if !strings.HasSuffix(t.back(1), ":0") {
			client += "-" + t.back(1)
		}
		return []Source{t.meter(client, "shelly-gen2")}
	}},
	{5, func(t topic) bool {
		return (t.back(3) == "emeter" || t.back(3) == "relay") && (t.back(1) == "total" || t.back(1) == "energy")
	}, func(t topic, _ []byte) []Source {
		if t.back(3) == "emeter" && t.back(1) == "energy" {
			return nil // total has the same value and survives a restart of the device
		}
		client := t.back(4)
		if t.back(2) != "0" {
			client += "-" + t.back(2)
		}
		return []Source{t.meter(client, "shelly-gen1")}
	}},
	{3, func(t topic) bool { return t.back(1) == "SENSOR" }, func(t topic, _ []byte) []Source {
		return []Source{t.meter(t.back(2), "tasmota")}
	}},
	{3, func(t topic) bool { return t.back(3) == "sensor" && t.back(1) == "state" && energyName(t.back(2)) }, func(t topic, _ []byte) []Source {
		s := t.meter(t.back(2), "homeassistant")
		s.Unit = "kWh"
		return []Source{s}
	}},
	{2, func(t topic) bool { return t.levels[0] == "zigbee2mqtt" && t.levels[1] != "bridge" }, func(t topic, _ []byte) []Source {
		return []Source{t.meter(t.back(1), "zigbee2mqtt")}
	}},
}

// topic is the name of a topic with its levels.
type topic struct {
	name   string
	levels []string
}

// back returns a level, counted from the last one, which is 1.
func (t topic) back(i int) string { return t.levels[len(t.levels)-i] }

func (t topic) meter(client, preset string) Source {
	return Source{Client: clean(client), Topic: t.name, Preset: preset}
}

// guesses returns sources that a topic may contain.
func guesses(name string, payload []byte) []Source {
	t := topic{name, strings.Split(name, "/")}
	for _, c := range conventions {
		if len(t.levels) >= c.levels && c.fits(t) {
			return c.sources(t, payload)
		}
	}
	return counters(t, payload)
}

// shellyEvents returns the meters in a message of a Shelly device, at most 16.
func shellyEvents(t topic, payload []byte) []Source {
	doc, _ := parse(payload)
	params, _ := lookup(doc, []string{"params"}).(map[string]any)
	var all []Source
	for _, key := range slices.Sorted(maps.Keys(params)) {
		if strings.Contains(key, "data:") || strings.HasPrefix(key, "switch:") || strings.HasPrefix(key, "pm1:") {
			s := t.meter(t.back(3)+"-"+strings.ReplaceAll(key, ":", "-"), "shelly-gen2")
			s.Value = key
			all = append(all, s)
		}
	}
	return all[:min(len(all), 16)]
}

// counters returns the meter of any other device whose JSON object has a key that usually holds
// a counter.
func counters(t topic, payload []byte) []Source {
	doc, ok := parse(payload[:min(len(payload), maxPayload+1)])
	object, isObject := doc.(map[string]any)
	if !ok || !isObject || len(payload) > maxPayload {
		return nil
	}
	for _, k := range []struct{ key, unit string }{
		{"energy_kwh", "kWh"},
		{"total_kwh", "kWh"},
		{"energy_import_kwh", "kWh"},
		{"total_power_import_kwh", "kWh"},
		{"total_act_energy", "Wh"},
		{"energy_wh", "Wh"},
		{"power_w", "W"},
		{"active_power_w", "W"},
	} {
		if _, ok := object[k.key].(float64); ok {
			s := t.meter(t.back(1), "generic")
			s.Value, s.Unit = k.key, k.unit
			return []Source{s}
		}
	}
	return nil
}

func energyName(name string) bool {
	name = strings.ToLower(name)
	return strings.Contains(name, "energy") || strings.Contains(name, "kwh") || strings.Contains(name, "consumption")
}

// clean converts a level of a topic to a client's name.
func clean(name string) string {
	name = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r) {
			return r
		}
		return '-'
	}, name)
	if name = strings.Trim(name, "-."); name == "" {
		name = "meter"
	}
	return name[:min(len(name), 64)]
}

// Print writes the topics found, with lines for agent.yaml.
func Print(w io.Writer, found []Found) error {
	var b strings.Builder
	if len(found) == 0 {
		b.WriteString("No topic looked like a meter's. Listen longer: some meters report only every few minutes.\n")
	}
	width := 0
	for _, f := range found {
		width = max(width, len(printable(f.Topic)))
	}
	for _, f := range found {
		what := f.Source.Preset
		if f.Source.Preset == "homeassistant" {
			what += ", check the unit"
		}
		fmt.Fprintf(&b, "%-*s  %s -> meter %s (%s)\n", width, printable(f.Topic), strings.Join(f.Values, ", "), f.Source.Client, what)
	}
	if len(found) > 0 {
		b.WriteString("\nLines for agent.yaml:\n\nclients:\n")
	}
	for _, f := range found {
		fmt.Fprintf(&b, "  %s: {source: mqtt, topic: %s, preset: %s", f.Source.Client, strconv.Quote(f.Topic), f.Source.Preset)
		for _, x := range []struct{ key, value string }{{"value", f.Source.Value}, {"kind", f.Source.Kind}, {"unit", f.Source.Unit}} {
			if x.value != "" {
				fmt.Fprintf(&b, ", %s: %s", x.key, strconv.Quote(x.value))
			}
		}
		b.WriteString("}\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// printable prevents control characters in topics from reaching a terminal.
func printable(topic string) string {
	q := strconv.Quote(topic)
	if q == `"`+topic+`"` {
		return topic
	}
	return q
}
