// Package atomicfile writes files that appear whole or not at all, also if the
// machine stops in between.
package atomicfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// File is a file that has not got its name yet.
type File struct {
	*os.File
	path string
	mode os.FileMode
	done bool
}

// Create begins a file. Only Finish makes it one of that name.
func Create(path string) (*File, error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return nil, err
	}
	return &File{File: f, path: path, mode: 0o644}, nil
}

// Path returns the name that the file will have.
func (f *File) Path() string { return f.path }

// Finish gives the file its name when everything is on disk, unless writing it
// failed: then it gives the file up and returns that error.
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
	// The new name must be on disk too, before anybody relies on it.
	dir, err := os.Open(filepath.Dir(f.path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Discard gives the file up, if it is not finished.
func (f *File) Discard() {
	if !f.done {
		f.done = true
		f.Close()
		os.Remove(f.Name())
	}
}

// Write replaces the file at path by what write writes.
func Write(path string, write func(*os.File) error) error {
	f, err := Create(path)
	if err != nil {
		return err
	}
	return f.Finish(write(f.File))
}

// WritePrivate is Write for a file that its owner alone can read, also while it is being
// written.
func WritePrivate(path string, write func(*os.File) error) error {
	f, err := Create(path) // of mode 0600 until it is finished
	if err != nil {
		return err
	}
	f.mode = 0o600
	return f.Finish(write(f.File))
}
