package main

import (
	"cmp"
	"fmt"
	"os"

	"loadstar/internal/textfmt"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/series"
)

func newDataPrepare() *cobra.Command {
	var root, out string
	cmd := &cobra.Command{
		Use:   "prepare DATASET",
		Short: "Write a dataset to one file that opens at once",
		Long: `Write a dataset to one prepared file, which is mapped into memory instead of
parsed. The file opens at once, and only the parts in use are loaded, so a fleet
can be larger than memory. Every command that takes a dataset accepts a prepared
file.

DATASET is a dataset.yaml or a folder with one.`,
		Example: "  loadstar data prepare datasets/sample -o sample.prepared",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, closer, err := cli.OpenDataset(args[0], root)
			if err != nil {
				return err
			}
			defer closer.Close()
			out = cmp.Or(out, d.Name+cli.PreparedExt)
			if err := series.WritePrepared(out, d); err != nil {
				return err
			}
			info, err := os.Stat(out)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %s of %s%s, %.1f MB\n", out, cli.Count(d.Len(), "meter"), d.Name, textfmt.Synthetic(d.Generated), float64(info.Size())/1e6)
			return nil
		},
	}
	cmd.Flags().StringVar(&root, "root", "", cli.RootUsage)
	cmd.Flags().StringVarP(&out, "out", "o", "", "file to write (default NAME"+cli.PreparedExt+", where NAME is the dataset's name)")
	return cmd
}
