package main

import (
	"errors"

	"github.com/spf13/cobra"

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
		Short: "Say what a plan will train, send, need and take",
		Long: `Say what a plan will do before it does it: the model and its inputs, which layers are
shared, what travels, how many gradient steps there are, how long they take on this
machine, how exactly updates are summed, and what the server sees of a client.

The plan's dataset is opened if it is there, so that clients and examples are counted;
--clients takes a fleet of so many instead. The time is from a measurement of the
training engine, which takes half a second.`,
		Example: "  loadstar plan explain plans/plfl-head.yaml\n  loadstar plan explain plans/fedbuff.yaml --clients 10000",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if clients < 0 || clients > 0 && data != "" {
				return usageError{errors.New("give --clients for a fleet of so many, or --data for that of a dataset"), "plan explain "}
			}
			p, err := readPlan(args[0], data, 0)
			if err != nil {
				return err
			}
			e, err := explainPlan(p, data, root, clients)
			if err != nil {
				return err
			}
			e.File = args[0]
			if asJSON {
				return printJSON(cmd.OutOrStdout(), e)
			}
			return printExplanation(cmd.OutOrStdout(), e)
		},
	}
	f := cmd.Flags()
	f.StringVar(&data, "data", "", "dataset instead of the plan's: a folder, a description, or a prepared file")
	f.StringVar(&root, "root", "", rootUsage)
	f.IntVar(&clients, "clients", 0, "open no data: there are so many clients")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// explainPlan explains a plan for the given number of clients, or else for its dataset.
// Without --data, a dataset that cannot be opened is not an error.
func explainPlan(p *fed.Plan, data, root string, clients int) (*explain.Explanation, error) {
	if clients > 0 {
		return explain.Fleet(p, clients)
	}
	reason := "the plan names no dataset"
	if p.Data != "" {
		d, closer, err := openDataset(p.Data, root)
		if err == nil {
			defer closer.Close()
			return explain.Dataset(p, d)
		}
		if data != "" {
			return nil, err
		}
		reason = err.Error()
	}
	e, err := explain.Fleet(p, 0)
	if err == nil {
		e.NoData = reason
	}
	return e, err
}
