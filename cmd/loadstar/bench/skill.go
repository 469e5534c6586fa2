package bench

import (
	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/internal/bench/skill"
)

func newSkill() *cobra.Command {
	var (
		data, root   string
		o            skill.Options
		peer, asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "skill",
		Short: "Measure forecasters that know only one client",
		Long: `Measure forecasters that know only one client, to compare a model with them: the
baselines, and with --peer gradient boosting with scikit-learn (histogram trees,
31 leaves, rate 0.05, at most 600 trees, their number chosen on the validation
split) on the features of the model dense. The peer needs Debian's
python3-sklearn and runs on one thread.

With --out the MAE of every client and method on the validation and the test
split is written to DIR/DATASET-TARGETS.tsv. A run that was interrupted
continues there.`,
		Example: "  loadstar bench skill --data datasets/hog-core42.yaml\n  loadstar bench skill --data datasets/hog-core42.yaml --targets 24 --peer --out skill",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if data == "" {
				return cli.Usagef("no dataset: use --data")
			}
			if err := o.Complete(peer); err != nil {
				return cli.Usage(err)
			}
			d, closer, err := cli.OpenDataset(data, root)
			if err != nil {
				return err
			}
			defer closer.Close()
			o.Dataset = d
			bar := cli.Stages{To: cmd.ErrOrStderr()}
			defer bar.Stop()
			rows, err := skill.Run(cmd.Context(), o, bar.Set)
			if err != nil {
				return err
			}
			bar.Stop()
			if asJSON {
				return cli.PrintJSON(cmd.OutOrStdout(), rows)
			}
			return skill.Print(cmd.OutOrStdout(), rows, o.Targets)
		},
	}
	f := cmd.Flags()
	f.StringVar(&data, "data", "", cli.DatasetUsage)
	f.StringVar(&root, "root", "", cli.RootUsage)
	f.IntVar(&o.Targets, "targets", 1, "forecast the next `N` steps")
	f.IntVar(&o.Stride, "stride", 0, "steps between scored origins (default 1, or 6 for several targets)")
	f.IntVar(&o.Clients, "clients", 14, "number of clients, evenly spaced; 0 means all")
	f.BoolVar(&peer, "peer", false, "also measure gradient boosting with scikit-learn")
	f.StringSliceVar(&o.Losses, "loss", skill.Losses, "losses that the peer minimises")
	f.IntVar(&o.Rows, "rows", 40000, "maximum number of training rows of the peer, sampled; 0 means all")
	f.StringVar(&o.Out, "out", "", "write the results of every client into this folder")
	f.BoolVar(&asJSON, "json", false, "print the results of every client as JSON")
	return cmd
}
