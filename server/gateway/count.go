package gateway

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"loadstar/fed/exact"
	"loadstar/fed/round"
	"loadstar/internal/backoff"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

// Limits on the results that are counted together. A transaction waits for the disk and, if
// there are standbys, for the network, so results that arrive within the linger time share a
// transaction.
const (
	MaxBatch      = 256
	MaxBatchBytes = 24 << 20
	linger        = 20 * time.Millisecond

	shortPause = 100 * time.Millisecond // first delay between retries while the database does not respond
	longPause  = time.Second            // longest delay
)

// arrived is a checked result that waits to be counted.
type arrived struct {
	run, agent string
	round      int64
	terms      *terms.Terms
	result     *terms.Result
	evaluation ledger.Evaluation
	bytes      int           // size of its numbers
	masks      []ledger.Mask // masks of a private plan's result, or nil
	check      *checked      // values that keepers judge before the result counts, or nil
	alone      bool          // not added to other results, because keepers judge it for the hub

	done chan struct{} // closed when counted or err is set
	// counted means that the result is counted. If it is false without an error, the ledger has
	// no lease for the result, because the result was counted before or is late.
	counted bool
	err     error
	lead    chan struct{} // closed when the caller of this result must count for all
	leads   bool          // guarded by the counter's mutex
	left    bool          // the caller has given up; guarded by the counter's mutex
}

// counter counts results in the ledger. All waiting results share a transaction. One of the
// waiting callers counts the results of all callers, until its own result is counted.
type counter struct {
	ledger  *ledger.Ledger
	mirror  *mirror
	wake    func(run string)
	log     *slog.Logger
	metrics *metrics
	random  func(agent string) float64
	// judge asks the keepers of private plans about results.
	judge func(ctx context.Context, all []*arrived) (accepted, again []*arrived)
	*database

	mu      sync.Mutex
	waiting []*arrived
	led     bool          // whether a caller is counting
	enough  chan struct{} // has a value when a whole batch waits
}

// database is what all counters of a gateway know about the ledger.
type database struct {
	// home is the context of the running gateway. Transactions use this context because they
	// serve many callers.
	home atomic.Pointer[context.Context]
	// away means that the database did not respond recently. tries is the number of calls that
	// nevertheless try.
	away  atomic.Bool
	tries atomic.Int64
}

func newCounter(c *Config, known *mirror, m *metrics) *counter {
	return &counter{ledger: c.Ledger, mirror: known, wake: c.Wake, log: c.Log, metrics: m, random: c.Random, database: &database{}, enough: make(chan struct{}, 1)}
}

// apart holds the counters of results that keepers check, by the names of the keepers. A keeper
// can take seconds for each of its answers, and other results must not wait for it.
type apart struct {
	mu  sync.Mutex
	all map[string]*counter
	new func() *counter
}

func newApart(c *Config, usual *counter) *apart {
	return &apart{all: map[string]*counter{}, new: func() *counter {
		one := newCounter(c, usual.mirror, usual.metrics)
		one.judge, one.database = judge{c.Keepers}.all, usual.database
		return one
	}}
}

// of returns the counter of results that the given keepers check.
func (p *apart) of(keepers []string) *counter {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := strings.Join(keepers, " ")
	if p.all[names] == nil {
		p.all[names] = p.new()
	}
	return p.all[names]
}

// length returns the number of results that wait to be checked and counted.
func (p *apart) length() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.all {
		n += c.length()
	}
	return n
}

// maxTries is the maximum number of results that a gateway reads at a time while the database
// does not respond. The other results stay with their agents.
const maxTries = 16

// enter reports whether a result may be read. If so, call leave when the call has ended.
func (c *counter) enter() (leave func(), ok bool) {
	if !c.away.Load() {
		return func() {}, true
	}
	if c.tries.Add(1) > maxTries {
		c.tries.Add(-1)
		return nil, false
	}
	return func() { c.tries.Add(-1) }, true
}

// failed records an error of the ledger.
func (c *counter) failed(err error) {
	if ledger.Unreachable(err) && !c.away.Swap(true) {
		c.log.Warn("the database does not respond; results wait at their agents", "error", err)
	}
}

// count counts a result together with the results of other calls. The result may be counted
// even if the caller gives up.
func (c *counter) count(ctx context.Context, a *arrived) (counted bool, err error) {
	a.done, a.lead = make(chan struct{}), make(chan struct{})
	c.mu.Lock()
	c.waiting = append(c.waiting, a)
	if a.leads = !c.led; a.leads {
		c.led = true
		close(a.lead)
	}
	if len(c.waiting) == MaxBatch {
		select {
		case c.enough <- struct{}{}:
		default:
		}
	}
	c.mu.Unlock()
	select {
	case <-a.done:
	case <-a.lead:
		c.work(ctx, a)
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = slices.DeleteFunc(c.waiting, func(x *arrived) bool { return x == a })
	a.left = true
	if a.leads {
		c.led = len(c.waiting) > 0
		if c.led {
			c.waiting[0].leads = true
			close(c.waiting[0].lead)
		}
	}
	select {
	case <-a.done:
		return a.counted, a.err
	default:
		return false, ctx.Err()
	}
}

// length returns the number of results that wait to be counted.
func (c *counter) length() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.waiting)
}

// work counts waiting results until the caller's result is done, or the caller gives up.
func (c *counter) work(ctx context.Context, own *arrived) {
	home := ctx
	if h := c.home.Load(); h != nil {
		home = *h
	}
	home = context.WithoutCancel(home) // when the gateway ends, earlier calls continue to wait
	retry := backoff.Backoff{Base: shortPause, Cap: longPause, Rand: func(n int64) int64 { return int64(c.random(own.agent) * float64(n)) }}
	for {
		timer := time.NewTimer(linger)
		select {
		case <-timer.C:
		case <-c.enough:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
		again := c.countAll(home, c.take(own))
		select {
		case <-own.done:
			c.putBack(again)
			return
		default:
		}
		c.putBack(again)
		if retry.Wait(ctx) != nil {
			return
		}
	}
}

// take returns the results of the next transactions, including the caller's.
func (c *counter) take(own *arrived) []*arrived {
	c.mu.Lock()
	defer c.mu.Unlock()
	batch, bytes := []*arrived{own}, own.bytes
	c.waiting = slices.DeleteFunc(c.waiting, func(a *arrived) bool {
		if a != own {
			if len(batch) == MaxBatch || bytes+a.bytes > MaxBatchBytes {
				return false
			}
			batch, bytes = append(batch, a), bytes+a.bytes
		}
		return true
	})
	return batch
}

// putBack queues results for another attempt, before later ones. It drops results whose callers
// have given up, because such a caller could be chosen to count for all, and then nothing would
// be counted.
func (c *counter) putBack(all []*arrived) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all = slices.DeleteFunc(all, func(a *arrived) bool { return a.left })
	c.waiting = slices.Concat(all, c.waiting)
}

// countAll counts the results of each round in a separate transaction. The reason is that a
// region forwards the sum of a batch, and a sum must belong to a single round. countAll returns
// the results for which the database did not respond.
func (c *counter) countAll(ctx context.Context, all []*arrived) (again []*arrived) {
	slices.SortStableFunc(all, func(a, b *arrived) int {
		return cmp.Or(cmp.Compare(a.run, b.run), cmp.Compare(a.round, b.round), cmp.Compare(a.agent, b.agent), cmp.Compare(a.result.Shares[0].Client, b.result.Shares[0].Client))
	})
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].addsTo(all[0]) {
			n++
		}
		again = append(again, c.countRound(ctx, all[:n])...)
		all = all[n:]
	}
	return again
}

// countRound counts results of one round. If this fails although the database responds, it
// counts each half separately, so that one bad result does not prevent the others from being
// counted.
func (c *counter) countRound(ctx context.Context, all []*arrived) (again []*arrived) {
	if c.judge != nil {
		if all, again = c.judge(ctx, all); len(all) == 0 {
			return again
		}
	}
	err := c.transact(ctx, all)
	switch {
	case err == nil:
		c.away.Store(false)
		return again
	case ledger.Unreachable(err):
		c.failed(err)
		return append(again, all...)
	case len(all) > 1:
		half := len(all) / 2
		return slices.Concat(again, c.countRound(ctx, all[:half]), c.countRound(ctx, all[half:]))
	}
	all[0].err = err
	close(all[0].done)
	return again
}

// transact counts results of one round in one transaction and answers their callers.
func (c *counter) transact(ctx context.Context, all []*arrived) error {
	// Add up all results before the transaction starts, to keep the transaction short. The
	// sum is nearly always right, because nearly always all results count.
	start := time.Now()
	f := &folder{terms: all[0].terms, all: all, fold: round.NewFold(all[0].terms.Rules)}
	arrivals := make([]ledger.Arrival, len(all))
	for i, a := range all {
		arrivals[i] = a.forLedger()
		if !f.terms.Folds() || f.terms.Private() {
			continue
		}
		err := f.terms.Add(f.fold, a.result, nil)
		if errors.Is(err, exact.ErrFull) {
			f.full = true // some results do not count; the ledger decides which
		} else if err != nil {
			return err
		}
	}
	folded := time.Now()
	counted, err := c.ledger.Counter.Count(ctx, all[0].run, arrivals, f.forLedger)
	if err != nil {
		return err
	}
	c.metrics.fold.Observe(folded.Sub(start).Seconds())
	c.metrics.commit.Observe(time.Since(folded).Seconds())
	c.metrics.counted.Add(float64(len(counted)))
	c.metrics.late.Add(float64(len(all) - len(counted)))
	for _, i := range counted {
		all[i].counted = true
		c.mirror.counted(&arrivals[i], all[i].run)
	}
	for _, a := range all {
		a.terms.Release(a.result)
		close(a.done)
	}
	if len(counted) > 0 {
		c.wake(all[0].run)
	}
	return nil
}

// forLedger returns the result as the ledger counts it. The result must be prepared, which
// selects the parts that count.
func (a *arrived) forLedger() ledger.Arrival {
	l := ledger.Arrival{Agent: a.agent, Round: a.round, Version: int64(a.result.Version), Bytes: int64(a.bytes), Shares: make([]ledger.Share, len(a.result.Shares))}
	for i, s := range a.result.Shares {
		l.Shares[i] = ledger.Share{Client: s.Client, Examples: int64(s.Examples), Steps: int64(s.Steps), TrainLoss: s.TrainLoss, Norm: s.Norm, ControlNorm: s.ControlNorm}
	}
	l.Masks = a.masks
	return l
}

// folder computes the sums or individual updates that the ledger stores for a batch.
type folder struct {
	terms *terms.Terms
	all   []*arrived
	fold  *round.Fold // sum of all results; if full is set, some did not fit
	full  bool
}

func (f *folder) foldSome(numbers []int) (*round.Fold, error) {
	fold := round.NewFold(f.terms.Rules)
	for _, i := range numbers {
		if err := f.terms.Add(fold, f.all[i].result, nil); err != nil {
			return nil, err
		}
	}
	return fold, nil
}

// forLedger implements ledger.Fold.
func (f *folder) forLedger(counted []int) (partials []ledger.Partial, singles []ledger.Single, err error) {
	if f.terms.Chooses() && !f.all[0].alone {
		for _, i := range counted {
			a := f.all[i]
			singles = append(singles, ledger.Single{Client: a.masks[0].Name(), Version: int64(a.result.Version), Numbers: a.result.Numbers})
		}
		return nil, singles, nil
	}
	if f.terms.Private() {
		p, err := f.masked(counted)
		return []ledger.Partial{p}, nil, err
	}
	if !f.terms.Folds() {
		for _, i := range counted {
			r := f.all[i].result
			s := r.Shares[0]
			singles = append(singles, ledger.Single{
				Client: s.Client, Version: int64(r.Version), Examples: int64(s.Examples), Steps: int64(s.Steps), Loss: s.Loss, Numbers: r.Numbers,
				Evaluation: f.all[i].evaluation,
			})
		}
		return nil, singles, nil
	}
	fold := f.fold
	if f.full || len(counted) < len(f.all) {
		if fold, err = f.foldSome(counted); err != nil {
			return nil, nil, err
		}
	}
	evaluations := map[int]ledger.Evaluation{} // by version
	for _, i := range counted {
		version := f.all[i].result.Version
		e := evaluations[version]
		e.Add(f.all[i].evaluation)
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
