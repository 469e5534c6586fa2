package sim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"loadstar/fed/recipe"
	"loadstar/lab/run"
)

// State is how far the run in a folder has come.
type State int

// The states of a folder: without a run, with one to be resumed, with one that is
// finished.
const (
	Empty State = iota
	Begun
	Finished
)

// Look says how far the configured run is in its folder, and what came of it if it
// is finished. A run of another plan there is an error.
func Look(c Config) (*run.Summary, State, error) {
	plan, err := recipe.Write(c.Plan)
	if err != nil {
		return nil, Empty, err
	}
	if _, err := os.Stat(filepath.Join(c.Dir, "plan.yaml")); errors.Is(err, fs.ErrNotExist) {
		return nil, Empty, nil
	}
	f, err := run.Reopen(c.Dir, plan)
	if err != nil {
		return nil, Empty, err
	}
	defer func() { _ = f.Close() }() // it was only read
	s, err := run.ReadSummary(c.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, Begun, nil
	} else if err != nil {
		return nil, Begun, err
	}
	if now := fingerprint(c.Dataset); s.Data != now || s.Kernel != c.Kernel.Name() {
		return nil, Begun, fmt.Errorf("%s has a finished run of %s with the %s kernels, and this is %s with %s: choose another folder", c.Dir, s.Data, s.Kernel, now, c.Kernel.Name())
	}
	return s, Finished, nil
}
