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

// turn is one client's part of one round of a run.
type turn struct {
	run    string
	round  int64
	client string
}

// A turn goes from one state to the next, or away.
type stage int

const (
	waiting   stage = iota // to be trained
	training               // at the trainer's
	declining              // to be given back
	ready                  // on disk, to be sent
	sent                   // maybe sent: the server is asked about it
)

// place is where a turn is.
type place struct {
	stage  stage
	result uint64 // of ready and sent ones
	lease  time.Duration
}

// job is what the trainer does at a time: some clients of a task.
type job struct {
	*loadstarv1.Task
	clients []string
	// cancel ends it when nobody wants it any more.
	cancel context.CancelCauseFunc
}

// decline is a task that is given back, for some clients.
type decline struct {
	run     string
	round   int64
	clients []string
	reason  string
	sending bool // it must not change any more
}

// worklist is what the agent has before it. What must not be lost is in the store: the
// worklist is made from it again, and the server gives the rest once more.
type worklist struct {
	mu       sync.Mutex
	hosted   map[string]bool
	most     int // turns at a time
	turns    map[turn]*place
	jobs     []*job // in the order in which they came
	active   *job   // the trainer's
	results  map[uint64]state.Result
	queue    []uint64 // results to be sent, the oldest first
	declines []*decline

	work, post chan struct{} // something to be trained; to be sent
	reached    chan struct{} // the server answers
}

// turnsPerClient bounds how much one client can be asked for at a time, by different
// runs.
const turnsPerClient = 8

func newWorklist(clients []string, results []state.Result) *worklist {
	d := &worklist{
		hosted: map[string]bool{}, most: turnsPerClient * len(clients),
		turns: map[turn]*place{}, results: map[uint64]state.Result{},
		work: make(chan struct{}, 1), post: make(chan struct{}, 1), reached: make(chan struct{}, 1),
	}
	for _, c := range clients {
		d.hosted[c] = true
	}
	for _, r := range results { // the server knows whether it has them
		d.results[r.ID] = r
		d.place(r, sent)
	}
	return d
}

// place puts the turns of a result into a state.
func (d *worklist) place(r state.Result, s stage) {
	for _, c := range r.Clients {
		p := d.at(turn{r.Run, r.Round, c})
		p.stage, p.result = s, r.ID
	}
}

// at returns where a turn is, and takes it up if it is not known.
func (d *worklist) at(t turn) *place {
	p := d.turns[t]
	if p == nil {
		p = &place{}
		d.turns[t] = p
	}
	return p
}

// is says whether a turn is in a state.
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

// report lists the turns that have the agent's attention, and those that the server
// is asked about.
func (d *worklist) report() (training, pushed []*loadstarv1.Turns) {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]turn, 0, len(d.turns))
	for t := range d.turns {
		all = append(all, t)
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
	return training, pushed
}

// lease returns the shortest lease of what the server waits for.
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

// add takes a task up. What is known of its turns already stays as it is.
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
			d.resend(known.result) // it would not be asked for if it were there
		case ok || len(d.turns) >= d.most:
			// More than that can be asked for again later.
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
		d.giveBack(task, foreign, "not one of this agent's clients")
	}
	if len(j.clients) > 0 {
		d.jobs = append(d.jobs, j)
		wake(d.work)
	}
}

// overtake gives up earlier rounds of a client that wait to be trained: nobody asks a
// client that is still expected.
func (d *worklist) overtake(by turn) {
	for _, j := range d.jobs {
		t := turn{j.GetRun(), j.GetRound(), by.client}
		if t.run == by.run && t.round < by.round && d.is(t, waiting) && slices.Contains(j.clients, t.client) {
			d.unqueue(t)
			return
		}
	}
}

// unqueue removes a turn that waits.
func (d *worklist) unqueue(t turn) {
	delete(d.turns, t)
	for i, j := range d.jobs {
		if j.GetRun() != t.run || j.GetRound() != t.round {
			continue
		}
		j.clients = slices.DeleteFunc(j.clients, func(c string) bool { return c == t.client })
		if len(j.clients) == 0 {
			d.jobs = slices.Delete(d.jobs, i, i+1)
		}
		return
	}
}

// next returns what to train now, nil if ctx ended. A client whose last result in the
// same run is not decided on has to wait: what it keeps is not known yet.
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
	undecided := map[turn]bool{} // without their rounds
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
	return nil
}

// begun tells how the job in hand is ended from outside.
func (d *worklist) begun(j *job, cancel context.CancelCauseFunc) {
	d.mu.Lock()
	defer d.mu.Unlock()
	j.cancel = cancel
}

// wanted says whether a client's turn of the job in hand is still to be trained.
func (d *worklist) wanted(j *job, client string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.is(turn{j.GetRun(), j.GetRound(), client}, training)
}

// has says whether the worklist knows of a turn.
func (d *worklist) has(j *job, client string) bool {
	_, ok := d.turns[turn{j.GetRun(), j.GetRound(), client}]
	return ok
}

// trained takes a result that is on disk.
func (d *worklist) trained(r state.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.results[r.ID] = r
	d.place(r, ready)
	d.queue = append(d.queue, r.ID)
	wake(d.post)
}

// decline gives clients of the job in hand back.
func (d *worklist) decline(j *job, reason string, clients ...string) {
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
		d.giveBack(j.Task, all, reason)
	}
}

// giveBack has clients of a task declined, together with those of the same reason
// that wait for it.
func (d *worklist) giveBack(t *loadstarv1.Task, clients []string, reason string) {
	wake(d.post)
	for _, x := range d.declines {
		if !x.sending && x.run == t.GetRun() && x.round == t.GetRound() && x.reason == reason {
			x.clients = append(x.clients, clients...)
			return
		}
	}
	d.declines = append(d.declines, &decline{run: t.GetRun(), round: t.GetRound(), clients: clients, reason: reason})
}

// end puts the job in hand away. Clients that it did not come to an end with wait
// again.
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

// toSend returns the next thing to send: a result, a decline, or neither.
func (d *worklist) toSend() (r *state.Result, x *decline) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.declines) > 0 {
		d.declines[0].sending = true
		return nil, d.declines[0]
	}
	if len(d.queue) > 0 {
		found := d.results[d.queue[0]]
		return &found, nil
	}
	return nil, nil
}

// later lets other results go first: it may be this one alone that cannot be sent.
func (d *worklist) later(id uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if i := slices.Index(d.queue, id); i >= 0 {
		d.queue = append(slices.Delete(d.queue, i, i+1), id)
	}
}

// wasSent notes that the server has a result, or does not want it: it is asked.
func (d *worklist) wasSent(id uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r, ok := d.results[id]; ok {
		d.place(r, sent)
	}
	d.queue = slices.DeleteFunc(d.queue, func(x uint64) bool { return x == id })
}

// declined removes a decline that the server has heard, with its turns.
func (d *worklist) declined(x *decline) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.declines = slices.DeleteFunc(d.declines, func(y *decline) bool { return x == y })
	for _, c := range x.clients {
		delete(d.turns, turn{x.run, x.round, c})
	}
}
