package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"loadstar/nn/kernel"
	"loadstar/rig/leak"
	"loadstar/rig/product"
	"loadstar/series"
)

// spies lists an operator's attacks on readings.
func spies() []Attack {
	return []Attack{{ID: "C1", Name: "an operator's plan reads a reading out of one update", Run: readReading}}
}

// denseSpies lists the same attacks on the model dense, which the reviewed versions did not have.
// Each attack is carried out twice in one run. Without the defence, the attack must succeed.
func denseSpies() []Attack {
	return []Attack{
		{ID: "C1b", Name: "a plan of dense reads an example out of one update", Run: readDense},
		{ID: "C2f", Name: "one client of 13 sends the largest update in fedavg with dense", Run: poisonDense},
	}
}

// spyPlan trains one client for one step on one example from one reading. The first layer's
// gradient is then the example times the bias's gradient. The run with a learning rate of
// almost 0 gives the weights before the step.
const spyPlan = `name: spy
algorithm: fedavg
rounds: 1
model: {name: bose2023, lookback: 1}
client: {optimizer: sgd, lr: %s, batch: 1, steps: 1}
schedule: {cohort: 1}
`

// firstLayer describes the first layer of a model, whose weights come first, and the position of
// its biases.
type firstLayer struct{ units, inputs, bias int }

// In bose2023 the weights are weight_ih, weight_hh, bias_ih, bias_hh.
const spyHidden, spyGates, spyInputs = 20, 4 * 20, 8

var spyLayer = firstLayer{spyGates, spyInputs, spyGates * (spyInputs + spyHidden)}

// readReading succeeds if the example reconstructed from two downloads of weights is a
// reading of a meter, at the example's hour and day of the week.
func readReading(ctx context.Context, f *Fleet) (Result, error) {
	s := must(f.Serve(ctx))
	agent := must(f.StartAgent(ctx, s, "victim", "1/1"))
	reader := must(s.JoinOne(ctx, "reader"))
	versions, _, reason, err := s.spy(ctx, agent, reader, spyPlan)
	check(err)
	if reason != "" {
		return repelled("the agent declines: %s", reason), nil
	}
	example, gates := reconstruct(versions[0], versions[1], spyLayer)
	if gates < 3 {
		return repelled("only %d gates agree on an example", gates), nil
	}
	found := f.reading(example)
	if found == "" {
		return repelled("the example %.4v is no reading", example), nil
	}
	return succeeded("%s, from %d gates", found, gates), nil
}

// spy runs a plan twice, with learning rates of almost 0 and of 1. It returns the weights of
// both runs and the plan, or the reason why the agent or the server declines it.
func (s *Server) spy(ctx context.Context, agent *product.Process, reader *Agent, plan string) (versions [2][]float32, settled, declined string, err error) {
	for i, lr := range []string{"1e-12", "1"} {
		run, err := s.begin(ctx, fmt.Sprintf(plan, lr), meters)
		if err != nil {
			if strings.Contains(err.Error(), "declin") {
				return versions, "", err.Error(), nil
			}
			return versions, "", "", err
		}
		r, err := s.follow(ctx, run, 10*time.Second)
		if err != nil {
			return versions, "", "", err
		}
		if r.Run.State != "finished" || len(rounds(r)) == 0 || rounds(r)[0].Counted == 0 {
			if why := line(agent.Log(), "policy"); why != "" {
				_, reason, _ := strings.Cut(why, "reason=")
				return versions, "", reason, nil
			}
			return versions, "", "", fmt.Errorf("the run is %s %s", r.Run.State, r.Run.Reason)
		}
		settled = r.Plan
		if versions[i], err = reader.weights(ctx, r.Run.Weights); err != nil {
			return versions, "", "", err
		}
	}
	return versions, settled, "", nil
}

// densePlan is like spyPlan, but for dense, whose first layer is fully connected.
const densePlan = `name: spy
algorithm: fedavg
rounds: 1
model: {name: dense, inputs: [recent, calendar]}
client: {optimizer: sgd, lr: %s, lr_end: 0, warmup: 0, batch: 1, steps: 1}
server: {clip: 0}
schedule: {cohort: 1}
evaluate: {every: 0}
`

// readDense succeeds if an agent trains the plan and the example reconstructed from two downloads
// belongs to a meter. An agent without a policy must be vulnerable to the attack.
func readDense(ctx context.Context, f *Fleet) (Result, error) {
	s := must(f.Serve(ctx))
	reader := must(s.JoinOne(ctx, "reader"))
	careless := must(f.StartAgent(ctx, s, "careless", "1/1", "--policy", "none"))
	versions, plan, reason, err := s.spy(ctx, careless, reader, densePlan)
	if err != nil || reason != "" {
		return Result{}, errors.Join(fmt.Errorf("without a policy the plan is declined: %s", reason), err)
	}
	found := f.denseExample(plan, versions)
	if found == "" {
		return Result{}, errors.New("without a policy no example is found, so this attack proves nothing")
	}
	check(careless.Kill())
	victim := must(f.startAgain("careless", "1/1"))
	versions, plan, reason, err = s.spy(ctx, victim, reader, densePlan)
	check(err)
	if reason != "" {
		return repelled("without a policy: %s; with one the agent declines: %s", found, reason), nil
	}
	if found = f.denseExample(plan, versions); found != "" {
		return succeeded("%s", found), nil
	}
	return repelled("the update gives no example"), nil
}

// denseExample reconstructs an example from a plan's weights before and after a step. It
// returns an empty string if the example belongs to none of the meters.
func (g *ground) denseExample(plan string, versions [2][]float32) string {
	d, closer := must2(series.OpenPrepared(g.data))
	defer closer.Close()
	k := must(kernel.Default())
	s := must(leak.Undefended(d, k)(plan))
	inputs := len(s.Setup().Problem.InputNames())
	units := 0
	bias := 0
	for _, l := range s.Setup().Problem.Model.Net().Layers() {
		for _, x := range l.Tensors {
			switch x.Name {
			case "trunk.0.weight":
				units = x.Shape[0]
			case "trunk.0.bias":
				bias = x.Offset
			}
		}
	}
	example, agree := reconstruct(versions[0], versions[1], firstLayer{units, inputs, bias})
	if agree < 3 {
		return ""
	}
	for i := range d.Len() {
		m := d.Meter(i)
		for _, e := range leak.Examples(s.Setup(), m, k) {
			x := make([]float64, inputs)
			for j, v := range e.Inputs {
				x[j] = float64(v)
			}
			if alike(example, x) {
				return fmt.Sprintf("%d units give an example of %s with its last 24 readings", agree, m.ID)
			}
		}
	}
	return ""
}

// line returns the first line that contains a word.
func line(text, word string) string {
	for l := range strings.Lines(text) {
		if strings.Contains(l, word) {
			return strings.TrimSpace(l)
		}
	}
	return ""
}

// reconstruct divides the change of each unit's input weights by the change of its bias. It returns
// the quotients on which most units agree, and the number of these units.
func reconstruct(before, after []float32, l firstLayer) (example []float64, gates int) {
	var all [][]float64
	for g := range l.units {
		db := float64(after[l.bias+g]) - float64(before[l.bias+g])
		if math.Abs(db) < 1e-4 { // rounding errors would dominate the quotients
			continue
		}
		x := make([]float64, l.inputs)
		for i := range x {
			x[i] = (float64(after[g*l.inputs+i]) - float64(before[g*l.inputs+i])) / db
		}
		all = append(all, x)
	}
	for _, x := range all {
		n := 0
		for _, y := range all {
			if alike(x, y) {
				n++
			}
		}
		if n > gates {
			example, gates = x, n
		}
	}
	return example, gates
}

func alike(x, y []float64) bool {
	for i := range x {
		if !(math.Abs(x[i]-y[i]) < 2e-3) {
			return false
		}
	}
	return true
}

// reading looks up the reading of an example, whose values are the load scaled by the range of
// the client's training data, hour / 23, and day of the week / 6. It returns an empty string if
// there is no such reading.
func (g *ground) reading(example []float64) string {
	d, closer := must2(series.OpenPrepared(g.data))
	defer closer.Close()
	zone := must(time.LoadLocation("America/Chicago")) // the zone of the meters that data generate creates
	for i := range d.Len() {
		m := d.Meter(i)
		train := m.Load[:len(m.Load)*8/10]
		low, high := math.Inf(1), math.Inf(-1)
		for _, x := range train {
			if x == x {
				low, high = min(low, float64(x)), max(high, float64(x))
			}
		}
		for k, x := range train {
			at := time.Unix(m.Start+int64(k)*d.Seconds(), 0).In(zone)
			day := float64((at.Weekday() + 6) % 7)
			if math.Abs((float64(x)-low)/(high-low)-example[0]) < 5e-4 &&
				math.Abs(float64(at.Hour())/23-example[1]) < 2e-3 && math.Abs(day/6-example[2]) < 2e-3 {
				return fmt.Sprintf("%s, %s: %.1f kW", m.ID, at.Format("Mon 2006-01-02 15:04"), x)
			}
		}
	}
	return ""
}
