package sim

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/internal/testkit"
	"loadstar/nn"
	"loadstar/series"
	"loadstar/series/read"
)

// poisoning is a run of the plan hour-ahead in which some clients attack within the limits on
// norms, by putting the whole permitted update into a few weights.
type poisoning struct {
	Data, Attack string
	// Share is the share of the training clients that are hostile. At least one client is
	// hostile.
	Share float64
	// Defence is none, bound, trim or both. All of these include limits on norms.
	Defence string
	Seed    int
	Rounds  int
	// Holdout is the share of clients that only fine-tune. If it is 0, all clients train and
	// are scored.
	Holdout float64
	// From and To restrict the dataset, or are empty.
	From, To string
}

// poisoned is the result of a run: the mean relative MAE of the scored clients on test data, and
// the shared weights of the head's median output that an attack moves.
type poisoned struct {
	MAE, Bias, Yearend float64
	Hostile, Trained   int
}

// model contains the positions of a plan's weights that attacks need.
type model struct {
	inputs []string
	weight nn.Tensor // weight of the head
	bias   nn.Tensor
}

// The head's inputs are the trunk's outputs, followed by the model's inputs.
func (m *model) at(output, input int) int {
	return m.weight.Offset + output*m.weight.Shape[1] + m.weight.Shape[1] - len(m.inputs) + input
}

// lower sets delta to an update that lowers all forecasts, the forecasts for some inputs, or
// both.
func (m *model) lower(delta []float32, bias bool, inputs ...string) {
	const most = 15 // below server.bound
	clear(delta)
	for output := range m.weight.Shape[0] {
		if bias {
			delta[m.bias.Offset+output] = -most
		}
		for i, name := range m.inputs {
			if slices.ContainsFunc(inputs, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
				delta[m.at(output, i)] = -most
			}
		}
	}
}

// poisons are the attacks. Each replaces the update of a hostile client.
var poisons = map[string]func(m *model, u *fed.Update){
	"clean":  func(*model, *fed.Update) {},
	"bias":   func(m *model, u *fed.Update) { m.lower(u.Delta, true) },
	"spread": func(m *model, u *fed.Update) { m.lower(u.Delta, true, "hour.", "weekday.") },
	"evening": func(m *model, u *fed.Update) {
		m.lower(u.Delta, false, "hour.17", "hour.18", "hour.19", "hour.20", "hour.21")
	},
	"flipped": func(_ *model, u *fed.Update) { scale(u, -100); clamp(u.Delta, 16) },
	// The data of a bomb's run contains no year-end, so no honest client moves this weight.
	"bomb": func(m *model, u *fed.Update) { m.lower(u.Delta, false, "yearend") },
}

func (p poisoning) plan(t *testing.T) *fed.Plan {
	t.Helper()
	tune := 0
	if p.Holdout > 0 {
		tune = 1
	}
	s := settings{
		"name": "poison", "seed": p.Seed, "algorithm": "fedavg", "model.name": "dense", "rounds": p.Rounds,
		"evaluate.every": p.Rounds - 1, "evaluate.forecasts": 0, "evaluate.holdout": p.Holdout, "evaluate.fine_tune.steps": tune,
	}
	if p.Defence == "none" || p.Defence == "trim" {
		s["server.coordinate"] = 0
	}
	if p.Defence == "trim" || p.Defence == "both" {
		s["server.robust"] = "trim"
	}
	return s.plan(t)
}

func (p poisoning) dataset(t *testing.T) *series.Dataset {
	t.Helper()
	path, root := testkit.Dataset(t, p.Data)
	d, err := read.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if p.From != "" {
		d.From, d.To = p.From, p.To
	}
	data, err := read.Open(d, root)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func (p poisoning) run(t *testing.T, b *runner) poisoned {
	t.Helper()
	plan, data := p.plan(t), p.dataset(t)
	problem, err := recipe.Frame(plan, data)
	if err != nil {
		t.Fatal(err)
	}
	m := &model{inputs: problem.InputNames()}
	for _, l := range problem.Model.Net().Layers() {
		for _, x := range l.Tensors {
			switch x.Name {
			case "head.weight":
				m.weight = x
			case "head.bias":
				m.bias = x
			}
		}
	}
	var (
		lock    sync.Mutex
		trained []string
		hostile = map[string]bool{}
	)
	c := Config{Plan: plan, Dataset: data, Workers: 2}
	if p.Attack != "clean" {
		c.hostile = func(task fed.Task, u *fed.Update) {
			lock.Lock()
			defer lock.Unlock()
			if task.Round == 0 { // all clients train in every round, so the first round shows their names
				trained = append(trained, string(u.Client))
				return
			}
			if len(hostile) == 0 {
				slices.Sort(trained)
				n := max(int(math.Round(p.Share*float64(len(trained)))), 1)
				for i := range n {
					hostile[trained[i*len(trained)/n]] = true
				}
			}
			if hostile[string(u.Client)] {
				u.TrainLoss = 0.1
				poisons[p.Attack](m, u)
			}
		}
	}
	o, err := b.try(t, c)
	if err != nil {
		t.Logf("%+v: %v", p, err)
		return poisoned{MAE: math.MaxFloat64} // JSON has no infinity
	}
	median := m.weight.Shape[0] / 2
	return poisoned{
		MAE: float64(o.RelativeMAE.Mean), Bias: float64(o.shared[m.bias.Offset+median]),
		Yearend: float64(o.shared[m.at(median, slices.Index(m.inputs, "yearend"))]),
		Hostile: len(hostile), Trained: len(trained),
	}
}

// results contains the finished runs. If LOADSTAR_RESULTS names a file, they are stored
// there, so that an interrupted measurement can continue.
type results struct {
	file *os.File
	of   map[poisoning]poisoned
}

type finished struct {
	Run    poisoning
	Result poisoned
}

func openResults(t *testing.T) *results {
	t.Helper()
	r := &results{of: map[poisoning]poisoned{}}
	path := os.Getenv("LOADSTAR_RESULTS")
	if path == "" {
		return r
	}
	if had, err := os.Open(path); err == nil {
		for lines := bufio.NewScanner(had); lines.Scan(); {
			var f finished
			if err := json.Unmarshal(lines.Bytes(), &f); err != nil {
				t.Fatal(err)
			}
			r.of[f.Run] = f.Result
		}
		had.Close()
	} else if !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var err error
	if r.file, err = os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.file.Close() })
	return r
}

func (r *results) get(t *testing.T, b *runner, p poisoning) poisoned {
	t.Helper()
	if had, ok := r.of[p]; ok {
		return had
	}
	x := p.run(t, b)
	r.of[p] = x
	if r.file != nil {
		line, err := json.Marshal(finished{p, x})
		if err == nil {
			_, err = r.file.Write(append(line, '\n'))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%+v: %+v", p, x)
	return x
}

// row is a row of the table: an attack, the share of hostile clients, and the permitted
// increase of the error with both defences.
type row struct {
	attack string
	share  float64
	most   float64
}

var poisonRows = []row{
	{"clean", 0, 0},
	{"bias", 0, 0.02}, // one client
	{"bias", 0.2, 0.05},
	{"spread", 0.2, 0.05},
	{"evening", 0.2, 0.05},
	{"flipped", 0.2, 0.05},
	{"bias", 0.27, 0.10},
}

func (r row) name() string {
	switch r.share {
	case 0:
		if r.attack == "clean" {
			return r.attack
		}
		return r.attack + ", one client"
	case 0.2:
		return r.attack + ", a fifth"
	}
	return fmt.Sprintf("%s, %.0f %%", r.attack, 100*r.share)
}

var defences = []string{"none", "bound", "trim", "both"}

// TestPoison measures the harm that hostile clients can do within the limits on norms, with
// data of real homes and buildings. The error is measured on clients that did not train, but
// take one step of fine-tuning, because personal layers hide the harm in the clients that
// train. It prints the tables of decision 48.
func TestPoison(t *testing.T) {
	if !testkit.Long() {
		t.Skip("trains for hours")
	}
	const rounds, seeds = 160, 3
	b, all := newRunner(t), openResults(t)
	var tables strings.Builder
	for _, data := range []string{"sgsc-core19", "hog-core42"} {
		t.Run(data, func(t *testing.T) {
			fmt.Fprintf(&tables, "\n| %s | %s |\n|---|%s\n", data, strings.Join(defences, " | "), strings.Repeat("---|", len(defences)))
			clean := map[string]float64{}
			for _, r := range poisonRows {
				fmt.Fprintf(&tables, "| %s |", r.name())
				for _, defence := range defences {
					var errors []float64
					for seed := range seeds {
						p := poisoning{Data: data, Attack: r.attack, Share: r.share, Defence: defence, Seed: seed + 1, Rounds: rounds, Holdout: 0.2}
						errors = append(errors, all.get(t, b, p).MAE)
					}
					mean := average(errors)
					if r.attack == "clean" {
						clean[defence] = mean
						fmt.Fprintf(&tables, " %.3f |", mean)
						continue
					}
					more := mean/clean[defence] - 1
					fmt.Fprintf(&tables, " %.3f (%+.1f %%) |", mean, 100*more)
					if defence == "both" && !(more <= r.most) {
						t.Errorf("%s: the error rises by %.1f %% with both defences, want at most %.0f %%", r.name(), 100*more, 100*r.most)
					}
				}
				fmt.Fprintln(&tables)
			}
		})
	}
	t.Log("mean relative MAE of clients that did not train\n" + tables.String())
}

// TestPlantedWeight measures a weight that no honest client moves, because the training data has no
// year-end. Hostile clients move it, so that forecasts are wrong once the input is 1.
func TestPlantedWeight(t *testing.T) {
	if testing.Short() {
		t.Skip("trains for more than a second")
	}
	rounds := testkit.Pick(8, 160)
	b, all := newRunner(t), openResults(t)
	for _, defence := range defences {
		p := poisoning{
			Data: "sgsc-core19", Attack: "bomb", Share: 0.2, Defence: defence, Seed: 1, Rounds: rounds, Holdout: 0.2,
			From: "2013-01-15", To: "2013-12-10",
		}
		x := all.get(t, b, p)
		t.Logf("%s: the weight of yearend is %.3f after %d rounds; %d of %d clients are hostile", defence, x.Yearend, rounds, x.Hostile, x.Trained)
		if trims := defence == "trim" || defence == "both"; trims && x.Yearend != 0 || !trims && x.Yearend > -0.01 {
			t.Errorf("%s: the weight of yearend is %g", defence, x.Yearend)
		}
	}
}

// TestHonestCost measures the cost of the defences without hostile clients. All clients train
// and are scored.
func TestHonestCost(t *testing.T) {
	if !testkit.Long() {
		t.Skip("trains for hours")
	}
	const seeds, most = 3, 0.005
	b, all := newRunner(t), openResults(t)
	var table strings.Builder
	fmt.Fprintf(&table, "\n| no hostile clients | none | bound | trim |\n|---|---|---|---|\n")
	for _, data := range []string{
		"sgsc-core19", "hog-core42", "robin-core42", "cambridge-core42-2016-17",
		"resstock-ca-core42", "resstock-tx-core42", "resstock-vt-core42",
	} {
		t.Run(data, func(t *testing.T) {
			errors := map[string][]float64{}
			for seed := range seeds {
				for _, defence := range defences[:3] {
					p := poisoning{Data: data, Attack: "clean", Defence: defence, Seed: seed + 1, Rounds: 160}
					errors[defence] = append(errors[defence], all.get(t, b, p).MAE)
				}
			}
			none := average(errors["none"])
			fmt.Fprintf(&table, "| %s | %.4f |", data, none)
			for _, defence := range defences[1:3] {
				more := average(errors[defence])/none - 1
				fmt.Fprintf(&table, " %.4f (%+.2f %%) |", average(errors[defence]), 100*more)
				if !(more <= most) {
					t.Errorf("%s costs %.2f %%, want at most %.1f %%", defence, 100*more, 100*most)
				}
			}
			fmt.Fprintln(&table)
		})
	}
	t.Log("mean relative MAE of all clients\n" + table.String())
}
