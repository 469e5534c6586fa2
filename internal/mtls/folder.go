package mtls

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"loadstar/internal/disk"
)

// The names of the files in an operator's folder. Other programs can also read their formats.
const (
	keyFile  = "key.pem"
	certFile = "cert.pem"
	caFile   = "ca.pem"
)

// WriteFolder stores credentials in a folder. Each file is written atomically, but the folder
// as a whole is not: after an interrupted call, or during a concurrent read, the files may not
// belong together. If the key and the root are unchanged, WriteFolder changes only one file.
func WriteFolder(dir string, c *Credentials) error {
	if err := MakeDir(dir); err != nil {
		return err
	}
	key, err := (&Bundle{Key: c.Key}).PEM()
	if err != nil {
		return err
	}
	if had, err := ReadPrivate(filepath.Join(dir, keyFile)); err != nil || string(had) != string(key) {
		if err := WritePrivate(filepath.Join(dir, keyFile), key); err != nil {
			return err
		}
	}
	if err := writeCertificates(filepath.Join(dir, caFile), c.Roots()...); err != nil {
		return err
	}
	return writeCertificates(filepath.Join(dir, certFile), c.Leaf)
}

func writeCertificates(path string, all ...*x509.Certificate) error {
	text, err := (&Bundle{Certificates: all}).PEM()
	if err != nil {
		return err
	}
	return disk.Write(path, func(f *os.File) error {
		_, err := f.Write(text)
		return err
	})
}

// ReadFolder reads the files written by WriteFolder and checks that they match. If only the
// key is intact, it returns credentials with the key and an error.
func ReadFolder(dir string) (Credentials, error) {
	var c Credentials
	path := filepath.Join(dir, keyFile)
	text, err := ReadPrivate(path)
	if err != nil {
		return c, err
	}
	b, err := Parse(text)
	if err == nil && b.Key == nil {
		err = errors.New("it contains no private key")
	}
	if err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	c.Key = b.Key
	leaf, err := readCertificates(filepath.Join(dir, certFile))
	if err != nil {
		return c, err
	}
	roots, err := readCertificates(filepath.Join(dir, caFile))
	if err != nil {
		return c, err
	}
	whole := Credentials{Key: c.Key, Leaf: leaf[0], Root: roots[0], More: roots[1:]}
	if err := whole.Check(); err != nil {
		return c, fmt.Errorf("%s: %w", dir, err)
	}
	return whole, nil
}

func readCertificates(path string) ([]*x509.Certificate, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := readAll(f)
	if err != nil {
		return nil, err
	}
	b, err := Parse(text)
	if err == nil && len(b.Certificates) == 0 {
		err = errors.New("it contains no certificate")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return b.Certificates, nil
}
