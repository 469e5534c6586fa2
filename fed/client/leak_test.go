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

// The product promises that personal layers never leave a client. A client sends only a
// fed.Update, so these tests check its contents.

// TestUpdateFields fails when fed.Update gets a new field. Anyone who adds a field must
// consider what it can reveal, test this here, and add the field to the list.
func TestUpdateFields(t *testing.T) {
	known := map[string]string{
		"Client":      "fed.ClientID", // a name
		"Version":     "int",          // copied from the task
		"Examples":    "int",          // a count
		"Claimed":     "int",          // a count
		"Delta":       "[]float32",    // checked by the tests below
		"Control":     "[]float32",    // checked by the tests below
		"Loss":        "float64",      // one number for the whole model, if needed
		"TrainLoss":   "float64",      // one number for the whole model
		"Steps":       "int",          // a count
		"Norm":        "float64",      // of Delta
		"ControlNorm": "float64",      // of Control
	}
	for f := range reflect.TypeFor[fed.Update]().Fields() {
		if known[f.Name] != f.Type.String() {
			t.Errorf("fed.Update has a field %s %s: test that it cannot contain a personal layer", f.Name, f.Type)
		}
		delete(known, f.Name)
	}
	if len(known) > 0 {
		t.Errorf("fed.Update no longer has %v", known)
	}
}

// tiny returns plan keys with learning rates so small that no weight of normal size changes.
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

// leakCase is a model with a partition and a list of the personal layers. The list is spelled
// out so that the test does not depend on the code under test.
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

// plan returns a plan for an algorithm with the given client settings and loss, or false
// if the algorithm does not allow the partition.
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

// split returns the shared and the personal weights of w.
func (c leakCase) split(m []nn.Layer, w []float32) (shared, personal []float32) {
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

// TestPersonalWeightsDoNotLeak sets every personal weight to a value that no shared weight has,
// and trains with rates so small that no weight changes. All numbers in an update must then be
// zero, because a personal weight in it would appear as its value or its negative. fedsgd sends
// a gradient, which the test computes without any partition.
func TestPersonalWeightsDoNotLeak(t *testing.T) {
	d := homes(t, 1)
	for _, algorithm := range recipe.Names() {
		for _, c := range leakCases {
			text, ok := c.plan(algorithm, tiny(algorithm), "mae")
			if !ok {
				continue
			}
			x := newFixture(t, text, d)
			layers := x.problem.Model.Net().Layers()
			marked := slices.Clone(x.initial)
			for _, l := range layers {
				for i := range l.Len() {
					if slices.Contains(c.personal, l.Name) {
						marked[l.Offset()+i] = 8 + float32(i%1024)/1024
					}
				}
			}
			wantShared, wantPersonal := c.split(layers, marked)
			client, shared := x.client(0, marked)
			if !slices.Equal(shared, wantShared) {
				t.Fatalf("%s, %s: the wrong weights are shared", algorithm, text)
			}
			for round := range 2 { // the second round starts from the stored state
				u := x.train(t, client, x.task(round, shared))
				if len(u.Delta) != len(wantShared) {
					t.Fatalf("%s: the update has %d numbers, want %d shared weights", text, len(u.Delta), len(wantShared))
				}
				if n := len(u.Control); n != 0 && (!x.job.Needs.Control || n != len(wantShared)) {
					t.Fatalf("%s: %d control variates", text, n)
				}
				want := make([]float32, len(wantShared))
				if algorithm == "fedsgd" {
					want, _ = c.split(layers, x.descent(kernels(t), marked))
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
					t.Fatalf("%s: the personal weights changed", text)
				}
			}
		}
	}
}

// descent returns the negative gradient of the mean loss over all examples.
func (x *fixture) descent(k *kernel.Set, w []float32) []float32 {
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

// TestPersonalBiasDoesNotLeak trains with normal learning rates. With the absolute error as
// loss, a gradient depends only on whether a forecast is above or below its target. Two clients
// whose personal output biases put all forecasts above all targets, by different amounts, must
// therefore send the same bits.
func TestPersonalBiasDoesNotLeak(t *testing.T) {
	d := homes(t, 1)
	for _, algorithm := range recipe.Names() {
		for _, c := range leakCases {
			last := map[string]string{"fekri2023": "fc", "bose2023": "fc.4", "bose2024": "fc.4"}[c.model]
			text, ok := c.plan(algorithm, "lr: 0.01", "mae")
			if !ok || !slices.Contains(c.personal, last) || c.partition == "all" {
				continue
			}
			x := newFixture(t, text, d)
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
						t.Fatalf("%s: the loss is %v: the bias does not have the intended value", text, u.TrainLoss)
					}
				}
				kept[i] = client.Kept[x.problem.Partition.PersonalLen():]
			}
			if !sameBits(deltas[0], deltas[1]) || !sameBits(controls[0], controls[1]) || !sameBits(kept[0], kept[1]) {
				t.Errorf("%s: the update depends on the personal bias", text)
			}
			if slices.Max(deltas[0]) == 0 {
				t.Errorf("%s: no weight changed", text)
			}
		}
	}
}

// TestUpdateIsChangeOfSharedLayers trains with normal learning rates and various personal
// layers. Every number in an update must be the change of a weight in a shared layer, in the
// order of layers. The client must store the personal weights.
func TestUpdateIsChangeOfSharedLayers(t *testing.T) {
	d := homes(t, 1)
	names := []string{"lstm_l0", "lstm_l1", "fc.0", "fc.1", "fc.2", "fc.3", "fc.4"}
	rapid.Check(t, func(t *rapid.T) {
		algorithm := rapid.SampledFrom(slices.DeleteFunc(recipe.Names(), func(a string) bool { return a == "local" || a == "pooled" })).Draw(t, "algorithm")
		list := rapid.SliceOfNDistinct(rapid.SampledFrom(names), 1, len(names)-1, rapid.ID).Draw(t, "personal")
		c := leakCase{"bose2023", strings.Join(list, ", "), list}
		text, _ := c.plan(algorithm, "lr: 0.01", "mse")
		x := newFixture(t, text, d)
		layers := x.problem.Model.Net().Layers()
		client, shared := x.client(0, x.initial)
		for round := range 2 {
			u := x.train(t, client, x.task(round, shared))
			ended, personal := c.split(layers, x.worker.Weights())
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
		_, before := c.split(layers, x.initial)
		// Every algorithm trains personal weights. pFedMe trains them in its inner steps, and
		// fedsgd in a separate step.
		if slices.Equal(client.Kept[:len(before)], before) {
			t.Fatalf("%s: the personal layers did not train", text)
		}
	})
}
