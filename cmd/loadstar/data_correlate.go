package main

import (
	"fmt"
	"text/tabwriter"

	"loadstar/internal/textfmt"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/lab/experiment"
)

func newDataCorrelate() *cobra.Command {
	var root string
	cmd := &cobra.Command{
		Use:   "correlate DATASET",
		Short: "Show how static values and weather vary with load",
		Long: `Show how the static values and the weather columns of a dataset vary with load,
as Pearson's coefficient of correlation. A static value, such as the floor
area, is compared with the mean load of each meter. A weather column is
compared with the load of each meter over time, and the coefficients are
averaged over meters.`,
		Example: "  loadstar data correlate datasets/bose2023-ca-sample.yaml",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, closer, err := cli.OpenDataset(args[0], root)
			if err != nil {
				return err
			}
			defer closer.Close()
			all := experiment.Correlations(d)
			if len(all) == 0 {
				return fmt.Errorf("%s has no static values and no weather", d.Name)
			}
			w := cmd.OutOrStdout()
			fmt.Fprintf(w, "%s: %s%s\n", d.Name, cli.Count(d.Len(), "meter"), textfmt.Synthetic(d.Generated))
			t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
			fmt.Fprintln(t, "COLUMN\tCORRELATION WITH LOAD\t")
			for _, c := range all {
				fmt.Fprintf(t, "%s\t%.4f\t\n", c.Column, c.Value)
			}
			return t.Flush()
		},
	}
	cmd.Flags().StringVar(&root, "root", "", cli.RootUsage)
	return cmd
}
