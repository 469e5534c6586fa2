package operate

import (
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/fed/recipe"
	v1 "loadstar/proto/loadstar/v1"
)

// compareRounds is the maximum number of rounds that are compared.
const compareRounds = 1000

func newRunCompare() *cobra.Command {
	cmd := serverCommand("compare RUN RUN", "Compare two runs: settings, rounds and losses", cobra.ExactArgs(2),
		func(cmd *cobra.Command, c *operator, args []string) (any, func(io.Writer), error) {
			var both [2]*v1.GetRunResponse
			for i, name := range args {
				run, err := c.run(cmd.Context(), name)
				if err != nil {
					return nil, nil, err
				}
				if both[i], err = c.GetRun(cmd.Context(), &v1.GetRunRequest{Run: run, Rounds: compareRounds}); err != nil {
					return nil, nil, err
				}
			}
			settings, err := planChanges(both[0].Plan, both[1].Plan)
			if err != nil {
				return nil, nil, err
			}
			return map[string]any{"a": both[0].Run, "b": both[1].Run, "settings": settings}, func(out io.Writer) { showComparison(out, both, settings) }, nil
		})
	cmd.Long = `Compare two runs: the settings in which their plans differ, their rounds, and
the training losses and relative MAEs of their newest rounds. Losses are
comparable only if the runs train the same model on the same clients.`
	cmd.Example = "  loadstar run compare k3v9x2ab m7q\n  loadstar run compare plfl-head @last"
	return cmd
}

// planChanges returns the settings in which two plans differ, except for their names.
func planChanges(a, b string) ([]recipe.Difference, error) {
	p, err := recipe.Read([]byte(a))
	if err != nil {
		return nil, err
	}
	q, err := recipe.Read([]byte(b))
	if err != nil {
		return nil, err
	}
	q.Name = p.Name
	return recipe.Diff(p, q)
}

func showComparison(out io.Writer, both [2]*v1.GetRunResponse, settings []recipe.Difference) {
	a, b := both[0].Run, both[1].Run
	w := cli.NewTable(out, 0)
	row := func(what string, f func(*v1.GetRunResponse) string) {
		fmt.Fprintf(w, "%s\t%s\t%s\n", what, f(both[0]), f(both[1]))
	}
	fmt.Fprintf(w, "\t%s\t%s\n", a.Id, b.Id)
	row("plan", func(r *v1.GetRunResponse) string { return r.Run.Name })
	row("algorithm", func(r *v1.GetRunResponse) string { return r.Run.Algorithm })
	row("state", func(r *v1.GetRunResponse) string { return stateOf(r.Run) })
	row("clients", func(r *v1.GetRunResponse) string { return fmt.Sprint(r.Run.Clients) })
	row("round", func(r *v1.GetRunResponse) string { return fmt.Sprintf("%d of %d", roundNumber(r.Run), r.Run.Rounds) })
	row("loss, newest", func(r *v1.GetRunResponse) string {
		return newestRound(r, func(x *v1.Round) bool { return x.Counted > 0 }, lossOf)
	})
	row("loss, course", func(r *v1.GetRunResponse) string {
		var values []float64
		for _, x := range slices.Backward(r.Rounds) {
			if x.Loss > 0 {
				values = append(values, x.Loss)
			}
		}
		return cli.Sparkline(values, 24)
	})
	row("relative MAE", func(r *v1.GetRunResponse) string {
		return newestRound(r, func(x *v1.Round) bool { return x.Evaluated > 0 }, func(x *v1.Round) string { return fmt.Sprintf("%.3f in round %d", x.RelativeMae, x.Round+1) })
	})
	row("seconds a round", func(r *v1.GetRunResponse) string {
		sum, n := 0.0, 0
		for _, x := range r.Rounds {
			if x.Closed > 0 {
				sum, n = sum+float64(x.Closed-x.Opened)/1000, n+1
			}
		}
		if n == 0 {
			return "-"
		}
		return fmt.Sprintf("%.1f", sum/float64(n))
	})
	for _, d := range settings {
		fmt.Fprintf(w, "%s\t%s\t%s\n", d.Path, orDash(d.A), orDash(d.B))
	}
	_ = w.Flush() // the caller's writer reports errors
	if len(settings) == 0 {
		fmt.Fprintln(out, "the plans have the same settings")
	}
}

// newestRound formats the newest round of a kind, or returns a dash if there is none.
func newestRound(r *v1.GetRunResponse, is func(*v1.Round) bool, format func(*v1.Round) string) string {
	for _, x := range r.Rounds {
		if is(x) {
			return format(x)
		}
	}
	return "-"
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
