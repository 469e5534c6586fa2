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

// send delivers results and declines one by one, with retries.
func (a *agent) send(ctx context.Context) error {
	retry := a.retry("send")
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
			retry.Reset()
		default:
			if result != nil {
				a.worklist.later(result.ID)
			}
			wait := retry.Next()
			a.Log.Warn("cannot send to the server", "error", err, "next", wait.Round(time.Millisecond))
			pause(ctx, wait, a.worklist.reached)
		}
	}
	return nil
}

// giveBack sends a decline to the server and removes it from the worklist.
func (a *agent) giveBack(ctx context.Context, x *decline) error {
	a.Log.Warn("declined", "run", x.run, "round", x.round+1, "clients", len(x.clients), "reason", x.reason)
	_, err := call(ctx, a, a.call, a.service.Decline, &loadstarv1.DeclineRequest{
		Turns:  &loadstarv1.Turns{Run: x.run, Round: x.round, Clients: x.clients},
		Reason: x.reason, Code: x.code,
	})
	if err != nil && !understood(err) {
		return err
	}
	a.worklist.declined(x)
	return nil
}

// push sends a result in chunks and handles the response.
func (a *agent) push(ctx context.Context, r *state.Result) error {
	q := &loadstarv1.PushRequest{}
	if err := proto.Unmarshal(r.Head, q); err != nil {
		return storeError(fmt.Errorf("result %d: %w", r.ID, err))
	}
	chunk := make([]byte, min(int64(a.Chunk), r.Size))
	// A server may lose chunks and ask for them again. Limit the number of requests in case
	// it never stops asking.
	for range 16 + 2*(r.Size/int64(a.Chunk)) {
		q.Chunk = chunk[:min(int64(len(chunk)), r.Size-q.Offset)]
		if err := a.store.Numbers(r.ID, q.Chunk, q.Offset); errors.Is(err, state.ErrDecided) {
			a.worklist.done([]uint64{r.ID}) // a concurrent check-in received the decision
			return nil
		} else if errors.Is(err, state.ErrDamaged) {
			return a.damaged(r, err)
		} else if err != nil {
			return storeError(err)
		}
		s, err := call(ctx, a, a.tuning.push, a.service.Push, q)
		if err != nil {
			if understood(err) {
				a.Log.Warn("the server refused a result", "run", r.Run, "round", r.Round+1, "error", err)
				a.worklist.wasSent(r.ID)
				return nil
			}
			return err
		}
		if s.GetOutcome() != loadstarv1.Outcome_OUTCOME_PART {
			return a.answered(r, s)
		}
		if q.Offset = s.GetNextOffset(); q.Offset < 0 || q.Offset > r.Size {
			return fmt.Errorf("the server asks for byte %d of a result of %d bytes", q.Offset, r.Size)
		}
	}
	return errors.New("the server keeps asking for the same chunks")
}

// damaged handles a result that cannot be read. An earlier attempt may have delivered it, so
// the next check-in asks the server. If the server does not have it, the agent drops it. The
// clients train again, from the same state, when the server assigns their turns again.
func (a *agent) damaged(r *state.Result, why error) error {
	keys := []any{"run", r.Run, "round", r.Round + 1, "clients", len(r.Clients), "error", why}
	if a.worklist.ask(r.ID) {
		a.Log.Error("a result is damaged", keys...)
		return nil
	}
	a.Log.Error("dropped a damaged result that the server does not have; its clients train again", keys...)
	if err := a.store.Decide(nil, []uint64{r.ID}); err != nil {
		return storeError(err)
	}
	a.worklist.done([]uint64{r.ID})
	return nil
}

// answered handles the response to a complete result.
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
	return fmt.Errorf("unexpected outcome %s for a result", s.GetOutcome())
}
