package blob

import (
	"context"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

func TestS3Bucket(t *testing.T) {
	memory := s3mem.New()
	server := httptest.NewServer(gofakes3.New(memory).Server())
	defer server.Close()
	c := S3Config{Endpoint: strings.TrimPrefix(server.URL, "http://"), Bucket: "weights", AccessKey: "key", SecretKey: "secret", Plaintext: true}
	if _, err := S3(t.Context(), c); err == nil || !strings.Contains(err.Error(), "no bucket weights") {
		t.Errorf("no bucket: %v", err)
	}
	if there, _ := memory.BucketExists("weights"); there {
		t.Error("it made the bucket")
	}
	for name, c := range map[string]S3Config{
		"no endpoint": {Bucket: "b"},
		"no bucket":   {Endpoint: "localhost:1"},
		"no secret":   {Endpoint: "localhost:1", Bucket: "b", AccessKey: "key"},
		"a URL":       {Endpoint: "http://localhost:1/x", Bucket: "b"},
		"no such CA":  {Endpoint: "localhost:1", Bucket: "b", CAFile: "none"},
		"CA is none":  {Endpoint: "localhost:1", Bucket: "b", CAFile: "s3_test.go"},
	} {
		if _, err := S3(t.Context(), c); err == nil {
			t.Errorf("%s: opened", name)
		}
	}
}

func TestS3OverTLS(t *testing.T) {
	memory := s3mem.New()
	if err := memory.CreateBucket("weights"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewTLSServer(gofakes3.New(memory).Server())
	defer server.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(ca, text, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	c := S3Config{Endpoint: strings.TrimPrefix(server.URL, "https://"), Bucket: "weights", CAFile: ca}
	s, err := S3(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	hash := put(t, s, random(7, 100_000))
	if _, err := s.Get(t.Context(), hash); err != nil {
		t.Error(err)
	}
	if o, err := memory.HeadObject("weights", hash); err != nil || o.Size != 100_000 {
		t.Errorf("%+v, %v", o, err)
	}
	c.CAFile = ""
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := S3(ctx, c); err == nil {
		t.Error("trusted a stranger's certificate")
	}
}

// TestS3Away checks that Get returns an error other than ErrNotFound if the store is
// unreachable.
func TestS3Away(t *testing.T) {
	memory := s3mem.New()
	if err := memory.CreateBucket("weights"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(gofakes3.New(memory).Server())
	s := openS3(t, server, "weights")
	hash := put(t, s, []byte("x"))
	server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := s.Get(ctx, hash); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("get: %v", err)
	}
	if _, err := s.Put(ctx, []byte("y")); err == nil {
		t.Error("put")
	}
	if err := s.Delete(ctx, hash); err == nil {
		t.Error("deleted")
	}
}

// silent accepts requests and never answers.
type silent struct{}

func (silent) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// TestS3Silent checks that a store that never responds does not block its callers permanently.
func TestS3Silent(t *testing.T) {
	core, err := minio.NewCore("store.example.org", &minio.Options{Creds: credentials.NewStaticV4("key", "secret", ""), Region: "r", Transport: silent{}, MaxRetries: 4})
	if err != nil {
		t.Fatal(err)
	}
	s, hash := &s3{core: *core, bucket: "weights"}, strings.Repeat("ab", 32)
	for name, call := range map[string]func(context.Context) error{
		"get":    func(ctx context.Context) error { _, err := s.Get(ctx, hash); return err },
		"put":    func(ctx context.Context) error { _, err := s.Put(ctx, []byte("x")); return err },
		"delete": func(ctx context.Context) error { return s.Delete(ctx, hash) },
	} {
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			if err := call(t.Context()); err == nil || errors.Is(err, ErrNotFound) || time.Since(begun) > patience {
				t.Errorf("%s: %v after %v", name, err, time.Since(begun))
			}
		})
	}
}
