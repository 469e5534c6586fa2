// Package mqtt connects an agent to an MQTT broker. It decodes the messages of meters and
// publishes forecasts.
//
// The agent acknowledges a message only after the resulting readings are on disk. If the agent
// fails before that, the broker delivers the message again. Repeated messages do no harm. A
// sample with its own time gives the same reading. The agent drops a repeated message without a
// time, because its arrival is not the value's time.
package mqtt

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"time"
)

// Config describes the connection to a broker.
type Config struct {
	// Broker is a URL: mqtt://HOST[:1883] or mqtts://HOST[:8883].
	Broker       string
	User         string
	PasswordFile string // read at every connection
	// CAFile contains the certificates of the authorities that sign the broker's
	// certificate. If it is empty, the system's authorities are used. ServerName is the
	// name in the broker's certificate if it differs from the host.
	CAFile     string
	ServerName string
	// Agent is the agent's name. It must be unique at the broker, because the client ID and
	// the topics of forecasts contain it.
	Agent string
	// Prefix is the first level of the topics of forecasts, by default loadstar.
	Prefix string
	// Discovery is the first level of Home Assistant's discovery topics, usually
	// homeassistant. If it is empty, forecasts are not announced.
	Discovery string
	// Version is the program's version, which Home Assistant shows in its list of devices.
	Version string
	Sources []Source
	// Now returns the time, and false if the clock is known to be wrong. If it is nil, the
	// system's clock is used.
	Now func() (time.Time, bool)
	// Log receives messages. If it is nil, they are discarded.
	Log *slog.Logger

	// retry is the longest pause between two attempts to connect. probe is how long a broker may
	// pause before its window counts as full.
	retry, probe time.Duration
}

const (
	keepAlive     = 30    // seconds
	sessionExpiry = 86400 // number of seconds for which the broker keeps messages for an absent agent
	// window is the number of messages that the broker may send without an acknowledgement.
	// Together with maxPacket it bounds the memory of unacknowledged messages.
	window = 256
	// smallWindow is assumed until the broker has stated its own window. It is
	// Mosquitto's default.
	smallWindow = 20
	maxPacket   = maxPayload + 2<<10
)

func (c *Config) complete() error {
	u, err := url.Parse(c.Broker)
	if err != nil || u.Hostname() == "" || u.Scheme != "mqtt" && u.Scheme != "mqtts" {
		return fmt.Errorf("the broker is %q; write mqtt://HOST[:1883] or mqtts://HOST[:8883]", c.Broker)
	}
	if u.User != nil {
		return errors.New("the broker's URL contains a user; set user and password_file instead")
	}
	if c.Agent == "" {
		return errors.New("the agent has no name, which is needed for its topics")
	}
	c.Prefix = cmp.Or(c.Prefix, "loadstar")
	for _, s := range []string{c.Prefix, c.Discovery} {
		if strings.ContainsAny(s, "+#\x00") {
			return fmt.Errorf("the prefix of topics is %q; it must not contain + or #", s)
		}
	}
	if c.Now == nil {
		c.Now = func() (time.Time, bool) { return time.Now(), true }
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.retry = cmp.Or(c.retry, time.Minute)
	c.probe = cmp.Or(c.probe, 5*time.Second)
	return nil
}

// password reads the password file. It warns if others can read the file.
func (c *Config) password() ([]byte, error) {
	if c.PasswordFile == "" {
		return nil, nil
	}
	info, err := os.Stat(c.PasswordFile)
	if err != nil {
		return nil, fmt.Errorf("cannot read the broker's password: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		c.Log.Warn("other users of this machine can read the broker's password; run chmod 600", "file", c.PasswordFile)
	}
	data, err := os.ReadFile(c.PasswordFile)
	if err != nil {
		return nil, fmt.Errorf("cannot read the broker's password: %w", err)
	}
	return []byte(strings.TrimRight(string(data), "\r\n")), nil
}

// clientID is the same after a restart, so that the broker finds the session again.
func (c *Config) clientID() string { return "loadstar-" + level(c.Agent) }
