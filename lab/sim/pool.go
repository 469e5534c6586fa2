package sim

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"loadstar/fed"
	"loadstar/fed/client"
	"loadstar/fed/round"
	"loadstar/forecast"
	"loadstar/internal/proc"
)

// worker contains the buffers of one goroutine that trains and scores clients.
type worker struct {
	client *client.Worker
	tuner  *client.Tuner // nil if the weights of the last round are the final ones
	scorer *forecast.Scorer
	fold   *round.Fold

	kept   []float32
	update fed.Update
	w      []float32 // shared and personal weights

	cpu time.Duration // CPU time of all functions so far
}

// measure returns a function that adds the CPU time since the call to w.cpu. It must be called
// before another goroutine learns that the work is done, because that goroutine may then read
// w.cpu. Wall-clock time would depend on what else the machine does.
func (w *worker) measure() (stop func()) {
	runtime.LockOSThread()
	start := proc.ThreadTime()
	return func() {
		w.cpu += proc.ThreadTime() - start
		runtime.UnlockOSThread()
	}
}

// pool runs functions on a fixed set of workers. Each worker runs one function at a time.
type pool struct {
	workers []*worker
	todo    chan func(*worker)
	wg      sync.WaitGroup
}

func newPool(workers []*worker) *pool {
	p := &pool{workers: workers, todo: make(chan func(*worker), 2*len(workers))}
	for _, w := range workers {
		p.wg.Go(func() {
			for do := range p.todo {
				do(w)
			}
		})
	}
	return p
}

func (p *pool) close() {
	close(p.todo)
	p.wg.Wait()
}

// each calls do with each number from 0 to n-1, distributed over the workers. If several
// calls fail, it returns the error of the call with the lowest number, so the error does
// not depend on timing.
func (p *pool) each(ctx context.Context, n int, do func(w *worker, i int) error) error {
	var (
		next   atomic.Int64
		wg     sync.WaitGroup
		mu     sync.Mutex
		failed = n
		first  error
	)
	for range min(n, len(p.workers)) {
		wg.Add(1)
		p.todo <- func(w *worker) {
			defer wg.Done()
			defer w.measure()()
			for {
				i := int(next.Add(1)) - 1
				mu.Lock()
				stop := i >= failed
				mu.Unlock()
				if stop || i >= n {
					return
				}
				err := ctx.Err()
				if err == nil {
					err = do(w, i)
				}
				if err != nil {
					mu.Lock()
					if i < failed {
						failed, first = i, err
					}
					mu.Unlock()
				}
			}
		}
	}
	wg.Wait()
	return first
}
