package aggregate

import (
	"errors"
	"fmt"

	"loadstar/fed"
)

var _ fed.Aggregator = FedSIM{}

// FedSIM takes one step per client, on the server, towards weights that adapt well
// (song2021, section 3.2, algorithm 2, equations 9 and 10):
//
//	v_i  = theta - w_i
//	d_i  = (grad f(w_i + Delta v_i) - grad f(w_i - Delta v_i)) / (2 Delta)
//	w~_i = w_i - beta (v_i - Delta d_i)
//	D    = mean_i(w~_i) - theta
//
// where w_i are client i's trained weights and f is the loss on the server's batch, which
// is the same for all clients. All updates have equal weight in the mean. Clients train
// with a proximal term. The server optimizer is plain descent at rate 1. The paper uses
// Delta = Beta = 0.25.
//
// Deviations: for a stale update, theta in v_i is the version that the client received, because
// the client's proximal term refers to that version. The paper has no stale updates. In variant
// 2 the paper takes the gradient on a query batch; we use the batch of the merge. song2021
// starts all methods from a model trained on the server's data; start: server-data selects
// this, and the default is random weights. The paper's lambda of 1 was chosen for a
// cross-entropy of about 1. A loss of scaled loads is a hundred times smaller, so client.mu
// should also be a hundred times smaller. The points at which gradients are computed are
// rounded to float32.
type FedSIM struct {
	Delta, Beta float64
	// Rounds is the number of merges over which beta falls linearly from Beta to 0 (table
	// 5). If it is 0, beta is constant.
	Rounds int
	// ServerGradient sets v_i to the gradient of f at w_i (section 4.4, variant 2).
	ServerGradient bool
	// FirstOrder sets d_i to 0 (section 4.4, variant 3).
	FirstOrder bool
}

// Needs implements [fed.Aggregator]. If FirstOrder is set, only ServerGradient needs data on
// the server.
func (a FedSIM) Needs() fed.Needs {
	return fed.Needs{EachUpdate: true, ServerData: a.ServerGradient || !a.FirstOrder}
}

// beta returns the step size for the merge of the given round.
func (a FedSIM) beta(round int) float64 {
	if a.Rounds <= 0 {
		return a.Beta
	}
	return a.Beta * float64(max(a.Rounds-round, 0)) / float64(a.Rounds)
}

// Aggregate implements [fed.Aggregator].
func (a FedSIM) Aggregate(dst []float64, m *fed.Merge) error {
	if !a.FirstOrder && !(a.Delta > 0) || !(a.Beta >= 0) {
		return fmt.Errorf("aggregate: delta is %g and beta %g, want delta above 0 and beta not negative", a.Delta, a.Beta)
	}
	if err := checkUpdates(dst, m); err != nil {
		return err
	}
	if m.Server == nil && a.Needs().ServerData {
		return errors.New("aggregate: the server has no data, which FedSIM needs: set server.clients in the plan")
	}
	beta := a.beta(m.Round)
	w, v, d := make([]float64, len(dst)), make([]float64, len(dst)), make([]float64, len(dst))
	at := make([]float32, len(dst))
	up, down := make([]float32, len(dst)), make([]float32, len(dst))
	// gradient overwrites g with the gradient at w + step·v.
	gradient := func(g []float32, step float64) error {
		for i := range at {
			at[i] = float32(w[i] + float64(step*v[i]))
		}
		return m.Server.Gradient(g, at)
	}
	clear(dst)
	n := float64(len(m.Updates))
	for k := range m.Updates {
		u := &m.Updates[k]
		for i := range w {
			w[i] = float64(u.From[i]) + float64(u.Delta[i])
			v[i] = -float64(u.Delta[i])
		}
		if a.ServerGradient {
			if err := gradient(up, 0); err != nil {
				return err
			}
			for i, g := range up {
				v[i] = float64(g)
			}
		}
		if !a.FirstOrder {
			if err := gradient(up, a.Delta); err != nil {
				return err
			}
			if err := gradient(down, -a.Delta); err != nil {
				return err
			}
			for i := range d {
				d[i] = (float64(up[i]) - float64(down[i])) / (2 * a.Delta)
			}
		}
		for i := range dst {
			meta := v[i] - float64(a.Delta*d[i])
			dst[i] += (offset(m, u, i) - float64(beta*meta)) / n
		}
	}
	return checkResult(dst)
}
