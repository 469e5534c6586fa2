package pki

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// program writes a shell script and returns its path.
func program(t testing.TB, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "signer")
	// A process that another test forks in the meantime would inherit the open file, and
	// starting the script would fail with "text file busy".
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// openssl returns the two commands of a signer that keeps its key in a file and signs with
// openssl: the first writes the public key, and the second signs standard input.
func openssl(t testing.TB) (public, sign string) {
	t.Helper()
	if _, err := exec.LookPath("openssl"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("openssl is missing: an external signer is tested with it")
		}
		t.Skip("needs openssl")
	}
	key := filepath.Join(t.TempDir(), "key.pem")
	if out, err := exec.Command("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return "openssl pkey -in " + key + " -pubout", "openssl pkeyutl -sign -inkey " + key
}

func script(public, sign string) string {
	return fmt.Sprintf("case $1 in\npublic) %s ;;\nsign) %s ;;\n*) exit 2 ;;\nesac", public, sign)
}

// opensslSigner returns the address of a signer with its own key.
func opensslSigner(t testing.TB) string {
	t.Helper()
	return "exec:" + program(t, script(openssl(t)))
}

func openSigner(t testing.TB, address string) *Signer {
	t.Helper()
	s, err := OpenSigner(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// patience changes the time limit of signers during a test.
func patience(t testing.TB, d time.Duration) {
	old := signerFor
	signerFor = d
	t.Cleanup(func() { signerFor = old })
}

// TestSigner checks that an authority whose issuer's key is in another program works like any
// other, and that its files contain no key except the root's.
func TestSigner(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	address := opensslSigner(t)
	keys := Keys{Signers: []*Signer{openSigner(t, address)}}
	a, err := Open(dir, keys)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, issuerFile))
	if err != nil || bytes.Contains(text, []byte("KEY")) {
		t.Errorf("%v:\n%s", err, text)
	}
	if all := a.Issuers(); len(all) != 1 || all[0].Key != external {
		t.Errorf("%+v", all)
	}
	agent := credentials(t, a, Identity{Agent, "a"}, time.Hour)
	if got, err := get(t, start(t, a), agent.TLS()); err != nil || !strings.HasPrefix(got, "agent a true") {
		t.Errorf("%s, %v", got, err)
	}
	for want, keys := range map[string]Keys{
		"the file contains none; give the external signer that has it with --pki-signer": {},
		"none of the external signers": {Signers: []*Signer{openSigner(t, opensslSigner(t))}},
	} {
		if _, err := OpenExisting(dir, keys); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "backup") {
			t.Errorf("%v, want %s", err, want)
		}
	}
	// A new issuer needs a different key, because agents renew only when a different key signs.
	if err := Rotate(dir, keys, Rotation{}); err == nil || !strings.Contains(err.Error(), "create a new key") {
		t.Error(err)
	}
	next := Keys{Signers: []*Signer{openSigner(t, opensslSigner(t)), keys.Signers[0]}}
	if err := Rotate(dir, next, Rotation{}); err != nil {
		t.Fatal(err)
	}
	for n, keys := range []Keys{keys, {Signers: next.Signers[:1]}} {
		if _, err := OpenExisting(dir, keys); err == nil || !strings.Contains(err.Error(), "--pki-signer") {
			t.Errorf("with signer %d alone: %v", n, err)
		}
	}
	b, err := OpenExisting(dir, next)
	if err != nil {
		t.Fatal(err)
	}
	later := credentials(t, b, Identity{Agent, "b"}, time.Hour)
	if err := later.Leaf.CheckSignatureFrom(b.has.Load().all[1].chain[0]); err != nil {
		t.Error(err)
	}
	at := start(t, b)
	for _, c := range []*x509.Certificate{agent.Leaf, later.Leaf} {
		if _, err := b.verify(c); err != nil {
			t.Error(err)
		}
	}
	if got, err := get(t, at, agent.TLS()); err != nil || !strings.HasPrefix(got, "agent a true") {
		t.Errorf("%s, %v", got, err)
	}
	if err := Retire(dir, false); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenExisting(dir, Keys{Signers: next.Signers[:1]}); err != nil {
		t.Error(err)
	}
}

// TestSignerInsteadOfFile checks that a rotation can replace a key in a file by a signer, and
// the other way round.
func TestSignerInsteadOfFile(t *testing.T) {
	a := open(t)
	keys := Keys{Signers: []*Signer{openSigner(t, opensslSigner(t))}}
	for _, want := range []string{external, plainFile} {
		if err := Rotate(a.dir, keys, Rotation{}); err != nil {
			t.Fatal(err)
		}
		if all, err := Issuers(a.dir); err != nil || len(all) != 2 || all[1].Key != want {
			t.Errorf("%v, %+v", err, all)
		}
		if err := Retire(a.dir, false); err != nil {
			t.Fatal(err)
		}
		keys = Keys{}
	}
	if _, err := OpenExisting(a.dir, Keys{}); err != nil {
		t.Error(err)
	}
}

// TestSignerRefused checks that every fault of a signer is detected when the signer is opened,
// and that the error describes the fault.
func TestSignerRefused(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for slow programs")
	}
	patience(t, 5*time.Second)
	public, sign := openssl(t)
	_, other := openssl(t)
	for name, c := range map[string]struct{ script, want string }{
		"absent":               {"", "no such file"},
		"fails":                {"echo the token is locked >&2; exit 3", "exit status 3: the token is locked"},
		"fails silently":       {"exit 3", "public: exit status 3; start it"},
		"no key":               {script("echo hello", sign), "not a public key in PEM"},
		"private key":          {script("openssl ecparam -name prime256v1 -genkey -noout", sign), "not a public key in PEM"},
		"damaged key":          {script("printf -- '-----BEGIN PUBLIC KEY-----\\naGVsbG8=\\n-----END PUBLIC KEY-----\\n'", sign), "asn1"},
		"another curve":        {script("openssl ecparam -name secp384r1 -genkey -noout | openssl pkey -pubout", sign), "not an ECDSA key on P-256"},
		"Ed25519":              {script("openssl genpkey -algorithm ed25519 | openssl pkey -pubout", sign), "not an ECDSA key on P-256"},
		"another key signs":    {script(public, other), "not an ECDSA signature in ASN.1 of the digest by its public key"},
		"signs something else": {script(public, "head -c 32 /dev/zero | "+sign), "not an ECDSA signature"},
		"no signature":         {script(public, "true"), "not an ECDSA signature"},
		"without end":          {script("exec cat /dev/zero", sign), "no answer to public within 5s"},
		"slow":                 {script("exec sleep 30", sign), "no answer to public within 5s"},
		"slow signature":       {script(public, "exec sleep 30; "+sign), "no answer to sign within 5s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "none")
			if c.script != "" {
				path = program(t, c.script)
			}
			begin := time.Now()
			_, err := OpenSigner(t.Context(), "exec:"+path)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "the external signer exec:"+path+": ") || !strings.HasSuffix(err.Error(), "; start it, or correct --pki-signer, or keys.signers in server.yaml") {
				t.Errorf("%v; want %q", err, c.want)
			}
			if took := time.Since(begin); took > 25*time.Second {
				t.Errorf("after %v", took)
			}
		})
	}
	for address, want := range map[string]string{
		"":                         "exec:COMMAND",
		"exec:":                    "contains no command",
		"signer":                   "exec:COMMAND",
		"ftp://localhost/":         "exec:COMMAND",
		"http://10.0.0.1/":         "use https",
		"http://a:secret@10.0.0.1": "use https",
		"http://127.0.0.1:1/":      "connection refused",
		"http://a:secret@[::1]:1/": "http://a:xxxxx@[::1]:1/",
	} {
		if _, err := OpenSigner(t.Context(), address); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", address, err)
		}
	}
}

// TestSignerURL checks that a signer with a URL works like a program, and that redirects are
// not followed.
func TestSignerURL(t *testing.T) {
	public, sign := openssl(t)
	mux := http.NewServeMux()
	serve := func(pattern, command string) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			cmd := exec.CommandContext(r.Context(), "sh", "-c", command)
			cmd.Stdin = r.Body
			out, err := cmd.Output()
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			w.Write(out) // the client reports errors
		})
	}
	serve("GET /key/public", public)
	serve("POST /key/sign", sign)
	serve("GET /broken/public", public)
	serve("POST /broken/sign", "exit 1")
	mux.Handle("/moved/", http.RedirectHandler("/key/public", http.StatusTemporaryRedirect))
	s := httptest.NewServer(mux)
	defer s.Close()
	a, err := Open(filepath.Join(t.TempDir(), "pki"), Keys{Signers: []*Signer{openSigner(t, s.URL+"/key")}})
	if err != nil {
		t.Fatal(err)
	}
	credentials(t, a, Identity{Agent, "a"}, time.Hour)
	for path, want := range map[string]string{"/other": "404 Not Found", "/broken": "500 Internal Server Error: exit status 1", "/moved": "307 Temporary Redirect"} {
		if _, err := OpenSigner(t.Context(), s.URL+path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestSignerAway checks that no certificate is issued while a signer is unavailable or slow,
// and that the server then continues to use its own certificate, so that connections do not
// wait. When the signer is available again, the server renews its certificate.
func TestSignerAway(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for slow programs")
	}
	patience(t, 6*time.Second)
	public, sign := openssl(t)
	state := filepath.Join(t.TempDir(), "state")
	set := func(text string) {
		if err := os.WriteFile(state, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set("true")
	s := openSigner(t, "exec:"+program(t, "eval \"$(cat "+state+")\"\n"+script(public, sign)))
	a, err := Open(filepath.Join(t.TempDir(), "pki"), Keys{Signers: []*Signer{s}})
	if err != nil {
		t.Fatal(err)
	}
	begin, ahead := time.Now(), atomic.Int64{}
	a.now = func() time.Time { return begin.Add(time.Duration(ahead.Load())) }
	at := start(t, a)
	agent := credentials(t, a, Identity{Agent, "a"}, 400*24*time.Hour)
	config := agent.TLS()
	config.Time = a.now
	serial := func() string {
		t.Helper()
		config := config.Clone()
		var serial string
		config.VerifyPeerCertificate = func(raw [][]byte, _ [][]*x509.Certificate) error {
			c, err := x509.ParseCertificate(raw[0])
			serial = Serial(c)
			return err
		}
		from := time.Now()
		if _, err := get(t, at, config); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(from); took > 4*time.Second {
			t.Errorf("a connection took %v", took)
		}
		return serial
	}
	first := serial()
	ahead.Store(int64(61 * 24 * time.Hour))
	set("exec sleep 60")
	for range 5 {
		if serial() != first {
			t.Error("renewed without the signer")
		}
	}
	csr := request(t, newKey(t), &x509.CertificateRequest{})
	if _, err := a.Issue(csr, Identity{Agent, "b"}, time.Hour); err == nil || !strings.Contains(err.Error(), "the external signer: no answer to sign within 6s") {
		t.Error(err)
	}
	var logged bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := a.Watch(ctx, 10*time.Millisecond, slog.New(slog.NewTextHandler(&logged, nil)), func() {}); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(logged.String(), "cannot renew the server's certificate"); n != 1 {
		t.Errorf("logged %d times: %s", n, logged.String())
	}
	set("true")
	ahead.Add(int64(renewalAgain))
	for range 50 { // a connection waits half a second for the renewal, and openssl may take longer
		if serial() != first {
			return
		}
	}
	t.Error("not renewed when the signer was back")
}

// pemBlocks returns the types of all PEM blocks in a file, and the first block.
func pemBlocks(t testing.TB, path string) (types string, first *pem.Block) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			return types, first
		}
		if first == nil {
			first = block
		}
		types += block.Type + ", "
		text = rest
	}
}

// TestLimitedOutput checks that a program that never stops writing cannot fill the memory. Package
// exec copies the output with the destination's ReadFrom if it has one.
func TestLimitedOutput(t *testing.T) {
	var l limited
	if n, err := io.Copy(&l, struct{ io.Reader }{strings.NewReader(strings.Repeat("x", 3*signerBytes+1))}); n != 3*signerBytes+1 || err != nil || len(l.text) != signerBytes {
		t.Errorf("copied %d bytes and kept %d, want %d: %v", n, len(l.text), signerBytes, err)
	}
}
