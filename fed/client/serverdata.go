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

// ServerData is data on the server, which uses the data like a client whose updates are not
// counted. If a plan has personal layers, the server trains its own copy of these layers,
// because only a complete model has a gradient of the shared layers (song2021 has no personal
// layers).
type ServerData struct {
	worker *Worker
	client Client
	batch  []int
	size   int
	w, g   []float32
	update fed.Update
}

// NewServerData returns the server's data. personal contains the initial personal weights,
// and size is the number of examples per round.
func NewServerData(j *Job, k *kernel.Set, t fed.LocalTrainer, data []series.Examples, personal []float32, size int) (*ServerData, error) {
	own := *j
	own.Batch = max(j.Batch, size)
	own.Draws, own.Coarse = fed.Seeded(j.Seed), false
	own.Own = false // the server has no shared weights apart from those of the round
	s := &ServerData{worker: NewWorker(&own, k, t), client: Client{ID: "server", Data: data, First: true}, size: size}
	s.client.Kept = make([]float32, s.worker.Kept())
	copy(s.client.Kept, personal)
	s.w, s.g = make([]float32, len(s.worker.turn.W)), make([]float32, len(s.worker.turn.W))
	s.worker.objective.setData(data)
	if s.worker.objective.Len() == 0 {
		return nil, fmt.Errorf("the server's clients have no complete training example: raise server.clients or choose another seed")
	}
	return s, nil
}

// Begin trains the server's personal layers, starting from the round's weights, and
// samples the batch of the round with replacement.
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

// Gradient overwrites g with the gradient on the round's batch at the given shared
// weights.
func (s *ServerData) Gradient(g, shared []float32) error {
	p := s.worker.job.Partition
	personal := s.client.Kept[:p.PersonalLen()]
	p.Join(s.w, shared, personal)
	s.worker.objective.Gradient(s.g, s.w, s.batch)
	if nn.NotFinite(s.g) >= 0 {
		return fmt.Errorf("the gradient on the server's data is not finite: %w", fed.ErrDiverged)
	}
	p.Cut(s.g, g, s.worker.turn.W[:p.PersonalLen()]) // discard the personal part
	return nil
}

// Kept returns the state of the server's personal layers. Callers must not change it.
func (s *ServerData) Kept() []float32 { return s.client.Kept }

// Restore sets the state to one that Kept returned earlier.
func (s *ServerData) Restore(kept []float32) error {
	if len(kept) != len(s.client.Kept) {
		return fmt.Errorf("the server's saved state has %d numbers, want %d as in the plan", len(kept), len(s.client.Kept))
	}
	s.client.Kept, s.client.First = slices.Clone(kept), false
	return nil
}
