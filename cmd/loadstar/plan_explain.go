package main

import (
	"errors"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/fed"
	"loadstar/lab/explain"
)

func newPlanExplain() *cobra.Command {
	var (
		data, root string
		clients    int
		asJSON     bool
	)
	cmd := &cobra.Command{
		Use:   "explain FILE",
		Short: "Explain what a plan trains, sends and costs",
		Long: `Explain what a plan trains, sends and costs, without running it: the model and
its inputs, the shared layers, the traffic, the number of gradient steps, their
time on this machine, the precision of the sums, and what the server sees of a
client.

With --data the command counts the clients and examples of a dataset, and with
--clients it assumes a fleet of that size. Without either flag, it prints only
sizes. The time is estimated from a half-second measurement of the training
engine.`,
		Example: "  loadstar plan explain plans/plfl-head.yaml --data datasets/sample\n  loadstar plan explain plans/fedbuff.yaml --clients 10000",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if clients < 0 || clients > 0 && data != "" {
				return cli.Usage(errors.New("use either --clients, at least 1, or --data"))
			}
			p, err := cli.ReadPlan(args[0], 0)
			if err != nil {
				return err
			}
			e, err := explainPlan(p, data, root, clients)
			if err != nil {
				return err
			}
			e.File = args[0]
			if asJSON {
				return cli.PrintJSON(cmd.OutOrStdout(), e)
			}
			return explain.Print(cmd.OutOrStdout(), e)
		},
	}
	f := cmd.Flags()
	f.StringVar(&data, "data", "", cli.DatasetUsage)
	f.StringVar(&root, "root", "", cli.RootUsage)
	f.IntVar(&clients, "clients", 0, "assume this number of clients instead of reading the dataset")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// explainPlan explains a plan for the given number of clients, for a dataset, or without
// either.
func explainPlan(p *fed.Plan, data, root string, clients int) (*explain.Explanation, error) {
	if clients > 0 {
		return explain.Fleet(p, clients)
	}
	if data == "" {
		return explain.Fleet(p, 0)
	}
	d, closer, err := cli.OpenPlausible(io.Discard, data, root)
	if err != nil {
		return nil, err
	}
	defer closer.Close()
	return explain.Dataset(p, d)
}

// explainFleet explains a plan for a server's fleet.
func explainFleet(p *fed.Plan, clients int) (string, error) {
	e, err := explain.Fleet(p, clients)
	if err != nil {
		return "", err
	}
	e.File = p.Name
	var text strings.Builder
	err = explain.Print(&text, e)
	return text.String(), err
}
