package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/fed/recipe"
)

func newPlanDiff() *cobra.Command {
	var asJSON, asCSV bool
	cmd := &cobra.Command{
		Use:   "diff FILE FILE",
		Short: "Compare two plans, with all defaults filled in",
		Long: `Compare two plans with all defaults filled in. A stated setting and an equal
default are not a difference. If one of the arguments is a hyphen, the command
compares the other plan with the defaults of that plan's algorithm.`,
		Example:           "  loadstar plan diff plans/fedavg.yaml plans/fedadam.yaml\n  loadstar plan diff - my.yaml",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: planFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "-" && args[1] == "-" {
				return cli.Usagef("name at least one plan; - stands for the defaults of the other plan's algorithm")
			}
			a, err := cli.ReadPlan(named(args[0], args[1]), 0)
			if err != nil {
				return err
			}
			b, err := cli.ReadPlan(named(args[1], args[0]), 0)
			if err != nil {
				return err
			}
			if args[0] == "-" {
				a, err = recipe.Defaults(b)
			} else if args[1] == "-" {
				b, err = recipe.Defaults(a)
			}
			if err != nil {
				return err
			}
			all, err := recipe.Diff(a, b)
			if err != nil {
				return err
			}
			if asJSON {
				return cli.PrintJSON(cmd.OutOrStdout(), append([]recipe.Difference{}, all...))
			}
			if len(all) == 0 && !asCSV {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), "the plans have the same settings")
				return err
			}
			w := cli.NewTable(cmd.OutOrStdout(), 0)
			if asCSV {
				w = cli.NewCSV(cmd.OutOrStdout())
			}
			fmt.Fprintf(w, "SETTING\t%s\t%s\n", args[0], args[1])
			for _, d := range all {
				fmt.Fprintf(w, "%s\t%s\t%s\n", d.Path, orDash(d.A), orDash(d.B))
			}
			return w.Flush()
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&asCSV, "csv", false, "print the table as CSV")
	return cmd
}

// named returns a, or b if a is a hyphen.
func named(a, b string) string {
	if a == "-" {
		return b
	}
	return a
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
