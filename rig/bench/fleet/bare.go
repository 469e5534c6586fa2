package fleet

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"loadstar/internal/mtls"
	"loadstar/internal/proc"
	"loadstar/rig/fleetload"
)

// The bare engine measures the cost of a call to a server that only answers. One process serves
// and another calls. A single process may not be allowed to open enough files for both ends of
// all connections, and neither end should spend time on collecting the other's garbage.

// bare is the calling process.
type bare struct {
	cmd     *exec.Cmd
	ask     io.WriteCloser
	answers *bufio.Scanner
	said    bytes.Buffer
}

// bareQuestion requests a measurement, and bareAnswer contains its result.
type bareQuestion struct {
	Bytes int
	For   time.Duration
}

type bareAnswer struct {
	CPU float64 // CPU time of the server in milliseconds per call
}

func (b *testbed) dialBare(ctx context.Context, connections int, short bool) (err error) {
	x := &bare{}
	if x.cmd, err = self(ctx, "bench", "fleet-http", "--connections", strconv.Itoa(connections), "--short="+strconv.FormatBool(short)); err != nil {
		return err
	}
	x.cmd.Stderr = &x.said
	if x.ask, err = x.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := x.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	x.answers = bufio.NewScanner(out)
	if err := x.cmd.Start(); err != nil {
		return err
	}
	b.bare = x
	_, err = x.get() // wait until the process has connected
	return err
}

func (x *bare) get() (a bareAnswer, err error) {
	if !x.answers.Scan() {
		x.close()
		return a, fmt.Errorf("measure bare HTTP: %s", bytes.TrimSpace(x.said.Bytes()))
	}
	return a, json.Unmarshal(x.answers.Bytes(), &a)
}

func (x *bare) close() {
	_ = x.ask.Close() // the process then ends
	_ = x.cmd.Wait()  // its measurement has been read
}

// bareHTTP returns the server's CPU time in milliseconds for a bare call.
func (b *testbed) bareHTTP(_ context.Context, size int, d time.Duration) (float64, error) {
	if err := json.NewEncoder(b.bare.ask).Encode(bareQuestion{size, d}); err != nil {
		return 0, err
	}
	a, err := b.bare.get()
	return a.CPU, err
}

// CallBare starts a bare server, connects to it, and answers questions from in until in ends.
func CallBare(ctx context.Context, connections int, short bool, in io.Reader, out io.Writer) error {
	if connections < 1 || connections > maxShort {
		return &UsageError{fmt.Errorf("--connections must be 1 to %d", maxShort)}
	}
	if err := openFiles(min(connections, maxAgents)); err != nil && !short {
		return err
	}
	b, err := newBundle()
	if err != nil {
		return err
	}
	text, err := b.PEM()
	if err != nil {
		return err
	}
	cmd, err := self(context.WithoutCancel(ctx), "bench", "fleet-http", "--serve")
	if err != nil {
		return err
	}
	cmd.Stdin, cmd.Stderr = bytes.NewReader(text), os.Stderr
	said, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	server, err := proc.Start(cmd, syscall.SIGKILL)
	if err != nil {
		return err
	}
	defer func() { _ = server.Kill() }() // the server stores nothing
	var address string
	if _, err := fmt.Fscanln(said, &address); err != nil {
		return fmt.Errorf("start the bare server: %w", err)
	}
	lines, err := fleetload.Dial(ctx, "https://"+address, tlsOf(b, false), connections, short)
	if err != nil {
		return err
	}
	defer lines.Close()
	answer := json.NewEncoder(out)
	if err := answer.Encode(bareAnswer{}); err != nil {
		return err
	}
	for questions := json.NewDecoder(in); ; {
		var q bareQuestion
		if err := questions.Decode(&q); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if _, err := lines.Call(ctx, q.Bytes, q.For/10); err != nil { // warm-up
			return err
		}
		before, err := proc.UsageOf(server.Pid())
		if err != nil {
			return err
		}
		n, err := lines.Call(ctx, q.Bytes, q.For)
		if err != nil {
			return err
		}
		after, err := proc.UsageOf(server.Pid())
		if err != nil {
			return err
		}
		if err := answer.Encode(bareAnswer{1e3 * (after.CPU - before.CPU).Seconds() / float64(n)}); err != nil {
			return err
		}
	}
}

// ServeBare serves calls until ctx ends. It answers each message with one of the same size. It
// reads its key and certificate from in, and writes its address to out.
func ServeBare(ctx context.Context, in io.Reader, out io.Writer) error {
	text, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	b, err := mtls.Parse(text)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Fprintln(out, l.Addr())
	buffers := sync.Pool{New: func() any { return new(bytes.Buffer) }}
	s := &http.Server{TLSConfig: tlsOf(&b, true), ReadHeaderTimeout: time.Hour, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b := buffers.Get().(*bytes.Buffer)
		defer buffers.Put(b)
		b.Reset()
		if _, err := b.ReadFrom(r.Body); err != nil {
			return // the caller has disconnected
		}
		w.Header().Set("Content-Length", strconv.Itoa(b.Len()))
		_, _ = w.Write(b.Bytes()) // a failed write means that the caller has disconnected
	})}
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	if err := s.ServeTLS(l, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// newBundle returns a certificate for both ends of a bare connection.
func newBundle() (*mtls.Bundle, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(7 * 24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	c, err = x509.ParseCertificate(der)
	return &mtls.Bundle{Key: key, Certificates: []*x509.Certificate{c}}, err
}

// tlsOf returns the TLS settings of one end.
func tlsOf(b *mtls.Bundle, server bool) *tls.Config {
	own := b.Certificates[0]
	c := &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}, DynamicRecordSizingDisabled: true, // as in Loadstar
		Certificates: []tls.Certificate{{Certificate: [][]byte{own.Raw}, PrivateKey: b.Key, Leaf: own}},
	}
	if server {
		c.ClientCAs, c.ClientAuth = mtls.Pool(own), tls.RequireAndVerifyClientCert
	} else {
		c.RootCAs, c.ServerName = mtls.Pool(own), "127.0.0.1"
	}
	return c
}
