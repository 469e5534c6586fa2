package bus

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"loadstar/internal/freeport"
)

// The server does not disconnect a slow client, even if the client's results far exceed the
// bytes that a server queues for one connection.
func TestSlowLink(t *testing.T) {
	t.Parallel()
	n := NodeConfig{Name: "n", Dir: t.TempDir(), Listen: freeport.ForTest(t)}
	node(t, n)
	const results, size = 44, 3 << 20
	near := open(t, Config{URLs: []string{"nats://" + n.Listen}, Replicas: 1})
	for i := range results {
		publish(t, near, fmt.Sprint(i), payload(fmt.Sprint(i), size))
	}
	far := open(t, Config{URLs: []string{"nats://" + slowly(t, n.Listen, 60<<20)}, Replicas: 1})
	var mu sync.Mutex
	seen := map[string]int{}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for end := time.Now().Add(patient); time.Now().Before(end); {
				got, err := far.Take(t.Context(), 64, 1<<30, time.Second)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, d := range got {
					seen[d.ID()]++
					_ = d.Done()
				}
				all := len(seen) == results
				mu.Unlock()
				if all {
					return
				}
			}
		})
	}
	wg.Wait()
	if again := far.conn.Stats().Reconnects; again != 0 || len(seen) != results {
		t.Errorf("disconnected %d times, %d of %d results", again, len(seen), results)
	}
}

// slowly forwards connections to an address and limits the data from there to rate bytes a
// second. If the machine was busy, it sends the delayed data faster, so that the link does
// not stall.
func slowly(t *testing.T, address string, rate int) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", address)
			if err != nil {
				in.Close()
				return
			}
			wg.Go(func() {
				_, _ = io.Copy(out, in)
				out.Close()
			})
			wg.Go(func() {
				defer in.Close()
				buf := make([]byte, 64<<10)
				for free := time.Now(); ; {
					k, err := out.Read(buf)
					if err != nil {
						return
					}
					if least := time.Now().Add(-100 * time.Millisecond); free.Before(least) {
						free = least // an idle link accumulates no credit
					}
					free = free.Add(time.Duration(k) * time.Second / time.Duration(rate))
					time.Sleep(time.Until(free))
					if _, err := in.Write(buf[:k]); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

// node runs a node in this process until the test ends.
func node(t *testing.T, c NodeConfig) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	c.Ready = func() { close(ready) }
	go func() { ended <- RunNode(ctx, c, logOf(t)) }()
	select {
	case <-ready:
	case err := <-ended:
		cancel()
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// A region's leaf node forwards results to the hub's cluster.
func TestLeaf(t *testing.T) {
	t.Parallel()
	hub := NodeConfig{Name: "hub", Dir: t.TempDir(), Listen: freeport.ForTest(t), LeafListen: freeport.ForTest(t), Domain: "hub"}
	region := NodeConfig{Name: "region", Dir: t.TempDir(), Listen: freeport.ForTest(t), LeafRemotes: []string{hub.LeafListen}, Domain: "region"}
	node(t, hub)
	node(t, region)
	near := open(t, Config{URLs: []string{"nats://" + hub.Listen}, Replicas: 1, Domain: "hub"})
	far := open(t, Config{URLs: []string{"nats://" + region.Listen}, Replicas: 1, Domain: "hub"})
	woken, err := near.Woken(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	publish(t, far, "a", []byte("x"))
	got := take(t, near, 1, patient)
	if len(got) != 1 || got[0].ID() != "a" {
		t.Fatalf("%d results", len(got))
	}
	if err := got[0].Done(); err != nil {
		t.Fatal(err)
	}
	far.Wake("run")
	select {
	case run := <-woken:
		if run != "run" {
			t.Errorf("woken for %s", run)
		}
	case <-time.After(patient):
		t.Error("not woken")
	}
	if got, err := jetstream.New(far.conn); err == nil { // the leaf node must store nothing
		if _, err := got.Stream(t.Context(), streamName); !errors.Is(err, jetstream.ErrStreamNotFound) {
			t.Errorf("the region has a stream of its own: %v", err)
		}
	}
}

// A node that has certificates refuses clients without a certificate.
func TestNodeCertificates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca, cert, key := certificate(t, dir, "ours")
	n := NodeConfig{Name: "n", Dir: filepath.Join(dir, "n"), Listen: freeport.ForTest(t), CAFile: ca, CertFile: cert, KeyFile: key}
	node(t, n)
	c := Config{URLs: []string{"tls://" + n.Listen}, Replicas: 1, CAFile: ca, CertFile: cert, KeyFile: key}
	b := open(t, c)
	publish(t, b, "a", []byte("x"))

	_, otherCert, otherKey := certificate(t, dir, "others")
	for name, c := range map[string]Config{
		"none":   {URLs: c.URLs, Replicas: 1, CAFile: ca},
		"others": {URLs: c.URLs, Replicas: 1, CAFile: ca, CertFile: otherCert, KeyFile: otherKey},
		"plain":  {URLs: []string{"nats://" + n.Listen}, Replicas: 1},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if b, err := Open(ctx, c, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("connected with %s", name)
			shut(t, b)
		}
		cancel()
	}
}

func TestNodeConfig(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca, cert, key := certificate(t, dir, "ours")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for name, c := range map[string]NodeConfig{
		"no name":         {Dir: dir, Listen: "127.0.0.1:4222"},
		"no port":         {Name: "n", Dir: dir, Listen: "127.0.0.1"},
		"port 0":          {Name: "n", Dir: dir, Listen: "127.0.0.1:0"},
		"any address":     {Name: "n", Dir: dir, Listen: "0.0.0.0:4222"},
		"no host":         {Name: "n", Dir: dir, Listen: ":4222"},
		"some host":       {Name: "n", Dir: dir, Listen: "127.0.0.1:4222", ClusterListen: "example.org:6222", Routes: []string{"127.0.0.1:6222"}},
		"leaf everywhere": {Name: "n", Dir: dir, Listen: "127.0.0.1:4222", LeafListen: "[::]:7422"},
		"no routes":       {Name: "n", Dir: dir, Listen: "127.0.0.1:4222", ClusterListen: "127.0.0.1:6222"},
		"no certificate":  {Name: "n", Dir: dir, Listen: "127.0.0.1:4222", CAFile: ca},
		"not a key":       {Name: "n", Dir: dir, Listen: "127.0.0.1:4222", CAFile: ca, CertFile: cert, KeyFile: cert},
		"too large":       {Name: "n", Dir: dir, Listen: "127.0.0.1:4222", MaxMessage: 1 << 30},
		"port is taken":   {Name: "n", Dir: dir, Listen: taken.Addr().String()},
	} {
		if err := RunNode(t.Context(), c, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%s: the node started", name)
		}
	}
	if _, err := (NodeConfig{Name: "n", Dir: dir, Listen: ":4222", CAFile: ca, CertFile: cert, KeyFile: key}).options(); err != nil {
		t.Errorf("with certificates: %v", err)
	}
}

// certificate creates an authority and a certificate for loopback addresses. It writes both
// and the key to files and returns their paths.
func certificate(t *testing.T, dir, name string) (ca, cert, key string) {
	t.Helper()
	write := func(file, kind string, der []byte) string {
		path := filepath.Join(dir, name+"-"+file)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	rootKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	rootDER, err := x509.CreateCertificate(rand.Reader, root, root, &rootKey.PublicKey, rootKey)
	must(err)
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "node"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, root, &leafKey.PublicKey, rootKey)
	must(err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(leafKey)
	must(err)
	return write("ca.pem", "CERTIFICATE", rootDER), write("cert.pem", "CERTIFICATE", leafDER), write("key.pem", "PRIVATE KEY", keyDER)
}
