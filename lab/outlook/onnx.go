package outlook

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"loadstar/fed/serve"
	"loadstar/internal/disk"
	"loadstar/nn/kernel"
)

// ExportONNX writes the models of a run's clients, with their scaling, as ONNX. It writes one
// client's model to a file or, if client is empty, all clients' models to a folder. It returns
// the number of files. The models forecast kW from the inputs that [Inputs] collects.
func ExportONNX(run, client, to string, k *kernel.Set) (int, error) {
	f, err := serve.Open(run, nil, k)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }() // the folder was only read
	clients := []string{client}
	if client == "" {
		clients = f.Clients()
		if len(clients) == 0 {
			return 0, fmt.Errorf("%s has no %s, so its clients are not known; train the run again", run, serve.ScalingName)
		}
		if err := os.MkdirAll(to, 0o755); err != nil {
			return 0, err
		}
	}
	for _, id := range clients {
		text, err := encode(f, id)
		if err != nil {
			return 0, fmt.Errorf("client %s: %w", id, err)
		}
		path := to
		if client == "" {
			name := serve.WeightsFile(id)
			path = filepath.Join(to, name[:len(name)-len(filepath.Ext(name))]+".onnx")
		}
		// The weights and the scaling reveal something about the client's load.
		if err := disk.WritePrivate(path, func(w *os.File) error { _, err := w.Write(text); return err }); err != nil {
			return 0, err
		}
	}
	return len(clients), nil
}

func encode(f *serve.Folder, id string) ([]byte, error) {
	c, err := f.Client(id)
	if errors.Is(err, serve.ErrNoHead) || errors.Is(err, serve.ErrNoScaling) {
		return nil, fmt.Errorf("%w; the run has %d clients, listed in its clients.csv", err, len(f.Clients()))
	} else if err != nil {
		return nil, err
	}
	defer f.Release(c)
	m := f.Model
	plan, names := m.Plan.Model, m.Problem.InputNames()
	out := ONNXOutput{Levels: 1, Anchor: -1}
	if plan.Loss == "pinball" {
		out.Levels = len(plan.Quantiles)
	}
	if s := c.Scaling.Features; s != nil {
		out.Anchor, out.Scale, out.Shift = slices.Index(names, "level.mean"), s.Deviation, s.Mean
	} else {
		r := c.Scaling.Ranges["load"]
		out.Scale, out.Shift = float64(r.High-r.Low), float64(r.Low)
	}
	meta := map[string]string{"client": id, "plan": m.Plan.Name, "model": plan.Name}
	for key, value := range map[string]any{"inputs": names, "levels": plan.Quantiles} {
		text, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		meta[key] = string(text)
	}
	return encodeONNX(m.Problem.Model.Net(), c.Weights, out, meta)
}
