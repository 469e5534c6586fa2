package fleet

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"time"

	"loadstar/fed/mask"
	"loadstar/fed/member"
	"loadstar/fed/recipe"
	"loadstar/fed/round"
	"loadstar/internal/proc"
	"loadstar/keeper"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/rig/bench"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

// PrivateConfig selects what [Private] measures.
type PrivateConfig struct {
	Backends
	Agents  int
	Turns   int     // repetitions
	Seconds float64 // length of each measurement of the server
	Rate    float64 // calls per second of the whole fleet
	Members []int   // results in the releases of the keeper that is measured alone
}

func (c *PrivateConfig) check() error {
	f := Config{Backends: c.Backends, Agents: c.Agents, Cohort: privateCohort, Turns: c.Turns, Seconds: c.Seconds, Rate: c.Rate}
	if len(c.Members) == 0 || slices.Min(c.Members) < privateLeast || slices.Max(c.Members) > 100_000 {
		return fmt.Errorf("--members must be %d to 100000", privateLeast)
	}
	return f.check()
}

// PrivateResult contains the cost of private rounds. CPU times per update are in milliseconds.
// Repeated measurements are given as medians.
type PrivateResult struct {
	Agents int `json:"agents"`
	Shared int `json:"shared"`
	// Agent is the CPU time for encoding and masking an update.
	Agent float64 `json:"agent_ms"`
	// Ratio is the server's CPU time for an update of a private round without a check, divided
	// by the server's CPU time for an update of a plain round. CheckRatio is the same ratio
	// with check norm.
	Ratio      float64 `json:"server_ratio"`
	CheckRatio float64 `json:"server_ratio_check"`
	Plain      float64 `json:"server_plain_ms"`
	// Keeper contains the CPU time of releases in seconds, in the order of Members.
	Keeper  []float64 `json:"keeper_s"`
	Members []int     `json:"keeper_members"`
	// PushBytes is the mean size of a call with a masked result, and PlanBytes the size of the
	// result that plan explain prints.
	PushBytes float64 `json:"push_bytes"`
	PlanBytes int64   `json:"plan_bytes"`
	// Wait is the additional time, in seconds, that a private round takes from its close to the
	// opening of the next round, compared with a plain round. CheckWait is the same time with
	// check norm.
	Wait      float64 `json:"merge_wait_s"`
	CheckWait float64 `json:"merge_wait_check_s"`
}

const (
	privateLeast  = 2
	privateCohort = 0.7
	benchKeeper   = "bench"
	benchFleet    = "bench"
)

// The kinds of rounds that are compared.
const (
	formPlain = iota
	formMasked
	formChecked
	forms
)

// privatePlan returns the plan for a kind of round.
func privatePlan(form, agents int) string {
	text := fmt.Sprintf(`
name: bench
algorithm: fedavg
model: {name: dense, targets: 24h}
rounds: 1000000
schedule: {cohort: %d, over_selection: %g}
`, max(int(privateCohort*float64(agents)), privateLeast), overSelection)
	if form == formPlain {
		return text
	}
	check := "none"
	if form == formChecked {
		check = "norm"
	}
	// The cohort is drawn from all clients, so there is no quorum for each cell.
	return text + fmt.Sprintf("privacy: {mode: private, keepers: [%s], least: %d, quorum: 0.01, check: %s}\n", benchKeeper, privateLeast, check)
}

// keeperOptions are the settings of the benchmark's keepers, which immediately accept as a
// member everyone whom the server names.
func keeperOptions() keeper.Options {
	return keeper.Options{Fleet: benchFleet, Rules: &v1.KeeperRules{Least: privateLeast, Cell: 100}}
}

// Private measures the cost of private rounds for agents, the server and keepers. Plain and
// private rounds alternate. It returns an error in the same cases as [Run].
func Private(ctx context.Context, c PrivateConfig, progress bench.Progress) (*PrivateResult, error) {
	if err := c.check(); err != nil {
		return nil, &UsageError{err}
	}
	t, err := settled(privatePlan(formMasked, c.Agents), c.Agents)
	if err != nil {
		return nil, err
	}
	r := &PrivateResult{Agents: c.Agents, Shared: t.Shared, Members: c.Members, PlanBytes: t.Setup().Traffic().Up}
	if r.Agent, err = agentCost(t); err != nil {
		return nil, err
	}
	if r.Keeper, err = keeperCosts(ctx, t, c.Members, progress); err != nil {
		return nil, err
	}
	return r, r.measureServer(ctx, c, progress)
}

// measureServer compares the kinds of rounds on one server.
func (r *PrivateResult) measureServer(ctx context.Context, c PrivateConfig, progress bench.Progress) error {
	bed, err := newTestbed(ctx, c.Backends, c.Agents, false, progress)
	if err != nil {
		return err
	}
	defer bed.close()
	k, err := bed.serveKeeper(ctx)
	if err != nil {
		return err
	}
	defer k.close()
	var cpu, wait [forms][]float64
	var pushed []float64
	for turn := range c.Turns {
		for form := range forms {
			progress(turn*forms+form, c.Turns*forms, "")
			x, err := bed.measureForm(ctx, c, form, k)
			if err != nil {
				return fmt.Errorf("rounds of form %d: %w", form, err)
			}
			cpu[form], wait[form] = append(cpu[form], x.cpu), append(wait[form], x.wait)
			if form != formPlain {
				pushed = append(pushed, x.pushed)
			}
		}
	}
	// Each ratio compares rounds of the same turn, because the speed of a shared machine varies.
	over := func(form int) float64 {
		ratios := make([]float64, c.Turns)
		for i := range ratios {
			ratios[i] = cpu[form][i] / cpu[formPlain][i]
		}
		return bench.Median(ratios)
	}
	r.Ratio, r.CheckRatio, r.Plain = over(formMasked), over(formChecked), bench.Median(cpu[formPlain])
	r.Wait = bench.Median(wait[formMasked]) - bench.Median(wait[formPlain])
	r.CheckWait = bench.Median(wait[formChecked]) - bench.Median(wait[formPlain])
	r.PushBytes = bench.Median(pushed)
	return nil
}

// formCost is the cost of rounds of one kind.
type formCost struct{ cpu, wait, pushed float64 }

// measureForm starts the server, and measures a run of one kind.
func (b *testbed) measureForm(ctx context.Context, c PrivateConfig, form int, k *servedKeeper) (x formCost, err error) {
	if err := b.serve(ctx, "--set", "agents.poll=50ms", "--set", fmt.Sprintf("limits.rate=%g", c.Rate), "--set", "keepers="+k.address); err != nil {
		return x, err
	}
	// Agents enrol with the keepers that the server announces.
	err = b.await(ctx, "an answer of the keeper", time.Minute, func(m map[string]float64) bool {
		return m[`loadstar_keeper_calls_total{call="state",keeper="`+benchKeeper+`",outcome="answered"}`] > 0
	})
	if err != nil {
		return x, err
	}
	run, err := b.start(ctx, privatePlan(form, c.Agents), c.Agents)
	if err != nil {
		return x, err
	}
	before := b.fleet.Stats()
	b.fleet.Go()
	err = b.await(ctx, "the first round with all agents", 3*time.Minute, func(m map[string]float64) bool {
		return b.fleet.Present() == c.Agents && m[b.merged] > 0
	})
	if err != nil {
		return x, err
	}
	s := &Size{}
	f, err := s.turn(ctx, b, time.Duration(c.Seconds*float64(time.Second)))
	if err != nil {
		return x, err
	}
	if err := b.rest(ctx); err != nil {
		return x, err
	}
	seen := b.fleet.Stats().Since(before)
	x.cpu, x.pushed = f.CPU, float64(seen.Pushed)/float64(seen.Push.Len())
	if x.wait, err = b.mergeTime(ctx, run); err != nil {
		return x, err
	}
	return x, b.sound(ctx, run, seen)
}

// mergeTime returns the median time in seconds from the close of a run's round to the opening of
// the next one.
func (b *testbed) mergeTime(ctx context.Context, run string) (float64, error) {
	r, err := b.operator.GetRun(ctx, &v1.GetRunRequest{Run: run, Rounds: 1000})
	if err != nil {
		return 0, fmt.Errorf("read the run: %w", err)
	}
	opened, waits := map[int64]int64{}, []float64(nil)
	for _, x := range r.Rounds {
		opened[x.Round] = x.Opened
	}
	for _, x := range r.Rounds {
		if next := opened[x.Round+1]; x.State == "merged" && next > 0 {
			waits = append(waits, float64(next-x.Closed)/1e3)
		}
	}
	if len(waits) == 0 {
		return 0, errors.New("no round was followed by another round")
	}
	return bench.Median(waits), nil
}

// servedKeeper is a keeper that the server can call.
type servedKeeper struct {
	address string // address in the syntax of server.yaml
	close   func()
}

// serveKeeper stops the server, reads the key by which keepers recognise it, and serves a keeper in
// this process.
func (b *testbed) serveKeeper(ctx context.Context) (*servedKeeper, error) {
	b.stop()
	url := cmp.Or(b.url, "sqlite:"+filepath.Join(b.dir, "ledger.db"))
	l, err := ledger.Open(ctx, url)
	if err != nil {
		return nil, err
	}
	key, err := l.KeepersKey(ctx)
	if err = errors.Join(err, l.Close()); err != nil {
		return nil, err
	}
	dir := filepath.Join(b.dir, "keeper")
	pin, err := keeper.Create(dir)
	if err != nil {
		return nil, err
	}
	k, err := keeper.Open(dir, keeperOptions())
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, k.Close())
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = k.Serve(ctx, listener, []member.Pin{member.PinOf(key.Public().(ed25519.PublicKey))}) // the server has checked what was released
	}()
	return &servedKeeper{fmt.Sprintf("%s=https://%s %s", benchKeeper, listener.Addr(), pin), func() {
		stop()
		<-ended
		_ = k.Close()
	}}, nil
}

// settled returns the terms of a run with the given plan, that all clients train.
func settled(plan string, clients int) (*terms.Terms, error) {
	p, err := recipe.Read([]byte(plan))
	if err != nil {
		return nil, err
	}
	if p, err = terms.Settle(p, int64(clients), modelInputs, []time.Duration{time.Hour}); err != nil {
		return nil, err
	}
	text, err := recipe.Write(p)
	if err != nil {
		return nil, err
	}
	return terms.Read(string(text), "", int64(clients))
}

// agentCost returns the CPU time in milliseconds for encoding and masking an update.
func agentCost(t *terms.Terms) (float64, error) {
	const masks, repeats = 500, 5
	r := virtualResult(t, 1)
	fold := round.NewFold(t.Rules)
	if err := t.Add(fold, r, nil); err != nil {
		return 0, err
	}
	v := t.Rules.Vector(t.Shared)
	c := &mask.Context{Fleet: benchFleet, Run: "run", Agent: "agent", Clients: 1, Length: int64(v.Len())}
	key, nonce := mask.NewKey(), mask.NewNonce()
	var took []float64
	for range repeats {
		begun := proc.CPUTime()
		for range masks {
			x, err := v.Encode(fold, &round.Sizes{})
			if err != nil {
				return 0, err
			}
			seed := key.Seed(c, nonce)
			seed.Add(x)
			round.AppendVector(make([]byte, 0, 8*len(x)), x)
		}
		took = append(took, 1e3*(proc.CPUTime()-begun).Seconds()/masks)
	}
	return bench.Median(took), nil
}
