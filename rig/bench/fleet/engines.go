package fleet

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"loadstar/fed/round"
	"loadstar/internal/proc"
	"loadstar/rig/bench"
	"loadstar/server/directory"
	"loadstar/server/gateway"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

// sizes maps the size of a result to the part of a plan that produces it: bose2023 with a
// personal head, the default model, and bose2023 with all layers shared.
var sizes = map[string]string{
	"24k":  "model: {name: " + bench.Model + "}\npartition: head",
	"95k":  "model: {name: dense}",
	"170k": "model: {name: " + bench.Model + "}\npartition: none",
}

const knownSizes = "24k, 95k or 170k"

// overSelection is the share of clients that a round asks in addition to those that it needs,
// so that it does not wait for the slowest clients.
const overSelection = 0.1

// planOf returns a plan whose run does not end by itself within a benchmark, because it has
// very many rounds.
func planOf(size string, cohort int) string {
	return fmt.Sprintf(`
name: bench-%s
algorithm: fedavg
%s
rounds: 1000000000
schedule: {cohort: %d, over_selection: %g}
`, size, sizes[size], cohort, overSelection)
}

// EngineRates contains the speed of the ledger without a server, and the CPU time of this
// process per result in milliseconds.
type EngineRates struct {
	Count    float64 `json:"count_per_s"`
	CountCPU float64 `json:"count_cpu_ms"`
}

// runEngine measures the ledger in another process, so that the memory of thousands of
// connections does not slow it down.
func runEngine(ctx context.Context, e Backends, size string, clients int, d time.Duration) (r EngineRates, err error) {
	args := []string{"bench", "fleet-engine", "--size", size, "--clients", strconv.Itoa(clients), "--seconds", fmt.Sprint(d.Seconds())}
	if e.Database != "" {
		args = append(args, "--database", e.Database)
	}
	cmd, err := self(ctx, args...)
	if err != nil {
		return r, err
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return r, fmt.Errorf("measure the ledger: %w: %s", err, bytes.TrimSpace(said.Bytes()))
	}
	return r, json.Unmarshal(out, &r)
}

// Engine measures the ledger alone for d, with results of the given size and a given number
// of clients.
func Engine(ctx context.Context, e Backends, size string, clients int, d time.Duration) (r EngineRates, err error) {
	if err := e.check(); err != nil {
		return r, &UsageError{err}
	}
	if _, ok := sizes[size]; !ok || clients < 2 {
		return r, &UsageError{fmt.Errorf("--size must be %s, and --clients at least 2", knownSizes)}
	}
	dir, err := os.MkdirTemp("", "loadstar-engine-")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	t, err := termsOf(size, clients)
	if err != nil {
		return r, err
	}
	database, drop, err := e.schema(ctx)
	if err != nil {
		return r, err
	}
	defer drop()
	database = cmp.Or(database, "sqlite:"+filepath.Join(dir, "ledger.db"))
	r.Count, r.CountCPU, err = countRate(ctx, database, t, d)
	return r, err
}

// termsOf returns the terms of a run with the plan of planOf, that all clients train.
func termsOf(size string, clients int) (*terms.Terms, error) {
	return settled(planOf(size, clients/2), clients)
}

// virtualResult returns the result of client number i.
func virtualResult(t *terms.Terms, i int) *terms.Result {
	shared := make([]float32, t.Shared)
	for k := range shared {
		shared[k] = 0.001 * float32((i+k)%17-8)
	}
	return &terms.Result{
		Numbers: round.AppendFloats(nil, shared),
		Shares:  []terms.Share{{Client: virtualClient(i), Examples: 64 + i%1000, Steps: 4, TrainLoss: 0.1}},
	}
}

func virtualClient(i int) string { return fmt.Sprintf("virtual-%06d", i) }

// countRate returns how many results per second are summed and counted in the ledger, in the
// largest batches.
func countRate(ctx context.Context, database string, t *terms.Terms, d time.Duration) (rate, cpu float64, err error) {
	l, err := ledger.Open(ctx, database)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = l.Close() }() // the ledger is not used again
	x := &counting{Ledger: l, terms: t}
	if err := x.prepare(ctx); err != nil {
		return 0, 0, err
	}
	results := make([]*terms.Result, min(gateway.MaxBatch, gateway.MaxBatchBytes/(4*t.Shared), t.Plan.Schedule.Cohort))
	for i := range results {
		results[i] = virtualResult(t, i)
	}
	var (
		spent   time.Duration
		used    time.Duration
		counted int
		next    = t.Fleet // number of the next client; with this value, the loop opens the first round
		number  = int64(-1)
	)
	for spent < d {
		if next+len(results) > t.Fleet {
			number, next = number+1, 0
			if err := x.ask(ctx, number); err != nil {
				return 0, 0, err
			}
		}
		arrivals := make([]ledger.Arrival, len(results))
		for i := range arrivals {
			arrivals[i] = ledger.Arrival{
				Agent: "bench", Round: number, Bytes: int64(len(results[i].Numbers)),
				Shares: []ledger.Share{{Client: virtualClient(next + i), Examples: 64, Steps: 4, TrainLoss: 0.1}},
			}
		}
		start, before := time.Now(), proc.CPUTime()
		n, err := x.count(ctx, arrivals, results)
		if err != nil {
			return 0, 0, err
		}
		if n != len(results) {
			return 0, 0, fmt.Errorf("%d of %d results were counted", n, len(results))
		}
		spent += time.Since(start)
		used += proc.CPUTime() - before
		counted += n
		next += n
	}
	return float64(counted) / spent.Seconds(), 1e3 * used.Seconds() / float64(counted), nil
}

// counting is a ledger with one run, to measure counting.
type counting struct {
	*ledger.Ledger
	terms *terms.Terms
	lead  ledger.Lead
}

// prepare adds an agent that hosts all clients, and a run with all of them.
func (x *counting) prepare(ctx context.Context) (err error) {
	now, clients := time.Now(), make([]string, x.terms.Fleet)
	for i := range clients {
		clients[i] = virtualClient(i)
	}
	token := []byte("bench")
	if err := x.Directory.AddToken(ctx, token, directory.Token{Uses: 1, Expires: now.Add(time.Hour)}, "bench", now); err != nil {
		return err
	}
	if err := x.Directory.Join(ctx, token, directory.Agent{ID: "bench", Expires: now.Add(time.Hour)}, now); err != nil {
		return err
	}
	if _, err := x.Directory.Announce(ctx, directory.Announcement{Agent: "bench", Clients: clients, Inputs: modelInputs, Step: time.Hour, Most: len(clients)}, now); err != nil {
		return err
	}
	if err := x.AddRun(ctx, ledger.Run{ID: "bench", Name: "bench", Created: now}, "bench"); err != nil {
		return err
	}
	if x.lead, err = x.Lead(ctx, "bench", time.Hour, now); err != nil {
		return err
	}
	return x.Drive(ctx, x.lead, "bench", func(d *ledger.Drive) error {
		_, err := d.Begin(ledger.Run{}, ledger.Version{}, directory.Filter{}, now)
		return err
	})
}

// ask opens a round with all clients.
func (x *counting) ask(ctx context.Context, number int64) error {
	members := make([]int64, x.terms.Fleet)
	for i := range members {
		members[i] = int64(i)
	}
	return x.Drive(ctx, x.lead, "bench", func(d *ledger.Drive) error {
		if _, _, err := d.Ask(ledger.Asking{Round: number, Version: 0, Members: members, Until: time.Now().Add(time.Hour)}); err != nil {
			return err
		}
		return d.Save("", ledger.Round{Round: number, Opened: time.Now()})
	})
}

// count sums a batch of results and counts it in the ledger, as a gateway does.
func (x *counting) count(ctx context.Context, arrivals []ledger.Arrival, results []*terms.Result) (int, error) {
	fold := round.NewFold(x.terms.Rules)
	for _, r := range results {
		if err := errors.Join(x.terms.Prepare(r), x.terms.Add(fold, r, nil)); err != nil {
			return 0, err
		}
		x.terms.Release(r)
	}
	counted, err := x.Counter.Count(ctx, "bench", arrivals, func([]int) (partials []ledger.Partial, _ []ledger.Single, err error) {
		for _, s := range fold.Sums() {
			numbers, err := round.AppendSums(nil, &s)
			if err != nil {
				return nil, nil, err
			}
			partials = append(partials, ledger.Partial{Version: int64(s.Version), Numbers: numbers})
		}
		return partials, nil, nil
	})
	return len(counted), err
}
