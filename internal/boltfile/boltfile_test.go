package boltfile

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	bolt "go.etcd.io/bbolt"
)

func set(f *File, value string) error {
	return f.Update(func(tx *bolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists([]byte("b"))
		if err != nil {
			return err
		}
		return b.Put([]byte("k"), []byte(value))
	})
}

func get(t *testing.T, f *File) (value string) {
	t.Helper()
	err := f.View(func(tx *bolt.Tx) error {
		value = string(tx.Bucket([]byte("b")).Get([]byte("k")))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "x.db")
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := set(f, "1"); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); !errors.Is(err, ErrLocked) {
		t.Errorf("opened twice: %v", err)
	}
	refused := errors.New("refused")
	if err := f.Update(func(*bolt.Tx) error { return refused }); !errors.Is(err, refused) {
		t.Error(err)
	}
	if err := f.Update(func(*bolt.Tx) error { panic("a damaged page") }); !errors.Is(err, ErrDamaged) {
		t.Errorf("a panic is %v", err)
	}
	if err := set(f, "2"); err != nil || get(t, f) != "2" {
		t.Errorf("after a failed write: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	first, second := bytes.Clone(whole), bytes.Clone(whole)
	first[16+50] ^= 1 // in a meta page; bbolt uses the other one and forgets a transaction
	second[os.Getpagesize()+16+50] ^= 1
	for _, data := range [][]byte{whole[:len(whole)/2], whole[:100], append(make([]byte, 8192), whole[8192:]...), first, second} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path); err == nil {
			t.Errorf("opened a file with %d of %d bytes", len(data), len(whole))
		}
	}
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if f, err = Open(path); err != nil || get(t, f) != "2" {
		t.Fatal(err)
	}
	f.Close()
}
