package pki

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"loadstar/internal/mtls"
)

func TestWriteOperator(t *testing.T) {
	a := open(t)
	begin, ahead := time.Now(), time.Duration(0)
	a.now = func() time.Time { return begin.Add(ahead) }
	dir := filepath.Join(t.TempDir(), "operator")
	const ttl = 30 * 24 * time.Hour
	revoked := map[string]bool{}
	write := func() mtls.Credentials {
		t.Helper()
		leaf, err := a.WriteOperator(dir, ttl, func(serial string) (bool, error) { return revoked[serial], nil })
		if err != nil {
			t.Fatal(err)
		}
		c, err := mtls.ReadFolder(dir)
		if err != nil {
			t.Fatal(err)
		}
		if !c.Leaf.Equal(leaf) {
			t.Error("it returned another certificate than it wrote")
		}
		return c
	}
	first := write()
	if got, err := get(t, start(t, a), first.TLS()); err != nil || !strings.HasPrefix(got, "operator local true") {
		t.Errorf("%q, %v", got, err)
	}
	for name, want := range map[string]os.FileMode{"": 0o700, "key.pem": 0o600, "cert.pem": 0o644, "ca.pem": 0o644} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%q: %v, %v", name, info.Mode(), err)
		}
	}
	ahead = 19 * 24 * time.Hour
	if c := write(); !c.Leaf.Equal(first.Leaf) {
		t.Error("renewed too early")
	}
	ahead = 21 * 24 * time.Hour
	second := write()
	if second.Leaf.Equal(first.Leaf) || !second.Key.Equal(first.Key) {
		t.Error("not renewed, or of another key")
	}
	// A revoked certificate is replaced together with its key, which a thief may have copied.
	revoked[Serial(second.Leaf)] = true
	third := write()
	if third.Leaf.Equal(second.Leaf) || third.Key.Equal(second.Key) {
		t.Error("not replaced after it was revoked")
	}
	if c := write(); !c.Leaf.Equal(third.Leaf) {
		t.Error("replaced again")
	}
	second = third
	ahead = 500 * 24 * time.Hour
	if c := write(); c.Leaf.Equal(second.Leaf) {
		t.Error("not renewed after it expired")
	}
	// Missing and damaged files, for example after a crash, are written again.
	for _, name := range []string{"cert.pem", "ca.pem", "key.pem"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		write()
	}
	if err := os.WriteFile(filepath.Join(dir, "cert.pem"), []byte("torn"), 0o644); err != nil {
		t.Fatal(err)
	}
	write()
	// An agent's certificate in the operator's folder is replaced.
	agent := credentials(t, a, Identity{Agent, "a"}, ttl)
	if err := mtls.WriteFolder(dir, &agent); err != nil {
		t.Fatal(err)
	}
	if who, ok := identity(write().Leaf); !ok || who.Role != Operator {
		t.Error(who)
	}
	// A certificate under another root is replaced.
	a = open(t)
	if c := write(); !c.Root.Equal(a.first().root()) {
		t.Error("it trusts another root")
	}
	// A key file that others can read, or that contains no key, is not overwritten, because it
	// may belong to somebody else.
	for _, spoil := range []func(string) error{
		func(path string) error { return os.Chmod(path, 0o644) },
		func(path string) error { return os.WriteFile(path, []byte("something else"), 0o600) },
	} {
		path := filepath.Join(dir, "key.pem")
		if err := spoil(path); err != nil {
			t.Fatal(err)
		}
		before, _ := os.ReadFile(path)
		if err := os.Remove(filepath.Join(dir, "cert.pem")); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if _, err := a.WriteOperator(dir, ttl, noneRevoked); err == nil {
			t.Error("replaced")
		}
		if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
			t.Error("the key is gone")
		}
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func noneRevoked(string) (bool, error) { return false, nil }

// TestWriteOperatorUnknown checks that nothing is written if it is not known whether the
// certificate is revoked.
func TestWriteOperatorUnknown(t *testing.T) {
	a := open(t)
	dir := filepath.Join(t.TempDir(), "operator")
	first, err := a.WriteOperator(dir, time.Hour, noneRevoked)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.WriteOperator(dir, time.Hour, func(string) (bool, error) { return false, errors.New("no ledger") }); err == nil {
		t.Error("written")
	}
	if c, err := mtls.ReadFolder(dir); err != nil || !c.Leaf.Equal(first) {
		t.Error(err)
	}
}

// TestWriteOperatorConcurrently checks that concurrent calls leave a complete key and a
// complete certificate that match.
func TestWriteOperatorConcurrently(t *testing.T) {
	a := open(t)
	dir := filepath.Join(t.TempDir(), "operator")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := a.WriteOperator(dir, time.Hour, noneRevoked); err != nil {
				t.Error(err)
			} else if _, err := mtls.ReadFolder(dir); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}
