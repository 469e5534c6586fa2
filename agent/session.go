package agent

import (
	"fmt"
	"math"
	"strings"

	"loadstar/fed"
	"loadstar/fed/client"
	"loadstar/fed/recipe"
	"loadstar/fed/round"
	"loadstar/nn"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// Bounds of what a plan may ask for.
const (
	maxPlan    = 64 << 10 // bytes
	maxHorizon = 1 << 14  // steps
)

// unfit is why a task cannot be done here. It is told to the server, so it says
// nothing about readings.
type unfit struct{ reason string }

func (u *unfit) Error() string { return u.reason }

func unfitf(format string, x ...any) error {
	const most = 500
	s := fmt.Sprintf(format, x...)
	return &unfit{strings.ToValidUTF8(s[:min(len(s), most)], "")}
}

// session is a plan made ready to train with, and the memory for it.
type session struct {
	plan    string // blob
	fleet   int64
	job     client.Job
	rules   round.Rules
	framer  *series.Framer
	initial []float32 // what a client keeps before its first round
	workers []*worker
	fold    *round.Fold // of clients that are sent together
}

// worker is the memory of one goroutine that trains.
type worker struct {
	*client.Worker
	kept   []float32
	update fed.Update
}

// newSession reads a plan and looks at the agent's data the way the simulator does.
func newSession(text []byte, fleet int64, d *series.Dataset, k *kernel.Set, workers int, memory int64) (*session, error) {
	p, err := recipe.Read(text)
	if err != nil {
		return nil, unfitf("this version cannot read the plan: %v", err)
	}
	switch {
	case p.Model.Scaling != "client":
		return nil, unfitf("model.scaling is %s: an agent knows the ranges of its own clients only", p.Model.Scaling)
	case len(p.Model.Inputs) == 0:
		return nil, unfitf("the plan does not say its model.inputs")
	case p.Model.Horizon > maxHorizon:
		return nil, unfitf("model.horizon is %d, at most %d are possible", p.Model.Horizon, maxHorizon)
	case fleet < 1 || fleet > math.MaxInt32:
		return nil, unfitf("a fleet of %d clients", fleet)
	}
	problem, err := recipe.Frame(p, nil) // without readings first: they may need memory
	if err != nil {
		return nil, unfitf("the plan does not fit together: %v", err)
	}
	if problem.Partition.SharedLen() == 0 || recipe.Pooled(p) {
		return nil, unfitf("algorithm %s with partition %s needs no server", p.Algorithm, p.Partition)
	}
	parts, err := recipe.Compose(p, int(fleet))
	if err != nil {
		return nil, unfitf("the plan does not fit together: %v", err)
	}
	if need := footprint(p, problem, workers); need > memory {
		return nil, unfitf("training takes %d MB, this agent may use %d", need>>20, memory>>20)
	}
	if problem, err = recipe.Frame(p, d); err != nil {
		return nil, unfitf("the readings here are not what the plan needs: %v", err)
	}
	needs := parts.Needs
	s := &session{
		fleet: fleet, framer: problem.Framer,
		rules: round.Rules{Needs: needs, Scale: parts.Scale, Control: parts.Control, Weight: parts.Weight},
		job: client.Job{
			Seed: p.Seed, Model: problem.Model, Partition: problem.Partition, Loss: problem.Loss,
			Targets: p.Model.Targets, Batch: p.Client.Batch, Needs: needs,
		},
	}
	for range workers {
		w := &worker{Worker: client.NewWorker(&s.job, k, parts.NewTrainer(k))}
		w.kept = make([]float32, w.Kept())
		s.workers = append(s.workers, w)
	}
	shared, personal := problem.Partition.SharedLen(), problem.Partition.PersonalLen()
	s.initial = make([]float32, len(s.workers[0].kept))
	problem.Partition.Cut(problem.Model.InitialWeights(p.Seed), make([]float32, shared), s.initial[:personal])
	s.fold = round.NewFold(s.rules)
	return s, nil
}

// shared returns how many weights travel.
func (s *session) shared() int { return s.job.Partition.SharedLen() }

// footprint returns the most bytes that training a plan takes, a little more than it
// does: activations of a batch for each worker, and vectors as long as the weights for
// optimizers, sums and what is on its way to disk.
func footprint(p *fed.Plan, q *recipe.Problem, workers int) int64 {
	const vectorsOfWorker, vectorsOfAll, maxBatch = 20, 32, 1 << 24
	if p.Client.Batch > maxBatch {
		return math.MaxInt64
	}
	net := q.Model.Net()
	batch := int64(p.Client.Batch) + kernel.Lanes
	lookback := int64(net.Lookback())
	weights := int64(net.Weights())
	example := lookback*int64(net.Inputs()) + 4*int64(net.Outputs()) + 4*int64(p.Model.Targets) + 8
	for _, l := range net.Layers() {
		shape := l.Tensors[0].Shape
		switch l.Kind {
		case nn.KindLSTM: // of its gates, steps by 4·hidden by inputs
			hidden, in := int64(shape[0]/4), int64(shape[1])
			example += lookback*(8*hidden+in) + 2*hidden + 1
		case nn.KindLinear:
			example += int64(shape[0]) + 2*int64(shape[1]) + 1
		case nn.KindPReLU:
			example += 2*int64(shape[0]) + 1
		}
	}
	return 4 * (int64(workers)*(example*batch+vectorsOfWorker*weights) + vectorsOfAll*weights)
}
