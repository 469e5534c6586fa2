package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/prometheus/client_golang/prometheus"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
)

// certify writes a new certificate authority, and a certificate for 127.0.0.1 that servers and
// clients can use, with its key.
func certify(t *testing.T) (ca, cert, key string) {
	t.Helper()
	dir, now := t.TempDir(), time.Now()
	write := func(file, kind string, der []byte) string {
		path := filepath.Join(dir, file)
		testkit.Must(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}
	of := func(template, parent *x509.Certificate, by *ecdsa.PrivateKey) (*ecdsa.PrivateKey, []byte) {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		testkit.Must(t, err)
		if by == nil {
			by = k
		}
		template.NotBefore, template.NotAfter, template.BasicConstraintsValid = now.Add(-time.Hour), now.Add(time.Hour), true
		der, err := x509.CreateCertificate(rand.Reader, template, parent, k.Public(), by)
		testkit.Must(t, err)
		return k, der
	}
	root := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: rand.Text()}, IsCA: true, KeyUsage: x509.KeyUsageCertSign}
	rootKey, rootDER := of(root, root, nil)
	leafKey, leafDER := of(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "store"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, root, rootKey)
	keyDER, err := x509.MarshalPKCS8PrivateKey(leafKey)
	testkit.Must(t, err)
	return write("ca.pem", "CERTIFICATE", rootDER), write("cert.pem", "CERTIFICATE", leafDER), write("key.pem", "PRIVATE KEY", keyDER)
}

// TestSecuredStores runs a server on PostgreSQL and S3 with TLS, set up as in
// docs/how-to/stores.md. The server refuses a store whose certificate is from another
// authority.
func TestSecuredStores(t *testing.T) {
	if testing.Short() {
		t.Skip("starts PostgreSQL")
	}
	ca, cert, key := certify(t)
	otherCA, _, _ := certify(t)

	pg := pgtest.Single(t)
	testkit.Must(t, pg.UseTLS(cert, key))
	database := func(ca string) string {
		return "postgres://postgres@" + pg.Addr() + "/postgres?sslmode=verify-full&sslrootcert=" + url.QueryEscape(ca)
	}

	memory := s3mem.New()
	testkit.Must(t, memory.CreateBucket("weights"))
	s3 := httptest.NewUnstartedServer(gofakes3.New(memory).Server())
	pair, err := tls.LoadX509KeyPair(cert, key)
	testkit.Must(t, err)
	s3.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	s3.StartTLS()
	t.Cleanup(s3.Close)
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")

	good := func(c *Config) {
		c.Database = database(ca)
		c.Blobs, c.BlobsCA = "s3://"+strings.TrimPrefix(s3.URL, "https://")+"/weights/fleet", ca
	}
	st := newStation(t, good)
	a := st.join("a0", "a1")
	a.task(st.start(small), 0)
	if objects, err := memory.ListBucket("weights", nil, gofakes3.ListBucketPage{}); err != nil || len(objects.Contents) == 0 {
		t.Errorf("the store is empty: %v", err)
	}
	st.stop()

	for name, change := range map[string]func(*Config){
		"another database": func(c *Config) { c.Database = database(otherCA) },
		"another S3 store": func(c *Config) { c.BlobsCA = otherCA },
		"the system's":     func(c *Config) { c.BlobsCA = "" },
	} {
		s := &server{Config: st.Config, registry: prometheus.NewRegistry()}
		change(&s.Config)
		s.Log = slog.New(slog.DiscardHandler)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		if err := s.open(ctx); err == nil {
			t.Errorf("opened with %s", name)
		}
		s.close()
		cancel()
	}
}
