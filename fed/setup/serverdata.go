package setup

import (
	"slices"
	"strings"

	"loadstar/fed/client"
	"loadstar/fed/recipe"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// ServerExamples returns the examples of every meter in the server's dataset that has a
// training example, in the order of names. The simulator and the fleet's coordinator both call
// it, so their batches are the same. If ranges is not nil, it scales all meters; otherwise,
// each meter is scaled by its own ranges.
func (s *Setup) ServerExamples(d *series.Dataset, ranges series.Ranges) ([]series.Examples, error) {
	// Use the fleet's inputs, even if the plan derives them from the data.
	p := *s.Plan
	p.Model.Inputs = s.Problem.Names()
	problem, err := recipe.Frame(&p, d)
	if err != nil {
		return nil, err
	}
	meters := make([]series.Meter, d.Len())
	for i := range meters {
		meters[i] = d.Meter(i)
	}
	slices.SortFunc(meters, func(a, b series.Meter) int { return strings.Compare(a.ID, b.ID) })
	var all []series.Examples
	for _, m := range meters {
		r := ranges
		if r == nil {
			r = problem.Framer.Ranges(m)
		}
		if x := problem.Examples(m, r); x.Len(series.Train) > 0 {
			all = append(all, x)
		}
	}
	return all, nil
}

// NewServerData returns the server's data, or nil if the aggregator needs none.
func (s *Setup) NewServerData(k *kernel.Set, data []series.Examples) (*client.ServerData, error) {
	if !s.Parts.Needs.ServerData {
		return nil, nil
	}
	_, personal := s.InitialWeights()
	return client.NewServerData(&s.Job, k, s.Parts.NewTrainer(k), data, personal, s.Plan.Server.Batch)
}
