package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/fed/schedule"
	"loadstar/internal/cputime"
	"loadstar/nn"
	"loadstar/nn/kernel"
	"loadstar/series"
)

func newPlanExplain() *cobra.Command {
	var (
		data, root string
		clients    int
		asJSON     bool
	)
	cmd := &cobra.Command{
		Use:   "explain FILE",
		Short: "Say what a plan will train, send, need and take",
		Long: `Say what a plan will do before it does it: the model and its inputs, which layers are
shared, what travels, how many gradient steps there are, how long they take on this
machine, how exactly updates are summed, and what the server sees of a client.

The plan's dataset is opened if it is there, so that clients and examples are counted;
--clients takes a fleet of so many instead. The time is from a measurement of the
training engine, which takes half a second.`,
		Example: "  loadstar plan explain plans/plfl-head.yaml\n  loadstar plan explain plans/fedbuff.yaml --clients 10000",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if clients < 0 || clients > 0 && data != "" {
				return usageError{errors.New("give --clients for a fleet of so many, or --data for that of a dataset"), "plan explain "}
			}
			p, err := readPlan(args[0], data, 0)
			if err != nil {
				return err
			}
			e := explanation{File: args[0]}
			switch {
			case clients > 0:
				err = e.withoutData(p, clients)
			case p.Data == "":
				e.NoData = "the plan names no dataset"
				err = e.withoutData(p, 0)
			default:
				d, closer, oerr := openDataset(p.Data, root)
				if oerr != nil && data != "" {
					return oerr
				}
				if oerr != nil {
					e.NoData = oerr.Error()
					err = e.withoutData(p, 0)
					break
				}
				err = e.withData(p, d)
				closer.Close()
			}
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), &e)
			}
			return e.print(cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&data, "data", "", "dataset instead of the plan's: a folder, a description, or a prepared file")
	f.StringVar(&root, "root", "", rootUsage)
	f.IntVar(&clients, "clients", 0, "open no data: there are so many clients")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// explanation is what plan explain says. Numbers that are not known are left out.
type explanation struct {
	File      string `json:"file"`
	Name      string `json:"name"`
	Algorithm string `json:"algorithm"`
	About     string `json:"about"`
	Rounds    int    `json:"rounds"`

	Model      string           `json:"model"`
	Parameters int              `json:"parameters"`
	Lookback   int              `json:"lookback"`
	Horizon    int              `json:"horizon"`
	Targets    int              `json:"targets"`
	Outputs    int              `json:"outputs"`
	Inputs     []string         `json:"inputs"`
	Missing    []string         `json:"inputs_not_in_dataset,omitempty"`
	Loss       string           `json:"loss"`
	Scaling    string           `json:"scaling"`
	Partition  string           `json:"partition"`
	Shared     int              `json:"shared"`
	Personal   int              `json:"personal"`
	Layers     []explainedLayer `json:"layers"`

	Data   *explainedData `json:"data,omitempty"`
	NoData string         `json:"no_data,omitempty"`

	Alone bool `json:"alone"` // nothing travels
	// Turns counts the clients' parts of rounds, at most if a period may close early.
	Turns      int64 `json:"turns,omitempty"`
	PerRound   int   `json:"turns_per_round,omitempty"`
	StepsATurn int   `json:"gradients_per_turn,omitempty"`
	Steps      int64 `json:"gradients,omitempty"`
	Down       int64 `json:"bytes_down_per_turn"`
	Up         int64 `json:"bytes_up_per_turn"`
	Control    bool  `json:"control_variates,omitempty"`
	Traffic    int64 `json:"bytes,omitempty"`

	Weighting    string   `json:"weighting,omitempty"`
	FractionBits int      `json:"sum_fraction_bits,omitempty"`
	Bound        float64  `json:"bound,omitempty"`
	Needs        []string `json:"server_needs,omitempty"`
	Secure       bool     `json:"secure_aggregation"`

	KeptBytes      int64 `json:"memory_per_client"`
	ServerBytes    int64 `json:"memory_server,omitempty"`
	SimulatorBytes int64 `json:"memory_simulator,omitempty"`

	Kernel    string  `json:"kernel"`
	StepsPerS float64 `json:"gradients_per_s_per_core"`
	Workers   int     `json:"workers"`
	Seconds   float64 `json:"seconds,omitempty"`
}

type explainedLayer struct {
	Name       string `json:"name"`
	Parameters int    `json:"parameters"`
	Shared     bool   `json:"shared"`
}

type explainedData struct {
	Name      string `json:"name,omitempty"`
	Generated bool   `json:"generated,omitempty"`
	Clients   int    `json:"clients"`
	Training  int    `json:"training"`
	Holdout   int    `json:"held_out,omitempty"`
	Server    int    `json:"on_the_server,omitempty"`
	LeftOut   int    `json:"without_an_example,omitempty"`
	Examples  int64  `json:"examples,omitempty"` // of all clients, to train on
	Least     int    `json:"least_examples,omitempty"`
	Most      int    `json:"most_examples,omitempty"`

	bytes int64
}

// withoutData explains a plan for a fleet of so many clients, 0 if that is not known,
// with the inputs of the plan or of the model's paper.
func (e *explanation) withoutData(p *fed.Plan, clients int) error {
	q, err := recipe.Frame(p, nil)
	if err != nil {
		return err
	}
	if clients > 0 {
		e.Data = &explainedData{Clients: clients}
	}
	return e.explain(p, q)
}

// withData counts the clients and examples of a dataset.
func (e *explanation) withData(p *fed.Plan, d *series.Dataset) error {
	q, err := recipe.Frame(p, d)
	if err != nil {
		return err
	}
	x := &explainedData{Name: d.Name, Generated: d.Generated}
	for i := range d.Len() {
		m := d.Meter(i)
		n := q.Framer.Windows(m, nil).Len(series.Train)
		x.bytes += 4 * int64(len(m.Load))
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
		return fmt.Errorf("%s: no client has a complete training example: see loadstar data check", d.Name)
	}
	e.Data = x
	return e.explain(p, q)
}

func (e *explanation) explain(p *fed.Plan, q *recipe.Problem) error {
	algorithms := recipe.Algorithms()
	a := algorithms[slices.IndexFunc(algorithms, func(a recipe.Summary) bool { return a.Name == p.Algorithm })]
	e.Name, e.Algorithm, e.About, e.Alone, e.Rounds = p.Name, p.Algorithm, a.About, a.Alone, p.Rounds

	net := q.Model.Net()
	e.Model, e.Parameters, e.Lookback, e.Outputs = p.Model.Name, net.Weights(), net.Lookback(), q.Outputs
	e.Horizon, e.Targets = p.Model.Horizon, p.Model.Targets
	for _, in := range q.Inputs {
		e.Inputs = append(e.Inputs, in.String())
	}
	e.Missing, e.Loss, e.Scaling, e.Partition = q.Missing, p.Model.Loss, p.Model.Scaling, p.Partition
	e.Shared, e.Personal = q.Partition.SharedLen(), q.Partition.PersonalLen()
	for _, l := range net.Layers() {
		shared := slices.ContainsFunc(q.Partition.Shared(), func(s nn.Layer) bool { return s.Name == l.Name })
		e.Layers = append(e.Layers, explainedLayer{l.Name, l.Len(), shared})
	}

	fleet := 0
	if x := e.Data; x != nil {
		x.Holdout = recipe.Dealt(p.Evaluate.Holdout, x.Clients)
		x.Server = recipe.Dealt(p.Server.Clients, x.Clients-x.Holdout)
		x.Training = x.Clients - x.Server - x.Holdout
		fleet = x.Training
		if recipe.Pooled(p) {
			fleet = 1
		}
	}
	assumed := fleet
	if e.Data == nil {
		assumed = max(p.Schedule.Cohort, p.Schedule.Buffer, 1)
	}
	c, err := recipe.Compose(p, assumed)
	if err != nil {
		return err
	}
	needs := c.Needs
	if !e.Alone {
		t := recipe.TrafficOf(q.Partition, needs)
		e.Down, e.Up, e.Control = t.Down, t.Up, needs.Control
		e.Weighting, e.Bound = p.Server.Weighting, p.Server.Bound
		if e.Data != nil {
			e.FractionBits = c.Scale.Fraction()
		}
		e.Needs, e.Secure = needsOf(needs), !needs.EachUpdate
	}
	if fleet > 0 {
		switch s := c.Scheduler.(type) {
		case schedule.Synchronous:
			e.PerRound = s.Asked
		case schedule.Buffered:
			e.PerRound = s.Buffer
		case schedule.Periodic:
			e.PerRound = s.Running
		}
	} else if e.Data == nil && p.Schedule.Cohort > 0 && p.Schedule.Kind != "buffered" {
		e.PerRound = p.Schedule.Cohort
	} else if p.Schedule.Kind == "buffered" {
		e.PerRound = p.Schedule.Buffer
	}
	e.Turns = int64(e.PerRound) * int64(e.Rounds)
	e.Traffic = e.Turns * (e.Down + e.Up)
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

	k, err := kernel.Default()
	if err != nil {
		return err
	}
	var trainer int64
	e.StepsPerS, trainer = measureSteps(p, q, k)
	e.Kernel, e.Workers = k.Name(), runtime.NumCPU()
	if recipe.Pooled(p) {
		e.Workers = 1
	}
	e.Seconds = float64(e.Steps) / e.StepsPerS / float64(e.Workers)

	e.KeptBytes = 4 * int64(e.Personal+c.NewTrainer(k).Kept(e.Parameters, e.Shared))
	if !e.Alone && fleet > 0 {
		e.ServerBytes = 3 * e.Up // weights as float32, and a sum of int64
		if needs.EachUpdate {
			e.ServerBytes += int64(e.PerRound) * e.Up
		}
		if p.Algorithm == "fedavgadaptive" {
			e.ServerBytes += int64(fleet) * int64(e.Shared) * 8
		}
	}
	if e.Data != nil {
		e.SimulatorBytes = e.ServerBytes + int64(fleet)*e.KeptBytes + int64(e.Workers)*trainer + e.Data.bytes
	}
	return nil
}

// needsOf says what an aggregator must be given, beyond sums.
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

// measureSteps returns how many gradient steps of the plan's batch a core takes in a
// second, and the memory that a worker needs for them.
func measureSteps(p *fed.Plan, q *recipe.Problem, k *kernel.Set) (perSecond float64, bytes int64) {
	runtime.LockOSThread() // CPU time is counted by thread
	defer runtime.UnlockOSThread()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	net, batch := q.Model.Net(), p.Client.Batch
	n := net.Weights()
	w, g, m, v := q.Model.InitialWeights(1), make([]float32, n), make([]float32, n), make([]float32, n)
	x, y := make([]float32, batch*net.Lookback()*net.Inputs()), make([]float32, batch*p.Model.Targets)
	ws := net.NewWorkspace(k, batch)
	runtime.ReadMemStats(&after)
	rng := rand.New(rand.NewPCG(1, 1))
	for _, s := range [][]float32{x, y} {
		for i := range s {
			s[i] = rng.Float32()
		}
	}
	step := 0
	perSecond = cputime.Rate(400*time.Millisecond, func() {
		step++
		ws.Gradient(g, w, x, y, q.Loss)
		k.Adam(w, g, m, v, kernel.AdamStep{Rate: 0.001, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Step: step})
	})
	return perSecond, int64(after.TotalAlloc - before.TotalAlloc)
}
