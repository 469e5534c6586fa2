package main

import (
	"cmp"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/rig/bench/skill"
)

// skillOptions are the flags of the command.
type skillOptions struct {
	data, root   string
	h            string
	options      skill.Options
	peer, asJSON bool
}

func newSkill() *cobra.Command {
	var o skillOptions
	cmd := &cobra.Command{
		Use:   "skill",
		Short: "Measure baselines and gradient boosting",
		Long: `Measure the methods with which models are compared. These are the baselines and,
with --peer, gradient boosting with scikit-learn (histogram trees, 31 leaves,
rate 0.05, at most 600 trees) on the features of the model dense. --xgboost adds
XGBoost (depth 6, rate 0.05, at most 1000 trees), with one model for each
client. --pooled adds XGBoost with one model for all clients, which has the
client as an input. The number of trees is chosen on the validation split.
Boosting needs Debian's python3-sklearn and python3-xgboost and runs on one
thread.

With --out DIR, the command writes the MAE of every client and method on the
validation and the test split to DIR/DATASET-STEPS.tsv. If the command was
interrupted, run it again to continue from that file.`,
		Example: "  loadstar-lab bench skill --data datasets/sample\n  loadstar-lab bench skill --data datasets/sample --h 24 --peer --out skill",
		RunE:    o.run,
	}
	f := cmd.Flags()
	f.StringVar(&o.data, "data", "", cli.DatasetUsage)
	f.StringVar(&o.root, "root", "", cli.RootUsage)
	f.StringVar(&o.h, "h", "", "forecast all of the next `H` hours, or a duration such as 30m or 2d (default the next step)")
	f.IntVar(&o.options.Stride, "stride", 0, "steps between scored origins (default 1, or 6 hours for several steps)")
	f.IntVar(&o.options.Clients, "clients", 14, "number of clients, evenly spaced; 0 means all")
	f.BoolVar(&o.peer, "peer", false, "also measure gradient boosting with scikit-learn")
	f.BoolVar(&o.options.XGBoost, "xgboost", false, "also measure XGBoost, one model for each client")
	f.BoolVar(&o.options.Pooled, "pooled", false, "also measure XGBoost, one model for all clients")
	f.StringSliceVar(&o.options.Losses, "loss", skill.Losses, "losses that the peer minimises")
	f.IntVar(&o.options.Rows, "rows", 40000, "maximum number of training rows of the peer, which are sampled; 0 means all rows")
	f.StringVar(&o.options.Out, "out", "", "write the results of every client into this folder")
	f.BoolVar(&o.asJSON, "json", false, "print the results of every client as JSON")
	return cmd
}

func (o *skillOptions) run(cmd *cobra.Command, _ []string) error {
	if o.data == "" {
		return cli.NoData()
	}
	if err := o.options.Complete(o.peer); err != nil {
		return cli.Usage(err)
	}
	d, closer, err := cli.OpenDataset(o.data, o.root)
	if err != nil {
		return err
	}
	defer closer.Close()
	o.options.Dataset, o.options.Targets = d, 1
	if o.h != "" {
		if o.options.Targets, err = cli.ParseSteps(o.h, d.Interval); err != nil {
			return cli.Usagef("--h: %w", err)
		}
	}
	o.options.Stride = cmp.Or(o.options.Stride, cli.Stride(o.options.Targets, d.Interval))
	bar := cli.Stages{To: cmd.ErrOrStderr()}
	defer bar.Stop()
	rows, err := skill.Run(cmd.Context(), o.options, bar.Set)
	if err != nil {
		return err
	}
	bar.Stop()
	if o.asJSON {
		return cli.PrintJSON(cmd.OutOrStdout(), rows)
	}
	return skill.Print(cmd.OutOrStdout(), rows, o.options.Targets)
}
