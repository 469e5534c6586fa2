// Package source converts public load data into the folders of files that are named by the
// descriptions in datasets/. The contents of every converted file are compared with a stored
// checksum, so anyone with the public source can repeat results on these files.
package source

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Source is a public dataset and the group of files that is made from it.
type Source struct {
	// Name is the name by which a user selects the source.
	Name string
	// About describes the data in a few words.
	About string
	// Folder is the folder of the group below the data root.
	Folder string
	// Address is the web address of the source.
	Address string
	// Licence names the licences and the required attribution.
	Licence string
	// Repository and Commit identify the source for git. Paths lists the folders to read.
	// All are empty if git alone cannot fetch the source.
	Repository, Commit string
	Paths              []string
	// From describes the files that Convert reads.
	From string
	// Steps are the commands that produce these files, if git alone cannot fetch them.
	Steps []string

	// sums maps each file to the SHA-256 of its contents before compression, because compressors
	// write different bytes for the same contents.
	sums    map[string]string
	convert func(from string, out *group) error
}

// Sources returns all sources in the order in which users see them.
func Sources() []Source { return []Source{cambridge, bdg2, resstock, sgsc, sample} }

// Find returns the source with the given name.
func Find(name string) (Source, bool) {
	all := Sources()
	i := slices.IndexFunc(all, func(s Source) bool { return s.Name == name })
	if i < 0 {
		return Source{}, false
	}
	return all[i], true
}

// File is a converted file.
type File struct {
	Name string
	// Rows is the number of lines below the header.
	Rows int
	// Sum is the SHA-256 of the contents before compression, and Want is the expected SHA-256.
	Sum, Want string
}

// Equal reports whether the file has the expected contents.
func (f File) Equal() bool { return f.Sum == f.Want }

// ErrDiffers means that converted files do not have the expected contents. The files are in a
// separate folder, which the error names.
var ErrDiffers = errors.New("the contents differ from the expected ones")

// Convert reads the source from a folder and writes its group below root. It puts the files
// into place only if all of them have the expected contents.
func (s Source) Convert(from, root string) ([]File, error) {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, err
	}
	unverified := filepath.Join(root, s.Folder+".unverified")
	if err := os.RemoveAll(unverified); err != nil {
		return nil, err
	}
	if err := os.Mkdir(unverified, 0o755); err != nil {
		return nil, err
	}
	out := &group{dir: unverified}
	if err := s.convert(from, out); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", s.Name, err), os.RemoveAll(unverified))
	}
	equal := len(out.files) == len(s.sums)
	for i := range out.files {
		f := &out.files[i]
		f.Want = s.sums[f.Name]
		equal = equal && f.Equal()
	}
	if !equal {
		return out.files, fmt.Errorf("%w: the files are in %s and are not used", ErrDiffers, unverified)
	}
	folder := filepath.Join(root, s.Folder)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	for _, f := range out.files {
		if err := os.Rename(filepath.Join(unverified, f.Name), filepath.Join(folder, f.Name)); err != nil {
			return nil, err
		}
	}
	return out.files, os.Remove(unverified)
}
