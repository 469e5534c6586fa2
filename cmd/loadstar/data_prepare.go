package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"loadstar/series"
)

func newDataPrepare() *cobra.Command {
	var root, out string
	cmd := &cobra.Command{
		Use:   "prepare DATASET",
		Short: "Write a dataset in the form in which it is used",
		Long: `Write a dataset into one file that is mapped into memory instead of read: it opens
at once, and only what is used is loaded, so a fleet may be larger than memory. Give the
file wherever a command takes a dataset.

DATASET is a folder with a dataset.yaml, or such a file.`,
		Example: "  loadstar data prepare datasets/hog-core42.yaml -o hog.prepared",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, closer, err := openDataset(args[0], root)
			if err != nil {
				return err
			}
			defer closer.Close()
			if out == "" {
				out = d.Name + preparedExt
			}
			if err := series.WritePrepared(out, d); err != nil {
				return err
			}
			info, err := os.Stat(out)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %s of %s%s, %.1f MB\n", out, count(d.Len(), "meter"), d.Name, generatedMark(d.Generated), float64(info.Size())/1e6)
			return nil
		},
	}
	cmd.Flags().StringVar(&root, "root", "", rootUsage)
	cmd.Flags().StringVarP(&out, "out", "o", "", "file to write (default the dataset's name with "+preparedExt+")")
	return cmd
}
