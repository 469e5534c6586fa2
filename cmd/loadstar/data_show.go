package main

import (
	"fmt"

	"loadstar/internal/textfmt"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/series/quality"
)

func newDataShow() *cobra.Command {
	var root, client string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show DATASET",
		Short: "Draw the load and the gaps of each month",
		Long: `Draw a line for each month, with the mean load and the share of missing readings
of each day. Readings count as missing only between the first and the last
reading of a meter. Without --client, a day's load is the mean of all readings
of all meters.

DATASET is a dataset.yaml, a folder with one, or a prepared file. To find
problems in the data, use 'loadstar data check'.

With --json the command prints one object:
  dataset, generated, interval_seconds, clock, client, meters
  months   month, readings, missing, longest_gap (steps), mean_kw, peak_kw, and
  days     for each day of the month: readings, missing, mean_kw`,
		Example: "  loadstar data show mydata\n  loadstar data show mydata --client b103",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, closer, err := cli.OpenDataset(args[0], root)
			if err != nil {
				return err
			}
			defer closer.Close()
			which, who, meters := -1, cli.Count(d.Len(), "meter"), d.Len()
			if client != "" {
				if which, err = cli.FindMeter(d, client); err != nil {
					return err
				}
				who, meters = client, 1
			}
			months := quality.Months(d, which)
			if asJSON {
				return cli.PrintJSON(cmd.OutOrStdout(), struct {
					Dataset   string          `json:"dataset"`
					Generated bool            `json:"generated"`
					Interval  float64         `json:"interval_seconds"`
					Clock     string          `json:"clock"`
					Client    string          `json:"client,omitempty"`
					Meters    int             `json:"meters"`
					Months    []quality.Month `json:"months"`
				}{d.Name, d.Generated, d.Interval.Seconds(), d.Clock.String(), client, meters, months})
			}
			if len(months) == 0 {
				return fmt.Errorf("%s has no readings", d.Name)
			}
			return quality.PrintMonths(cmd.OutOrStdout(), d, months, who, textfmt.Synthetic(d.Generated))
		},
	}
	f := cmd.Flags()
	f.StringVar(&root, "root", "", cli.RootUsage)
	f.StringVar(&client, "client", "", "show only the client (meter) with this `NAME`")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	cli.SeeAlso(cmd, "loadstar data check", "docs/data.md")
	return cmd
}
