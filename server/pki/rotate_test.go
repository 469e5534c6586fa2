package pki

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var errCrash = errors.New("crash")

// crash calls change and stops it before its file operation n, as a crash would. It reports
// whether change got that far.
func crash(t testing.TB, n int, change func() error) bool {
	t.Helper()
	old := step
	defer func() { step = old }()
	crashed := false
	step = func(string) error {
		if n == 0 {
			crashed = true
		}
		if n--; crashed {
			return errCrash
		}
		return nil
	}
	if err := change(); (err != nil) != crashed || crashed && !errors.Is(err, errCrash) {
		t.Fatal(err)
	}
	return crashed
}

func reopen(t testing.TB, dir string) *Authority {
	t.Helper()
	a, err := OpenExisting(dir, Keys{})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestRotateCrash checks that after a crash at any step of a rotation, the folder contains the
// old issuer or both issuers, agents with a certificate from either issuer are accepted, and no
// root's key is lost. Rotate and Retire can be repeated.
func TestRotateCrash(t *testing.T) {
	for name, c := range map[string]struct {
		r     Rotation
		steps int
	}{
		"issuer": {Rotation{}, 2},
		"root":   {Rotation{Root: true}, 4},
	} {
		for n := range c.steps + 1 {
			dir := open(t).dir
			before := reopen(t, dir)
			agent := credentials(t, before, Identity{Agent, "a"}, time.Hour)
			root, err := os.ReadFile(filepath.Join(dir, rootKeyFile))
			if err != nil {
				t.Fatal(err)
			}
			if crashed := crash(t, n, func() error { return Rotate(dir, Keys{}, c.r) }); crashed != (n < c.steps) {
				t.Fatalf("%s: step %d of %d: crashed is %v", name, n, c.steps, crashed)
			}
			checkPrivate(t, dir)
			after := reopen(t, dir)
			if after.Pin() != before.Pin() {
				t.Errorf("%s, step %d: join tokens no longer work", name, n)
			}
			if got, err := get(t, start(t, after), agent.TLS()); err != nil || !strings.HasPrefix(got, "agent a true") {
				t.Errorf("%s, step %d: %s, %v", name, n, got, err)
			}
			if len(after.Issuers()) == 1 {
				if err := Rotate(dir, Keys{}, c.r); err != nil {
					t.Fatalf("%s, step %d: %v", name, n, err)
				}
			}
			after = reopen(t, dir)
			later := credentials(t, after, Identity{Agent, "b"}, time.Hour)
			if !holds(t, dir, root) {
				t.Errorf("%s, step %d: the key of the former root is lost", name, n)
			}
			for m := 0; crash(t, m, func() error { return Retire(dir, false) }); m++ {
				now := reopen(t, dir)
				if _, err := now.verify(later.Leaf); err != nil {
					t.Errorf("%s, step %d, retiring %d: %v", name, n, m, err)
				}
			}
			end := reopen(t, dir)
			if _, err := end.verify(later.Leaf); err != nil {
				t.Errorf("%s, step %d: %v", name, n, err)
			}
			if _, err := end.verify(agent.Leaf); err == nil || len(end.Issuers()) != 1 {
				t.Errorf("%s, step %d: the former issuer is trusted", name, n)
			}
			if len(end.has.Load().retired) != 1 {
				t.Errorf("%s, step %d: %d retired issuers", name, n, len(end.has.Load().retired))
			}
			// The next rotation finds the key of its root.
			if err := Rotate(dir, Keys{}, Rotation{}); err != nil {
				t.Errorf("%s, step %d: %v", name, n, err)
			}
		}
	}
}

// holds reports whether a folder has a file with a root's key and the given content.
func holds(t testing.TB, dir string, text []byte) bool {
	t.Helper()
	if len(text) == 0 {
		return true
	}
	all, err := rootKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		if got, err := os.ReadFile(path); err == nil && bytes.Equal(got, text) {
			return true
		}
	}
	return false
}

// TestRotateCrashRoots checks that interrupted rotations to a new root lose no root's key,
// however often they happen, and that a rotation under the old root still works.
func TestRotateCrashRoots(t *testing.T) {
	dir := open(t).dir
	root, err := os.ReadFile(filepath.Join(dir, rootKeyFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1, 2, 3, 2, 1, 2} {
		if !crash(t, n, func() error { return Rotate(dir, Keys{}, Rotation{Root: true}) }) {
			t.Fatalf("step %d was not reached", n)
		}
		if !holds(t, dir, root) {
			t.Fatalf("step %d: the key of the root is lost", n)
		}
		if len(reopen(t, dir).Issuers()) > 1 {
			t.Fatalf("step %d: the rotation was done", n)
		}
	}
	if err := Rotate(dir, Keys{}, Rotation{}); err != nil {
		t.Error(err)
	}
}

// TestInitCrash checks that repeating an interrupted call of Init uses the same root. Init
// never replaces the key of a root, which agents may already trust.
func TestInitCrash(t *testing.T) {
	for n := range 2 {
		dir := filepath.Join(t.TempDir(), "pki")
		if !crash(t, n, func() error { return Init(dir, Keys{}) }) {
			t.Fatal("it was not reached")
		}
		if _, err := OpenExisting(dir, Keys{}); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("step %d: %v", n, err)
		}
		a, err := Open(dir, Keys{})
		if err != nil {
			t.Fatal(err)
		}
		root, err := os.ReadFile(filepath.Join(dir, rootKeyFile))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(dir, issuerFile)); err != nil {
			t.Fatal(err)
		}
		if err := Init(dir, Keys{}); err != nil {
			t.Fatal(err)
		}
		if b := reopen(t, dir); !holds(t, dir, root) || !b.first().root().Equal(a.first().root()) || b.Pin() == a.Pin() {
			t.Error("the root was replaced")
		}
	}
}

// TestRotateOfflineRoot checks that the root's key may be in another place, and that the errors
// describe what to do if it is not found.
func TestRotateOfflineRoot(t *testing.T) {
	a, other := open(t), open(t)
	safe := filepath.Join(t.TempDir(), "safe.pem")
	if err := os.Rename(filepath.Join(a.dir, rootKeyFile), safe); err != nil {
		t.Fatal(err)
	}
	wrong := filepath.Join(other.dir, rootKeyFile)
	for path, want := range map[string]string{
		"":                               "give the file with the key with --root-key, or create a new root with --root",
		safe + ".no":                     "give the file with the key with --root-key, or create a new root with --root",
		wrong:                            "but the agents trust " + a.first().root().Subject.CommonName,
		filepath.Join(a.dir, issuerFile): "but the agents trust",
	} {
		if err := Rotate(a.dir, Keys{}, Rotation{RootKey: path}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", path, err)
		}
		if got := reopen(t, a.dir).Issuers(); len(got) != 1 || got[0].Name != a.Issuers()[0].Name {
			t.Errorf("%q: %+v", path, got)
		}
	}
	if err := os.Chmod(safe, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Rotate(a.dir, Keys{}, Rotation{RootKey: safe}); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Error(err)
	}
	if err := os.Chmod(safe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Rotate(a.dir, Keys{}, Rotation{RootKey: safe}); err != nil {
		t.Fatal(err)
	}
	if err := Rotate(a.dir, Keys{}, Rotation{RootKey: safe}); err == nil || !strings.Contains(err.Error(), "loadstar pki retire") {
		t.Errorf("a second rotation: %v", err)
	}
	if found, _ := rootKeys(a.dir); len(found) > 0 {
		t.Error("the root's key was copied to the server")
	}
}

// TestRotateIn checks that a new issuer that begins later is trusted immediately, but signs
// only from then on.
func TestRotateIn(t *testing.T) {
	a := open(t)
	if err := Rotate(a.dir, Keys{}, Rotation{In: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if err := Retire(a.dir, false); err == nil || !strings.Contains(err.Error(), "begins to sign on") {
		t.Errorf("retired before the new issuer signs: %v", err)
	}
	b := reopen(t, a.dir)
	now := time.Now()
	for after, want := range map[time.Duration]int{0: 0, 59 * time.Minute: 0, time.Hour: 1} {
		b.now = func() time.Time { return now.Add(after) }
		leaf := credentials(t, b, Identity{Agent, "a"}, time.Minute).Leaf
		if err := leaf.CheckSignatureFrom(b.has.Load().all[want].chain[0]); err != nil {
			t.Errorf("after %v: %v", after, err)
		}
		if all := b.Issuers(); !all[want].Signs || all[1-want].Signs || !all[0].Serves {
			t.Errorf("after %v: %+v", after, all)
		}
	}
	// Another gateway already has the new issuer. This gateway, whose clock is behind, trusts
	// that issuer's certificates.
	ahead := reopen(t, a.dir)
	ahead.now = func() time.Time { return now.Add(2 * time.Hour) }
	b.now = func() time.Time { return now }
	if _, err := b.verify(credentials(t, ahead, Identity{Agent, "b"}, time.Minute).Leaf); err != nil {
		t.Error(err)
	}
}

// TestRetireCompromised checks that a certificate of a retired issuer proves an agent's
// identity, unless the issuer's key was stolen.
func TestRetireCompromised(t *testing.T) {
	for _, interrupted := range []bool{false, true} {
		for _, compromised := range []bool{false, true} {
			a := open(t)
			agent := credentials(t, a, Identity{Agent, "a"}, time.Hour)
			if err := Retire(a.dir, compromised); err == nil || !strings.Contains(err.Error(), "no rotation is in progress") {
				t.Error(err)
			}
			if err := Rotate(a.dir, Keys{}, Rotation{}); err != nil {
				t.Fatal(err)
			}
			if interrupted { // the theft of the key was discovered only after an interrupted call
				crash(t, 1, func() error { return Retire(a.dir, false) })
			}
			if err := Retire(a.dir, compromised); err != nil {
				t.Fatal(err)
			}
			b := reopen(t, a.dir)
			if _, err := b.verify(agent.Leaf); err == nil {
				t.Error("a certificate of the retired issuer is accepted")
			}
			if err := b.provable(agent.Leaf); (err == nil) == compromised {
				t.Errorf("compromised is %v, interrupted is %v: %v", compromised, interrupted, err)
			}
		}
	}
}

// TestRetiredAreFew checks that retired issuers are remembered only for a limited time.
func TestRetiredAreFew(t *testing.T) {
	a := open(t)
	agent := credentials(t, a, Identity{Agent, "a"}, time.Hour)
	for n := range maxRetired + 1 {
		if err := Rotate(a.dir, Keys{}, Rotation{Root: n%2 == 0}); err != nil {
			t.Fatal(err)
		}
		if err := Retire(a.dir, false); err != nil {
			t.Fatal(err)
		}
		if err := reopen(t, a.dir).provable(agent.Leaf); (err == nil) != (n < maxRetired) {
			t.Errorf("after %d rotations: %v", n+1, err)
		}
	}
}
