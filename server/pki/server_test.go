package pki

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"loadstar/internal/mtls"
)

// echo responds with the caller's identity and the protocol versions of the connection.
func echo(w http.ResponseWriter, r *http.Request) {
	who, ok := From(r.Context())
	fmt.Fprintf(w, "%v %v, HTTP/%d, TLS %x", who, ok, r.ProtoMajor, r.TLS.Version)
}

// start starts a server for echo with a certificate from the authority, and returns its
// URL.
func start(t testing.TB, a *Authority) string {
	t.Helper()
	config, err := a.TLS([]string{"127.0.0.1", "::1", "localhost"})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(Middleware(http.HandlerFunc(echo)))
	s.TLS = config
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.URL
}

func get(t testing.TB, url string, config *tls.Config) (string, error) {
	t.Helper()
	client := mtls.Client(mtls.Transport(config))
	defer client.CloseIdleConnections()
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func TestTLS(t *testing.T) {
	a, other := open(t), open(t)
	at := start(t, a)
	agent, operator := credentials(t, a, Identity{Agent, "7f3a"}, time.Hour), credentials(t, a, Identity{Operator, "local"}, time.Hour)
	stranger := credentials(t, other, Identity{Operator, "local"}, time.Hour)
	// The client trusts this server, but the server does not trust the client.
	stranger.Root = a.root
	server := credentials(t, a, Identity{Agent, "x"}, time.Hour)
	var err error
	// A server's certificate must not be accepted from a client.
	server.Leaf, err = a.sign(&x509.Certificate{
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, URIs: []*url.URL{Identity{Operator, "x"}.uri()},
	}, server.Key.Public(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	// An agent that signs certificates must not be accepted as an authority.
	nested := credentials(t, a, Identity{Agent, "x"}, time.Hour)
	forger := &Authority{key: nested.Key, root: nested.Leaf, now: time.Now}
	forged := credentials(t, forger, Identity{Operator, "x"}, 30*time.Minute)
	old := agent.TLS()
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	elsewhere := credentials(t, other, Identity{Agent, "a"}, time.Hour)
	forgedChain := &tls.Config{RootCAs: mtls.Pool(a.root), Certificates: []tls.Certificate{
		{Certificate: [][]byte{forged.Leaf.Raw, nested.Leaf.Raw}, PrivateKey: forged.Key},
	}}
	for name, c := range map[string]struct {
		config *tls.Config
		want   string // expected response; empty if the connection must fail
	}{
		"agent":                        {agent.TLS(), "agent 7f3a true, HTTP/2, TLS 304"},
		"operator":                     {operator.TLS(), "operator local true, HTTP/2, TLS 304"},
		"without a certificate":        {&tls.Config{RootCAs: mtls.Pool(a.root)}, "  false, HTTP/2, TLS 304"},
		"of another root":              {stranger.TLS(), ""},
		"the server's certificate":     {server.TLS(), ""},
		"signed by an agent":           {forgedChain, ""},
		"TLS 1.2":                      {old, ""},
		"that trusts another root":     {elsewhere.TLS(), ""},
		"that trusts the system alone": {&tls.Config{}, ""},
	} {
		got, err := get(t, at, c.config)
		if (err == nil) != (c.want != "") || got != c.want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
	if _, err := get(t, at, old); err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("TLS 1.2: %v", err)
	}
	// Test a host name as well: the client sends a name in the handshake, but not an
	// address.
	if got, err := get(t, strings.Replace(at, "127.0.0.1", "localhost", 1), agent.TLS()); err != nil || !strings.HasPrefix(got, "agent") {
		t.Errorf("localhost: %q, %v", got, err)
	}
}

func TestTLSShowsTheRoot(t *testing.T) {
	a := open(t)
	at := start(t, a)
	conn, err := tls.Dial("tcp", strings.TrimPrefix(at, "https://"), &tls.Config{RootCAs: mtls.Pool(a.root)})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	shown := conn.ConnectionState().PeerCertificates
	if len(shown) != 2 || !shown[1].Equal(a.root) {
		t.Errorf("%d certificates", len(shown))
	}
	if days := shown[0].NotAfter.Sub(shown[0].NotBefore).Hours() / 24; days < 90 || days > 90.1 {
		t.Errorf("the server's lives for %v days", days)
	}
}

// The server refuses an agent's certificate in the handshake if it has expired or is not
// valid yet.
func TestTLSRefusesWrongTimes(t *testing.T) {
	a := open(t)
	var ahead atomic.Int64
	begin := time.Now()
	a.now = func() time.Time { return begin.Add(time.Duration(ahead.Load())) }
	at := start(t, a)
	agent := credentials(t, a, Identity{Agent, "a"}, time.Hour)
	config := agent.TLS()
	config.Time = a.now
	for after, want := range map[time.Duration]bool{0: true, time.Hour - 2*time.Second: true, time.Hour + 2*time.Second: false, 1000 * time.Hour: false, -6 * time.Minute: false} {
		ahead.Store(int64(after))
		if after < 0 {
			config.Time = nil // only the server's clock is wrong
		} else {
			config.Time = a.now
		}
		if _, err := get(t, at, config); (err == nil) != want {
			t.Errorf("after %v: %v", after, err)
		}
		if !want {
			if err := refusal(t, at, config); !strings.Contains(err.Error(), "expired certificate") {
				t.Errorf("after %v: %v", after, err)
			}
		}
	}
}

// refusal returns the error with which the server refuses a client's certificate. The
// client has then already finished its side of the handshake. It must only read, because a
// client that writes may see only a broken connection.
func refusal(t testing.TB, at string, config *tls.Config) error {
	t.Helper()
	conn, err := tls.Dial("tcp", strings.TrimPrefix(at, "https://"), config)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetReadDeadline(time.Now().Add(5 * time.Minute)) // longer than the test
	if _, err = conn.Read(make([]byte, 1)); err == nil {
		t.Fatal("it was not refused")
	}
	return err
}

func TestTLSRenewsItself(t *testing.T) {
	a := open(t)
	var ahead atomic.Int64
	begin := time.Now()
	a.now = func() time.Time { return begin.Add(time.Duration(ahead.Load())) }
	at := strings.TrimPrefix(start(t, a), "https://")
	serial := func(day int) string {
		ahead.Store(int64(day) * int64(24*time.Hour))
		conn, err := tls.Dial("tcp", at, &tls.Config{RootCAs: mtls.Pool(a.root), Time: a.now})
		if err != nil {
			t.Fatalf("day %d: %v", day, err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	first := serial(0)
	if serial(59) != first {
		t.Error("renewed too early")
	}
	second := serial(61)
	if second == first {
		t.Error("not renewed when a third was left")
	}
	if serial(100) != second {
		t.Error("renewed without need")
	}
	if third := serial(400); third == second { // the certificate has expired
		t.Error("not renewed when it had expired")
	}
}

func TestTLSHosts(t *testing.T) {
	a := open(t)
	for _, hosts := range [][]string{{}, {""}, {"a b"}, {"host:8443"}, {"https://host"}, {"ä.example"}, {"-a"}, {"a..b"}, {"a.*"}, {"fe80::1%eth0"}, {strings.Repeat("a.", 127) + "a"}} {
		if _, err := a.TLS(hosts); err == nil {
			t.Errorf("%q: taken", hosts)
		}
	}
	config, err := a.TLS([]string{"Loadstar.Example", "*.grid.example", "10.1.2.3", "[2001:db8::1]", "::ffff:10.1.2.4", "my_host"})
	if err != nil {
		t.Fatal(err)
	}
	inner, err := config.GetConfigForClient(nil)
	if err != nil {
		t.Fatal(err)
	}
	leaf := inner.Certificates[0].Leaf
	for host, want := range map[string]bool{
		"loadstar.example": true, "a.grid.example": true, "10.1.2.3": true, "2001:db8::1": true, "10.1.2.4": true, "my_host": true,
		"grid.example": false, "a.b.grid.example": false, "10.1.2.5": false, "Loadstar server": false,
	} {
		if err := leaf.VerifyHostname(host); (err == nil) != want {
			t.Errorf("%s: %v", host, err)
		}
	}
}

// Peer returns no identity for a certificate that was presented but not verified, even if
// it is a valid one.
func TestPeerUnverified(t *testing.T) {
	a := open(t)
	agent := credentials(t, a, Identity{Agent, "a"}, time.Hour)
	for _, mode := range []tls.ClientAuthType{tls.RequestClientCert, tls.RequireAnyClientCert, tls.RequireAndVerifyClientCert} {
		config, err := a.TLS([]string{"127.0.0.1"})
		if err != nil {
			t.Fatal(err)
		}
		inner, err := config.GetConfigForClient(nil)
		if err != nil {
			t.Fatal(err)
		}
		inner = inner.Clone()
		inner.ClientAuth = mode
		client, server := net.Pipe()
		go func() {
			c := tls.Client(client, &tls.Config{
				InsecureSkipVerify: true, Certificates: []tls.Certificate{{Certificate: [][]byte{agent.Leaf.Raw}, PrivateKey: agent.Key}},
			})
			c.Handshake() // the server's side of the handshake reports errors
			io.Copy(io.Discard, c)
		}()
		s := tls.Server(server, inner)
		if err := s.HandshakeContext(context.Background()); err != nil {
			t.Fatal(err)
		}
		state := s.ConnectionState()
		if len(state.PeerCertificates) != 1 {
			t.Fatal("nothing was shown")
		}
		who, ok := Peer(&state)
		if want := mode == tls.RequireAndVerifyClientCert; ok != want || ok && who.ID != "a" {
			t.Errorf("%v: %v, %v", mode, who, ok)
		}
		if want := mode == tls.RequireAndVerifyClientCert; want {
			if _, _, ok := peerAt(&state, agent.Leaf.NotAfter.Add(time.Second)); ok {
				t.Error("the connection outlives the certificate")
			}
		}
		client.Close()
		server.Close()
	}
	if _, ok := Peer(nil); ok {
		t.Error("somebody without TLS")
	}
	if _, ok := Peer(&tls.ConnectionState{HandshakeComplete: true}); ok {
		t.Error("nobody is somebody")
	}
}

// Only a certificate with exactly one URI, in exactly the form that the authority writes,
// has an identity.
func TestIdentityOf(t *testing.T) {
	a := open(t)
	key := newKey(t)
	for text, want := range map[string]bool{
		"loadstar://agent/a": true, "loadstar://operator/local": true, "": false,
		"loadstar://agent/a loadstar://operator/b": false,
		"loadstar://Agent/a":                       false, "loadstar://root/a": false, "loadstar://agent/": false, "loadstar://agent": false,
		"loadstar://agent/a/b": false, "loadstar://agent/a?role=operator": false, "loadstar://agent/a#b": false, "loadstar://agent//a": false,
		"loadstar://u@agent/a": false, "loadstar://agent:1/a": false, "http://agent/a": false, "loadstar://agent/%61": false,
	} {
		template := &x509.Certificate{Subject: pkix.Name{CommonName: "loadstar://operator/a"}, DNSNames: []string{"operator"}}
		for _, u := range strings.Fields(text) {
			parsed, err := url.Parse(u)
			if err != nil {
				t.Fatal(err)
			}
			template.URIs = append(template.URIs, parsed)
		}
		leaf, err := a.sign(template, key.Public(), time.Hour)
		if err != nil {
			t.Fatal(text, err)
		}
		if who, ok := identity(leaf); ok != want {
			t.Errorf("%q: %v, %v", text, who, ok)
		}
	}
}

func TestMiddlewareWithoutTLS(t *testing.T) {
	s := httptest.NewServer(Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if who, ok := From(r.Context()); ok {
			t.Errorf("%v came without TLS", who)
		}
	})))
	defer s.Close()
	resp, err := http.Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if who, ok := From(With(context.Background(), Identity{Agent, "a"})); !ok || who.String() != "agent a" {
		t.Error(who, ok)
	}
}
