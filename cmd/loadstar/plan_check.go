package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/fed/policy"
	"loadstar/fed/recipe"
	"loadstar/internal/config"
)

// planCheckOptions are the flags of the command.
type planCheckOptions struct {
	asJSON bool
}

func newPlanCheck() *cobra.Command {
	var o planCheckOptions
	cmd := &cobra.Command{
		Use:   "check FILE...",
		Short: "Check plans for errors",
		Long: `Check plans and print every error, one per line: unknown settings, settings that
the algorithm does not have, invalid values and contradictions. It also warns
about plans that agents decline by default because the updates could reveal
readings (see docs/privacy.md). The command does not open any data.`,
		Example: "  loadstar plan check plans/*.yaml",
		Args:    cobra.MinimumNArgs(1),
		RunE:    o.run,
	}
	cmd.Flags().BoolVar(&o.asJSON, "json", false, "print JSON")
	return cmd
}

func (o *planCheckOptions) run(cmd *cobra.Command, args []string) error {
	type problem struct {
		Line int    `json:"line,omitempty"`
		Text string `json:"text"`
	}
	type result struct {
		File      string    `json:"file"`
		Name      string    `json:"name,omitempty"`
		Algorithm string    `json:"algorithm,omitempty"`
		Problems  []problem `json:"problems,omitempty"`
		Warnings  []string  `json:"warnings,omitempty"`
	}
	var results []result
	bad := 0
	for _, path := range args {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		r := result{File: path}
		p, err := recipe.Read(text)
		if found := (config.Problems{}); errors.As(err, &found) {
			bad++
			for _, x := range found {
				r.Problems = append(r.Problems, problem{x.Line, x.Text})
			}
		} else if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		} else {
			r.Name, r.Algorithm = p.Name, p.Algorithm
			if warning := policy.Warn(p, 0); warning != "" && recipe.Federated(p) {
				r.Warnings = append(r.Warnings, warning)
			}
		}
		results = append(results, r)
	}
	w := cmd.OutOrStdout()
	if o.asJSON {
		if err := cli.PrintJSON(w, results); err != nil {
			return err
		}
	} else {
		for _, r := range results {
			for _, x := range r.Problems {
				at := r.File
				if x.Line > 0 {
					at = fmt.Sprintf("%s:%d", at, x.Line) // many editors can open this format
				}
				fmt.Fprintf(w, "%s: %s\n", at, x.Text)
			}
			for _, x := range r.Warnings {
				fmt.Fprintf(w, "%s: warning: %s\n", r.File, x)
			}
		}
	}
	if bad > 0 {
		return fmt.Errorf("errors in %d of %s", bad, cli.Count(len(args), "plan"))
	}
	if !o.asJSON {
		fmt.Fprintf(w, "%s without errors\n", cli.Count(len(args), "plan"))
	}
	return nil
}
