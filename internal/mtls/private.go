package mtls

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"loadstar/internal/disk"
)

// maxFile is the maximum size of a file, which is much larger than a key, two certificates and
// an address.
const maxFile = 1 << 16

// MakeDir creates a folder for private files, and its missing parent folders. It syncs the
// new folder to disk.
func MakeDir(dir string) error {
	dir = filepath.Clean(dir)
	var made []string
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(d); err == nil {
			break
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		made = append(made, d)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, d := range made {
		if err := disk.SyncDir(filepath.Dir(d)); err != nil {
			return err
		}
	}
	return nil
}

// WritePrivate replaces the file at path atomically. Only its owner can read the file, even
// while it is being written. After a crash, the file has either its old or its new content.
func WritePrivate(path string, data []byte) error {
	return disk.WritePrivate(path, func(f *os.File) error {
		_, err := f.Write(data)
		return err
	})
}

// ReadPrivate reads a file with a key. It returns an error if others can read the file,
// because the key may be compromised.
func ReadPrivate(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("%s holds a private key, and others can read it (mode %04o): run 'chmod 600' on it", path, mode)
	}
	return readAll(f)
}

func readAll(f *os.File) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s is longer than %d bytes", f.Name(), maxFile)
	}
	return data, err
}
