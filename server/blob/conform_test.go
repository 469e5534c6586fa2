package blob

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// backing is a folder or bucket with blobs, which a test can open as a Store several times.
type backing struct {
	open func(t *testing.T) Store
	// spoil replaces the stored bytes of a blob without using the store.
	spoil func(t *testing.T, hash string, data []byte)
}

func fileBacking(t *testing.T) backing {
	dir := t.TempDir()
	return backing{
		open: func(t *testing.T) Store {
			s, err := Files(dir)
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		spoil: func(t *testing.T, hash string, data []byte) {
			if err := os.WriteFile(files{dir}.path(hash), data, 0o644); err != nil {
				t.Fatal(err)
			}
		},
	}
}

func s3Backing(t *testing.T) backing {
	memory := s3mem.New()
	if err := memory.CreateBucket("weights"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(gofakes3.New(memory).Server())
	t.Cleanup(server.Close)
	return backing{
		open: func(t *testing.T) Store { return openS3(t, server, "weights") },
		spoil: func(t *testing.T, hash string, data []byte) {
			if _, err := memory.PutObject("weights", "blobs/"+hash, map[string]string{}, bytes.NewReader(data), int64(len(data)), nil); err != nil {
				t.Fatal(err)
			}
		},
	}
}

func openS3(t *testing.T, server *httptest.Server, bucket string) Store {
	t.Helper()
	s, err := S3(t.Context(), S3Config{
		Endpoint: strings.TrimPrefix(server.URL, "http://"), Bucket: bucket, Prefix: "blobs/",
		AccessKey: "key", SecretKey: "secret", Plaintext: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func cachedBacking(b backing, maxBytes int64) backing {
	plain := b.open
	b.open = func(t *testing.T) Store { return Cached(plain(t), maxBytes) }
	return b
}

func TestStores(t *testing.T) {
	for name, with := range map[string]func(t *testing.T) backing{
		"files":            fileBacking,
		"s3":               s3Backing,
		"files, cached":    func(t *testing.T) backing { return cachedBacking(fileBacking(t), 64<<20) },
		"s3, cached":       func(t *testing.T) backing { return cachedBacking(s3Backing(t), 64<<20) },
		"small cache":      func(t *testing.T) backing { return cachedBacking(fileBacking(t), 1000) },
		"cache of nothing": func(t *testing.T) backing { return cachedBacking(fileBacking(t), 0) },
	} {
		for test, run := range map[string]func(t *testing.T, b backing){
			"keeps": keeps, "names": names, "corrupt": corrupt, "concurrent": concurrent, "called off": calledOff,
		} {
			t.Run(name+"/"+test, func(t *testing.T) { run(t, with(t)) })
		}
	}
}

func random(seed uint64, n int) []byte {
	data := make([]byte, n)
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	_, _ = rand.NewChaCha8(key).Read(data)
	return data
}

func put(t *testing.T, s Store, data []byte) string {
	t.Helper()
	hash, err := s.Put(t.Context(), data)
	if err != nil {
		t.Fatal(err)
	}
	return hash
}

func keeps(t *testing.T, b backing) {
	s := b.open(t)
	for _, size := range []int{0, 1, 900, 6 << 20} {
		data := random(1, size)
		want := fmt.Sprintf("%x", sha256.Sum256(data))
		if _, err := s.Get(t.Context(), want); !errors.Is(err, ErrNotFound) {
			t.Errorf("%d bytes: before they are put: %v", size, err)
		}
		mine := bytes.Clone(data)
		if hash := put(t, s, mine); hash != want {
			t.Fatalf("%d bytes have the hash %s, not %s", size, want, hash)
		}
		clear(mine) // the store must not use the slice after Put
		if hash := put(t, s, data); hash != want {
			t.Errorf("another hash the second time: %s", hash)
		}
		for _, from := range []Store{s, b.open(t), s} {
			got, err := from.Get(t.Context(), want)
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes: got %d, %v", size, len(got), err)
			}
		}
		for range 2 {
			if err := s.Delete(t.Context(), want); err != nil {
				t.Errorf("%d bytes: %v", size, err)
			}
			if _, err := s.Get(t.Context(), want); !errors.Is(err, ErrNotFound) {
				t.Errorf("%d bytes, deleted: %v", size, err)
			}
		}
		put(t, s, data)
		if got, err := s.Get(t.Context(), want); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes, after all: got %d, %v", size, len(got), err)
		}
	}
}

func names(t *testing.T, b backing) {
	s := b.open(t)
	put(t, s, []byte("x"))
	const hex64 = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881" // hash of "x"
	if _, err := s.Get(t.Context(), hex64); err != nil {
		t.Error(err)
	}
	for _, name := range []string{
		"", "x", hex64[:63], hex64 + "0", strings.ToUpper(hex64), hex64[:63] + "g", hex64[:63] + "\x00",
		"../" + hex64, "/etc/passwd", strings.Repeat("../", 21) + "x", strings.Repeat("é", 32), strings.Repeat("x", 1<<20),
	} {
		_, err := s.Get(t.Context(), name)
		if err == nil || errors.Is(err, ErrNotFound) || len(err.Error()) > 500 {
			t.Errorf("get %.70q: %v", name, err)
		}
		if err := s.Delete(t.Context(), name); err == nil {
			t.Errorf("deleted %.70q", name)
		}
	}
}

func corrupt(t *testing.T, b backing) {
	data := random(2, 5000)
	hash := put(t, b.open(t), data)
	other := bytes.Clone(data)
	other[4999] ^= 1
	for name, wrong := range map[string][]byte{
		"torn": data[:4096], "empty": {}, "a bit": other, "longer": append(bytes.Clone(data), 0),
	} {
		b.spoil(t, hash, wrong)
		s := b.open(t)
		for range 2 { // the second Get must not return cached corrupt data
			got, err := s.Get(t.Context(), hash)
			if err == nil || errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "corrupt") || got != nil {
				t.Errorf("%s: %d bytes, %v", name, len(got), err)
			}
		}
		put(t, s, data)
		if got, err := b.open(t).Get(t.Context(), hash); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s, put again: %d bytes, %v", name, len(got), err)
		}
	}
}

// concurrent checks that with concurrent calls of Put, Get and Delete, a blob is always either
// complete or not found.
func concurrent(t *testing.T, b backing) {
	blobs := [][]byte{random(3, 10_000), random(4, 400), random(5, 100_000)}
	hashes := make([]string, len(blobs))
	for i, data := range blobs {
		hashes[i] = fmt.Sprintf("%x", sha256.Sum256(data))
	}
	stores := []Store{b.open(t), b.open(t)}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			s := stores[w%2]
			for i := range 15 {
				k := (w + i) % len(blobs)
				if _, err := s.Put(t.Context(), blobs[k]); err != nil {
					t.Error(err)
				}
				got, err := s.Get(t.Context(), hashes[k])
				if errors.Is(err, ErrNotFound) {
					continue
				}
				if err != nil || !bytes.Equal(got, blobs[k]) {
					t.Errorf("%d bytes, %v", len(got), err)
				}
				if i%5 == 0 {
					if err := s.Delete(t.Context(), hashes[k]); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
}

func calledOff(t *testing.T, b backing) {
	ctx, cancel := context.WithCancel(t.Context())
	hash := put(t, b.open(t), []byte("y"))
	cancel()
	s := b.open(t)
	if _, err := s.Get(ctx, hash); !errors.Is(err, context.Canceled) {
		t.Errorf("get: %v", err)
	}
	if err := s.Delete(ctx, hash); !errors.Is(err, context.Canceled) {
		t.Errorf("delete: %v", err)
	}
	if _, err := s.Put(ctx, []byte("z")); !errors.Is(err, context.Canceled) {
		t.Errorf("put: %v", err)
	}
	if got, err := s.Get(t.Context(), hash); err != nil || string(got) != "y" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestIsHash(t *testing.T) {
	if !IsHash(strings.Repeat("0123456789abcdef", 4)) || IsHash(strings.Repeat("0123456789abcdeF", 4)) || IsHash("") {
		t.Error("wrong")
	}
}
