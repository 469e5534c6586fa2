package bus

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// Config configures a Bus.
type Config struct {
	// Dir holds the streams of an embedded server. Only one process may use it. The
	// embedded server does not listen on the network, so only this process can use it.
	Dir string
	// URLs are the addresses of an external cluster, used instead of Dir. All of its
	// servers must run JetStream with `sync_interval: always`. By default they acknowledge
	// data before it is on disk, so accepted results are lost if the machines lose power. A
	// client cannot detect this setting.
	URLs []string
	// Credentials is a file with a user's JWT and key. CAFile is a file with the
	// authorities that may sign a server's certificate. CertFile and KeyFile are the files
	// of the client certificate and its key. All apply to URLs only, and all may be empty.
	Credentials, CAFile, CertFile, KeyFile string
	// Domain is the cluster's JetStream domain. It is needed if this process connects
	// through a leaf node.
	Domain string

	// Key is the secret that gateways and aggregators share. With it, results carry a MAC,
	// and Take drops results without a valid one: whoever reaches NATS can then not make up
	// results of agents. An embedded server, which nobody else reaches, needs none.
	Key []byte

	// Replicas is the number of servers that store each result. 0 means 1 for an embedded
	// server and 3 for a cluster.
	Replicas int
	// MaxBytes limits the size of the queue; beyond it Publish fails with ErrFull. 0
	// means 8 GiB.
	MaxBytes int64
	// MinFree is the space to keep free on the disk of Dir, whatever MaxBytes allows:
	// after a failed write a server does not recover until it is restarted. 0 means 256
	// MiB.
	MinFree int64
	// MaxMessage is the size of the largest result. 0 means 16 MiB; the maximum is 32
	// MiB.
	MaxMessage int
	// MaxGroup is the maximum number of results in one message. Results share a message
	// when they arrive faster than the disk can sync. 0 means 64; 1 disables grouping.
	MaxGroup int
	// AckWait is how long a delivery may stay unanswered before it goes to another
	// aggregator. 0 means 30 s.
	AckWait time.Duration
}

const (
	// envelope is the size of a message without its data: headers, subjects and framing.
	envelope = 4 << 10
	// maxID is the length of the longest message id, in bytes. It is less than envelope.
	maxID = 512
	// messageLimit is the largest MaxMessage. Two messages must fit into the queue that a
	// server holds for one connection, 64 MiB by default. A server closes the connection
	// when the queue overflows.
	messageLimit = 32<<20 - 2*envelope
)

func (c Config) withDefaults() (Config, error) {
	embedded := c.Dir != ""
	if embedded == (len(c.URLs) > 0) {
		return c, errors.New("bus: set either a folder for an embedded NATS server or the URLs of a cluster")
	}
	if embedded && (c.Replicas > 1 || c.Domain != "" || c.Credentials+c.CAFile+c.CertFile+c.KeyFile != "") {
		return c, errors.New("bus: replicas, a domain, credentials and certificates apply to a cluster, not to an embedded NATS server")
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		return c, errors.New("bus: set both a client certificate and its key, or neither")
	}
	for _, path := range []string{c.Credentials, c.CAFile, c.CertFile, c.KeyFile} {
		if path == "" {
			continue
		}
		// The client reads these files at every connection attempt and would retry
		// forever.
		if _, err := os.ReadFile(path); err != nil {
			return c, fmt.Errorf("bus: %w", err)
		}
	}
	if c.Replicas == 0 {
		c.Replicas = 3
		if embedded {
			c.Replicas = 1
		}
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = 8 << 30
	}
	if c.MinFree == 0 {
		c.MinFree = 256 << 20
	}
	if c.MaxMessage == 0 {
		c.MaxMessage = 16 << 20
	}
	if c.MaxGroup == 0 {
		c.MaxGroup = 64
	}
	if c.AckWait == 0 {
		c.AckWait = 30 * time.Second
	}
	switch {
	case c.Replicas < 1 || c.Replicas > 5:
		return c, fmt.Errorf("bus: %d replicas; NATS supports 1 to 5", c.Replicas)
	case c.MaxMessage < 0 || c.MaxMessage > messageLimit:
		return c, fmt.Errorf("bus: the largest result is set to %d bytes; NATS allows 0 to %d", c.MaxMessage, messageLimit)
	case c.MaxBytes < int64(c.MaxMessage):
		return c, fmt.Errorf("bus: the queue holds %d bytes, but a single result may have %d", c.MaxBytes, c.MaxMessage)
	case c.AckWait < 0 || c.MinFree < 0 || c.MaxGroup < 0:
		return c, errors.New("bus: times, sizes and limits must not be negative")
	}
	return c, nil
}
