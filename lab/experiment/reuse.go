package experiment

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"loadstar/fed/recipe"
	"loadstar/lab/run"
)

// unshared lists the files of a run that only the training process needs, and those that
// reports add.
var unshared = []string{"lock", "checkpoint", "kept.bin", "report.html"}

// reuse looks for a finished run of the trial in the subfolders of e.Reuse. If there is one, it
// copies the run to dir and returns its summary; otherwise the summary is nil. A finished run
// can be reused if its effective plan (including the seed), data and kernel set are those of
// the trial.
func (e *Experiment) reuse(t Trial, dir string) (*run.Summary, error) {
	if e.Reuse == "" {
		return nil, nil
	}
	resolved, err := recipe.Resolve(t.Plan, t.Dataset.Interval)
	if err != nil {
		return nil, err
	}
	plan, err := recipe.Write(resolved)
	if err != nil {
		return nil, err
	}
	found, err := filepath.Glob(filepath.Join(e.Reuse, "*", "plan.yaml"))
	if err != nil {
		return nil, fmt.Errorf("look for finished runs in %s: %w", e.Reuse, err)
	}
	for _, path := range found {
		from := filepath.Dir(path)
		text, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(text, plan) {
			continue // do not reuse a run that cannot be read
		}
		s, err := run.ReadSummary(from)
		if err != nil || s.Data != t.Dataset.Fingerprint() || s.Kernel != e.Kernel.Name() {
			continue
		}
		if err := copyRun(dir, from); err != nil {
			return nil, fmt.Errorf("reuse %s: %w", from, err)
		}
		if e.Reused != nil {
			e.Reused(from, dir)
		}
		return s, nil
	}
	return nil, nil
}

// copyRun copies a finished run to another folder atomically, so an interrupted copy leaves no
// run there.
func copyRun(to, from string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	part, err := os.MkdirTemp(filepath.Dir(to), ".copy-")
	if err != nil {
		return err
	}
	err = filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return os.MkdirAll(filepath.Join(part, name), 0o755)
		case slices.Contains(unshared, name) || !d.Type().IsRegular():
			return nil
		}
		return copyFile(filepath.Join(part, name), path)
	})
	if err == nil {
		err = os.Chmod(part, 0o700)
	}
	if err == nil {
		err = os.Rename(part, to)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(part))
	}
	return nil
}

func copyFile(to, from string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	_, err = io.Copy(out, in)
	return err
}
