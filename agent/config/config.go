// Package config reads the configuration of an agent that forecasts: agent.yaml.
package config

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"loadstar/fed/policy"
	"loadstar/internal/config"
)

// Config is the content of agent.yaml. Paths are relative to the file's folder until [Read]
// makes them absolute.
type Config struct {
	// Dir is the agent's folder: readings.db, live.db (forecasts, models, scores), agent.db
	// (training) and its identity.
	Dir  string `yaml:"dir"`
	Site Site   `yaml:"site"`
	// Server is whether the agent trains for a server: none (never), optional (if it has joined a
	// server) or required.
	Server string `yaml:"server"`
	Store  Store  `yaml:"store"`
	// History is a prepared file with earlier readings, which the agent imports once.
	History string `yaml:"history"`
	// Model is the folder of a model that clients use, such as a run's folder.
	Model string `yaml:"model"`
	// Clients are the meters. If none are listed, the meters of the history are the clients. A
	// client without settings takes its readings from the inbox and HTTP.
	Clients map[string]Client `yaml:"clients"`
	// Groups are clients that are forecast as one: NAME: [CLIENT, CLIENT].
	Groups map[string][]string `yaml:"groups"`
	// Inbox is a folder in which files with readings and weather arrive.
	Inbox    string   `yaml:"inbox"`
	Weather  Weather  `yaml:"weather"`
	MQTT     MQTT     `yaml:"mqtt"`
	HTTP     HTTP     `yaml:"http"`
	Forecast Forecast `yaml:"forecast"`
	Share    Share    `yaml:"share"`
	Train    Train    `yaml:"train"`
	// Policy determines which plans of a server the agent trains.
	Policy policy.Policy `yaml:"policy"`

	location *time.Location
}

// Site is the place of the clients.
type Site struct {
	// Name is the name of the agent in MQTT topics and for operators.
	Name string `yaml:"name"`
	// Zone is the time zone of the meters, such as Europe/Berlin. It must be given.
	Zone string `yaml:"zone"`
	// Country is the country or region whose public holidays apply, such as DE or AU-NSW. The
	// default is the country in the history.
	Country string `yaml:"country"`
	// Interval is the length of a step. It is the same for all clients, and must divide an hour.
	Interval Duration `yaml:"interval"`
}

// Store configures the readings on disk.
type Store struct {
	// Keep is the time for which readings are kept.
	Keep Duration `yaml:"keep"`
	// Flush is the longest time that samples wait before they are written.
	Flush Duration `yaml:"flush"`
}

// Client describes where the readings of a client come from.
type Client struct {
	// Source is where readings come from: push (inbox and HTTP) or mqtt.
	Source string `yaml:"source"`
	// Topic is the MQTT topic, without wildcards.
	Topic string `yaml:"topic"`
	// Preset is the kind of device that sends the messages.
	Preset string `yaml:"preset"`
	// Value is the path to the value in a message, for the preset generic or to choose among
	// several values.
	Value string `yaml:"value"`
	// Time is the path to the value's timestamp, for the preset generic.
	Time string `yaml:"time"`
	// Kind is the kind of value: counter, power or interval.
	Kind string `yaml:"kind"`
	// Unit is the unit of the value, such as kWh or W.
	Unit string `yaml:"unit"`
	// Sign is load, or net, which keeps negative values (feed-in).
	Sign string `yaml:"sign"`
	// Limit is the highest plausible power in kW. If it is 0, the agent derives the limit from
	// the readings.
	Limit float64 `yaml:"limit"`
}

// Weather is a service from which the agent requests weather. If Address is empty, there is no
// service.
type Weather struct {
	// Address is a service with the interface of Open-Meteo, such as https://api.open-meteo.com.
	// Without an address, the agent fetches no weather. The service learns only the rounded
	// coordinates and the agent's internet address.
	Address string `yaml:"address"`
	// Latitude is the site's latitude in degrees.
	Latitude float64 `yaml:"latitude"`
	// Longitude is the site's longitude in degrees.
	Longitude float64 `yaml:"longitude"`
	// Precision is the number of degrees to which the agent rounds both coordinates before it
	// sends them. 0 means no rounding. 0.1 is about 11 km.
	Precision float64 `yaml:"precision"`
	// Every is the time between two requests.
	Every Duration `yaml:"every"`
}

// MQTT is the connection to a broker. If Broker is empty, the agent does not use MQTT.
type MQTT struct {
	// Broker is a URL with the scheme mqtt or mqtts.
	Broker string `yaml:"broker"`
	// User is the user name with which the agent connects to the broker.
	User string `yaml:"user"`
	// PasswordFile is a file with the password on one line.
	PasswordFile string `yaml:"password_file"`
	// CAFile is a file with the certificate authorities that sign the broker's certificate. By
	// default, the agent uses the system's authorities.
	CAFile string `yaml:"ca_file"`
	// ServerName is the name in the broker's certificate, if it differs from the host in the
	// address of the broker.
	ServerName string `yaml:"server_name"`
	// Discovery is homeassistant to announce forecasts to Home Assistant. If it is empty, forecasts
	// are not announced.
	Discovery string `yaml:"discovery"`
	// Prefix is the first level of the topics of forecasts.
	Prefix string `yaml:"prefix"`
}

// HTTP is the agent's HTTP interface. If Listen is empty, there is no interface.
type HTTP struct {
	// Listen is the address of the interface; none disables it. Addresses that other machines can
	// reach need a token.
	Listen string `yaml:"listen"`
	// TokenFile is a file with the token that requests must contain.
	TokenFile string `yaml:"token_file"`
}

// Forecast configures what is forecast and when.
type Forecast struct {
	// H is the forecast horizon, at most 14 days.
	H Duration `yaml:"h"`
	// Levels are the quantiles; 0.5 must be among them.
	Levels []float64 `yaml:"levels,flow"`
	// Delay is the time for which the agent waits for readings after the end of a step.
	Delay Duration `yaml:"delay"`
	// Drop is a folder for forecasts as CSV files.
	Drop string `yaml:"drop"`
	// Fallback is the source of forecasts without a release: generic (the built-in model), week
	// (the median of 28 days, or last week's load) or extreme-day (the day with the highest peak of
	// the last 28 days).
	Fallback string `yaml:"fallback"`
}

// Share determines whether the agent sends scores to the server.
type Share struct {
	// Scores is true if the agent is allowed to send scores to the server. Scores contain neither
	// loads nor time series.
	Scores bool `yaml:"scores"`
}

// Train configures the training for a server.
type Train struct {
	// Workers is the number of clients that train in parallel. Training waits while the agent
	// forecasts.
	Workers int `yaml:"workers"`
	// Invitations is a file with the invitation of a keeper. If there are several keepers, each line
	// has the identity of a keeper and then its invitation. The agent needs the invitation of a
	// keeper until that keeper has enrolled the agent.
	Invitations string `yaml:"invitations"`
}

// The permitted values of keys.
const (
	ServerNone     = "none"
	ServerOptional = "optional"
	ServerRequired = "required"
	SourcePush     = "push"
	SourceMQTT     = "mqtt"
	SignLoad       = "load"
	SignNet        = "net"
)

// Default returns the settings of an empty file.
func Default() Config {
	host, _ := os.Hostname() // without a host name, the agent's name is agent
	host = cmp.Or(host, "agent")
	return Config{
		Dir:      "loadstar-agent",
		Site:     Site{Name: host, Interval: Duration(time.Hour)},
		Server:   ServerOptional,
		Store:    Store{Keep: Duration(800 * 24 * time.Hour), Flush: Duration(time.Minute)},
		Weather:  Weather{Precision: 0.1, Every: Duration(time.Hour)},
		MQTT:     MQTT{Prefix: "loadstar"},
		HTTP:     HTTP{Listen: "127.0.0.1:7446"},
		Forecast: Forecast{H: Duration(48 * time.Hour), Levels: []float64{0.1, 0.5, 0.9}, Delay: Duration(2 * time.Minute), Fallback: "generic"},
		Share:    Share{Scores: true},
		Train:    Train{Workers: 1},
		Policy:   policy.Default(),
	}
}

// Location returns the site's time zone.
func (c *Config) Location() *time.Location { return c.location }

// Step returns the interval of the clients' readings.
func (c *Config) Step() time.Duration { return time.Duration(c.Site.Interval) }

// File returns the path of a file in the agent's folder.
func (c *Config) File(name string) string { return filepath.Join(c.Dir, name) }

// Read reads a file and the environment. Variables such as LOADSTAR_AGENT_SITE_ZONE set keys
// with a single value, here site.zone. environ has the format of [os.Environ].
func Read(path string, environ []string) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the configuration: %w", err)
	}
	c, err := Parse(data, environ)
	if err != nil {
		return nil, fmt.Errorf("%s:\n%w", path, err)
	}
	base, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	for _, p := range []*string{&c.Dir, &c.History, &c.Model, &c.Inbox, &c.MQTT.PasswordFile, &c.MQTT.CAFile, &c.HTTP.TokenFile, &c.Forecast.Drop, &c.Train.Invitations} {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(base, *p)
		}
	}
	return c, nil
}

// Parse reads the text of a file. It does not make paths absolute.
func Parse(data []byte, environ []string) (*Config, error) {
	c := Default()
	var problems config.Problems
	keys, err := config.Keys(data)
	if err != nil {
		return nil, err // the text is not valid YAML
	}
	if err := config.Decode(data, &c); err != nil {
		problems = append(problems, err.(config.Problems)...)
	}
	problems = append(problems, config.Environment(&c, "LOADSTAR_AGENT_", environ)...)
	if len(problems) == 0 {
		check(&c, keys, &problems)
	}
	if err := problems.Err(); err != nil {
		return nil, err
	}
	return &c, nil
}

// Duration is a duration that may be given in days, such as 800d.
type Duration = config.Duration
