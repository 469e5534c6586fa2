package recipe

import (
	"fmt"
	"regexp"
	"slices"
	"time"

	"loadstar/fed"
)

// The permitted values of privacy.mode, privacy.check and of server.robust in private plans.
const (
	modeNone, modePrivate = "none", "private"
	checkNone, checkNorm  = "none", "norm"
	robustNearest         = "nearest"
)

// Limits on the settings of a private plan.
const (
	maxKeepers = 4
	// usualDeadline and longestDeadline are the default and the maximum of schedule.deadline.
	// Agents and keepers erase the keys of a round after two days.
	usualDeadline   = 12 * time.Hour
	longestDeadline = 24 * time.Hour
)

// keeperName matches the permitted names of keepers.
var keeperName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)

// Private reports whether the server of a plan learns only sums of the agents' results.
func Private(p *fed.Plan) bool { return p.Privacy.Mode == modePrivate }

// ChecksNorms reports whether the keepers of a private plan check the norms of results.
func ChecksNorms(p *fed.Plan) bool { return Private(p) && p.Privacy.Check == checkNorm }

// ChoosesNearest reports whether the keepers of a private plan choose which results count.
func ChoosesNearest(p *fed.Plan) bool { return p.Server.Robust == robustNearest }

// privacyMode is privacy.mode. If an algorithm cannot be private, the setting has no choices,
// because [validatePrivacy] reports the reason.
func (a *algorithm) privacyMode() setting {
	s := setting{
		path: "privacy.mode", about: "none: the server receives each update; private: keepers hold the keys of masks, and the server learns only sums",
		initial: modeNone, quiet: true,
	}
	if a.plain == "" {
		s.choices = []string{modeNone, modePrivate}
	}
	return s
}

var privacySettings = []setting{
	setting{path: "privacy.keepers", about: "names of the keepers in the server's configuration, such as [auditor]; each keeper has its own keys, so updates stay hidden as long as one keeper is honest"}.only(Private),
	setting{path: "privacy.least", about: "minimum number of agents in a sum; keepers and agents may require more", initial: 20, must: rule{"at least 2", func(v float64) bool { return v >= 2 }}}.only(Private),
	setting{path: "privacy.quorum", about: "minimum share of the members of a keeper's cell in a sum; keepers may require more", initial: 0.7, must: positiveShare}.only(Private),
	setting{path: "privacy.check", about: "norm: keepers estimate the norm of each update from 32 products and refuse long updates; none: one client can spoil a round unnoticed", initial: checkNorm, choices: []string{checkNone, checkNorm}}.only(Private),
}

// validatePrivacy reports settings that a private plan cannot have.
func validatePrivacy(a *algorithm, p *fed.Plan, add report) {
	if a.plain != "" && p.Privacy.Mode != modeNone && p.Privacy.Mode != "" {
		add("privacy.mode", "privacy.mode is %s, but %s %s; it must be %s", p.Privacy.Mode, a.name, a.plain, modeNone)
		return
	}
	if !Private(p) {
		if ChoosesNearest(p) {
			add("server.robust", "server.robust is nearest, which needs privacy.mode private; for a plain plan use trim")
		}
		return
	}
	if k := p.Schedule.Kind; k != "synchronous" {
		add("schedule.kind", "schedule.kind is %s, but a private plan needs synchronous: masks cover the results of one round", k)
	}
	switch d := time.Duration(p.Schedule.Deadline); {
	case d == 0:
		add("schedule.deadline", "schedule.deadline is 0s; a private plan needs a deadline of at most %v, because the keys of a round are erased after two days", fed.Duration(longestDeadline))
	case d > longestDeadline:
		add("schedule.deadline", "schedule.deadline is %v; in a private plan it must be at most 24h, because the keys of a round are erased after two days", d)
	}
	switch {
	case Trims(p):
		add("server.robust", "server.robust is trim, which needs each update; a private plan can have nearest")
	case ChoosesNearest(p) && p.Privacy.Check != checkNorm:
		add("server.robust", "server.robust is nearest, which needs privacy.check norm: keepers compare the same products")
	}
	if p.Privacy.Check == checkNorm && p.Server.Clip <= 0 {
		add("privacy.check", "privacy.check is norm, but server.clip is %g, so there is no limit to check; raise server.clip, or use none", p.Server.Clip)
	}
	if p.Evaluate.Holdout > 0 {
		add("evaluate.holdout", "evaluate.holdout is %g, but held-out clients report their test errors unmasked, so a private plan cannot have any", p.Evaluate.Holdout)
	}
	validateKeepers(p.Privacy.Keepers, add)
}

func validateKeepers(names []string, add report) {
	switch {
	case len(names) == 0:
		add("privacy.keepers", "privacy.keepers is empty; a private plan needs the name of at least one keeper, such as [auditor]")
	case len(names) > maxKeepers:
		add("privacy.keepers", "privacy.keepers has %d names; the maximum is %d", len(names), maxKeepers)
	}
	for i, name := range names {
		switch {
		case !keeperName.MatchString(name):
			add("privacy.keepers", "privacy.keepers has %q; a name has up to 32 lower-case letters, digits and hyphens", name)
		case slices.Contains(names[:i], name):
			add("privacy.keepers", "privacy.keepers has %s twice", name)
		}
	}
}

// checkPrivate returns an error if a round has too few clients for a private sum.
func checkPrivate(p *fed.Plan, cohort int) error {
	switch {
	case !Private(p) || cohort >= LeastClients(p):
		return nil
	case cohort < p.Privacy.Least:
		return fmt.Errorf("privacy.least is %d, but a round has %d clients, so no sum would be released", p.Privacy.Least, cohort)
	}
	return fmt.Errorf("privacy.least is %d, but with server.robust nearest a sum has %d of the %d clients of a round, so none would be released", p.Privacy.Least, (3*cohort+3)/4, cohort)
}

// LeastClients returns the smallest number of clients in a private plan's round with which a
// keeper may release the sum. It is 0 for other plans.
func LeastClients(p *fed.Plan) int {
	if ChoosesNearest(p) { // the keepers choose three quarters of the results
		return (4*p.Privacy.Least - 1) / 3
	}
	return p.Privacy.Least
}
