package agent

import (
	"math"
	"sync"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/forecast"
	"loadstar/nn/kernel"
	loadstarv1 "loadstar/proto/loadstar/v1"
	"loadstar/series"
)

// maxRelativeMAE limits the relative MAE that is reported; the server has the same limit.
const maxRelativeMAE = 100

// scoring scores the weights that clients receive on their validation split. It has its own
// memory and no random numbers, so that training gives the same bits with and without it.
type scoring struct {
	mu      sync.Mutex // one client at a time, to save memory
	scorer  *forecast.Scorer
	weights []float32
}

// scoringBytes returns an upper bound on the bytes of memory that scoring needs.
func scoringBytes(p *fed.Plan, q *recipe.Problem) int64 {
	const batch = 64 // of package forecast
	net := q.Model.Net()
	n := int64(max(batch, p.Model.Targets))
	example := int64(net.Lookback()*net.Inputs() + 2*net.Outputs() + p.Model.Targets + 4)
	return net.WorkspaceBytes(batch) + 8*n*example + 4*int64(net.Weights())
}

func newScoring(p *fed.Plan, q *recipe.Problem, k *kernel.Set) *scoring {
	s := &scoring{scorer: forecast.NewScorer(q.Model, k, q.Loss), weights: make([]float32, q.Model.Net().Weights())}
	s.scorer.Reference, s.scorer.Stride = forecast.Reference(p.Evaluate.Reference), p.Evaluate.Stride
	return s
}

// evaluates reports whether clients score the weights that they receive in a round. The
// simulator scores the same weights after the round before. The last round is added,
// because nobody receives the weights after it.
func evaluates(p *fed.Plan, round int) bool {
	return p.Evaluate.Every > 0 && (round%p.Evaluate.Every == 0 || round == p.Rounds-1)
}

// evaluate scores the received shared weights with a client's personal weights, or the
// client's own weights if the plan says so. It returns nil if the round does not evaluate, if
// the client cannot be scored, or if its error would be that of fewer windows than the policy
// allows: a reading can be computed from the error of one window.
func (s *session) evaluate(t fed.Task, m series.Meter, data series.Examples, kept []float32, first bool) *loadstarv1.Evaluation {
	if s.scoring == nil || !evaluates(s.Plan, t.Round) || len(t.Shared) != s.shared() || data.Len(series.Validation) < s.policy.LeastExamples {
		return nil
	}
	v := s.scoring
	v.mu.Lock()
	defer v.mu.Unlock()
	s.Job.Join(v.weights, s.Problem.SharedWeights(t.Shared), kept, first)
	score, _, err := v.scorer.Score(v.weights, m, data, series.Validation, s.Plan.Evaluate.Windows, nil)
	if err != nil {
		return nil // a forecast is not finite; training declines the turn if it diverges too
	}
	relative := score.Overall.RelativeMAE()
	if math.IsNaN(relative) || math.IsInf(relative, 0) {
		return nil
	}
	return &loadstarv1.Evaluation{Clients: 1, RelativeMae: int64(math.Round(min(relative, maxRelativeMAE) * 1e6))}
}
