package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"loadstar/rig/leak"
	"loadstar/series"
)

// eavesdroppers lists the attacks by somebody who observes an agent's connection but cannot
// decrypt it.
func eavesdroppers() []Attack {
	return []Attack{{ID: "X9", Name: "the sizes of an agent's messages tell whether the house is empty", Run: sizesOfResults}}
}

// wire forwards connections and records the size of each message that the agent sends.
type wire struct {
	address string
	mu      sync.Mutex
	sizes   []*int // sizes of messages; a message ends when the server answers on its connection
}

// tap returns a wire to a server.
func (f *Fleet) tap(to string) (*wire, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f.later(l.Close)
	w := &wire{address: l.Addr().String()}
	go func() {
		for {
			agent, err := l.Accept()
			if err != nil {
				return // the listener is closed
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				_ = agent.Close() // the agent retries
				continue
			}
			var open *int // bytes of the current message
			go w.pass(server, agent, func(n int) {
				if open == nil {
					open = new(int)
					w.sizes = append(w.sizes, open)
				}
				*open += n
			})
			go w.pass(agent, server, func(int) { open = nil })
		}
	}()
	return w, nil
}

func (w *wire) pass(to, from net.Conn, note func(n int)) {
	defer to.Close()
	b := make([]byte, 1<<16)
	for {
		n, err := from.Read(b)
		w.mu.Lock()
		note(n)
		w.mu.Unlock()
		if _, e := to.Write(b[:n]); e != nil || errors.Is(err, io.EOF) || err != nil {
			return
		}
	}
}

// results returns the sizes of the messages that are large enough to be results, in order.
func (w *wire) results() (all []int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.sizes {
		if *n > 10_000 {
			all = append(all, *n)
		}
	}
	slices.Sort(all)
	return all
}

// sizesOfResults succeeds if the results of two homes differ in size on the network in a run
// with scores, when one of the homes is empty for a month.
func sizesOfResults(ctx context.Context, f *Fleet) (Result, error) {
	homes := must(leak.Homes(2, 60))
	var all []series.Meter
	for i := range homes.Len() {
		m := homes.Meter(i)
		m.Load = slices.Clone(m.Load)
		if i == 1 {
			for h := 24 * 25; h < 24*55; h++ {
				m.Load[h] = 0.05
			}
		}
		all = append(all, m)
	}
	s := must(f.Serve(ctx))
	const rounds = 4
	var wires []*wire
	for i, m := range all {
		w := must(f.tap(s.Host))
		wires = append(wires, w)
		one := must(series.NewDataset(*homes, []series.Meter{m}))
		data := f.path(m.ID + ".prepared")
		check(series.WritePrepared(data, one))
		token := must(s.Command(ctx, "token", "create"))
		name := fmt.Sprint("agent-", i)
		must(run(ctx, f.bin, nil, "agent", "join", "https://"+w.address, token, "--dir", f.path(name), "--name", name))
		must(f.start(name, "agent", "run", "--dir", f.path(name), "--data", data, "--workers", "1", "--policy", "trial"))
	}
	run := must(s.begin(ctx, fmt.Sprintf("name: sizes\nalgorithm: fedavg\nrounds: %d\nmodel: {name: dense, targets: 1h}\nevaluate: {every: 1}\n", rounds), int64(len(all))))
	r := must(s.follow(ctx, run, time.Minute))
	full, empty := wires[0].results(), wires[1].results()
	if r.Run.State != "finished" || len(full) != rounds || len(empty) != rounds {
		return Result{}, fmt.Errorf("the run is %s %s; %d and %d results were seen", r.Run.State, r.Run.Reason, len(full), len(empty))
	}
	if !slices.Equal(full, empty) {
		return succeeded("results of the one have %v bytes, of the other %v", full, empty), nil
	}
	return repelled("the results of %d rounds have %v bytes in both", rounds, full), nil
}
