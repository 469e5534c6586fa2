package paper

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"loadstar/lab/experiment"
)

// cellOf identifies a cell of ours.tsv: a figure of a result that an expression has read.
type cellOf struct{ part, dataset, method, at, metric string }

// Count contains the numbers that summarize the papers in one line.
type Count struct {
	Claims, Rules, CanFail int
	// Narrow counts the rules whose verdict changes if a single figure changes by 30 %.
	Narrow int
	// Runs contains the number of runs of each paper, and Improving the number of those that
	// were still improving when they ended.
	Papers          []string
	Runs, Improving map[string]int
	// Stuck names the rules whose verdict no change of figures changes, although they are not
	// arithmetic.
	Stuck []string
}

// Add adds the claims, rules and runs of a paper to the counts.
func (c *Count) Add(p *Paper) error {
	results, err := p.Results()
	if err != nil {
		return err
	}
	claims, err := readClaims(p.dir)
	if err != nil {
		return err
	}
	published, err := p.published()
	if err != nil {
		return err
	}
	if c.Runs == nil {
		c.Runs, c.Improving = map[string]int{}, map[string]int{}
	}
	c.Papers = append(c.Papers, p.Name)
	c.Runs[p.Name], c.Improving[p.Name] = ended(results)
	c.Claims += len(claims)
	for _, one := range claims {
		if one.Holds == "" {
			continue
		}
		if one.Untested != "" { // a rule that the results do not test is not in force
			r := &rules{results: results, published: published}
			if untested, err := r.condition(one.Untested); err != nil || untested {
				if err != nil {
					return fmt.Errorf("%s: %s: %w", p.Name, one.ID, err)
				}
				continue
			}
		}
		c.Rules++
		if one.Arithmetic {
			continue
		}
		turns, narrow, err := mutate(one, results, published)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", p.Name, one.ID, err)
		}
		if turns {
			c.CanFail++
		} else {
			c.Stuck = append(c.Stuck, p.Name+" "+one.ID)
		}
		if narrow {
			c.Narrow++
		}
	}
	return nil
}

// String returns the counts as one line.
func (c *Count) String() string {
	var shares []string
	for _, name := range c.Papers {
		shares = append(shares, fmt.Sprintf("%s %.0f %%", name, 100*float64(c.Improving[name])/float64(max(1, c.Runs[name]))))
	}
	return fmt.Sprintf("papers %d, claims %d, rules that can fail %d of %d, still improving %s", len(c.Papers), c.Claims, c.CanFail, c.Rules, strings.Join(shares, ", "))
}

// mutate reports whether changed figures change the verdict on a claim, and whether a change of
// one figure by 30 % does. It changes the figures that the rule reads, by 30 % up to a factor of a
// hundred. It changes each figure alone. It also changes together all figures of a method, of a
// method in a part, of a point of a grid, or of two methods, because a verdict that follows from
// either of two conditions changes only with both. Runs that were not trained to the end are
// treated like the others.
func mutate(c claim, results []experiment.Result, published []printed) (turns, narrow bool, err error) {
	read := map[cellOf]bool{} // an expression does not read figures that can no longer change its value
	outcome := func(results []experiment.Result) (string, error) {
		r := &rules{results: results, published: published, cells: read}
		holds, err := r.condition(c.Holds)
		partly := false
		if err == nil && c.Partly != "" {
			partly, err = r.condition(c.Partly)
		}
		return fmt.Sprint(holds, !holds && partly), err
	}
	before, err := outcome(results)
	if err != nil {
		return false, false, err
	}
	turned := func(factor float64, chosen func(cellOf) bool) (bool, error) {
		changed := slices.Clone(results)
		for i, row := range changed {
			cloned := false
			for metric, f := range row.Figures {
				of := cellOf{row.Part, row.Dataset, row.Method, strings.Join(row.At, "; "), metric}
				if !read[of] || !chosen(of) {
					continue
				}
				if !cloned {
					changed[i].Figures, cloned = maps.Clone(row.Figures), true
				}
				scaled := make(experiment.Figure, len(f))
				for k, v := range f {
					scaled[k] = v * factor
				}
				changed[i].Figures[metric] = scaled
			}
		}
		after, err := outcome(changed)
		return err == nil && after != before, err
	}
	groups := []func(a, b cellOf) bool{
		func(a, b cellOf) bool { return a == b },
		func(a, b cellOf) bool { return a.part == b.part && a.dataset == b.dataset && a.method == b.method },
		func(a, b cellOf) bool { return a.part == b.part && a.method == b.method },
		func(a, b cellOf) bool { return a.method == b.method && a.at == b.at },
		func(a, b cellOf) bool { return a.method == b.method },
		func(a, b cellOf) bool { return a.part == b.part && a.at == b.at && a.dataset == b.dataset },
		func(a, b cellOf) bool { return a.part == b.part && a.at == b.at },
		func(a, b cellOf) bool { return a.metric == b.metric && a.part == b.part },
	}
	const alone = 60 // a grid has hundreds of figures, so only about this many are tried alone
	for known := 0; known < len(read); {
		known = len(read)
		order := slices.SortedFunc(maps.Keys(read), func(a, b cellOf) int {
			return strings.Compare(fmt.Sprint(a), fmt.Sprint(b))
		})
		for i, same := range groups {
			step := 1
			if i == 0 {
				step = max(1, len(order)/alone)
			}
			var done []cellOf
			for k := 0; k < len(order); k += step {
				of := order[k]
				if slices.ContainsFunc(done, func(d cellOf) bool { return same(d, of) }) {
					continue
				}
				done = append(done, of)
				for _, factor := range []float64{0.7, 1.3, 0.5, 2, 0.1, 10, 0.01, 100} {
					hit, err := turned(factor, func(d cellOf) bool { return same(d, of) })
					if err != nil {
						return false, false, err
					}
					if hit {
						return true, i == 0 && (factor == 0.7 || factor == 1.3), nil
					}
				}
			}
		}
	}
	var methods []string
	for of := range read {
		if !slices.Contains(methods, of.method) {
			methods = append(methods, of.method)
		}
	}
	slices.Sort(methods)
	for i, a := range methods {
		for _, b := range methods[:i] {
			for _, factor := range []float64{0.7, 1.3, 0.5, 2} {
				hit, err := turned(factor, func(d cellOf) bool { return d.method == a || d.method == b })
				if hit || err != nil {
					return hit, false, err
				}
			}
		}
	}
	return false, false, nil
}
