// Package aggregator takes results from the bus and counts them in the ledger, in
// batches. No other package adds updates to a run's sums. Any number of aggregators may
// run, and each may be killed at any point.
package aggregator

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"loadstar/fed/exact"
	"loadstar/fed/round"
	"loadstar/internal/backoff"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/bus"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

// Config configures an aggregator.
type Config struct {
	Ledger *ledger.Ledger
	Bus    Bus
	Terms  *terms.Cache
	// Batch limits the number of results in one transaction, and Bytes limits their total
	// size.
	Batch, Bytes int
	// Workers is the number of goroutines that count; 0 means 1.
	Workers int
	Log     *slog.Logger
	Metrics prometheus.Registerer
	// Rand returns a random number in [0, n) for the delay before a retry. If it is nil,
	// math/rand/v2 is used.
	Rand func(n int64) int64
}

// Bus is the queue of results.
type Bus interface {
	Take(ctx context.Context, max, maxBytes int, wait time.Duration) ([]*bus.Delivery, error)
	Wake(run string)
}

type aggregator struct {
	Config
	metrics *metrics
}

// DefaultBatch and DefaultBytes are the values of Batch and Bytes that a server uses.
const (
	DefaultBatch = 256
	DefaultBytes = 24 << 20
)

const (
	takeWait   = time.Second            // how long one call of Bus.Take waits for results
	shortPause = 100 * time.Millisecond // first delay between retries
	longPause  = 5 * time.Second        // longest delay between retries
)

// Run takes results from the bus and counts them until ctx ends.
func Run(ctx context.Context, c Config) error {
	a := &aggregator{Config: c, metrics: newMetrics(c.Metrics)}
	var wg sync.WaitGroup
	for range max(c.Workers, 1) {
		wg.Go(func() { a.work(ctx) })
	}
	wg.Wait()
	return nil
}

func (a *aggregator) work(ctx context.Context) {
	retry := backoff.Backoff{Base: shortPause, Cap: longPause, Rand: a.Rand}
	for ctx.Err() == nil {
		err := a.batch(ctx)
		if err == nil {
			retry.Reset()
			continue
		}
		if ctx.Err() == nil {
			a.Log.Warn("cannot count results, retrying", "error", err)
		}
		_ = retry.Wait(ctx) // fails only if ctx has ended, which ends the loop
	}
}

// item is a decoded result with the bus delivery that it came from.
type item struct {
	*bus.Delivery
	arrival *v1.Arrival
	result  *terms.Result
}

// batch takes a batch of results from the bus and counts it. If counting fails, the bus
// delivers the results again.
func (a *aggregator) batch(ctx context.Context) error {
	deliveries, err := a.Bus.Take(ctx, a.Batch, a.Bytes, takeWait)
	if err != nil {
		return err
	}
	// Count each round separately, so that each batch in the ledger belongs to one round
	// and a region can forward it unchanged.
	type round struct {
		run   string
		round int64
	}
	rounds := map[round][]item{}
	var order []round
	for _, d := range deliveries {
		if d.Deliveries() > 1 {
			a.metrics.redelivered.Inc()
		}
		x := &v1.Arrival{}
		if err := proto.Unmarshal(d.Data(), x); err != nil {
			a.drop(d, err)
			continue
		}
		k := round{x.Run, x.Round}
		if rounds[k] == nil {
			order = append(order, k)
		}
		rounds[k] = append(rounds[k], item{d, x, terms.Of(x)})
	}
	var failed error
	for _, k := range order {
		if err := a.count(ctx, k.run, rounds[k]); err != nil {
			failed = errors.Join(failed, err)
			for _, i := range rounds[k] {
				_ = i.Later(shortPause) // after an error the bus redelivers it when AckWait is over
			}
		}
	}
	return failed
}

func (a *aggregator) drop(d *bus.Delivery, why error) {
	a.metrics.dropped.Inc()
	a.Log.Error("dropped a result that is not valid", "error", why)
	_ = d.Drop(why.Error()) // after an error the bus delivers it again, and it is dropped again
}

// count counts the results of one round.
func (a *aggregator) count(ctx context.Context, run string, items []item) error {
	t, err := a.Terms.Of(ctx, run)
	if errors.Is(err, ledger.ErrNotFound) {
		// Runs are never deleted, so this result is not from this server. Drop it, so that
		// it does not block the queue.
		for _, i := range items {
			a.drop(i.Delivery, err)
		}
		return nil
	} else if err != nil {
		return err
	}
	// Add up all results before the transaction starts, to keep the transaction short. The
	// sum is nearly always the right one, because nearly always all results count.
	start := time.Now()
	f := &folder{terms: t, fold: round.NewFold(t.Rules)}
	for _, i := range items {
		i.result.Limits, err = t.Limits(i.arrival.Version, func() ([]byte, error) {
			v, err := a.Ledger.Version(ctx, run, i.arrival.Version)
			return v.Limits, err
		})
		if errors.Is(err, ledger.ErrNotFound) {
			// A version that a lease refers to is not deleted, so this result cannot count.
			a.metrics.stale.Inc()
			if err := i.Done(); err != nil {
				a.Log.Debug("cannot acknowledge a result", "error", err)
			}
			continue
		} else if err != nil {
			return err
		}
		err := t.Add(f.fold, i.result, nil)
		if errors.Is(err, exact.ErrFull) {
			f.full = true // some results do not count; the ledger decides which
		} else if err != nil {
			// The gateways have checked all results, so this is a bug or a message from
			// another program.
			a.drop(i.Delivery, err)
			continue
		}
		f.items = append(f.items, i)
	}
	if len(f.items) == 0 {
		return nil
	}
	arrivals := make([]ledger.Arrival, len(f.items))
	for i, x := range f.items {
		arrivals[i] = arrivalOf(x)
	}
	folded := time.Now()
	counted, err := a.Ledger.Count(ctx, run, arrivals, f.forLedger)
	if err != nil {
		return err
	}
	a.metrics.fold.Observe(folded.Sub(start).Seconds())
	a.metrics.commit.Observe(time.Since(folded).Seconds())
	a.metrics.counted.Add(float64(len(counted)))
	a.metrics.stale.Add(float64(len(arrivals) - len(counted)))
	for _, i := range f.items {
		if err := i.Done(); err != nil {
			// The bus delivers the result again, and it does not count twice.
			a.Log.Debug("cannot acknowledge a result", "error", err)
		}
	}
	if len(counted) > 0 {
		a.Bus.Wake(run)
	}
	return nil
}

func arrivalOf(x item) ledger.Arrival {
	l := ledger.Arrival{
		Agent: x.arrival.Agent, Round: x.arrival.Round, Version: x.arrival.Version, Bytes: int64(len(x.arrival.Numbers)),
		Shares: make([]ledger.Share, len(x.result.Shares)),
	}
	for i, s := range x.result.Shares {
		l.Shares[i] = ledger.Share{Client: s.Client, Examples: int64(s.Examples), Steps: int64(s.Steps), TrainLoss: s.TrainLoss, Norm: s.Norm, ControlNorm: s.ControlNorm}
	}
	return l
}

// evaluationOf returns the evaluation of a result, within the bounds that gateways ensure.
func evaluationOf(x item) ledger.Evaluation {
	e := terms.Plausible(x.arrival.Evaluation, len(x.arrival.Shares))
	return ledger.Evaluation{Clients: e.GetClients(), RelativeMAE: e.GetRelativeMae()}
}

// folder computes the sums or individual updates that the ledger stores for a batch.
type folder struct {
	terms *terms.Terms
	items []item
	fold  *round.Fold // sum of all items; if full is set, some did not fit
	full  bool
}

func (f *folder) foldSome(numbers []int) (*round.Fold, error) {
	fold := round.NewFold(f.terms.Rules)
	for _, i := range numbers {
		if err := f.terms.Add(fold, f.items[i].result, nil); err != nil {
			return nil, err
		}
	}
	return fold, nil
}

// forLedger implements ledger.Fold.
func (f *folder) forLedger(counted []int) (partials []ledger.Partial, singles []ledger.Single, err error) {
	if !f.terms.Folds() {
		for _, i := range counted {
			r := f.items[i].result
			s := r.Shares[0]
			singles = append(singles, ledger.Single{
				Client: s.Client, Version: int64(r.Version), Examples: int64(s.Examples), Steps: int64(s.Steps), Loss: s.Loss, Numbers: r.Numbers,
				Evaluation: evaluationOf(f.items[i]),
			})
		}
		return nil, singles, nil
	}
	fold := f.fold
	if f.full || len(counted) < len(f.items) {
		if fold, err = f.foldSome(counted); err != nil {
			return nil, nil, err
		}
	}
	evaluations := map[int]ledger.Evaluation{} // by version
	for _, i := range counted {
		version := f.items[i].result.Version
		e := evaluations[version]
		e.Add(evaluationOf(f.items[i]))
		evaluations[version] = e
	}
	for _, s := range fold.Sums() {
		numbers, err := round.AppendSums(nil, &s)
		if err != nil {
			return nil, nil, err
		}
		partials = append(partials, ledger.Partial{Version: int64(s.Version), Numbers: numbers, Evaluation: evaluations[s.Version]})
	}
	return partials, nil, nil
}
