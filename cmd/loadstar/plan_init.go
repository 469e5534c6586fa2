package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"loadstar/fed/recipe"
)

func newPlanInit() *cobra.Command {
	var out, data string
	cmd := &cobra.Command{
		Use:   "init [ALGORITHM]",
		Short: "Write a plan with all settings of an algorithm",
		Long: `Write a plan for an algorithm, by default fedavg, with all its settings, their
meaning and their defaults. An existing file is never replaced. "-o -" prints
the plan.`,
		Example: "  loadstar plan init fedadam -o my.yaml\n  loadstar plan init fedsim --data datasets/robin-core42.yaml -o -",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := "fedavg"
			if len(args) == 1 {
				name = args[0]
			}
			text, err := recipe.Template(name, data)
			if err != nil {
				return usageError{err, "plan init "}
			}
			if out == "-" {
				_, err := cmd.OutOrStdout().Write(text)
				return err
			}
			if out == "" {
				out = name + ".yaml"
			}
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
	cmd.Flags().StringVar(&data, "data", "datasets/hog-core42.yaml", "dataset of the plan")
	return cmd
}
