package mqtt

import (
	"context"
	"strings"
	"testing"
	"time"

	"loadstar/agent/config"
)

// TestDiscover listens to a broker as a user who may only read. The printed lines must be
// accepted as sources that decode the same messages.
func TestDiscover(t *testing.T) {
	m := newMosquitto(t, true)
	m.write(t, "acl", "user loadstar\ntopic read #\nuser writer\ntopic readwrite #\n", 0o600)
	m.password(t, "writer", "w")
	m.write(t, "mosquitto.conf", m.text+"acl_file "+m.file("acl")+"\n", 0o644)
	m.restart(t, 0)
	writer := m.config
	writer.User, writer.PasswordFile = "writer", m.file("writer")
	m.write(t, "writer", "w", 0o600)
	discovered(t, m.config, writer)
}

func TestDiscoverNothing(t *testing.T) {
	found, err := Discover(context.Background(), Config{Broker: embedded(t)}, 50*time.Millisecond)
	if err != nil || len(found) != 0 {
		t.Error(found, err)
	}
	var b strings.Builder
	if err := Print(&b, found); err != nil || !strings.HasPrefix(b.String(), "No topic looked like a meter's") {
		t.Error(b.String(), err)
	}
}

// discovered checks what one user finds among the messages of another.
func discovered(t *testing.T, read, write Config) {
	t.Helper()
	p := newPeer(t, write)
	messages := []struct{ topic, payload string }{
		{"zigbee2mqtt/main-panel", `{"energy":31.02,"power":412,"linkquality":98}`},
		{"zigbee2mqtt/lamp", `{"state":"ON","brightness":200}`},
		{"zigbee2mqtt/bridge/state", `{"state":"online"}`},
		{"zigbee2mqtt/bridge/devices", `[` + strings.Repeat(`{"x":1},`, 20000) + `{}]`},
		{"shellyproem50-a1/status/em1data:0", `{"id":0,"total_act_energy":82114.2,"total_act_ret_energy":0}`},
		{"shellyproem50-a1/status/em1data:1", `{"id":1,"total_act_energy":5,"total_act_ret_energy":0}`},
		{"shellyplusplugs-c3/events/rpc", `{"method":"NotifyStatus","params":{"ts":1794750060.25,"switch:0":{"id":0,"aenergy":{"total":6533.1}}}}`},
		{"shellies/shellyem-d4/emeter/0/total", `100`},
		{"shellies/shellyem-d4/emeter/0/voltage", `230.1`},
		{"tele/nous/SENSOR", `{"Time":"2026-11-15T15:00:04","ENERGY":{"Total":341.2,"Power":41}}`},
		{"tele/climate/SENSOR", `{"Time":"2026-11-15T15:00:04","AM2301":{"Temperature":20.1}}`},
		{"states/sensor/grid_energy/state", `17.5`},
		{"states/sensor/temperature/state", `21.5`},
		{"other/meter room", `{"total_kwh":5.5}`},
		{"evil/\u202e", `{"total_kwh":5.5}`},
	}
	for _, x := range messages {
		p.publish(t, x.topic, x.payload, true)
	}
	found, err := Discover(context.Background(), read, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := Print(&b, found); err != nil {
		t.Fatal(err)
	}
	text, lines, _ := strings.Cut(b.String(), "Lines for agent.yaml:\n")
	for _, want := range []string{
		"zigbee2mqtt/main-panel               energy 31.02 kWh, power 412 W -> meter main-panel (zigbee2mqtt)\n",
		"shellyproem50-a1/status/em1data:0    energy 82.1142 kWh -> meter shellyproem50-a1 (shelly-gen2)\n",
		"meter shellyplusplugs-c3-switch-0 (shelly-gen2)",
		"(homeassistant, check the unit)",
		"energy 5.5 kWh -> meter meter-room (generic)",
		`"evil/\u202e"`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	parsed, err := config.Parse([]byte("site: {zone: UTC}\nmqtt: {broker: mqtt://b}\n"+lines), nil)
	if err != nil {
		t.Fatalf("%v in\n%s", err, lines)
	}
	sources := Settings(parsed).Sources
	if len(sources) != 9 {
		t.Errorf("%d meters:\n%s", len(sources), text)
	}
	for _, x := range sources {
		d, err := NewDecoder([]Source{x})
		if err != nil {
			t.Error(err)
			continue
		}
		for _, msg := range messages {
			if msg.topic != x.Topic {
				continue
			}
			if _, outcome := d.Decode(Message{Topic: msg.topic, Payload: []byte(msg.payload), Arrived: arrival}); outcome != Taken {
				t.Errorf("%s: %s", x.Client, outcome)
			}
		}
	}
}
