package operate

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/fed/recipe"
	"loadstar/fed/round"
	"loadstar/internal/disk"
	v1 "loadstar/proto/loadstar/v1"
)

func newRun() *cobra.Command {
	cmd := &cobra.Command{Use: "run", Short: "Start, watch and stop training runs"}
	cmd.AddCommand(newRunStart(), newRunList(), newRunShow(), newRunWatch(), newRunTurns(), newRunVersions(), newRunRollback(), newRunStop(), newRunWeights())
	return cmd
}

// runStartOptions are the flags of the command.
type runStartOptions struct {
	operatorFlags
	wait   int64
	rounds int
	dry    bool
	asJSON bool
}

func newRunStart() *cobra.Command {
	var o runStartOptions
	cmd := &cobra.Command{
		Use:   "start PLAN",
		Short: "Start training a plan with the fleet",
		Long: `Start training a plan with the fleet. The run includes the clients whose agents
were seen recently (agents.seen), except clients without the inputs that most of
the others have. The plan file is the same as for the simulator, but its
simulate settings have no effect. In every evaluate.every-th round the clients
also score the weights on their own validation data. With evaluate.holdout, some
clients do not train. After the run, these clients fine-tune the weights and
score them. Plans that compute on the server need a coordinator with
rounds.data.

If the fleet cannot train the plan, the command fails and prints the reason.
--dry-run starts nothing, and prints the server's explanation of the plan and
the number of clients for which the run would wait.`,
		Example: "  loadstar run start plans/plfl-head.yaml\n  loadstar run start plans/fedadam.yaml --rounds 100 --wait-for 200",
		Args:    cobra.ExactArgs(1),
		RunE:    o.run,
	}
	o.add(cmd.Flags())
	cmd.Flags().IntVar(&o.rounds, "rounds", 0, "number of rounds (default the plan's)")
	cmd.Flags().Int64Var(&o.wait, "wait-for", 0, "wait until this number of clients is connected")
	cmd.Flags().BoolVar(&o.dry, "dry-run", false, "explain the plan for the fleet, and start nothing")
	cmd.Flags().BoolVar(&o.asJSON, "json", false, "print JSON")
	return cmd
}

func (o *runStartOptions) run(cmd *cobra.Command, args []string) error {
	text, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	if o.rounds < 0 {
		return cli.Usage(errors.New("--rounds must be at least 1"))
	}
	if o.rounds > 0 {
		p, err := cli.ReadPlan(args[0], o.rounds)
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
	if o.dry {
		return explainRun(cmd, c, string(text), o.wait)
	}
	r, err := c.StartRun(cmd.Context(), &v1.StartRunRequest{Plan: string(text), Clients: o.wait})
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], plain(err))
	}
	for _, w := range r.Warnings {
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", w)
	}
	if o.asJSON {
		return cli.PrintLine(cmd.OutOrStdout(), map[string]string{"run": r.Run})
	}
	fmt.Fprintln(cmd.OutOrStdout(), r.Run)
	fmt.Fprintf(cmd.ErrOrStderr(), "next: loadstar run watch %s\n", r.Run)
	return nil
}

// explainRun prints a server's explanation of a plan and the number of clients for which its
// run would wait.
func explainRun(cmd *cobra.Command, c *operator, plan string, wait int64) error {
	r, err := c.ExplainPlan(cmd.Context(), &v1.ExplainPlanRequest{Plan: plan})
	if err != nil {
		return plain(err)
	}
	for _, w := range r.Warnings {
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", w)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\nNothing was started. The run would begin with %s; the fleet has %d now.\n", r.Text, cli.Count(int(max(r.Wanted, wait)), "client"), r.Clients)
	return err
}

func newRunList() *cobra.Command {
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

func newRunStop() *cobra.Command {
	var o operatorFlags
	cmd := &cobra.Command{
		Use:   "stop RUN",
		Short: "Stop a run",
		Long: `Stop a run. The run's newest weights remain available. The server refuses
results that arrive later.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, run, err := o.dialRun(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if _, err = c.StopRun(cmd.Context(), &v1.StopRunRequest{Run: run}); err != nil {
				return plain(err)
			}
			r, err := c.GetRun(cmd.Context(), &v1.GetRunRequest{Run: run, Rounds: 1})
			if err != nil {
				return plain(err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "stopped %s (%s) at version %d, in round %d of %d; its weights: loadstar run weights %s\n",
				run, r.Run.Name, r.Run.Version, roundNumber(r.Run), r.Run.Rounds, run)
			return err
		},
	}
	o.add(cmd.Flags())
	return cmd
}

// runWeightsOptions are the flags of the command.
type runWeightsOptions struct {
	operatorFlags
	out string
}

func newRunWeights() *cobra.Command {
	var o runWeightsOptions
	cmd := &cobra.Command{
		Use:   "weights RUN",
		Short: "Download a run's newest shared weights",
		Long: `Download a run's newest shared weights as a .safetensors file. For a synchronous
run whose agents share one secret, the file is byte-identical to the file that
'loadstar simulate --run' writes for the same plan and data.`,
		Args: cobra.ExactArgs(1),
		RunE: o.run,
	}
	o.add(cmd.Flags())
	cmd.Flags().StringVarP(&o.out, "out", "o", "shared.safetensors", "file to write, or - for standard output")
	return cmd
}

func (o *runWeightsOptions) run(cmd *cobra.Command, args []string) error {
	c, run, err := o.dialRun(cmd.Context(), args[0])
	if err != nil {
		return err
	}
	r, err := c.GetRun(cmd.Context(), &v1.GetRunRequest{Run: run, Rounds: 1})
	if err != nil {
		return plain(err)
	}
	if r.Run.Weights == "" {
		return fmt.Errorf("run %s has no weights yet: it has not started; see loadstar run show %s", run, run)
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
	if o.out == "-" {
		return write(cmd.OutOrStdout())
	}
	size := int64(0)
	err = disk.Write(o.out, func(f *os.File) error {
		if err := write(f); err != nil {
			return err
		}
		info, err := f.Stat()
		if err == nil {
			size = info.Size()
		}
		return err
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: version %d of run %s (%s), %s, %s\n",
		o.out, r.Run.Version, run, r.Run.Name, cli.Count(len(shared), "weight"), cli.Size(size))
	return err
}
