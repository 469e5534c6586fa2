package sim

import (
	"errors"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/fed/setup"
	"loadstar/series"
)

// member is one meter of the fleet, with its examples.
type member struct {
	number  int // index in the dataset
	id      fed.ClientID
	meter   series.Meter
	windows series.Examples
}

// fleet lists the meters of a dataset by their role in a run. Each list is sorted by name.
type fleet struct {
	clients []member // these train
	holdout []member // these do not train, but are scored
	own     []member // these provide the server's own data
	leftOut []string // these have no complete training example
	// ranges are the ranges of all meters if the plan scales them in the same way, and
	// otherwise nil.
	ranges series.Ranges
}

// rangesOf returns the ranges that scale the windows of a meter.
func (f *fleet) rangesOf(frame *series.Framer, m series.Meter) series.Ranges {
	if f.ranges != nil {
		return f.ranges
	}
	return frame.Ranges(m)
}

// newFleet builds the examples of all meters and assigns each meter its role. deal means that a
// share of the meters provides the server's data, as the plan specifies.
func newFleet(p *fed.Plan, problem *recipe.Problem, d *series.Dataset, deal bool, workers int) (*fleet, error) {
	all := make([]member, d.Len())
	ranges := make([]series.Ranges, d.Len())
	frame := problem.Framer
	parallel(workers, len(all), func(i int) {
		m := d.Meter(i)
		all[i] = member{number: i, id: fed.ClientID(m.ID), meter: m}
		ranges[i] = frame.Ranges(m)
	})
	f := &fleet{}
	if p.Model.Scaling == "fleet" {
		f.ranges = series.Ranges{}
		for _, r := range ranges {
			f.ranges.Merge(r)
		}
		for i := range ranges {
			ranges[i] = f.ranges
		}
	}
	parallel(workers, len(all), func(i int) { all[i].windows = problem.Examples(all[i].meter, ranges[i]) })

	slices.SortFunc(all, func(a, b member) int { return strings.Compare(string(a.id), string(b.id)) })
	for _, m := range all {
		if m.windows.Len(series.Train) == 0 {
			f.leftOut = append(f.leftOut, string(m.id))
			continue
		}
		f.clients = append(f.clients, m)
	}
	// Select the held-out clients first, so that all plans with the same seed are scored
	// on the same clients, regardless of the share of clients whose data is on the server.
	f.holdout = f.take(p.Seed, setup.HeldOut, p.Evaluate.Holdout)
	if deal {
		f.own = f.take(p.Seed, "server clients", p.Server.Clients)
	}
	if len(f.clients) == 0 {
		return nil, errors.New("no client has a complete training example; see loadstar data check")
	}
	return f, nil
}

// take removes a random share of the clients from f.clients and returns the removed
// clients.
func (f *fleet) take(seed uint64, purpose string, share float64) []member {
	taken := setup.Deal(seed, purpose, share, len(f.clients))
	var out, rest []member
	for i, m := range f.clients {
		if taken[i] {
			out = append(out, m)
		} else {
			rest = append(rest, m)
		}
	}
	f.clients = rest
	return out
}

// trainee is one client of the round machine: one meter or, if readings are pooled, all meters.
type trainee struct {
	id       fed.ClientID
	data     []series.Examples
	examples int
}

func (f *fleet) trainees(pooled bool) []trainee {
	if pooled {
		t := trainee{id: "pooled", data: windowsOf(f.clients)}
		for _, w := range t.data {
			t.examples += examples(w)
		}
		return []trainee{t}
	}
	all := make([]trainee, len(f.clients))
	for i, m := range f.clients {
		all[i] = trainee{m.id, []series.Examples{m.windows}, examples(m.windows)}
	}
	return all
}

// examples returns the number of training examples.
func examples(w series.Examples) int { return w.Len(series.Train) * w.PerOrigin() }

func windowsOf(members []member) []series.Examples {
	all := make([]series.Examples, len(members))
	for i, m := range members {
		all[i] = m.windows
	}
	return all
}

// parallel calls do with each number from 0 to n-1, in at most the given number of
// goroutines.
func parallel(workers, n int, do func(i int)) {
	var g errgroup.Group
	g.SetLimit(workers)
	for i := range n {
		g.Go(func() error { do(i); return nil })
	}
	_ = g.Wait() // do returns no error
}
