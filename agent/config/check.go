package config

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"loadstar/internal/config"
	"loadstar/series/openmeteo"
)

// Limits on the values in a file.
const (
	maxClients = 1000
	maxName    = 128
	maxLevels  = 19
	maxRows    = 14 * 24 * 12 // two weeks at intervals of 5 minutes
)

// check checks the values of a file and fills in those that depend on others.
func check(c *Config, keys map[string]int, problems *config.Problems) {
	line := func(key string) int { return lineOf(keys, key) }
	bad := func(key, format string, a ...any) { problems.Add(line(key), key+" "+format, a...) }
	choice := func(key, value string, allowed ...string) {
		if !slices.Contains(allowed, value) {
			bad(key, "is %q; %s", value, config.Suggest(value, allowed))
		}
	}
	checkSite(c, bad)
	choice("server", c.Server, ServerNone, ServerOptional, ServerRequired)
	if d := c.Store.Keep; time.Duration(d) < 90*24*time.Hour {
		bad("store.keep", "is %s; keep at least 90d, because models and intervals are learned from the last weeks", d)
	}
	if d := time.Duration(c.Store.Flush); d < time.Second || d > time.Hour {
		bad("store.flush", "is %s; write a duration from 1s to 1h", c.Store.Flush)
	}
	if len(c.Clients) == 0 && c.History == "" {
		problems.Add(0, "there are no clients; list them under clients:, such as clients: {main-panel: {}}, or name a prepared file as history:")
	}
	if len(c.Clients) > maxClients {
		bad("clients", "has %d entries; the maximum is %d, so run several agents", len(c.Clients), maxClients)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Clients)) {
		c.Clients[name] = checkClient(c, name, bad, choice)
	}
	checkGroups(c, bad)
	checkAddresses(c, bad, choice)
	checkWeather(c.Weather, bad)
	checkForecast(c, bad, choice)
	if c.Train.Workers < 1 || c.Train.Workers > 64 {
		bad("train.workers", "is %d; write 1 to 64", c.Train.Workers)
	}
	if key, problem := c.Policy.Wrong(); problem != "" {
		bad("policy."+key, "%s", problem)
	}
}

func checkSite(c *Config, bad func(key, format string, a ...any)) {
	switch zone, err := time.LoadLocation(c.Site.Zone); {
	case c.Site.Zone == "" || c.Site.Zone == "Local":
		bad("site.zone", "is missing; write the time zone of the meters, such as zone: Europe/Berlin")
	case err != nil:
		bad("site.zone", "is %q, which is not a time zone; write an IANA name such as Europe/Berlin, or UTC", c.Site.Zone)
	default:
		c.location = zone
	}
	if d := c.Step(); d < time.Minute || d > time.Hour || time.Hour%d != 0 {
		bad("site.interval", "is %s; write a duration that divides an hour, such as 15m, 30m or 1h", c.Site.Interval)
	}
	if err := checkName(c.Site.Name); err != nil {
		bad("site.name", "is %q: %v", c.Site.Name, err)
	}
}

// checkName allows names that can be part of an MQTT topic and of a URL.
func checkName(name string) error {
	if name == "" || len(name) > maxName || !utf8.ValidString(name) {
		return fmt.Errorf("a name must have 1 to %d bytes of UTF-8", maxName)
	}
	for _, r := range name {
		if unicode.IsControl(r) || strings.ContainsRune("/+#\"\\", r) {
			return fmt.Errorf("a name must not contain %q", r)
		}
	}
	return nil
}

func checkClient(c *Config, name string, bad func(key, format string, a ...any), choice func(key, value string, allowed ...string)) Client {
	x, key := c.Clients[name], "clients."+name
	if err := checkName(name); err != nil {
		bad(key, "cannot be a client: %v", err)
	}
	if x.Source == "" {
		x.Source = SourcePush
		if x.Topic != "" {
			x.Source = SourceMQTT
		}
	}
	if x.Source == "http" || x.Source == "inbox" { // the inbox and HTTP accept readings of every client
		x.Source = SourcePush
	}
	choice(key+".source", x.Source, SourcePush, SourceMQTT)
	x.Sign = cmp.Or(x.Sign, SignLoad)
	choice(key+".sign", x.Sign, SignLoad, SignNet)
	if x.Kind != "" {
		choice(key+".kind", x.Kind, "counter", "power", "interval")
	}
	if x.Limit < 0 {
		bad(key+".limit", "is %g; write the highest plausible power in kW", x.Limit)
	}
	if x.Source == SourceMQTT {
		if x.Topic == "" {
			bad(key+".topic", "is missing; 'loadstar-agent discover' lists the topics of a broker")
		}
		if c.MQTT.Broker == "" {
			bad(key, "has readings from MQTT, but there is no broker; write mqtt: {broker: \"mqtt://HOST\"}")
		}
		x.Preset = cmp.Or(x.Preset, "generic")
	} else if x.Topic != "" || x.Preset != "" {
		bad(key, "has a topic or preset, but its source is %s; write source: mqtt", x.Source)
	}
	return x
}

func checkGroups(c *Config, bad func(key, format string, a ...any)) {
	for _, name := range slices.Sorted(maps.Keys(c.Groups)) {
		key := "groups." + name
		members := c.Groups[name]
		if err := checkName(name); err != nil {
			bad(key, "cannot be a group: %v", err)
		}
		if _, ok := c.Clients[name]; ok {
			bad(key, "has the name of a client; choose another one")
		}
		if len(members) < 2 {
			bad(key, "has %d members; a group has at least 2", len(members))
		}
		for i, m := range members {
			if _, ok := c.Clients[m]; !ok && len(c.Clients) > 0 {
				bad(key, "contains %q, which is not a client; %s", m, config.Suggest(m, slices.Sorted(maps.Keys(c.Clients))))
			}
			if slices.Contains(members[:i], m) {
				bad(key, "contains %q twice", m)
			}
		}
	}
}

func checkWeather(w Weather, bad func(key, format string, a ...any)) {
	if w.Address == "" {
		return
	}
	if _, err := openmeteo.New(w.Address); err != nil {
		bad("weather.address", "is wrong: %v", err)
	}
	if err := (openmeteo.Place{Latitude: w.Latitude, Longitude: w.Longitude}).Check(); err != nil {
		bad("weather.latitude", "and weather.longitude: %v", err)
	}
	if !(w.Precision >= 0 && w.Precision <= 5) {
		bad("weather.precision", "is %g; write 0 to 5 degrees", w.Precision)
	}
	if d := time.Duration(w.Every); d < 15*time.Minute || d > 24*time.Hour {
		bad("weather.every", "is %s; write a duration from 15m to 24h", w.Every)
	}
}

func checkAddresses(c *Config, bad func(key, format string, a ...any), choice func(key, value string, allowed ...string)) {
	if c.MQTT.Broker != "" {
		u, err := url.Parse(c.MQTT.Broker)
		if err != nil || u.Host == "" || u.Scheme != "mqtt" && u.Scheme != "mqtts" {
			bad("mqtt.broker", "is %q; write mqtt://HOST[:1883] or mqtts://HOST[:8883]", c.MQTT.Broker)
		} else if u.User != nil {
			bad("mqtt.broker", "contains a user; write mqtt.user and mqtt.password_file instead")
		}
		if err := checkName(c.MQTT.Prefix); err != nil {
			bad("mqtt.prefix", "is %q: %v", c.MQTT.Prefix, err)
		}
	}
	if c.MQTT.Discovery != "" {
		choice("mqtt.discovery", c.MQTT.Discovery, "homeassistant")
	}
	if c.HTTP.Listen == "" || c.HTTP.Listen == "none" {
		c.HTTP.Listen = ""
		return
	}
	host, port, err := net.SplitHostPort(c.HTTP.Listen)
	if n, perr := strconv.Atoi(port); cmp.Or(err, perr) != nil || n < 0 || n > 65535 {
		bad("http.listen", "is %q; write an address and a port, such as 127.0.0.1:7446, or none", c.HTTP.Listen)
		return
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) && c.HTTP.TokenFile == "" {
		bad("http.listen", "is %q, which other machines can reach; set http.token_file to a file with a secret, or listen on 127.0.0.1", c.HTTP.Listen)
	}
}

func checkForecast(c *Config, bad func(key, format string, a ...any), choice func(key, value string, allowed ...string)) {
	f := &c.Forecast
	step := c.Step()
	if step <= 0 {
		return
	}
	if h := time.Duration(f.H); h < step || h%step != 0 || h/step > maxRows {
		bad("forecast.h", "is %s; write a multiple of the interval %s, at most %s", f.H, c.Site.Interval, Duration(min(14*24*time.Hour, maxRows*step)))
	}
	if d := time.Duration(f.Delay); d >= step {
		bad("forecast.delay", "is %s; it must be shorter than the interval %s", f.Delay, c.Site.Interval)
	}
	choice("forecast.fallback", f.Fallback, "generic", "week", "extreme-day")
	ascending := slices.IsSorted(f.Levels) && len(slices.Compact(slices.Clone(f.Levels))) == len(f.Levels)
	if len(f.Levels) == 0 || len(f.Levels) > maxLevels || !ascending || f.Levels[0] < 0.01 || f.Levels[len(f.Levels)-1] > 0.99 || !slices.Contains(f.Levels, 0.5) {
		bad("forecast.levels", "is %v; write up to %d ascending levels from 0.01 to 0.99 that include 0.5, such as [0.1, 0.5, 0.9]", f.Levels, maxLevels)
	}
}

// lineOf returns the line of a key, or of the nearest key around it.
func lineOf(keys map[string]int, key string) int {
	for ; key != ""; key = key[:max(strings.LastIndexByte(key, '.'), 0)] {
		if n, ok := keys[key]; ok {
			return n
		}
		first := 0
		for k, n := range keys {
			if strings.HasPrefix(k, key+".") && (first == 0 || n < first) {
				first = n
			}
		}
		if first > 0 {
			return first
		}
	}
	return 0
}
