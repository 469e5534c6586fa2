package bus

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"

	"github.com/nats-io/nats-server/v2/server"
)

// NodeConfig configures a NATS server in a small cluster.
type NodeConfig struct {
	// Name must be unique in the cluster and must not change for the same Dir.
	Name string
	// Dir holds the server's streams. Only one process may use it.
	Dir string
	// Listen is the address for client connections, for example "127.0.0.1:4222".
	Listen string
	// ClusterListen is the address for the other nodes, and Routes lists their addresses,
	// for example "127.0.0.1:6222". Routes may include the node itself. If both are
	// empty, the node runs alone.
	ClusterListen string
	Routes        []string
	// LeafListen is the address for leaf nodes in regions. LeafRemotes lists the nodes that
	// this node connects to as a leaf node. Domain is the name of this node's JetStream
	// domain.
	LeafListen  string
	LeafRemotes []string
	Domain      string
	// CAFile, CertFile and KeyFile apply to all connections. With them, peers must present
	// a certificate too. Without them, the node may listen on loopback only.
	CAFile, CertFile, KeyFile string
	// MaxMessage is the size of the largest result. It must be at least Config.MaxMessage
	// of the clients. 0 means 16 MiB.
	MaxMessage int
	// Advertise is the address that clients learn, if it is not Listen, for instance behind
	// a proxy.
	Advertise string
	// SystemPassword lets the user "system" use the cluster's system account, from which a
	// lost node can be removed. Empty means that there is no such user.
	SystemPassword string
	// Ready is called when clients can connect. It may be nil.
	Ready func()
}

// RunNode runs a NATS server in this process until ctx is done. The server syncs each
// message to disk before it acknowledges it. If it could not write to its disk, it returns
// ErrBroken as soon as the disk can be written again, and must be run anew.
func RunNode(ctx context.Context, c NodeConfig, log *slog.Logger) error {
	o, err := c.options()
	if err != nil {
		return fmt.Errorf("bus: node %s: %w", c.Name, err)
	}
	s, text, lock, err := start(ctx, o, log)
	if err != nil {
		return fmt.Errorf("bus: node %s: %w", c.Name, err)
	}
	defer lock.Close()
	if c.Ready != nil {
		c.Ready()
	}
	broken := text.wait(ctx, o.StoreDir, 0)
	s.Shutdown()
	s.WaitForShutdown()
	if broken != nil {
		return fmt.Errorf("bus: node %s: %w", c.Name, broken)
	}
	return nil
}

func (c NodeConfig) options() (*server.Options, error) {
	if c.Name == "" || c.Dir == "" || c.Listen == "" {
		return nil, errors.New("a node needs a name, a folder and an address for clients")
	}
	if (c.ClusterListen == "") != (len(c.Routes) == 0) {
		return nil, errors.New("a cluster needs both an address for other nodes and the addresses of the other nodes")
	}
	if c.MaxMessage == 0 {
		c.MaxMessage = 16 << 20
	}
	if c.MaxMessage < 0 || c.MaxMessage > messageLimit {
		return nil, fmt.Errorf("the largest result is set to %d bytes; NATS allows 0 to %d", c.MaxMessage, messageLimit)
	}
	o := options(c.Dir, c.MaxMessage)
	o.ServerName = c.Name
	o.JetStreamDomain = c.Domain
	o.ClientAdvertise = c.Advertise
	mutual, err := c.tls()
	if err != nil {
		return nil, err
	}
	if mutual != nil {
		const seconds = 5 // timeout of a handshake
		o.TLS, o.TLSVerify, o.TLSConfig, o.TLSTimeout = true, true, mutual, seconds
		o.Cluster.TLSConfig, o.Cluster.TLSTimeout = mutual.Clone(), seconds
		o.LeafNode.TLSConfig, o.LeafNode.TLSTimeout = mutual.Clone(), seconds
	}
	if o.Host, o.Port, err = listen(c.Listen, mutual != nil); err != nil {
		return nil, err
	}
	if c.ClusterListen != "" {
		o.Cluster.Name = "loadstar"
		if c.Domain != "" {
			o.Cluster.Name += "-" + c.Domain
		}
		if o.Cluster.Host, o.Cluster.Port, err = listen(c.ClusterListen, mutual != nil); err != nil {
			return nil, err
		}
		if o.Routes, err = urls(c.Routes); err != nil {
			return nil, err
		}
	}
	if c.LeafListen != "" {
		if o.LeafNode.Host, o.LeafNode.Port, err = listen(c.LeafListen, mutual != nil); err != nil {
			return nil, err
		}
	}
	if c.SystemPassword != "" {
		system := server.NewAccount("SYS")
		o.Accounts, o.SystemAccount = []*server.Account{system}, system.Name
		o.Users = []*server.User{
			{Username: "system", Password: c.SystemPassword, Account: system},
			{Username: "client", Password: rand.Text()},
		}
		o.NoAuthUser = "client" // all other connections
	}
	if len(c.LeafRemotes) > 0 {
		remote := &server.RemoteLeafOpts{}
		if remote.URLs, err = urls(c.LeafRemotes); err != nil {
			return nil, err
		}
		if mutual != nil {
			remote.TLS, remote.TLSConfig = true, mutual.Clone()
		}
		o.LeafNode.Remotes = []*server.RemoteLeafOpts{remote}
	}
	return o, nil
}

func (c NodeConfig) tls() (*tls.Config, error) {
	if c.CAFile+c.CertFile+c.KeyFile == "" {
		return nil, nil
	}
	if c.CAFile == "" || c.CertFile == "" || c.KeyFile == "" {
		return nil, errors.New("TLS needs three files: certificate authorities, certificate and key")
	}
	t, err := server.GenTLSConfig(&server.TLSConfigOpts{
		CaFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile, Verify: true, MinVersion: tls.VersionTLS13,
	})
	if err != nil {
		return nil, err
	}
	t.RootCAs = t.ClientCAs // a node connects to other nodes as a client
	return t, nil
}

// listen splits an address into host and port. Without certificates, anyone who can reach
// the node can read and write its data, so only loopback addresses are allowed.
func listen(address string, trusted bool) (string, int, error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, err
	}
	port, err := strconv.Atoi(text)
	if err != nil || port < 1 || port > 65535 {
		return "", 0, fmt.Errorf("%s: the port must be a number from 1 to 65535", address)
	}
	if ip := net.ParseIP(host); !trusted && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return "", 0, fmt.Errorf("%s: without certificates a node may listen on loopback only", address)
	}
	return host, port, nil
}

func urls(addresses []string) ([]*url.URL, error) {
	var all []*url.URL
	for _, a := range addresses {
		if _, _, err := net.SplitHostPort(a); err != nil {
			return nil, err
		}
		all = append(all, &url.URL{Scheme: "nats", Host: a})
	}
	return all, nil
}
