package sim

import (
	"context"
	"crypto/sha256"
	"encoding/binary"

	"loadstar/fed"
	"loadstar/fed/mask"
	"loadstar/fed/round"
)

// choice trains rounds of plans whose keepers choose the results to count. Each client is a
// separate agent, so a fleet computes the same weights if each of its agents has one client.
type choice struct{ *simulation }

// train trains the clients of a round in parallel, and counts the results that the keeper
// chooses.
func (s choice) train(ctx context.Context, o round.Outcome, task fed.Task, results []result) error {
	updates, sketches := make([]fed.Update, len(o.Counted)), make([][]float64, len(o.Counted))
	directions := s.directions()
	err := s.pool.each(ctx, len(o.Counted), func(w *worker, i int) (err error) {
		if err := s.trainInPlace(ctx, w, o.Counted[i].Client, task); err != nil {
			return err
		}
		if s.hostile != nil { // masked updates are not limited
			s.hostile(task, &w.update)
		}
		results[i] = result{w.update.TrainLoss, w.update.Steps}
		sketches[i], err = s.sketch(w.fold, &w.update, task, &directions)
		updates[i], w.update = w.update, fed.Update{}
		return err
	})
	if err != nil {
		return err
	}
	for _, i := range mask.Nearest(sketches) {
		if err := s.count(s.fold, &updates[i], task.Shared); err != nil {
			return err
		}
	}
	return nil
}

// sketch returns the products that a keeper receives for an update. The fold is empty before
// and after the call.
func (s choice) sketch(f *round.Fold, u *fed.Update, task fed.Task, directions *mask.Seed) ([]float64, error) {
	defer f.Reset()
	if err := s.count(f, u, task.Shared); err != nil {
		return nil, err
	}
	vector := s.setup.Rules.Vector(len(task.Shared))
	x, err := vector.Encode(f, &round.Sizes{})
	if err != nil {
		return nil, err
	}
	var sketch []float64
	blocks := vector.Blocks(task.Limits)
	for _, b := range blocks[:mask.Updates(blocks)] {
		p := directions.Products(x[:b.Length])
		x = x[b.Length:]
		for _, d := range p {
			sketch = append(sketch, float64(int64(d)))
		}
	}
	return sketch, nil
}

// directions returns the seed of the keeper's random vectors: the seed in the replayed run if
// there is one, and otherwise a seed derived from the plan's seed.
func (s choice) directions() mask.Seed {
	if s.Replay != nil && s.Replay.Directions != (mask.Seed{}) {
		return s.Replay.Directions
	}
	return sha256.Sum256(binary.LittleEndian.AppendUint64([]byte("loadstar/v1/simulated directions"), s.Plan.Seed))
}
