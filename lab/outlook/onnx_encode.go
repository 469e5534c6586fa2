package outlook

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"loadstar/nn"
)

// ONNXOutput describes the conversion of a network's outputs.
type ONNXOutput struct {
	// Levels is the number of outputs per target. The model sorts them, like the quantiles of a
	// forecast.
	Levels int
	// Anchor is the position of the input that is added to every output, or -1.
	Anchor int
	// Each output is multiplied by Scale; then Shift is added.
	Scale, Shift float64
}

// Constants of the ONNX format.
const (
	irVersion    = 7
	opsetVersion = 13
	typeFloat    = 1
	typeInt64    = 7
)

// The names of the model's input and output.
const (
	inputName  = "inputs"
	outputName = "forecast"
)

// encodeONNX returns a model with the input "inputs", a row for each example with all its steps,
// and the output "forecast", a row for each target with its levels in ascending order.
func encodeONNX(net *nn.Net, w []float32, out ONNXOutput, metadata map[string]string) ([]byte, error) {
	g := &graph{net: net, w: w, at: map[string]string{nn.Input: inputName}}
	for i, b := range net.Blocks() {
		if err := g.block(i, b); err != nil {
			return nil, err
		}
	}
	last := g.last
	if out.Anchor >= 0 {
		g.node("Gather", []string{inputName, g.ints("anchor.at", int64(out.Anchor))}, "anchor", attribute{name: "axis", i: 1})
		g.node("Add", []string{last, "anchor"}, "anchored")
		last = "anchored"
	}
	g.node("Mul", []string{last, g.floats("scale", []int{1}, []float32{float32(out.Scale)})}, "scaled")
	g.node("Add", []string{"scaled", g.floats("shift", []int{1}, []float32{float32(out.Shift)})}, "shifted")
	g.node("Reshape", []string{"shifted", g.ints("levels", -1, int64(out.Levels))}, "rows")
	g.topK(out.Levels)
	return g.model(out.Levels, metadata), nil
}

// graph collects the encoded nodes and weights of a model.
type graph struct {
	net          *nn.Net
	w            []float32
	at           map[string]string // values, by the name of the block that computes them
	last         string            // the value of the previous block
	nodes        []byte
	initializers []byte
}

type attribute struct {
	name string
	i    int64
	ints []int64
}

func (g *graph) block(i int, b nn.Block) error {
	if i == 0 {
		g.last = inputName
	}
	var name string
	switch b := b.(type) {
	case nn.LSTM:
		name = b.Name
		g.lstm(b)
	case nn.Linear:
		name = b.Name
		from := g.last
		if len(b.From) > 0 {
			from = name + ".input"
			g.node("Concat", g.values(b.From), from, attribute{name: "axis", i: 1})
		}
		g.node("Gemm", []string{from, g.weight(name + ".weight"), g.weight(name + ".bias")}, name, attribute{name: "transB", i: 1})
	case nn.PReLU:
		name = b.Name
		g.node("PRelu", []string{g.last, g.weight(name + ".weight")}, name)
	case nn.Add:
		name = b.Name
		values := g.values(b.From)
		sum := values[0]
		for k, v := range values[1:] {
			to := name
			if k < len(values)-2 {
				to = fmt.Sprintf("%s.%d", name, k)
			}
			g.node("Add", []string{sum, v}, to)
			sum = to
		}
	default:
		return fmt.Errorf("blocks of type %T cannot be written as ONNX", b)
	}
	g.last, g.at[name] = name, name
	return nil
}

// lstm adds a stack of LSTM layers. In ONNX, the first dimension is the step, and the gates are
// in the order input, output, forget, cell. Our order of gates is input, forget, cell, output.
func (g *graph) lstm(b nn.LSTM) {
	steps, name := g.net.Lookback(), b.Name
	g.node("Reshape", []string{g.last, g.ints(name+".window", -1, int64(steps), int64(g.net.Inputs()))}, name+".windows")
	g.node("Transpose", []string{name + ".windows"}, name+".steps", attribute{name: "perm", ints: []int64{1, 0, 2}})
	from, in := name+".steps", g.net.Inputs()
	axis := g.ints(name+".direction", 1)
	for d := range max(b.Layers, 1) {
		layer := fmt.Sprintf("%s_l%d", name, d)
		tensor := func(kind string) []float32 {
			_, w := g.tensor(fmt.Sprintf("%s.%s_l%d", name, kind, d))
			return gates(w)
		}
		weights := []string{
			from,
			g.floats(layer+".W", []int{1, 4 * b.Hidden, in}, tensor("weight_ih")),
			g.floats(layer+".R", []int{1, 4 * b.Hidden, b.Hidden}, tensor("weight_hh")),
			g.floats(layer+".B", []int{1, 8 * b.Hidden}, append(tensor("bias_ih"), tensor("bias_hh")...)),
		}
		g.node("LSTM", weights, layer+".Y", attribute{name: "hidden_size", i: int64(b.Hidden)})
		g.node("Squeeze", []string{layer + ".Y", axis}, layer)
		from, in = layer, b.Hidden
	}
	width := int64(steps * b.Hidden)
	if b.Last {
		g.node("Gather", []string{from, g.ints(name+".newest", int64(steps-1))}, name+".states", attribute{name: "axis", i: 0})
		width = int64(b.Hidden)
	} else {
		g.node("Transpose", []string{from}, name+".states", attribute{name: "perm", ints: []int64{1, 0, 2}})
	}
	g.node("Reshape", []string{name + ".states", g.ints(name+".row", -1, width)}, name)
}

// gates reorders the four parts of an LSTM's tensor.
func gates(w []float32) []float32 {
	n := len(w) / 4
	var out []float32
	for _, part := range []int{0, 3, 1, 2} {
		out = append(out, w[part*n:(part+1)*n]...)
	}
	return out
}

func (g *graph) values(blocks []string) []string {
	var out []string
	for _, b := range blocks {
		out = append(out, g.at[b])
	}
	return out
}

// topK sorts the levels of each row.
func (g *graph) topK(levels int) {
	text := g.encodeNode("TopK", []string{"rows", g.ints("levels.count", int64(levels))}, []string{outputName, "order"},
		[]attribute{{name: "axis", i: 1}, {name: "largest", i: 0}, {name: "sorted", i: 1}})
	g.nodes = message(g.nodes, 1, text)
}

func (g *graph) node(op string, in []string, out string, attributes ...attribute) {
	g.nodes = message(g.nodes, 1, g.encodeNode(op, in, []string{out}, attributes))
}

func (g *graph) encodeNode(op string, in, out []string, attributes []attribute) (b []byte) {
	for _, name := range in {
		b = text(b, 1, name)
	}
	for _, name := range out {
		b = text(b, 2, name)
	}
	b = text(text(b, 3, "node "+out[0]), 4, op)
	for _, a := range attributes {
		one := text(nil, 1, a.name)
		if a.ints != nil {
			for _, v := range a.ints {
				one = number(one, 8, v)
			}
			one = number(one, 20, 7)
		} else {
			one = number(number(one, 3, a.i), 20, 2)
		}
		b = message(b, 5, one)
	}
	return b
}

// tensor returns the shape and the values of a weight.
func (g *graph) tensor(name string) (shape []int, values []float32) {
	for _, l := range g.net.Layers() {
		for _, t := range l.Tensors {
			if t.Name == name {
				return t.Shape, g.w[t.Offset : t.Offset+t.Len()]
			}
		}
	}
	panic("onnx: the network has no tensor " + name)
}

func (g *graph) weight(name string) string {
	shape, values := g.tensor(name)
	return g.floats(name, shape, values)
}

func (g *graph) floats(name string, shape []int, values []float32) string {
	raw := make([]byte, 0, 4*len(values))
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
	}
	return g.initializer(name, typeFloat, shape, raw)
}

func (g *graph) ints(name string, values ...int64) string {
	var raw []byte
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint64(raw, uint64(v))
	}
	return g.initializer(name, typeInt64, []int{len(values)}, raw)
}

func (g *graph) initializer(name string, kind int64, shape []int, raw []byte) string {
	var b []byte
	for _, d := range shape {
		b = number(b, 1, int64(d))
	}
	b = text(number(b, 2, kind), 8, name)
	b = protowire.AppendBytes(protowire.AppendTag(b, 9, protowire.BytesType), raw)
	g.initializers = message(g.initializers, 5, b)
	return name
}

// model encodes the whole model.
func (g *graph) model(levels int, metadata map[string]string) []byte {
	body := text(slices.Clone(g.nodes), 2, "loadstar")
	body = append(body, g.initializers...)
	body = message(body, 11, value(inputName, "examples", g.net.Lookback()*g.net.Inputs()))
	body = message(body, 12, value(outputName, "targets", levels))
	b := text(number(nil, 1, irVersion), 2, "loadstar")
	b = message(b, 7, body)
	b = message(b, 8, number(text(nil, 1, ""), 2, opsetVersion))
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		b = message(b, 14, text(text(nil, 1, key), 2, metadata[key]))
	}
	return b
}

// value encodes the type of an input or output with a variable number of rows.
func value(name, rows string, columns int) []byte {
	shape := message(nil, 1, text(nil, 2, rows))
	shape = message(shape, 1, number(nil, 1, int64(columns)))
	tensor := message(number(nil, 1, typeFloat), 2, shape)
	return message(text(nil, 1, name), 2, message(nil, 1, tensor))
}

func number(b []byte, field protowire.Number, v int64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), uint64(v))
}

func text(b []byte, field protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
}

func message(b []byte, field protowire.Number, m []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), m)
}
