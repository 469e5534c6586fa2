// Package aggregator takes results from the bus and counts them in the ledger, many at
// a time: the only place where an update becomes part of a sum. Any number of them
// may be at work, and any of them may die at any point.
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

// Config is what an aggregator works with.
type Config struct {
	Ledger *ledger.Ledger
	Bus    *bus.Bus
	Terms  *terms.Book
	// Batch and Bytes bound what is counted in one transaction.
	Batch, Bytes int
	// Workers is how many count side by side.
	Workers int
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

type aggregator struct {
	Config
	metrics *metrics
}

// UsualBatch and UsualBytes are a server's Batch and Bytes.
const (
	UsualBatch = 256
	UsualBytes = 24 << 20
)

const (
	takeFor    = time.Second
	shortPause = 100 * time.Millisecond
	longPause  = 5 * time.Second
)

// Run counts until the context ends.
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
	retry := backoff.Backoff{Base: shortPause, Cap: longPause}
	for ctx.Err() == nil {
		err := a.batch(ctx)
		if err == nil {
			retry.Reset()
			continue
		}
		if ctx.Err() == nil {
			a.Log.Warn("cannot count for now", "error", err)
		}
		_ = retry.Wait(ctx) // the loop ends with ctx
	}
}

// item is a result with its delivery.
type item struct {
	*bus.Delivery
	arrival *v1.Arrival
	result  *terms.Result
}

// batch counts what the bus has. What could not be counted comes again.
func (a *aggregator) batch(ctx context.Context) error {
	deliveries, err := a.Bus.Take(ctx, a.Batch, a.Bytes, takeFor)
	if err != nil {
		return err
	}
	// A batch is of one round, so that a region can send it on as it is.
	type round struct {
		run   string
		round int64
	}
	rounds := map[round][]item{}
	for _, d := range deliveries {
		if d.Deliveries() > 1 {
			a.metrics.again.Inc()
		}
		x := &v1.Arrival{}
		if err := proto.Unmarshal(d.Data(), x); err != nil {
			a.drop(d, err)
			continue
		}
		k := round{x.Run, x.Round}
		rounds[k] = append(rounds[k], item{d, x, terms.Of(x)})
	}
	var failed error
	for k, items := range rounds {
		if err := a.count(ctx, k.run, items); err != nil {
			failed = errors.Join(failed, err)
			for _, i := range items {
				_ = i.Later(shortPause) // the bus redelivers it anyway
			}
		}
	}
	return failed
}

func (a *aggregator) drop(d *bus.Delivery, why error) {
	a.metrics.dropped.Inc()
	a.Log.Error("a result cannot be read and is dropped", "error", why)
	_ = d.Drop(why.Error()) // the bus redelivers it, and it is dropped then
}

// count counts results of one round.
func (a *aggregator) count(ctx context.Context, run string, items []item) error {
	t, err := a.Terms.Of(ctx, run)
	if errors.Is(err, ledger.ErrNotFound) {
		// Runs do not go away: it is from elsewhere, and would hold up others for ever.
		for _, i := range items {
			a.drop(i.Delivery, err)
		}
		return nil
	} else if err != nil {
		return err
	}
	// Added up before the run is held: nearly always all of them are due.
	start := time.Now()
	f := &folder{terms: t, fold: round.NewFold(t.Rules)}
	for _, i := range items {
		err := t.Add(f.fold, i.result, nil)
		if errors.Is(err, exact.ErrFull) {
			f.full = true // some are not due: the ledger knows which
		} else if err != nil {
			// A gateway has let it through: it is wrong by a bug, or from elsewhere.
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
			a.Log.Debug("an acknowledgement was lost", "error", err) // it comes again, and is not due
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
		l.Shares[i] = ledger.Share{Client: s.Client, Examples: int64(s.Examples), Steps: int64(s.Steps), TrainLoss: s.TrainLoss}
	}
	return l
}

// folder makes of results what the ledger stores.
type folder struct {
	terms *terms.Terms
	items []item
	fold  *round.Fold // of all items, but for those that it had no room for
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

// forLedger is a ledger.Fold.
func (f *folder) forLedger(counted []int) (partials []ledger.Partial, singles []ledger.Single, err error) {
	if !f.terms.Folds() {
		for _, i := range counted {
			r := f.items[i].result
			s := r.Shares[0]
			singles = append(singles, ledger.Single{
				Client: s.Client, Version: int64(r.Version), Examples: int64(s.Examples), Steps: int64(s.Steps), Loss: s.Loss, Numbers: r.Numbers,
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
	for _, s := range fold.Sums() {
		numbers, err := round.AppendSums(nil, &s)
		if err != nil {
			return nil, nil, err
		}
		partials = append(partials, ledger.Partial{Version: int64(s.Version), Numbers: numbers})
	}
	return partials, nil, nil
}
