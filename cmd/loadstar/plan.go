package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/fed/recipe"
)

func newPlan() *cobra.Command {
	cmd := &cobra.Command{Use: "plan", Short: "Write, check and explain training plans"}
	cmd.AddCommand(newPlanList(), newPlanInit(), newPlanCheck(), newPlanExplain(), newPlanDiff())
	return cmd
}

func newPlanList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the algorithms that a plan can name, and their papers",
		RunE: func(cmd *cobra.Command, _ []string) error {
			type row struct {
				Name   string   `json:"name"`
				About  string   `json:"about"`
				Papers []string `json:"papers"`
				From   string   `json:"from"`
			}
			var rows []row
			for _, a := range recipe.Algorithms() {
				rows = append(rows, row{a.Name, a.About, a.Papers, a.Source})
			}
			if asJSON {
				return cli.PrintJSON(cmd.OutOrStdout(), rows)
			}
			t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(t, "ALGORITHM\tPAPER\tWHAT IT DOES")
			for _, r := range rows {
				fmt.Fprintf(t, "%s\t%s\t%s\n", r.Name, strings.Join(r.Papers, ", "), r.About)
			}
			return t.Flush()
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, with the source of the defaults")
	return cmd
}
