package mtls

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var start = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// pair returns a key and a client certificate for it, issued by the given root or by a
// new one.
func pair(t testing.TB, root *x509.Certificate, rootKey *ecdsa.PrivateKey) (Credentials, *ecdsa.PrivateKey) {
	t.Helper()
	newKey := func() *ecdsa.PrivateKey {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	sign := func(template, parent *x509.Certificate, of, by *ecdsa.PrivateKey) *x509.Certificate {
		template.SerialNumber, template.NotBefore, template.NotAfter = big.NewInt(1), start, start.Add(9*time.Hour)
		der, err := x509.CreateCertificate(rand.Reader, template, parent, of.Public(), by)
		if err != nil {
			t.Fatal(err)
		}
		c, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if root == nil {
		rootKey = newKey()
		template := &x509.Certificate{IsCA: true, BasicConstraintsValid: true}
		root = sign(template, template, rootKey, rootKey)
	}
	c := Credentials{Key: newKey(), Root: root}
	c.Leaf = sign(&x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, root, c.Key, rootKey)
	return c, rootKey
}

func TestBundle(t *testing.T) {
	c, _ := pair(t, nil, nil)
	b := Bundle{Notes: map[string]string{"Server": "https://a:1", "Agent": "7"}, Key: c.Key, Certificates: []*x509.Certificate{c.Leaf, c.Root}}
	text, err := b.PEM()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\nServer: https://a:1\n") {
		t.Errorf("the notes are not readable:\n%s", text)
	}
	got, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if got.Notes["Server"] != "https://a:1" || got.Notes["Agent"] != "7" || !got.Key.Equal(b.Key) || !slices.EqualFunc(got.Certificates, b.Certificates, (*x509.Certificate).Equal) {
		t.Errorf("%+v", got)
	}
	for name, bad := range map[string][]byte{
		"twice":      slices.Concat(text, text),
		"text in it": slices.Concat(text, []byte("hello\n"), text[:0]),
		"text first": slices.Concat([]byte("hello\n"), text),
		"zeros":      slices.Concat(text, make([]byte, 100)),
		"other part": slices.Concat(text, []byte("-----BEGIN SOMETHING-----\nAAAA\n-----END SOMETHING-----\n")),
		"many":       bytes.Repeat(text[bytes.Index(text, []byte("-----BEGIN CERT")):], 3),
	} {
		if _, err := Parse(bad); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	// For a truncated text, Parse returns an error or a bundle that lacks a part.
	for n := range len(text) - 1 {
		cut, err := Parse(text[:n])
		if err == nil && len(cut.Certificates) == 2 {
			t.Errorf("%d of %d bytes were accepted as complete", n, len(text))
		}
	}
}

func TestCheck(t *testing.T) {
	a, key := pair(t, nil, nil)
	b, _ := pair(t, a.Root, key)
	other, _ := pair(t, nil, nil)
	for name, c := range map[string]struct {
		Credentials
		ok bool
	}{
		"whole":        {a, true},
		"two roots":    {Credentials{Key: a.Key, Leaf: a.Leaf, Root: other.Root, More: []*x509.Certificate{a.Root}}, true},
		"other key":    {Credentials{Key: b.Key, Leaf: a.Leaf, Root: a.Root}, false},
		"leaf as root": {Credentials{Key: a.Key, Leaf: a.Leaf, Root: a.Leaf}, false},
		"root as leaf": {Credentials{Key: key, Leaf: a.Root, Root: other.Root}, false},
	} {
		if err := c.Check(); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDue uses a certificate that is valid for nine hours, so it is due when less than
// three hours are left.
func TestDue(t *testing.T) {
	c, _ := pair(t, nil, nil)
	for hours, want := range map[time.Duration]bool{-1: false, 0: false, 5: false, 6: true, 8: true, 9: true, 100: true} {
		if Due(c.Leaf, start.Add(hours*time.Hour)) != want {
			t.Errorf("after %d hours, due is not %v", hours, want)
		}
	}
	if Due(c.Leaf, start.Add(6*time.Hour-time.Second)) {
		t.Error("due too early")
	}
}

func TestPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	if err := MakeDir(dir); err != nil {
		t.Fatal(err)
	}
	if err := MakeDir(dir); err != nil {
		t.Fatal("it already exists: ", err)
	}
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if info, err := os.Stat(d); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", d, info.Mode(), err)
		}
	}
	path := filepath.Join(dir, "key.pem")
	for _, text := range []string{"one", "two"} {
		if err := WritePrivate(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadPrivate(path); err != nil || string(got) != text {
			t.Errorf("%q, %v", got, err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info.Mode(), err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
	for _, mode := range []os.FileMode{0o640, 0o604, 0o660, 0o602} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadPrivate(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
			t.Errorf("%04o: %v", mode, err)
		}
	}
	if err := WritePrivate(path, []byte("three")); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadPrivate(path); err != nil || string(got) != "three" {
		t.Errorf("written again, it is not private: %q, %v", got, err)
	}
	if err := WritePrivate(path, make([]byte, maxFile+1)); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadPrivate(path); err == nil {
		t.Error("a huge file was read")
	}
	if err := WritePrivate(filepath.Join(dir, "none", "key.pem"), nil); err == nil {
		t.Error("writing to a missing folder succeeded")
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WritePrivate(filepath.Join(dir, "folder"), nil); err == nil {
		t.Error("a folder was replaced")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "operator")
	a, key := pair(t, nil, nil)
	second, _ := pair(t, nil, nil)
	a.More = []*x509.Certificate{second.Root}
	if err := WriteFolder(dir, &a); err != nil {
		t.Fatal(err)
	}
	got, err := ReadFolder(dir)
	if err != nil || !got.Key.Equal(a.Key) || !got.Leaf.Equal(a.Leaf) || !got.Root.Equal(a.Root) || len(got.More) != 1 || !got.More[0].Equal(second.Root) {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{"": 0o700, keyFile: 0o600, certFile: 0o644, caFile: 0o644} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%q: %v, %v", name, info.Mode(), err)
		}
	}
	// A certificate of other credentials does not match the key.
	b, _ := pair(t, a.Root, key)
	if err := writeCertificates(filepath.Join(dir, certFile), b.Leaf); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadFolder(dir); err == nil || !got.Key.Equal(a.Key) || got.Leaf != nil {
		t.Errorf("%v, and %+v", err, got)
	}
	for _, name := range []string{certFile, caFile, keyFile} {
		if err := WriteFolder(dir, &a); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadFolder(dir); !os.IsNotExist(err) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	c, _ := pair(f, nil, nil)
	text, err := (&Bundle{Notes: map[string]string{"Agent": "a"}, Key: c.Key, Certificates: []*x509.Certificate{c.Leaf, c.Root}}).PEM()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(text[:len(text)/2])
	f.Fuzz(func(t *testing.T, text []byte) {
		b, err := Parse(text)
		if err != nil {
			return
		}
		if b.Key != nil && len(b.Certificates) == 2 {
			_ = (&Credentials{Key: b.Key, Leaf: b.Certificates[0], Root: b.Certificates[1]}).Check()
		}
		again, err := b.PEM()
		if err != nil {
			return // some header names cannot be written
		}
		if _, err := Parse(again); err != nil {
			t.Errorf("%q: %v", again, err)
		}
	})
}
