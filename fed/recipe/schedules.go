package recipe

import (
	"cmp"
	"math"
	"time"

	"loadstar/fed"
)

// kind describes one permitted value of schedule.kind.
type kind struct {
	name     string
	settings []setting
	// build returns the scheduler for cohorts of the given size from a fleet of the given size.
	build func(s *fed.Schedule, cohort, fleet int) scheduled
}

// scheduled is a scheduler with the numbers on which other parts of a composition depend.
type scheduled struct {
	fed.Scheduler
	// most is the maximum number of updates in a merge that were trained from the same version.
	most int
	// turns is the number of updates counted in a round if all clients return.
	turns int
}

var kinds = []kind{
	{
		name: "synchronous",
		settings: []setting{
			{path: "schedule.over_selection", about: "share of additional clients to ask beyond the cohort", must: nonNegative},
			{
				path: "schedule.quorum", about: "share of the cohort below which a round is abandoned at its deadline", must: unitInterval,
				adjust: func(p *fed.Plan, _ func(string) bool) {
					if Private(p) { // keepers refuse sums of fewer clients
						p.Schedule.Quorum = p.Privacy.Quorum
					}
				},
			},
			{
				path: "schedule.deadline", about: "maximum duration of a round; 0s means no limit; for a private plan, 12h by default and at most 24h",
				adjust: func(p *fed.Plan, _ func(string) bool) {
					if Private(p) {
						p.Schedule.Deadline = fed.Duration(usualDeadline)
					}
				},
			},
		},
		build: synchronous,
	},
	{
		name:     "buffered",
		settings: []setting{buffer},
		build: func(s *fed.Schedule, cohort, fleet int) scheduled {
			return scheduled{Buffered{Running: cohort, Buffer: s.Buffer}, min(fleet, cohort+s.Buffer-1), s.Buffer}
		},
	},
	{
		name: "periodic",
		settings: []setting{
			{path: "schedule.period", about: "time between merges", initial: time.Hour, must: positive},
		},
		build: func(s *fed.Schedule, cohort, _ int) scheduled {
			return scheduled{Periodic{Running: cohort, Period: time.Duration(s.Period)}, cohort, cohort}
		},
	},
}

// Settings that several schedules have.
var (
	scheduleKind = setting{path: "schedule.kind", about: "when updates are merged"}
	cohort       = setting{
		path: "schedule.cohort", about: "clients per round, or clients that train at the same time; 0 means the whole fleet, but 200 clients if the fleet has more than 500 and the plan is not private", must: nonNegative,
		adjust: func(p *fed.Plan, _ func(string) bool) {
			if Private(p) { // a sum must include most members of each cell, so the run asks all clients
				p.Schedule.Cohort = 0
			}
		},
	}
	buffer = setting{path: "schedule.buffer", about: "updates per merge", initial: 10, must: atLeastOne}
)

// scheduleSettings returns the settings of all schedules. A plan has only the settings of
// its own schedule.
func (a *algorithm) scheduleSettings() []setting {
	var all []setting
	for _, k := range kinds {
		for _, s := range k.settings {
			if a.mergesEach && s.path == buffer.path {
				continue
			}
			all = append(all, s.only(func(p *fed.Plan) bool { return p.Schedule.Kind == k.name }))
		}
	}
	return all
}

// A plan without a cohort asks all clients of a fleet of at most LargeFleet clients, and
// usualCohort clients of a larger fleet.
const (
	LargeFleet  = 500
	usualCohort = 200
)

// Sized returns the plan for a fleet in which the given number of clients train. If the fleet
// is large and the plan has no cohort, the returned plan has one, and chosen is true.
func Sized(p *fed.Plan, fleet int) (sized *fed.Plan, chosen bool) {
	a := find(p.Algorithm)
	// The sum of a private plan must include most members of each cell, so its cohort is not
	// reduced.
	if a == nil || a.noServer || Private(p) || p.Schedule.Cohort > 0 || fleet <= LargeFleet {
		return p, false
	}
	q := *p
	q.Schedule.Cohort = max(usualCohort, p.Schedule.Buffer)
	return &q, true
}

// newScheduler builds the scheduler of a plan. Plans without a schedule are
// synchronous.
func newScheduler(p *fed.Plan, fleet int) scheduled {
	cohort := cmp.Or(p.Schedule.Cohort, fleet)
	for _, k := range kinds {
		if k.name == p.Schedule.Kind {
			return k.build(&p.Schedule, cohort, fleet)
		}
	}
	return synchronous(&p.Schedule, cohort, fleet)
}

func synchronous(s *fed.Schedule, cohort, fleet int) scheduled {
	asked := min(int(math.Ceil(float64(cohort)*(1+s.Over)-1e-9)), fleet)
	return scheduled{Synchronous{
		Cohort: cohort, Asked: asked,
		Quorum:   int(math.Ceil(float64(cohort)*s.Quorum - 1e-9)),
		Deadline: time.Duration(s.Deadline),
	}, asked, asked}
}
