package forecast

import (
	"fmt"
	"slices"
	"strings"

	"loadstar/nn"
)

// Partition divides a model's layers into shared layers, which are sent to the server, and
// personal layers, which never leave the client.
type Partition struct {
	name             string
	shared, personal []nn.Layer
}

// The named partitions: everything is shared; the head is personal; the head and the top LSTM
// are personal; the correction is personal; everything is personal. Models with LSTM layers
// have a head; dense has a correction.
const (
	PartitionNone       = "none"
	PartitionHead       = "head"
	PartitionHeadTop    = "head+top"
	PartitionCorrection = "correction"
	PartitionAll        = "all"
)

// Partitions returns the names of the named partitions. No model supports all of them.
func Partitions() []string {
	return []string{PartitionNone, PartitionHead, PartitionHeadTop, PartitionCorrection, PartitionAll}
}

// Partition returns the partition with the given name. If name is a comma-separated list
// of layers, these layers are personal.
func (m *Model) Partition(name string) (Partition, error) {
	layers := m.net.Layers()
	recurrent := 0
	for _, l := range layers {
		if l.Kind == nn.KindLSTM {
			recurrent++
		}
	}
	isHead := func(i int) bool { return layers[i].Kind != nn.KindLSTM }
	correction := layerNames(m.Correction())
	var personal func(i int) bool
	switch name {
	case PartitionNone:
		personal = func(int) bool { return false }
	case PartitionCorrection:
		if len(correction) == 0 {
			return Partition{}, fmt.Errorf("partition %s: model %s has no correction; use %q or layers out of %s", name, m.name, PartitionHead, strings.Join(layerNames(layers), ", "))
		}
		personal = func(i int) bool { return slices.Contains(correction, layers[i].Name) }
	case PartitionHead, PartitionHeadTop:
		if recurrent == 0 {
			return Partition{}, fmt.Errorf("partition %s: model %s has no LSTM layers, which this partition shares; use %q, so that %s are personal", name, m.name, PartitionCorrection, strings.Join(correction, ", "))
		}
		if name == PartitionHead {
			personal = isHead
			break
		}
		if recurrent < 2 {
			return Partition{}, fmt.Errorf("partition %s of %s: it has a single LSTM layer, so nothing would be shared; use %q for purely local training or %q", name, m.name, PartitionAll, PartitionHead)
		}
		personal = func(i int) bool { return i >= recurrent-1 }
	case PartitionAll:
		personal = func(int) bool { return true }
	default:
		list := strings.Split(name, ",")
		for i, l := range list {
			list[i] = strings.TrimSpace(l)
			if !slices.ContainsFunc(layers, func(x nn.Layer) bool { return x.Name == list[i] }) {
				return Partition{}, fmt.Errorf("partition %q: %s has no layer %q; name one of %s or layers out of %s",
					name, m.name, list[i], strings.Join(Partitions(), ", "), strings.Join(layerNames(layers), ", "))
			}
		}
		personal = func(i int) bool { return slices.Contains(list, layers[i].Name) }
	}
	p := Partition{name: name}
	for i, l := range layers {
		if personal(i) {
			p.personal = append(p.personal, l)
		} else {
			p.shared = append(p.shared, l)
		}
	}
	return p, nil
}

func layerNames(layers []nn.Layer) []string {
	names := make([]string, len(layers))
	for i, l := range layers {
		names[i] = l.Name
	}
	return names
}

// Name returns the name or the list of layers that selected the partition.
func (p Partition) Name() string { return p.name }

// Shared returns the shared layers.
func (p Partition) Shared() []nn.Layer { return p.shared }

// Personal returns the personal layers.
func (p Partition) Personal() []nn.Layer { return p.personal }

// SharedLen returns the number of shared weights.
func (p Partition) SharedLen() int { return length(p.shared) }

// PersonalLen returns the number of personal weights.
func (p Partition) PersonalLen() int { return length(p.personal) }

func length(layers []nn.Layer) int {
	n := 0
	for _, l := range layers {
		n += l.Len()
	}
	return n
}

// Cut copies the shared weights in w to shared, and the personal weights to personal. The
// slices must have SharedLen and PersonalLen elements.
func (p Partition) Cut(w, shared, personal []float32) {
	p.check(w, shared, personal)
	for _, l := range p.shared {
		shared = shared[copy(shared, w[l.Offset():l.Offset()+l.Len()]):]
	}
	for _, l := range p.personal {
		personal = personal[copy(personal, w[l.Offset():l.Offset()+l.Len()]):]
	}
}

// Join is the inverse of Cut. It assembles all weights of a client in w.
func (p Partition) Join(w, shared, personal []float32) {
	p.check(w, shared, personal)
	for _, l := range p.shared {
		shared = shared[copy(w[l.Offset():l.Offset()+l.Len()], shared):]
	}
	for _, l := range p.personal {
		personal = personal[copy(w[l.Offset():l.Offset()+l.Len()], personal):]
	}
}

// check panics unless the three vectors have the partition's lengths.
func (p Partition) check(w, shared, personal []float32) {
	s, q := p.SharedLen(), p.PersonalLen()
	if len(w) != s+q || len(shared) != s || len(personal) != q {
		panic(fmt.Sprintf("forecast: vectors of %d, %d and %d for %d shared and %d personal weights", len(w), len(shared), len(personal), s, q))
	}
}
