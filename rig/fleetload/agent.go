package fleetload

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"loadstar/fed/member"
	v1 "loadstar/proto/loadstar/v1"
)

// agent is one simulated agent. Only one goroutine at a time may use it.
type agent struct {
	fleet     *Fleet
	no        int
	id        string                   // ID by which server and keepers know the agent
	keys      map[member.Pin]memberKey // keys of the keepers with which the agent is enrolled
	clients   []string
	line      line
	announced bool
	reported  bool
	present   bool
	session   string // session of the latest response
	todo      []pendingTurn
	pushed    []pendingPush
	pushes    uint32
	told      []Told
	have      [][]byte // hashes of the blobs that the agent has recently received
}

// pendingTurn is a client of a task whose result has not been sent yet.
type pendingTurn struct {
	*v1.Task
	client string
	size   int
}

// pendingPush is a result that the server has accepted without a final verdict yet.
type pendingPush struct {
	run    string
	round  int64
	client string
	began  time.Time
}

const (
	soonest = 5 * time.Millisecond
	// retry is the delay before the next call after a failed one.
	retry = time.Second
	// hold is the maximum time for which the server may delay the answer to a call. Real agents
	// allow a longer time, but a fleet must wait for delayed calls before it rests.
	hold = 10 * time.Second
	// maxHave is the maximum number of blobs that an agent remembers.
	maxHave = 4
)

// contact makes one call, with a result if there is one to send, and handles the response. It
// returns the time until the next call.
func (a *agent) contact(ctx context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if a.fleet.Short {
		defer a.line.close()
	}
	c := &a.fleet.counts
	q := &v1.ExchangeRequest{Reports: a.report(), Session: a.session, Have: a.have}
	for _, t := range a.pushed {
		q.Pushed = addTurn(q.Pushed, t.run, t.round, t.client)
	}
	var sending *pendingTurn
	if len(a.todo) > 0 {
		sending = &a.todo[0]
		for _, t := range a.todo[1:] {
			q.Training = addTurn(q.Training, t.Run, t.Round, t.client)
		}
		result, free, err := a.result(ctx, sending)
		if err != nil {
			a.todo = a.todo[1:]
			c.failed(ctx, "result", err)
			return retry
		}
		defer free()
		q.Result = result
	}
	if len(a.todo) <= 1 && len(a.pushed) == 0 && !a.fleet.Short {
		q.WaitMs = hold.Milliseconds()
	}
	start := time.Now()
	r := &v1.ExchangeResponse{}
	err := a.line.call(ctx, v1.AgentServiceExchangeProcedure, q, r)
	switch {
	case errors.As(err, new(busyError)):
		c.busy.Add(1)
		return retry
	case err != nil:
		if sending != nil {
			a.told = append(a.told, Told{sending.Run, sending.Round, sending.client, v1.Outcome_OUTCOME_UNSPECIFIED})
			a.todo = a.todo[1:] // the server assigns the turn again unless it has counted it
		}
		c.failed(ctx, "exchange", err)
		return retry
	}
	answered := time.Now()
	a.session = r.Session
	if !a.present {
		a.present = true
		c.present.Add(1)
	}
	if sending == nil {
		c.checkIn.add(answered.Sub(start))
	} else {
		c.push.add(answered.Sub(start))
		c.pushed.Add(int64(proto.Size(q)))
		a.answered(sending, r.Received, start)
		a.todo = a.todo[1:]
	}
	a.reported = a.reported || len(q.Reports) > 0
	for _, v := range r.Verdicts {
		for _, client := range v.Clients {
			a.handle(v, client, answered)
		}
	}
	if err := a.add(ctx, r); err != nil {
		c.failed(ctx, "task", err)
	}
	if len(a.todo) > 0 {
		return a.fleet.slot()
	}
	next := time.Duration(r.NextContactMs)*time.Millisecond - time.Since(answered)
	return max(next, soonest)
}

// addTurn adds a turn to a list in ascending order of rounds.
func addTurn(all []*v1.Turns, run string, round int64, client string) []*v1.Turns {
	if n := len(all); n == 0 || all[n-1].Run != run || all[n-1].Round != round {
		all = append(all, &v1.Turns{Run: run, Round: round})
	}
	last := all[len(all)-1]
	last.Clients = append(last.Clients, client)
	return all
}

// add adds the tasks of a response after fetching their weights.
func (a *agent) add(ctx context.Context, r *v1.ExchangeResponse) error {
	sizes := map[string]int{}
	for _, b := range r.Blobs {
		hash, sum := a.fleet.numbers.received(b)
		sizes[hash] = len(b)
		a.keep(sum)
	}
	for _, t := range r.Tasks {
		a.fleet.counts.sawRound(t.Run, t.Round)
		size, ok := sizes[t.Weights]
		if !ok {
			if size, ok = a.fleet.numbers.length(t.Weights); !ok || !a.has(t.Weights) {
				var err error
				if size, err = a.fetch(ctx, t.Weights); err != nil {
					return err
				}
			}
		}
		for _, client := range t.Clients {
			a.todo = append(a.todo, pendingTurn{t, client, size})
		}
	}
	return nil
}

// keep records that the agent has a blob.
func (a *agent) keep(sum []byte) {
	a.have = append(a.have, sum)
	a.have = a.have[max(0, len(a.have)-maxHave):]
}

func (a *agent) has(hash string) bool {
	return slices.ContainsFunc(a.have, func(sum []byte) bool { return hex.EncodeToString(sum) == hash })
}

// answered records the verdict on a result.
func (a *agent) answered(t *pendingTurn, r *v1.Received, start time.Time) {
	c := &a.fleet.counts
	a.told = append(a.told, Told{t.Run, t.Round, t.client, r.GetOutcome()})
	switch r.GetOutcome() {
	case v1.Outcome_OUTCOME_ACCEPTED:
		c.accepted.Add(1)
		a.pushed = append(a.pushed, pendingPush{t.Run, t.Round, t.client, start})
	case v1.Outcome_OUTCOME_COUNTED:
		c.accepted.Add(1)
		c.heard.add(time.Since(start))
	case v1.Outcome_OUTCOME_CLOSED: // the result was too late
		c.closed.Add(1)
	default:
		c.reject(r.GetOutcome().String() + " " + r.GetReason())
	}
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
	case v1.Outcome_OUTCOME_UNKNOWN: // drop it, because the server assigns its task again
		c.unknown.Add(1)
	default:
		return
	}
	a.told = append(a.told, Told{v.Run, v.Round, client, v.Outcome})
	a.pushed = append(a.pushed[:i], a.pushed[i+1:]...)
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
			err = fmt.Errorf("the server returned %d", code)
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
	if sum, err := hex.DecodeString(hash); err == nil {
		a.keep(sum)
	}
	return n, nil
}

// errGone means that a task's round closed before the agent started it.
var errGone = errors.New("the weights no longer exist")

// maxBlob is the maximum size of a blob in bytes.
const maxBlob = 64 << 20

func limited(r io.Reader) io.Reader { return io.LimitReader(r, maxBlob) }
