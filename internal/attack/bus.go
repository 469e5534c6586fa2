package main

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"loadstar/internal/freeport"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/bus"
)

// buses lists the attacks of whoever reaches NATS.
func buses() []Attack {
	return []Attack{
		{ID: "H11a", Name: "whoever reaches NATS counts as any agent", Run: forgeArrival},
		{ID: "H11b", Name: "NATS cannot be used with TLS and client certificates", Run: openBus},
	}
}

// nodes starts three NATS nodes and returns their addresses.
func (f *Fleet) nodes() ([]string, error) {
	listen, routes, err := addresses()
	if err != nil {
		return nil, err
	}
	var urls []string
	for i := range listen {
		name := fmt.Sprintf("nats-%d", i+1)
		if _, err := f.start(name, "nats-node", "--name", name, "--dir", f.path(name),
			"--listen", listen[i], "--cluster", routes[i], "--routes", strings.Join(routes, ",")); err != nil {
			return nil, err
		}
		urls = append(urls, "nats://"+listen[i])
	}
	return urls, nil
}

// addresses returns the addresses of three nodes for clients and for each other.
func addresses() (listen, routes []string, err error) {
	for range 3 {
		for _, to := range []*[]string{&listen, &routes} {
			address, err := freeport.Address()
			if err != nil {
				return nil, nil, err
			}
			*to = append(*to, address)
		}
	}
	return listen, routes, nil
}

// forgeArrival succeeds if a result that a stranger puts into the queue is counted as that of
// another agent's client, which is still training.
func forgeArrival(ctx context.Context, f *Fleet) (Result, error) {
	urls, err := f.nodes()
	if err != nil {
		return Result{}, err
	}
	s, err := f.Serve(ctx, "--nats", strings.Join(urls, ","))
	if err != nil {
		return Result{}, err
	}
	run, holder, end, err := s.hold(ctx)
	if err != nil {
		return Result{}, err
	}
	r, err := s.forge(ctx, strings.Join(urls, ","), run, holder)
	if e := end(); err == nil {
		err = e
	}
	if err != nil {
		return Result{}, err
	}
	if all := rounds(r); len(all) > 0 {
		return succeeded("round 1 closed with %d counted, of which one did not answer", all[0].Counted), nil
	}
	if len(r.Rounds) == 0 || r.Rounds[0].Counted != 9 { // the honest results must pass
		return Result{}, fmt.Errorf("not nine clients are counted in the open round: %v", r.Rounds)
	}
	return repelled("9 honest results are counted, the forged one is not"), nil
}

// forge publishes a result of a client that trains, and returns the run some time later.
func (s *Server) forge(ctx context.Context, urls, run string, holder *Agent) (*v1.GetRunResponse, error) {
	var r *v1.GetRunResponse
	ok, err := eventually(ctx, 20*time.Second, func() (bool, error) {
		var err error
		r, err = s.look(ctx, run)
		return err == nil && r.Run.State == "running" && r.Run.Weights != "" && len(r.Rounds) > 0, err
	})
	if err != nil || !ok {
		return nil, fmt.Errorf("the run does not begin: %w", err)
	}
	weights, err := holder.weights(ctx, r.Run.Weights)
	if err != nil {
		return nil, err
	}
	arrival, err := proto.Marshal(&v1.Arrival{
		Run: run, Agent: holder.ID, Form: v1.Form_FORM_UPDATE, Numbers: make([]byte, 4*len(weights)),
		Shares: []*v1.Share{{Client: "holder", Examples: 100, Steps: 4, TrainLoss: 0.1, Loss: 0.1}},
	})
	if err != nil {
		return nil, err
	}
	message := protowire.AppendTag(nil, 1, protowire.BytesType)
	message = protowire.AppendString(message, "forged")
	message = protowire.AppendTag(message, 2, protowire.BytesType)
	message = protowire.AppendBytes(message, arrival)
	conn, err := nats.Connect(urls)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, err
	}
	if _, err := js.Publish(ctx, "loadstar.results", message); err != nil {
		return nil, fmt.Errorf("publishing to NATS: %w", err)
	}
	_, err = eventually(ctx, 6*time.Second, func() (bool, error) {
		r, err = s.look(ctx, run)
		return err == nil && len(rounds(r)) > 0, err
	})
	return r, err
}

// openBus succeeds if serve cannot use a NATS cluster that asks for client certificates.
func openBus(ctx context.Context, f *Fleet) (Result, error) {
	if !f.knows("--nats-cert") {
		return succeeded("serve has no flags for certificates of NATS"), nil
	}
	ca, cert, key, err := f.certificates()
	if err != nil {
		return Result{}, err
	}
	listen, routes, err := addresses()
	if err != nil {
		return Result{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var nodes errgroup.Group
	f.later(func() error { cancel(); return nodes.Wait() })
	var urls []string
	for i := range listen {
		name := fmt.Sprintf("nats-%d", i+1)
		nodes.Go(func() error {
			return bus.RunNode(ctx, bus.NodeConfig{
				Name: name, Dir: f.path(name), Listen: listen[i], ClusterListen: routes[i], Routes: routes,
				CAFile: ca, CertFile: cert, KeyFile: key,
			}, slog.New(slog.DiscardHandler))
		})
		urls = append(urls, "tls://"+listen[i])
	}
	all := strings.Join(urls, ",")
	if _, err := f.Serve(ctx, "--nats", all, "--nats-ca", ca, "--nats-cert", cert, "--nats-key", key); err != nil {
		if ctx.Err() != nil {
			return Result{}, ctx.Err()
		}
		return succeeded("serve cannot use NATS with TLS: %v", err), nil
	}
	if conn, err := nats.Connect(all, nats.RootCAs(ca)); err == nil {
		conn.Close()
		return succeeded("a stranger without a certificate connects to NATS"), nil
	}
	return repelled("serve uses NATS with TLS, which refuses strangers"), nil
}

// certificates writes a certificate authority, and a certificate with its key for both ends
// of a connection on this machine.
func (f *Fleet) certificates() (ca, cert, key string, err error) {
	private, _, err := request()
	if err != nil {
		return "", "", "", err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, IsCA: true,
		KeyUsage:    x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &private.PublicKey, private)
	if err != nil {
		return "", "", "", err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return "", "", "", err
	}
	text := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	ca, err1 := f.write("nats-ca.pem", text)
	cert, err2 := f.write("nats-cert.pem", text)
	key, err3 := f.write("nats-key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})))
	return ca, cert, key, errors.Join(err1, err2, err3)
}
