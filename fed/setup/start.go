package setup

import (
	"context"
	"errors"
	"fmt"

	"loadstar/fed"
	"loadstar/fed/client"
	"loadstar/fed/recipe"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// TrainStart returns the shared weights of version 0 of a plan with start: server-data. It
// trains the plan's random initial weights for server.start_steps steps on the server's data,
// with the clients' optimizer and batch size (song2021, section 4.1: "all the methods use
// server data for training an initial model"; it states neither the optimizer nor the number of
// steps). [Setup.From] makes a run start from these weights.
//
// The result depends only on the plan and the data. The simulator and the fleet's coordinator
// get the same bits if they pass the same examples in the same order, as [Setup.ServerExamples]
// returns them. With many steps, the computation takes minutes, so store the result with the
// run instead of computing it again after a restart.
//
// If the plan has personal layers, the server trains a copy of them and discards it. Clients
// start with the usual initial personal layers. song2021 has no personal layers.
func (s *Setup) TrainStart(ctx context.Context, k *kernel.Set, data []series.Examples) ([]float32, error) {
	if len(data) == 0 {
		return nil, errors.New("start server-data: the server has no complete training example: raise server.clients or choose another seed")
	}
	job := s.Job
	// Nothing from this training is sent, averaged or stored between rounds.
	job.Needs, job.Averaged, job.Own = fed.Needs{}, false, false
	job.Draws, job.Coarse = fed.Seeded(job.Seed), false
	w := client.NewWorker(&job, k, recipe.NewStarter(s.Plan, k))
	shared, personal := s.InitialWeights()
	c := client.Client{ID: "server", Data: data, Kept: make([]float32, w.Kept()), First: true}
	copy(c.Kept, personal)
	// Round -1 has its own random numbers. From round 0 on, FedSIM uses the server's data as a
	// client with the same name.
	task := fed.Task{Round: -1, Shared: s.Problem.SharedWeights(shared)}
	var u fed.Update
	if err := w.Train(ctx, &c, task, &u); err != nil {
		return nil, fmt.Errorf("start server-data: %w", err)
	}
	trained := make([]float32, s.Problem.Partition.SharedLen())
	s.Problem.Partition.Cut(w.Weights(), trained, personal)
	return trained, nil
}
