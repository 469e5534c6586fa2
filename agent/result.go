package agent

import (
	"cmp"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	"loadstar/agent/state"
	"loadstar/fed"
	"loadstar/fed/round"
	"loadstar/internal/protocol"
	loadstarv1 "loadstar/proto/loadstar/v1"
)

// foldLeast is the minimum number of clients in a sum. From a sum of two, each client
// could compute the other client's update.
const foldLeast = 3

// group collects the updates of a job. It stores them individually or, if the server
// accepts sums, as one sum. It is safe for concurrent use.
type group struct {
	agent   *agent
	job     *job
	session *session
	sum     bool
	// masking is nil unless the plan is private. Then all clients of the job are in one masked
	// result, even if the job has only one client.
	masking *masking

	mu      sync.Mutex    // protects the fields below and the session's fold
	members []contributor // the clients whose updates are in the sum
	// few holds the updates of the first members until there are enough for a sum.
	few   []fed.Update
	sizes round.Sizes // sizes of the clients in a masked result
}

// contributor is a client whose update is in the sum.
type contributor struct {
	share      *loadstarv1.Share
	evaluation *loadstarv1.Evaluation // nil if there is none
	kept       state.Staged
}

// take adds the update that a worker trained from the given weights.
func (g *group) take(w *worker, from []float32) error {
	u := &w.update
	share := g.session.share(u)
	kept, err := g.agent.store.Stage(g.job.GetRun(), string(u.Client), w.kept, w.scaling)
	if err != nil {
		return storeError(err)
	}
	m := contributor{share, w.evaluation, kept}
	if g.masking != nil && !g.session.policy.ShareLosses {
		u.TrainLoss = 0
	}
	g.mu.Lock()
	err = g.session.fold.Add(u, from)
	switch {
	case err != nil:
	case g.masking != nil:
		g.sizes.Add(u)
		if e := w.evaluation; e != nil {
			g.sizes.Evaluate(e.Clients, e.RelativeMae)
		}
		g.members = append(g.members, contributor{&loadstarv1.Share{Client: string(u.Client)}, nil, kept})
	case !g.sum:
		// The update was added only to check that the server will be able to add it.
		g.session.fold.Reset()
	default:
		g.members = append(g.members, m)
		if len(g.members) < foldLeast {
			g.few = append(g.few, *u)
			*u = fed.Update{} // the group now owns its slices
		} else {
			g.few = nil
		}
	}
	g.mu.Unlock()
	switch {
	case err != nil:
		g.agent.store.Discard(kept)
		g.agent.Log.Warn("an update is outside the plan's bounds", "run", g.job.GetRun(), "round", g.job.GetRound()+1, "client", u.Client, "error", err)
		g.agent.worklist.decline(g.job, codeDiverged, "its update is outside the plan's bounds", string(u.Client))
		return nil
	case !g.sum:
		return g.single(m, u)
	}
	return nil
}

// share describes one client's update in a result.
func (s *session) share(u *fed.Update) *loadstarv1.Share {
	x := &loadstarv1.Share{
		Client: string(u.Client), Examples: int64(u.Claimed), Steps: int64(u.Steps), Norm: u.Norm, ControlNorm: u.ControlNorm,
	}
	if s.policy.ShareLosses {
		x.TrainLoss = u.TrainLoss
		if s.Job.Needs.Loss {
			x.Loss = u.Loss
		}
	}
	return x
}

// finish stores the sum, or individual updates if there are too few for a sum.
func (g *group) finish() error {
	defer g.session.fold.Reset()
	switch {
	case len(g.members) == 0:
		return nil
	case g.masking != nil:
		return g.masked()
	case len(g.members) < foldLeast:
		for i, m := range g.members {
			if err := g.single(m, &g.few[i]); err != nil {
				return err
			}
		}
		return nil
	}
	numbers, err := round.AppendSums(nil, &g.session.fold.Sums()[0])
	if err != nil {
		return err
	}
	g.sort()
	return g.put(&loadstarv1.Result{Form: loadstarv1.Form_FORM_SUM}, g.members, numbers)
}

func (g *group) sort() {
	slices.SortFunc(g.members, func(a, b contributor) int { return cmp.Compare(a.share.Client, b.share.Client) })
}

// masked stores the members' updates as one masked result.
func (g *group) masked() error {
	g.sort()
	numbers, nonce, err := g.masking.mask(g.session.fold, &g.sizes, len(g.members))
	if err != nil {
		return err
	}
	return g.put(&loadstarv1.Result{Form: loadstarv1.Form_FORM_MASKED, Nonce: nonce[:], Part: g.masking.Part}, g.members, numbers)
}

// single stores one client's update as a result.
func (g *group) single(m contributor, u *fed.Update) error {
	numbers := make([]byte, 0, g.session.Rules.UpdateBytes(len(u.Delta)))
	return g.put(&loadstarv1.Result{Form: loadstarv1.Form_FORM_UPDATE}, []contributor{m}, g.session.Rules.AppendUpdate(numbers, u))
}

// put stores a result and queues it for sending. The head states what the result contains.
func (g *group) put(head *loadstarv1.Result, members []contributor, numbers []byte) error {
	head.Run, head.Round, head.Version = g.job.GetRun(), g.job.GetRound(), g.job.GetVersion()
	var staged []state.Staged
	for _, m := range members {
		// The server refuses a sum that includes a client whose round has closed. The
		// other clients are trained again.
		if !g.agent.worklist.wanted(g.job, m.share.Client) {
			g.discard(members)
			return nil
		}
		head.Shares = append(head.Shares, m.share)
		if e := m.evaluation; e != nil {
			if head.Evaluation == nil {
				head.Evaluation = &loadstarv1.Evaluation{}
			}
			head.Evaluation.Clients += e.Clients
			head.Evaluation.RelativeMae += e.RelativeMae
		}
		staged = append(staged, m.kept)
	}
	head.Checksum, head.Size = protocol.Checksum(numbers), int64(len(numbers))
	b, err := proto.Marshal(head)
	if err != nil {
		return err
	}
	var masked *state.Masked
	if g.masking != nil {
		masked = &g.masking.Masked
	}
	r, err := g.agent.store.Put(g.job.GetRun(), g.job.GetRound(), staged, b, numbers, masked)
	if err != nil {
		return storeError(err)
	}
	g.agent.worklist.trained(r)
	return nil
}

// giveUp discards the updates and their staged values.
func (g *group) giveUp() {
	g.session.fold.Reset()
	g.discard(g.members)
}

func (g *group) discard(members []contributor) {
	for _, m := range members {
		g.agent.store.Discard(m.kept)
	}
}
