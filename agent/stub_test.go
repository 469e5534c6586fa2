package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"loadstar/fed/round"
	"loadstar/internal/protocol"
	loadstarv1 "loadstar/proto/loadstar/v1"
)

// stub is a server whose responses a test controls.
type stub struct {
	loadstarv1.UnimplementedAgentServiceHandler
	http *httptest.Server

	mu       sync.Mutex
	blobs    map[string][]byte
	tasks    []*loadstarv1.Task // returned by every check-in until they are declined or pushed
	checkIns []*loadstarv1.ExchangeRequest
	pushes   []*loadstarv1.Result
	declines []*loadstarv1.Decline
	keepers  [][]byte // statements

	// Non-nil hooks replace the stub's default behaviour.
	serve   func(w http.ResponseWriter, r *http.Request) (done bool)
	checkIn func(r *loadstarv1.ExchangeRequest, a *loadstarv1.ExchangeResponse) error
	push    func(r *loadstarv1.Result) (*loadstarv1.Received, error)
}

func newStub(t testing.TB) *stub {
	t.Helper()
	s := &stub{blobs: map[string][]byte{}}
	s.http = httptest.NewServer(s)
	t.Cleanup(s.http.Close)
	return s
}

func (s *stub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	serve := s.serve
	s.mu.Unlock()
	if serve != nil && serve(w, r) {
		return
	}
	if hash, ok := strings.CutPrefix(r.URL.Path, "/v1/blobs/"); ok {
		s.mu.Lock()
		data, ok := s.blobs[hash]
		s.mu.Unlock()
		if !ok {
			http.NotFound(w, r)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
		return
	}
	_, h := loadstarv1.NewAgentServiceHandler(s, connect.WithInterceptors(protocol.Server()))
	h.ServeHTTP(w, r)
}

func (s *stub) put(data []byte) string {
	sum := sha256.Sum256(data)
	hash := hex.EncodeToString(sum[:])
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blobs[hash] = data
	return hash
}

// task returns a task to train clients from version 0 of a plan's weights.
func (s *stub) task(t testing.TB, run string, round_ int64, plan settings, fleet int, clients ...string) *loadstarv1.Task {
	t.Helper()
	text := plan.text(t)
	_, _, server := compose(t, text, fleet)
	first := server.Task(0)
	k := &loadstarv1.Task{
		Run: run, Round: round_, Clients: clients, Plan: s.put(text), Weights: s.put(round.AppendFloats(nil, first.Shared)),
		LeaseMs: 60000, Fleet: int64(fleet),
	}
	if first.Control != nil {
		k.Control = s.put(round.AppendFloats(nil, first.Control))
	}
	return k
}

func (s *stub) give(tasks ...*loadstarv1.Task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tasks = append(s.tasks, tasks...)
}

func (s *stub) Announce(context.Context, *loadstarv1.AnnounceRequest) (*loadstarv1.AnnounceResponse, error) {
	return &loadstarv1.AnnounceResponse{Statements: s.keepers}, nil
}

// parts is a server with a method for each part of an Exchange call.
type parts interface {
	decline(r *loadstarv1.Decline)
	receive(ctx context.Context, r *loadstarv1.Result) (*loadstarv1.Received, error)
	answer(ctx context.Context, r *loadstarv1.ExchangeRequest) (*loadstarv1.ExchangeResponse, error)
}

// exchange serves the parts of a call in the same order as a gateway.
func exchange(ctx context.Context, p parts, r *loadstarv1.ExchangeRequest) (*loadstarv1.ExchangeResponse, error) {
	for _, d := range r.Declines {
		p.decline(d)
	}
	var received *loadstarv1.Received
	if r.Result != nil {
		var err error
		if received, err = p.receive(ctx, r.Result); err != nil {
			return nil, err
		}
	}
	a, err := p.answer(ctx, r)
	if err != nil {
		return nil, err
	}
	a.Received = received
	return a, nil
}

func (s *stub) Exchange(ctx context.Context, r *loadstarv1.ExchangeRequest) (*loadstarv1.ExchangeResponse, error) {
	return exchange(ctx, s, r)
}

func (s *stub) answer(_ context.Context, r *loadstarv1.ExchangeRequest) (*loadstarv1.ExchangeResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checkIns = append(s.checkIns, r)
	a := &loadstarv1.ExchangeResponse{NextContactMs: 5}
	named := map[turn]bool{}
	for _, t := range append(r.Training, r.Pushed...) {
		for _, c := range t.Clients {
			named[turn{t.Run, t.Round, c}] = true
		}
	}
	for _, x := range r.GetResult().GetShares() {
		named[turn{r.Result.Run, r.Result.Round, x.Client}] = true
	}
	for _, t := range s.tasks {
		if !named[turn{t.Run, t.Round, t.Clients[0]}] {
			a.Tasks = append(a.Tasks, t)
		}
	}
	if s.checkIn != nil {
		return a, s.checkIn(r, a)
	}
	return a, nil
}

// end removes a round's tasks from the responses to check-ins.
func (s *stub) end(run string, round int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over(run, round)
}

// over is like end, for callers that hold the lock.
func (s *stub) over(run string, round int64) {
	var left []*loadstarv1.Task
	for _, t := range s.tasks {
		if t.Run != run || t.Round != round {
			left = append(left, t)
		}
	}
	s.tasks = left
}

func (s *stub) receive(_ context.Context, r *loadstarv1.Result) (*loadstarv1.Received, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pushes = append(s.pushes, r)
	if s.push != nil {
		return s.push(r)
	}
	if next := r.Offset + int64(len(r.Chunk)); next < r.Size {
		return &loadstarv1.Received{Outcome: loadstarv1.Outcome_OUTCOME_PART, NextOffset: next}, nil
	}
	s.over(r.Run, r.Round)
	return &loadstarv1.Received{Outcome: loadstarv1.Outcome_OUTCOME_COUNTED}, nil
}

func (s *stub) decline(r *loadstarv1.Decline) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.declines = append(s.declines, r)
	s.over(r.Turns.Run, r.Turns.Round)
}

// declined waits until a run is declined and returns the reason.
func (s *stub) declined(t testing.TB, run string) (reason string) {
	t.Helper()
	s.wait(t, "a decline of "+run, func() bool {
		for _, d := range s.declines {
			if d.Turns.Run == run {
				reason = d.Reason
				return true
			}
		}
		return false
	})
	return reason
}

// pushed waits for a complete result of a round.
func (s *stub) pushed(t testing.TB, run string, round int64) (r *loadstarv1.Result) {
	t.Helper()
	s.wait(t, "a result of "+run, func() bool {
		for _, r = range s.pushes {
			if r.Run == run && r.Round == round && r.Offset+int64(len(r.Chunk)) == r.Size {
				return true
			}
		}
		return false
	})
	return r
}

// wait waits until so returns true. It holds the lock when it calls so.
func (s *stub) wait(t testing.TB, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		ok := so()
		declines := s.declines
		s.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("no %s; declined: %v", what, declines)
		}
	}
}
