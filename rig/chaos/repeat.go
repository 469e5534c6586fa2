package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"loadstar/rig/product"
)

// repeated injects faults one after the other, each with its own repair, and waits for a
// merged round between them.
type repeated struct {
	*trial
	rng  *rand.Rand
	log  io.Writer
	once func(ctx context.Context, i int) error // injects and repairs fault i
	// kinds are the kinds of faults for which the watcher measures times, in the order of
	// the table.
	kinds []string

	mu    sync.Mutex
	times map[string]int // faults by kind
	notes []string       // printed before the table
	found []string
}

func newRepeated(t *trial, log io.Writer, kinds ...string) *repeated {
	return &repeated{trial: t, rng: rand.New(rand.NewPCG(t.seed, 1)), log: log, kinds: kinds, times: map[string]int{}}
}

func (r *repeated) run(ctx context.Context, n int) {
	select {
	case <-r.watcher.training:
	case <-ctx.Done():
	}
	for i := range n {
		r.await(ctx)
		if product.Sleep(ctx, time.Duration(r.rng.Int64N(int64(time.Second)))) != nil {
			return
		}
		if err := r.once(ctx, i); err != nil {
			r.mu.Lock()
			r.found = append(r.found, fmt.Sprintf("fault %d: %v", i+1, err))
			r.mu.Unlock()
			return
		}
	}
}

// await waits for a merged round, so that faults hit all phases of many rounds.
func (r *repeated) await(ctx context.Context) {
	const limit = 30 * time.Second
	from := r.watcher.versions()
	for end := time.Now().Add(limit); r.watcher.versions() == from && time.Now().Before(end); {
		if product.Sleep(ctx, lookEvery) != nil {
			return
		}
	}
}

// begin logs a fault of a kind, and starts to measure the time until the next progress.
func (r *repeated) begin(kind, format string, args ...any) {
	r.record(kind, format, args...)
	r.watcher.killed(kind)
}

// record logs a fault of a kind.
func (r *repeated) record(kind, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.times[kind]++
	fmt.Fprintf(r.log, "%s %s "+format+"\n", append([]any{time.Now().Format("15:04:05.000"), kind}, args...)...)
}

// note adds a line that is printed before the table.
func (r *repeated) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

func (r *repeated) count() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.times {
		n += x
	}
	return n
}

func (r *repeated) problems() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.found
}

func (r *repeated) print(out io.Writer) {
	for _, x := range r.notes {
		fmt.Fprintln(out, x)
	}
	w := table(out, "times")
	for _, kind := range r.kinds {
		if r.times[kind] == 0 {
			continue
		}
		fmt.Fprintf(w, "%s\t%d\t", kind, r.times[kind])
		r.watcher.recoveries(w, kind)
		fmt.Fprintln(w)
	}
	_ = w.Flush() // only people read this output
}
