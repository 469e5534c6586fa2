package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"time"

	"loadstar/internal/protocol"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/rig/product"
)

// answer computes a client's result for a task, which consists of its share and its numbers.
// The numbers are the change of the weights, followed by the change of the control variate if
// the task has one.
type answer func(t *v1.Task, weights []float32) ([]float32, *v1.Share)

// harmless answers with a small change in no particular direction.
func harmless(t *v1.Task, weights []float32) ([]float32, *v1.Share) {
	n := numbers(t, weights)
	for i := range n {
		n[i] = 1e-4 * float32(i%7-3)
	}
	return n, &v1.Share{Examples: 100, Steps: 4, TrainLoss: 0.1, Loss: 0.1}
}

// numbers returns zeros for all numbers of a result.
func numbers(t *v1.Task, weights []float32) []float32 {
	if t.Control != "" {
		return make([]float32, 2*len(weights))
	}
	return make([]float32, len(weights))
}

// Serve answers all tasks of the agent's clients, one update per client, until the context
// ends.
func (a *Agent) Serve(ctx context.Context, by answer) error {
	var pushed []*v1.Turns
	for ctx.Err() == nil {
		r, err := a.checkIn(ctx, &v1.ExchangeRequest{Pushed: pushed})
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		for _, v := range r.Verdicts {
			if v.Outcome != v1.Outcome_OUTCOME_ACCEPTED {
				pushed = without(pushed, v)
			}
		}
		for _, t := range r.Tasks {
			done, err := a.answer(ctx, t, by)
			if err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
			if len(done) > 0 {
				pushed = append(pushed, &v1.Turns{Run: t.Run, Round: t.Round, Clients: done})
			}
		}
		_ = product.Sleep(ctx, 100*time.Millisecond) // the loop ends when the context does
	}
	return nil
}

// without removes the turns that a verdict decides.
func without(pushed []*v1.Turns, v *v1.Verdict) (rest []*v1.Turns) {
	decided := map[string]bool{}
	for _, c := range v.Clients {
		decided[c] = true
	}
	for _, t := range pushed {
		if t.Run != v.Run || t.Round != v.Round {
			rest = append(rest, t)
			continue
		}
		var open []string
		for _, c := range t.Clients {
			if !decided[c] {
				open = append(open, c)
			}
		}
		if len(open) > 0 {
			rest = append(rest, &v1.Turns{Run: t.Run, Round: t.Round, Clients: open})
		}
	}
	return rest
}

func (a *Agent) checkIn(ctx context.Context, q *v1.ExchangeRequest) (*v1.ExchangeResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	r, err := a.Exchange(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("check in: %w", err)
	}
	return r, nil
}

// answer pushes an update for each client of a task and returns the updates that the server
// accepts.
func (a *Agent) answer(ctx context.Context, t *v1.Task, by answer) (kept []string, err error) {
	weights, err := a.weights(ctx, t.Weights)
	if err != nil {
		return nil, err
	}
	for _, client := range t.Clients {
		n, share := by(t, weights)
		share.Client = client
		b := make([]byte, 0, 4*len(n))
		for _, x := range n {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
		}
		p, err := a.push(ctx, &v1.Result{
			Run: t.Run, Round: t.Round, Version: t.Version, Form: v1.Form_FORM_UPDATE, Shares: []*v1.Share{share},
			Checksum: protocol.Checksum(b), Size: int64(len(b)), Chunk: b,
		})
		if err != nil {
			return nil, fmt.Errorf("pushing: %w", err)
		}
		if p.Outcome == v1.Outcome_OUTCOME_ACCEPTED || p.Outcome == v1.Outcome_OUTCOME_COUNTED {
			kept = append(kept, client)
		}
	}
	return kept, nil
}

// weights fetches a blob of float32 values.
func (a *Agent) weights(ctx context.Context, blob string) ([]float32, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.Base+"/v1/blobs/"+blob, nil)
	if err != nil {
		return nil, err
	}
	r, err := a.HTTP.Do(req)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("fetch weights: %s", r.Status), err)
	}
	w := make([]float32, len(b)/4)
	for i := range w {
		w[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return w, nil
}

// begin starts a run once the given number of clients is announced.
func (s *Server) begin(ctx context.Context, plan string, clients int64) (string, error) {
	o, err := s.Operators()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	r, err := o.StartRun(ctx, &v1.StartRunRequest{Plan: plan, Clients: clients})
	if err != nil {
		return "", fmt.Errorf("start a run: %w", err)
	}
	return r.Run, nil
}

// look returns a run with its newest rounds, newest first.
func (s *Server) look(ctx context.Context, run string) (*v1.GetRunResponse, error) {
	o, err := s.Operators()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	return o.GetRun(ctx, &v1.GetRunRequest{Run: run, Rounds: 100})
}

// follow returns the run once it has ended, or its current state when the time limit is over.
func (s *Server) follow(ctx context.Context, run string, within time.Duration) (*v1.GetRunResponse, error) {
	var r *v1.GetRunResponse
	_, err := product.Eventually(ctx, within, func() (bool, error) {
		var err error
		if r, err = s.look(ctx, run); err != nil {
			return false, err
		}
		return r.Run.State != "waiting" && r.Run.State != "running", nil
	})
	return r, err
}

// rounds returns the closed rounds that had results, oldest first.
func rounds(r *v1.GetRunResponse) (merged []*v1.Round) {
	for i := len(r.Rounds) - 1; i >= 0; i-- {
		if r.Rounds[i].State == "merged" {
			merged = append(merged, r.Rounds[i])
		}
	}
	return merged
}
