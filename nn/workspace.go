package nn

import (
	"fmt"

	"loadstar/nn/kernel"
)

// Workspace is the memory of one worker for one network. Only one goroutine at a time may
// use it. It can serve any number of clients, because no result depends on earlier calls.
type Workspace struct {
	net   *Net
	k     *kernel.Set
	batch int

	tapes []tape
	nodes []node
	ins   [][]*node // the nodes that each stage reads
	// columns is the number of columns of the input that are examples; the other columns are
	// padding.
	columns int
	x       []float32 // the padded batch, with lookback·inputs rows
	dout    []float32
}

// NewWorkspace returns a workspace that uses kernel set k, for batches of up to batch
// examples.
func (n *Net) NewWorkspace(k *kernel.Set, batch int) *Workspace {
	batch = max(batch, 1)
	ws := &Workspace{net: n, k: k, batch: batch, nodes: make([]node, len(n.nodes))}
	cols := padded(batch)
	ws.x = make([]float32, n.lookback*n.inputs*cols)
	ws.dout = make([]float32, n.outputs*cols)
	for i, info := range n.nodes {
		v := &ws.nodes[i]
		v.rows = info.rows
		if info.ownGradient {
			v.d = make([]float32, info.rows*cols)
		}
		if info.transposed {
			v.xt = make([]float32, info.rows*cols)
		}
	}
	ws.nodes[len(ws.nodes)-1].d = ws.dout
	for i := len(n.stages) - 1; i >= 0; i-- {
		for j, g := range n.stages[i].gradients {
			if g == reused {
				ws.nodes[n.stages[i].from[j]].d = ws.nodes[i+1].d
			}
		}
	}
	for _, s := range n.stages {
		ws.tapes = append(ws.tapes, s.newTape(cols))
		var in []*node
		for _, from := range s.from {
			in = append(in, &ws.nodes[from])
		}
		ws.ins = append(ws.ins, in)
	}
	return ws
}

// WorkspaceBytes returns the number of bytes that NewWorkspace allocates for floats.
func (n *Net) WorkspaceBytes(batch int) int64 {
	column, once := int64(n.lookback*n.inputs+n.outputs), int64(0)
	for _, v := range n.nodes {
		if v.ownGradient {
			column += int64(v.rows)
		}
		if v.transposed {
			column += int64(v.rows)
		}
	}
	for _, s := range n.stages {
		c, o := s.tapeFloats()
		column += c
		once += o
	}
	return 4 * (column*int64(padded(max(batch, 1))) + once)
}

// padded returns the row length for a batch: its size, rounded up to a multiple of
// kernel.Lanes.
func padded(batch int) int {
	return (batch + kernel.Lanes - 1) / kernel.Lanes * kernel.Lanes
}

// Predict computes the outputs for any number of windows x, each of lookback × inputs
// floats, and writes them to out, row-major by window. A window's outputs do not depend on
// the other windows. If x is a single window, Predict uses a faster code path, whose
// results may differ in the last bits.
func (ws *Workspace) Predict(out, w, x []float32) {
	ws.net.check(w)
	window, outputs := ws.net.lookback*ws.net.inputs, ws.net.outputs
	if len(x)%window != 0 || len(out) != len(x)/window*outputs {
		panic(fmt.Sprintf("nn: %d inputs and %d outputs for windows of %d and %d", len(x), len(out), window, outputs))
	}
	alone := len(x) == window
	for len(x) > 0 {
		batch := min(ws.batch, len(x)/window)
		n := 1
		if alone {
			copy(ws.x, x) // a single vector, which the kernels multiply without padding
		} else {
			ws.transpose(x[:batch*window])
			n = padded(batch)
		}
		y := ws.forward(w, n)
		for o := range outputs {
			for b, v := range y[o*n : o*n+batch] {
				out[b*outputs+o] = v
			}
		}
		x, out = x[batch*window:], out[batch*outputs:]
	}
}

// Gradient returns the mean loss of one batch of windows x with targets y, both row-major
// by example. It overwrites g with the gradient of the loss with respect to the weights w.
// The length of x determines the batch size.
func (ws *Workspace) Gradient(g, w, x, y []float32, loss Loss) float64 {
	ws.transpose(x)
	return ws.ColumnsGradient(g, w, y, loss)
}

// Columns returns the input buffer for the next call of a method whose name begins with
// Columns. The caller writes example e of the batch to column e. There is a row for each step
// and input, in the order of a window, and rows are stride floats apart. Writing columns
// directly avoids the transposition in Gradient.
func (ws *Workspace) Columns(batch int) (x []float32, stride int) {
	if batch < 1 || batch > ws.batch {
		panic(fmt.Sprintf("nn: %d windows for at most %d", batch, ws.batch))
	}
	n := padded(batch)
	ws.columns = batch
	x = ws.x[:ws.net.lookback*ws.net.inputs*n]
	if batch < n {
		for r := 0; r < len(x); r += n {
			clear(x[r+batch : r+n])
		}
	}
	return x, n
}

// ColumnsGradient is like Gradient, but takes the batch that the caller wrote to the buffer
// of the last Columns call.
func (ws *Workspace) ColumnsGradient(g, w, y []float32, loss Loss) float64 {
	ws.net.check(g)
	mean := ws.ColumnsLoss(w, y, loss)
	n := padded(ws.columns)
	for i := range ws.nodes {
		ws.nodes[i].transposed = false
	}
	for i := len(ws.tapes) - 1; i >= 0; i-- {
		s := &ws.net.stages[i]
		ws.tapes[i].backward(ws.k, s.part(w), s.part(g), ws.ins[i], s.gradients, ws.nodes[i+1].d[:s.rows()*n], n)
	}
	return mean
}

// ColumnsLoss returns the same loss as ColumnsGradient, bit for bit, without computing the
// gradient.
func (ws *Workspace) ColumnsLoss(w, y []float32, loss Loss) float64 {
	ws.net.check(w)
	batch, outputs := ws.columns, ws.net.outputs
	if len(y) == 0 || len(y)%batch != 0 || loss.Outputs(len(y)/batch) != outputs {
		panic(fmt.Sprintf("nn: %d targets for a batch of %d and %d outputs", len(y), batch, outputs))
	}
	n := padded(batch)
	out := ws.forward(w, n)
	return evaluate(loss, out, ws.dout[:outputs*n], y, outputs, batch, n)
}

// ColumnsSlopes returns how many of a batch's outputs would lower the loss if they were
// smaller, and how many would lower it if they were larger.
func (ws *Workspace) ColumnsSlopes(w, y []float32, loss Loss) (smaller, larger int) {
	ws.ColumnsLoss(w, y, loss)
	for _, slope := range ws.dout[:ws.net.outputs*padded(ws.columns)] { // the slope of padding is 0
		switch {
		case slope > 0:
			smaller++
		case slope < 0:
			larger++
		}
	}
	return smaller, larger
}

// ColumnsPredict writes the outputs for the columns of the input buffer to out, row-major by
// window. They are bit-identical to the outputs of Predict for more than one window.
func (ws *Workspace) ColumnsPredict(out, w []float32) {
	ws.net.check(w)
	batch, outputs := ws.columns, ws.net.outputs
	if len(out) != batch*outputs {
		panic(fmt.Sprintf("nn: %d outputs for a batch of %d with %d each", len(out), batch, outputs))
	}
	n := padded(batch)
	y := ws.forward(w, n)
	for o := range outputs {
		for b, v := range y[o*n : o*n+batch] {
			out[b*outputs+o] = v
		}
	}
}

// transpose copies row-major windows to the columns of the input buffer.
func (ws *Workspace) transpose(x []float32) {
	window := ws.net.lookback * ws.net.inputs
	batch := len(x) / window
	if batch < 1 || batch > ws.batch || len(x) != batch*window {
		panic(fmt.Sprintf("nn: %d inputs for at most %d windows of %d", len(x), ws.batch, window))
	}
	at, n := ws.Columns(batch)
	ws.k.Transpose(batch, window, x, window, at, n)
}

// forward applies all stages to the n columns of the input buffer, including padding. It
// returns the outputs, one row each.
func (ws *Workspace) forward(w []float32, n int) []float32 {
	ws.nodes[0].x = ws.x[:ws.net.lookback*ws.net.inputs*n]
	for i, t := range ws.tapes {
		ws.nodes[i+1].x = t.forward(ws.k, ws.net.stages[i].part(w), ws.ins[i], n)
	}
	return ws.nodes[len(ws.nodes)-1].x
}
