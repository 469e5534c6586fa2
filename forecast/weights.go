package forecast

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"loadstar/nn"
	"loadstar/nn/safetensors"
)

const metaModel = "model"

// WriteWeights writes the weights of the given layers as .safetensors, with PyTorch's tensor
// names. metadata may be nil. A weight that is not finite is an error.
func (m *Model) WriteWeights(to io.Writer, w []float32, layers []nn.Layer, metadata map[string]string) error {
	if len(w) != m.net.Weights() {
		return fmt.Errorf("%d weights for model %s of %d", len(w), m.name, m.net.Weights())
	}
	var tensors []safetensors.Tensor
	for _, l := range layers {
		for _, t := range l.Tensors {
			if nn.NotFinite(w[t.Offset:t.Offset+t.Len()]) >= 0 {
				return fmt.Errorf("tensor %s holds a number that is not finite", t.Name)
			}
			tensors = append(tensors, safetensors.Tensor{Name: t.Name, Shape: t.Shape, Data: w[t.Offset : t.Offset+t.Len()]})
		}
	}
	meta := maps.Clone(metadata)
	if meta == nil {
		meta = map[string]string{}
	}
	meta[metaModel] = m.name
	meta["format"] = "pt" // "pt" means that names and shapes follow PyTorch
	return safetensors.Write(to, tensors, meta)
}

// ReadWeights reads the weights of the given layers into w. The file must contain exactly
// these layers. If it does not, or if a weight is not finite, ReadWeights returns an error and
// does not change w.
func (m *Model) ReadWeights(from io.Reader, w []float32, layers []nn.Layer) (metadata map[string]string, err error) {
	if len(w) != m.net.Weights() {
		return nil, fmt.Errorf("%d weights for model %s of %d", len(w), m.name, m.net.Weights())
	}
	// Allow a larger file than this model's, so that the error for another model's file can name
	// that model.
	read, metadata, err := safetensors.Read(from, m.net.Weights()+1<<20)
	if err != nil {
		return nil, err
	}
	if name, ok := metadata[metaModel]; ok && name != m.name {
		return nil, fmt.Errorf("these are weights of model %s, not of %s", name, m.name)
	}
	wanted := map[string]nn.Tensor{}
	for _, l := range layers {
		for _, t := range l.Tensors {
			wanted[t.Name] = t
		}
	}
	for _, t := range read {
		want, ok := wanted[t.Name]
		switch {
		case !ok:
			return nil, fmt.Errorf("tensor %s is not one of the expected layers of %s (%s)", t.Name, m.name, strings.Join(layerNames(layers), ", "))
		case !slices.Equal(t.Shape, want.Shape):
			return nil, fmt.Errorf("tensor %s has shape %v, model %s wants %v", t.Name, t.Shape, m.name, want.Shape)
		case nn.NotFinite(t.Data) >= 0:
			return nil, fmt.Errorf("tensor %s holds a number that is not finite", t.Name)
		}
	}
	if len(read) < len(wanted) {
		for _, t := range read {
			delete(wanted, t.Name)
		}
		return nil, fmt.Errorf("tensors %v are missing", slices.Sorted(maps.Keys(wanted)))
	}
	for _, t := range read {
		copy(w[wanted[t.Name].Offset:], t.Data)
	}
	return metadata, nil
}
