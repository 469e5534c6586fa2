package agent

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"loadstar/agent/state"
	loadstarv1 "loadstar/proto/loadstar/v1"
)

// turn identifies one client's part in one round of a run.
type turn struct {
	run    string
	round  int64
	client string
}

// stage is the progress of a turn.
type stage int

const (
	waiting   stage = iota // not yet trained
	training               // being trained
	declining              // a decline is queued
	ready                  // the result is on disk and queued for sending
	sent                   // possibly delivered; the next check-in asks the server
)

// place holds the stage of a turn, with its result and lease.
type place struct {
	stage  stage
	result uint64 // identifier of the result; set if the stage is ready or sent
	lease  time.Duration
}

// job is the unit of training: some or all clients of a task.
type job struct {
	*loadstarv1.Task
	clients []string
	// cancel stops the training when its round has closed.
	cancel context.CancelCauseFunc
	// adapt means that the clients do not train, but adapt and score the weights.
	adapt bool
}

// decline tells the server that some clients of a task will not be trained.
type decline struct {
	run     string
	round   int64
	clients []string
	code    string // kind of the reason
	reason  string
	sending bool // a request with this decline is in progress, so the decline must not change
}

// worklist holds the agent's open turns, jobs and results in memory. After a restart it is
// rebuilt from the results in the store, and the server assigns unfinished tasks again.
type worklist struct {
	mu       sync.Mutex
	hosted   map[string]bool
	most     int // maximum number of turns
	turns    map[turn]*place
	jobs     []*job // in order of arrival
	active   *job   // being trained
	results  map[uint64]state.Result
	queue    []uint64        // results to send, oldest first
	damaged  map[uint64]bool // results that cannot be read
	declines []*decline
	new      newcomers

	work, post chan struct{} // signalled when there is something to train, or to send
	reached    chan struct{} // signalled when the server responds
}

// turnsPerClient limits the open turns of one client, over all runs.
const turnsPerClient = 8

func newWorklist(clients []string, results []state.Result) *worklist {
	d := &worklist{
		hosted: map[string]bool{}, most: turnsPerClient * len(clients),
		turns: map[turn]*place{}, results: map[uint64]state.Result{}, damaged: map[uint64]bool{},
		work: make(chan struct{}, 1), post: make(chan struct{}, 1), reached: make(chan struct{}, 1),
	}
	for _, c := range clients {
		d.hosted[c] = true
	}
	for _, r := range results { // the next check-in asks the server whether it has them
		d.results[r.ID] = r
		d.place(r, sent)
	}
	return d
}

// place moves all turns of a result to the given stage.
func (d *worklist) place(r state.Result, s stage) {
	for _, c := range r.Clients {
		p := d.at(turn{r.Run, r.Round, c})
		p.stage, p.result = s, r.ID
	}
}

// at returns the place of a turn. It adds the turn if the worklist does not have it.
func (d *worklist) at(t turn) *place {
	p := d.turns[t]
	if p == nil {
		p = &place{}
		d.turns[t] = p
	}
	return p
}

// is reports whether the worklist has a turn and the turn is at the given stage.
func (d *worklist) is(t turn, s stage) bool {
	p := d.turns[t]
	return p != nil && p.stage == s
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// report returns three lists: the turns in progress, without a result that is sent with the
// report; the turns whose results may have reached the server; and the declines to send.
func (d *worklist) report(sending uint64) (training, pushed []*loadstarv1.Turns, declines []*decline) {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]turn, 0, len(d.turns))
	for t, p := range d.turns {
		if !(p.stage == ready && sending != 0 && p.result == sending) {
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b turn) int {
		return cmp.Or(cmp.Compare(a.run, b.run), cmp.Compare(a.round, b.round), cmp.Compare(a.client, b.client))
	})
	for _, t := range all {
		list := &training
		if d.turns[t].stage == sent {
			list = &pushed
		}
		n := len(*list)
		if n == 0 || (*list)[n-1].Run != t.run || (*list)[n-1].Round != t.round {
			*list = append(*list, &loadstarv1.Turns{Run: t.run, Round: t.round})
			n++
		}
		(*list)[n-1].Clients = append((*list)[n-1].Clients, t.client)
	}
	for _, x := range d.declines[:min(len(d.declines), declinesAtOnce)] {
		x.sending = true
		declines = append(declines, x)
	}
	return training, pushed, declines
}

// declinesAtOnce limits the declines of one call.
const declinesAtOnce = 64

// idle reports whether the agent has nothing to do after a call that sends a result.
func (d *worklist) idle(sending uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.turns {
		if p.stage != declining && !(p.stage == ready && sending != 0 && p.result == sending) {
			return false
		}
	}
	return len(d.declines) <= declinesAtOnce && len(d.new.jobs)+len(d.new.reports) == 0
}

// hasMore reports whether there is something to send.
func (d *worklist) hasMore() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.declines)+len(d.queue) > 0
}

// lease returns the shortest lease among the turns that are not sent yet.
func (d *worklist) lease() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	least := time.Duration(math.MaxInt64)
	for _, p := range d.turns {
		if p.stage != sent && p.lease > 0 {
			least = min(least, p.lease)
		}
	}
	return least
}

// add adds the turns of a task. Turns that are already known do not change.
func (d *worklist) add(task *loadstarv1.Task) {
	d.mu.Lock()
	defer d.mu.Unlock()
	j := &job{Task: task}
	lease := time.Duration(min(task.GetLeaseMs(), latest.Milliseconds())) * time.Millisecond
	var foreign []string
	for _, c := range task.GetClients() {
		t := turn{task.GetRun(), task.GetRound(), c}
		known, ok := d.turns[t]
		switch {
		case ok && known.stage == sent:
			// The server assigned the turn again, so it does not have the result.
			d.resend(known.result)
		case ok || len(d.turns) >= d.most:
			// Skip turns beyond the limit; the server assigns them again later.
		case !d.hosted[c]:
			foreign = append(foreign, c)
			d.turns[t] = &place{stage: declining}
		default:
			d.overtake(t)
			d.turns[t] = &place{stage: waiting, lease: lease}
			j.clients = append(j.clients, c)
		}
	}
	if len(foreign) > 0 {
		d.giveBack(task, foreign, "", "not one of this agent's clients")
	}
	if len(j.clients) > 0 {
		d.jobs = append(d.jobs, j)
		wake(d.work)
	}
}

// overtake drops the same client's waiting turn in an earlier round of the run, if there is
// one. The server assigns a client to a new round only after it has given up the earlier
// turn.
func (d *worklist) overtake(by turn) {
	for _, j := range d.jobs {
		t := turn{j.GetRun(), j.GetRound(), by.client}
		if t.run == by.run && t.round < by.round && d.is(t, waiting) && slices.Contains(j.clients, t.client) {
			d.unqueue(t)
			return
		}
	}
}

// unqueue removes a waiting turn from its job and from the worklist.
func (d *worklist) unqueue(t turn) {
	delete(d.turns, t)
	for i, j := range d.jobs {
		if j.GetRun() != t.run || j.GetRound() != t.round || !slices.Contains(j.clients, t.client) {
			continue // a round can have several jobs
		}
		j.clients = slices.DeleteFunc(j.clients, func(c string) bool { return c == t.client })
		if len(j.clients) == 0 {
			d.jobs = slices.Delete(d.jobs, i, i+1)
		}
		return
	}
}

// next waits for a job to train, and returns nil if ctx ends. A client whose last result
// in the same run is undecided must wait, because its personal layers depend on the
// decision.
func (d *worklist) next(ctx context.Context) *job {
	for ctx.Err() == nil {
		if j := d.take(); j != nil {
			return j
		}
		select {
		case <-d.work:
		case <-ctx.Done():
		}
	}
	return nil
}

func (d *worklist) take() *job {
	d.mu.Lock()
	defer d.mu.Unlock()
	undecided := map[turn]bool{} // by run and client; the round is zero
	for _, r := range d.results {
		for _, c := range r.Clients {
			undecided[turn{run: r.Run, client: c}] = true
		}
	}
	for i, j := range d.jobs {
		now := &job{Task: j.Task}
		var later []string
		for _, c := range j.clients {
			if undecided[turn{run: j.GetRun(), client: c}] {
				later = append(later, c)
				continue
			}
			now.clients = append(now.clients, c)
			d.at(turn{j.GetRun(), j.GetRound(), c}).stage = training
		}
		if len(now.clients) == 0 {
			continue
		}
		if j.clients = later; len(later) == 0 {
			d.jobs = slices.Delete(d.jobs, i, i+1)
		}
		d.active = now
		return now
	}
	return d.takeNew()
}

// begun sets the function that cancels the active job.
func (d *worklist) begun(j *job, cancel context.CancelCauseFunc) {
	d.mu.Lock()
	defer d.mu.Unlock()
	j.cancel = cancel
}

// wanted reports whether a client of the active job must still be trained.
func (d *worklist) wanted(j *job, client string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.is(turn{j.GetRun(), j.GetRound(), client}, training)
}

// has reports whether the worklist has a client's turn of a job.
func (d *worklist) has(j *job, client string) bool {
	_, ok := d.turns[turn{j.GetRun(), j.GetRound(), client}]
	return ok
}

// trained queues a result that is on disk for sending.
func (d *worklist) trained(r state.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.results[r.ID] = r
	d.place(r, ready)
	d.queue = append(d.queue, r.ID)
	wake(d.post)
}

// decline queues a decline for clients of the active job.
func (d *worklist) decline(j *job, code, reason string, clients ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []string
	for _, c := range clients {
		if d.has(j, c) {
			d.at(turn{j.GetRun(), j.GetRound(), c}).stage = declining
			all = append(all, c)
		}
	}
	if len(all) > 0 {
		d.giveBack(j.Task, all, code, reason)
	}
}

// giveBack queues a decline for clients of a task. If a decline for the same task and reason is
// queued, it adds the clients to that decline.
func (d *worklist) giveBack(t *loadstarv1.Task, clients []string, code, reason string) {
	wake(d.post)
	for _, x := range d.declines {
		if !x.sending && x.run == t.GetRun() && x.round == t.GetRound() && x.reason == reason {
			x.clients = append(x.clients, clients...)
			return
		}
	}
	d.declines = append(d.declines, &decline{run: t.GetRun(), round: t.GetRound(), clients: clients, code: code, reason: reason})
}

// end finishes the active job and requeues the clients that were not trained.
func (d *worklist) end(j *job) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.active = nil
	again := &job{Task: j.Task}
	for _, c := range j.clients {
		t := turn{j.GetRun(), j.GetRound(), c}
		if d.is(t, training) {
			d.at(t).stage = waiting
			again.clients = append(again.clients, c)
		}
	}
	if len(again.clients) > 0 {
		d.jobs = append(d.jobs, again)
		wake(d.work)
	}
}

// toSend returns the next result to send, or nil.
func (d *worklist) toSend() *state.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.queue) == 0 {
		return nil
	}
	found := d.results[d.queue[0]]
	return &found
}

// later moves a result to the end of the queue, so an unsendable result does not block
// the others.
func (d *worklist) later(id uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if i := slices.Index(d.queue, id); i >= 0 {
		d.queue = append(slices.Delete(d.queue, i, i+1), id)
	}
}

// wasSent records that the server has responded to a result. The next check-in asks for the
// verdict.
func (d *worklist) wasSent(id uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r, ok := d.results[id]; ok {
		d.place(r, sent)
	}
	d.queue = slices.DeleteFunc(d.queue, func(x uint64) bool { return x == id })
}

// ask makes the next check-in ask whether the server has received a result whose stored copy is
// damaged. It returns false if an earlier check-in has already asked.
func (d *worklist) ask(id uint64) bool {
	d.mu.Lock()
	asked := d.damaged[id]
	d.damaged[id] = true
	d.mu.Unlock()
	if !asked {
		d.wasSent(id)
	}
	return !asked
}

// declined removes declines that the server has received, and their turns.
func (d *worklist) declined(all []*decline) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.declines = slices.DeleteFunc(d.declines, func(x *decline) bool { return slices.Contains(all, x) })
	for _, x := range all {
		for _, c := range x.clients {
			delete(d.turns, turn{x.run, x.round, c})
		}
	}
}

// undeclined records that declines must still be sent.
func (d *worklist) undeclined(all []*decline) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, x := range all {
		x.sending = false
	}
}
