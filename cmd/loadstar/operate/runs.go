package operate

import (
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/fed/recipe"
	"loadstar/fed/round"
	"loadstar/internal/atomicfile"
	v1 "loadstar/proto/loadstar/v1"
)

func newRuns() *cobra.Command {
	cmd := &cobra.Command{Use: "runs", Short: "Start, watch and stop training runs"}
	cmd.AddCommand(newRunsStart(), newRunsList(), newRunsShow(), newRunsWatch(), newRunsStop(), newRunsWeights())
	return cmd
}

func newRunsStart() *cobra.Command {
	var (
		o      operatorFlags
		wait   int64
		rounds int
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "start PLAN",
		Short: "Start training a plan with the fleet",
		Long: `Start training a plan with the fleet. The run includes every client that is
connected when it starts. The plan file is the same as for the simulator; its
data and simulate settings have no effect. In every evaluate.every-th round the
clients also score the weights on their own validation data. Clients that
evaluate.holdout holds out do not train; when the run has finished they adapt
the weights and score them. Plans that compute on the server need a coordinator
with --server-data. If a fleet cannot train the plan, the command fails and
prints the reason.`,
		Example: "  loadstar runs start plans/plfl-head.yaml\n  loadstar runs start plans/fedadam.yaml --wait-for 200",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := os.ReadFile(args[0])
			if err != nil {
				return err
			}
			if rounds < 0 {
				return cli.Usage(errors.New("--rounds must be at least 1"))
			}
			if rounds > 0 {
				p, err := cli.ReadPlan(args[0], "", rounds)
				if err != nil {
					return err
				}
				if text, err = recipe.Write(p); err != nil {
					return err
				}
			}
			c, err := o.dial()
			if err != nil {
				return err
			}
			r, err := c.StartRun(cmd.Context(), &v1.StartRunRequest{Plan: string(text), Clients: wait})
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], plain(err))
			}
			if asJSON {
				return cli.PrintLine(cmd.OutOrStdout(), map[string]string{"run": r.Run})
			}
			fmt.Fprintln(cmd.OutOrStdout(), r.Run)
			fmt.Fprintf(cmd.ErrOrStderr(), "to watch it: loadstar runs watch %s\n", r.Run)
			return nil
		},
	}
	o.add(cmd.Flags())
	cmd.Flags().IntVar(&rounds, "rounds", 0, "number of rounds (default the plan's)")
	cmd.Flags().Int64Var(&wait, "wait-for", 0, "start when this number of clients is connected")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newRunsList() *cobra.Command {
	var limit int32
	cmd := serverCommand("list", "List runs, newest first", cobra.NoArgs,
		func(cmd *cobra.Command, c *operator, _ []string) (any, func(io.Writer), error) {
			r, err := c.ListRuns(cmd.Context(), &v1.ListRunsRequest{Limit: limit})
			return r.GetRuns(), func(w io.Writer) {
				fmt.Fprintln(w, "RUN\tPLAN\tALGORITHM\tSTATE\tROUND\tCLIENTS\tCREATED")
				for _, x := range r.Runs {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d/%d\t%d\t%s\n", x.Id, x.Name, x.Algorithm, x.State, roundNumber(x), x.Rounds, x.Clients, ago(x.Created))
				}
			}, err
		})
	cmd.Flags().Int32Var(&limit, "limit", 20, "maximum number of runs")
	return cmd
}

func newRunsShow() *cobra.Command {
	var rounds int32
	cmd := serverCommand("show RUN", "Show a run and its newest rounds", cobra.ExactArgs(1),
		func(cmd *cobra.Command, c *operator, args []string) (any, func(io.Writer), error) {
			r, err := c.GetRun(cmd.Context(), &v1.GetRunRequest{Run: args[0], Rounds: rounds})
			return r, func(out io.Writer) {
				x := r.Run
				fmt.Fprintf(out, "%s: %s, %s, %s\n", x.Id, x.Name, x.Algorithm, stateOf(x))
				fmt.Fprintf(out, "round %d of %d, version %d, %s\n", roundNumber(x), x.Rounds, x.Version, cli.Count(int(x.Clients), "client"))
				if n := r.NewClients; n != nil {
					fmt.Fprintln(out, heldOut(n))
				}
				if len(r.Rounds) == 0 {
					return
				}
				w := tabwriter.NewWriter(out, 0, 4, 2, ' ', tabwriter.AlignRight)
				fmt.Fprintln(w, "ROUND\tSTATE\tASKED\tCOUNTED\tLATE\tLOST\tLOSS\tRELATIVE MAE\tOF\tMB\tSECONDS\t")
				for _, r := range r.Rounds {
					seconds, relative := "-", "-"
					if r.Closed > 0 {
						seconds = fmt.Sprintf("%.1f", float64(r.Closed-r.Opened)/1000)
					}
					if r.Evaluated > 0 {
						relative = fmt.Sprintf("%.3f", r.RelativeMae)
					}
					fmt.Fprintf(w, "%d\t%s\t%d\t%d\t%d\t%d\t%.4g\t%s\t%d\t%.2f\t%s\t\n", r.Round+1, r.State, r.Asked, r.Counted, r.Late, r.Lost, r.Loss,
						relative, r.Evaluated, float64(r.Bytes)/1e6, seconds)
				}
				_ = w.Flush() // the caller's writer reports errors
			}, err
		})
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

// roundNumber returns the number of a run's newest round, starting at 1, or 0 before the
// run starts. The API numbers rounds from 0.
func roundNumber(r *v1.Run) int64 {
	if r.Weights == "" {
		return 0
	}
	return r.Round + 1
}

func stateOf(r *v1.Run) string {
	if r.Reason != "" {
		return r.State + ": " + r.Reason
	}
	return r.State
}

func newRunsWatch() *cobra.Command {
	var (
		o      operatorFlags
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "watch RUN",
		Short: "Follow a run round by round until it ends",
		Long: `Follow a run round by round until it ends. The exit code is 0 if the run
finished and 1 if it was stopped or failed. The command reconnects if the
connection breaks.

The relative MAE is the validation error of the weights before the round, as a
share of the error of a simple forecast (evaluate.reference in the plan): the
mean over the clients that trained, and its change since it was last measured.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.dial()
			if err != nil {
				return err
			}
			var last *v1.Run
			for {
				last, err = watch(cmd, c, args[0], last, asJSON)
				if last != nil && ended(last) {
					break
				}
				if cmd.Context().Err() != nil {
					return cmd.Context().Err()
				}
				if last == nil {
					return plain(err)
				}
				time.Sleep(time.Second)
			}
			if last.State != "finished" {
				return errors.New(args[0] + " " + stateOf(last))
			}
			return nil
		},
	}
	o.add(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print each round as a line of JSON")
	return cmd
}

func ended(r *v1.Run) bool { return r.State != "waiting" && r.State != "running" }

// watch prints the run's progress until the stream of events ends, and returns the last
// known state of the run.
func watch(cmd *cobra.Command, c *operator, run string, last *v1.Run, asJSON bool) (*v1.Run, error) {
	s, err := c.WatchRun(cmd.Context(), &v1.WatchRunRequest{Run: run})
	if err != nil {
		return last, err
	}
	defer func() { _ = s.Close() }() // Err says why the stream ended
	out := cmd.OutOrStdout()
	before := 0.0 // the relative MAE that was measured last, or 0
	for s.Receive() {
		m := s.Msg()
		switch r := m.Round; {
		case r == nil && last == nil && !asJSON:
			fmt.Fprintf(out, "%s: %s, %s, round %d of %d\n", m.Run.Id, m.Run.Name, m.Run.State, roundNumber(m.Run), m.Run.Rounds)
		case r == nil && ended(m.Run) && !asJSON:
			fmt.Fprintf(out, "%s after %s, version %d\n", stateOf(m.Run), (time.Duration(m.Run.Finished-m.Run.Created) * time.Millisecond).Round(100*time.Millisecond), m.Run.Version)
		case r != nil && asJSON:
			if err := cli.PrintLine(out, r); err != nil {
				return last, err
			}
		case r != nil:
			fmt.Fprintf(out, "round %d of %d %s: asked %d, counted %d, late %d, lost %d, loss %.4g", r.Round+1, m.Run.Rounds, r.State, r.Asked, r.Counted, r.Late, r.Lost, r.Loss)
			if r.Evaluated > 0 {
				fmt.Fprintf(out, ", relative MAE %.3f", r.RelativeMae)
				if before > 0 {
					fmt.Fprintf(out, " (%+.3f)", r.RelativeMae-before)
				}
				before = r.RelativeMae
			}
			fmt.Fprintf(out, ", %.1f s%s\n", float64(r.Closed-r.Opened)/1000, timeLeft(m.Run, r))
		}
		last = m.Run
	}
	return last, s.Err()
}

// timeLeft estimates how long a run still takes, from its mean time per round so far.
func timeLeft(run *v1.Run, r *v1.Round) string {
	left := run.Rounds - r.Round - 1
	if left <= 0 || run.Started == 0 || ended(run) {
		return ""
	}
	span := time.Duration(r.Closed-run.Started) * time.Millisecond / time.Duration(r.Round+1) * time.Duration(left)
	return fmt.Sprintf(", about %s left", span.Round(max(time.Second, span.Truncate(time.Minute)/60)))
}

func newRunsStop() *cobra.Command {
	var o operatorFlags
	cmd := &cobra.Command{
		Use:   "stop RUN",
		Short: "Stop a run",
		Long: `Stop a run. Its newest weights remain available; results that arrive later are
refused.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.dial()
			if err != nil {
				return err
			}
			_, err = c.StopRun(cmd.Context(), &v1.StopRunRequest{Run: args[0]})
			return plain(err)
		},
	}
	o.add(cmd.Flags())
	return cmd
}

func newRunsWeights() *cobra.Command {
	var (
		o   operatorFlags
		out string
	)
	cmd := &cobra.Command{
		Use:   "weights RUN",
		Short: "Download a run's newest shared weights",
		Long: `Download a run's newest shared weights as a .safetensors file. For a synchronous
run it is byte-identical to the file that loadstar simulate writes for the same
plan and data.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.dial()
			if err != nil {
				return err
			}
			r, err := c.GetRun(cmd.Context(), &v1.GetRunRequest{Run: args[0], Rounds: 1})
			if err != nil {
				return plain(err)
			}
			if r.Run.Weights == "" {
				return fmt.Errorf("run %s has no weights yet: it has not started", args[0])
			}
			b, err := c.blob(cmd.Context(), r.Run.Weights)
			if err != nil {
				return err
			}
			p, err := recipe.Read([]byte(r.Plan))
			if err != nil {
				return err
			}
			q, err := recipe.Frame(p, nil)
			if err != nil {
				return err
			}
			shared := round.ReadFloats(nil, b)
			if len(shared) != q.SharedLen() {
				return fmt.Errorf("the server sent %d numbers, but the plan shares %d", len(shared), q.SharedLen())
			}
			write := func(w io.Writer) error { return q.WriteShared(w, shared, p.Name, int(r.Run.Version)) }
			if out == "-" {
				return write(cmd.OutOrStdout())
			}
			return atomicfile.Write(out, func(f *os.File) error { return write(f) })
		},
	}
	o.add(cmd.Flags())
	cmd.Flags().StringVarP(&out, "out", "o", "shared.safetensors", "file to write, or - for standard output")
	return cmd
}
