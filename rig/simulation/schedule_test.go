package simulation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing/synctest"
	"time"
)

var (
	errDead = errors.New("simulated: this process is dead")
	errAway = errors.New("simulated: no answer")
)

// verdict is the schedule's decision on a call.
type verdict int

const (
	proceed verdict = iota
	refuse          // the call does not happen, or its response is lost
	repeat          // the call happens twice
)

// part is one incarnation of a fleet's process.
type part struct {
	s      *schedule
	kind   string
	name   string
	site   *site
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	// The schedule's lock guards these.
	dead   bool
	exited bool // its main function has returned err
	err    error
	paused time.Time // its calls wait until this time
	cut    time.Time // its calls get no response until this time
}

// call is a call that waits at the gate.
type call struct {
	*part
	what    string
	key     string // the name of the call, with the name of the part
	arrival uint64
	rest    int // number of times that the driver rested before it arrived
	release chan verdict
	ready   func() bool // nil means always
}

// schedule decides which of the waiting calls continues.
type schedule struct {
	seed   uint64
	byName bool // the order of calls depends only on their names
	start  time.Time

	mu       sync.Mutex
	waiting  []*call
	arrivals uint64
	rests    int
	arrived  chan struct{}

	// Only the driver uses these fields.
	random *rand.Rand
	passed map[string]int // how many calls of this name have passed
	steps  int
	hash   uint64
	lines  []string
	racy   []string // names that two simultaneous calls had
}

func newSchedule(seed uint64) *schedule {
	return &schedule{
		seed: seed, start: time.Now(), arrived: make(chan struct{}, 1), passed: map[string]int{},
		random: rand.New(rand.NewPCG(seed, 1)),
	}
}

// stream returns random numbers that depend only on the seed and the names.
func (s *schedule) stream(names ...any) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprint(h, names...)
	return rand.New(rand.NewPCG(s.seed, h.Sum64()))
}

// note adds a line to the trace.
func (s *schedule) note(format string, args ...any) {
	line := fmt.Sprintf("%10.3f ", time.Since(s.start).Seconds()) + fmt.Sprintf(format, args...)
	h := fnv.New64a()
	fmt.Fprintf(h, "%x %s", s.hash, line)
	s.hash = h.Sum64()
	s.lines = append(s.lines, line)
}

// wait keeps a call at the gate until the schedule decides on it.
func (p *part) wait(ctx context.Context, what string, ready func() bool) (verdict, error) {
	s := p.s
	s.mu.Lock()
	if p.dead {
		s.mu.Unlock()
		return refuse, errDead
	}
	s.arrivals++
	c := &call{part: p, what: what, key: p.name + " " + what, arrival: s.arrivals, rest: s.rests, release: make(chan verdict, 1), ready: ready}
	s.waiting = append(s.waiting, c)
	s.mu.Unlock()
	s.ring()
	select {
	case v := <-c.release:
		return s.released(p, v)
	case <-ctx.Done():
		if s.withdraw(c) {
			return refuse, ctx.Err()
		}
		return s.released(p, <-c.release)
	}
}

// ask is like wait, for calls that can only happen or fail.
func (p *part) ask(ctx context.Context, what string, ready func() bool) error {
	v, err := p.wait(ctx, what, ready)
	if err == nil && v == refuse {
		err = errAway
	}
	return err
}

func (s *schedule) released(p *part, v verdict) (verdict, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.dead {
		return refuse, errDead
	}
	return v, nil
}

// withdraw removes a call from the gate. It reports whether the call was there.
func (s *schedule) withdraw(c *call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.waiting, c)
	if i < 0 {
		return false
	}
	s.waiting = slices.Delete(s.waiting, i, i+1)
	return true
}

func (s *schedule) ring() {
	select {
	case s.arrived <- struct{}{}:
	default:
	}
}

func (s *schedule) spawn(kind, name string, at *site) *part {
	p := &part{s: s, kind: kind, name: name, site: at}
	ctx, cancel := context.WithCancel(context.Background())
	p.ctx, p.cancel = context.WithValue(ctx, partKey{}, p), cancel
	return p
}

type partKey struct{}

// partOf returns the part that a call belongs to, or nil if the call is the test's own.
func partOf(ctx context.Context) *part {
	p, _ := ctx.Value(partKey{}).(*part)
	return p
}

// kill ends a part at once: nothing that it does from now on has an effect.
func (s *schedule) kill(p *part) {
	s.mu.Lock()
	p.dead = true
	s.waiting = slices.DeleteFunc(s.waiting, func(c *call) bool {
		if c.part == p {
			c.release <- refuse
		}
		return c.part == p
	})
	s.mu.Unlock()
	p.cancel()
	p.wg.Wait()
}

// candidates waits until all goroutines wait, and returns the calls that may continue, in an
// order that does not depend on which call arrived first.
func (s *schedule) candidates() (all []*call) {
	synctest.Wait()
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rests++
	for _, c := range s.waiting {
		if !now.Before(c.paused) && (c.ready == nil || c.ready()) {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b *call) int {
		return cmp.Or(strings.Compare(a.key, b.key), cmp.Compare(a.arrival, b.arrival))
	})
	for i := 1; i < len(all); i++ {
		if all[i].key == all[i-1].key && all[i].rest == all[i-1].rest {
			s.racy = append(s.racy, all[i].key)
		}
	}
	return all
}

// pick returns the call that continues. In a stable schedule, this is the call with the lowest
// number, which depends only on the call. The other calls then keep their order if a fault is
// left out, so failures shrink well. Other schedules find bugs that stable ones miss.
func (s *schedule) pick(all []*call) *call {
	if !s.byName {
		return all[s.random.IntN(len(all))]
	}
	best, lowest := all[0], s.number("pick", all[0])
	for _, c := range all[1:] {
		if n := s.number("pick", c); n < lowest {
			best, lowest = c, n
		}
	}
	return best
}

// number returns a random number for a call.
func (s *schedule) number(use string, c *call) uint64 {
	return s.stream(use, s.turn(c)).Uint64()
}

// turn returns the name of a call, and how many calls of that name have passed.
func (s *schedule) turn(c *call) string { return c.key + " #" + strconv.Itoa(s.passed[c.key]) }

// let lets a call continue.
func (s *schedule) let(c *call, v verdict) {
	s.passed[c.key]++
	if s.withdraw(c) {
		c.release <- v
	}
}

// idle waits until a call arrives at the gate, but not longer than d.
func (s *schedule) idle(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-s.arrived:
	case <-t.C:
	}
}
