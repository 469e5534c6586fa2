package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"loadstar/rig/product"
)

// share is the weight of each kind of part in the random choice of the next victim. A
// server that runs alone is killed rarely, so that agents have time to reconnect and finish
// some rounds.
var share = map[string]int{
	kindServer: 12, kindGateway: 21, kindCoordinator: 9, kindPostgres: 10, kindAgent: 80,
	kindShared: 10, kindSite: 20, kindKeeper: 12,
}

// kinds lists the kinds in a fixed order, for the random choice and for the output.
var kinds = []string{kindServer, kindGateway, kindCoordinator, kindPostgres, kindKeeper, kindAgent, kindShared, kindSite}

const (
	killEvery = 400 * time.Millisecond // average time between faults
	downMost  = 2 * time.Second
)

// killer causes faults in parts of a system at random. It kills them and restarts them, or
// carries out another harm.
type killer struct {
	system  *system
	watcher *watcher
	harm    harm
	rng     *rand.Rand // used only by the goroutine of run
	share   map[string]int
	most    int  // maximum number of kills in a round before the killer waits for its end
	aim     bool // every other kill waits for a merge
	log     io.Writer
	seen    int64 // number of merged rounds at the latest check
	since   int   // kills since the number of rounds last grew

	mu     sync.Mutex
	down   map[part]bool
	counts map[string]map[string]int // number of faults, by result and by kind
	rounds int64                     // number of rounds merged before the last kill
	merges int                       // kills after which a closed round did not have its new version yet
	faults []string
	wg     sync.WaitGroup
}

func newKiller(s *system, w *watcher, h harm, seed uint64, log io.Writer) *killer {
	return &killer{
		system: s, watcher: w, harm: h, rng: rand.New(rand.NewPCG(seed, 0)), share: share, most: 10, log: log,
		down: map[part]bool{}, counts: map[string]map[string]int{},
	}
}

func (k *killer) count() (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, m := range k.counts {
		for _, x := range m {
			n += x
		}
	}
	return n
}

// run implements injector. Most faults happen while a run is training.
func (k *killer) run(ctx context.Context, n int) {
	for i := range n {
		pause := time.Duration((0.5 + k.rng.Float64()) * float64(killEvery))
		if product.Sleep(ctx, pause) != nil {
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
			if product.Sleep(ctx, 50*time.Millisecond) != nil {
				break
			}
		}
		if p != nil {
			k.strike(ctx, p)
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
		if k.since < k.most || time.Now().After(end) || product.Sleep(ctx, lookEvery) != nil {
			return
		}
	}
}

// awaitMerge waits for a short time until a round is being merged.
func (k *killer) awaitMerge(ctx context.Context) {
	const limit = 5 * time.Second
	for end := time.Now().Add(limit); time.Now().Before(end) && !k.merging(ctx); {
		if product.Sleep(ctx, 5*time.Millisecond) != nil {
			return
		}
	}
}

// merging reports whether a closed round has no new version yet.
func (k *killer) merging(ctx context.Context) bool {
	n, err := k.system.ledger.number(ctx, "SELECT count(*) FROM rounds WHERE state = 'merging'")
	return err == nil && n > 0
}

// pick returns a random target whose parts are all running.
func (k *killer) pick() *target {
	k.mu.Lock()
	defer k.mu.Unlock()
	up := map[string][]*target{}
	all := 0
	for _, t := range k.harm.targets(k.system) {
		if slices.ContainsFunc(t.parts, func(p part) bool { return k.down[p] }) {
			continue
		}
		if len(up[t.kind]) == 0 {
			all += k.share[t.kind]
		}
		up[t.kind] = append(up[t.kind], t)
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
			t := up[kind][k.rng.IntN(len(up[kind]))]
			for _, p := range t.parts {
				k.down[p] = true
			}
			return t
		}
	}
	return nil
}

// strike injects the fault into a target and ends it after a short time.
func (k *killer) strike(ctx context.Context, t *target) {
	seed := k.rng.Uint64()
	rest := time.Duration(k.rng.Int64N(int64(k.harm.longest())))
	k.wg.Go(func() {
		if t.kind != kindAgent {
			k.watcher.killed(t.kind)
		}
		how, detail, err := k.harm.begin(t, seed)
		k.note(err)
		k.mu.Lock()
		if k.counts[how] == nil {
			k.counts[how] = map[string]int{}
		}
		k.counts[how][t.kind]++
		fmt.Fprintf(k.log, "%s %s %s%s, for %d ms\n", time.Now().Format("15:04:05.000"), t.name(), how, detail, rest.Milliseconds())
		k.mu.Unlock()
		if k.aim && k.merging(ctx) {
			k.mu.Lock()
			k.merges++
			k.mu.Unlock()
		}
		_ = product.Sleep(ctx, rest) // the code below ends with the context too
		k.note(k.harm.end(t))
		k.mu.Lock()
		defer k.mu.Unlock()
		for _, p := range t.parts {
			delete(k.down, p)
		}
	})
}

func (k *killer) note(err error) {
	if err == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.faults = append(k.faults, err.Error())
}

func (k *killer) problems() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.faults
}

func (k *killer) print(out io.Writer) {
	fmt.Fprintf(out, "%d rounds before the last one\n", k.rounds)
	if k.aim {
		fmt.Fprintf(out, "%d kills left a closed round without its new version\n", k.merges)
	}
	w := table(out, k.harm.hows()...)
	for _, kind := range kinds {
		n, row := 0, kind
		for _, how := range k.harm.hows() {
			n += k.counts[how][kind]
			row += fmt.Sprintf("\t%d", k.counts[how][kind])
		}
		if n == 0 {
			continue
		}
		fmt.Fprint(w, row+"\t")
		k.watcher.recoveries(w, kind)
		fmt.Fprintln(w)
	}
	_ = w.Flush() // only people read this output
}
