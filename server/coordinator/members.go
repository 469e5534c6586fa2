package coordinator

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/server/directory"
	"loadstar/server/ledger"
)

const (
	// most is the share of clients that must have an input or an interval for a run to use it.
	// Clients without it are left out. If all clients had to have it, a single client could
	// prevent its use.
	most = 0.9
	// named is the maximum number of clients that a message names.
	named = 5
)

// membership describes which of the recently seen clients are chosen as a run's members.
type membership struct {
	directory.Filter
	seen    int64 // number of clients that were seen recently
	clients int64 // number of members among them
	inputs  []string
	leftOut string // which clients and inputs were left out, and why
}

// members chooses as a run's members the clients with the inputs and the interval that most
// clients have. kinds describes the recently seen clients.
func members(x *ledger.Drive, p *fed.Plan, kinds []directory.Kind, seen time.Time) (m membership, err error) {
	m.Filter = directory.Filter{Seen: seen}
	all, err := x.Count(m.Filter)
	if err != nil {
		return m, err
	}
	m.seen = all
	m.Step = commonStep(kinds, all)
	if m.Step == 0 {
		m.clients, m.inputs = all, commonInputs(kinds)
		return m, nil // terms.Settle names the intervals
	}
	kinds = slices.DeleteFunc(slices.Clone(kinds), func(k directory.Kind) bool { return k.Step != m.Step })
	var unused []string
	m.inputs, m.Inputs, unused = chooseInputs(p, kinds, all)
	if m.clients, err = x.Count(m.Filter); err != nil {
		return m, err
	}
	m.leftOut, err = explainLeftOut(x, m, all, unused)
	return m, err
}

// commonStep returns the interval that most clients have, or 0 if there is none.
func commonStep(kinds []directory.Kind, all int64) time.Duration {
	by := map[time.Duration]int64{}
	for _, k := range kinds {
		by[k.Step] += k.Clients
	}
	for step, n := range by {
		if len(by) == 1 || float64(n) >= most*float64(all) {
			return step
		}
	}
	return 0
}

// commonInputs returns the inputs that clients of all kinds have.
func commonInputs(kinds []directory.Kind) (all []string) {
	for i, k := range kinds {
		if i == 0 {
			all = slices.Clone(k.Inputs)
		}
		all = slices.DeleteFunc(all, func(in string) bool { return !slices.Contains(k.Inputs, in) })
	}
	return all
}

// chooseInputs returns three sets: the inputs that the run may use, those for which clients
// are left out, and those that the plan would use if most clients had them. It adds the
// most frequent inputs first, as long as most clients have all of them.
func chooseInputs(p *fed.Plan, kinds []directory.Kind, all int64) (inputs, required, unused []string) {
	has := map[string]int64{}
	for _, k := range kinds {
		for _, in := range k.Inputs {
			has[in] += k.Clients
		}
	}
	by := slices.SortedFunc(maps.Keys(has), func(a, b string) int { return cmp.Or(cmp.Compare(has[b], has[a]), cmp.Compare(a, b)) })
	frequent := slices.DeleteFunc(slices.Clone(by), func(in string) bool { return float64(has[in]) < most*float64(all) })
	inputs = commonInputs(kinds)
	left := kinds
	for _, in := range frequent {
		if slices.Contains(inputs, in) || !needs(p, frequent, in) {
			continue
		}
		some := slices.DeleteFunc(slices.Clone(left), func(k directory.Kind) bool { return !slices.Contains(k.Inputs, in) })
		if float64(count(some)) < most*float64(all) {
			continue
		}
		left, required = some, append(required, in)
	}
	inputs = commonInputs(left)
	for _, in := range by[:min(len(by), 100)] {
		if !slices.Contains(inputs, in) && needs(p, append(slices.Clone(inputs), in), in) {
			unused = append(unused, in)
		}
	}
	return inputs, required, unused
}

func count(kinds []directory.Kind) (n int64) {
	for _, k := range kinds {
		n += k.Clients
	}
	return n
}

// needs reports whether a plan uses an input in addition to the given ones.
func needs(p *fed.Plan, given []string, in string) bool {
	if slices.Contains(p.Model.Inputs, in) {
		return true
	}
	uses := func(given []string) string {
		names, _ := recipe.Inputs(p, given)
		return fmt.Sprint(names, recipe.MissingGroups(p, given))
	}
	return uses(given) != uses(slices.DeleteFunc(slices.Clone(given), func(x string) bool { return x == in }))
}

// explainLeftOut describes which clients are not members and which inputs are not used, and
// why.
func explainLeftOut(x *ledger.Drive, m membership, all int64, unused []string) (string, error) {
	var parts []string
	if m.clients < all {
		who, err := x.Lacking(m.Filter, named)
		if err != nil {
			return "", err
		}
		parts = append(parts, fmt.Sprintf("left out %d of %d clients: %s", all-m.clients, all, describe(who, all-m.clients, m.Inputs, m.Step)))
	}
	for _, in := range unused[:min(len(unused), named)] {
		f := directory.Filter{Seen: m.Seen, Inputs: []string{in}}
		who, err := x.Lacking(f, named)
		if err != nil {
			return "", err
		}
		n, err := x.Count(f)
		if err != nil {
			return "", err
		}
		parts = append(parts, fmt.Sprintf("%s is not used, %d of %d clients lack it: %s", in, all-n, all, names(who, all-n)))
	}
	return strings.Join(parts, "; "), nil
}

// describe lists what each client in who lacks. who contains only the first of these clients;
// all is their total number.
func describe(who []directory.Client, all int64, inputs []string, step time.Duration) string {
	var parts []string
	for _, c := range who {
		var lacks []string
		for _, in := range inputs {
			if !slices.Contains(c.Inputs, in) {
				lacks = append(lacks, in)
			}
		}
		if c.Step != step {
			parts = append(parts, fmt.Sprintf("%s has readings every %s instead of %s", c.Name, c.Step, step))
		} else {
			parts = append(parts, c.Name+" lacks "+strings.Join(lacks, " and "))
		}
	}
	return strings.Join(parts, ", ") + more(len(who), all)
}

func names(who []directory.Client, all int64) string {
	var parts []string
	for _, c := range who {
		parts = append(parts, c.Name)
	}
	return strings.Join(parts, ", ") + more(len(who), all)
}

func more(shown int, all int64) string {
	if int64(shown) < all {
		return fmt.Sprintf(" and %d more", all-int64(shown))
	}
	return ""
}
