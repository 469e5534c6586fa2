package web

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/access"
)

// hub reads topics from the operators' API while they have viewers. One read serves all
// viewers. A topic's state is complete, so viewers need only the newest one.
type hub struct {
	api API
	// epoch is part of every event's id. A viewer whose last id is from another process, or from
	// before a restart, gets all states.
	epoch   string
	ctx     context.Context
	stop    context.CancelFunc
	polling chan struct{} // limits concurrent reads
	pollers sync.WaitGroup

	mu      sync.Mutex
	newest  int64 // number of the newest state of any topic
	topics  map[string]*topic
	viewers map[*viewer]bool
	ofUser  map[string]int // number of viewers
}

// topic is a subject that viewers can watch.
type topic struct {
	name    string
	viewers map[*viewer]bool
	// number orders the states of all topics. It is 0 until the topic has been read.
	number int64
	body   []byte // event and data, without the id
}

// viewer is one open stream of events.
type viewer struct {
	user, cookie string
	topics       []*topic
	changed      chan struct{} // has room for one value, which is set if a topic has a new state
	ended        chan struct{} // closed when the session ends
	told         bool          // true once ended is closed
}

const (
	maxViewers    = 256
	viewersOfUser = 64
	maxTopics     = 64
	topicsOfOne   = 8
	// topicsOfUser is the maximum number of topics that one user can watch. It leaves topics for
	// other users.
	topicsOfUser = maxTopics / 4
	maxPolls     = 2
	pollFor      = 30 * time.Second
	// After a read, a topic is not read again for restFactor times the duration of the read, but
	// for at most longestRest.
	restFactor  = 20
	longestRest = time.Minute
	// maxTurns is the maximum number of turns of a round that the page shows individually.
	maxTurns = 1000
	// maxPlan is the maximum length of a plan that is sent with each state of its run. The page
	// gets a longer plan from its first call of GetRun.
	maxPlan = 8 << 10
)

// rests contains the minimum time between two reads for each kind of topic.
var rests = map[string]time.Duration{"fleet": 2 * time.Second, "runs": time.Second, "run": 500 * time.Millisecond, "turns": time.Second}

var topicForm = regexp.MustCompile(`^(fleet|runs|(run|turns):[A-Za-z0-9._-]{1,64})$`)

func kindOf(topic string) string {
	kind, _, _ := strings.Cut(topic, ":")
	return kind
}

// newHub returns a hub that reads nothing yet.
func newHub(ctx context.Context, api API) *hub {
	h := &hub{
		api: api, epoch: strings.ToLower(rand.Text()[:8]), polling: make(chan struct{}, maxPolls),
		topics: map[string]*topic{}, viewers: map[*viewer]bool{}, ofUser: map[string]int{},
	}
	h.ctx, h.stop = context.WithCancel(ctx)
	return h
}

// close ends all pollers and waits for them.
func (h *hub) close() {
	h.stop()
	h.pollers.Wait()
}

var (
	errTopics = fmt.Errorf("want 1 to %d topics, separated by commas: fleet, runs, run:ID or turns:ID", topicsOfOne)
	errFull   = errors.New("too many people view the dashboard; request the state every few seconds instead")
)

// parseTopics returns the topics of a request.
func parseTopics(list string) ([]string, error) {
	names := strings.Split(list, ",")
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > topicsOfOne || slices.ContainsFunc(names, func(n string) bool { return !topicForm.MatchString(n) }) {
		return nil, errTopics
	}
	return names, nil
}

// join adds a viewer of some topics. It fails if there are too many viewers or topics, or if
// there is no such run.
func (h *hub) join(ctx context.Context, user, cookie string, names []string) (*viewer, error) {
	if err := h.exist(ctx, names); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	added := 0
	for _, n := range names {
		if h.topics[n] == nil {
			added++
		}
	}
	if len(h.viewers) >= maxViewers || h.ofUser[user] >= viewersOfUser || len(h.topics)+added > maxTopics || h.topicsOf(user, names) > topicsOfUser || h.ctx.Err() != nil {
		return nil, errFull
	}
	v := &viewer{user: user, cookie: cookie, changed: make(chan struct{}, 1), ended: make(chan struct{})}
	h.viewers[v] = true
	h.ofUser[user]++
	for _, n := range names {
		t := h.topics[n]
		if t == nil {
			t = &topic{name: n, viewers: map[*viewer]bool{}}
			h.topics[n] = t
			h.pollers.Go(func() { h.poll(t) })
		}
		t.viewers[v] = true
		v.topics = append(v.topics, t)
	}
	return v, nil
}

// exist returns an error if a topic belongs to an unknown run. It does not look up the run of a
// topic that already has viewers.
func (h *hub) exist(ctx context.Context, names []string) error {
	for _, name := range names {
		_, run, ok := strings.Cut(name, ":")
		h.mu.Lock()
		known := h.topics[name] != nil
		h.mu.Unlock()
		if !ok || known {
			continue
		}
		select {
		case h.polling <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		_, err := h.api.GetRun(access.With(ctx, asViewer()), &v1.GetRunRequest{Run: run, Rounds: 1})
		<-h.polling
		if connect.CodeOf(err) == connect.CodeNotFound {
			return err
		}
		// Any other error is shown as the topic's state.
	}
	return nil
}

// topicsOf returns the number of topics that a user views, including new ones. The caller
// holds the lock.
func (h *hub) topicsOf(user string, names []string) int {
	all := map[string]bool{}
	for _, n := range names {
		all[n] = true
	}
	for v := range h.viewers {
		if v.user == user {
			for _, t := range v.topics {
				all[t.name] = true
			}
		}
	}
	return len(all)
}

// asViewer returns the caller that reads topics. It is a viewer, because viewers may see
// all topics.
func asViewer() access.Caller {
	return access.Caller{Name: "dashboard", Role: access.Viewer, Via: access.ViaWeb, Expires: time.Now().Add(time.Hour)}
}

// leave removes a viewer.
func (h *hub) leave(v *viewer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.viewers, v)
	if h.ofUser[v.user]--; h.ofUser[v.user] == 0 {
		delete(h.ofUser, v.user)
	}
	for _, t := range v.topics {
		delete(t.viewers, v)
	}
}

// end ends the streams of a session.
func (h *hub) end(cookie string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for v := range h.viewers {
		if v.cookie == cookie && !v.told {
			v.told = true
			close(v.ended)
		}
	}
}

// state is the state of a topic as it is sent.
type state struct {
	number int64
	body   []byte
}

// since returns the states of a viewer's topics after the given number. They are in the
// order of numbers, so a viewer that has received one state has received all earlier
// ones.
func (h *hub) since(v *viewer, number int64) (all []state) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range v.topics {
		if t.number > number {
			all = append(all, state{t.number, t.body})
		}
	}
	slices.SortFunc(all, func(a, b state) int { return cmp.Compare(a.number, b.number) })
	return all
}

// resumed returns the number in the id of the last event that a viewer has received. It returns
// 0 if the id is not from this hub.
func (h *hub) resumed(id string) int64 {
	epoch, text, _ := strings.Cut(id, "-")
	number, err := strconv.ParseInt(text, 10, 64)
	if err != nil || epoch != h.epoch {
		return 0
	}
	return number
}

// poll reads a topic until it has no viewers.
func (h *hub) poll(t *topic) {
	for {
		select {
		case h.polling <- struct{}{}:
		case <-h.ctx.Done():
			return
		}
		began := time.Now()
		body := h.read(t.name)
		cost := time.Since(began)
		<-h.polling
		h.publish(t, body)
		// Do not count the time for which the read waited for its turn. Otherwise many topics
		// would be read without a pause.
		select {
		case <-time.After(max(rests[kindOf(t.name)], min(restFactor*cost, longestRest))):
		case <-h.ctx.Done():
			return
		}
		if h.unseen(t) {
			return
		}
	}
}

// unseen removes a topic if it has no viewers.
func (h *hub) unseen(t *topic) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(t.viewers) > 0 {
		return false
	}
	delete(h.topics, t.name)
	return true
}

// publish notifies the viewers of a topic if its state has changed.
func (h *hub) publish(t *topic, body []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil || slices.Equal(t.body, body) {
		return
	}
	h.newest++
	t.number, t.body = h.newest, body
	for v := range t.viewers {
		select {
		case v.changed <- struct{}{}:
		default: // the viewer has not read since the last change
		}
	}
}

// read returns the event with a topic's state, or with the reason why the state is missing.
func (h *hub) read(name string) []byte {
	ctx, cancel := context.WithTimeout(access.With(h.ctx, asViewer()), pollFor)
	defer cancel()
	m, err := h.fetch(ctx, name)
	var data []byte
	if err == nil {
		// Within one process, equal messages have equal encodings.
		data, err = protojson.Marshal(m)
	}
	if err != nil {
		message := err.Error()
		if e := (*connect.Error)(nil); errors.As(err, &e) {
			message = e.Message()
		}
		// Encoding strings as JSON never fails.
		data, _ = json.Marshal(map[string]string{"topic": name, "code": connect.CodeOf(err).String(), "message": message})
		name = "problem"
	}
	return fmt.Appendf(nil, "event: %s\ndata: %s\n", name, data)
}

func (h *hub) fetch(ctx context.Context, name string) (proto.Message, error) {
	kind, id, _ := strings.Cut(name, ":")
	switch kind {
	case "fleet":
		return h.api.GetFleet(ctx, &v1.GetFleetRequest{})
	case "runs":
		return h.api.ListRuns(ctx, &v1.ListRunsRequest{Limit: 20})
	case "run":
		r, err := h.api.GetRun(ctx, &v1.GetRunRequest{Run: id, Rounds: 8})
		if err == nil && len(r.Plan) > maxPlan {
			r.Plan = ""
		}
		return r, err
	}
	r, err := h.api.GetRun(ctx, &v1.GetRunRequest{Run: id, Rounds: 1})
	if err != nil {
		return nil, err
	}
	if len(r.Rounds) == 0 || r.Rounds[0].Asked > maxTurns {
		return &v1.ListTurnsResponse{}, nil
	}
	return h.api.ListTurns(ctx, &v1.ListTurnsRequest{Run: id, Round: r.Rounds[0].Round, Limit: maxTurns})
}
