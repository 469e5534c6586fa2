package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"loadstar/internal/config"
)

// explain adds a name near the path to an error about a missing file. It returns other
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

// hintAt returns a hint that names an existing path near a missing one, or "".
func hintAt(path string) string {
	dir := filepath.Dir(path)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return ""
	}
	var names []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	name, ok := strings.CutPrefix(config.Suggest(filepath.Base(path), names), "did you mean ")
	if !ok {
		return ""
	}
	return "did you mean " + filepath.Join(dir, name)
}
