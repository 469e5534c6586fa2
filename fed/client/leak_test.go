package client

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/nn"
	"loadstar/nn/kernel"
)

// A personal layer never appears in an update: that is the promise of the product.
// What leaves a client is a fed.Update, so these tests say what may be in one.

// TestFieldsOfAnUpdate fails when an update gets a field: think about what it can give
// away, test that here, and add it.
func TestFieldsOfAnUpdate(t *testing.T) {
	known := map[string]string{
		"Client":    "fed.ClientID", // a name
		"Version":   "int",          // from the task
		"Examples":  "int",          // a count
		"Delta":     "[]float32",    // the tests below
		"Control":   "[]float32",    // the tests below
		"Loss":      "float64",      // one number of the whole model, if needed
		"TrainLoss": "float64",      // one number of the whole model
		"Steps":     "int",          // a count
	}
	for f := range reflect.TypeFor[fed.Update]().Fields() {
		if known[f.Name] != f.Type.String() {
			t.Errorf("an update has %s %s: can a personal layer be in it?", f.Name, f.Type)
		}
		delete(known, f.Name)
	}
	if len(known) > 0 {
		t.Errorf("an update has no %v any more", known)
	}
}

// tiny are rates by which no weight of usual size changes, in plan keys of an
// algorithm's clients.
func tiny(algorithm string) string {
	keys := "lr: 1.0e-30"
	switch algorithm {
	case "perfedavg", "pfedme":
		keys += ", inner_lr: 1.0e-30"
	case "fedmeta":
		keys += ", inner_lr: 1.0e-30, delta: 1.0e-6"
	}
	return keys
}

// leakCase is a model with a partition, and which layers are personal by it: written
// out here, so that the test does not ask the code under test.
type leakCase struct {
	model, partition string
	personal         []string
}

var leakCases = []leakCase{
	{"fekri2023", "none", nil},
	{"fekri2023", "head", []string{"fc"}},
	{"fekri2023", "lstm_l0", []string{"lstm_l0"}},
	{"fekri2023", "all", []string{"lstm_l0", "fc"}},
	{"bose2023", "none", nil},
	{"bose2023", "head", []string{"fc.0", "fc.1", "fc.2", "fc.3", "fc.4"}},
	{"bose2023", "head+top", []string{"lstm_l1", "fc.0", "fc.1", "fc.2", "fc.3", "fc.4"}},
	{"bose2023", "lstm_l1", []string{"lstm_l1"}},
	{"bose2023", "lstm_l0, fc.2", []string{"lstm_l0", "fc.2"}},
	{"bose2023", "fc.4,fc.1", []string{"fc.1", "fc.4"}},
	{"bose2024", "head", []string{"fc.0", "fc.1", "fc.2", "fc.3", "fc.4"}},
	{"bose2024", "lstm_l0", []string{"lstm_l0"}},
}

// plan of an algorithm with some client keys; false if it cannot have the partition.
func (c leakCase) plan(algorithm, client, loss string) (string, bool) {
	if only := map[string]string{"local": "all", "pooled": "none"}[algorithm]; only != c.partition && (only != "" || c.partition == "all") {
		return "", false
	}
	work, cohort := ", steps: 2", ", schedule: {cohort: 5}"
	if algorithm == "fedsgd" {
		work = ""
	}
	if algorithm == "local" || algorithm == "pooled" {
		cohort = ""
	}
	return fmt.Sprintf("{algorithm: %s, partition: %q, model: {name: %s, lookback: 3, targets: 2, loss: %s}, client: {batch: 8%s, %s}%s}",
		algorithm, c.partition, c.model, loss, work, client, cohort), true
}

// apart returns the shared and the personal numbers of whole weights.
func (c leakCase) apart(m []nn.Layer, w []float32) (shared, personal []float32) {
	for _, l := range m {
		part := w[l.Offset() : l.Offset()+l.Len()]
		if slices.Contains(c.personal, l.Name) {
			personal = append(personal, part...)
		} else {
			shared = append(shared, part...)
		}
	}
	return shared, personal
}

// TestPersonalWeightsDoNotLeak marks every personal weight with a number that no shared
// one has, and trains with rates so small that no weight moves. Then all of an update
// is 0: a personal weight in it, or taken from it, would show as what it is. What
// fedsgd sends is a gradient, which is computed here without any partition.
func TestPersonalWeightsDoNotLeak(t *testing.T) {
	d := homes(t, 1)
	for _, algorithm := range recipe.Names() {
		for _, c := range leakCases {
			text, ok := c.plan(algorithm, tiny(algorithm), "mae")
			if !ok {
				continue
			}
			x := newPlant(t, text, d)
			layers := x.problem.Model.Net().Layers()
			marked := slices.Clone(x.initial)
			for _, l := range layers {
				for i := range l.Len() {
					if slices.Contains(c.personal, l.Name) {
						marked[l.Offset()+i] = 8 + float32(i%1024)/1024
					}
				}
			}
			wantShared, wantPersonal := c.apart(layers, marked)
			client, shared := x.client(0, marked)
			if !slices.Equal(shared, wantShared) {
				t.Fatalf("%s, %s: other weights are shared", algorithm, text)
			}
			for round := range 2 { // the second has something kept
				u := x.train(t, client, x.task(round, shared))
				if len(u.Delta) != len(wantShared) {
					t.Fatalf("%s: an update of %d numbers for %d shared weights", text, len(u.Delta), len(wantShared))
				}
				if n := len(u.Control); n != 0 && (!x.job.Needs.Control || n != len(wantShared)) {
					t.Fatalf("%s: %d control variates", text, n)
				}
				want := make([]float32, len(wantShared))
				if algorithm == "fedsgd" {
					want, _ = c.apart(layers, x.descent(kernels(t), marked))
				}
				for i, v := range u.Delta {
					if math.Abs(float64(v-want[i])) > 1e-4*max(1, math.Abs(float64(want[i]))) || algorithm != "fedsgd" && v != 0 {
						t.Fatalf("%s, round %d: number %d of the update is %v, want %v", text, round, i, v, want[i])
					}
				}
				for i, v := range u.Control {
					if v != 0 {
						t.Fatalf("%s, round %d: control variate %d is %v", text, round, i, v)
					}
				}
				if !slices.Equal(client.Kept[:len(wantPersonal)], wantPersonal) {
					t.Fatalf("%s: the personal weights moved", text)
				}
			}
		}
	}
}

// descent returns minus the gradient over all examples.
func (x *plant) descent(k *kernel.Set, w []float32) []float32 {
	o := newObjective(x.job.Model, k, x.job.Loss, x.job.Targets, 1)
	o.setData(x.data[:1])
	sum, g := make([]float64, len(w)), make([]float32, len(w))
	for e := range o.Len() {
		o.Gradient(g, w, []int{e})
		for i, v := range g {
			sum[i] -= float64(v) / float64(o.Len())
		}
	}
	for i, v := range sum {
		g[i] = float32(v)
	}
	return g
}

// TestPersonalBiasDoesNotShow trains in earnest. With the absolute error a gradient
// only knows on which side of the target a forecast is: so two clients whose last,
// personal biases put all forecasts above all targets, but by different amounts, send
// the same bits.
func TestPersonalBiasDoesNotShow(t *testing.T) {
	d := homes(t, 1)
	for _, algorithm := range recipe.Names() {
		for _, c := range leakCases {
			last := map[string]string{"fekri2023": "fc", "bose2023": "fc.4", "bose2024": "fc.4"}[c.model]
			text, ok := c.plan(algorithm, "lr: 0.01", "mae")
			if !ok || !slices.Contains(c.personal, last) || c.partition == "all" {
				continue
			}
			x := newPlant(t, text, d)
			var deltas, controls [2][]float32
			var kept [2][]float32
			for i, bias := range []float32{50, 90} {
				w := slices.Clone(x.initial)
				for _, l := range x.problem.Model.Net().Layers() {
					for _, tensor := range l.Tensors {
						if l.Name == last && strings.HasSuffix(tensor.Name, "bias") {
							for k := range l.Offset() + l.Len() - tensor.Offset {
								w[tensor.Offset+k] = bias
							}
						}
					}
				}
				client, shared := x.client(0, w)
				for round := range 2 {
					u := x.train(t, client, x.task(round, shared))
					deltas[i], controls[i] = append(deltas[i], u.Delta...), append(controls[i], u.Control...)
					if u.TrainLoss < float64(bias)-20 {
						t.Fatalf("%s: a loss of %v: the bias is not what it should be", text, u.TrainLoss)
					}
				}
				kept[i] = client.Kept[x.problem.Partition.PersonalLen():]
			}
			if !sameBits(deltas[0], deltas[1]) || !sameBits(controls[0], controls[1]) || !sameBits(kept[0], kept[1]) {
				t.Errorf("%s: the update shows the personal bias", text)
			}
			if slices.Max(deltas[0]) == 0 {
				t.Errorf("%s: nothing moved", text)
			}
		}
	}
}

// TestUpdateIsTheChange trains in earnest with any layers personal: every number of an
// update is the change of a weight of a shared layer, in the order of layers, and the
// client keeps the others.
func TestUpdateIsTheChange(t *testing.T) {
	d := homes(t, 1)
	names := []string{"lstm_l0", "lstm_l1", "fc.0", "fc.1", "fc.2", "fc.3", "fc.4"}
	rapid.Check(t, func(t *rapid.T) {
		algorithm := rapid.SampledFrom(slices.DeleteFunc(recipe.Names(), func(a string) bool { return a == "local" || a == "pooled" })).Draw(t, "algorithm")
		list := rapid.SliceOfNDistinct(rapid.SampledFrom(names), 1, len(names)-1, rapid.ID).Draw(t, "personal")
		c := leakCase{"bose2023", strings.Join(list, ", "), list}
		text, _ := c.plan(algorithm, "lr: 0.01", "mse")
		x := newPlant(t, text, d)
		layers := x.problem.Model.Net().Layers()
		client, shared := x.client(0, x.initial)
		for round := range 2 {
			u := x.train(t, client, x.task(round, shared))
			ended, personal := c.apart(layers, x.worker.Weights())
			for i := range ended {
				ended[i] -= shared[i]
			}
			if !sameBits(u.Delta, ended) || !slices.Equal(client.Kept[:len(personal)], personal) {
				t.Fatalf("%s: the update is not the change of the shared layers", text)
			}
			if x.job.Needs.Control != (len(u.Control) > 0) {
				t.Fatalf("%s: %d control variates", text, len(u.Control))
			}
		}
		_, before := c.apart(layers, x.initial)
		// pFedMe moves personal weights too, and fedsgd by a step of its own.
		if slices.Equal(client.Kept[:len(before)], before) {
			t.Fatalf("%s: the personal layers did not train", text)
		}
	})
}
