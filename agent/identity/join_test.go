package identity

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"loadstar/internal/mtls"
	"loadstar/internal/protocol"
	loadstarv1 "loadstar/proto/loadstar/v1"
	"loadstar/server/pki"
)

func TestJoin(t *testing.T) {
	f := newFleet(t)
	dir := filepath.Join(t.TempDir(), "var", "agent")
	_, err := Open(dir)
	if !errors.Is(err, ErrNotJoined) || !strings.Contains(err.Error(), "run 'loadstar agent join' or 'loadstar-agent join' first") {
		t.Errorf("before it joined: %v", err)
	}
	i, err := Join(t.Context(), dir, " "+strings.ToUpper(f.url)+"/ ", " "+f.token(t, 1)+"\n", "cabinet 7,\tMüllerstraße\xff"+strings.Repeat("ß", 200))
	if err != nil {
		t.Fatal(err)
	}
	opened, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, i := range map[string]*Identity{"joined": i, "opened": opened} {
		if i.ID() != "agent-1" || i.Server() != f.url {
			t.Errorf("%s: %s at %s", name, i.ID(), i.Server())
		}
		if left := time.Until(i.Expires()); left < 7*24*time.Hour-time.Minute || left > 7*24*time.Hour {
			t.Errorf("%s: expires in %v", name, left)
		}
		if err := checkIn(t, i); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got, want := f.shown(), serial(i.current.Load().Leaf); got != want {
			t.Errorf("%s: showed %s, has %s", name, got, want)
		}
		i.HTTPClient().CloseIdleConnections()
	}
	for name, want := range map[string]os.FileMode{"": 0o700, "..": 0o700, file: 0o600, "head-key": 0o600} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%q: %v, %v", name, info.Mode(), err)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 2 {
		t.Errorf("more than the two files: %v", left)
	}
	if name := f.names[0]; !strings.HasPrefix(name, "cabinet 7, Müllerstraße") || len(name) > maxName || !utf8.ValidString(name) {
		t.Errorf("the machine's name is %q", name)
	}
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil || !bytes.Contains(text, []byte("Server: "+f.url)) {
		t.Errorf("%s\n%v", text, err)
	}
}

// listener is a TLS server that records the bytes that it receives.
type listener struct {
	net.Listener
	read chan []byte
}

func listen(t *testing.T, config *tls.Config) *listener {
	t.Helper()
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{plain, make(chan []byte, 100)}
	t.Cleanup(func() { plain.Close() })
	go func() {
		for {
			conn, err := plain.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				conn.SetDeadline(time.Now().Add(5 * time.Minute)) // longer than the test
				got, _ := io.ReadAll(tls.Server(conn, config))
				l.read <- got
			}()
		}
	}()
	return l
}

func (l *listener) url() string { return "https://" + l.Addr().String() }

// TestJoinSendsNothingToOthers checks that Join sends nothing to a server whose certificate was
// not issued by the token's root, so that it cannot reveal the secret.
func TestJoinSendsNothingToOthers(t *testing.T) {
	f := newFleet(t)
	other := newFleet(t).authority
	ours, others := shown(t, f.authority, "127.0.0.1"), shown(t, other, "127.0.0.1")
	root, foreign := ours.Certificate[1], others.Certificate[1]
	agent, _ := f.join(t)
	c := agent.current.Load().Credentials
	// Certificates for this address: one signed by an agent, and a client certificate
	// issued by the root.
	below := signedBy(t, c.Leaf, c.Key, x509.ExtKeyUsageServerAuth)
	text, err := mtls.ReadPrivate(filepath.Join(f.dir, "issuer.pem"))
	if err != nil {
		t.Fatal(err)
	}
	above, err := mtls.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	client := signedBy(t, above.Certificates[0], above.Key, x509.ExtKeyUsageClientAuth)
	fine := signedBy(t, above.Certificates[0], above.Key, x509.ExtKeyUsageServerAuth)
	with := func(c tls.Certificate, chain ...[]byte) tls.Certificate {
		c.Certificate = chain
		return c
	}
	for name, s := range map[string]struct {
		shows tls.Certificate
		want  string
	}{
		"does not come from the root":        {others, "did not create the token"},
		"without its root":                   {with(ours, ours.Certificate[0]), "did not create the token"},
		"of another root, with ours beside":  {with(others, others.Certificate[0], foreign, root), "does not come from the root"},
		"of another root, with ours instead": {with(others, others.Certificate[0], root), "does not come from the root"},
		"an agent's certificate":             {tls.Certificate{Certificate: [][]byte{c.Leaf.Raw, root}, PrivateKey: c.Key}, "certificate"},
		"signed by an agent":                 {with(below, below.Certificate[0], c.Leaf.Raw, root), "certificate"},
		"a client's":                         {with(client, client.Certificate[0], root), "not valid for a server"},
		"for another host":                   {shown(t, f.authority, "grid.example", "10.0.0.7"), "for grid.example, 10.0.0.7, not for 127.0.0.1"},
	} {
		dir := filepath.Join(t.TempDir(), "agent")
		l := listen(t, &tls.Config{Certificates: []tls.Certificate{s.shows}, NextProtos: []string{"h2", "http/1.1"}})
		_, err := Join(t.Context(), dir, l.url(), f.token(t, 1), "")
		wantError(t, name, err, s.want)
		l.Close()
		if got := <-l.read; len(got) > 0 {
			t.Errorf("%s: it was sent %q", name, got)
		}
		if _, err := Open(dir); !errors.Is(err, ErrNotJoined) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// With a certificate of the real server, the same listener does receive the secret. This
	// shows that the test would detect a leaked secret.
	for _, c := range []tls.Certificate{ours, with(fine, fine.Certificate[0], root)} {
		l := listen(t, &tls.Config{Certificates: []tls.Certificate{c}, NextProtos: []string{"http/1.1"}})
		token := f.token(t, 1)
		tok, err := mtls.ParseJoinToken(token)
		if err != nil {
			t.Fatal(err)
		}
		// On a machine under load, a second may pass before the secret is sent.
		for patience, sent := time.Second, false; !sent; patience *= 2 {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			_, err = Join(ctx, filepath.Join(t.TempDir(), "agent"), l.url(), token, "")
			cancel()
			wantError(t, "a server that does not answer", err, "timed out")
			var got []byte
			select {
			case got = <-l.read:
			case <-time.After(patience): // not connected yet
			}
			if sent = bytes.Contains(got, tok.Secret()); !sent && patience > time.Minute {
				t.Fatalf("the true server was sent %q", got)
			}
		}
	}
	// A complete server with another root receives no call either.
	fleet := newFleet(t)
	_, err = Join(t.Context(), filepath.Join(t.TempDir(), "agent"), fleet.url, f.token(t, 1), "")
	wantError(t, "another fleet", err, fleet.url, "did not create the token", "was not sent")
	if fleet.agents != 0 {
		t.Error("it was called")
	}
}

// shown returns the certificate that a server of this authority presents for the given
// hosts.
func shown(t *testing.T, a *pki.Authority, hosts ...string) tls.Certificate {
	t.Helper()
	config, err := a.TLS(hosts)
	if err != nil {
		t.Fatal(err)
	}
	inner, err := config.GetConfigForClient(nil)
	if err != nil {
		t.Fatal(err)
	}
	return inner.Certificates[0]
}

// signedBy creates a certificate for 127.0.0.1 that is signed with the given parent and
// key.
func signedBy(t *testing.T, parent *x509.Certificate, by *ecdsa.PrivateKey, usage x509.ExtKeyUsage) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "server"}, IPAddresses: []net.IP{{127, 0, 0, 1}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}, parent, key.Public(), by)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func TestJoinErrors(t *testing.T) {
	f := newFleet(t)
	good := f.token(t, 100)
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody.Close()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	old := listen(t, &tls.Config{MaxVersion: tls.VersionTLS12, Certificates: []tls.Certificate{shown(t, f.authority, "127.0.0.1")}})
	occupied := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(occupied, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	unknown, err := mtls.NewJoinToken(f.authority.Pin())
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(strings.TrimPrefix(f.url, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		dir, server, token string
		want               []string
	}{
		"cut off":           {"", f.url, good[:60], []string{"cut off: it has 60 of 78 characters"}},
		"mistyped":          {"", f.url, good[:20] + "aaaa" + good[24:], []string{"mistyped"}},
		"no token":          {"", f.url, "", []string{"no join token"}},
		"unknown":           {"", f.url, unknown.Text(), []string{"the server refuses", "used up or expired", "ask the server's operator for a new token"}},
		"nobody":            {"", "https://" + nobody.Addr().String(), good, []string{nobody.Addr().String(), "cannot connect", "refused", "the address is right"}},
		"no TLS":            {"", "https://" + plain.Listener.Addr().String(), good, []string{"does not speak TLS"}},
		"TLS 1.2":           {"", old.url(), good, []string{"protocol version not supported", "does not support TLS 1.3"}},
		"http":              {"", strings.Replace(f.url, "https", "http", 1), good, []string{"must begin with https://", "use https://127.0.0.1:"}},
		"no address":        {"", "", good, []string{"has no host"}},
		"path":              {"", f.url + "/loadstar", good, []string{"more than a host and a port"}},
		"no such host":      {"", "https://no-such-host.invalid:1", good, []string{"no-such-host.invalid"}},
		"name not in it":    {"", "https://127.0.0.2:" + port, good, []string{"for localhost, 127.0.0.1, ::1, not for 127.0.0.2"}},
		"no place":          {filepath.Join(occupied, "agent"), f.url, good, []string{occupied}},
		"no place, nearly":  {occupied, f.url, good, []string{occupied}},
		"not an https port": {"", "https://127.0.0.1:99999", good, []string{"99999"}},
	} {
		if c.dir == "" {
			c.dir = filepath.Join(t.TempDir(), "agent")
		}
		if name == "name not in it" {
			// The server does not listen on this address, so relay the connection.
			l, err := net.Listen("tcp", "127.0.0.2:0")
			if err != nil {
				continue // this machine has no such address
			}
			relay(t, l, strings.TrimPrefix(f.url, "https://"))
			c.server = "https://" + l.Addr().String()
		}
		i, err := Join(t.Context(), c.dir, c.server, c.token, "")
		wantError(t, name, err, c.want...)
		if i != nil {
			t.Errorf("%s: joined", name)
		}
		if err != nil && c.token != "" && strings.Contains(err.Error(), c.token[10:20]) {
			t.Errorf("%s: the error shows the token", name)
		}
	}
	if f.agents != 0 {
		t.Error("a token was spent")
	}
	if sent := <-old.read; len(sent) > 0 {
		t.Errorf("over TLS 1.2 was sent %q", sent)
	}
	i, _ := f.join(t)
	i.server = old.url()
	err = checkIn(t, i)
	if sent := <-old.read; err == nil || len(sent) > 0 {
		t.Errorf("over TLS 1.2 was sent %q, %v", sent, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Join(ctx, filepath.Join(t.TempDir(), "agent"), f.url, good, "")
	wantError(t, "canceled", err, "cancelled")
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// relay forwards the connections that l accepts to another address.
func relay(t *testing.T, l net.Listener, to string) {
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer in.Close()
				out, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer out.Close()
				go io.Copy(out, in) // ends with the connection
				io.Copy(in, out)
			}()
		}
	}()
}

// TestJoinChecksTheAnswer checks that Join stores a certificate only if it is for the agent's
// key.
func TestJoinChecksTheAnswer(t *testing.T) {
	f := newFleet(t)
	other := newFleet(t)
	mine, _ := f.join(t)
	theirs, _ := other.join(t)
	for name, c := range map[string]struct {
		chain [][]byte
		id    string
		err   error
		want  string
	}{
		"nothing":      {nil, "", nil, "no certificate"},
		"garbage":      {[][]byte{[]byte("hello")}, "", nil, "response"},
		"another key":  {[][]byte{mine.current.Load().Leaf.Raw}, "", nil, "a different key"},
		"another root": {[][]byte{theirs.current.Load().Leaf.Raw}, "", nil, "a different key"},
		"huge":         {[][]byte{make([]byte, 10*maxAnswer)}, "", nil, "larger than"},
		"bad name":     {nil, "a\nServer: https://evil.example", nil, "not a valid agent name"},
		"failure":      {nil, "", errors.New("the disk is full\x1b[31m" + strings.Repeat("!", 1000)), "the disk is full [31m!!!"},
	} {
		f.set(func() {
			f.id = c.id
			f.spoil = func(chain [][]byte) ([][]byte, error) {
				if c.id != "" {
					return chain, nil
				}
				return c.chain, c.err
			}
		})
		dir := filepath.Join(t.TempDir(), "agent")
		i, err := Join(t.Context(), dir, f.url, f.token(t, 1), "")
		wantError(t, name, err, c.want)
		if i != nil {
			t.Errorf("%s: joined", name)
		}
		if err != nil && len(err.Error()) > 600 {
			t.Errorf("%s: an error of %d characters", name, len(err.Error()))
		}
		if _, err := Open(dir); !errors.Is(err, ErrNotJoined) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestJoinTwice(t *testing.T) {
	f := newFleet(t)
	i, dir := f.join(t)
	_, err := Join(t.Context(), dir, f.url, f.token(t, 1), "")
	wantError(t, "joined already", err, "already joined "+f.url+" as agent-1", file)
	if again, err := Open(dir); err != nil || again.ID() != i.ID() || f.agents != 1 {
		t.Errorf("%v, %d agents", err, f.agents)
	}
	one := f.token(t, 1)
	if _, err := Join(t.Context(), filepath.Join(t.TempDir(), "a"), f.url, one, ""); err != nil {
		t.Fatal(err)
	}
	_, err = Join(t.Context(), filepath.Join(t.TempDir(), "b"), f.url, one, "")
	wantError(t, "used up", err, "the server refuses")
	// A damaged file is not overwritten, so that an operator can examine it.
	if err := os.WriteFile(filepath.Join(dir, file), []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Join(t.Context(), dir, f.url, f.token(t, 1), "")
	wantError(t, "damaged", err, "damaged", "remove it")
}

// TestJoinIsNotSentElsewhere checks that Join does not follow redirects with the secret.
func TestJoinIsNotSentElsewhere(t *testing.T) {
	f := newFleet(t)
	elsewhere := f.url
	calls := 0
	config, err := f.authority.TLS([]string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		http.Redirect(w, r, elsewhere+r.URL.Path, http.StatusTemporaryRedirect)
	}))
	s.TLS = config
	s.StartTLS()
	defer s.Close()
	if _, err := Join(t.Context(), filepath.Join(t.TempDir(), "agent"), s.URL, f.token(t, 1), ""); err == nil {
		t.Error("joined")
	}
	if calls != 1 || f.agents != 0 {
		t.Errorf("%d calls, %d agents", calls, f.agents)
	}
}

func TestClock(t *testing.T) {
	f := newFleet(t)
	i, _ := f.join(t)
	leaf := i.current.Load().Leaf
	wantError(t, "1970", wrongTime(leaf, time.Unix(0, 0)), "valid from", "1970-01-01 00:00 UTC", "set the clock")
	wantError(t, "later", wrongTime(leaf, leaf.NotAfter.Add(time.Hour)), "expired on", "check the clock")
	early := x509.CertificateInvalidError{Cert: &x509.Certificate{NotBefore: time.Now().Add(time.Hour)}, Reason: x509.Expired}
	wantError(t, "the server's", explain("joining", f.url, early, ""), "the server's certificate: it is valid from", "set the clock")
}

func TestParseServer(t *testing.T) {
	for text, want := range map[string]string{
		"https://a:1": "https://a:1", "https://a": "https://a", "a:8443": "https://a:8443", "a.example": "https://a.example",
		"HTTPS://A.Example:1/": "https://a.example:1", "https://[2001:DB8::1]:1": "https://[2001:db8::1]:1", "https://[::1]": "https://[::1]",
		" https://10.0.0.1:1 ": "https://10.0.0.1:1",
		"http://a":             "", "https://": "", "": "", "https://u:p@a": "", "https://a/b": "", "https://a?b": "", "https://a#b": "",
		"https://a:b": "", "https://a b": "", "ftp://a": "", "https://ä": "", "https://a\n": "https://a", "https://a\nServer: b": "",
	} {
		got, err := parseServer(text)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", text, got, err)
		}
		if again, err := parseServer(got); want != "" && (err != nil || again != got) {
			t.Errorf("%q: %q, %v", got, again, err)
		}
	}
}

// TestNoOperatorForAgents checks that whatever names an agent requests, it gets a certificate
// with its own name or none.
func TestNoOperatorForAgents(t *testing.T) {
	f := newFleet(t)
	i, _ := f.join(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "loadstar://operator/local"}, DNSNames: []string{"operator"}, URIs: operatorURI(t),
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := loadstarv1.NewAgentServiceClient(i.HTTPClient(), f.url, protocol.Client()).Renew(t.Context(), &loadstarv1.RenewRequest{Csr: csr})
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(answer.GetCertificates()[0])
	if err != nil {
		t.Fatal(err)
	}
	if len(leaf.URIs) != 1 || leaf.URIs[0].String() != "loadstar://agent/"+i.ID() {
		t.Errorf("%v", leaf.URIs)
	}
}

// TestDamagedIdentity flips each bit of the file. A flip that changes anything is detected.
func TestDamagedIdentity(t *testing.T) {
	_, dir := newFleet(t).join(t)
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		t.Fatal(err)
	}
	content := func(text []byte) (string, error) {
		i, err := parse(file, text)
		if err != nil {
			return "", err
		}
		c := i.current.Load()
		return fmt.Sprintf("%q %q %x %x", i.ID(), i.Server(), c.Leaf.Raw, c.Root.Raw), nil
	}
	want, err := content(text)
	if err != nil {
		t.Fatal(err)
	}
	for n := range text {
		for bit := range 8 {
			bad := bytes.Clone(text)
			bad[n] ^= 1 << bit
			if got, err := content(bad); err == nil && got != want {
				t.Fatalf("bit %d of byte %d is flipped, and nobody notices:\n%s", bit, n, bad)
			}
		}
	}
}

// TestIdentityWithoutChecksum checks that an agent that joined before the file had a checksum
// need not join again, and that its next renewal adds one.
func TestIdentityWithoutChecksum(t *testing.T) {
	i, dir := newFleet(t).join(t)
	path := filepath.Join(dir, file)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	note := regexp.MustCompile(`(?m)^CRC32C: [0-9a-f]{8}\n`)
	old := note.ReplaceAll(text, nil)
	if len(old) == len(text) {
		t.Fatalf("there is no checksum:\n%s", text)
	}
	if err := os.WriteFile(path, old, 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if renewed, err := o.RenewIfDue(t.Context(), soon(o)); err != nil || !renewed {
		t.Fatal(renewed, err)
	}
	if text, err = os.ReadFile(path); err != nil || !note.Match(text) || o.ID() != i.ID() {
		t.Errorf("%v\n%s", err, text)
	}
	// A wrong agent name is detected even without a checksum.
	_, err = parse(file, bytes.Replace(old, []byte(i.ID()), []byte("x"), 1))
	wantError(t, "other agent", err, "belongs to")
}
