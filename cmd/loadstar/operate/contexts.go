package operate

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"

	"go.yaml.in/yaml/v3"

	"loadstar/internal/config"
	"loadstar/internal/disk"
)

// storedContext is a server's address and the folder with a user's credentials.
type storedContext struct {
	Server string `yaml:"server" json:"server"`
	// Operator is the folder with key.pem, cert.pem and ca.pem.
	Operator string `yaml:"operator" json:"operator"`
}

// contextFile contains a user's contexts.
type contextFile struct {
	// Current is the context that commands use. It may be empty.
	Current  string                   `yaml:"current,omitempty"`
	Contexts map[string]storedContext `yaml:"contexts"`

	path string
}

// maxFile limits the size of the file.
const maxFile = 1 << 20

// contextsPath returns the path of the file: loadstar/config.yaml in $XDG_CONFIG_HOME, or in
// ~/.config.
func contextsPath() (string, error) {
	dir := os.Getenv("XDG_CONFIG_HOME")
	if dir == "" || !filepath.IsAbs(dir) {
		if runtime.GOOS == "windows" {
			var err error
			if dir, err = os.UserConfigDir(); err != nil {
				return "", err
			}
		} else {
			home, err := os.UserHomeDir()
			if err != nil {
				return "", err
			}
			dir = filepath.Join(home, ".config")
		}
	}
	return filepath.Join(dir, "loadstar", "config.yaml"), nil
}

// loadContexts reads the user's file. If there is no file, there are no contexts. The same
// applies if the user has no home, which is usual for services, or if the environment contains
// another user's home, which happens after runuser.
func loadContexts() (*contextFile, error) {
	path, err := contextsPath()
	f := &contextFile{path: path, Contexts: map[string]storedContext{}}
	if err != nil {
		return f, nil
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return f, nil
	case err != nil:
		return nil, err
	case info.Size() > maxFile:
		return nil, fmt.Errorf("%s has %d bytes, but the limit is %d", path, info.Size(), maxFile)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if err := config.Decode(text, f); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// Get returns a context. An empty name means the current one; if there is none, Get
// returns an empty context.
func (f *contextFile) Get(name string) (storedContext, error) {
	if name = cmp.Or(name, f.Current); name == "" {
		return storedContext{}, nil
	}
	c, ok := f.Contexts[name]
	if !ok {
		return c, f.unknown(name)
	}
	return c, nil
}

func (f *contextFile) unknown(name string) error {
	if len(f.Contexts) == 0 {
		return fmt.Errorf("there is no context %q, and no other; add one with loadstar context add", name)
	}
	return fmt.Errorf("there is no context %q; %s", name, config.Suggest(name, f.Names()))
}

// Names returns the names of all contexts, sorted.
func (f *contextFile) Names() []string { return slices.Sorted(maps.Keys(f.Contexts)) }

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// Add adds or replaces a context. The first one becomes the current one.
func (f *contextFile) Add(name string, c storedContext) error {
	if !validName.MatchString(name) {
		return fmt.Errorf("%q is not a name for a context; use letters, digits, dots, hyphens and underscores, at most 63", name)
	}
	f.Contexts[name] = c
	f.Current = cmp.Or(f.Current, name)
	return f.save()
}

// Use makes a context the current one.
func (f *contextFile) Use(name string) error {
	if _, err := f.Get(name); err != nil {
		return err
	}
	f.Current = name
	return f.save()
}

// Remove removes a context. If it is the current one, no context is current afterwards.
func (f *contextFile) Remove(name string) error {
	if _, err := f.Get(name); err != nil {
		return err
	}
	delete(f.Contexts, name)
	if f.Current == name {
		f.Current = ""
	}
	return f.save()
}

// save makes the file readable only by its owner, because it shows where credentials are.
func (f *contextFile) save() error {
	if f.path == "" {
		return errors.New("there is no folder for contexts; set HOME or XDG_CONFIG_HOME")
	}
	text, err := yaml.Marshal(f)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
		return err
	}
	return disk.WritePrivate(f.path, func(w *os.File) error {
		_, err := w.Write(text)
		return err
	})
}
