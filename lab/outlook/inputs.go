package outlook

import (
	"encoding/json"
	"fmt"
	"os"

	"loadstar/fed/serve"
	"loadstar/internal/disk"
	"loadstar/nn/safetensors"
)

// maxInputs is the number of meters whose inputs are collected in memory.
const maxInputs = 10_000

// Inputs collects the model's inputs at each meter's cutoff, and the model's own forecasts, for
// users who compute forecasts themselves. Meters for which the model cannot forecast are
// omitted.
type Inputs struct {
	clients []string
	cutoffs []int64
	all     []serve.Inputs
}

func (in *Inputs) add(client string, cutoff int64, x *serve.Inputs) error {
	if x == nil {
		return nil
	}
	if len(in.all) == maxInputs {
		return fmt.Errorf("inputs of more than %d meters do not fit into one file; choose meters with --client", maxInputs)
	}
	in.clients, in.cutoffs, in.all = append(in.clients, client), append(in.cutoffs, cutoff), append(in.all, *x)
	return nil
}

// Write writes the inputs as .safetensors: "inputs" by meter, example and input, and
// "forecast" in kW by meter, step and level.
func (in *Inputs) Write(path string, m *Model) error {
	if len(in.all) == 0 {
		return fmt.Errorf("the model cannot forecast for any meter, so there are no inputs")
	}
	model, first := m.folder.Model, in.all[0]
	levels := model.Plan.Model.Quantiles
	if model.Plan.Model.Loss != "pinball" {
		levels = nil
	}
	var x []float32
	var kw []float64
	for _, one := range in.all {
		x, kw = append(x, one.X...), append(kw, one.KW...)
	}
	meta := map[string]string{"format": "np"}
	for key, value := range map[string]any{
		"clients": in.clients, "cutoffs": in.cutoffs, "inputs": model.Problem.InputNames(), "levels": levels,
	} {
		text, err := json.Marshal(value)
		if err != nil {
			return err
		}
		meta[key] = string(text)
	}
	n, steps := len(in.all), model.Plan.Model.Targets.Steps()
	return disk.WritePrivate(path, func(to *os.File) error {
		return safetensors.Write(to, []safetensors.Tensor{
			{Name: "forecast", Shape: []int{n, steps, len(first.KW) / steps}, Float64: kw},
			{Name: "inputs", Shape: []int{n, first.Examples, len(first.X) / first.Examples}, Data: x},
		}, meta)
	})
}
