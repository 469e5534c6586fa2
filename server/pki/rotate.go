package pki

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"loadstar/internal/disk"
	"loadstar/internal/mtls"
)

// Rotation describes how to replace an issuer.
type Rotation struct {
	// Root means that Rotate also creates a new root.
	Root bool
	// RootKey is the path of the root's key; if empty, the key is in the authority's folder.
	RootKey string
	// In is the time until the new issuer begins to sign certificates. The server trusts the
	// issuer immediately.
	In time.Duration
}

// Rotate replaces the issuer in a folder. The previous issuer remains trusted, and signs
// the server's own certificate, until Retire.
func Rotate(dir string, keys Keys, r Rotation) error {
	unlock, err := lock(dir)
	if err != nil {
		return err
	}
	defer unlock()
	has, err := read(dir, Keys{certificatesOnly: true})
	if err != nil {
		return err
	}
	if len(has.all) > 1 {
		return fmt.Errorf("a rotation is in progress: %s is still trusted; end the rotation with loadstar pki retire first", has.all[0].name())
	}
	current, now := has.all[0], time.Now()
	file := filepath.Join(dir, issuerFile)
	if current.kept == encryptedFile {
		// The server opens all keys with one passphrase, so check the passphrase first.
		// Otherwise, Rotate could silently write an unencrypted key.
		if _, err := readIssuer(file, keys); err != nil {
			return err
		}
	}
	var root *issuer
	if r.Root {
		root, err = newRoot(now)
	} else {
		root, err = readRootKey(dir, r.RootKey, current, keys)
	}
	if err != nil {
		return err
	}
	from := now
	if r.In > 0 {
		from = now.Add(r.In + skew) // certificates become valid earlier than their creation by skew
	}
	next, err := newIssuer(root, keys, from)
	if err != nil {
		return err
	}
	if next.id == current.id {
		// Agents renew only if the signing key differs from that of their certificate.
		return errors.New("the first external signer has the key of the current issuer; create a new key, and give its signer first")
	}
	if r.Root {
		if err := writeRootKey(dir, root, keys); err != nil {
			return err
		}
	}
	// After a crash at this point, both files have the previous issuer, and the rotation can
	// be repeated.
	text, err := mtls.ReadPrivate(file)
	if err != nil {
		return err
	}
	if err := put(filepath.Join(dir, previousFile), text); err != nil {
		return err
	}
	return next.write(file, keys)
}

// writeRootKey writes the key of a new root. If the folder has the key of another root under
// the same name, from the former root or from an interrupted rotation, that file is renamed.
func writeRootKey(dir string, root *issuer, keys Keys) error {
	path := filepath.Join(dir, rootKeyFile)
	switch other, err := readIssuer(path, Keys{certificatesOnly: true}); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	default:
		if err := step(path); err != nil {
			return err
		}
		if err := os.Rename(path, filepath.Join(dir, fmt.Sprintf("root-key-%x.pem", other.id))); err != nil {
			return err
		}
	}
	return root.write(path, keys)
}

// readRootKey reads the key of the root of an issuer. If path is empty, the key is one of
// those in the folder.
func readRootKey(dir, path string, current *issuer, keys Keys) (*issuer, error) {
	want := current.root()
	if path == "" {
		all, err := rootKeys(dir)
		if err != nil {
			return nil, err
		}
		path = filepath.Join(dir, rootKeyFile)
		for _, p := range all {
			if root, err := readIssuer(p, Keys{certificatesOnly: true}); err == nil && root.chain[0].Equal(want) {
				path = p
			}
		}
	}
	root, err := readIssuer(path, keys)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("the key of %s is not in %s; give the file with the key with --root-key, or create a new root with --root", want.Subject.CommonName, path)
	case err != nil:
		return nil, err
	case !root.chain[0].Equal(want):
		return nil, fmt.Errorf("%s is the key of %s, but the agents trust %s; give the file with its key with --root-key, or create a new root with --root", path, root.name(), want.Subject.CommonName)
	}
	return root, nil
}

// rootKeys returns the paths of the files in a folder that contain keys of roots.
func rootKeys(dir string) ([]string, error) {
	return filepath.Glob(filepath.Join(dir, "root-key*.pem"))
}

// step is called before each change of a file. Tests simulate a crash at this point.
var step = func(path string) error { return nil }

func put(path string, text []byte) error {
	if err := step(path); err != nil {
		return err
	}
	return mtls.WritePrivate(path, text)
}

// remove removes a file if it exists. The removal is durable, because a retired issuer must
// not reappear after a crash.
func remove(path string) error {
	if err := step(path); err != nil {
		return err
	}
	if err := os.Remove(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	return disk.SyncDir(filepath.Dir(path))
}

// Retire ends a rotation. Certificates of the previous issuer are no longer accepted. An agent
// with such a certificate can still use it to prove its identity when it joins again, unless
// the previous issuer's key was compromised.
func Retire(dir string, compromised bool) error {
	unlock, err := lock(dir)
	if err != nil {
		return err
	}
	defer unlock()
	has, err := read(dir, Keys{certificatesOnly: true})
	if err != nil {
		return err
	}
	if len(has.all) == 1 {
		return errors.New("no rotation is in progress, so there is no previous issuer")
	}
	if begins := has.all[1].chain[0].NotBefore; time.Now().Before(begins) {
		return fmt.Errorf("the new issuer begins to sign on %s", begins.Local().Format(time.DateTime))
	}
	// An interrupted call may already have listed the previous issuer.
	former, had := has.all[0].chain[0], len(has.retired)
	b := mtls.Bundle{Certificates: slices.DeleteFunc(has.retired, former.Equal)}
	if !compromised {
		b.Certificates = append(b.Certificates, former)
		b.Certificates = b.Certificates[max(0, len(b.Certificates)-maxRetired):]
	}
	if had+len(b.Certificates) > 0 {
		text, err := b.PEM()
		if err != nil {
			return err
		}
		if err := put(filepath.Join(dir, retiredFile), text); err != nil {
			return err
		}
	}
	return remove(filepath.Join(dir, previousFile))
}

// Encrypt encrypts the keys in a folder with a passphrase, and returns the paths of their
// files. Before the call, the keys must be unencrypted or have old's passphrase. Keys that
// already have the new passphrase after an interrupted change stay as they are.
func Encrypt(dir string, old Keys, passphrase string) (files []string, err error) {
	unlock, err := lock(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	paths, err := rootKeys(dir)
	if err != nil {
		return nil, err
	}
	next := Keys{Passphrase: passphrase}
	all := map[string]*issuer{} // by path; all are read before any is written
	for _, path := range append(paths, filepath.Join(dir, issuerFile), filepath.Join(dir, previousFile)) {
		i, err := readIssuer(path, Keys{certificatesOnly: true})
		if errors.Is(err, fs.ErrNotExist) || err == nil && i.kept == external {
			continue
		}
		if err != nil {
			return nil, err
		}
		files = append(files, path)
		if all[path], err = readIssuer(path, old); errors.Is(err, errKey) {
			if _, done := readIssuer(path, next); done == nil {
				delete(all, path)
				continue
			}
		}
		if err != nil {
			return nil, err
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s contains no key to encrypt", dir)
	}
	for path, i := range all {
		if err := i.write(path, next); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// IssuerInfo describes an issuer for display.
type IssuerInfo struct {
	ID, Name, Root string
	From, Expires  time.Time
	RootExpires    time.Time
	Signs          bool   // agents' certificates
	Serves         bool   // the issuer signs the server's own certificate
	Key            string // description of how its key is stored
}

// Issuers describes the issuers in a folder, oldest first. It needs no passphrase.
func Issuers(dir string) ([]IssuerInfo, error) {
	has, err := read(dir, Keys{certificatesOnly: true})
	if err != nil {
		return nil, err
	}
	return has.infos(time.Now()), nil
}

// Issuers describes the issuers in use.
func (a *Authority) Issuers() []IssuerInfo { return a.has.Load().infos(a.now()) }

func (h *issuers) infos(now time.Time) []IssuerInfo {
	var all []IssuerInfo
	for _, i := range h.all {
		all = append(all, IssuerInfo{
			ID: fmt.Sprintf("%x", i.id), Name: i.name(), Root: i.root().Subject.CommonName,
			From: i.chain[0].NotBefore, Expires: i.expires(), RootExpires: i.root().NotAfter, Key: i.kept,
			Signs: i == h.newest(now), Serves: i == h.serving(now),
		})
	}
	return slices.Clip(all)
}
