package main

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"loadstar/series"
)

// spies lists the attacks of an operator on the readings.
func spies() []Attack {
	return []Attack{{ID: "C1", Name: "an operator's plan reads a reading out of one update", Run: readReading}}
}

// spyPlan trains one client on one example in one step, from one reading. The first layer's
// gradient is then the example times the bias's gradient. The run with a learning rate of
// almost 0 gives the weights before the step.
const spyPlan = `name: spy
algorithm: fedavg
rounds: 1
model: {name: bose2023, lookback: 1}
client: {optimizer: sgd, lr: %s, batch: 1, steps: 1}
schedule: {cohort: 1}
`

// Shape of bose2023's first layer, whose weights come first: weight_ih, weight_hh, bias_ih,
// bias_hh.
const (
	spyHidden = 20
	spyGates  = 4 * spyHidden
	spyInputs = 8
)

// readReading succeeds if the example that follows from two downloads of weights is a reading
// of a meter, at the hour and the day of the week that the example says.
func readReading(ctx context.Context, f *Fleet) (Result, error) {
	s, err := f.Serve(ctx)
	if err != nil {
		return Result{}, err
	}
	agent, err := f.StartAgent(ctx, s, "victim", "1/1")
	if err != nil {
		return Result{}, err
	}
	reader, err := s.JoinOne(ctx, "reader")
	if err != nil {
		return Result{}, err
	}
	var versions [2][]float32
	for i, lr := range []string{"1e-12", "1"} {
		run, err := s.begin(ctx, fmt.Sprintf(spyPlan, lr), meters)
		if err != nil {
			return refusedOr(err)
		}
		r, err := s.follow(ctx, run, 10*time.Second)
		if err != nil {
			return Result{}, err
		}
		if r.Run.State != "finished" || len(rounds(r)) == 0 || rounds(r)[0].Counted == 0 {
			if why := line(agent.Log(), "policy"); why != "" {
				_, reason, _ := strings.Cut(why, "reason=")
				return repelled("the agent declines: %s", reason), nil
			}
			return Result{}, fmt.Errorf("the run is %s %s", r.Run.State, r.Run.Reason)
		}
		if versions[i], err = reader.weights(ctx, r.Run.Weights); err != nil {
			return Result{}, err
		}
	}
	example, gates := reconstruct(versions[0], versions[1])
	if gates < 3 {
		return repelled("only %d gates agree on an example", gates), nil
	}
	found, err := f.reading(example)
	if err != nil {
		return Result{}, err
	}
	if found == "" {
		return repelled("the example %.4v is no reading", example), nil
	}
	return succeeded("%s, from %d gates", found, gates), nil
}

// refusedOr returns a result if the server refused the plan because of what agents accept,
// otherwise the error.
func refusedOr(err error) (Result, error) {
	if strings.Contains(err.Error(), "declin") {
		return repelled("%v", err), nil
	}
	return Result{}, err
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

// reconstruct divides the change of each gate's input weights by the change of its bias, and
// returns the quotients on which most gates agree, with the number of these gates.
func reconstruct(before, after []float32) (example []float64, gates int) {
	bias := spyGates * (spyInputs + spyHidden)
	var all [][]float64
	for g := range spyGates {
		db := float64(after[bias+g]) - float64(before[bias+g])
		if math.Abs(db) < 1e-4 { // rounding would spoil the quotients
			continue
		}
		x := make([]float64, spyInputs)
		for i := range x {
			x[i] = (float64(after[g*spyInputs+i]) - float64(before[g*spyInputs+i])) / db
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

// reading looks for the reading of an example: load scaled by the range of the client's
// training data, hour / 23, day of the week / 6. It returns an empty text if there is none.
func (g *ground) reading(example []float64) (string, error) {
	d, closer, err := series.OpenPrepared(g.data)
	if err != nil {
		return "", err
	}
	defer closer.Close()
	zone, err := time.LoadLocation("America/Chicago") // where data generate puts the meters
	if err != nil {
		return "", err
	}
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
				return fmt.Sprintf("%s, %s: %.1f kW", m.ID, at.Format("Mon 2006-01-02 15:04"), x), nil
			}
		}
	}
	return "", nil
}
