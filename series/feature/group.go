// Package feature computes the inputs of models that forecast each target separately. For each
// origin and target, the inputs are a row of numbers. An origin is the step of the newest known
// load.
//
// The inputs are declared as named groups. A group reads loads only up to the origin. After
// the origin, it reads only the calendar and the weather. Loads are scaled by the mean and
// the standard deviation of the client's training split. The level, which is the mean of
// the last 168 hours, is subtracted from the loads and from the target. Inputs are limited
// to ±8.
//
// A lag is the same clock time on an earlier day. If that time is after the origin, the
// newest known load at the same clock time is used instead.
package feature

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Task contains the parameters of the inputs: the steps in a day, the steps from the origin to
// the first target, and the number of targets.
type Task struct{ StepsPerDay, Horizon, Targets int }

// next reports whether the only target is the step after the origin. If so, the weather
// is taken at the origin. Otherwise the forecast weather at the target is used.
func (t Task) next() bool { return t.Horizon == 1 && t.Targets == 1 }

// reach returns the number of steps from the origin to the last target.
func (t Task) reach() int { return t.Horizon + t.Targets - 1 }

// Group is a group of inputs.
type Group struct {
	Name  string
	About string
	// Reach is how far before the origin the group reads loads.
	Reach time.Duration
	// AtTarget means that the group reads the calendar or the weather at the target.
	AtTarget bool
	// Needs is the weather column or the description field that a dataset must have for
	// the group, or empty.
	Needs string

	names func(t Task) []string
	write func(b *block)
}

const day = 24 * time.Hour

// groups lists the groups in the order of the inputs.
var groups = []Group{
	{
		Name: "recent", Reach: day,
		About: "the load at each step of the last 24 hours",
		names: func(t Task) []string { return numbered("recent", t.StepsPerDay) },
		write: (*block).recent,
	},
	{
		Name: "lags", Reach: 7*day + time.Hour,
		About: "the load at the target's clock time on the last 7 days, their mean, and the loads around them",
		names: lagNames,
		write: (*block).lags,
	},
	{
		Name: "day", Reach: day,
		About: "mean, maximum and minimum of the last 24 hours",
		names: func(Task) []string { return []string{"day.mean", "day.max", "day.min"} },
		write: (*block).day,
	},
	{
		Name: "profiles", Reach: 29 * day, AtTarget: true,
		About: "the mean load at the same clock time 1 to 4 weeks before, and by hour and kind of day in the training split",
		names: func(Task) []string {
			return []string{"weeks.target", "weeks.before", "weeks.after", "weeks.origin", "profile.target", "profile.origin", "weeks.deviation"}
		},
		write: (*block).profiles,
	},
	{
		Name: "quartiles", Reach: 28 * day, AtTarget: true,
		About: "quartiles of the load at the same clock time on the last 28 days",
		names: func(Task) []string {
			return []string{"q25.target", "q50.target", "q75.target", "q50.origin", "q25.origin", "q75.origin"}
		},
		write: (*block).quartiles,
	},
	{
		Name: "level", Reach: 28 * day, AtTarget: true,
		About: "mean and standard deviation of the last 168 hours, the rank of the 28-day median, and how far the load is from it",
		names: func(Task) []string {
			return []string{"median.target", "median.origin", "above.0", "above.1", "level.mean", "level.deviation"}
		},
		write: (*block).levels,
	},
	{
		Name: "ranks", Reach: 7 * day,
		About: "the rank of the load among the client's training loads, for the last 24 hours and the last 7 days, with their means",
		names: func(t Task) []string {
			names := numbered("rank", t.StepsPerDay)
			for k := 1; k <= 7; k++ {
				names = append(names, fmt.Sprintf("rank.target-%dh", 24*k))
			}
			return append(names, "rank.target-24h+1", "rank.day", "rank.week")
		},
		write: (*block).ranks,
	},
	{
		Name: "calendar", AtTarget: true,
		About: "hour and weekday of the target as indicators, one and two cycles a day, weekends",
		names: func(Task) []string {
			return slices.Concat(numbered("hour", 24), numbered("weekday", 7),
				[]string{"cycle.sin1", "cycle.cos1", "cycle.sin2", "cycle.cos2", "weekend", "weekend.day-before"})
		},
		write: (*block).calendar,
	},
	{
		Name: "holidays", AtTarget: true, Needs: "country",
		About: "public holidays at the target, a day and a week before it, and the days from 24 December to 1 January",
		names: func(Task) []string {
			return []string{"holiday", "holiday.day-before", "holiday.week-before", "yearend", "yearend.week-before"}
		},
		write: (*block).holidays,
	},
	{
		Name: "temperature", AtTarget: true, Needs: "temperature",
		About: "temperature, its change in 1 and 24 hours, excess over and under the mild range, difference from its mean of 24 hours",
		names: func(t Task) []string {
			names := []string{"temperature", "temperature.change-1h", "temperature.change-24h", "temperature.warm", "temperature.cold", "temperature.deviation"}
			if !t.next() {
				names = append(names, "temperature.origin")
			}
			return names
		},
		write: (*block).temperature,
	},
	{
		Name: "wind", AtTarget: true, Needs: "wind",
		About: "wind speed",
		names: func(Task) []string { return []string{"wind"} },
		write: (*block).wind,
	},
	{
		Name: "lead", AtTarget: true,
		About: "the number of the target as indicators, and the time from the origin to it in days; only with several targets",
		names: func(t Task) []string {
			if t.Targets == 1 {
				return nil
			}
			return append(numbered("lead", t.Targets), "lead.days")
		},
		write: (*block).lead,
	},
}

func numbered(name string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s.%d", name, i)
	}
	return names
}

func lagNames(t Task) []string {
	var names []string
	first := 1
	if t.next() {
		first = 2 // the load a day before the target is third from last
	}
	for k := first; k <= 7; k++ {
		names = append(names, fmt.Sprintf("lag.target-%dh", 24*k))
	}
	if t.next() {
		return append(names, "lag.origin-24h", "lag.target-168h+1", "lag.target-168h+2", "lag.target-24h", "lag.mean")
	}
	return append(names, "lag.target-24h-1", "lag.target-24h+1", "lag.target-168h-1", "lag.target-168h+1",
		"lag.origin-24h", "lag.origin-48h", "lag.origin-144h", "lag.oldest", "lag.mean")
}

// Groups returns all groups in the order of the inputs.
func Groups() []Group { return slices.Clone(groups) }

// Width returns the number of inputs of the group.
func (g Group) Width(t Task) int { return len(g.names(t)) }

// Given reports whether a dataset with the given country and weather columns has the data
// that the named group needs.
func Given(name, country string, weather []string) bool {
	i := slices.IndexFunc(groups, func(g Group) bool { return g.Name == name })
	switch {
	case i < 0:
		return false
	case groups[i].Needs == "country":
		return country != "" || slices.Contains(weather, "holiday")
	}
	return groups[i].Needs == "" || slices.Contains(weather, groups[i].Needs)
}

// choose returns the groups with the given names in the order of the inputs, or all groups
// that the dataset has if there are no names.
func choose(names []string, country string, weather []string) ([]Group, error) {
	var chosen []Group
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return nil, fmt.Errorf("input group %s is listed twice", name)
		}
		if !slices.ContainsFunc(groups, func(g Group) bool { return g.Name == name }) {
			var known []string
			for _, g := range groups {
				known = append(known, g.Name)
			}
			return nil, fmt.Errorf("input group %q is unknown; the groups are %s", name, strings.Join(known, ", "))
		}
	}
	for _, g := range groups {
		given := Given(g.Name, country, weather)
		if listed := slices.Contains(names, g.Name); listed && !given {
			if g.Needs == "country" {
				return nil, fmt.Errorf("input group %s: the dataset has no country; add country, such as country: GB, to its description", g.Name)
			}
			return nil, fmt.Errorf("input group %s: the dataset has no %s; remove the group or add a weather column %s", g.Name, g.Needs, g.Needs)
		} else if listed || names == nil && given {
			chosen = append(chosen, g)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("the list of input groups is empty")
	}
	return chosen, nil
}
