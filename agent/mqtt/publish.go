package mqtt

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"loadstar/forecast/issue"
)

// level makes a name usable as a level of a topic and as an ID in Home Assistant, which
// allows letters, digits, _ and -. Changed names get a hash, so different names stay
// different.
func level(name string) string {
	safe := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, name)
	if safe == name && safe != "" && len(safe) <= 64 {
		return safe
	}
	sum := sha256.Sum256([]byte(name))
	return safe[:min(len(safe), 55)] + "-" + hex.EncodeToString(sum[:4])
}

// base is the common prefix of the agent's topics.
func (c *Client) base() string                      { return c.config.Prefix + "/" + level(c.config.Agent) + "/" }
func (c *Client) statusTopic() string               { return c.base() + "status" }
func (c *Client) markTopic() string                 { return c.base() + "mark" }
func (c *Client) forecastTopic(level string) string { return c.base() + level + "/forecast" }

func (c *Client) configTopic(level, object string) string {
	return c.config.Discovery + "/sensor/" + c.node(level) + "/" + object + "/config"
}

// node identifies a client's device in Home Assistant.
func (c *Client) node(client string) string {
	return "loadstar_" + level(c.config.Agent) + "_" + client
}

// Publish sends the newest forecasts of clients, as soon as there is a connection. It does
// not wait.
func (c *Client) Publish(clients ...string) {
	c.mu.Lock()
	for _, name := range clients {
		c.dirty[name] = true
	}
	c.mu.Unlock()
	c.signal()
}

// publish sends all messages that are due. Failed messages are sent again with the next
// issue or connection.
func (c *Client) publish(ctx context.Context, l *link) {
	names := map[string]bool{} // topic levels of the current clients
	for _, name := range c.forecasts.Clients() {
		names[level(name)] = true
	}
	c.mu.Lock()
	for name := range c.announced {
		c.gone[name] = true
	}
	var gone []string
	for name := range c.gone {
		if !names[name] {
			gone = append(gone, name)
		}
	}
	clear(c.gone)
	due := slices.Sorted(maps.Keys(c.dirty))
	clear(c.dirty)
	c.mu.Unlock()
	slices.Sort(gone)
	for _, name := range gone {
		if err := c.remove(ctx, l, name); err != nil {
			c.failed(ctx, "cannot remove the forecasts of a removed client", name, err)
			c.mu.Lock()
			c.gone[name] = true
			c.mu.Unlock()
		}
	}
	for i, name := range due {
		if err := c.publishOne(ctx, l, name); err != nil {
			c.failed(ctx, "cannot publish a forecast", name, err)
			c.mu.Lock()
			for _, name := range due[i:] {
				c.dirty[name] = true
			}
			c.mu.Unlock()
			return
		}
	}
}

func (c *Client) failed(ctx context.Context, what, client string, err error) {
	if ctx.Err() == nil {
		c.config.Log.Warn(what, "client", client, "error", err)
	}
}

// remove deletes a client's retained messages by publishing empty ones.
func (c *Client) remove(ctx context.Context, l *link, client string) error {
	if c.config.Discovery != "" {
		for _, s := range sensors {
			if err := c.send(ctx, l, c.configTopic(client, s.object), nil, true); err != nil {
				return err
			}
		}
	}
	if err := c.send(ctx, l, c.forecastTopic(client), nil, true); err != nil {
		return err
	}
	c.mu.Lock()
	delete(c.announced, client)
	c.mu.Unlock()
	return nil
}

func (c *Client) publishOne(ctx context.Context, l *link, name string) error {
	f, ok := c.forecasts.Forecast(name)
	if !ok {
		return nil
	}
	f.Client = name
	client := level(name)
	c.mu.Lock()
	announced := c.announced[client]
	c.mu.Unlock()
	if c.config.Discovery != "" && !announced {
		for _, s := range sensors {
			payload, err := json.Marshal(c.describe(s, f))
			if err != nil {
				return err
			}
			if err := c.send(ctx, l, c.configTopic(client, s.object), payload, true); err != nil {
				return err
			}
		}
	}
	payload, err := Payload(f)
	if err != nil {
		return err
	}
	if err := c.send(ctx, l, c.forecastTopic(client), payload, true); err != nil {
		return err
	}
	c.mu.Lock()
	c.announced[client] = true
	c.mu.Unlock()
	return nil
}

// sensor is a sensor of a client in Home Assistant.
type sensor struct {
	object, name, class, unit, state string
	options                          []string
	attributes                       bool // its attributes contain the whole forecast
}

// sensors are the sensors of each client. The energy of a day has no state class, because Home
// Assistant allows only growing totals, and a forecast may decrease.
var sensors = []sensor{
	{object: "next_hour", name: "Next hour", class: "power", unit: "kW", state: "measurement", attributes: true},
	{object: "energy_today", name: "Energy today", class: "energy", unit: "kWh"},
	{object: "energy_tomorrow", name: "Energy tomorrow", class: "energy", unit: "kWh"},
	{object: "peak_power", name: "Peak power", class: "power", unit: "kW"},
	{object: "peak_power_P90", name: "Peak power P90", class: "power", unit: "kW"},
	{object: "peak_time", name: "Peak time", class: "timestamp"},
	{object: "quality", name: "Forecast quality", class: "enum", options: []string{string(issue.OK), string(issue.Estimated), string(issue.Missing)}},
}

// description is a discovery message of Home Assistant for an MQTT sensor.
type description struct {
	Name              string   `json:"name"`
	UniqueID          string   `json:"unique_id"`
	StateTopic        string   `json:"state_topic"`
	ValueTemplate     string   `json:"value_template"`
	DeviceClass       string   `json:"device_class"`
	StateClass        string   `json:"state_class,omitempty"`
	Unit              string   `json:"unit_of_measurement,omitempty"`
	Precision         *int     `json:"suggested_display_precision,omitempty"`
	Options           []string `json:"options,omitempty"`
	AttributesTopic   string   `json:"json_attributes_topic,omitempty"`
	ExpireAfter       int      `json:"expire_after"`
	AvailabilityTopic string   `json:"availability_topic"`
	QoS               int      `json:"qos"`
	Device            device   `json:"device"`
	Origin            origin   `json:"origin"`
}

type device struct {
	Identifiers  []string `json:"identifiers"`
	Name         string   `json:"name"`
	Manufacturer string   `json:"manufacturer"`
	Model        string   `json:"model"`
	Version      string   `json:"sw_version,omitempty"`
}

type origin struct {
	Name    string `json:"name"`
	Version string `json:"sw_version,omitempty"`
}

func (c *Client) describe(s sensor, f Forecast) description {
	client := level(f.Client)
	d := description{
		Name:          s.name,
		UniqueID:      c.node(client) + "_" + s.object,
		StateTopic:    c.forecastTopic(client),
		ValueTemplate: "{{ value_json.summary." + s.object + " }}",
		DeviceClass:   s.class, StateClass: s.state, Unit: s.unit, Options: s.options,
		ExpireAfter:       int(2 * f.Step / time.Second),
		AvailabilityTopic: c.statusTopic(),
		QoS:               1,
		Device: device{
			Identifiers: []string{c.node(client)}, Name: "Loadstar " + f.Client,
			Manufacturer: "Loadstar", Model: "Load forecast", Version: c.config.Version,
		},
		Origin: origin{Name: "Loadstar", Version: c.config.Version},
	}
	if s.unit != "" {
		precision := 2
		d.Precision = &precision
	}
	if s.attributes {
		d.AttributesTopic = c.forecastTopic(client)
	}
	return d
}
