package mqtt

import (
	"maps"
	"slices"

	"loadstar/agent/config"
)

// Settings returns the connection that agent.yaml describes.
func Settings(c *config.Config) Config {
	m := Config{
		Broker: c.MQTT.Broker, User: c.MQTT.User, PasswordFile: c.MQTT.PasswordFile, CAFile: c.MQTT.CAFile, ServerName: c.MQTT.ServerName,
		Agent: c.Site.Name, Prefix: c.MQTT.Prefix, Discovery: c.MQTT.Discovery,
	}
	for _, name := range slices.Sorted(maps.Keys(c.Clients)) {
		x := c.Clients[name]
		if x.Source == config.SourceMQTT {
			m.Sources = append(m.Sources, Source{
				Client: name, Topic: x.Topic, Preset: x.Preset, Value: x.Value, Kind: x.Kind, Unit: x.Unit, Time: x.Time, Interval: c.Step(),
			})
		}
	}
	return m
}
