package clientopt

import (
	"fmt"

	"loadstar/fed"
)

// Moments determines what happens to the moments of [Adam] and [AMSGrad] between rounds.
type Moments int

// Reset sets the moments to zero at the start of every round. Keep stores the moments and the
// number of steps at the client. Average sends the moments of the shared weights together with
// these weights, and the server averages both. The client stores the moments of its personal
// weights.
const (
	Reset Moments = iota
	Keep
	Average
)

// maxCount is the largest number of steps that is stored. All integers up to it are exact in
// float32, and after that many steps every bias correction is 1.
const maxCount = 1 << 24

// count returns the number of steps as it is stored.
func count(steps int) float32 { return float32(min(steps, maxCount)) }

// restore reads vectors that save wrote and returns the number of steps. In a client's first
// turn the vectors are zeros. Each vector has a value for each weight in spans; nil spans mean
// all weights.
func restore(t *fed.Turn, spans []fed.Span, vectors ...[]float32) (steps int) {
	if t.First {
		for _, x := range vectors {
			clear(x)
		}
		return 0
	}
	from := t.Kept
	for _, x := range vectors {
		for _, s := range spans {
			n := copy(x[s.Lo:s.Hi], from)
			from = from[n:]
		}
	}
	return int(from[0])
}

// save writes the vectors and the number of steps to t.Kept.
func save(t *fed.Turn, steps int, spans []fed.Span, vectors ...[]float32) {
	to := t.Kept
	for _, x := range vectors {
		for _, s := range spans {
			n := copy(to, x[s.Lo:s.Hi])
			to = to[n:]
		}
	}
	to[0] = count(steps)
}

// personal appends the spans of the weights that are not shared to dst. Spans are in
// ascending order.
func personal(dst []fed.Span, shared []fed.Span, weights int) []fed.Span {
	at := 0
	for _, s := range shared {
		if at < s.Lo {
			dst = append(dst, fed.Span{Lo: at, Hi: s.Lo})
		}
		at = s.Hi
	}
	if at < weights {
		dst = append(dst, fed.Span{Lo: at, Hi: weights})
	}
	return dst
}

// receive copies the averaged moments of a task to m and v. Sums of moments are rounded, and
// clients may send incorrect moments. A second moment that is far too small would make a very
// large step. Therefore v is raised to the smallest value that gradients can give with this m.
// By the Cauchy-Schwarz inequality, that value is
//
//	v ≥ m² (1-β₂) (1 - β₁²/β₂) / (1-β₁)²
//
// Means over clients also satisfy this bound, because the square is convex.
func receive(t *fed.Turn, m, v []float32, beta1, beta2 float64) {
	n := len(t.Moments) / 2
	if len(t.Task.Shared) != 3*n {
		panic(fmt.Sprintf("clientopt: the task has %d numbers, want %d weights with two moments each", len(t.Task.Shared), n))
	}
	least := float32(0)
	if beta2 > 0 && beta1*beta1 < beta2 {
		least = float32((1 - beta2) * (1 - beta1*beta1/beta2) / ((1 - beta1) * (1 - beta1)))
	}
	first, second := t.Task.Shared[n:2*n], t.Task.Shared[2*n:]
	for _, s := range t.Shared {
		size := s.Hi - s.Lo
		to, from := v[s.Lo:s.Hi], second[:size]
		copy(m[s.Lo:s.Hi], first)
		for i, x := range first[:size] {
			low := least * float32(x*x)
			if y := from[i]; y > low {
				low = y
			}
			to[i] = low
		}
		first, second = first[size:], second[size:]
	}
}

// send copies the moments of the shared weights to t.Moments.
func send(t *fed.Turn, vectors ...[]float32) {
	to := t.Moments
	for _, x := range vectors {
		for _, s := range t.Shared {
			n := copy(to, x[s.Lo:s.Hi])
			to = to[n:]
		}
	}
}
