package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"loadstar/fed/recipe"
	"loadstar/fed/round"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/aggregator"
	"loadstar/server/bus"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

// fleetSizes are what bench fleet can push: the shared part of bose2023, with its head
// personal and without.
var fleetSizes = map[string]string{"24k": "head", "170k": "none"}

// overSelection is how many more than wanted are asked, so that a round need not wait
// for the last of them.
const overSelection = 0.1

// fleetPlan is a plan whose rounds do not end.
func fleetPlan(size string, cohort int) string {
	return fmt.Sprintf(`
name: bench-%s
algorithm: fedavg
model: {name: %s}
partition: %s
rounds: 1000000000
schedule: {cohort: %d, over_selection: %g}
`, size, benchModel, fleetSizes[size], cohort, overSelection)
}

// newBenchFleetEngine measures what bench fleet compares the server with. It is a
// process of its own, so that ten thousand connections are not in its memory.
func newBenchFleetEngine() *cobra.Command {
	var (
		e       engines
		size    string
		clients int
		seconds float64
	)
	cmd := &cobra.Command{
		Use:    "fleet-engine",
		Short:  "Measure the engines under the server alone",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := benchTime(1, seconds)
			if _, ok := fleetSizes[size]; err == nil && (!ok || clients < 2) {
				err = errors.New("--size is 24k or 170k, --clients at least 2")
			}
			if err == nil {
				err = e.check()
			}
			if err != nil {
				return usageError{err, "bench fleet-engine "}
			}
			dir, err := os.MkdirTemp("", "loadstar-engine-")
			if err != nil {
				return err
			}
			defer os.RemoveAll(dir)
			var b engineRates
			if b, err = measureEngines(cmd.Context(), e, dir, size, clients, d); err != nil {
				return err
			}
			return printLine(cmd.OutOrStdout(), b)
		},
	}
	e.add(cmd.Flags())
	cmd.Flags().StringVar(&size, "size", "24k", "24k or 170k")
	cmd.Flags().IntVar(&clients, "clients", 10_000, "clients of the ledger")
	cmd.Flags().Float64Var(&seconds, "seconds", 5, "seconds of each measurement")
	return cmd
}

// engineRates are the engines' alone.
type engineRates struct {
	Publish float64 `json:"publish_per_s"`
	Count   float64 `json:"count_per_s"`
}

// slower is what a server on these engines cannot exceed.
func (r engineRates) slower() float64 { return min(r.Publish, r.Count) }

// runEngines measures in another process.
func runEngines(ctx context.Context, e engines, size string, clients int, d time.Duration) (r engineRates, err error) {
	args := []string{"bench", "fleet-engine", "--size", size, "--clients", strconv.Itoa(clients), "--seconds", fmt.Sprint(d.Seconds())}
	if e.database != "" {
		args = append(args, "--database", e.database)
	}
	cmd, err := own(ctx, args...)
	if err != nil {
		return r, err
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return r, fmt.Errorf("measuring the engines: %w: %s", err, bytes.TrimSpace(said.Bytes()))
	}
	return r, json.Unmarshal(out, &r)
}

func measureEngines(ctx context.Context, e engines, dir, size string, clients int, d time.Duration) (r engineRates, err error) {
	t, err := fleetTerms(size, clients)
	if err != nil {
		return r, err
	}
	if r.Publish, err = publishRate(ctx, filepath.Join(dir, "nats"), t, d); err != nil {
		return r, err
	}
	database, drop, err := e.schema(ctx)
	if err != nil {
		return r, err
	}
	defer drop()
	if database == "" {
		database = "sqlite:" + filepath.Join(dir, "ledger.db")
	}
	r.Count, err = countRate(ctx, database, t, d)
	return r, err
}

// fleetTerms are those of a run of fleetPlan with all clients.
func fleetTerms(size string, clients int) (*terms.Terms, error) {
	p, err := recipe.Read([]byte(fleetPlan(size, clients/2)))
	if err != nil {
		return nil, err
	}
	if p, err = terms.Settle(p, int64(clients), benchInputs, []time.Duration{time.Hour}); err != nil {
		return nil, err
	}
	text, err := recipe.Write(p)
	if err != nil {
		return nil, err
	}
	return terms.Read(string(text), "", int64(clients))
}

// virtualArrival returns client number i's result as the bus carries it.
func virtualArrival(t *terms.Terms, i int) *v1.Arrival {
	shared := make([]float32, t.Shared)
	for k := range shared {
		shared[k] = 0.001 * float32((i+k)%17-8)
	}
	return &v1.Arrival{
		Run: "bench", Agent: "bench", Form: v1.Form_FORM_UPDATE, Numbers: round.AppendFloats(nil, shared),
		Shares: []*v1.Share{{Client: virtualClient(i), Examples: 64 + int64(i%1000), Steps: 4, TrainLoss: 0.1}},
	}
}

func virtualClient(i int) string { return fmt.Sprintf("virtual-%06d", i) }

// publishers is how many publish at a time.
const publishers = 16

// publishRate returns how many results a second an embedded bus puts on disk, one by one.
func publishRate(ctx context.Context, dir string, t *terms.Terms, d time.Duration) (float64, error) {
	b, err := bus.Open(ctx, bus.Config{Dir: dir, Together: 1}, slog.New(slog.DiscardHandler))
	if err != nil {
		return 0, err
	}
	defer func() { _ = b.Close(ctx) }() // the folder is deleted next
	message, err := proto.Marshal(virtualArrival(t, 0))
	if err != nil {
		return 0, err
	}
	var (
		published atomic.Int64
		failed    = make(chan error, publishers)
		wg        sync.WaitGroup
	)
	publish, end := context.WithCancel(ctx)
	defer end()
	for w := range publishers {
		wg.Go(func() {
			for i := 0; publish.Err() == nil; i++ {
				if err := b.Publish(publish, fmt.Sprintf("bench/%d/%d", w, i), message); err != nil {
					if publish.Err() == nil {
						failed <- err
					}
					return
				}
				published.Add(1)
			}
		})
	}
	// The first tenth is not counted.
	var before int64
	var start time.Time
	for _, wait := range []time.Duration{d / 10, d} {
		before, start = published.Load(), time.Now()
		select {
		case <-time.After(wait):
		case err := <-failed:
			return 0, err
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	rate := float64(published.Load()-before) / time.Since(start).Seconds()
	end()
	wg.Wait()
	return rate, nil
}

// countRate returns how many results a second are added up and counted, in batches as
// large as an aggregator takes.
func countRate(ctx context.Context, database string, t *terms.Terms, d time.Duration) (float64, error) {
	l, err := ledger.Open(ctx, database)
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }() // nothing reads it again
	x := &counting{Ledger: l, terms: t}
	if err := x.prepare(ctx); err != nil {
		return 0, err
	}
	results := make([]*terms.Result, min(aggregator.UsualBatch, aggregator.UsualBytes/(4*t.Shared), t.Plan.Schedule.Cohort))
	for i := range results {
		results[i] = terms.Of(virtualArrival(t, i))
	}
	var (
		spent   time.Duration
		counted int
		next    = t.Fleet // the client that comes next: all of the round before are counted
		number  = int64(-1)
	)
	for spent < d {
		if next+len(results) > t.Fleet {
			number, next = number+1, 0
			if err := x.ask(ctx, number); err != nil {
				return 0, err
			}
		}
		arrivals := make([]ledger.Arrival, len(results))
		for i := range arrivals {
			arrivals[i] = ledger.Arrival{
				Agent: "bench", Round: number, Bytes: int64(len(results[i].Numbers)),
				Shares: []ledger.Share{{Client: virtualClient(next + i), Examples: 64, Steps: 4, TrainLoss: 0.1}},
			}
		}
		start := time.Now()
		n, err := x.count(ctx, arrivals, results)
		if err != nil {
			return 0, err
		}
		if n != len(results) {
			return 0, fmt.Errorf("%d of %d results were counted", n, len(results))
		}
		spent += time.Since(start)
		counted += n
		next += n
	}
	return float64(counted) / spent.Seconds(), nil
}

// counting is a ledger with one run.
type counting struct {
	*ledger.Ledger
	terms *terms.Terms
	lead  ledger.Lead
}

// prepare adds an agent that hosts all clients, and a run of them.
func (x *counting) prepare(ctx context.Context) (err error) {
	now, clients := time.Now(), make([]string, x.terms.Fleet)
	for i := range clients {
		clients[i] = virtualClient(i)
	}
	token := []byte("bench")
	if err := x.AddToken(ctx, token, "", 1, now.Add(time.Hour)); err != nil {
		return err
	}
	if err := x.Join(ctx, token, ledger.Agent{ID: "bench", Expires: now.Add(time.Hour)}, now); err != nil {
		return err
	}
	if _, err := x.Announce(ctx, ledger.Announcement{Agent: "bench", Clients: clients, Inputs: benchInputs, Step: time.Hour, Most: len(clients)}, now); err != nil {
		return err
	}
	if err := x.AddRun(ctx, ledger.Run{ID: "bench", Name: "bench", Created: now}, "bench"); err != nil {
		return err
	}
	if x.lead, err = x.Lead(ctx, "bench", time.Hour, now); err != nil {
		return err
	}
	return x.Drive(ctx, x.lead, "bench", func(d *ledger.Drive) error {
		_, err := d.Begin(ledger.Run{}, ledger.Version{}, now)
		return err
	})
}

// ask opens a round with everybody.
func (x *counting) ask(ctx context.Context, number int64) error {
	members := make([]int64, x.terms.Fleet)
	for i := range members {
		members[i] = int64(i)
	}
	return x.Drive(ctx, x.lead, "bench", func(d *ledger.Drive) error {
		if _, err := d.Ask(number, 0, members, time.Now().Add(time.Hour)); err != nil {
			return err
		}
		return d.Save("", ledger.Round{Round: number, Opened: time.Now()})
	})
}

// count is what an aggregator does with a batch.
func (x *counting) count(ctx context.Context, arrivals []ledger.Arrival, results []*terms.Result) (int, error) {
	fold := round.NewFold(x.terms.Rules)
	for _, r := range results {
		if err := x.terms.Add(fold, r, nil); err != nil {
			return 0, err
		}
	}
	counted, err := x.Count(ctx, "bench", arrivals, func([]int) (partials []ledger.Partial, _ []ledger.Single, err error) {
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
