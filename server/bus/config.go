package bus

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// Config says where results wait, and how many.
type Config struct {
	// Dir is where an embedded server keeps its streams; one process at a time. It
	// listens nowhere: only this process talks to it.
	Dir string
	// URLs are those of an external cluster, instead of Dir. All of its servers must
	// run JetStream with `sync_interval: always`. By default they answer before
	// anything is on disk, which a client cannot see, and then an accepted result is
	// lost when the machines that hold it lose power.
	URLs []string
	// Credentials is a file with a user's JWT and key. CAFile holds the authorities
	// that a server's certificate must come from; CertFile and KeyFile are shown to
	// it. All are for URLs alone, and all may be empty.
	Credentials, CAFile, CertFile, KeyFile string
	// Domain is the cluster's JetStream domain, where leaf nodes stand in between.
	Domain string

	// Replicas is how many servers keep each result: 1 embedded, 3 in a cluster.
	Replicas int
	// MaxBytes bounds what waits; beyond it Publish fails with ErrFull. 8 GiB if 0.
	MaxBytes int64
	// MinFree is what stays free on the disk of Dir, whatever MaxBytes allows: a
	// server that once fails to write does not recover until it is started anew.
	// 256 MiB if 0.
	MinFree int64
	// MaxMessage is the size of the largest result. 16 MiB if 0, at most 32 MiB.
	MaxMessage int
	// Together is how many results at most go in one message, when they come faster
	// than disks can be asked to write. 64 if 0; with 1 each goes alone.
	Together int
	// AckWait is how long a delivery may stay unanswered before somebody else gets
	// it. 30 s if 0.
	AckWait time.Duration
}

const (
	// envelope is what a message needs beside its data: headers, subjects and a frame.
	envelope = 4 << 10
	// maxID keeps the message id within the envelope.
	maxID = 512
	// biggest is the largest MaxMessage: two of them must fit into what a server
	// lets wait for one connection before it hangs up, 64 MiB unless configured.
	biggest = 32<<20 - 2*envelope
)

func (c Config) withDefaults() (Config, error) {
	embedded := c.Dir != ""
	if embedded == (len(c.URLs) > 0) {
		return c, errors.New("bus: give either a folder for an embedded NATS server or the URLs of a cluster")
	}
	if embedded && (c.Replicas > 1 || c.Domain != "" || c.Credentials+c.CAFile+c.CertFile+c.KeyFile != "") {
		return c, errors.New("bus: replicas, a domain, credentials and certificates are for a cluster, not for an embedded NATS server")
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		return c, errors.New("bus: a certificate needs its key, and a key its certificate")
	}
	for _, path := range []string{c.Credentials, c.CAFile, c.CertFile, c.KeyFile} {
		if path == "" {
			continue
		}
		// The client reads them at every connection, and would try forever.
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
	if c.Together == 0 {
		c.Together = 64
	}
	if c.AckWait == 0 {
		c.AckWait = 30 * time.Second
	}
	switch {
	case c.Replicas < 1 || c.Replicas > 5:
		return c, fmt.Errorf("bus: %d replicas; NATS keeps 1 to 5", c.Replicas)
	case c.MaxMessage < 0 || c.MaxMessage > biggest:
		return c, fmt.Errorf("bus: results of %d bytes; at most %d go through NATS", c.MaxMessage, biggest)
	case c.MaxBytes < int64(c.MaxMessage):
		return c, fmt.Errorf("bus: room for %d bytes, but a single result may have %d", c.MaxBytes, c.MaxMessage)
	case c.AckWait < 0 || c.MinFree < 0 || c.Together < 0:
		return c, errors.New("bus: a negative time or size")
	}
	return c, nil
}
