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

// State describes whether a folder contains a run, and whether the run is finished.
type State int

// The states of a folder: it has no run, an unfinished run, or a finished run.
const (
	Empty State = iota
	Begun
	Finished
)

// Look returns the state of the configured run's folder, and the summary if the run is
// finished. A folder with a run of a different plan is an error.
func Look(c Config) (*run.Summary, State, error) {
	var err error
	if c.Plan, err = recipe.Resolve(c.Plan, c.Dataset.Interval); err != nil {
		return nil, Empty, err
	}
	plan, err := recipe.Write(c.Plan)
	if err != nil {
		return nil, Empty, err
	}
	if _, err := os.Stat(filepath.Join(c.Dir, "plan.yaml")); errors.Is(err, fs.ErrNotExist) {
		return nil, Empty, nil
	}
	f, err := run.Reopen(c.Dir, plan, c.unsizedPlan)
	if err != nil {
		return nil, Empty, err
	}
	defer func() { _ = f.Close() }() // nothing was written, so an error does not matter
	s, err := run.ReadSummary(c.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, Begun, nil
	} else if err != nil {
		return nil, Begun, err
	}
	if now := c.Dataset.Fingerprint(); s.Data != now || s.Kernel != c.Kernel.Name() {
		return nil, Begun, fmt.Errorf("%s contains a finished run of %s with the %s kernels, not of %s with %s; choose another folder", c.Dir, s.Data, s.Kernel, now, c.Kernel.Name())
	}
	return s, Finished, nil
}

// unsizedPlan returns the plan in a run's folder without the cohort that the simulator chose.
// Look cannot choose the same cohort, because the number of clients that train is known only
// when all examples are built.
func (c *Config) unsizedPlan(text []byte) ([]byte, error) {
	text, err := c.upgradePlan(text)
	if err != nil {
		return nil, err
	}
	p, err := recipe.Read(text)
	if err != nil {
		return nil, err
	}
	if sized, chosen := recipe.Sized(c.Plan, c.Dataset.Len()); chosen && p.Schedule.Cohort == sized.Schedule.Cohort {
		p.Schedule.Cohort = 0
	}
	return recipe.Write(p)
}
