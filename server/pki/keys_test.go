package pki

import (
	"bytes"
	"crypto/ecdsa"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"

	"loadstar/internal/mtls"
)

// quick makes encryption fast. Files that were encrypted with the usual work factor can still
// be opened.
func quick(t testing.TB) {
	old := scryptLog2
	scryptLog2 = 10
	t.Cleanup(func() { scryptLog2 = old })
}

// checkPrivate checks that only their owner can read the files in a folder, and that there is
// no temporary file.
func checkPrivate(t testing.TB, dir string) {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 || strings.HasPrefix(e.Name(), ".") {
			t.Errorf("%s: %v, %v", e.Name(), info.Mode(), err)
		}
	}
}

// secretOf returns the part of a key's file that must remain secret.
func secretOf(t testing.TB, key *ecdsa.PrivateKey) string {
	t.Helper()
	text, err := (&mtls.Bundle{Key: key}).PEM()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(text), "\n")[1]
}

// TestEncrypt checks that Encrypt leaves no unencrypted key, and that only the correct
// passphrase opens the authority.
func TestEncrypt(t *testing.T) {
	quick(t)
	a := open(t)
	if err := Rotate(a.dir, Keys{}, Rotation{Root: true}); err != nil {
		t.Fatal(err)
	}
	plain := map[string]string{}
	for _, name := range []string{issuerFile, previousFile, rootKeyFile} {
		i, err := readIssuer(filepath.Join(a.dir, name), Keys{})
		if err != nil {
			t.Fatal(err)
		}
		plain[name] = secretOf(t, i.key.(*ecdsa.PrivateKey))
	}
	was, err := OpenExisting(a.dir, Keys{})
	if err != nil {
		t.Fatal(err)
	}
	files, err := Encrypt(a.dir, Keys{}, "correct horse")
	if err != nil || len(files) != 4 { // two roots and two issuers
		t.Fatal(files, err)
	}
	all, err := filepath.Glob(filepath.Join(a.dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for name, secret := range plain {
			if bytes.Contains(text, []byte(secret)) {
				t.Errorf("%s has the plain key of %s", path, name)
			}
		}
	}
	checkPrivate(t, a.dir)
	b, err := OpenExisting(a.dir, Keys{Passphrase: "correct horse"})
	if err != nil {
		t.Fatal(err)
	}
	agent := credentials(t, b, Identity{Agent, "a"}, time.Hour)
	if _, err := was.verify(agent.Leaf); err != nil || b.Pin() != was.Pin() {
		t.Errorf("another authority: %v", err)
	}
	for _, i := range b.Issuers() {
		if i.Key != encryptedFile {
			t.Errorf("%+v", i)
		}
	}
	for passphrase, want := range map[string]string{
		"":               "it is encrypted; give its passphrase with --pki-passphrase-file",
		"correct hors":   "the passphrase is wrong",
		"correct horse ": "the passphrase is wrong",
	} {
		_, err := OpenExisting(a.dir, Keys{Passphrase: passphrase})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), issuerFile) || strings.Contains(err.Error(), "backup") {
			t.Errorf("%q: %v", passphrase, err)
		}
	}
	if all, err := Issuers(a.dir); err != nil || len(all) != 2 {
		t.Errorf("show needs the passphrase: %v", err)
	}
	// age itself opens the first part of the file.
	types, block := pemBlocks(t, filepath.Join(a.dir, issuerFile))
	if types != sealedType+", CERTIFICATE, CERTIFICATE, " {
		t.Error(types)
	}
	by, err := age.NewScryptIdentity("correct horse")
	if err != nil {
		t.Fatal(err)
	}
	r, err := age.Decrypt(bytes.NewReader(block.Bytes), by)
	if err != nil {
		t.Fatal(err)
	}
	if key, err := io.ReadAll(r); err != nil || !strings.Contains(string(key), plain[issuerFile]) {
		t.Errorf("%s, %v", key, err)
	}
}

// TestRotateEncrypted checks that encrypted keys remain encrypted with the same passphrase
// during a rotation.
func TestRotateEncrypted(t *testing.T) {
	quick(t)
	keys := Keys{Passphrase: "one"}
	a, err := Open(filepath.Join(t.TempDir(), "pki"), keys)
	if err != nil {
		t.Fatal(err)
	}
	for n, r := range []Rotation{{}, {Root: true}} {
		for _, wrong := range []Keys{{}, {Passphrase: "two"}} {
			if err := Rotate(a.dir, wrong, r); err == nil || !strings.Contains(err.Error(), "passphrase") {
				t.Errorf("with %q: %v", wrong.Passphrase, err)
			}
		}
		if err := Rotate(a.dir, keys, r); err != nil {
			t.Fatal(n, err)
		}
		all, err := Issuers(a.dir)
		if err != nil || len(all) != 2 || all[0].Key != encryptedFile || all[1].Key != encryptedFile {
			t.Errorf("%d: %+v, %v", n, all, err)
		}
		if types, _ := pemBlocks(t, filepath.Join(a.dir, rootKeyFile)); !strings.HasPrefix(types, sealedType) {
			t.Error("the root's key is plain")
		}
		if err := Retire(a.dir, false); err != nil {
			t.Fatal(err)
		}
	}
	checkPrivate(t, a.dir)
}

// TestEncryptInterrupted checks that a passphrase can be changed even after an earlier change
// was interrupted, at whatever step.
func TestEncryptInterrupted(t *testing.T) {
	quick(t)
	for _, from := range []string{"", "old"} {
		for n := 0; ; n++ {
			a, err := Open(filepath.Join(t.TempDir(), "pki"), Keys{Passphrase: from})
			if err != nil {
				t.Fatal(err)
			}
			if err := Rotate(a.dir, Keys{Passphrase: from}, Rotation{}); err != nil {
				t.Fatal(err)
			}
			if _, err := Encrypt(a.dir, Keys{Passphrase: "wrong"}, "new"); (err == nil) != (from == "") {
				t.Fatalf("with the wrong old passphrase: %v", err)
			} else if from != "" {
				if _, err := OpenExisting(a.dir, Keys{Passphrase: from}); err != nil {
					t.Fatalf("a change that failed changed something: %v", err)
				}
			}
			a, err = Open(filepath.Join(t.TempDir(), "pki"), Keys{Passphrase: from})
			if err != nil {
				t.Fatal(err)
			}
			if err := Rotate(a.dir, Keys{Passphrase: from}, Rotation{}); err != nil {
				t.Fatal(err)
			}
			crashed := crash(t, n, func() error { _, err := Encrypt(a.dir, Keys{Passphrase: from}, "new"); return err })
			if _, err := Encrypt(a.dir, Keys{Passphrase: from}, "new"); err != nil {
				t.Fatalf("from %q, again after step %d: %v", from, n, err)
			}
			b, err := OpenExisting(a.dir, Keys{Passphrase: "new"})
			if err != nil || b.Pin() != a.Pin() {
				t.Fatalf("from %q, after step %d: %v", from, n, err)
			}
			if _, err := OpenExisting(a.dir, Keys{Passphrase: from}); err == nil {
				t.Error("the old passphrase still opens it")
			}
			if !crashed {
				break
			}
		}
	}
}

func TestEncryptNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	if _, err := Encrypt(dir, Keys{}, "x"); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "has no certificate authority") {
		t.Error(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Encrypt(dir, Keys{}, "x"); err == nil || !strings.Contains(err.Error(), "contains no key") {
		t.Error(err)
	}
}
