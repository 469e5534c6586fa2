package sqlstore

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
)

func TestUnverified(t *testing.T) {
	for at, want := range map[string]string{
		"sqlite:ledger.db":                                       "",
		"postgres://db.example.org/":                             "db.example.org",
		"postgres://db.example.org/x?sslmode=require":            "db.example.org",
		"postgres://db.example.org/x?sslmode=verify-ca":          "db.example.org",
		"postgres://db.example.org/x?sslmode=verify-full":        "",
		"postgres://a.example.org,b.example.org/?sslmode=prefer": "a.example.org",
		"postgres://127.0.0.1,b.example.org/?sslmode=prefer":     "b.example.org",
		"postgres://a.example.org,[::1]/?sslmode=verify-full":    "",
		"postgres://127.0.0.1:5432/x?sslmode=disable":            "",
		"postgres:///x?host=/run/postgresql&sslmode=disable":     "",
		"postgres://10.0.0.1/x?sslmode=disable":                  "10.0.0.1",
	} {
		if got := Unverified(at); got != want {
			t.Errorf("%s: %q, want %q", at, got, want)
		}
	}
}

// TestVerifyFull opens a ledger on a PostgreSQL server with TLS. A server is refused if its
// certificate is from another authority or for another name.
func TestVerifyFull(t *testing.T) {
	s := pgtest.Single(t)
	dir := t.TempDir()
	ca, cert, key := serverCertificate(t, dir, "127.0.0.1")
	testkit.Must(t, s.UseTLS(cert, key))
	at := func(mode, ca string) string {
		return "postgres://postgres@" + s.Addr() + "/postgres?sslmode=" + mode + "&sslrootcert=" + url.QueryEscape(ca)
	}
	l, err := Open(t.Context(), at("verify-full", ca))
	testkit.Must(t, err)
	var encrypted bool
	testkit.Must(t, l.DB.QueryRow("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").Scan(&encrypted))
	if !encrypted {
		t.Error("the connection is not encrypted")
	}
	_, err = l.Secret(t.Context(), "one")
	testkit.Must(t, err)
	testkit.Must(t, l.Close())
	otherCA, otherCert, otherKey := serverCertificate(t, dir, "127.0.0.2")
	refused := func(what, at string) {
		t.Helper()
		l, err := Open(t.Context(), at)
		if err == nil {
			l.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "x509") {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("a certificate of another authority", at("verify-full", otherCA))
	testkit.Must(t, s.UseTLS(otherCert, otherKey))
	refused("a certificate for another name", at("verify-full", otherCA))
}

// serverCertificate writes files with a new authority, a certificate for an address, and its
// key.
func serverCertificate(t *testing.T, dir, address string) (ca, cert, key string) {
	t.Helper()
	write := func(file, kind string, der []byte) string {
		path := filepath.Join(dir, address+"-"+file)
		testkit.Must(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.Must(t, err)
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of " + address}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	rootDER, err := x509.CreateCertificate(rand.Reader, root, root, &signer.PublicKey, signer)
	testkit.Must(t, err)
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.Must(t, err)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "database"}, IPAddresses: []net.IP{net.ParseIP(address)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, root, &own.PublicKey, signer)
	testkit.Must(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(own)
	testkit.Must(t, err)
	return write("ca.pem", "CERTIFICATE", rootDER), write("cert.pem", "CERTIFICATE", leafDER), write("key.pem", "PRIVATE KEY", keyDER)
}

// TestSecret checks that all processes get the same secret.
func TestSecret(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		first, err := open(t, at).Secret(t.Context(), "one")
		testkit.Must(t, err)
		s := open(t, at)
		again, err := s.Secret(t.Context(), "one")
		testkit.Must(t, err)
		other, err := s.Secret(t.Context(), "other")
		testkit.Must(t, err)
		if len(first) != SecretSize || string(first) != string(again) || string(other) == string(first) {
			t.Errorf("%x, %x, %x", first, again, other)
		}
	})
}
