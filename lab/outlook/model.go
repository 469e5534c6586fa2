package outlook

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"loadstar/fed/recipe"
	"loadstar/fed/serve"
	"loadstar/forecast/issue"
	"loadstar/internal/textfmt"
	"loadstar/lab/run"
	"loadstar/nn/kernel"
	"loadstar/series"
)

const sharedName = "shared.safetensors"

// Model is a trained model with the data of the clients in its folder.
type Model struct {
	folder *serve.Folder
	// version is the version of the shared weights, or empty.
	version string
	data    *series.Dataset
	// trained is the problem of the run, if the folder lacks its clients' scaling and the data
	// is the run's data. Otherwise it is nil. fleet contains the ranges of all meters in the
	// run, if the plan scales them in the same way.
	trained *recipe.Problem
	fleet   series.Ranges

	mu     sync.Mutex
	fitted map[int]fitted // by meter
}

// fitted is the result of fitting personal layers to a meter at a cutoff.
type fitted struct {
	cutoff int64
	client *serve.Client
}

// Open opens a model for the meters of a dataset. Path is the folder of a run, or the file of
// its shared weights, whose folder must contain the plan.
func Open(path string, d *series.Dataset, k *kernel.Set) (*Model, error) {
	if strings.HasPrefix(path, "release:") {
		return nil, fmt.Errorf("%s: releases of a server cannot be used yet; name the folder of a run", path)
	}
	dir := path
	if info, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no folder %s; name the folder of a finished run", path)
	} else if err != nil {
		return nil, err
	} else if !info.IsDir() {
		if filepath.Base(path) != sharedName {
			return nil, fmt.Errorf("%s is neither the folder of a run nor its %s", path, sharedName)
		}
		dir = filepath.Dir(path)
	}
	if _, err := os.Stat(filepath.Join(dir, "plan.yaml")); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s has no plan.yaml; name the folder of a finished run, or put the plan of the weights there", dir)
	}
	err := sameData(dir, d)
	if err != nil {
		return nil, err
	}
	m := &Model{data: d, fitted: map[int]fitted{}}
	m.folder, err = serve.Open(dir, d, k)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w; if the run was interrupted, finish it with loadstar simulate --resume", err)
	} else if err != nil {
		return nil, err
	}
	if step := m.folder.Model.Step; step != 0 && step != d.Interval {
		_ = m.folder.Close() // the other error is more important
		return nil, fmt.Errorf("%s forecasts steps of %s, but the readings of %s are %s apart; train a model with such readings", path, textfmt.Duration(step), d.Name, textfmt.Duration(d.Interval))
	}
	if m.version, err = serve.Version(dir); err == nil {
		err = m.findScaling(dir)
	}
	if err != nil {
		_ = m.folder.Close() // the other error is more important
		return nil, err
	}
	return m, nil
}

// sameData returns an error if the folder lacks the scaling of the clients' inputs, as in older
// versions, and the data is not the run's data.
func sameData(dir string, d *series.Dataset) error {
	if _, err := os.Stat(filepath.Join(dir, serve.ScalingName)); err == nil {
		return nil
	}
	s, err := run.ReadSummary(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // there are only weights, so every meter is new
	} else if err != nil {
		return err
	}
	if s.Data != d.Fingerprint() {
		return fmt.Errorf("%s has no %s, which contains the scaling of the clients' inputs, because an older version of loadstar wrote it; give the data of the run (%s), or train it again", dir, serve.ScalingName, s.Data)
	}
	return nil
}

// findScaling prepares to compute the clients' scaling if the folder lacks it, as in older
// versions. This is possible only with the run's data.
func (m *Model) findScaling(dir string) error {
	if len(m.folder.Clients()) > 0 {
		return nil
	}
	if _, err := run.ReadSummary(dir); errors.Is(err, fs.ErrNotExist) {
		return nil // there are only weights, so every meter is new
	} else if err != nil {
		return err
	}
	var err error
	if m.trained, err = recipe.Frame(m.folder.Model.Plan, m.data); err != nil {
		return err
	}
	if m.folder.Model.Plan.Model.Scaling == "fleet" {
		m.fleet = series.Ranges{}
		for i := range m.data.Len() {
			m.fleet.Merge(m.trained.Framer.Ranges(m.data.Meter(i)))
		}
	}
	return nil
}

// Close closes the model.
func (m *Model) Close() { _ = m.folder.Close() } // the folder was only read

// Name returns the name of the model and the version of its shared weights, which may be "".
func (m *Model) Name() (name, version string) { return m.folder.Model.Name, m.version }

// Reach returns the number of steps from the cutoff to the end of the last step that the model
// forecasts.
func (m *Model) Reach() int {
	p := m.folder.Model.Plan.Model
	return p.Horizon.Steps() + p.Targets.Steps() - 1
}

// client returns the model's client for meter i, or nil and a reason if the model cannot be
// used for the meter. New means that the run did not include the meter, so the meter's weights
// or scaling depend on its readings before the cutoff.
func (m *Model) client(ctx context.Context, i int, cutoff int64, fitSteps int) (c *serve.Client, reason issue.Reason, isNew bool, err error) {
	meter := m.data.Meter(i)
	own, err := m.folder.Client(meter.ID)
	switch {
	case err == nil:
		return &own, "", false, nil
	case errors.Is(err, serve.ErrNoScaling) && m.trained != nil:
		var r series.Ranges
		if r = m.fleet; r == nil && !recipe.Rows(m.folder.Model.Plan) {
			r = m.trained.Framer.Ranges(meter)
		}
		own.Scaling = m.trained.Scaling(meter, r)
		return &own, "", false, nil
	case errors.Is(err, serve.ErrNoScaling):
		if own.Scaling, err = m.folder.Model.Scaling(m.data, i, cutoff); errors.Is(err, serve.ErrShort) {
			return nil, issue.ShortHistory, true, nil
		}
		return &own, "", true, err
	case !errors.Is(err, serve.ErrNoHead):
		return nil, "", false, err
	case fitSteps == 0:
		return nil, issue.NoHead, true, nil
	}
	c, err = m.fit(ctx, i, cutoff, fitSteps)
	if c == nil {
		reason = issue.NoHead
	}
	return c, reason, true, err
}

// fit fits personal layers to meter i. It returns nil if there are too few readings, or if
// fitting did not improve the forecasts of readings that were held back.
func (m *Model) fit(ctx context.Context, i int, cutoff int64, steps int) (*serve.Client, error) {
	m.mu.Lock()
	f, ok := m.fitted[i]
	m.mu.Unlock()
	if ok && f.cutoff == cutoff {
		return f.client, nil
	}
	f = fitted{cutoff: cutoff}
	c, how, err := m.folder.Model.Fit(ctx, m.data, i, cutoff, nil, steps)
	switch {
	case errors.Is(err, serve.ErrShort):
	case err != nil:
		return nil, err
	case how.Better():
		f.client = &c
	}
	m.mu.Lock()
	m.fitted[i] = f
	m.mu.Unlock()
	return f.client, nil
}
