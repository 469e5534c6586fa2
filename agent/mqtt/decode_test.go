package mqtt

import (
	"math"
	"strings"
	"testing"
	"time"

	"loadstar/agent/readings"
)

var arrival = time.Date(2026, 11, 15, 14, 0, 7, 0, time.UTC)

// TestDecode decodes payloads in the formats of the devices' documentation.
func TestDecode(t *testing.T) {
	z2m := Source{Topic: "zigbee2mqtt/main-panel", Preset: "zigbee2mqtt"}
	em1 := Source{Topic: "shellyproem50-a1/status/em1data:0", Preset: "shelly-gen2"}
	em3 := Source{Topic: "shellypro3em-b2/status/emdata:0", Preset: "shelly-gen2"}
	plug := Source{Topic: "shellyplusplugs-c3/status/switch:0", Preset: "shelly-gen2"}
	rpc := Source{Topic: "shellyplusplugs-c3/events/rpc", Preset: "shelly-gen2", Value: "switch:0"}
	em := Source{Topic: "shellies/shellyem-d4/emeter/1/total", Preset: "shelly-gen1"}
	relay := Source{Topic: "shellies/shellyplug-s-e5/relay/0/energy", Preset: "shelly-gen1"}
	tasmota := Source{Topic: "tele/nous/SENSOR", Preset: "tasmota"}
	hass := Source{Topic: "states/sensor/grid_energy/state", Preset: "homeassistant", Unit: "MWh"}
	p1 := Source{Topic: "meters/p1", Value: "data.0.import", Kind: "counter", Unit: "Wh", Time: "data.0.at"}
	bare := Source{Topic: "meters/heat", Kind: "power", Unit: "kW"}
	quarter := Source{Topic: "ami/7", Value: "kwh", Kind: "interval", Unit: "kWh", Time: "start", Interval: 15 * time.Minute}

	const retained, late, clock = "retained", "late", "clock"
	const counter, power, interval = readings.Counter, readings.Power, readings.Interval
	at := func(text string) time.Time {
		v, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, x := range []struct {
		name    string
		source  Source
		payload string
		state   string
		want    Outcome
		value   float64
		kind    readings.Kind
		at      time.Time // time of the value, if it differs from the arrival
	}{
		{name: "a plug", source: z2m, payload: `{"current":1.79,"energy":31.02,"linkquality":120,"power":412,"state":"ON","voltage":230}`, want: Taken, value: 31.02, kind: counter},
		{name: "a plug without energy", source: z2m, payload: `{"linkquality":118,"power":412.5,"state":"ON"}`, want: Taken, value: 0.4125, kind: power},
		{name: "a plug that only switched", source: z2m, payload: `{"linkquality":118,"state":"OFF"}`, want: NoValue},
		{name: "a plug that knows nothing yet", source: z2m, payload: `{"energy":null,"power":null}`, want: NoValue},
		{name: "a plug with its time", source: z2m, payload: `{"energy":31.02,"last_seen":"2026-11-15T14:59:30+01:00"}`, state: late, want: Taken, value: 31.02, kind: counter, at: at("2026-11-15T13:59:30Z")},
		{name: "a plug with its time in ms", source: z2m, payload: `{"energy":31.02,"last_seen":1794750000123}`, state: retained, want: Taken, value: 31.02, kind: counter, at: time.UnixMilli(1794750000123)},
		{name: "a kept message", source: z2m, payload: `{"energy":31.02}`, state: retained, want: Undated},
		{name: "kept power with a time", source: z2m, payload: `{"power":412,"last_seen":1794750000123}`, state: retained, want: Undated},
		{name: "a late message", source: z2m, payload: `{"energy":31.02}`, state: late, want: Undated},
		{name: "a wrong clock", source: z2m, payload: `{"energy":31.02}`, state: clock, want: Clock},
		{name: "the state of a coordinator", source: z2m, payload: `online`, want: Malformed},

		{name: "a meter in Wh", source: em1, payload: `{"id":0,"total_act_energy":82114.2,"total_act_ret_energy":0.00}`, want: Taken, value: 82.1142, kind: counter},
		{name: "a meter with errors only", source: em1, payload: `{"id":0,"errors":["database_error"]}`, want: NoValue},
		{name: "three phases", source: em3, payload: `{"id":0,"a_total_act_energy":1000.5,"a_total_act_ret_energy":0,"b_total_act_energy":500,"c_total_act_energy":250,"total_act":1750.5,"total_act_ret":0}`, want: Taken, value: 1.7505, kind: counter},
		{name: "a switch", source: plug, payload: `{"id":0,"source":"init","output":true,"apower":8.9,"voltage":237.5,"current":0.04,"aenergy":{"total":6532.4,"by_minute":[45.1,47.2,88.4],"minute_ts":1794750000},"temperature":{"tC":53.1,"tF":127.6}}`, want: Taken, value: 6.5324, kind: counter},
		{name: "a switch that only changed its power", source: rpc, payload: `{"src":"shellyplusplugs-c3","dst":"shellyplusplugs-c3/events","method":"NotifyStatus","params":{"ts":1794750012.35,"switch:0":{"id":0,"apower":12.1}}}`, want: NoValue},
		{name: "a notification", source: rpc, payload: `{"src":"shellyplusplugs-c3","dst":"shellyplusplugs-c3/events","method":"NotifyStatus","params":{"ts":1794750060.25,"switch:0":{"id":0,"aenergy":{"by_minute":[141.2,0,0],"minute_ts":1794750060,"total":6533.1}}}}`, state: late, want: Taken, value: 6.5331, kind: counter, at: time.UnixMilli(1794750060250)},
		{name: "a notification before the clock is set", source: rpc, payload: `{"method":"NotifyFullStatus","params":{"ts":12.4,"switch:0":{"id":0,"aenergy":{"total":6533.1}}}}`, want: Taken, value: 6.5331, kind: counter},
		{name: "the same, late", source: rpc, payload: `{"method":"NotifyFullStatus","params":{"ts":12.4,"switch:0":{"id":0,"aenergy":{"total":6533.1}}}}`, state: late, want: Undated},
		{name: "an event", source: rpc, payload: `{"method":"NotifyEvent","params":{"ts":1794750060.25,"events":[{"component":"switch:0","id":0,"event":"single_push","ts":1794750060.25}]}}`, want: NoValue},

		{name: "an old meter", source: em, payload: `82114.2`, want: Taken, value: 82.1142, kind: counter},
		{name: "watt-minutes", source: relay, payload: `60000`, want: Taken, value: 1, kind: counter},

		{name: "a Tasmota plug", source: tasmota, payload: `{"Time":"2026-11-15T15:00:04","ENERGY":{"TotalStartTime":"2024-02-10T09:12:41","Total":341.235,"Yesterday":1.21,"Today":0.72,"Period":3,"Power":41,"ApparentPower":60,"ReactivePower":43,"Factor":0.69,"Voltage":231,"Current":0.259}}`, want: Taken, value: 341.235, kind: counter},
		{name: "the same, late", source: tasmota, payload: `{"Time":"2026-11-15T15:00:04","ENERGY":{"Total":341.235}}`, state: late, want: Undated},
		{name: "Tasmota with an offset", source: tasmota, payload: `{"Time":"2026-11-15T15:00:04+01:00","ENERGY":{"Total":341.235}}`, state: late, want: Taken, value: 341.235, kind: counter, at: at("2026-11-15T14:00:04Z")},
		{name: "two channels", source: tasmota, payload: `{"Time":"2026-11-15T15:00:04","ENERGY":{"Total":[1.5,2.25],"Power":[10,20]}}`, want: Taken, value: 3.75, kind: counter},
		{name: "power of two channels", source: tasmota, payload: `{"ENERGY":{"Power":[10,20]}}`, want: Taken, value: 0.03, kind: power},
		{name: "another sensor", source: tasmota, payload: `{"Time":"2026-11-15T15:00:04","AM2301":{"Temperature":20.1}}`, want: NoValue},

		{name: "a state", source: hass, payload: "1.25\n", want: Taken, value: 1250, kind: counter},
		{name: "unknown", source: hass, payload: "unknown", want: Unavailable},
		{name: "unavailable", source: hass, payload: "unavailable", want: Unavailable},
		{name: "empty", source: hass, payload: "", want: Unavailable},
		{name: "a switch's state", source: hass, payload: "on", want: Malformed},

		{name: "a path", source: p1, payload: `{"data":[{"import":"5000.5","at":"2026-11-15T13:45:00Z"}]}`, state: late, want: Taken, value: 5.0005, kind: counter, at: at("2026-11-15T13:45:00Z")},
		{name: "a path without its time", source: p1, payload: `{"data":[{"import":5000.5}]}`, want: Taken, value: 5.0005, kind: counter},
		{name: "a time without an offset", source: p1, payload: `{"data":[{"import":5000.5,"at":"2026-11-15T13:45:00"}]}`, want: Malformed},
		{name: "an index too far", source: p1, payload: `{"data":[]}`, want: NoValue},
		{name: "bare power", source: bare, payload: `-2.5`, want: Taken, value: -2.5, kind: power},
		{name: "a number with a unit", source: bare, payload: `2.5 kW`, want: Malformed},
		{name: "hexadecimal", source: bare, payload: `0x1p4`, want: Malformed},
		{name: "infinity", source: bare, payload: `Inf`, want: Malformed},
		{name: "not a number", source: bare, payload: `NaN`, want: Unavailable},
		{name: "overflow", source: bare, payload: `1e300`, want: Malformed},
		{name: "an interval", source: quarter, payload: `{"kwh":0.5,"start":1794750000}`, state: late, want: Taken, value: 2, kind: interval, at: time.Unix(1794750000, 0)},
		{name: "an interval without a time", source: quarter, payload: `{"kwh":0.5}`, want: Undated},
		{name: "deep JSON", source: p1, payload: `{"data":` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + `}`, want: Malformed},
		{name: "brackets in a text", source: p1, payload: `{"x":"` + strings.Repeat(`[{\"`, 40) + `","data":[{"import":1}]}`, want: Taken, value: 0.001, kind: counter},
		{name: "a large message", source: p1, payload: `{"x":"` + strings.Repeat("y", maxPayload) + `"}`, want: TooLarge},
		{name: "broken JSON", source: p1, payload: `{"data":[{"import":1}`, want: Malformed},
	} {
		t.Run(x.name, func(t *testing.T) {
			x.source.Client = "a"
			d, err := NewDecoder([]Source{x.source})
			if err != nil {
				t.Fatal(err)
			}
			m := Message{Topic: x.source.Topic, Payload: []byte(x.payload), Arrived: arrival, Retained: x.state == retained, Late: x.state == late}
			if x.state == clock {
				m.Arrived = time.Time{}
			}
			samples, outcome := d.Decode(m)
			if outcome != x.want || (len(samples) == 1) != (x.want == Taken) {
				t.Fatalf("%d samples, outcome %s, want %s", len(samples), outcome, x.want)
			}
			if x.want != Taken {
				return
			}
			if x.at.IsZero() {
				x.at = arrival
			}
			if s := samples[0]; s.Client != "a" || math.Abs(s.Value-x.value) > 1e-12*math.Abs(x.value) || s.Kind != x.kind || !s.At.Equal(x.at) {
				t.Errorf("%+v, want %v at %v", s, x.value, x.at)
			}
		})
	}
}

// TestMixedKinds checks that a power value after a counter is ignored, because a message that
// contains only changed fields must not change the client's kind of value.
func TestMixedKinds(t *testing.T) {
	d, err := NewDecoder([]Source{{Client: "a", Topic: "zigbee2mqtt/a", Preset: "zigbee2mqtt"}})
	if err != nil {
		t.Fatal(err)
	}
	for i, x := range []struct {
		payload string
		want    Outcome
	}{{`{"power":1}`, Taken}, {`{"energy":5,"power":1}`, Taken}, {`{"power":1}`, NoValue}, {`{"energy":5}`, Taken}} {
		if _, outcome := d.Decode(Message{Topic: "zigbee2mqtt/a", Payload: []byte(x.payload), Arrived: arrival}); outcome != x.want {
			t.Errorf("message %d: %s, want %s", i, outcome, x.want)
		}
	}
}

// TestSharedTopic checks that a device with two meters serves two clients.
func TestSharedTopic(t *testing.T) {
	d, err := NewDecoder([]Source{
		{Client: "a", Topic: "s/events/rpc", Preset: "shelly-gen2", Value: "em1data:0"},
		{Client: "b", Topic: "s/events/rpc", Preset: "shelly-gen2", Value: "em1data:1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	samples, _ := d.Decode(Message{Topic: "s/events/rpc", Payload: []byte(`{"method":"NotifyStatus","params":{"ts":1794750000,"em1data:1":{"id":1,"total_act_energy":2000},"em1data:0":{"id":0,"total_act_energy":1000}}}`)})
	if len(samples) != 2 || samples[0].Client != "a" || samples[0].Value != 1 || samples[1].Client != "b" || samples[1].Value != 2 {
		t.Error(samples)
	}
	samples, _ = d.Decode(Message{Topic: "s/events/rpc", Payload: []byte(`{"method":"NotifyStatus","params":{"ts":1794750000,"em1data:1":{"id":1,"total_act_energy":2001}}}`)})
	if len(samples) != 1 || samples[0].Client != "b" {
		t.Error(samples)
	}
}

func TestSourceMistakes(t *testing.T) {
	for _, x := range []struct {
		name   string
		source Source
		want   string
	}{
		{"no client", Source{Topic: "a"}, "has no client"},
		{"no topic", Source{Client: "a"}, "there is no topic"},
		{"a wildcard", Source{Client: "a", Topic: "zigbee2mqtt/+", Preset: "zigbee2mqtt"}, "contains a wildcard; give each client its own topic"},
		{"all topics", Source{Client: "a", Topic: "#", Unit: "kWh"}, "contains a wildcard"},
		{"the broker's topics", Source{Client: "a", Topic: "$SYS/uptime", Unit: "kWh"}, "belongs to the broker"},
		{"a long topic", Source{Client: "a", Topic: strings.Repeat("t", 600), Unit: "kWh"}, "at most 512 bytes"},
		{"a preset", Source{Client: "a", Topic: "t", Preset: "zigbee"}, `"zigbee" is not known; use one of zigbee2mqtt, `},
		{"no unit", Source{Client: "a", Topic: "t", Value: "x"}, `the unit is ""; use Wh, kWh`},
		{"no unit in Home Assistant", Source{Client: "a", Topic: "p/sensor/x/state", Preset: "homeassistant"}, "add unit: kWh"},
		{"a unit of power", Source{Client: "a", Topic: "t", Kind: "counter", Unit: "W"}, "cannot have the unit W"},
		{"a preset with a unit", Source{Client: "a", Topic: "t/a", Preset: "zigbee2mqtt", Unit: "Wh"}, "determines the unit"},
		{"a wrong value", Source{Client: "a", Topic: "t/a", Preset: "zigbee2mqtt", Value: "enrgy"}, "its values are energy, power"},
		{"a wrong kind", Source{Client: "a", Topic: "t/a", Preset: "tasmota", Kind: "interval"}, `of kind "interval"; its values are ENERGY.Total, ENERGY.Power`},
		{"notifications", Source{Client: "a", Topic: "s/events/rpc", Preset: "shelly-gen2"}, "add value with the component"},
		{"a component", Source{Client: "a", Topic: "s/status/wifi", Preset: "shelly-gen2"}, `"wifi" of a Shelly device is not a meter`},
		{"a topic of generation 2", Source{Client: "a", Topic: "s/online", Preset: "shelly-gen2"}, "end in /status/COMPONENT or /events/rpc"},
		{"a topic of generation 1", Source{Client: "a", Topic: "shellies/s/relay/0", Preset: "shelly-gen1"}, "use shellies/ID/emeter/N/total"},
		{"returned energy", Source{Client: "a", Topic: "shellies/s/emeter/0/total_returned", Preset: "shelly-gen1"}, "use shellies/ID/emeter/N/total"},
		{"an empty key", Source{Client: "a", Topic: "t", Value: "a..b", Unit: "kWh"}, "separated by dots"},
		{"a deep path", Source{Client: "a", Topic: "t", Value: "a.b.c.d.e.f.g.h.i", Unit: "kWh"}, "at most 8 keys"},
		{"an interval without a time", Source{Client: "a", Topic: "t", Value: "a", Kind: "interval", Unit: "kW"}, "needs the path of its time"},
		{"a time of a bare number", Source{Client: "a", Topic: "t", Time: "a", Unit: "kWh"}, "not the path to the value"},
		{"a time of a preset", Source{Client: "a", Topic: "t/a", Preset: "tasmota", Time: "Time"}, "determines the time"},
	} {
		t.Run(x.name, func(t *testing.T) {
			if _, err := NewDecoder([]Source{x.source}); err == nil || !strings.Contains(err.Error(), x.want) {
				t.Errorf("error %v, want %s", err, x.want)
			}
		})
	}
}

func TestPath(t *testing.T) {
	parts, err := splitPath(`a\.b.c.0`)
	if err != nil || len(parts) != 3 || parts[0] != "a.b" || parts[2] != "0" {
		t.Error(parts, err)
	}
}

// FuzzDecode checks that no payload causes a panic or a sample that is not a number or has
// an impossible time.
func FuzzDecode(f *testing.F) {
	sources := []Source{
		{Client: "a", Topic: "zigbee2mqtt/a", Preset: "zigbee2mqtt"},
		{Client: "b", Topic: "s/events/rpc", Preset: "shelly-gen2", Value: "em1data:0"},
		{Client: "c", Topic: "s/status/emdata:0", Preset: "shelly-gen2"},
		{Client: "d", Topic: "shellies/s/relay/0/energy", Preset: "shelly-gen1"},
		{Client: "e", Topic: "tele/e/SENSOR", Preset: "tasmota"},
		{Client: "f", Topic: "p/sensor/f/state", Preset: "homeassistant", Unit: "kWh"},
		{Client: "g", Topic: "g", Value: "a.0.b", Unit: "W", Time: "t"},
	}
	f.Add(uint8(0), []byte(`{"energy":31.02,"power":412,"last_seen":1794750000123}`), false, false)
	f.Add(uint8(1), []byte(`{"params":{"ts":1794750060.25,"em1data:0":{"total_act_energy":6533.1}}}`), true, false)
	f.Add(uint8(2), []byte(`{"total_act":1750.5}`), false, true)
	f.Add(uint8(3), []byte(`60000`), false, false)
	f.Add(uint8(4), []byte(`{"Time":"2026-11-15T15:00:04","ENERGY":{"Total":[1.5,2.25],"Power":[10,20]}}`), false, false)
	f.Add(uint8(5), []byte(`unavailable`), false, false)
	f.Add(uint8(6), []byte(`{"a":[{"b":"1e3"}],"t":"2026-11-15T15:00:04Z"}`), true, true)
	d, err := NewDecoder(sources)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, which uint8, payload []byte, retained, late bool) {
		topic := sources[int(which)%len(sources)].Topic
		samples, outcome := d.Decode(Message{Topic: topic, Payload: payload, Arrived: arrival, Retained: retained, Late: late})
		if (len(samples) > 0) != (outcome == Taken) {
			t.Errorf("%d samples, outcome %s", len(samples), outcome)
		}
		for _, s := range samples {
			if math.IsNaN(s.Value) || math.Abs(s.Value) > 1e12 || s.At.Before(earliest) || s.At.Equal(arrival) && (retained || late) {
				t.Errorf("%+v", s)
			}
		}
	})
}
