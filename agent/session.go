package agent

import (
	"fmt"
	"math"
	"strings"
	"sync"

	"loadstar/fed"
	"loadstar/fed/client"
	"loadstar/fed/policy"
	"loadstar/fed/recipe"
	"loadstar/fed/round"
	"loadstar/fed/setup"
	"loadstar/nn/kernel"
	loadstarv1 "loadstar/proto/loadstar/v1"
	"loadstar/series"
	"loadstar/series/feature"
)

// Limits on a plan from the server.
const (
	maxPlan    = 64 << 10 // bytes
	maxHorizon = 1 << 14  // steps
)

// unfit is the reason why this agent declines a task. The agent sends it to the server, so it
// must not contain readings.
type unfit struct{ code, reason string }

// The kinds of reasons. Operators see their counts. The empty kind means any other reason.
const (
	codePolicy   = "policy"
	codeData     = "data"
	codeMemory   = "memory"
	codeDiverged = "diverged"
)

func (u *unfit) Error() string { return u.reason }

func unfitf(format string, x ...any) error { return unfitOf("", format, x...) }

func unfitOf(code, format string, x ...any) error {
	const most = 500
	s := fmt.Sprintf(format, x...)
	return &unfit{code, strings.ToValidUTF8(s[:min(len(s), most)], "")}
}

// session is a plan that is ready to train, with the memory that training needs.
type session struct {
	*setup.Setup
	policy  *policy.Policy
	run     string // empty if the session is for all runs of the plan
	plan    string // hash of the plan's blob
	data    *series.Dataset
	meters  map[string]int // index of each meter in the dataset, by name
	release func()         // releases the dataset
	initial []float32      // personal values of a client before its first round
	workers []*worker
	fold    *round.Fold // sum of the updates that are sent as one result
	spare   int64       // bytes of memory that may be used in addition
	cache   int64       // bytes of memory for features of meters
	scoring *scoring    // nil if the plan does not evaluate, or if there is too little memory

	mu       sync.Mutex
	scalings map[string]*scaled // by run and client
}

// worker holds the memory of one training goroutine.
type worker struct {
	*client.Worker
	kept   []float32
	update fed.Update
	// scaling is stored with the result unless it is nil. evaluation may be nil.
	scaling    []byte
	evaluation *loadstarv1.Evaluation
}

// newSession reads a plan and prepares the agent's data for it. It works like the simulator, but draws examples from the agent's
// secret. It returns an [unfit] error if this agent cannot train the plan.
func newSession(text []byte, fleet int64, d *series.Dataset, k *kernel.Set, workers int, memory int64, allow *policy.Policy, secret [32]byte) (*session, error) {
	p, err := recipe.Read(text)
	if err != nil {
		return nil, unfitf("this version cannot read the plan: %v", err)
	}
	if p, err = recipe.Resolve(p, d.Interval); err != nil {
		return nil, unfitOf(codeData, "the readings here are not what the plan needs: %v", err)
	}
	switch {
	case p.Model.Scaling != "client":
		return nil, unfitf("model.scaling is %s: an agent knows the ranges of its own clients only", p.Model.Scaling)
	case len(p.Model.Inputs) == 0:
		return nil, unfitf("the plan does not state model.inputs")
	case p.Model.Horizon.Steps() > maxHorizon:
		return nil, unfitf("model.horizon is %d, at most %d are possible", p.Model.Horizon.Steps(), maxHorizon)
	case fleet < 1 || fleet > math.MaxInt32:
		return nil, unfitf("a fleet of %d clients", fleet)
	}
	if reasons := allow.Check(p, int(fleet)); len(reasons) > 0 {
		return nil, unfitOf(codePolicy, "%s", strings.Join(reasons, "; "))
	}
	// Check the plan and its memory estimate before opening the readings, because opening
	// them takes memory too.
	problem, err := recipe.Frame(p, nil)
	if err != nil {
		return nil, unfitf("the plan does not fit together: %v", err)
	}
	s := &session{policy: allow, data: d, meters: make(map[string]int, d.Len()), scalings: map[string]*scaled{}, release: func() {}}
	for i := range d.Len() {
		s.meters[d.Meter(i).ID] = i
	}
	if s.Setup, err = setup.New(p, problem, int(fleet)); err != nil {
		return nil, unfitf("the plan does not fit together: %v", err)
	}
	if s.Setup, err = s.OfAgent(secret); err != nil {
		return nil, unfitf("the plan does not fit together: %v", err)
	}
	if !s.Parts.Federated {
		return nil, unfitf("algorithm %s with partition %s needs no server", p.Algorithm, p.Partition)
	}
	if allow.WholeBlocks {
		problem.EndAtBlocks()
	}
	need := footprint(p, problem, workers)
	shared, meter := problem.FeatureBytes(d)
	features := int64(workers) * meter
	if memory-need < shared+features {
		return nil, unfitOf(codeMemory, "training takes %d MB, this agent may use %d", (need+min(shared+features, math.MaxInt64-need))>>20, memory>>20)
	}
	if err := problem.Open(d); err != nil {
		return nil, unfitOf(codeData, "the readings here are not what the plan needs: %v", err)
	}
	left := memory - need - shared
	if extra := scoringBytes(p, problem); p.Evaluate.Every > 0 && allow.ShareLosses && extra <= left-features {
		s.scoring = newScoring(p, problem, k)
		left -= extra
	}
	s.cache = min(left, feature.DefaultCache)
	problem.LimitCache(s.cache) // room for the meters in training
	s.spare = left - features
	for range workers {
		w := &worker{Worker: s.NewWorker(k)}
		w.kept = make([]float32, w.Kept())
		s.workers = append(s.workers, w)
	}
	s.initial = s.InitialKept(s.workers[0].Worker)
	s.fold = round.NewFold(s.Rules)
	return s, nil
}

// shared returns the length of the shared vector.
func (s *session) shared() int { return s.Problem.SharedLen() }

// footprint returns an upper bound on the bytes of memory that training a plan needs. It is the
// sum of each worker's workspace and batch of examples, and all vectors with one value per
// weight: optimizer state, sums, and results that are being written to disk.
func footprint(p *fed.Plan, q *recipe.Problem, workers int) int64 {
	const vectorsOfWorker, vectorsOfAll, maxBatch = 20, 32, 1 << 24
	if p.Client.Batch > maxBatch {
		return math.MaxInt64
	}
	net := q.Model.Net()
	example := int64(3*net.Outputs() + 4*p.Model.Targets.Steps() + 8)
	batch := net.WorkspaceBytes(p.Client.Batch) + 4*example*(int64(p.Client.Batch)+kernel.Lanes)
	weights := 4 * int64(net.Weights())
	worker, all := vectorsOfWorker*weights, vectorsOfAll*weights
	if recipe.KeepsMoments(p) { // up to three moments of each weight, and another copy in the transaction that stores them
		worker += 4 * weights
		all += 16 * weights
	}
	if recipe.StoresOwn(p) { // the client's own shared weights and their moments, and another copy in the transaction that stores them
		worker += 2 * weights
		all += 8 * weights
	}
	if recipe.Averaged(p) { // the shared vector has two moments of each weight
		all *= 3
	}
	return int64(workers)*(batch+worker) + all
}
