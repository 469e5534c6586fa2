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
// memory and random numbers, so that training gives the same bits with and without it.
type scoring struct {
	mu      sync.Mutex // one client at a time, to save memory
	scorer  *forecast.Scorer
	weights []float32
}

// scoringBytes returns an upper bound on the bytes of memory that scoring needs.
func scoringBytes(p *fed.Plan, q *recipe.Problem) int64 {
	const batch = 64 // the batch size of package forecast
	net := q.Model.Net()
	n := int64(max(batch, p.Model.Targets.Steps()))
	example := int64(net.Lookback()*net.Inputs() + 2*net.Outputs() + p.Model.Targets.Steps() + 4)
	return net.WorkspaceBytes(batch) + 8*n*example + 4*int64(net.Weights())
}

func newScoring(p *fed.Plan, q *recipe.Problem, k *kernel.Set) *scoring {
	s := &scoring{scorer: forecast.NewScorer(q.Model, k, q.Loss), weights: make([]float32, q.Model.Net().Weights())}
	s.scorer.Reference, s.scorer.Stride = forecast.Reference(p.Evaluate.Reference), p.Evaluate.Stride.Steps()
	return s
}

// evaluates reports whether clients score the weights that they receive in a round. The
// simulator scores the same weights at the end of the previous round. Clients always score in
// the last round, because nobody receives the weights that come after it.
func evaluates(p *fed.Plan, round int) bool {
	return p.Evaluate.Every > 0 && (round%p.Evaluate.Every == 0 || round == p.Rounds-1)
}

// leaveOut returns a function that omits a secret eighth of a split's origins. A server that
// knew which windows are scored could compute a reading from two scores that differ in a
// single window.
func (s *session) leaveOut(t *fed.Task, c fed.ClientID, data series.Examples, part series.Part) func(last int) bool {
	r, left := s.Job.Draws.Turn("scores", t, c), map[int]bool{}
	_ = data.Each(part, func(last int) error { // the function never returns an error
		if r.IntN(8) == 0 {
			left[last] = true
		}
		return nil
	})
	return func(last int) bool { return left[last] }
}

// reported returns a relative MAE as it leaves the agent: in millionths, and rounded to 0.01.
func reported(relative float64) int64 {
	return int64(math.Round(min(relative, maxRelativeMAE)*100)) * 1e4
}

// evaluate scores the received shared weights with a client's personal weights. In plans that
// score clients with their own copies of the shared weights, it uses the client's copy instead.
// It returns nil if the round does not evaluate or the client cannot be scored. It also returns
// nil if the error would cover fewer windows than the policy allows, because the error of one
// window reveals a reading.
func (s *session) evaluate(t fed.Task, m series.Meter, data series.Examples, kept []float32, first bool) *loadstarv1.Evaluation {
	if s.scoring == nil || !evaluates(s.Plan, t.Round) || len(t.Shared) != s.shared() {
		return nil
	}
	v := s.scoring
	v.mu.Lock()
	defer v.mu.Unlock()
	v.scorer.Leave = s.leaveOut(&t, fed.ClientID(m.ID), data, series.Validation)
	if v.scorer.Scored(data, series.Validation, s.Plan.Evaluate.Windows) < s.policy.LeastExamples {
		return nil
	}
	s.Job.Join(v.weights, s.Problem.SharedWeights(t.Shared), kept, first)
	score, _, err := v.scorer.Score(v.weights, m, data, series.Validation, s.Plan.Evaluate.Windows, nil)
	if err != nil {
		return nil // a forecast is not finite; training declines the turn if it also diverges
	}
	relative := score.Overall.RelativeMAE()
	if math.IsNaN(relative) || math.IsInf(relative, 0) {
		return nil
	}
	return &loadstarv1.Evaluation{Clients: 1, RelativeMae: reported(relative)}
}
