package pki

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log"
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
	fmt.Fprintf(w, "%v %v, ", who, ok)
	if c, had := CallerFrom(r.Context()); had != ok {
		fmt.Fprintf(w, "%v, ", c)
	}
	fmt.Fprintf(w, "HTTP/%d, TLS %x", r.ProtoMajor, r.TLS.Version)
}

// start starts a server for echo with a certificate from the authority, and returns its
// URL.
func start(t testing.TB, a *Authority) string {
	t.Helper()
	config, err := a.TLS([]string{"127.0.0.1", "::1", "localhost"})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(a.Middleware(http.HandlerFunc(echo)))
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
	stranger.Root = a.first().root()
	server := credentials(t, a, Identity{Agent, "x"}, time.Hour)
	var err error
	// A server's certificate must not be accepted from a client.
	server.Leaf, err = a.sign(a.first(), &x509.Certificate{
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, URIs: []*url.URL{Identity{Operator, "x"}.uri()},
	}, server.Key.Public(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	// A certificate that an agent has signed must not be accepted.
	nested := credentials(t, a, Identity{Agent, "x"}, time.Hour)
	forger := &Authority{now: time.Now}
	forger.has.Store(&issuers{all: []*issuer{makeIssuer([]*x509.Certificate{nested.Leaf}, nested.Key)}})
	forged := credentials(t, forger, Identity{Operator, "x"}, 30*time.Minute)
	old := agent.TLS()
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	elsewhere := credentials(t, other, Identity{Agent, "a"}, time.Hour)
	forgedChain := &tls.Config{RootCAs: mtls.Pool(a.first().root()), Certificates: []tls.Certificate{
		{Certificate: [][]byte{forged.Leaf.Raw, nested.Leaf.Raw}, PrivateKey: forged.Key},
	}}
	for name, c := range map[string]struct {
		config *tls.Config
		want   string // expected response; empty if the connection must fail
	}{
		"agent":                        {agent.TLS(), "agent 7f3a true, HTTP/2, TLS 304"},
		"operator":                     {operator.TLS(), "operator local true, HTTP/2, TLS 304"},
		"without a certificate":        {&tls.Config{RootCAs: mtls.Pool(a.first().root())}, "  false, HTTP/2, TLS 304"},
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
	// Test a host name as well, because the client sends a name in the handshake, but not
	// an address.
	if got, err := get(t, strings.Replace(at, "127.0.0.1", "localhost", 1), agent.TLS()); err != nil || !strings.HasPrefix(got, "agent") {
		t.Errorf("localhost: %q, %v", got, err)
	}
}

func TestTLSShowsTheRoot(t *testing.T) {
	a := open(t)
	at := start(t, a)
	conn, err := tls.Dial("tcp", strings.TrimPrefix(at, "https://"), &tls.Config{RootCAs: mtls.Pool(a.first().root())})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	shown := conn.ConnectionState().PeerCertificates
	if len(shown) != 3 || !shown[1].Equal(a.first().chain[0]) || !shown[2].Equal(a.first().root()) {
		t.Errorf("%d certificates", len(shown))
	}
	if days := shown[0].NotAfter.Sub(shown[0].NotBefore).Hours() / 24; days < 90 || days > 90.1 {
		t.Errorf("the server's lives for %v days", days)
	}
}

// TestTLSWrongTimes checks that an agent whose certificate has expired or is not valid yet can
// connect, but has no identity.
func TestTLSWrongTimes(t *testing.T) {
	a := open(t)
	var ahead atomic.Int64
	begin := time.Now()
	a.now = func() time.Time { return begin.Add(time.Duration(ahead.Load())) }
	at := start(t, a)
	agent := credentials(t, a, Identity{Agent, "a"}, time.Hour)
	config := agent.TLS()
	for after, want := range map[time.Duration]bool{0: true, time.Hour - 2*time.Second: true, time.Hour + 2*time.Second: false, 1000 * time.Hour: false, -6 * time.Minute: false} {
		ahead.Store(int64(after))
		config.Time = a.now
		if after < 0 {
			config.Time = nil // only the server's clock is wrong
		}
		got, err := get(t, at, config)
		if err != nil || strings.HasPrefix(got, "agent a true") != want || !want && !strings.HasPrefix(got, "  false, agent a") {
			t.Errorf("after %v: %s, %v", after, got, err)
		}
	}
}

func TestTLSRenewsItself(t *testing.T) {
	a := open(t)
	var ahead atomic.Int64
	begin := time.Now()
	a.now = func() time.Time { return begin.Add(time.Duration(ahead.Load())) }
	at := strings.TrimPrefix(start(t, a), "https://")
	serial := func(day int) string {
		ahead.Store(int64(day) * int64(24*time.Hour))
		conn, err := tls.Dial("tcp", at, &tls.Config{RootCAs: mtls.Pool(a.first().root()), Time: a.now})
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
	serial(0) // fails if the certificate is still from a clock that was ahead
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

// TestPeerUnverified checks that there is no peer without TLS, without a certificate, or with a
// certificate that the authority has not issued.
func TestPeerUnverified(t *testing.T) {
	a, other := open(t), open(t)
	agent := credentials(t, other, Identity{Agent, "a"}, time.Hour)
	for _, state := range []*tls.ConnectionState{
		nil,
		{HandshakeComplete: true},
		{HandshakeComplete: true, PeerCertificates: []*x509.Certificate{agent.Leaf}},
		{PeerCertificates: []*x509.Certificate{credentials(t, a, Identity{Agent, "a"}, time.Hour).Leaf}},
	} {
		if c, ok := a.peer(state); ok || c.Leaf != nil {
			t.Errorf("%v: %v", state, c)
		}
	}
}

// TestIdentityOf checks that a certificate has an identity only if it has exactly one URI,
// formatted exactly as the authority formats it.
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
		leaf, err := a.sign(a.first(), template, key.Public(), time.Hour)
		if err != nil {
			t.Fatal(text, err)
		}
		if who, ok := identity(leaf); ok != want {
			t.Errorf("%q: %v, %v", text, who, ok)
		}
	}
}

func TestMiddlewareWithoutTLS(t *testing.T) {
	s := httptest.NewServer(open(t).Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
