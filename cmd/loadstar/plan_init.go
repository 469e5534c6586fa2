package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/fed"
	"loadstar/fed/recipe"
)

func newPlanInit() *cobra.Command {
	var out, model, targets string
	cmd := &cobra.Command{
		Use:   "init [ALGORITHM]",
		Short: "Write a plan with all settings of an algorithm",
		Long: `Write a plan for an algorithm, by default fedavg, with all its settings, their
meaning and their defaults. By default, the model is dense and forecasts the
next step. With --targets 24h it forecasts every step of the next 24 hours. The
command never replaces an existing file. "-o -" prints the plan.`,
		Example: "  loadstar plan init -o hour-ahead.yaml\n  loadstar plan init --targets 24h -o day-ahead.yaml\n" +
			"  loadstar plan init fedadam --model bose2023 -o -",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := "fedavg"
			if len(args) == 1 {
				name = args[0]
			}
			span, err := fed.ParseTimespan(targets)
			if err != nil {
				return cli.Usagef("--targets: %w", err)
			}
			text, err := recipe.Template(name, model, span)
			if err != nil {
				return cli.Usage(err)
			}
			if out == "-" {
				_, err := cmd.OutOrStdout().Write(text)
				return err
			}
			out = cmp.Or(out, name+".yaml")
			f, err := os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
			if errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("%s already exists; choose another name with -o", out)
			}
			if err != nil {
				return err
			}
			if _, err := f.Write(text); err != nil {
				f.Close()
				return err
			}
			if err := f.Close(); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: a plan for %s; next: loadstar plan explain %s\n", out, name, out)
			return err
		},
	}
	cmd.Flags().StringVarP(&out, "output", "o", "", "file to write, or - for standard output (default ALGORITHM.yaml)")
	cmd.Flags().StringVar(&model, "model", "dense", "forecasting model; see loadstar model list")
	cmd.Flags().StringVar(&targets, "targets", "0", "how far to forecast: a duration such as 24h, or a number of steps; 0 means as in the model's paper, or one step for dense")
	return cmd
}
