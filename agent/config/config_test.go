package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const small = `site: {zone: Europe/Berlin, interval: 15m}
model: day-ahead
inbox: inbox
clients: {main-panel: , roof: {sign: net}}
`

func TestSmallest(t *testing.T) {
	c, err := Parse([]byte(small), nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Step() != 15*time.Minute || c.Location().String() != "Europe/Berlin" || c.HTTP.Listen != "127.0.0.1:7446" || c.Server != ServerOptional {
		t.Errorf("%+v", c)
	}
	if a, b := c.Clients["main-panel"], c.Clients["roof"]; a.Source != SourcePush || a.Sign != SignLoad || b.Sign != SignNet {
		t.Errorf("%+v, %+v", a, b)
	}
}

// TestFull reads the example in the documentation.
func TestFull(t *testing.T) {
	c, err := Parse([]byte(`
site: {zone: Europe/Berlin, interval: 15m}
server: optional
store: {keep: 800d, flush: 60s}
history: site.prepared
clients:
  main-panel: {source: mqtt, topic: zigbee2mqtt/main-panel, preset: zigbee2mqtt}
  a1:         {source: mqtt, topic: "shellyproem50-a1/status/em1data:0", value: total_act_energy, kind: counter, unit: Wh}
  roof:       {source: http, sign: net}
groups: {house: [main-panel, a1]}
inbox: /var/lib/loadstar/inbox
mqtt:  {broker: "mqtts://broker.local:8883", user: loadstar, password_file: /etc/loadstar/mqtt, discovery: homeassistant}
http:  {listen: "127.0.0.1:7446"}
forecast: {h: 48h, levels: [0.1, 0.5, 0.9], delay: 2m, drop: /var/lib/loadstar/forecasts}
share: {scores: true}
`), nil)
	if err != nil {
		t.Fatal(err)
	}
	if time.Duration(c.Store.Keep) != 800*24*time.Hour || c.Clients["a1"].Preset != "generic" || c.Clients["roof"].Source != SourcePush || len(c.Groups["house"]) != 2 {
		t.Errorf("%+v", c)
	}
}

func TestMistakes(t *testing.T) {
	for _, x := range []struct{ name, text, want string }{
		{"nothing", "", "site.zone is missing"},
		{"no clients", "site: {zone: UTC}", "there are no clients"},
		{"zone", "site: {zone: Berlin}\nclients: {a: }", `line 1: site.zone is "Berlin", which is not a time zone; write an IANA name`},
		{"local zone", "site: {zone: Local}\nclients: {a: }", `site.zone is missing`},
		{"interval", "site: {zone: UTC, interval: 7m}\nclients: {a: }", "line 1: site.interval is 7m; write a duration that divides an hour"},
		{"no duration", "site: {zone: UTC, interval: often}\nclients: {a: }", `"often" is not a duration; write one such as 15m`},
		{"a wrong key", "site: {zone: UTC}\nclients: {a: {topik: x}}", "line 2: clients.a.topik is not known; did you mean topic?"},
		{"source", "site: {zone: UTC}\nclients:\n  a: {source: modbus}", `line 3: clients.a.source is "modbus"; use one of push, mqtt`},
		{"no broker", "site: {zone: UTC}\nclients: {a: {topic: x/y}}", "there is no broker; write mqtt:"},
		{"no topic", "site: {zone: UTC}\nmqtt: {broker: mqtt://b}\nclients: {a: {source: mqtt}}", "clients.a.topic is missing; 'loadstar-agent discover'"},
		{"broker", "site: {zone: UTC}\nmqtt: {broker: b:1883}\nclients: {a: }", "write mqtt://HOST[:1883]"},
		{"password in the URL", "site: {zone: UTC}\nmqtt: {broker: \"mqtt://u:p@b\"}\nclients: {a: }", "write mqtt.user and mqtt.password_file"},
		{"open to all", "site: {zone: UTC}\nhttp: {listen: \":7446\"}\nclients: {a: }", "line 2: http.listen is \":7446\", which other machines can reach; set http.token_file"},
		{"name", "site: {zone: UTC}\nclients: {a/b: }", `must not contain '/'`},
		{"group", "site: {zone: UTC}\nclients: {main: , roof: }\ngroups: {g: [main, rof]}", `line 3: groups.g contains "rof", which is not a client; did you mean roof?`},
		{"group of one", "site: {zone: UTC}\nclients: {a: }\ngroups: {g: [a]}", "a group has at least 2"},
		{"levels", "site: {zone: UTC}\nforecast: {levels: [0.9, 0.1]}\nclients: {a: }", "ascending levels"},
		{"h", "site: {zone: UTC}\nforecast: {h: 90m}\nclients: {a: }", "forecast.h is 1h30m; write a multiple of the interval"},
		{"delay", "site: {zone: UTC, interval: 1m}\nclients: {a: }", "forecast.delay is 2m; it must be shorter than the interval"},
		{"keep", "site: {zone: UTC}\nstore: {keep: 89d}\nclients: {a: }", "keep at least 90d"},
	} {
		t.Run(x.name, func(t *testing.T) {
			_, err := Parse([]byte(x.text), nil)
			if err == nil || !strings.Contains(err.Error(), x.want) {
				t.Errorf("error %v, want %s", err, x.want)
			}
		})
	}
}

func TestEnvironment(t *testing.T) {
	c, err := Parse([]byte(small), []string{
		"HOME=/", "LOADSTAR_AGENT_SITE_ZONE=Asia/Kolkata", "LOADSTAR_AGENT_FORECAST_H=24h", "LOADSTAR_AGENT_SHARE_SCORES=false",
		"LOADSTAR_AGENT_MQTT_BROKER=mqtt://b", "LOADSTAR_AGENT_MQTT_PASSWORD_FILE=/run/a: \"b", "LOADSTAR_AGENT_TRAIN_WORKERS=2",
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.Site.Zone != "Asia/Kolkata" || c.Forecast.H != Duration(24*time.Hour) || c.Share.Scores || c.MQTT.PasswordFile != "/run/a: \"b" || c.Train.Workers != 2 {
		t.Errorf("%+v", c)
	}
	for _, x := range []struct{ set, want string }{
		{"LOADSTAR_AGENT_SITE_ZON=UTC", "did you mean loadstar_agent_site_zone?"},
		{"LOADSTAR_AGENT_TRAIN_WORKERS=many", `LOADSTAR_AGENT_TRAIN_WORKERS: train.workers must be a whole number, not "many"`},
		{"LOADSTAR_AGENT_STORE_FLUSH=", "is not a duration"},
	} {
		if _, err := Parse([]byte(small), []string{x.set}); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: error %v", x.set, err)
		}
	}
}

func TestPaths(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "agent.yaml")
	if err := os.WriteFile(path, []byte(small+"forecast: {drop: /tmp/drop}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Read(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Dir != filepath.Join(dir, "loadstar-agent") || c.Inbox != filepath.Join(dir, "inbox") || c.Forecast.Drop != "/tmp/drop" || c.History != "" {
		t.Errorf("%+v", c)
	}
	if _, err := Read(filepath.Join(dir, "none.yaml"), nil); err == nil || !strings.Contains(err.Error(), "cannot read the configuration") {
		t.Error(err)
	}
}

// FuzzParse checks that Parse returns an error or a usable configuration, and never panics.
func FuzzParse(f *testing.F) {
	f.Add([]byte(small))
	f.Add([]byte("clients: [1, 2]"))
	f.Add([]byte("groups: {a: [a, a]}\nsite: {zone: ../x, interval: 0s}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data, nil)
		if err == nil && (c.Location() == nil || c.Step() <= 0 || len(c.Forecast.Levels) == 0) {
			t.Errorf("accepted %q: %+v", data, c)
		}
	})
}
