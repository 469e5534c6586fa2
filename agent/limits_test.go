package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"loadstar/fed/recipe"
	"loadstar/fed/round"
	loadstarv1 "loadstar/proto/loadstar/v1"
	"loadstar/series"
)

// TestDeclines checks that an agent declines tasks that it cannot do, and continues. The reason
// that it gives must contain no readings.
func TestDeclines(t *testing.T) {
	d := meters(t, 4)
	short := d.Meter(3)
	short.Load = short.Load[:5]
	d = dataset(t, *d, d.Meter(0), d.Meter(1), d.Meter(2), short)
	s := newStub(t)
	c := config(t, "a", s.http.URL, t.TempDir(), d)
	c.Memory = 64 << 20
	stop := start(t, c)

	plan := func(more settings) settings { return small("fedavg", more) }
	huge := []byte("far more than was said")
	for name, x := range map[string]struct {
		plan settings
		edit func(k *loadstarv1.Task)
		want string
	}{
		"no YAML":            {edit: func(k *loadstarv1.Task) { k.Plan = s.put([]byte("{algorithm: [\x00")) }, want: "cannot read the plan"},
		"noise":              {edit: func(k *loadstarv1.Task) { k.Plan = s.put(bytes.Repeat([]byte{0xff, 0xfe, 7}, 999)) }, want: "cannot read the plan"},
		"another algorithm":  {edit: func(k *loadstarv1.Task) { k.Plan = s.put([]byte("algorithm: fedsomething")) }, want: `algorithm "fedsomething" is not known`},
		"an endless plan":    {edit: func(k *loadstarv1.Task) { k.Plan = s.put(bytes.Repeat([]byte("# plan\n"), 20000)) }, want: "blob"},
		"a huge batch":       {plan: plan(settings{"client.batch": 1 << 30}), want: "training takes"},
		"a large batch":      {plan: plan(settings{"client.batch": 1 << 20}), want: "training takes"},
		"a huge model":       {plan: plan(settings{"model.name": "bose2023", "model.lookback": 800}), want: "training takes"},
		"a far horizon":      {plan: plan(settings{"model.horizon": 1 << 30}), want: "model.horizon"},
		"fleet scaling":      {plan: plan(settings{"model.scaling": "fleet"}), want: "model.scaling"},
		"an unknown input":   {plan: plan(settings{"model.inputs": []string{"load", "moon"}}), want: "no moon"},
		"inputs left open":   {edit: func(k *loadstarv1.Task) { k.Plan = s.put([]byte("{algorithm: fedavg, schedule: {cohort: 2}}")) }, want: "model.inputs"},
		"a small fleet":      {edit: func(k *loadstarv1.Task) { k.Fleet = 2 }, want: "only 2 clients"},
		"no fleet":           {edit: func(k *loadstarv1.Task) { k.Fleet = 0 }, want: "fleet"},
		"a huge fleet":       {edit: func(k *loadstarv1.Task) { k.Fleet = math.MaxInt64 }, want: "fleet"},
		"a round below 0":    {edit: func(k *loadstarv1.Task) { k.Round = -1 }, want: "round -1"},
		"a round beyond all": {edit: func(k *loadstarv1.Task) { k.Round = math.MaxInt64 }, want: "out of range"},
		"no blob":            {edit: func(k *loadstarv1.Task) { k.Weights = strings.Repeat("0", 64) }, want: "the server does not have it"},
		"a path":             {edit: func(k *loadstarv1.Task) { k.Weights = "../../" + strings.Repeat("0", 58) }, want: "is not a SHA-256"},
		"a long name":        {edit: func(k *loadstarv1.Task) { k.Weights = strings.Repeat("0", 5000) }, want: "is not a SHA-256"},
		"capitals":           {edit: func(k *loadstarv1.Task) { k.Weights = strings.ToUpper(k.Weights) }, want: "is not a SHA-256"},
		"too few weights":    {edit: func(k *loadstarv1.Task) { k.Weights = s.put(make([]byte, 400)) }, want: "has 400 bytes"},
		"too many weights":   {edit: func(k *loadstarv1.Task) { k.Weights = s.put(make([]byte, 4<<20)) }, want: "announces 4194304 bytes"},
		"another hash": {edit: func(k *loadstarv1.Task) {
			s.mu.Lock()
			defer s.mu.Unlock()
			spoilt := bytes.Clone(s.blobs[k.Weights])
			spoilt[9]++
			k.Weights = strings.Repeat("a", 64)
			s.blobs[k.Weights] = spoilt
		}, want: "a different hash"},
		"weights without end": {edit: func(k *loadstarv1.Task) { k.Weights = strings.Repeat("e", 64) }, want: "sent more than"},
		"control missing":     {plan: small("scaffold", nil), edit: func(k *loadstarv1.Task) { k.Control = "" }, want: "control variates"},
		"control for nothing": {edit: func(k *loadstarv1.Task) { k.Control = s.put(huge) }, want: "control variates"},
		"a run of no name":    {edit: func(k *loadstarv1.Task) { k.Run = "a run of no name\x00" }, want: "zero byte"},
		"nobody's client":     {edit: func(k *loadstarv1.Task) { k.Clients = []string{"meter-77"} }, want: "not one of this agent's clients"},
		"no examples":         {edit: func(k *loadstarv1.Task) { k.Clients = []string{"meter-03"} }, want: "no complete training example"},
		"divergence":          {plan: plan(settings{"client.optimizer": "sgd", "client.lr": 1e30}), want: "training diverged"},
		"too large a change":  {plan: plan(settings{"client.optimizer": "sgd", "client.lr": 1000, "client.steps": 1, "server.bound": 0.05}), want: "outside the plan's bounds"},
		"a plan without server": {edit: func(k *loadstarv1.Task) {
			k.Plan = s.put(settings{"algorithm": "local", "model.name": "fekri2023", "model.inputs": []string{"load"}}.text(t))
		}, want: "needs no server"},
	} {
		if x.plan == nil {
			x.plan = plan(nil)
		}
		s.mu.Lock()
		s.serve = func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.HasSuffix(r.URL.Path, strings.Repeat("e", 64)) {
				return false
			}
			for { // an endless response without a content length
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					return true
				}
			}
		}
		s.mu.Unlock()
		var k *loadstarv1.Task
		if x.plan["model.scaling"] == "fleet" || x.plan["model.lookback"] == 800 || x.plan["client.batch"] == 1<<30 || x.plan["model.horizon"] == 1<<30 {
			k = s.task(t, name, 0, plan(nil), 9, "meter-00") // a real server refuses such a run
			k.Plan = s.put(x.plan.text(t))
		} else {
			k = s.task(t, name, 0, x.plan, 9, "meter-00")
		}
		if x.edit != nil {
			x.edit(k)
		}
		s.give(k)
		reason := s.declined(t, k.Run)
		if !strings.Contains(reason, x.want) || len(reason) > 600 {
			t.Errorf("%s: declined because %q", name, reason)
		}
	}

	// After all these tasks the agent still trains the clients that it can train.
	k := s.task(t, "good", 3, plan(settings{"partition": "head"}), 9, "meter-03", "meter-00", "meter-55", "meter-01", "meter-00")
	s.give(k)
	s.wait(t, "results of two clients", func() bool {
		done := map[string]bool{}
		for _, r := range s.pushes {
			if r.Run == "good" && r.Offset+int64(len(r.Chunk)) == r.Size {
				done[r.Shares[0].Client] = true
			}
		}
		return len(done) == 2 && done["meter-00"] && done["meter-01"]
	})
	stop()
}

// TestSumOfFew checks that the agent sends updates individually, not as a sum, if it can train
// only two of three clients.
func TestSumOfFew(t *testing.T) {
	d := meters(t, 4)
	short := d.Meter(3)
	short.Load = short.Load[:5]
	d = dataset(t, *d, d.Meter(0), d.Meter(1), d.Meter(2), short)
	s := newStub(t)
	stop := start(t, config(t, "a", s.http.URL, t.TempDir(), d))
	for i, x := range []struct {
		clients []string
		trained int
		forms   map[loadstarv1.Form]int
	}{
		{[]string{"meter-00", "meter-03", "meter-01"}, 2, map[loadstarv1.Form]int{loadstarv1.Form_FORM_UPDATE: 2}},
		{[]string{"meter-00", "meter-02", "meter-03", "meter-01"}, 3, map[loadstarv1.Form]int{loadstarv1.Form_FORM_SUM: 1}},
		{[]string{"meter-02", "meter-01"}, 2, map[loadstarv1.Form]int{loadstarv1.Form_FORM_UPDATE: 2}},
	} {
		run := fmt.Sprint("run ", i)
		k := s.task(t, run, 0, small("fedavg", nil), 9, x.clients...)
		k.Fold = true
		s.give(k)
		forms := map[loadstarv1.Form]int{}
		s.wait(t, "results", func() bool {
			clear(forms)
			n := 0
			for _, r := range s.pushes {
				if r.Run == run && r.Offset+int64(len(r.Chunk)) == r.Size {
					forms[r.Form]++
					n += len(r.Shares)
				}
			}
			return n >= x.trained
		})
		if fmt.Sprint(forms) != fmt.Sprint(x.forms) {
			t.Errorf("%v: %v, want %v", x.clients, forms, x.forms)
		}
	}
	stop()
}

// TestFootprint checks the memory estimate, which protects the agent from plans that are too
// large. It must never be less than the memory that training uses.
func TestFootprint(t *testing.T) {
	d := meters(t, 3)
	for name, plan := range map[string]settings{
		"fekri2023":       small("fedavg", nil),
		"bose2023":        small("fedavg", settings{"model.name": "bose2023", "model.lookback": 12, "model.targets": 1, "client.batch": 64}),
		"bose2023, head":  small("scaffold", settings{"model.name": "bose2023", "partition": "head"}),
		"bose2024, wide":  small("fedprox", settings{"model.name": "bose2024", "model.lookback": 48, "model.targets": 24, "client.batch": 500}),
		"own, kept":       small("fedprox", settings{"model.name": "bose2023", "client.begin": "own", "client.moments": "kept"}),
		"pfedme":          small("pfedme", settings{"model.name": "bose2023"}),
		"fedmeta":         small("fedmeta", settings{"model.name": "bose2024", "client.steps": 2}),
		"amsgrad, top":    small("fedavgm", settings{"model.name": "bose2023", "partition": "head+top", "client.optimizer": "amsgrad"}),
		"dense":           dense(settings{"client.batch": 64}),
		"dense, averaged": dense(settings{"client.moments": "averaged", "client.batch": 64}),
		"dense, a day":    dense(settings{"model.targets": 24, "client.batch": 500}),
		"dense, levels":   dense(settings{"model.quantiles": []float64{0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99}}),
		"dense, amsgrad":  dense(settings{"client.optimizer": "amsgrad"}),
		"fedsgd, pinball": small("fedsgd", settings{"model.name": "bose2023", "model.loss": "pinball", "model.quantiles": []float64{0.1, 0.5, 0.9}}),
		"fedadam, epochs": small("fedadam", settings{"model.name": "bose2023", "client.epochs": 1, "client.steps": 0, "client.batch": 100}),
	} {
		if name == "fedsgd, pinball" {
			delete(plan, "client.steps")
		}
		text := plan.text(t)
		p, _ := recipe.Read(text)
		q, err := recipe.Frame(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, workers := range []int{1, 3} {
			shared, meter := q.FeatureBytes(d)
			said := footprint(p, q, workers) + shared + int64(d.Len())*meter
			s := newStub(t)
			c := config(t, "a", s.http.URL, t.TempDir(), d)
			c.Workers = workers
			a, err := newAgent(c)
			if err != nil {
				t.Fatal(err)
			}
			k := s.task(t, "run", 0, plan, 9, namesOf(d)...)
			k.Fold = true
			a.worklist.add(k)
			j := a.worklist.next(context.Background())
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			if err := a.do(context.Background(), j); err != nil {
				t.Fatal(err)
			}
			runtime.ReadMemStats(&after)
			a.store.Close()
			if results := len(a.worklist.results); results != 1 {
				t.Fatalf("%s: %d results, %v", name, results, a.worklist.declines)
			}
			took := int64(after.TotalAlloc - before.TotalAlloc)
			// The estimate does not include the framer and the HTTP client.
			const others = 3 << 20
			if took > said+others {
				t.Errorf("%s: %d workers took %d KB, said to be %d", name, workers, took>>10, said>>10)
			}
			t.Logf("%s: %d workers took %d KB, said to be %d", name, workers, took>>10, said>>10)
		}
	}
}

// TestBlobOnDisk checks that blobs in the disk cache are verified when they are read, and that
// a damaged blob is downloaded again.
func TestBlobOnDisk(t *testing.T) {
	s := newStub(t)
	b := &blobs{dir: t.TempDir(), server: s.http.URL + "/", client: http.DefaultClient, stall: quick.stall}
	data := round.AppendFloats(nil, make([]float32, 500))
	hash := s.put(data)
	ctx := context.Background()
	gets := 0
	s.serve = func(http.ResponseWriter, *http.Request) bool { gets++; return false }
	for i, spoil := range []func(path string){
		func(string) {},
		func(string) {},
		func(path string) { overwrite(t, path, data[:100]) },
		func(path string) { overwrite(t, path, append(bytes.Clone(data[:1999]), 1)) },
		func(path string) { overwrite(t, path, append(bytes.Clone(data), 1)) },
		func(path string) { rename(t, path, path+".part") }, // complete, but never renamed
		func(path string) { rename(t, path, path+".part"); overwrite(t, path+".part", data[:7]) },
	} {
		spoil(b.dir + "/" + hash)
		got, err := b.get(ctx, hash, int64(len(data)), true)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d: %v", i, err)
		}
	}
	if gets != 6 {
		t.Errorf("fetched %d times", gets)
	}
	// A partial file that does not match is downloaded again, in two attempts.
	rename(t, b.dir+"/"+hash, b.dir+"/"+hash+".part")
	overwrite(t, b.dir+"/"+hash+".part", make([]byte, 3000))
	_, first := b.get(ctx, hash, int64(len(data)), true)
	got, err := b.get(ctx, hash, int64(len(data)), true)
	if first == nil || err != nil || !bytes.Equal(got, data) {
		t.Error(first, err)
	}
	for i := range 30 {
		other := fmt.Appendf(nil, "blob %d", i)
		sum := sha256.Sum256(other)
		s.put(other)
		if _, err := b.get(ctx, hex.EncodeToString(sum[:]), 100, false); err != nil {
			t.Error(err)
		}
		if n := countFiles(t, b.dir); n > blobsKept {
			t.Fatalf("%d blobs are kept", n)
		}
	}
}

// TestUnusable checks that Run returns an error at once if its configuration or the agent's
// data cannot be used.
func TestUnusable(t *testing.T) {
	d := meters(t, 1)
	m := d.Meter(0)
	for name, spoil := range map[string]func(c *Config){
		"no dataset": func(c *Config) { c.Dataset = nil },
		"no meters":  func(c *Config) { c.Dataset = dataset(t, *d) },
		"a zero": func(c *Config) {
			c.Dataset = dataset(t, *d, series.Meter{ID: "a\x00b", Load: m.Load, Static: m.Static})
		},
		"no name":      func(c *Config) { c.Dataset = dataset(t, *d, series.Meter{Load: m.Load, Static: m.Static}) },
		"not UTF-8":    func(c *Config) { c.Dataset = dataset(t, *d, series.Meter{ID: "a\xff", Load: m.Load, Static: m.Static}) },
		"no server":    func(c *Config) { c.Server = "" },
		"no way there": func(c *Config) { c.Client = nil },
		"no folder":    func(c *Config) { c.Dir = "/dev/null/agent" },
	} {
		c := config(t, "a", "http://localhost:1", t.TempDir(), d)
		spoil(&c)
		if err := Run(context.Background(), c); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
