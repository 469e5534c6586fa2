package sim

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"loadstar/fed/recipe"
	"loadstar/fed/serve"
	"loadstar/forecast/issue"
	"loadstar/internal/disk"
	"loadstar/series"
)

// This file writes the files that forecasts of new readings need in addition to the trained
// weights: the scaling of each client, its fine-tuned weights, and the state that the client
// learned from its forecasts' errors.

// servedHours is the length of the forecasts from whose errors clients learn.
const servedHours = 48

// writeTuned writes a client's fine-tuned weights, which are in w.w, to the run's folder.
func (s *ending) writeTuned(w *worker, client string) error {
	path, err := s.folder.Tuned(client)
	if err != nil {
		return err
	}
	model := s.setup.Problem.Model
	return disk.Write(path, func(to *os.File) error {
		return model.WriteWeights(to, w.w, model.Net().Layers(), map[string]string{"client": client, "plan": s.Plan.Name})
	})
}

// writeScaling writes the scaling of all clients that trained or were scored.
func (s *ending) writeScaling() error {
	members := slices.Concat(s.fleet.clients, s.fleet.holdout)
	slices.SortFunc(members, func(a, b member) int { return strings.Compare(string(a.id), string(b.id)) })
	names := make([]string, len(members))
	for i, m := range members {
		names[i] = string(m.id)
	}
	return disk.Write(s.folder.Scaling(), func(to *os.File) error {
		return serve.WriteScaling(to, s.setup.Problem, s.Dataset.Interval, names, func(i int) (recipe.Scaling, error) {
			return s.setup.Problem.ScalingOf(members[i].windows, s.fleet.rangesOf(s.setup.Problem.Framer, members[i].meter)), nil
		})
	})
}

// writeStates writes the scored clients' states of forecasts at the end of their readings. To
// compute the states, it forecasts the last weeks with the weights in the folder, like loadstar
// forecast. It writes states only for plans that forecast at least the next day. For other
// plans, the computation would take a tenth of the run's time, and loadstar forecast computes
// states that are missing.
func (s *ending) writeStates(ctx context.Context, scored []member) error {
	if s.Plan.Model.Horizon.Steps() != 1 || s.Plan.Model.Targets.Steps() < s.Dataset.StepsPerDay() {
		return nil
	}
	folder, err := serve.Open(s.folder.Dir, s.Dataset, s.Kernel)
	if err != nil {
		return err
	}
	defer func() { _ = folder.Close() }() // the folder was only read
	replay := serve.NewReplay(s.Dataset, folder.Model, nil)
	names := make([]string, len(scored))
	for i, m := range scored {
		names[i] = string(m.id)
	}
	// States are computed in parallel, but only a few are in memory at a time.
	chunk := make([][]byte, 16*len(s.pool.workers))
	return disk.Write(s.folder.States(), func(to *os.File) error {
		return serve.WriteStates(to, names, func(i int) ([]byte, error) {
			if i%len(chunk) == 0 {
				err := s.pool.each(ctx, min(len(chunk), len(names)-i), func(_ *worker, k int) (err error) {
					chunk[k], err = s.stateOf(folder, replay, &scored[i+k])
					return err
				})
				if err != nil {
					return nil, err
				}
			}
			return chunk[i%len(chunk)], nil
		})
	})
}

// stateOf returns the encoded state of a client at the end of its readings, or nil if the
// folder does not contain all weights of the client.
func (s *ending) stateOf(folder *serve.Folder, replay *serve.Replay, m *member) ([]byte, error) {
	client, err := folder.Client(string(m.id))
	if errors.Is(err, serve.ErrNoHead) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	state, err := issue.NewState(issue.Config{Step: s.Dataset.Interval, Clock: s.Dataset.Clock, H: int(servedHours * time.Hour / s.Dataset.Interval)})
	if err != nil {
		return nil, err
	}
	end := len(m.meter.Load)
	for end > 0 && series.Missing(m.meter.Load[end-1]) {
		end--
	}
	cutoff := m.meter.Start + int64(end)*s.Dataset.Seconds()
	if err := replay.Advance(state, m.number, &client, nil, cutoff); err != nil {
		return nil, err
	}
	state.Advance(m.meter, cutoff) // a later forecast then has nothing to replay
	return state.AppendBinary(nil)
}
