package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"
)

// share is the weight of each kind of part in the random choice of the next victim. A
// server that runs alone is killed rarely, so that agents have time to reconnect and finish
// some rounds.
var share = map[string]int{
	kindServer: 12, kindGateway: 9, kindAggregator: 12, kindCoordinator: 9, kindNATS: 5, kindPostgres: 5, kindAgent: 80,
}

// kinds lists the kinds in a fixed order, for the random choice and for the output.
var kinds = []string{kindServer, kindGateway, kindAggregator, kindCoordinator, kindNATS, kindPostgres, kindAgent}

const (
	killEvery = 400 * time.Millisecond // average time between kills
	downMost  = 2 * time.Second
	toldShare = 5 // one in toldShare kills uses SIGTERM instead of SIGKILL
)

// killer kills parts of a system at random and restarts them.
type killer struct {
	system  *system
	watcher *watcher
	rng     *rand.Rand // used only by the goroutine of run
	share   map[string]int
	most    int  // kills that may hit the same round before the killer waits for its end
	aim     bool // every other kill waits for a merge
	log     io.Writer
	seen    int64 // number of merged rounds at the latest check
	since   int   // kills since the number of rounds last grew

	mu     sync.Mutex
	down   map[part]bool
	killed map[string]int // number of kills by kind
	told   map[string]int
	rounds int64 // number of rounds merged before the last kill
	merges int   // kills after which a closed round was without its new version
	faults []string
	wg     sync.WaitGroup
}

func newKiller(s *system, w *watcher, seed uint64, log io.Writer) *killer {
	return &killer{
		system: s, watcher: w, rng: rand.New(rand.NewPCG(seed, 0)), share: share, most: 10, log: log,
		down: map[part]bool{}, killed: map[string]int{}, told: map[string]int{},
	}
}

// kills returns the number of kills so far.
func (k *killer) kills() (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, m := range []map[string]int{k.killed, k.told} {
		for _, x := range m {
			n += x
		}
	}
	return n
}

// run kills n parts, or fewer if ctx ends, and returns when all parts are running again.
// Most kills happen while a run is training.
func (k *killer) run(ctx context.Context, n int) {
	for i := range n {
		pause := time.Duration((0.5 + k.rng.Float64()) * float64(killEvery))
		if !sleep(ctx, pause) {
			break
		}
		if i == n/8 {
			select {
			case <-k.watcher.training:
			case <-ctx.Done():
			}
		}
		k.breathe(ctx)
		if k.aim && i%2 == 0 {
			k.awaitMerge(ctx)
		}
		p := k.pick()
		for ; p == nil; p = k.pick() {
			if !sleep(ctx, 50*time.Millisecond) {
				break
			}
		}
		if p != nil {
			k.kill(ctx, p)
		}
	}
	k.rounds = k.watcher.versions()
	k.wg.Wait()
}

// breathe waits for the end of the round if many kills have hit the same round. Otherwise,
// on a slow machine, all kills would hit the same few rounds.
func (k *killer) breathe(ctx context.Context) {
	const limit = 10 * time.Second
	k.since++
	for end := time.Now().Add(limit); ; {
		if v := k.watcher.versions(); v != k.seen {
			k.seen, k.since = v, 0
		}
		if k.since < k.most || time.Now().After(end) || !sleep(ctx, lookEvery) {
			return
		}
	}
}

// awaitMerge waits until a round is being merged, but not long.
func (k *killer) awaitMerge(ctx context.Context) {
	const limit = 5 * time.Second
	for end := time.Now().Add(limit); time.Now().Before(end) && !k.merging(ctx); {
		if !sleep(ctx, 5*time.Millisecond) {
			return
		}
	}
}

// merging reports whether a closed round has no new version yet.
func (k *killer) merging(ctx context.Context) bool {
	n, err := k.system.ledger.number(ctx, "SELECT count(*) FROM rounds WHERE state = 'merging'")
	return err == nil && n > 0
}

// pick returns a random part that is running.
func (k *killer) pick() part {
	k.mu.Lock()
	defer k.mu.Unlock()
	up := map[string][]part{}
	nodes := 0
	for _, p := range k.system.parts() {
		if x, ok := p.(*process); ok && x.kind == kindAgent && !x.Started() {
			continue // the agent has not joined yet
		}
		if k.down[p] {
			if p.Kind() == kindNATS {
				nodes++
			}
			continue
		}
		up[p.Kind()] = append(up[p.Kind()], p)
	}
	if nodes > 0 {
		delete(up, kindNATS) // a NATS cluster needs two of its three nodes
	}
	all := 0
	for kind := range up {
		all += k.share[kind]
	}
	if all == 0 {
		return nil
	}
	x := k.rng.IntN(all)
	for _, kind := range kinds {
		if len(up[kind]) == 0 {
			continue
		}
		if x -= k.share[kind]; x < 0 {
			p := up[kind][k.rng.IntN(len(up[kind]))]
			k.down[p] = true
			return p
		}
	}
	return nil
}

// kill kills a part and restarts it after a short delay.
func (k *killer) kill(ctx context.Context, p part) {
	told := k.rng.IntN(toldShare) == 0
	rest := time.Duration(k.rng.Int64N(int64(downMost)))
	k.mu.Lock()
	end, by, how := p.Kill, k.killed, "killed"
	if told {
		end, by, how = p.Stop, k.told, "stopped"
	}
	by[p.Kind()]++
	k.mu.Unlock()
	fmt.Fprintf(k.log, "%s %s %s, for %d ms\n", time.Now().Format("15:04:05.000"), p.Name(), how, rest.Milliseconds())
	k.wg.Go(func() {
		if p.Kind() != kindAgent {
			k.watcher.killed(p.Kind())
		}
		k.fault(end())
		if k.aim && k.merging(ctx) {
			k.mu.Lock()
			k.merges++
			k.mu.Unlock()
		}
		sleep(ctx, rest)
		k.fault(p.Start())
		if p.Kind() == kindNATS {
			k.fault(k.system.whole(ctx, time.Minute))
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.down, p)
	})
}

func (k *killer) fault(err error) {
	if err == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.faults = append(k.faults, err.Error())
}
