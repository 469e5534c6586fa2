package nn

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// wired is a stage with its place in the network. Node 0 is the network's input, and node
// i+1 is the output of stage i.
type wired struct {
	stage
	from       []int      // the nodes that the stage reads
	gradients  []gradient // how the gradients of its inputs are passed on
	begin, end int        // range of its weights in the weight vector
}

// part returns the stage's part of a vector of weights or of their gradients.
func (s *wired) part(w []float32) []float32 { return w[s.begin:s.end:s.end] }

// nodeInfo describes the memory of a node in a workspace.
type nodeInfo struct {
	rows        int
	readers     int
	ownGradient bool
	transposed  bool
}

// Build returns a network of the given blocks. Its output is the output of the last block. Every
// other block must be read by a later one.
func Build(lookback, inputs int, blocks ...Block) (*Net, error) {
	if lookback < 1 || inputs < 1 || lookback > maxWidth || inputs > maxWidth || lookback*inputs > maxWidth {
		return nil, fmt.Errorf("a window of %d steps by %d inputs is not possible; both must be at least 1, and their product at most %d", lookback, inputs, maxWidth)
	}
	if len(blocks) == 0 {
		return nil, errors.New("a network needs at least one block")
	}
	n := &Net{lookback: lookback, inputs: inputs, blocks: slices.Clone(blocks)}
	n.nodes = []nodeInfo{{rows: lookback * inputs}}
	names := []string{Input}       // names of the input and of the blocks so far
	at := map[string]int{Input: 0} // the nodes of these names
	layers, tensors := map[string]bool{}, map[string]bool{}
	for i, b := range blocks {
		if _, recurrent := b.(LSTM); recurrent && i > 0 {
			return nil, fmt.Errorf("block %d: an LSTM must come first", i+1)
		}
		name, from := b.wiring()
		if _, taken := at[name]; taken {
			return nil, fmt.Errorf("block %d: the name %q is taken; every block needs its own name, and %q is the network's input", i+1, name, Input)
		}
		nodes, err := sources(name, from, names, at)
		if err != nil {
			return nil, fmt.Errorf("block %d: %w", i+1, err)
		}
		rows := make([]int, len(nodes))
		for j, v := range nodes {
			rows[j] = n.nodes[v].rows
		}
		stages, err := b.build(lookback, rows)
		if err != nil {
			return nil, fmt.Errorf("block %d: %w", i+1, err)
		}
		for _, s := range stages {
			if err := n.append(s, nodes, layers, tensors); err != nil {
				return nil, fmt.Errorf("block %d: %w", i+1, err)
			}
			nodes = []int{len(n.nodes) - 1}
		}
		names = append(names, name)
		at[name] = nodes[0]
	}
	for i, name := range names[:len(names)-1] {
		if n.nodes[at[name]].readers == 0 {
			return nil, fmt.Errorf("block %d: no block reads %s; name it in a later block's From, or remove it", i, name)
		}
	}
	n.outputs = n.nodes[len(n.nodes)-1].rows
	n.plan()
	return n, nil
}

// sources returns the nodes that a block reads. names lists the blocks before it.
func sources(name string, from, names []string, at map[string]int) ([]int, error) {
	if len(from) == 0 {
		return []int{at[names[len(names)-1]]}, nil
	}
	var nodes []int
	for _, f := range from {
		v, known := at[f]
		switch {
		case !known:
			return nil, fmt.Errorf("%s reads %q, which is not an earlier block; there are %s", name, f, strings.Join(names, ", "))
		case slices.Contains(nodes, v):
			return nil, fmt.Errorf("%s reads %s twice", name, f)
		}
		nodes = append(nodes, v)
	}
	return nodes, nil
}

// append adds a stage that reads the given nodes.
func (n *Net) append(s stage, from []int, layers, tensors map[string]bool) error {
	l, begin := s.layer(), n.weights
	if layers[l.Name] {
		return fmt.Errorf("two layers are named %s", l.Name)
	}
	layers[l.Name] = true
	for j := range l.Tensors {
		t := &l.Tensors[j]
		if tensors[t.Name] {
			return fmt.Errorf("two tensors are named %s", t.Name)
		}
		tensors[t.Name] = true
		t.Offset = n.weights
		n.weights += t.Len()
	}
	if s.rows() > maxWidth || n.weights > maxWeights {
		return fmt.Errorf("layer %s makes the network larger than %d rows or %d weights", l.Name, maxWidth, maxWeights)
	}
	if len(l.Tensors) > 0 {
		n.layers = append(n.layers, l)
	}
	for _, v := range from {
		n.nodes[v].readers++
	}
	n.stages = append(n.stages, wired{stage: s, from: from, gradients: make([]gradient, len(from)), begin: begin, end: n.weights})
	n.nodes = append(n.nodes, nodeInfo{rows: s.rows()})
	return nil
}

// plan determines what each stage does with the gradients of its inputs, and which memory the
// nodes use. The backward pass goes from the last stage to the first, so the last reader of a
// node is the first to write the node's gradient.
func (n *Net) plan() {
	begun := make([]bool, len(n.nodes))
	for i := len(n.stages) - 1; i >= 0; i-- {
		s := &n.stages[i]
		l, isLinear := s.stage.(*linear)
		free := false // the gradient of the output has the size of the input's and is no longer needed
		switch s.stage.(type) {
		case *prelu, *sum:
			free = true
		}
		for j, v := range s.from {
			if isLinear && l.transposes() {
				n.nodes[v].transposed = true
			}
			switch {
			case v == 0: // the network's input needs no gradient
			case begun[v]:
				s.gradients[j] = added
			case free:
				s.gradients[j], free = reused, false
			default:
				s.gradients[j] = written
				n.nodes[v].ownGradient = true
			}
			begun[v] = true
		}
	}
}
