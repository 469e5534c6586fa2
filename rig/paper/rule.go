package paper

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/expr-lang/expr"

	"loadstar/lab/experiment"
)

// rules evaluates the expressions of claims.yaml, which are in the language of
// github.com/expr-lang/expr. They read the results in ours.tsv and the numbers in published.tsv
// through the functions below. No other function has effects outside the expression. A function
// that takes values accepts any list of numbers, or one number.
//
//	v(part, dataset, method, metric, at...)  values of a metric, one for each seed; at has the grid's values
//	has(part, dataset, method, metric, at...) whether ours.tsv has them
//	mean(x) low(x) high(x) spread(x)  mean, lowest, highest, and sample standard deviation over seeds
//	seeds(x)                          number of seeds
//	times(x, number)                  each value times a number, such as 100 for per cent
//	ratio(x, y)                       x/y seed by seed
//	lower(x, y)                       whether mean(x) < mean(y)
//	clearly(x, y)                     whether x is below y in every seed, and their means differ by more
//	                                  than the larger spread; false with fewer than three seeds
//	datasets(part) methods(part) baselines(part)  their names, in the order of ours.tsv
//	axis(part, i)                     values of the i-th setting of a grid, from 0
//	best(part, dataset, metric, methods, at...)   name of the method with the lowest mean
//	rank(part, dataset, metric, methods, method, at...)  place of a method by its mean, from 1
//	grid(part, dataset, method, metric)           means over a grid of two settings, a list for each value of
//	                                  the first one; infinite where a run failed
//	minimum(part, dataset, method, metric, at...) lowest mean of a metric over the points that begin with at
//	diverged(part, dataset, method, at...)        number of seeds whose run diverged
//	published(table, row, column, metric)         a number that the paper prints
//
// A mean with a value that is not a number, such as that of a run that failed, compares as
// false. Both sides of "and" and "or" are always computed, so an unknown row is an error
// wherever it occurs, except in the branch of a condition ? a : b that is not taken.
type rules struct {
	results   []experiment.Result
	published []printed
	// anyway means that runs that were not fully trained are judged like all others.
	anyway bool

	index map[string]*experiment.Result
	read  map[string]*experiment.Result // results on whose training an expression depends
	cells map[cellOf]bool               // figures that an expression read, unless it is nil
}

// untrained lists the metrics that do not depend on how long a run was trained.
var untrained = []string{"bytes_per_turn", "bytes", "gradients", "steps", "clients", "rounds", "diverged"}

// compared lists the prefixes of metrics that compare a run with those of the other methods.
var compared = []string{"won_", "near_", "dm_", "gained", "reached_", "than_"}

// depend records that an expression depends on the training of a result, and of all results
// with which its metric compares it.
func (r *rules) depend(row *experiment.Result, metric string) {
	others := slices.ContainsFunc(compared, func(begin string) bool { return strings.HasPrefix(metric, begin) })
	for i := range r.results {
		other := &r.results[i]
		if other == row || others && other.Part == row.Part && other.Dataset == row.Dataset && trained(*other) {
			r.read[strings.Join(append([]string{other.Part, other.Dataset, other.Method}, other.At...), "\t")] = other
		}
	}
}

// find returns the result of a point, or nil.
func (r *rules) find(part, dataset, method string, at []string) *experiment.Result {
	key := func(part, dataset, method string, at []string) string {
		return strings.Join(append([]string{part, dataset, method}, at...), "\t")
	}
	if r.index == nil {
		r.index = map[string]*experiment.Result{}
		for i := range r.results {
			row := &r.results[i]
			k := key(row.Part, row.Dataset, row.Method, row.At)
			if _, there := r.index[k]; !there {
				r.index[k] = row
			}
		}
	}
	return r.index[key(part, dataset, method, at)]
}

// env returns the functions that expressions may call.
func (r *rules) env() map[string]any {
	return map[string]any{
		"v": r.values,
		"has": func(part, dataset, method, metric string, at ...string) bool {
			return r.has(part, dataset, method, metric, at)
		},
		"mean": func(x any) (float64, error) {
			f, err := numbers(x)
			return f.Mean(), err
		},
		"low": func(x any) (float64, error) {
			f, err := numbers(x)
			return f.Low(), err
		},
		"high": func(x any) (float64, error) {
			f, err := numbers(x)
			return f.High(), err
		},
		"spread": func(x any) (float64, error) {
			f, err := numbers(x)
			return f.Spread(), err
		},
		"seeds": func(x any) (int, error) {
			f, err := numbers(x)
			return len(f), err
		},
		"times": func(x any, by float64) ([]float64, error) {
			f, err := numbers(x)
			out := make([]float64, len(f))
			for i, v := range f {
				out[i] = v * by
			}
			return out, err
		},
		"ratio":     ratio,
		"lower":     lower,
		"clearly":   clearly,
		"datasets":  func(part string) ([]string, error) { return r.names(part, datasetOf) },
		"methods":   func(part string) ([]string, error) { return r.names(part, methodOf) },
		"baselines": func(part string) ([]string, error) { return r.names(part, baselineOf) },
		"axis": func(part string, i int) ([]string, error) {
			return r.names(part, func(row experiment.Result) string {
				if i < 0 || i >= len(row.At) {
					return ""
				}
				return row.At[i]
			})
		},
		"best": func(part, dataset, metric string, methods any, at ...string) (string, error) {
			order, err := r.order(part, dataset, metric, methods, at)
			if err != nil {
				return "", err
			}
			return order[0], nil
		},
		"rank": func(part, dataset, metric string, methods any, method string, at ...string) (int, error) {
			order, err := r.order(part, dataset, metric, methods, at)
			if err != nil {
				return 0, err
			}
			i := slices.Index(order, method)
			if i < 0 {
				return 0, fmt.Errorf("%s is not among the methods %s", method, strings.Join(order, ", "))
			}
			return i + 1, nil
		},
		"grid":    r.grid,
		"minimum": r.minimum,
		"diverged": func(part, dataset, method string, at ...string) (int, error) {
			f, err := r.values(part, dataset, method, "diverged", at...)
			return experiment.Result{Figures: map[string]experiment.Figure{"diverged": f}}.Diverged(), err
		},
		"published": r.printed,
	}
}

func datasetOf(r experiment.Result) string { return r.Dataset }

func methodOf(r experiment.Result) string {
	if trained(r) {
		return r.Method
	}
	return ""
}

func baselineOf(r experiment.Result) string {
	if trained(r) {
		return ""
	}
	return r.Method
}

// trained reports whether training produced a result. Baselines take no gradients.
func trained(r experiment.Result) bool {
	return r.Figures["diverged"] != nil || r.Figures["steps"] != nil
}

// evaluate returns the value of an expression.
func (r *rules) evaluate(text string) (any, error) {
	env := r.env()
	// The optimizer would omit the second side of "true or x".
	program, err := expr.Compile(text, expr.Env(env), expr.DisableShortCircuit(), expr.Optimize(false))
	if err != nil {
		return nil, err
	}
	type result struct {
		value any
		err   error
	}
	done := make(chan result, 1)
	go func() {
		v, err := expr.Run(program, env)
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-time.After(evaluateFor):
		// The evaluation cannot be interrupted. It ends with the process.
		return nil, fmt.Errorf("the expression takes longer than %v; do its loops repeat each other?", evaluateFor)
	}
}

// evaluateFor limits the time of one expression, because nested loops over ranges could take
// days. It is a variable for tests.
var evaluateFor = time.Minute

// condition returns the value of an expression that must be true or false.
func (r *rules) condition(text string) (bool, error) {
	value, err := r.evaluate(text)
	if err != nil {
		return false, err
	}
	yes, ok := value.(bool)
	if !ok {
		return false, fmt.Errorf("%q is %v, want true or false", text, value)
	}
	return yes, nil
}

func (r *rules) values(part, dataset, method, metric string, at ...string) ([]float64, error) {
	if row := r.find(part, dataset, method, at); row != nil && row.Figures[metric] != nil {
		if r.cells != nil {
			r.cells[cellOf{part, dataset, method, strings.Join(at, "; "), metric}] = true
		}
		if r.read != nil && !slices.Contains(untrained, metric) {
			r.depend(row, metric)
		}
		return row.Figures[metric], nil
	}
	rows := r.results
	for _, by := range []struct {
		what, name string
		of         func(experiment.Result) string
	}{
		{"part", part, func(r experiment.Result) string { return r.Part }},
		{"dataset", dataset, datasetOf},
		{"method", method, func(r experiment.Result) string { return r.Method }},
		{"point", strings.Join(at, "; "), func(r experiment.Result) string { return strings.Join(r.At, "; ") }},
	} {
		var there []string
		found := slices.DeleteFunc(slices.Clone(rows), func(r experiment.Result) bool {
			there = append(there, by.of(r))
			return by.of(r) != by.name
		})
		if len(found) == 0 {
			return nil, fmt.Errorf("v(%q, %q, %q, %q%s): no %s %q; there are %s", part, dataset, method, metric, quoted(at), by.what, by.name, nearest(by.name, there))
		}
		rows = found
	}
	var there []string
	for name := range rows[0].Figures {
		there = append(there, name)
	}
	return nil, fmt.Errorf("v(%q, %q, %q, %q%s): no metric %q; there are %s", part, dataset, method, metric, quoted(at), metric, nearest(metric, there))
}

func quoted(at []string) string {
	text := ""
	for _, a := range at {
		text += fmt.Sprintf(", %q", a)
	}
	return text
}

func (r *rules) has(part, dataset, method, metric string, at []string) bool {
	row := r.find(part, dataset, method, at)
	return row != nil && row.Figures[metric] != nil
}

// names returns the different names that of returns for the results of a part, except "".
func (r *rules) names(part string, of func(experiment.Result) string) ([]string, error) {
	var names, parts []string
	for _, row := range r.results {
		parts = append(parts, row.Part)
		if n := of(row); row.Part == part && n != "" && !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	if !slices.Contains(parts, part) {
		return nil, fmt.Errorf("no part %q; there are %s", part, nearest(part, parts))
	}
	return names, nil
}

// grid returns the means of a metric over a grid of two settings: for each value of the first
// setting, in the order of ours.tsv, the means for all values of the second one. A point
// without the metric, because its run failed, is infinite, so that it is never the lowest.
func (r *rules) grid(part, dataset, method, metric string) ([]any, error) {
	axis := func(i int) ([]string, error) {
		return r.names(part, func(row experiment.Result) string {
			if row.Dataset != dataset || row.Method != method || len(row.At) != 2 {
				return ""
			}
			return row.At[i]
		})
	}
	down, err := axis(0)
	if err != nil {
		return nil, err
	}
	across, err := axis(1)
	if err != nil {
		return nil, err
	}
	if len(down) == 0 {
		return nil, fmt.Errorf("grid(%q, %q, %q, %q): ours.tsv has no such grid of two settings", part, dataset, method, metric)
	}
	var all []any
	for _, y := range down {
		var line []any
		for _, x := range across {
			mean := math.Inf(1)
			if at := []string{y, x}; r.has(part, dataset, method, metric, at) {
				f, err := r.values(part, dataset, method, metric, at...)
				if err != nil {
					return nil, err
				}
				if m := experiment.Figure(f).Mean(); !math.IsNaN(m) {
					mean = m
				}
			}
			line = append(line, mean)
		}
		all = append(all, line)
	}
	return all, nil
}

// minimum returns the lowest mean of a metric over the points of a grid that begin with at, or NaN
// if all runs failed.
func (r *rules) minimum(part, dataset, method, metric string, at ...string) (float64, error) {
	least, found := math.NaN(), false
	for _, row := range r.results {
		if row.Part != part || row.Dataset != dataset || row.Method != method || len(row.At) < len(at) || !slices.Equal(row.At[:len(at)], at) || row.Figures[metric] == nil {
			continue
		}
		f, err := r.values(part, dataset, method, metric, row.At...)
		if err != nil {
			return 0, err
		}
		found = true
		if m := experiment.Figure(f).Mean(); !(least <= m) && !math.IsNaN(m) {
			least = m
		}
	}
	if !found {
		return 0, fmt.Errorf("minimum(%q, %q, %q, %q%s): ours.tsv has no such point", part, dataset, method, metric, quoted(at))
	}
	return least, nil
}

// order returns the methods in ascending order of a metric's mean. Methods without a mean,
// because a run failed, come last.
func (r *rules) order(part, dataset, metric string, methods any, at []string) ([]string, error) {
	names, err := texts(methods)
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("no methods to compare in %s", part)
	}
	means := map[string]float64{}
	for _, name := range names {
		f, err := r.values(part, dataset, name, metric, at...)
		if err != nil {
			return nil, err
		}
		means[name] = experiment.Figure(f).Mean()
		if math.IsNaN(means[name]) {
			means[name] = math.Inf(1)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int {
		switch {
		case means[a] < means[b]:
			return -1
		case means[a] > means[b]:
			return 1
		}
		return 0
	})
	return names, nil
}

func ratio(a, b any) ([]float64, error) {
	x, y, err := twoNumbers(a, b)
	if err != nil {
		return nil, err
	}
	if len(x) != len(y) && len(x) != 1 && len(y) != 1 {
		return nil, fmt.Errorf("ratio of %d and %d values", len(x), len(y))
	}
	out := make([]float64, max(len(x), len(y)))
	for i := range out {
		out[i] = x[min(i, len(x)-1)] / y[min(i, len(y)-1)]
	}
	return out, nil
}

func lower(a, b any) (bool, error) {
	x, y, err := twoNumbers(a, b)
	return x.Mean() < y.Mean(), err
}

// clearly reports whether a is below b in every seed, and on average by more than the larger of
// the two spreads. A value of a single seed, such as a baseline's, is compared with each of the
// other values, but one of a and b must have three seeds.
func clearly(a, b any) (bool, error) {
	x, y, err := twoNumbers(a, b)
	if err != nil || max(len(x), len(y)) < 3 || len(x) != len(y) && len(x) != 1 && len(y) != 1 {
		return false, err
	}
	for i := range max(len(x), len(y)) {
		if !(x[min(i, len(x)-1)] < y[min(i, len(y)-1)]) {
			return false, nil
		}
	}
	spread := 0.0
	for _, f := range []experiment.Figure{x, y} {
		if len(f) > 1 {
			spread = max(spread, f.Spread())
		}
	}
	return y.Mean()-x.Mean() > spread, nil
}

func twoNumbers(a, b any) (x, y experiment.Figure, err error) {
	if x, err = numbers(a); err == nil {
		y, err = numbers(b)
	}
	return x, y, err
}

// numbers returns a list of numbers. Lists that an expression builds have elements of any
// type.
func numbers(x any) (experiment.Figure, error) {
	switch x := x.(type) {
	case []float64:
		return x, nil
	case float64:
		return experiment.Figure{x}, nil
	case int:
		return experiment.Figure{float64(x)}, nil
	case []any:
		var f experiment.Figure
		for _, e := range x {
			one, err := numbers(e)
			if err != nil {
				return nil, err
			}
			f = append(f, one...)
		}
		return f, nil
	}
	return nil, fmt.Errorf("%v is not a list of numbers", x)
}

// texts returns a copy of a list of strings.
func texts(x any) ([]string, error) {
	switch x := x.(type) {
	case []string:
		return slices.Clone(x), nil
	case []any:
		var all []string
		for _, e := range x {
			s, ok := e.(string)
			if !ok {
				return nil, fmt.Errorf("%v is not a name", e)
			}
			all = append(all, s)
		}
		return all, nil
	}
	return nil, fmt.Errorf("%v is not a list of names", x)
}

// placeholder matches ${expression}, or ${expression; %.1f} with a format for numbers.
var placeholder = regexp.MustCompile(`\$\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}`)

var numberFormat = regexp.MustCompile(`;\s*(%\.[0-9][fg])\s*$`)

// fill replaces each ${expression} of a text with its value.
func (r *rules) fill(text string) (string, error) {
	var first error
	out := placeholder.ReplaceAllStringFunc(text, func(found string) string {
		code, format := placeholder.FindStringSubmatch(found)[1], ""
		if m := numberFormat.FindStringSubmatch(code); m != nil {
			code, format = strings.TrimSuffix(code, m[0]), m[1]
		}
		value, err := r.evaluate(code)
		if err == nil {
			found, err = show(value, format)
		}
		if err != nil && first == nil {
			first = fmt.Errorf("in ${%s}: %w", code, err)
		}
		return found
	})
	if first == nil && strings.Contains(out, "${") {
		first = fmt.Errorf("a ${ without its }: %s", out)
	}
	return out, first
}

// show formats a value. Several numbers become their mean and range.
func show(value any, format string) (string, error) {
	number := func(v float64) string {
		switch {
		case math.IsNaN(v):
			return "undefined"
		case format != "":
			return fmt.Sprintf(format, v)
		case v == math.Trunc(v) && math.Abs(v) < 1e15:
			return strconv.FormatFloat(v, 'f', -1, 64)
		}
		return fmt.Sprintf("%.4g", v)
	}
	switch x := value.(type) {
	case string:
		return x, nil
	case bool:
		if x {
			return "yes", nil
		}
		return "no", nil
	case []string:
		return strings.Join(x, ", "), nil
	case []any:
		if names, err := texts(x); err == nil {
			return strings.Join(names, ", "), nil
		}
	}
	f, err := numbers(value)
	if err != nil {
		return "", err
	}
	if low, high := number(f.Low()), number(f.High()); low != high {
		return fmt.Sprintf("%s (%s-%s)", number(f.Mean()), low, high), nil
	}
	return number(f.Mean()), nil
}
