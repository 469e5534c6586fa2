package agent

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"loadstar/agent/state"
	loadstarv1 "loadstar/proto/loadstar/v1"
)

// outgoing is a result, or a chunk of one, that a call sends.
type outgoing struct {
	*state.Result
	message *loadstarv1.Result
}

// whole reports whether a result is sent completely.
func (o *outgoing) whole() bool {
	return o == nil || o.message.Offset+int64(len(o.message.Chunk)) == o.Size
}

// upload is the progress of a result that is sent in chunks.
type upload struct {
	id     uint64
	offset int64
	calls  int64
}

// outgoing returns the next result to send, or nil if there is none.
func (a *agent) outgoing() (*outgoing, error) {
	if a.withhold {
		return nil, nil
	}
	for {
		r := a.worklist.toSend()
		if r == nil {
			return nil, nil
		}
		if a.upload.id != r.ID {
			a.upload = upload{id: r.ID}
		}
		// A server may lose chunks and request them again. Limit the number of calls in case it
		// never stops asking.
		if a.upload.calls++; a.upload.calls > 16+2*(r.Size/int64(a.Chunk)) {
			a.upload = upload{}
			a.worklist.later(r.ID)
			return nil, errors.New("the server keeps requesting the same chunks")
		}
		q := &loadstarv1.Result{}
		if err := proto.Unmarshal(r.Head, q); err != nil {
			return nil, storeError(fmt.Errorf("result %d: %w", r.ID, err))
		}
		q.Offset = a.upload.offset
		var err error
		if !a.offer {
			q.Chunk = make([]byte, min(int64(a.Chunk), r.Size-q.Offset))
			err = a.store.Numbers(r.ID, q.Chunk, q.Offset)
		}
		switch {
		case err == nil:
			return &outgoing{r, q}, nil
		case errors.Is(err, state.ErrDecided):
			a.worklist.done([]uint64{r.ID})
		case errors.Is(err, state.ErrDamaged):
			if err := a.damaged(r, err); err != nil {
				return nil, err
			}
		default:
			return nil, storeError(err)
		}
	}
}

// damaged handles a result that cannot be read. An earlier attempt may have delivered it, so
// the next call asks the server. If the server does not have it, the agent drops it. The
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

// received handles the server's response to a result.
func (a *agent) received(r *outgoing, s *loadstarv1.Received) error {
	offered := a.offer
	a.offer = s.GetOutcome() == loadstarv1.Outcome_OUTCOME_UNKNOWN
	switch s.GetOutcome() {
	case loadstarv1.Outcome_OUTCOME_UNKNOWN:
		if !offered {
			a.Log.Warn("the server cannot take a result now; it waits here", "run", r.Run, "round", r.Round+1, "reason", s.GetReason())
		}
		a.upload = upload{}
		a.worklist.later(r.ID)
		return nil
	case loadstarv1.Outcome_OUTCOME_PART:
		if a.upload.offset = s.GetNextOffset(); a.upload.offset < 0 || a.upload.offset > r.Size {
			at := a.upload.offset
			a.upload = upload{}
			return fmt.Errorf("the server requests byte %d of a result of %d bytes", at, r.Size)
		}
		return nil
	case loadstarv1.Outcome_OUTCOME_ACCEPTED:
		a.upload = upload{}
		a.worklist.wasSent(r.ID)
		return nil
	case loadstarv1.Outcome_OUTCOME_COUNTED, loadstarv1.Outcome_OUTCOME_CLOSED, loadstarv1.Outcome_OUTCOME_REJECTED:
		a.upload = upload{}
		return a.hear([]*loadstarv1.Verdict{{
			Run: r.Run, Round: r.Round, Clients: r.Clients[:1], Outcome: s.GetOutcome(), Reason: s.GetReason(),
		}})
	}
	return fmt.Errorf("unexpected outcome %s for a result", s.GetOutcome())
}
