// Package mqtt connects an agent to an MQTT broker: it decodes the messages of meters and
// publishes forecasts.
package mqtt
