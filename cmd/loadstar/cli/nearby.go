package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"loadstar/internal/config"
)

// Limits on the number of entries that are read and listed, because a folder may be large.
const (
	maxEntries = 2000
	maxFolders = 50
	maxListed  = 6
)

// explain adds names near the path to an error about a missing file. It returns other
// errors unchanged.
func explain(err error) error {
	var missing *fs.PathError
	if !errors.Is(err, fs.ErrNotExist) || !errors.As(err, &missing) || missing.Path == "" {
		return err
	}
	if hint := hintAt(missing.Path); hint != "" {
		return fmt.Errorf("%w; %s", err, hint)
	}
	return err
}

// hintAt returns a hint that names existing paths near a missing one, or "".
func hintAt(path string) string {
	path = filepath.Clean(path)
	dir, base := filepath.Split(path)
	dir = filepath.Clean(cleanDir(dir))
	names := entries(dir)
	if names == nil {
		if parent := existing(dir); parent != "" {
			return fmt.Sprintf("there is no folder %s; %s", dir, contents(parent, entries(parent)))
		}
		return ""
	}
	if hint := config.Suggest(base, names); strings.HasPrefix(hint, "did you mean ") {
		name := strings.TrimSuffix(strings.TrimPrefix(hint, "did you mean "), "?")
		return fmt.Sprintf("did you mean %s?", filepath.Join(dir, name))
	}
	// A file of this name may be one folder further down, such as plans/NAME.
	for i, name := range names {
		if i >= maxFolders {
			break
		}
		for _, x := range []string{base, base + ".yaml"} {
			if _, err := os.Stat(filepath.Join(dir, name, x)); err == nil {
				return fmt.Sprintf("did you mean %s?", filepath.Join(dir, name, x))
			}
		}
	}
	return contents(dir, alike(names, filepath.Ext(base)))
}

func cleanDir(dir string) string {
	if dir == "" {
		return "."
	}
	return dir
}

// entries returns the names in a folder, except for hidden ones, or nil if the folder cannot be
// read.
func entries(dir string) []string {
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	all, err := f.Readdirnames(maxEntries)
	if err != nil && len(all) == 0 {
		if info, err := f.Stat(); err != nil || !info.IsDir() {
			return nil
		}
	}
	names := []string{}
	for _, n := range all {
		if !strings.HasPrefix(n, ".") {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	return names
}

// existing returns the nearest parent folder of dir that exists, or "" if there is none.
func existing(dir string) string {
	for {
		parent := filepath.Dir(dir)
		if parent == dir {
			return ""
		}
		if info, err := os.Stat(parent); err == nil && info.IsDir() {
			return parent
		}
		dir = parent
	}
}

// alike returns the names with the given extension, or all names if there are none.
func alike(names []string, ext string) []string {
	same := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return filepath.Ext(n) != ext })
	if len(same) == 0 {
		return names
	}
	return same
}

// contents describes the content of a folder.
func contents(dir string, names []string) string {
	if dir == "." {
		dir = "this folder"
	}
	switch n := len(names); {
	case n == 0:
		return dir + " is empty"
	case n > maxListed:
		return fmt.Sprintf("%s has %s and %d more", dir, strings.Join(names[:maxListed], ", "), n-maxListed)
	}
	return fmt.Sprintf("%s has %s", dir, strings.Join(names, ", "))
}
