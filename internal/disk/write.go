package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// File is a temporary file that gets its final name when it is finished.
type File struct {
	*os.File
	path string
	mode os.FileMode
	done bool
}

// Create creates a temporary file. Finish renames it to path.
func Create(path string) (*File, error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		// Users did not choose the temporary name, so the message contains path instead.
		if cause := (*os.PathError)(nil); errors.As(err, &cause) {
			err = &os.PathError{Op: "write", Path: path, Err: cause.Err}
		}
		return nil, err
	}
	return &File{File: f, path: path, mode: 0o644}, nil
}

// CreatePrivate is like Create, but only the owner can read the file.
func CreatePrivate(path string) (*File, error) {
	f, err := Create(path) // the mode is 0600 until Finish is called
	if err == nil {
		f.mode = 0o600
	}
	return f, err
}

// Path returns the name that the file will have.
func (f *File) Path() string { return f.path }

// Finish syncs the file to disk and renames it. A non-nil err means that the caller could
// not write the file. In that case Finish deletes the file and returns err.
func (f *File) Finish(err error) error {
	if f.done {
		return errors.New("closed twice")
	}
	defer f.Discard()
	if err == nil {
		err = f.Chmod(f.mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", f.path, err)
	}
	f.done = true
	if err := errors.Join(f.Close(), os.Rename(f.Name(), f.path)); err != nil {
		os.Remove(f.Name())
		return err
	}
	return SyncDir(filepath.Dir(f.path))
}

// SyncDir syncs the names in a folder to disk, so that new names survive a crash.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Discard deletes the file unless Finish has renamed it.
func (f *File) Discard() {
	if !f.done {
		f.done = true
		f.Close()
		os.Remove(f.Name())
	}
}

// Write atomically replaces the file at path with the output of write.
func Write(path string, write func(*os.File) error) error {
	f, err := Create(path)
	if err != nil {
		return err
	}
	return f.Finish(write(f.File))
}

// WritePrivate is like Write, but only the owner can read the file, even while it is being
// written.
func WritePrivate(path string, write func(*os.File) error) error {
	f, err := CreatePrivate(path)
	if err != nil {
		return err
	}
	return f.Finish(write(f.File))
}
