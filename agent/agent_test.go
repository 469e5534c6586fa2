package agent

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"loadstar/agent/state"
	"loadstar/fed"
	"loadstar/fed/client"
	"loadstar/fed/recipe"
	"loadstar/fed/round"
	"loadstar/fed/setup"
	loadstarv1 "loadstar/proto/loadstar/v1"

	"loadstar/nn/kernel"
	"loadstar/series"
	"loadstar/series/synth"
)

// meters generates meters with different spans and gaps, around a daylight-saving change.
func meters(t testing.TB, n int) *series.Dataset {
	t.Helper()
	zone, err := time.LoadLocation("America/Chicago")
	if err != nil {
		t.Fatal(err)
	}
	g, err := synth.New(synth.Config{
		Seed: 3, Meters: n, Start: time.Date(2018, 2, 20, 0, 0, 0, 0, zone), Days: 40, Zone: "America/Chicago",
		Faults: synth.Faults{Gap: 0.01, Outage: 0.01},
	})
	if err != nil {
		t.Fatal(err)
	}
	all := make([]series.Meter, n)
	for i := range all {
		load := make([]float32, g.Len())
		b := g.Building(i, load)
		from := i * 37 % 100
		all[i] = series.Meter{
			ID: fmt.Sprintf("meter-%02d", i), Start: g.Time(from).Unix(), Load: load[from : from+24*(16+i*5%20)],
			Static: []float32{float32(b.FloorArea)},
		}
	}
	return dataset(t, series.Dataset{
		Name: "meters", Generated: true, Interval: time.Hour, Clock: zone, StaticNames: []string{"floor_area"},
		Weather: series.Weather{Start: g.Time(0).Unix(), Names: []string{"temperature"}, Columns: [][]float32{g.Weather().Temperature}},
	}, all...)
}

func dataset(t testing.TB, d series.Dataset, all ...series.Meter) *series.Dataset {
	t.Helper()
	made, err := series.NewDataset(d, all)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// part returns a dataset with every n-th meter of d, starting with the i-th.
func part(t testing.TB, d *series.Dataset, i, n int) *series.Dataset {
	t.Helper()
	var some []series.Meter
	for ; i < d.Len(); i += n {
		some = append(some, d.Meter(i))
	}
	return dataset(t, *d, some...)
}

func namesOf(d *series.Dataset) (all []string) {
	for i := range d.Len() {
		all = append(all, d.Meter(i).ID)
	}
	return all
}

func kernels(t testing.TB) *kernel.Set {
	t.Helper()
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// settings is a plan as a map from dotted keys to values.
type settings map[string]any

// small is a plan that trains in milliseconds.
func small(algorithm string, more settings) settings {
	s := settings{
		"name": "trial", "algorithm": algorithm, "rounds": 4, "schedule.cohort": 5,
		"model.name": "fekri2023", "model.lookback": 4, "model.targets": 2,
		"model.inputs":      []string{"load", "hour", "day_of_week@target", "temperature", "floor_area", "load@target-24h"},
		"model.split.train": 0.7, "model.split.validation": 0.15,
		"client.batch": 8, "client.steps": 3, "evaluate.every": 0,
	}
	maps.Copy(s, more)
	return s
}

// dense is a plan of the model dense with default training: a personal correction, moments kept
// by the client, and weight decay by the client's noise.
func dense(more settings) settings {
	s := small("fedavg", settings{
		"model.name": "dense", "model.lookback": "168h", "model.targets": 1,
		"model.inputs": []string{"recent", "lags", "quartiles", "calendar", "temperature", "lead"},
	})
	maps.Copy(s, more)
	return s
}

// text returns the plan as YAML, with all defaults filled in.
func (s settings) text(t testing.TB) []byte {
	t.Helper()
	tree := map[string]any{}
	for path, v := range s {
		at := tree
		keys := strings.Split(path, ".")
		for _, k := range keys[:len(keys)-1] {
			if at[k] == nil {
				at[k] = map[string]any{}
			}
			at = at[k].(map[string]any)
		}
		at[keys[len(keys)-1]] = v
	}
	b, err := yaml.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	p, err := recipe.Read(b)
	if err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	b, err = recipe.Write(p)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// named is an HTTP transport that adds an agent's name to requests.
type named string

func (n named) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Agent", string(n))
	return http.DefaultTransport.RoundTrip(r)
}

// quick makes an agent retry after short pauses. Its timeouts are long enough for a machine
// under load.
var quick = tuning{first: time.Millisecond, most: 20 * time.Millisecond, announceEvery: 10 * time.Millisecond, seek: 10 * time.Millisecond, call: time.Minute, push: time.Minute, stall: time.Minute, renew: 10 * time.Millisecond}

// testSecret replaces the agents' random secrets, so that tests can repeat their training.
var testSecret = [32]byte{1}

// config returns the configuration of an agent with the given name, server, folder and
// meters.
func config(t testing.TB, name, server, dir string, d *series.Dataset) Config {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, state.SecretFile), fmt.Appendf(nil, "%x", testSecret), 0o600); err != nil {
		t.Fatal(err)
	}
	c := Config{
		Dir: dir, Server: server, Client: &http.Client{Transport: named(name)}, Dataset: d, Kernel: kernels(t), Chunk: 1 << 10,
		tuning: &quick,
	}
	if os.Getenv("LOADSTAR_LOG") != "" {
		c.Log = slog.New(slog.NewTextHandler(os.Stderr, nil)).With("agent", name)
	}
	return c
}

// replay trains the counted clients of every logged round again, without agents or a network.
// It checks the shared weights after every round. It returns the personal values that each
// client must have at the end.
func replay(t testing.TB, text []byte, d *series.Dataset, log []merged) (kept map[string][]float32) {
	t.Helper()
	p, parts, server := compose(t, text, d.Len())
	q, err := recipe.Frame(p, d)
	if err != nil {
		t.Fatal(err)
	}
	needs := parts.Needs
	s, err := setup.New(p, q, d.Len())
	if err != nil {
		t.Fatal(err)
	}
	if s, err = s.OfAgent(testSecret); err != nil {
		t.Fatal(err)
	}
	w := s.NewWorker(kernels(t))
	fold := round.NewFold(round.Rules{Needs: needs, Scale: parts.Scale, Control: parts.Control, Weight: parts.Weight, WeightControl: parts.WeightControl})
	kept = map[string][]float32{}
	for _, m := range log {
		if server.Version() != m.version {
			t.Fatalf("round %d was trained from version %d, want %d", m.round, m.version, server.Version())
		}
		for _, name := range m.counted {
			meter := d.Meter(slices.Index(namesOf(d), name))
			c := client.Client{ID: fed.ClientID(name), Data: []series.Examples{q.Examples(meter, q.Framer.Ranges(meter))}, Kept: kept[name]}
			if c.Kept == nil {
				c.First, c.Kept = true, s.InitialKept(w)
			}
			var u fed.Update
			task := server.Task(int(m.round))
			task.Run = "run-1"
			if err := w.Train(context.Background(), &c, task, &u); err != nil {
				t.Fatal(err)
			}
			if err := fold.Add(&u, server.Shared()); err != nil {
				t.Fatal(err)
			}
			kept[name] = c.Kept
		}
		if err := server.Merge(int(m.round), fold, nil); err != nil {
			t.Fatal(err)
		}
		fold.Reset()
		if !sameBits(server.Shared(), m.shared) {
			t.Fatalf("round %d: the shared weights differ", m.round)
		}
	}
	return kept
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// checkKept checks that an agent's folder holds the expected personal values of its
// clients.
func checkKept(t testing.TB, run string, dir string, d *series.Dataset, want map[string][]float32) {
	t.Helper()
	s, err := state.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	left, err := s.Results()
	if err != nil || len(left) > 0 {
		t.Errorf("%d results are left: %v", len(left), err)
	}
	for _, name := range namesOf(d) {
		got := make([]float32, len(want[name]))
		k, err := s.Load(run, name, got)
		if err != nil {
			t.Fatal(err)
		}
		if k.First != (want[name] == nil) || !sameBits(got, want[name]) {
			t.Errorf("client %s keeps something else (first: %v)", name, k.First)
		}
	}
}

// settled waits until no agent has an undecided result.
func (g *gateway) settled(t testing.TB, limit time.Duration) {
	t.Helper()
	select {
	case <-g.done:
	case <-time.After(limit):
		g.mu.Lock()
		defer g.mu.Unlock()
		t.Fatalf("round %d of %d after %s; asked %v, late %v, held %v, declined %v, heard last %v",
			g.round, g.plan.Rounds, limit, g.asked, g.slow, g.held, g.declined, g.said[max(len(g.said)-4, 0):])
	}
	g.mu.Lock()
	g.chaos, g.said = chaos{}, nil
	g.mu.Unlock()
	for end := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		g.mu.Lock()
		quiet := true
		for agent := range g.agents {
			quiet = quiet && g.idle(agent)
		}
		g.mu.Unlock()
		if quiet {
			return
		}
		if time.Now().After(end) {
			t.Fatal("agents still have something to do")
		}
	}
}

// idle reports whether an agent had nothing to do in its last two check-ins. The caller must
// hold the lock.
func (g *gateway) idle(agent string) bool {
	n := 0
	for _, x := range slices.Backward(g.said) {
		if x.agent != agent {
			continue
		}
		if len(x.Training)+len(x.Pushed) > 0 {
			return false
		}
		if n++; n == 2 {
			return true
		}
	}
	return false
}

// start runs an agent until stop is called or the test ends.
func start(t testing.TB, c Config) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, c) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("the agent ended with %v", err)
			}
		case <-time.After(2 * time.Minute):
			t.Error("the agent does not stop")
		}
	}
	t.Cleanup(stop)
	return stop
}

// variants returns plans that differ in what clients store and send.
func variants() map[string]settings {
	return map[string]settings{
		"fedavg":       small("fedavg", nil),
		"fedavg, head": small("fedavg", settings{"partition": "head"}),
		"kept, head": small("fedavg", settings{
			"partition": "head", "client.moments": "kept", "client.lr_end": 1e-5, "client.warmup": 3, "client.weight_decay.all": 0.5,
		}),
		"own, head":          small("fedprox", settings{"partition": "head", "client.begin": "own", "client.mu": 0.5, "client.moments": "kept"}),
		"averaged, head":     small("fedavg", settings{"partition": "head", "client.moments": "averaged"}),
		"dense":              dense(nil),
		"dense, averaged":    dense(settings{"client.moments": "averaged"}),
		"dense, a day":       dense(settings{"model.targets": 24}),
		"scaffold, head":     small("scaffold", settings{"partition": "head", "client.lr": 0.05}),
		"scaffold, examples": small("scaffold", settings{"partition": "head", "client.lr": 0.05, "server.weighting": "examples"}),
		"adaptive, states":   small("fedavgadaptive", settings{"partition": "head", "server.states": "client"}),
		"fedmeta, query":     small("fedmeta", settings{"client.query": 0.2}),
		"pfedme":             small("pfedme", settings{"schedule.cohort": 5}),
		"fedadam, epochs": small("fedadam", settings{
			"partition": "lstm_l0", "client.epochs": 1, "client.steps": 0, "client.batch": 64,
		}),
		"fednorm": small("fednorm", settings{"schedule.kind": "synchronous", "partition": "head", "server.loss": "trained"}),
	}
}

// TestSameBits checks that several agents on a network without faults compute the same bits
// as a replay of the same rounds without agents: shared weights and personal values.
func TestSameBits(t *testing.T) {
	d := meters(t, 7)
	for name, plan := range variants() {
		for _, fold := range []bool{false, true} {
			if fold && (name == "fednorm" || name == "adaptive, states") || testing.Short() && !strings.HasSuffix(name, ", head") {
				// fednorm and fedavgadaptive need every individual update, so they have no sums to
				// test. Under the race detector, testing the head plans is enough.
				continue
			}
			t.Run(fmt.Sprintf("%s, fold %v", name, fold), func(t *testing.T) {
				t.Parallel()
				g := newGateway(t, plan, namesOf(d), 5, fold, 1)
				var dirs []string
				const agents = 2
				for i := range agents {
					dirs = append(dirs, t.TempDir())
					c := config(t, fmt.Sprint("agent ", i), g.http.URL, dirs[i], part(t, d, i, agents))
					c.Workers = 1 + i
					if strings.HasPrefix(name, "dense") {
						c.Chunk = 32 << 10 // results are large, and other plans have results of many chunks
					}
					defer start(t, c)()
				}
				g.settled(t, 5*time.Minute)
				kept := replay(t, g.text, d, g.log)
				for i, dir := range dirs {
					// Check the folder after the agent has stopped, because a running agent
					// locks it.
					t.Cleanup(func() { checkKept(t, g.run, dir, part(t, d, i, agents), kept) })
				}
				if sums := g.forms[loadstarv1.Form_FORM_SUM]; (sums > 0) != g.fold {
					t.Errorf("%d sums", sums)
				}
				for what, n := range g.gets {
					if n != 1 {
						t.Errorf("%s was fetched %d times", what, n)
					}
				}
				if len(g.declined) > 0 {
					t.Error(g.declined)
				}
			})
		}
	}
}

// TestChaos checks that the outcome depends only on which clients were counted. The test
// drops requests, replies, results and connections, closes rounds early, and stops agents
// at random points.
func TestChaos(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	d := meters(t, 7)
	restarts := 12
	if testing.Short() {
		restarts = 4
	}
	var resumed atomic.Int64 // number in all plans, because some plans have too few downloads for one to be cut
	t.Cleanup(func() {
		if resumed.Load() == 0 {
			t.Error("no download was resumed")
		}
	})
	for name, plan := range variants() {
		for _, fold := range []bool{false, true} {
			if fold && name == "fednorm" || testing.Short() && name != "scaffold, head" || strings.HasPrefix(name, "dense, ") {
				continue // one plan of dense is enough, because its results are large
			}
			t.Run(fmt.Sprintf("%s, fold %v", name, fold), func(t *testing.T) {
				t.Parallel()
				rng := rand.New(rand.NewPCG(seed, uint64(len(name))))
				g := newGateway(t, plan, namesOf(d), 5, fold, seed)
				g.inject(chaos{request: 0.1, reply: 0.15, cut: 0.5, forget: 0.3, late: 0.4, unannounced: 0.05, slowCount: 0.5})
				const agents = 2
				var dirs []string
				ends := make(chan struct{}, agents)
				for i := range agents {
					dirs = append(dirs, t.TempDir())
					c := config(t, fmt.Sprint("agent ", i), g.http.URL, dirs[i], part(t, d, i, agents))
					c.Workers = 1 + i
					pauses := make([]time.Duration, restarts)
					for k := range pauses {
						pauses[k] = time.Duration(rng.ExpFloat64() * float64(60*time.Millisecond))
					}
					go func() {
						defer func() { ends <- struct{}{} }()
						for _, p := range pauses {
							ctx, cancel := context.WithTimeout(context.Background(), p)
							err := Run(ctx, c)
							cancel()
							if err != nil {
								t.Error(err)
							}
						}
					}()
				}
				for range agents {
					<-ends
				}
				var stops []func()
				for i := range agents {
					stops = append(stops, start(t, config(t, fmt.Sprint("agent ", i), g.http.URL, dirs[i], part(t, d, i, agents))))
				}
				g.settled(t, 5*time.Minute)
				for _, stop := range stops {
					stop()
				}
				kept := replay(t, g.text, d, g.log)
				for i, dir := range dirs {
					checkKept(t, g.run, dir, part(t, d, i, agents), kept)
				}
				resumed.Add(int64(g.ranges))
				t.Logf("calls %v, %d resumed downloads, %v", g.counts, g.ranges, g.forms)
				if parts, _ := filepath.Glob(filepath.Join(dirs[0], "blobs", "*")); len(parts) > blobsKept {
					t.Errorf("%d blobs are kept", len(parts))
				}
			})
		}
	}
}

func newSessionOf(t testing.TB, d *series.Dataset, plan settings) (*session, error) {
	t.Helper()
	return newSession(plan.text(t), 9, d, kernels(t), 1, 1<<30, &anyPlan, testSecret)
}
