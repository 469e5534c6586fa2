package fleetload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	v1 "loadstar/proto/loadstar/v1"
)

// agent is one simulated agent. Only one goroutine at a time may use it.
type agent struct {
	fleet     *Fleet
	no        int
	clients   []string
	line      line
	announced bool
	reported  bool
	present   bool
	pushed    []pendingPush
	pushes    uint32
	told      []Told
}

// pendingPush is a result that the server has accepted, but on which there is no final
// verdict yet.
type pendingPush struct {
	run    string
	round  int64
	client string
	began  time.Time
}

const (
	soonest = 5 * time.Millisecond
	// retry is the delay before the next check-in after a failed call.
	retry = time.Second
)

// contact checks in once and handles the tasks in the response. It returns the time until
// the next check-in.
func (a *agent) contact(ctx context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if a.fleet.Short {
		defer a.line.close()
	}
	c := &a.fleet.counts
	q := &v1.CheckInRequest{Reports: a.report()}
	for _, t := range a.pushed {
		if n := len(q.Pushed); n == 0 || q.Pushed[n-1].Run != t.run || q.Pushed[n-1].Round != t.round {
			q.Pushed = append(q.Pushed, &v1.Turns{Run: t.run, Round: t.round})
		}
		last := q.Pushed[len(q.Pushed)-1]
		last.Clients = append(last.Clients, t.client)
	}
	start := time.Now()
	r := &v1.CheckInResponse{}
	if err := a.line.call(ctx, v1.AgentServiceCheckInProcedure, q, r); err != nil {
		c.failed(ctx, "check-in", err)
		return retry
	}
	answered := time.Now()
	c.checkIn.add(answered.Sub(start))
	if !a.present {
		a.present = true
		c.present.Add(1)
	}
	a.reported = a.reported || len(q.Reports) > 0
	for _, v := range r.Verdicts {
		for _, client := range v.Clients {
			a.handle(v, client, answered)
		}
	}
	for _, t := range r.Tasks {
		if err := a.do(ctx, t); err != nil {
			c.failed(ctx, "task", err)
		}
	}
	next := time.Duration(r.NextContactMs)*time.Millisecond - time.Since(answered)
	return max(next, soonest)
}

// handle processes the server's verdict on a pending push of a client.
func (a *agent) handle(v *v1.Verdict, client string, now time.Time) {
	i := 0
	for i < len(a.pushed) && (a.pushed[i].run != v.Run || a.pushed[i].round != v.Round || a.pushed[i].client != client) {
		i++
	}
	if i == len(a.pushed) {
		return
	}
	c := &a.fleet.counts
	switch v.Outcome {
	case v1.Outcome_OUTCOME_COUNTED:
		c.heard.add(now.Sub(a.pushed[i].began))
	case v1.Outcome_OUTCOME_CLOSED:
		c.closed.Add(1)
	case v1.Outcome_OUTCOME_REJECTED:
		c.reject(v.Reason)
	case v1.Outcome_OUTCOME_UNKNOWN: // drop it: the server assigns its task again
		c.unknown.Add(1)
	default:
		return
	}
	a.told = append(a.told, Told{v.Run, v.Round, client, v.Outcome})
	a.pushed = append(a.pushed[:i], a.pushed[i+1:]...)
}

// do fetches a task's weights, and pushes an update of the same length for each client.
func (a *agent) do(ctx context.Context, t *v1.Task) error {
	size, err := a.fetch(ctx, t.Weights)
	if err != nil {
		return err
	}
	for _, client := range t.Clients {
		if err := a.push(ctx, t, client, size); err != nil {
			return err
		}
	}
	return nil
}

func (a *agent) push(ctx context.Context, t *v1.Task, client string, size int) error {
	a.pushes++
	chunk, sum := a.fleet.numbers.take(size, a.no, a.pushes)
	defer a.fleet.numbers.put(chunk)
	c := &a.fleet.counts
	start := time.Now()
	r := &v1.PushResponse{}
	err := a.line.call(ctx, v1.AgentServicePushProcedure, &v1.PushRequest{
		Run: t.Run, Round: t.Round, Version: t.Version, Form: v1.Form_FORM_UPDATE,
		Shares:     []*v1.Share{{Client: client, Examples: 64 + int64(a.no%1000), Steps: 4, TrainLoss: a.loss(t.Round)}},
		Evaluation: a.evaluation(t.Round),
		Sha256:     sum[:], Size: int64(size), Chunk: *chunk,
	}, r)
	if errors.As(err, new(busyError)) {
		c.busy.Add(1)
		return nil
	} else if err != nil {
		a.told = append(a.told, Told{t.Run, t.Round, client, v1.Outcome_OUTCOME_UNSPECIFIED})
		return fmt.Errorf("push: %w", err)
	}
	a.told = append(a.told, Told{t.Run, t.Round, client, r.Outcome})
	c.push.add(time.Since(start))
	switch r.Outcome {
	case v1.Outcome_OUTCOME_ACCEPTED:
		c.accepted.Add(1)
		a.pushed = append(a.pushed, pendingPush{t.Run, t.Round, client, start})
	case v1.Outcome_OUTCOME_COUNTED:
		c.accepted.Add(1)
		c.heard.add(time.Since(start))
	case v1.Outcome_OUTCOME_CLOSED: // a late push
		c.closed.Add(1)
	default:
		c.reject(r.Outcome.String() + " " + r.Reason)
	}
	return nil
}

// fetch reads a blob and returns its length. Only the first agent that fetches a blob
// checks its hash, because hashing would take CPU time from the server under test.
func (a *agent) fetch(ctx context.Context, hash string) (int, error) {
	var n int
	start := time.Now()
	gone := false
	err := a.line.get(ctx, "/v1/blobs/"+hash, func(code int, body io.Reader) (err error) {
		switch code {
		case http.StatusOK:
			n, err = a.fleet.numbers.check(hash, body)
		case http.StatusNotFound:
			gone = true
		default:
			err = fmt.Errorf("the server says %d", code)
		}
		return err
	})
	switch {
	case err != nil:
		return 0, fmt.Errorf("weights: %w", err)
	case gone: // the round has closed
		a.fleet.counts.closed.Add(1)
		return 0, errGone
	}
	a.fleet.counts.fetch.add(time.Since(start))
	return n, nil
}

// errGone means that a task's round closed before the agent started it.
var errGone = errors.New("the weights are gone")

// maxBlob is the maximum size of a blob in bytes.
const maxBlob = 64 << 20

func limited(r io.Reader) io.Reader { return io.LimitReader(r, maxBlob) }
