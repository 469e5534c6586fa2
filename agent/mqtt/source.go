package mqtt

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"loadstar/agent/readings"
)

// Source describes how the messages of a topic become samples of a client.
type Source struct {
	Client string
	Topic  string
	// Preset is one of [Presets]. If it is empty, it is generic.
	Preset string
	// Value is the path to the value in a JSON message: keys and indexes, separated by
	// dots. A dot in a key is written \. . If the path is empty with the preset generic,
	// the message is the number itself. With shelly-gen2 and a topic that ends in
	// /events/rpc, the path is the name of the component, such as em1data:0.
	Value string
	// Kind is counter, power or interval. Unit is the value's unit. All presets except generic
	// and homeassistant define both.
	Kind string
	Unit string
	// Time is the path to the value's timestamp, for the preset generic. A number counts
	// seconds, milliseconds or microseconds since 1970, and a string must have a UTC offset.
	// Without a path, a value gets the time of its message's arrival.
	Time string
	// Interval is the length of an interval, for values that are energy per interval.
	Interval time.Duration
}

// Presets are the kinds of messages that can be decoded.
var Presets = []string{"zigbee2mqtt", "shelly-gen2", "shelly-gen1", "tasmota", "homeassistant", "generic"}

const (
	maxPayload = 64 << 10
	maxDepth   = 32   // levels of nested JSON
	maxPath    = 8    // parts of a path
	maxTopic   = 512  // bytes of a configured topic
	maxSources = 1024 // sources of one agent
)

// field is a value in a message.
type field struct {
	path  []string
	kind  readings.Kind
	scale float64 // factor to kWh or kW
	sum   bool    // the value is an array of numbers, one per phase, which are added up
}

// source is a Source that has been checked.
type source struct {
	client string
	// fields are alternatives. The first one that exists in a message is used.
	fields []field
	bare   bool     // the message is the number itself
	time   []string // path of the time, or nil
	naive  bool     // times without an offset are ignored, not refused
	inside []string // path of the object that contains the fields, or nil
	// counter means that a message contained a counter. Later messages that contain only a
	// power value are then ignored, because the two must not be mixed.
	counter bool
}

func (s *Source) compile() (*source, error) {
	if s.Client == "" {
		return nil, errors.New("a source has no client")
	}
	c, err := s.check()
	if err != nil {
		return nil, fmt.Errorf("client %s: %w", s.Client, err)
	}
	c.client = s.Client
	return c, nil
}

func (s *Source) check() (*source, error) {
	switch {
	case s.Topic == "":
		return nil, errors.New("there is no topic; 'loadstar-agent discover' lists the topics of a broker")
	case strings.ContainsAny(s.Topic, "+#"):
		return nil, fmt.Errorf("the topic %s contains a wildcard; give each client its own topic ('loadstar-agent discover' prints the lines)", s.Topic)
	case len(s.Topic) > maxTopic || !utf8.ValidString(s.Topic) || strings.ContainsRune(s.Topic, 0):
		return nil, fmt.Errorf("the topic %q is not valid; it must have at most %d bytes of UTF-8", s.Topic, maxTopic)
	case strings.HasPrefix(s.Topic, "$"):
		return nil, fmt.Errorf("the topic %s belongs to the broker", s.Topic)
	case s.Time != "" && s.Preset != "" && s.Preset != "generic":
		return nil, fmt.Errorf("the preset %s determines the time; remove time, or use the preset generic", s.Preset)
	}
	levels := strings.Split(s.Topic, "/")
	switch s.Preset {
	case "generic", "":
		return s.generic()
	case "zigbee2mqtt":
		return s.pick(&source{time: []string{"last_seen"}, fields: []field{
			{path: []string{"energy"}, kind: readings.Counter, scale: 1},
			{path: []string{"power"}, kind: readings.Power, scale: 1e-3},
		}})
	case "tasmota":
		return s.pick(&source{time: []string{"Time"}, naive: true, fields: []field{
			{path: []string{"ENERGY", "Total"}, kind: readings.Counter, scale: 1, sum: true},
			{path: []string{"ENERGY", "Power"}, kind: readings.Power, scale: 1e-3, sum: true},
		}})
	case "shelly-gen2":
		return s.gen2(levels)
	case "shelly-gen1":
		return s.gen1(levels)
	case "homeassistant":
		if s.Unit == "" {
			return nil, errors.New("the topics of Home Assistant do not contain the unit; add unit: kWh, or the unit that Home Assistant shows")
		}
		if s.Value != "" {
			return nil, errors.New("the messages of Home Assistant's topics are bare numbers; remove value")
		}
		return s.generic()
	}
	return nil, fmt.Errorf("the preset %q is not known; use one of %s", s.Preset, strings.Join(Presets, ", "))
}

// pick restricts a preset to the fields that match the source's kind or path.
func (s *Source) pick(c *source) (*source, error) {
	if s.Unit != "" {
		return nil, fmt.Errorf("the preset %s determines the unit; remove unit, or use the preset generic", s.Preset)
	}
	var names []string
	fields := c.fields[:0:0]
	for _, f := range c.fields {
		name := strings.Join(f.path, ".")
		names = append(names, name)
		if (s.Kind == "" || s.Kind == kinds[f.kind]) && (s.Value == "" || s.Value == name) {
			fields = append(fields, f)
		}
	}
	if len(fields) == 0 {
		return nil, fmt.Errorf("the preset %s has no value %q of kind %q; its values are %s", s.Preset, s.Value, s.Kind, strings.Join(names, ", "))
	}
	c.fields = fields
	return c, nil
}

// kinds are the names of the kinds.
var kinds = [...]string{readings.Counter: "counter", readings.Power: "power", readings.Interval: "interval"}

// energy and power are the units by name, in kWh and kW.
var (
	energy = map[string]float64{"kWh": 1, "Wh": 1e-3, "MWh": 1e3, "Wmin": 1 / 60e3, "J": 1 / 3.6e6, "MJ": 1 / 3.6}
	power  = map[string]float64{"kW": 1, "W": 1e-3, "MW": 1e3}
)

func (s *Source) generic() (*source, error) {
	c := &source{bare: s.Value == ""}
	f := field{}
	e, isEnergy := energy[s.Unit]
	p, isPower := power[s.Unit]
	kind := s.Kind
	if kind == "" && isEnergy {
		kind = "counter"
	} else if kind == "" && isPower {
		kind = "power"
	}
	switch {
	case !isEnergy && !isPower:
		return nil, fmt.Errorf("the unit is %q; use Wh, kWh, MWh, Wmin, J or MJ for energy, and W, kW or MW for power", s.Unit)
	case kind == "counter" && isEnergy:
		f.kind, f.scale = readings.Counter, e
	case kind == "power" && isPower:
		f.kind, f.scale = readings.Power, p
	case kind == "interval" && isPower:
		f.kind, f.scale = readings.Interval, p
	case kind == "interval" && isEnergy && s.Interval > 0:
		f.kind, f.scale = readings.Interval, e/s.Interval.Hours()
	default:
		return nil, fmt.Errorf("a value of kind %q cannot have the unit %s; a counter needs a unit of energy, and power a unit of power", s.Kind, s.Unit)
	}
	if f.kind == readings.Interval && s.Time == "" {
		return nil, errors.New("the value of an interval needs the path of its time; add time")
	}
	if s.Time != "" && c.bare {
		return nil, errors.New("the path to the time is set, but not the path to the value; add value")
	}
	var err error
	if f.path, err = splitPath(s.Value); err != nil {
		return nil, err
	}
	if c.time, err = splitPath(s.Time); err != nil {
		return nil, err
	}
	c.fields = []field{f}
	return c, nil
}

// gen2 decodes the status topics of a device's components, and its notifications.
func (s *Source) gen2(levels []string) (*source, error) {
	n := len(levels)
	c := &source{}
	component := ""
	picked := *s // the source, with the component removed from its topic
	switch {
	case n >= 3 && levels[n-2] == "events" && levels[n-1] == "rpc":
		component, picked.Value = s.Value, ""
		if component == "" {
			return nil, errors.New("the notifications of a Shelly device can contain several meters; add value with the component, such as em1data:0, emdata:0 or switch:0")
		}
		c.inside, c.time = []string{"params", component}, []string{"params", "ts"}
	case n >= 3 && levels[n-2] == "status":
		component = levels[n-1]
	default:
		return nil, fmt.Errorf("the topic is %s; the topics of a Shelly device of generation 2 end in /status/COMPONENT or /events/rpc", s.Topic)
	}
	const wh, w = 1e-3, 1e-3
	name, _, _ := strings.Cut(component, ":")
	switch name {
	case "em1data":
		c.fields = []field{{path: []string{"total_act_energy"}, kind: readings.Counter, scale: wh}}
	case "emdata":
		c.fields = []field{
			{path: []string{"total_act"}, kind: readings.Counter, scale: wh},
			{path: []string{"total_act_energy"}, kind: readings.Counter, scale: wh},
		}
	case "switch", "pm1", "cover", "light":
		c.fields = []field{{path: []string{"aenergy", "total"}, kind: readings.Counter, scale: wh}}
	case "em1":
		c.fields = []field{{path: []string{"act_power"}, kind: readings.Power, scale: w}}
	case "em":
		c.fields = []field{{path: []string{"total_act_power"}, kind: readings.Power, scale: w}}
	default:
		return nil, fmt.Errorf("the component %q of a Shelly device is not a meter; use em1data:N, emdata:N, switch:N, pm1:N, cover:N, light:N, em1:N or em:N", component)
	}
	return picked.pick(c)
}

// gen1 decodes bare numbers. The last levels of the topic give their meaning.
func (s *Source) gen1(levels []string) (*source, error) {
	n := len(levels)
	if n < 4 || s.Value != "" {
		return nil, fmt.Errorf("the topic is %s; use shellies/ID/emeter/N/total or shellies/ID/relay/N/energy, without value", s.Topic)
	}
	c := &source{bare: true}
	switch what := levels[n-3] + "/" + levels[n-1]; {
	case what == "emeter/total":
		c.fields = []field{{kind: readings.Counter, scale: 1e-3}}
	case slices.Contains([]string{"relay/energy", "emeter/energy", "light/energy", "roller/energy"}, what):
		c.fields = []field{{kind: readings.Counter, scale: 1 / 60e3}} // watt-minutes
	case slices.Contains([]string{"relay/power", "emeter/power", "light/power", "roller/power"}, what):
		c.fields = []field{{kind: readings.Power, scale: 1e-3}}
	default:
		return nil, fmt.Errorf("the topic is %s; use shellies/ID/emeter/N/total or shellies/ID/relay/N/energy", s.Topic)
	}
	return s.pick(c)
}

// splitPath returns the parts of a path.
func splitPath(path string) ([]string, error) {
	if path == "" {
		return nil, nil
	}
	var parts []string
	part := ""
	for i := 0; i < len(path); i++ {
		switch {
		case path[i] == '\\' && i+1 < len(path):
			i++
			part += path[i : i+1]
		case path[i] == '.':
			parts, part = append(parts, part), ""
		default:
			part += path[i : i+1]
		}
	}
	parts = append(parts, part)
	if len(parts) > maxPath || slices.Contains(parts, "") {
		return nil, fmt.Errorf("the path is %q; write at most %d keys, separated by dots", path, maxPath)
	}
	return parts, nil
}
