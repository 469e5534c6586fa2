package mqtt

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// These are Home Assistant's rules for a discovery message of an MQTT sensor, taken from its
// documentation: the keys with their types, the units and state classes that each device class
// allows, and the requirements of an enum.
var (
	sensorKeys = map[string]string{
		"automatic_entity_registration": "bool", "availability": "list", "availability_mode": "string", "availability_template": "string",
		"availability_topic": "topic", "default_entity_id": "string", "device": "object", "device_class": "string", "enabled_by_default": "bool",
		"encoding": "string", "entity_category": "string", "entity_picture": "string", "expire_after": "positive", "force_update": "bool",
		"icon": "string", "json_attributes_template": "string", "json_attributes_topic": "topic", "last_reset_value_template": "string",
		"name": "string", "options": "list", "origin": "object", "payload_available": "string", "payload_not_available": "string",
		"platform": "string", "qos": "qos", "state_class": "string", "state_topic": "topic", "suggested_display_precision": "positive",
		"unique_id": "id", "unit_of_measurement": "string", "value_template": "string",
	}
	deviceKeys  = []string{"configuration_url", "connections", "hw_version", "identifiers", "manufacturer", "model", "model_id", "name", "serial_number", "suggested_area", "sw_version", "via_device"}
	originKeys  = []string{"name", "support_url", "sw_version"}
	classUnits  = map[string][]string{"power": {"mW", "W", "kW", "MW", "GW", "TW"}, "energy": {"J", "kJ", "MJ", "GJ", "mWh", "Wh", "kWh", "MWh", "GWh", "TWh", "cal", "kcal", "Mcal", "Gcal"}, "timestamp": nil, "enum": nil}
	classStates = map[string][]string{"power": {"measurement"}, "energy": {"total", "total_increasing"}, "timestamp": nil, "enum": nil}

	configTopic = regexp.MustCompile(`^homeassistant/sensor/[A-Za-z0-9_-]+/[A-Za-z0-9_-]+/config$`)
	goodID      = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)
	goodValue   = regexp.MustCompile(`^\{\{ value_json\.summary\.([a-zA-Z0-9_]+) \}\}$`)
)

// validate returns an error that lists what Home Assistant would not accept or would warn
// about.
func validate(topic string, payload []byte) error {
	var m map[string]any
	d := json.NewDecoder(bytes.NewReader(payload))
	if err := d.Decode(&m); err != nil {
		return err
	}
	var problems []string
	bad := func(format string, a ...any) { problems = append(problems, fmt.Sprintf(format, a...)) }
	if !configTopic.MatchString(topic) {
		bad("the topic is %s", topic)
	}
	for key, v := range m {
		kind, ok := sensorKeys[key]
		if !ok {
			bad("the key %s is not known", key)
			continue
		}
		text, isText := v.(string)
		number, isNumber := v.(float64)
		_, isList := v.([]any)
		_, isObject := v.(map[string]any)
		_, isBool := v.(bool)
		fits := false
		switch kind {
		case "string":
			fits = isText && text != ""
		case "id":
			fits = isText && goodID.MatchString(text)
		case "topic":
			fits = isText && text != "" && !strings.ContainsAny(text, "+#\x00")
		case "positive":
			fits = isNumber && number >= 0 && number == float64(int(number))
		case "qos":
			fits = isNumber && slices.Contains([]float64{0, 1, 2}, number)
		case "list":
			fits = isList
		case "object":
			fits = isObject
		case "bool":
			fits = isBool
		}
		if !fits {
			bad("%s is %v, which is no %s", key, v, kind)
		}
	}
	for _, key := range []string{"state_topic", "unique_id", "device", "origin"} { // a device needs origin and a unique ID
		if m[key] == nil {
			bad("%s is missing", key)
		}
	}
	object := func(key string, allowed []string) map[string]any {
		o, _ := m[key].(map[string]any)
		for k := range o {
			if !slices.Contains(allowed, k) {
				bad("%s.%s is not known", key, k)
			}
		}
		return o
	}
	dev, org := object("device", deviceKeys), object("origin", originKeys)
	if ids, _ := dev["identifiers"].([]any); len(ids) == 0 && dev["connections"] == nil {
		bad("a device needs identifiers or connections")
	}
	if name, _ := org["name"].(string); name == "" {
		bad("an origin needs a name")
	}
	if m["availability"] != nil && m["availability_topic"] != nil {
		bad("availability and availability_topic exclude each other")
	}
	class, _ := m["device_class"].(string)
	unit, _ := m["unit_of_measurement"].(string)
	state, _ := m["state_class"].(string)
	if units, ok := classUnits[class]; !ok {
		bad("the device class is %s", class)
	} else if unit != "" && !slices.Contains(units, unit) || unit == "" && units != nil {
		bad("the device class %s cannot have the unit %q", class, unit)
	}
	if state != "" && !slices.Contains(classStates[class], state) {
		bad("the device class %s cannot have the state class %s", class, state)
	}
	options, has := m["options"].([]any)
	if has != (class == "enum") || has && (len(options) == 0 || unit != "" || state != "") {
		bad("options belong to the device class enum, without unit and state class")
	}
	if template, _ := m["value_template"].(string); !goodValue.MatchString(template) {
		bad("the template is %s", template)
	}
	if len(problems) > 0 {
		slices.Sort(problems)
		return fmt.Errorf("%s", strings.Join(problems, "; "))
	}
	return nil
}

// TestDiscoverySchema validates the sensors of a client, including one with a difficult name,
// and checks that the states selected by the templates fit the sensors.
func TestDiscoverySchema(t *testing.T) {
	c, err := New(Config{Broker: "mqtt://b", Agent: "Gebäude 7", Discovery: "homeassistant", Version: "0.2.0"}, nil, noForecasts{})
	if err != nil {
		t.Fatal(err)
	}
	cutoff := time.Date(2026, 11, 15, 14, 0, 0, 0, time.UTC)
	for _, name := range []string{"main-panel", "büro/1. Stock +#"} {
		f := ramp(cutoff, cutoff, 15*time.Minute, 192, "Europe/Berlin")
		f.Client = name
		data, err := Payload(f)
		if err != nil {
			t.Fatal(err)
		}
		var message struct{ Summary map[string]any }
		if err := json.Unmarshal(data, &message); err != nil {
			t.Fatal(err)
		}
		ids := map[string]bool{}
		for _, s := range sensors {
			d := c.describe(s, f)
			payload, err := json.Marshal(d)
			if err != nil {
				t.Fatal(err)
			}
			if err := validate(c.configTopic(level(name), s.object), payload); err != nil {
				t.Errorf("%s %s: %v", name, s.object, err)
			}
			if ids[d.UniqueID] {
				t.Errorf("two sensors are %s", d.UniqueID)
			}
			ids[d.UniqueID] = true
			if d.ExpireAfter != 1800 {
				t.Errorf("%s expires after %d s, want two steps", s.object, d.ExpireAfter)
			}
			key := goodValue.FindStringSubmatch(d.ValueTemplate)[1]
			switch v := message.Summary[key].(type) {
			case float64:
				if d.Unit == "" {
					t.Errorf("%s is the number %v without a unit", s.object, v)
				}
			case string:
				if _, err := time.Parse(time.RFC3339, v); d.DeviceClass == "timestamp" && err != nil || d.DeviceClass == "enum" && !slices.Contains(d.Options, v) || d.Unit != "" {
					t.Errorf("%s is %q", s.object, v)
				}
			default:
				t.Errorf("the message has no %s", key)
			}
		}
		if len(ids) != 7 {
			t.Errorf("%d sensors", len(ids))
		}
	}
}

// TestValidate checks that the rules detect messages that Home Assistant refuses.
func TestValidate(t *testing.T) {
	good := `"state_topic":"a/b","unique_id":"x","value_template":"{{ value_json.summary.x }}","device":{"identifiers":["x"]},"origin":{"name":"L"}`
	for _, x := range []struct{ add, want string }{
		{`"device_class":"energy","unit_of_measurement":"kWh"`, ""},
		{`"device_class":"energy","unit_of_measurement":"kWh","state_class":"measurement"`, "cannot have the state class"},
		{`"device_class":"power","unit_of_measurement":"kWh"`, "cannot have the unit"},
		{`"device_class":"enum"`, "options belong"},
		{`"device_class":"enum","options":["a"],"state_class":"measurement"`, "options belong"},
		{`"device_class":"timestamp","unit_of_measurement":"s"`, "cannot have the unit"},
		{`"device_class":"timestamp","object_id":"x"`, "object_id is not known"},
		{`"device_class":"timestamp","expire_after":-1`, "is no positive"},
		{`"device_class":"timestamp","json_attributes_topic":"a/#"`, "is no topic"},
	} {
		err := validate("homeassistant/sensor/a/b/config", []byte("{"+good+","+x.add+"}"))
		if x.want == "" && err != nil || x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want)) {
			t.Errorf("%s: %v, want %s", x.add, err, x.want)
		}
	}
}
