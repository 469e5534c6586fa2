package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"loadstar/internal/mtls"
)

// openEnv names an environment variable that holds the path of a folder. If it is set, the test
// binary waits until its standard input is closed, opens the authority in that folder and
// prints the pin.
const openEnv = "LOADSTAR_TEST_OPEN"

func TestMain(m *testing.M) {
	if dir := os.Getenv(openEnv); dir != "" {
		os.Stdin.Read(make([]byte, 1)) // returns when the parent closes the pipe
		a, err := Open(dir, Keys{})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Print(a.Pin())
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func open(t testing.TB) *Authority {
	t.Helper()
	a, err := Open(filepath.Join(t.TempDir(), "pki"), Keys{})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func request(t testing.TB, key crypto.Signer, template *x509.CertificateRequest) []byte {
	t.Helper()
	csr, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return csr
}

// credentials returns a new key for an identity, with a certificate from the authority.
func credentials(t testing.TB, a *Authority, who Identity, ttl time.Duration) mtls.Credentials {
	t.Helper()
	key := newKey(t)
	issued, err := a.Issue(request(t, key, &x509.CertificateRequest{}), who, ttl)
	if err != nil {
		t.Fatal(err)
	}
	return mtls.Credentials{Key: key, Leaf: issued.Leaf, Root: a.first().root()}
}

func (a *Authority) first() *issuer { return a.has.Load().all[0] }

func TestRoot(t *testing.T) {
	a := open(t)
	i, r := a.first().chain[0], a.first().root()
	if !r.IsCA || !r.BasicConstraintsValid || r.MaxPathLen != 1 || r.KeyUsage != x509.KeyUsageCertSign {
		t.Errorf("%+v", r)
	}
	if !i.IsCA || !i.BasicConstraintsValid || i.MaxPathLen != 0 || !i.MaxPathLenZero || i.KeyUsage != x509.KeyUsageCertSign {
		t.Errorf("%+v", i)
	}
	if err := errors.Join(r.CheckSignatureFrom(r), i.CheckSignatureFrom(r)); err != nil {
		t.Error(err)
	}
	for c, want := range map[*x509.Certificate]float64{r: rootYears, i: issuerYears} {
		if years := c.NotAfter.Sub(c.NotBefore).Hours() / 24 / 365.25; years < want-0.1 || years > want+0.1 {
			t.Errorf("%s lives for %v years", c.Subject, years)
		}
	}
	if a.Pin() != mtls.PinOf(i.Raw) {
		t.Error("the pin is not the issuer's")
	}
	for name, want := range map[string]os.FileMode{"": 0o700, issuerFile: 0o600, rootKeyFile: 0o600, lockFile: 0o600} {
		if info, err := os.Stat(filepath.Join(a.dir, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%q: %v, %v", name, info.Mode(), err)
		}
	}
	// The server does not need the root's key.
	if a.RootKeyHere() != filepath.Join(a.dir, rootKeyFile) {
		t.Error(a.RootKeyHere())
	}
	if err := os.Remove(a.RootKeyHere()); err != nil {
		t.Fatal(err)
	}
	again, err := Open(a.dir, Keys{})
	if err != nil || again.Pin() != a.Pin() || again.RootKeyHere() != "" {
		t.Errorf("opened again: %v", err)
	}
	if other := open(t); other.Pin() == a.Pin() || bytes.Equal(other.first().root().RawSubject, r.RawSubject) {
		t.Error("two roots are one")
	}
}

// TestOpenRefuses checks that Open refuses a damaged root, and never replaces it with a new
// root, which no agent would trust.
func TestOpenRefuses(t *testing.T) {
	a, b := open(t), open(t)
	path := filepath.Join(a.dir, issuerFile)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	agent := credentials(t, a, Identity{Agent, "a"}, time.Hour)
	of := func(b mtls.Bundle) []byte {
		text, err := b.PEM()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	for name, text := range map[string][]byte{
		"empty":       {},
		"half":        whole[:len(whole)/2],
		"zeros":       make([]byte, len(whole)),
		"key alone":   of(mtls.Bundle{Key: a.first().key.(*ecdsa.PrivateKey)}),
		"another key": of(mtls.Bundle{Key: b.first().key.(*ecdsa.PrivateKey), Certificates: a.first().chain}),
		"other root":  of(mtls.Bundle{Key: a.first().key.(*ecdsa.PrivateKey), Certificates: []*x509.Certificate{a.first().chain[0], b.first().root()}}),
		"no root":     of(mtls.Bundle{Key: agent.Key, Certificates: []*x509.Certificate{agent.Leaf}}),
	} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(a.dir, Keys{}); err == nil || !strings.Contains(err.Error(), "from a backup") {
			t.Errorf("%s: %v", name, err)
		}
		if got, _ := os.ReadFile(path); !bytes.Equal(got, text) {
			t.Errorf("%s: it was overwritten", name)
		}
	}
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(a.dir, Keys{}); err == nil || !strings.Contains(err.Error(), "others can read it") {
		t.Error(err)
	}
}

// TestOpenConcurrently checks that only one root is created if many goroutines and processes
// open a new folder at the same time.
func TestOpenConcurrently(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "pki")
	pins := make([]string, 16)
	var procs []*exec.Cmd
	var out [8]bytes.Buffer
	for i := range out {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), openEnv+"="+dir)
		cmd.Stdout, cmd.Stderr = &out[i], &out[i]
		procs = append(procs, cmd)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	for _, cmd := range procs {
		cmd.Stdin = r
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
	}
	r.Close()
	w.Close() // all processes continue at the same time
	var wg sync.WaitGroup
	for i := range pins {
		wg.Go(func() {
			a, err := Open(dir, Keys{})
			if err != nil {
				t.Error(err)
				return
			}
			pins[i] = a.Pin()
		})
	}
	wg.Wait()
	for i, cmd := range procs {
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %s", err, out[i].String())
		}
		pins = append(pins, out[i].String())
	}
	for _, pin := range pins {
		if pin != pins[0] || pin == "" {
			t.Fatalf("several roots: %q", pins)
		}
	}
}

func TestSign(t *testing.T) {
	a := open(t)
	now := time.Now()
	a.now = func() time.Time { return now }
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serials := map[string]bool{}
	for _, key := range []crypto.Signer{newKey(t), edKey} {
		// All names and extensions in the request are ignored.
		operator := Identity{Operator, "root"}
		csr := request(t, key, &x509.CertificateRequest{
			Subject: pkix.Name{CommonName: "operator", Organization: []string{"loadstar://operator/root"}}, URIs: []*url.URL{operator.uri()},
			DNSNames: []string{"server.example"}, IPAddresses: []net.IP{{127, 0, 0, 1}}, EmailAddresses: []string{"a@b.example"},
			// This extension claims to be a certificate authority.
			ExtraExtensions: []pkix.Extension{{Id: []int{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 3, 1, 1, 0xff}}},
		})
		issued, err := a.Issue(csr, Identity{Agent, "7f3a"}, 7*24*time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		c := issued.Leaf
		if len(issued.Chain) != 3 || !bytes.Equal(issued.Chain[0], c.Raw) || !bytes.Equal(issued.Chain[1], a.first().chain[0].Raw) || len(issued.Roots) != 1 || !bytes.Equal(issued.Roots[0], issued.Chain[2]) {
			t.Fatal("the issuer or the root is missing")
		}
		if who, ok := identity(c); !ok || who != (Identity{Agent, "7f3a"}) {
			t.Errorf("it is for %v, %v", who, ok)
		}
		if c.IsCA || len(c.DNSNames)+len(c.IPAddresses)+len(c.EmailAddresses) > 0 || c.Subject.String() != "CN=7f3a" ||
			c.KeyUsage != x509.KeyUsageDigitalSignature || fmt.Sprint(c.ExtKeyUsage) != fmt.Sprint([]x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) {
			t.Errorf("%+v", c)
		}
		if want := now.Add(7 * 24 * time.Hour).Truncate(time.Second); !c.NotAfter.Equal(want) {
			t.Errorf("until %v, want %v", c.NotAfter, want)
		}
		if early := now.Sub(c.NotBefore).Round(time.Second); early < 5*time.Minute || early > 5*time.Minute+time.Second {
			t.Errorf("from %v before", early)
		}
		if !key.Public().(interface{ Equal(crypto.PublicKey) bool }).Equal(c.PublicKey) {
			t.Error("it is for another key")
		}
		serials[hex.EncodeToString(c.SerialNumber.Bytes())] = true
		if bits := c.SerialNumber.BitLen(); bits < 100 || bits > 128 {
			t.Errorf("a serial number of %d bits", bits)
		}
	}
	if len(serials) != 2 {
		t.Error("serial numbers repeat")
	}
}

func TestSignEndsWithTheIssuer(t *testing.T) {
	a := open(t)
	csr := request(t, newKey(t), &x509.CertificateRequest{})
	a.now = func() time.Time { return a.first().expires().Add(-time.Hour) }
	if issued, err := a.Issue(csr, Identity{Agent, "a"}, 7*24*time.Hour); err != nil || !issued.Leaf.NotAfter.Equal(a.first().expires()) {
		t.Errorf("until %v, %v", issued.Leaf.NotAfter, err)
	}
	a.now = func() time.Time { return a.first().expires() }
	if _, err := a.Issue(csr, Identity{Agent, "a"}, time.Hour); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Error(err)
	}
}

func TestSignRefuses(t *testing.T) {
	a := open(t)
	good := request(t, newKey(t), &x509.CertificateRequest{})
	weak, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	forged := bytes.Clone(good)
	forged[len(forged)-1] ^= 1
	// The request contains the public key of one key pair, but is signed with the key of
	// another.
	mine, theirs := request(t, newKey(t), &x509.CertificateRequest{}), request(t, newKey(t), &x509.CertificateRequest{})
	m, err := x509.ParseCertificateRequest(mine)
	if err != nil {
		t.Fatal(err)
	}
	th, err := x509.ParseCertificateRequest(theirs)
	if err != nil {
		t.Fatal(err)
	}
	stolen := bytes.Replace(mine, m.RawSubjectPublicKeyInfo, th.RawSubjectPublicKeyInfo, 1)
	for name, c := range map[string]struct {
		csr  []byte
		want string
	}{
		"nothing":       {nil, ""},
		"garbage":       {[]byte("hello"), ""},
		"more behind":   {append(bytes.Clone(good), 0), ""},
		"RSA":           {request(t, weak, &x509.CertificateRequest{}), "want ECDSA"},
		"P-384":         {request(t, p384, &x509.CertificateRequest{}), "want P-256"},
		"forged":        {forged, ""},
		"stolen key":    {stolen, ""},
		"huge":          {request(t, newKey(t), &x509.CertificateRequest{DNSNames: []string{strings.Repeat("a", maxCSR)}}), "want at most"},
		"a certificate": {a.first().root().Raw, ""},
	} {
		issued, err := a.Issue(c.csr, Identity{Agent, "a"}, time.Hour)
		if err == nil || !strings.Contains(err.Error(), c.want) || issued.Chain != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, who := range []Identity{
		{},
		{Agent, ""},
		{"", "a"},
		{"root", "a"},
		{"Operator", "a"},
		{"agent/x", "a"},
		{Agent, "a/b"},
		{Agent, "../operator/a"},
		{Agent, ".."},
		{Agent, "a b"},
		{Agent, "a%2fb"},
		{Agent, "a?b"},
		{Agent, "a\n"},
		{Agent, "ä"},
		{Agent, strings.Repeat("a", 65)},
	} {
		if _, err := a.Issue(good, who, time.Hour); err == nil {
			t.Errorf("%q was signed", who)
		}
	}
	for _, ttl := range []time.Duration{0, -time.Hour} {
		if _, err := a.Issue(good, Identity{Agent, "a"}, ttl); err == nil {
			t.Errorf("signed for %v", ttl)
		}
	}
	if _, err := a.Issue(good, Identity{Agent, strings.Repeat("a", 64)}, time.Hour); err != nil {
		t.Error(err)
	}
}

// FuzzSign checks that, whatever the request contains, Issue returns an error or a certificate
// for the given identity.
func FuzzSign(f *testing.F) {
	a := open(f)
	key := newKey(f)
	f.Add(request(f, key, &x509.CertificateRequest{}))
	f.Add(request(f, key, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "operator"}, URIs: []*url.URL{Identity{Operator, "a"}.uri()}}))
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(request(f, edKey, &x509.CertificateRequest{DNSNames: []string{"a.example"}}))
	f.Add(a.first().root().Raw)
	f.Add([]byte{0x30, 0x80})
	f.Fuzz(func(t *testing.T, csr []byte) {
		issued, err := a.Issue(csr, Identity{Agent, "a"}, time.Hour)
		if err != nil {
			return
		}
		leaf := issued.Leaf
		if who, ok := identity(leaf); !ok || who != (Identity{Agent, "a"}) || leaf.IsCA {
			t.Errorf("%x got a certificate for %v", csr, who)
		}
	})
}
