package operate

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/fed/recipe"
	"loadstar/internal/textfmt"
	v1 "loadstar/proto/loadstar/v1"
)

func newRunShow() *cobra.Command {
	var rounds int32
	cmd := serverCommand("show RUN", "Show a run and its newest rounds", cobra.ExactArgs(1),
		func(cmd *cobra.Command, c *operator, args []string) (any, func(io.Writer), error) {
			run, err := c.run(cmd.Context(), args[0])
			if err != nil {
				return nil, nil, err
			}
			r, err := c.GetRun(cmd.Context(), &v1.GetRunRequest{Run: run, Rounds: rounds})
			return r, func(out io.Writer) {
				x := r.Run
				fmt.Fprintf(out, "%s: %s, %s, %s\n", x.Id, x.Name, x.Algorithm, stateOf(x))
				fmt.Fprintf(out, "round %d of %d, version %d, %s\n", roundNumber(x), x.Rounds, x.Version, cli.Count(int(x.Clients), "client"))
				if x.LeftOut != "" {
					fmt.Fprintln(out, x.LeftOut)
				}
				if w := r.Waiting; w != nil {
					fmt.Fprintln(out, w.Text)
					if w.Silent > 0 {
						fmt.Fprintln(out, "time left: unknown while the run waits")
					}
				}
				for _, text := range x.Warnings {
					fmt.Fprintln(out, "warning: "+text)
				}
				if n := r.NewClients; n != nil {
					fmt.Fprintln(out, heldOut(n))
				}
				fmt.Fprint(out, changes(r.Plan))
				if len(r.Rounds) == 0 {
					return
				}
				fmt.Fprint(out, lossLine(r.Rounds))
				w := cli.NewTable(out, tabwriter.AlignRight)
				fmt.Fprintln(w, "ROUND\tSTATE\tASKED\tCOUNTED\tLATE\tLOST\tLOSS\tRELATIVE MAE\tOF\tMB\tSECONDS\t")
				for _, r := range r.Rounds {
					seconds, relative := "-", "-"
					if r.Closed > 0 {
						seconds = fmt.Sprintf("%.1f", float64(r.Closed-r.Opened)/1000)
					}
					if r.Evaluated > 0 {
						relative = fmt.Sprintf("%.3f", r.RelativeMae)
					}
					fmt.Fprintf(w, "%d\t%s\t%d\t%d\t%d\t%d\t%s\t%s\t%d\t%.2f\t%s\t\n", r.Round+1, r.State, r.Asked, r.Counted, r.Late, r.Lost, lossOf(r),
						relative, r.Evaluated, float64(r.Bytes)/1e6, seconds)
				}
				_ = w.Flush() // the caller's writer reports errors
			}, err
		})
	cmd.Long = `Show a run: its state, the settings in which its plan differs from the defaults
of the algorithm, and its newest rounds. The name of the run is its id, the
beginning of its id, the name of its plan, or @last. Rounds are numbered from 1,
but in JSON from 0 as in the API.`
	cmd.Example = "  loadstar run show @last\n  loadstar run show k3v --rounds 100"
	cmd.Flags().Int32Var(&rounds, "rounds", 10, "number of rounds to show")
	return cmd
}

// heldOut describes the evaluation of held-out clients.
func heldOut(n *v1.NewClients) string {
	text := fmt.Sprintf("%s held out", cli.Count(int(n.HeldOut), "client"))
	switch {
	case n.Answered == 0:
		return text + ", not scored yet"
	case n.Scored > 0:
		text += fmt.Sprintf("; relative MAE on their test split after adapting: %.3f, mean of %d", n.RelativeMae, n.Scored)
	}
	if n.Answered < n.HeldOut {
		text += fmt.Sprintf(", %d still to answer", n.HeldOut-n.Answered)
	}
	if n.Scored < n.Answered {
		text += fmt.Sprintf(", %d could not be scored", n.Answered-n.Scored)
	}
	return text
}

// changes lists the settings in which a plan differs from its algorithm's defaults.
func changes(plan string) string {
	p, err := recipe.Read([]byte(plan))
	if err != nil {
		return "" // the plan comes from a server of another version
	}
	usual, err := recipe.Defaults(p)
	if err != nil {
		return ""
	}
	all, err := recipe.Diff(usual, p)
	if err != nil {
		return ""
	}
	var b strings.Builder
	for _, d := range all {
		d.A = cmp.Or(d.A, "not set")
		fmt.Fprintf(&b, "  %s: %s (default %s)\n", d.Path, d.B, d.A)
	}
	if b.Len() == 0 {
		return "plan: the defaults of " + p.Algorithm + "\n"
	}
	return "plan: the defaults of " + p.Algorithm + ", except\n" + b.String()
}

// lossOf returns the training loss of a round, or a dash if the server hides it because too few
// clients were counted.
func lossOf(r *v1.Round) string {
	if r.Loss == 0 {
		return "-"
	}
	return fmt.Sprintf("%.4g", r.Loss)
}

// lossLine draws the training loss of rounds, which are sorted from new to old.
func lossLine(rounds []*v1.Round) string {
	var values []float64
	for _, r := range slices.Backward(rounds) {
		if r.Loss > 0 {
			values = append(values, r.Loss)
		}
	}
	if len(values) < 2 {
		return ""
	}
	return fmt.Sprintf("loss: %.4g %s %.4g\n", values[0], textfmt.Sparkline(values, 50), values[len(values)-1])
}
