package simulation

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"loadstar/fed"
)

const maxClients = 8

// setting contains what a seed chooses before the fleet starts.
type setting struct {
	stable  bool
	region  bool
	clients []int // of each agent
	kind    int   // of the plan
	cohort  int
	rounds  int
	// exact means that no turn is given up. All asked clients are counted, so the weights must
	// equal those of a fleet without faults.
	exact          bool
	lease, longest time.Duration
	absent         time.Duration // longest time for which a part is unavailable
	odds           map[kind]int
	outage         *outage // nil if there is none
	// impatient means that gateways must not delay responses, so agents call again soon, and
	// perhaps call another gateway.
	impatient bool
	private   *privacy // nil if the run is plain
}

// privacy contains the choices that a seed makes only for a private run.
type privacy struct {
	keepers       int
	check, robust string
	quorum        float64
	invited       bool
	midnight      bool // a day ends during the run
	early         bool // the run begins before all agents are members, so some agents decline it
}

// layouts lists numbers of clients per agent. An agent with three clients sends sums.
var layouts = [][]int{{3, 1, 2}, {2, 3}, {1, 1, 1}, {4, 1}, {1, 3, 3}, {2, 2}}

// plans lists the algorithms. Each requires something different of the server: sums, server
// state, control variates, individual updates, and merges without rounds.
var plans = []string{
	"algorithm: fedavg\npartition: head\n",
	"algorithm: fedadam\n",
	"algorithm: scaffold\npartition: head\n",
	"algorithm: fedavgadaptive\npartition: head\nserver: {lr: 0.001}\n",
	"algorithm: fedbuff\npartition: head\n",
}

const asynchronous = 4 // index of the only plan whose weights depend on the order of arrival

func (s setting) total() (n int) {
	for _, c := range s.clients {
		n += c
	}
	return n
}

// plan returns the text of the plan.
func (s setting) plan() string {
	schedule := fmt.Sprintf("schedule: {cohort: %d}\n", s.cohort)
	if s.kind == asynchronous {
		schedule = fmt.Sprintf("schedule: {cohort: %d, buffer: %d}\n", s.cohort, max(1, s.cohort/2))
	}
	private := ""
	if x := s.private; x != nil {
		if s.longest > 0 { // a private plan has a deadline of its own
			schedule = fmt.Sprintf("schedule: {cohort: %d, deadline: %v}\n", s.cohort, fed.Duration(s.longest))
		}
		names := []string{"k1", "k2"}[:x.keepers]
		private = fmt.Sprintf("privacy: {mode: private, keepers: [%s], least: 2, quorum: %g, check: %s}\n", strings.Join(names, ", "), x.quorum, x.check)
		if x.robust != "none" {
			private += fmt.Sprintf("server: {robust: %s}\n", x.robust)
		}
	}
	return fmt.Sprintf("name: simulated\nseed: 3\n%s%srounds: %d\n%sclient: {batch: 8, steps: 1, lr: 0.01}\n"+
		"model: {name: fekri2023, lookback: 1, targets: 1, inputs: [load], scaling: client}\nevaluate: {every: 0}\n", plans[s.kind], private, s.rounds, schedule)
}

// key names everything that the weights of an exact setting depend on.
func (s setting) key() string {
	return fmt.Sprint(strings.ReplaceAll(s.plan(), "\n", "; "), s.clients)
}

// draw chooses the setting of a seed. Every seed has its own probabilities, because faults that
// are rare overall must be frequent in some seeds.
func draw(seed uint64) setting {
	r := rand.New(rand.NewPCG(seed, 2))
	s := setting{
		stable: r.IntN(2) == 0, region: r.IntN(4) == 0, clients: layouts[r.IntN(len(layouts))], kind: r.IntN(len(plans)), rounds: 2 + r.IntN(3),
		exact: r.IntN(3) > 0, lease: 10 * time.Minute, absent: 20 * time.Second, odds: map[kind]int{},
	}
	s.cohort = s.total()
	if r.IntN(3) == 0 {
		s.cohort = max(2, s.total()-1)
	}
	if s.kind == asynchronous {
		s.exact = false
	}
	if !s.exact {
		s.lease, s.longest, s.absent = 30*time.Second, 2*time.Minute, 3*time.Minute
	}
	for _, k := range kinds {
		if slices.Contains(keeperKinds, k) {
			continue
		}
		s.odds[k] = usual[k] * []int{0, 1, 1, 4, 10}[r.IntN(5)]
	}
	// With more of these faults, the fleet would do hardly anything else.
	for k, most := range map[kind]int{crash: 300, stop: 100, pause: 200, wait: 1000, cut: 60} {
		s.odds[k] = min(s.odds[k], most)
	}
	if s.exact {
		for _, k := range []kind{jump, revoke, stopRun, restore} {
			s.odds[k] = 0
		}
	}
	s.impatient = r.IntN(2) == 0
	return s
}

func drawPrivate(seed uint64) setting {
	s := draw(seed)
	r := rand.New(rand.NewPCG(seed, 3))
	x := &privacy{keepers: 1 + r.IntN(2), check: []string{"none", "norm"}[r.IntN(2)], robust: "none", quorum: 0.1, invited: r.IntN(2) == 0, midnight: r.IntN(3) == 0}
	x.invited = x.invited || s.region        // behind a region, members need invitations
	s.private, s.kind = x, s.kind%3          // the other plans cannot be private
	if x.check == "norm" && r.IntN(3) == 0 { // with one client per agent, the chosen results show the chosen clients
		x.robust, s.clients, s.kind = "nearest", []int{1, 1, 1, 1, 1}, s.kind%2
	}
	s.cohort = min(s.cohort, s.total())
	for _, k := range keeperKinds {
		s.odds[k] = usual[k] * []int{0, 1, 1, 4, 10}[r.IntN(5)]
	}
	s.odds[keeperCrash] = min(s.odds[keeperCrash], 1500)
	if s.exact {
		s.cohort = s.total() // a smaller cohort may have the clients of only one agent, which no keeper releases
		s.odds[keeperClock], s.odds[keeperOld] = 0, 0
	} else if r.IntN(4) == 0 {
		x.quorum = 0.9 // rounds with fewer results are abandoned
	}
	x.early = !s.exact && r.IntN(4) == 0
	return s
}

// choose returns the setting of a seed. One in five seeds is private.
func choose(seed uint64) setting {
	if *allPrivate || rand.New(rand.NewPCG(seed, 4)).IntN(5) == 0 {
		return drawPrivate(seed)
	}
	return draw(seed)
}

// calm returns the setting without faults.
func (s setting) calm() setting {
	s.odds, s.outage = nil, nil
	return s
}
