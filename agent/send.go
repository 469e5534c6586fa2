package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"loadstar/agent/state"
	loadstarv1 "loadstar/proto/loadstar/v1"
)

// send sends results and declines, one after the other, until the server has them.
func (a *agent) send(ctx context.Context) error {
	b := backoff{first: a.first, most: a.most}
	for ctx.Err() == nil {
		var err error
		result, back := a.worklist.toSend()
		switch {
		case back != nil:
			err = a.giveBack(ctx, back)
		case result != nil:
			err = a.push(ctx, result)
		default:
			select {
			case <-a.worklist.post:
			case <-ctx.Done():
			}
			continue
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errStore), errors.Is(err, ErrRevoked):
			return err
		case err == nil:
			b.worked()
		default:
			if result != nil {
				a.worklist.later(result.ID)
			}
			wait := b.failed()
			a.Log.Warn("nothing can be sent", "error", err, "next", wait.Round(time.Millisecond))
			pause(ctx, wait, a.worklist.reached)
		}
	}
	return nil
}

// giveBack tells the server what will not be done.
func (a *agent) giveBack(ctx context.Context, x *decline) error {
	a.Log.Warn("declined", "run", x.run, "round", x.round, "clients", len(x.clients), "reason", x.reason)
	_, err := call(ctx, a, a.call, a.service.Decline, &loadstarv1.DeclineRequest{
		Turns:  &loadstarv1.Turns{Run: x.run, Round: x.round, Clients: x.clients},
		Reason: x.reason,
	})
	if err != nil && !understood(err) {
		return err
	}
	a.worklist.declined(x)
	return nil
}

// push sends a result, chunk by chunk, and takes up what becomes of it.
func (a *agent) push(ctx context.Context, r *state.Result) error {
	q := &loadstarv1.PushRequest{}
	if err := proto.Unmarshal(r.Head, q); err != nil {
		return storeError(fmt.Errorf("result %d: %w", r.ID, err))
	}
	chunk := make([]byte, min(int64(a.Chunk), r.Size))
	// A server that wants chunks again may have lost them once, but not for ever.
	for range 16 + 2*(r.Size/int64(a.Chunk)) {
		q.Chunk = chunk[:min(int64(len(chunk)), r.Size-q.Offset)]
		if err := a.store.Numbers(r.ID, q.Chunk, q.Offset); errors.Is(err, state.ErrDecided) {
			a.worklist.done([]uint64{r.ID}) // by a check-in that is about to say so
			return nil
		} else if err != nil {
			return storeError(err)
		}
		s, err := call(ctx, a, a.tuning.push, a.service.Push, q)
		if err != nil {
			if understood(err) {
				a.Log.Warn("the server does not take a result", "run", r.Run, "round", r.Round, "error", err)
				a.worklist.wasSent(r.ID)
				return nil
			}
			return err
		}
		if s.GetOutcome() != loadstarv1.Outcome_OUTCOME_PART {
			return a.answered(r, s)
		}
		if q.Offset = s.GetNextOffset(); q.Offset < 0 || q.Offset > r.Size {
			return fmt.Errorf("the server wants byte %d of a result of %d", q.Offset, r.Size)
		}
	}
	return errors.New("the server wants the same chunks again and again")
}

// answered takes up the answer to a whole result.
func (a *agent) answered(r *state.Result, s *loadstarv1.PushResponse) error {
	switch s.GetOutcome() {
	case loadstarv1.Outcome_OUTCOME_ACCEPTED:
		a.worklist.wasSent(r.ID)
		return nil
	case loadstarv1.Outcome_OUTCOME_COUNTED, loadstarv1.Outcome_OUTCOME_CLOSED, loadstarv1.Outcome_OUTCOME_REJECTED:
		return a.hear([]*loadstarv1.Verdict{{
			Run: r.Run, Round: r.Round, Clients: r.Clients[:1], Outcome: s.GetOutcome(), Reason: s.GetReason(),
		}})
	}
	return fmt.Errorf("the server answers a result with %s", s.GetOutcome())
}
