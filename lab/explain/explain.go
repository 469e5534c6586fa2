// Package explain predicts the effects of a plan before it runs: what clients train and
// send, how much memory and time a run takes, and what the server learns about a client.
package explain

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"loadstar/internal/textfmt"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/fed/setup"
	"loadstar/lab/sim"
	"loadstar/nn"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// Explanation contains the predictions for a plan. Unknown numbers are zero.
type Explanation struct {
	File      string `json:"file"` // set by the caller
	Name      string `json:"name"`
	Algorithm string `json:"algorithm"`
	About     string `json:"about"`
	Rounds    int    `json:"rounds"`

	Model      string   `json:"model"`
	Parameters int      `json:"parameters"`
	Lookback   int      `json:"lookback"`
	Horizon    int      `json:"horizon"`
	Targets    int      `json:"targets"`
	Ahead      string   `json:"ahead"`                  // description of the forecast in words
	Step       float64  `json:"step_seconds,omitempty"` // between readings
	Outputs    int      `json:"outputs"`
	Inputs     []string `json:"inputs"`
	Features   int      `json:"features,omitempty"` // number of features of a row, in the groups that Inputs lists
	Missing    []string `json:"inputs_not_in_dataset,omitempty"`
	Loss       string   `json:"loss"`
	Scaling    string   `json:"scaling"`
	Partition  string   `json:"partition"`
	Shared     int      `json:"shared"`
	Personal   int      `json:"personal"`
	Layers     []Layer  `json:"layers"`

	Data *Data `json:"data,omitempty"`

	Alone bool `json:"alone"` // clients send nothing
	// Turns is the total number of updates in all rounds. It is an upper bound if a round may
	// close early.
	Turns      int64 `json:"turns,omitempty"`
	PerRound   int   `json:"turns_per_round,omitempty"`
	StepsATurn int   `json:"gradients_per_turn,omitempty"`
	Steps      int64 `json:"gradients,omitempty"`
	Down       int64 `json:"bytes_down_per_turn"`
	Up         int64 `json:"bytes_up_per_turn"`
	Control    bool  `json:"control_variates,omitempty"`
	Averaged   bool  `json:"averaged_moments,omitempty"`
	Traffic    int64 `json:"bytes,omitempty"`

	Weighting    string  `json:"weighting,omitempty"`
	FractionBits int     `json:"sum_fraction_bits,omitempty"`
	Bound        float64 `json:"bound,omitempty"`
	// Coordinate is the limit on the magnitude of each element of an update in the first round,
	// or 0 if there is none.
	Coordinate float64 `json:"coordinate_limit,omitempty"`
	// Trims means that the server needs individual updates only to compute their trimmed mean.
	Trims bool     `json:"trimmed_mean,omitempty"`
	Needs []string `json:"server_needs,omitempty"`

	KeptBytes      int64 `json:"memory_per_client"`
	ServerBytes    int64 `json:"memory_server,omitempty"`
	SimulatorBytes int64 `json:"memory_simulator,omitempty"`
	// DiskBytes is the maximum size of a simulated run's folder: three copies of the clients'
	// state between rounds, and the personal weights.
	DiskBytes int64 `json:"disk_simulator,omitempty"`
	// Chosen means that the plan does not set a cohort, and that the fleet is large.
	Chosen bool `json:"cohort_chosen,omitempty"`

	Kernel    string  `json:"kernel"`
	StepsPerS float64 `json:"gradients_per_s_per_core"`
	Workers   int     `json:"workers"`
	Seconds   float64 `json:"seconds,omitempty"`
}

// Layer describes a layer of the model, including whether it is shared.
type Layer struct {
	Name       string `json:"name"`
	Parameters int    `json:"parameters"`
	Shared     bool   `json:"shared"`
}

// Data describes the fleet's clients and their examples.
type Data struct {
	Name      string `json:"name,omitempty"`
	Generated bool   `json:"generated,omitempty"`
	Clients   int    `json:"clients"`
	Training  int    `json:"training"`
	Holdout   int    `json:"held_out,omitempty"`
	Server    int    `json:"on_the_server,omitempty"`
	LeftOut   int    `json:"without_an_example,omitempty"`
	Examples  int64  `json:"examples,omitempty"` // training examples of all clients
	Least     int    `json:"least_examples,omitempty"`
	Most      int    `json:"most_examples,omitempty"`
	// Gaps is the cost of missing readings. It is zero without a dataset.
	Gaps Losses `json:"gaps,omitzero"`

	bytes int64
}

// Fleet explains a plan for a fleet of the given size, with the inputs of the plan or, if it
// lists none, those of the model's paper. If clients is 0, the size is not known.
func Fleet(p *fed.Plan, clients int) (*Explanation, error) {
	q, err := recipe.Frame(p, nil)
	if err != nil {
		return nil, err
	}
	var data *Data
	if clients > 0 {
		data = &Data{Clients: clients}
	}
	assumed, err := recipe.Assume(p)
	if err != nil {
		return nil, err
	}
	e, err := explain(assumed, q, data)
	if err == nil {
		e.ahead(p)
	}
	return e, err
}

// Dataset explains a plan for the clients and examples of a dataset.
func Dataset(p *fed.Plan, d *series.Dataset) (*Explanation, error) {
	p, err := recipe.Resolve(p, d.Interval)
	if err != nil {
		return nil, err
	}
	q, err := recipe.Frame(p, d)
	if err != nil {
		return nil, err
	}
	x := &Data{Name: d.Name, Generated: d.Generated}
	for i := range d.Len() {
		m := d.Meter(i)
		all := q.Examples(m, nil)
		n := all.Len(series.Train) * all.PerOrigin()
		x.bytes += 4 * int64(len(m.Load))
		x.Gaps.add(lossesOf(q, d, m, all))
		if n == 0 {
			x.LeftOut++
			continue
		}
		if x.Clients == 0 || n < x.Least {
			x.Least = n
		}
		x.Clients++
		x.Most = max(x.Most, n)
		x.Examples += int64(n)
	}
	if x.Clients == 0 {
		return nil, fmt.Errorf("%s: no client has a complete training example: see loadstar data check", d.Name)
	}
	e, err := explain(p, q, x)
	if err == nil {
		e.ahead(p)
	}
	return e, err
}

// explain returns the predictions for a plan and a fleet. data is nil if the fleet is unknown.
func explain(p *fed.Plan, q *recipe.Problem, data *Data) (*Explanation, error) {
	e := &Explanation{Data: data}
	fleet := e.deal(p)
	p, e.Chosen = recipe.Sized(p, fleet)
	assumed := fleet
	if data == nil {
		assumed = max(p.Schedule.Cohort, p.Schedule.Buffer, recipe.LeastClients(p), 1)
	}
	s, err := setup.New(p, q, assumed)
	if err != nil {
		return nil, err
	}
	c := s.Parts
	k, err := kernel.Default()
	if err != nil {
		return nil, err
	}
	e.describe(p, q)
	e.traffic(s, fleet)
	e.work(p)
	var worker int64
	e.StepsPerS, worker = measureSteps(p, q, k)
	e.Kernel, e.Workers = k.Name(), runtime.NumCPU()
	if recipe.Pooled(p) {
		e.Workers = 1
	}
	e.Seconds = float64(e.Steps) / e.StepsPerS / float64(e.Workers)
	e.KeptBytes = 4 * int64(e.Personal+c.NewTrainer(k).Kept(e.Parameters, e.Shared))
	switch {
	case recipe.ClientStates(p): // the client's copy of the shared weights and the copy's second moment
		e.KeptBytes += 8 * int64(e.Shared)
	case recipe.BeginsOwn(p):
		e.KeptBytes += 4 * int64(e.Shared)
	}
	if !e.Alone && fleet > 0 {
		e.ServerBytes = serverBytes(e, c)
	}
	if best := int64(0); data != nil {
		if p.Evaluate.Keep == "best" { // the simulator keeps each client's best weights
			best = 4 * int64(e.Parameters+1)
		}
		e.SimulatorBytes = e.ServerBytes + int64(fleet)*(e.KeptBytes+best) + int64(e.Workers)*worker + data.bytes
		e.DiskBytes = sim.KeptSize(fleet, int(e.KeptBytes+best)/4) + int64(fleet)*4*int64(e.Personal) + 4*int64(e.Shared)
	}
	return e, nil
}

// deal divides the fleet into clients that train, clients whose data is on the server, and
// held-out clients. It returns the number of clients that train, or 0 if the fleet is not
// known.
func (e *Explanation) deal(p *fed.Plan) int {
	x := e.Data
	if x == nil {
		return 0
	}
	x.Holdout = recipe.Dealt(p.Evaluate.Holdout, x.Clients)
	x.Server = recipe.Dealt(p.Server.Clients, x.Clients-x.Holdout)
	x.Training = x.Clients - x.Server - x.Holdout
	if recipe.Pooled(p) {
		return 1
	}
	return x.Training
}

// describe records the algorithm, the model and its layers.
func (e *Explanation) describe(p *fed.Plan, q *recipe.Problem) {
	algorithms := recipe.Algorithms()
	a := algorithms[slices.IndexFunc(algorithms, func(a recipe.Summary) bool { return a.Name == p.Algorithm })]
	e.Name, e.Algorithm, e.About, e.Alone, e.Rounds = p.Name, p.Algorithm, a.About, a.Alone, p.Rounds

	net := q.Model.Net()
	e.Model, e.Parameters, e.Lookback, e.Outputs = p.Model.Name, net.Weights(), net.Lookback(), q.Outputs
	e.Inputs = q.Names()
	if len(q.Groups) > 0 {
		e.Features = net.Inputs()
	}
	e.Missing, e.Loss, e.Scaling, e.Partition = q.Missing, p.Model.Loss, p.Model.Scaling, p.Partition
	e.Shared, e.Personal = q.Partition.SharedLen(), q.Partition.PersonalLen()
	for _, l := range net.Layers() {
		shared := slices.ContainsFunc(q.Partition.Shared(), func(s nn.Layer) bool { return s.Name == l.Name })
		e.Layers = append(e.Layers, Layer{l.Name, l.Len(), shared})
	}
}

// ahead records what the plan forecasts. Without data, only the duration may be known, not the
// number of steps.
func (e *Explanation) ahead(p *fed.Plan) {
	horizon, targets, step := p.Model.Horizon, p.Model.Targets, time.Duration(p.Model.Interval)
	switch {
	case targets.Length() > 0 || horizon.Length() > 0:
		e.Ahead = "the next " + one(recipe.Hours(targets.Length()))
		if targets.Length() == 0 {
			e.Ahead = "the next " + textfmt.Count(targets.Steps(), "step")
		}
		if horizon != fed.Steps(1) {
			e.Ahead = fmt.Sprintf("%s, from %s after the last reading on", strings.TrimPrefix(e.Ahead, "the next "), horizon)
		}
		return
	case step != 0 && horizon.Steps() == 1:
		e.Ahead = fmt.Sprintf("the next %s, %s of %s", one(recipe.Hours(time.Duration(targets.Steps())*step)), textfmt.Count(targets.Steps(), "step"), recipe.Hours(step))
	case targets.Steps() > 1:
		e.Ahead = fmt.Sprintf("the load %d to %d steps ahead", horizon.Steps(), horizon.Steps()+targets.Steps()-1)
	default:
		e.Ahead = fmt.Sprintf("the load %s ahead", textfmt.Count(horizon.Steps(), "step"))
	}
	e.Horizon, e.Targets, e.Step = horizon.Steps(), targets.Steps(), step.Seconds()
}

// one returns "hour" for "1 hour".
func one(s string) string { return strings.TrimPrefix(s, "1 ") }

// traffic records the number of clients that train in a round, the size of what they send,
// and what the server learns about them.
func (e *Explanation) traffic(s *setup.Setup, fleet int) {
	p, c := s.Plan, s.Parts
	if !e.Alone {
		t := s.Traffic()
		e.Down, e.Up, e.Control, e.Averaged = t.Down, t.Up, c.Needs.Control, recipe.Averaged(p)
		e.Weighting, e.Bound, e.Trims = p.Server.Weighting, p.Server.Bound, recipe.Trims(p)
		if limit := recipe.CoordinateLimit(p); limit != nil {
			e.Coordinate = limit(0)
		}
		if e.Data != nil {
			e.FractionBits = c.Scale.Fraction()
		}
		e.Needs = needsOf(c.Needs)
	}
	// If the fleet is not known, the number of clients per round is known only if the plan
	// sets it.
	if fleet > 0 || p.Schedule.Cohort > 0 || p.Schedule.Kind == "buffered" {
		e.PerRound = c.Turns
	}
	e.Turns = int64(e.PerRound) * int64(e.Rounds)
	e.Traffic = e.Turns * (e.Down + e.Up)
}

// work records the number of gradients that the clients compute.
func (e *Explanation) work(p *fed.Plan) {
	if x := e.Data; x != nil && x.Examples > 0 {
		mean := int(x.Examples) / x.Clients
		if recipe.Pooled(p) {
			mean = int(x.Examples)
		}
		e.StepsATurn = recipe.StepsOf(p, mean)
	} else if p.Client.Steps > 0 {
		e.StepsATurn = recipe.StepsOf(p, 1)
	}
	e.Steps = e.Turns * int64(e.StepsATurn)
}

// serverBytes returns the memory of a server: the weights as float32, the sum of updates
// as int64, the state of aggregator and optimizer, and individual updates if the
// aggregator needs them.
func serverBytes(e *Explanation, c *recipe.Composition) int64 {
	bytes := 3*e.Up + 8*int64(c.ServerState)*int64(e.Shared)
	if c.Needs.EachUpdate {
		bytes += int64(e.PerRound) * e.Up
	}
	return bytes
}

// needsOf describes, for display, the data that the server must receive.
func needsOf(n fed.Needs) []string {
	out := []string{"the sum of updates"}
	if n.EachUpdate {
		out = []string{"every single update"}
	}
	if n.Loss {
		out = append(out, "each client's loss")
	}
	if n.Control {
		out = append(out, "control variates")
	}
	if n.ServerData {
		out = append(out, "data of its own")
	}
	return out
}
