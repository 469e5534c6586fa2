package client

import (
	"context"
	"fmt"
	"slices"

	"loadstar/fed"
	"loadstar/nn"
	"loadstar/nn/kernel"
	"loadstar/series"
)

var _ fed.ServerData = (*ServerData)(nil)

// ServerData is the data that a server has of its own: a client whose updates
// nobody counts. Where a plan has personal layers, the server trains a set of them,
// so that the shared ones have a gradient at all (song2021 has none).
type ServerData struct {
	worker *Worker
	client Client
	batch  []int
	size   int
	w, g   []float32
	update fed.Update
}

// NewServerData returns the server's data with personal weights to start from, of
// which a batch of the given size is used in each round.
func NewServerData(j *Job, k *kernel.Set, t fed.LocalTrainer, data []*series.Windows, personal []float32, size int) (*ServerData, error) {
	own := *j
	own.Batch = max(j.Batch, size)
	s := &ServerData{worker: NewWorker(&own, k, t), client: Client{ID: "server", Data: data, First: true}, size: size}
	s.client.Kept = make([]float32, s.worker.Kept())
	copy(s.client.Kept, personal)
	s.w, s.g = make([]float32, len(s.worker.turn.W)), make([]float32, len(s.worker.turn.W))
	s.worker.objective.setData(data)
	if s.worker.objective.Len() == 0 {
		return nil, fmt.Errorf("the server's clients have no complete training example")
	}
	return s, nil
}

// Begin draws the batch of a round, with replacement, and trains the server's personal layers from
// the round's weights.
func (s *ServerData) Begin(ctx context.Context, t fed.Task) error {
	if s.worker.job.Partition.PersonalLen() > 0 {
		if err := s.worker.Train(ctx, &s.client, t, &s.update); err != nil {
			return err
		}
	}
	s.worker.objective.setData(s.client.Data)
	rng := fed.Rand(s.worker.job.Seed, "server batch", t.Round, "")
	s.batch = s.batch[:0]
	for range min(s.size, s.worker.objective.Len()) {
		s.batch = append(s.batch, rng.IntN(s.worker.objective.Len()))
	}
	return nil
}

// Gradient is that of the round's batch at the given shared weights.
func (s *ServerData) Gradient(g, shared []float32) error {
	p := s.worker.job.Partition
	personal := s.client.Kept[:p.PersonalLen()]
	p.Join(s.w, shared, personal)
	s.worker.objective.Gradient(s.g, s.w, s.batch)
	if nn.NotFinite(s.g) >= 0 {
		return fmt.Errorf("the gradient on the server's data is not finite: %w", fed.ErrDiverged)
	}
	p.Cut(s.g, g, s.worker.turn.W[:p.PersonalLen()]) // the personal part is of no use
	return nil
}

// Kept returns what the server keeps of its personal layers; nobody may change it.
func (s *ServerData) Kept() []float32 { return s.client.Kept }

// Restore goes on from what was kept.
func (s *ServerData) Restore(kept []float32) error {
	if len(kept) != len(s.client.Kept) {
		return fmt.Errorf("the server kept %d numbers, the plan has %d", len(kept), len(s.client.Kept))
	}
	s.client.Kept, s.client.First = slices.Clone(kept), false
	return nil
}
