package mqtt

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"syscall"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/packets"
)

var errOldBroker = errors.New("the broker does not support MQTT 5, which is required; use one that does, such as Mosquitto 1.6 or newer")

// dial connects to the broker.
func (c *Config) dial(ctx context.Context) (net.Conn, error) {
	u, err := url.Parse(c.Broker)
	if err != nil {
		return nil, err
	}
	port := u.Port()
	if port == "" && u.Scheme == "mqtts" {
		port = "8883"
	} else if port == "" {
		port = "1883"
	}
	address := net.JoinHostPort(u.Hostname(), port)
	var conn net.Conn
	if u.Scheme == "mqtts" {
		t := &tls.Config{ServerName: c.ServerName, MinVersion: tls.VersionTLS12}
		t.ServerName = cmp.Or(t.ServerName, u.Hostname())
		if c.CAFile != "" {
			pem, err := os.ReadFile(c.CAFile)
			if err != nil {
				return nil, fmt.Errorf("cannot read the certificate authorities of the broker: %w", err)
			}
			t.RootCAs = x509.NewCertPool()
			if !t.RootCAs.AppendCertsFromPEM(pem) {
				return nil, fmt.Errorf("%s contains no certificates in PEM format", c.CAFile)
			}
		}
		conn, err = (&tls.Dialer{Config: t}).DialContext(ctx, "tcp", address)
	} else {
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}
	if err != nil {
		return nil, err
	}
	return packets.NewThreadSafeConn(&limited{Conn: conn}), nil
}

// limited ends a connection at a packet that is larger than the agent allows. The library
// would reserve memory for any size that the packet's header states, up to 256 MB.
type limited struct {
	net.Conn
	started bool // the broker has responded
	header  []byte
	left    int // bytes until the end of the packet
}

func (l *limited) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	if !l.started && n == 0 && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)) {
		return n, fmt.Errorf("the broker closed the connection without an answer; brokers without MQTT 5 do this, but MQTT 5 is required (%w)", err)
	}
	for data := b[:n]; len(data) > 0; {
		if skip := min(l.left, len(data)); skip > 0 {
			data, l.left = data[skip:], l.left-skip
			continue
		}
		l.header = append(l.header, data[0])
		data = data[1:]
		k := len(l.header) - 1 // bytes of the length field
		if k == 0 || l.header[k]&0x80 != 0 && k < 4 {
			continue
		}
		length := 0
		for i := k; i > 0; i-- {
			length = length<<7 | int(l.header[i]&0x7f)
		}
		// The response to the first packet has 2 bytes in MQTT 3, and at least 3 in MQTT 5.
		if !l.started && l.header[0] == packets.CONNACK<<4 && length == 2 {
			return 0, errOldBroker
		}
		if length > maxPacket {
			return 0, fmt.Errorf("the broker sent a packet of %d bytes; at most %d are accepted", length, maxPacket)
		}
		l.header, l.left, l.started = l.header[:0], length, true
	}
	return n, err
}

// explain turns a connection error into a sentence.
func explain(err error) error {
	refused, ok := errors.AsType[*autopaho.ConnackError](err)
	if !ok {
		return err
	}
	switch refused.ReasonCode {
	case 0x84:
		return errOldBroker
	case 0x86:
		return errors.New("the broker refused the user name or password")
	case 0x87:
		return errors.New("the broker does not authorize this agent; check user, password and the broker's access rules")
	case 0x85:
		return errors.New("the broker refused the client ID; choose another name for the agent")
	}
	return fmt.Errorf("the broker refused the connection with reason 0x%02x %s", refused.ReasonCode, refused.Reason)
}
