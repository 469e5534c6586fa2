package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/forecast"
	"loadstar/lab/outlook"
	"loadstar/nn/kernel"
)

func newModel() *cobra.Command {
	cmd := &cobra.Command{Use: "model", Short: "Show the forecasting models and their layers, and export trained ones"}
	cmd.AddCommand(newModelList(), newModelShow(), newModelExport())
	return cmd
}

func newModelList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the models",
		RunE: func(cmd *cobra.Command, _ []string) error {
			type row struct {
				Name       string `json:"name"`
				Parameters int    `json:"parameters"`
				Summary    string `json:"summary"`
			}
			var rows []row
			for _, s := range forecast.Models() {
				m, err := forecast.New(s.Name, forecast.Shape{})
				if err != nil {
					return err
				}
				rows = append(rows, row{s.Name, m.Net().Weights(), s.About})
			}
			if asJSON {
				return cli.PrintJSON(cmd.OutOrStdout(), rows)
			}
			t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(t, "MODEL\tPARAMETERS\tARCHITECTURE")
			for _, r := range rows {
				fmt.Fprintf(t, "%s\t%d\t%s\n", r.Name, r.Parameters, r.Summary)
			}
			return t.Flush()
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// modelShowOptions are the flags of the command.
type modelShowOptions struct {
	asJSON bool
	shape  forecast.Shape
}

func newModelShow() *cobra.Command {
	var o modelShowOptions
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show a model's layers and partitions",
		Long: `Show a model's layers, and the number of shared and personal parameters in each
named partition. Without flags, the model has the shape from its paper. The
model dense reads rows of features instead of windows. By default, these are the
features for a forecast of the next step with weather.`,
		Example: "  loadstar model show bose2023 --inputs 5",
		Args:    cobra.ExactArgs(1),
		RunE:    o.run,
	}
	cmd.Flags().BoolVar(&o.asJSON, "json", false, "print JSON")
	cmd.Flags().IntVar(&o.shape.Lookback, "lookback", 0, "steps per window (default as in the paper)")
	cmd.Flags().IntVar(&o.shape.Inputs, "inputs", 0, "inputs per step (default as in the paper)")
	cmd.Flags().IntVar(&o.shape.Outputs, "outputs", 0, "outputs per window (default as in the paper)")
	return cmd
}

func (o *modelShowOptions) run(cmd *cobra.Command, args []string) error {
	m, err := forecast.New(args[0], o.shape)
	if err != nil {
		return cli.Usage(err) // the name and the shape are arguments
	}
	paper, _ := forecast.DefaultsOf(m.Name())
	if paper.Rows && cmd.Flags().Changed("lookback") {
		return cli.Usagef("--lookback: %s reads one row of features; set --inputs to the length of the row", m.Name())
	}
	type tensor struct {
		Name  string `json:"name"`
		Shape []int  `json:"shape"`
	}
	type layer struct {
		Name       string   `json:"name"`
		Parameters int      `json:"parameters"`
		Tensors    []tensor `json:"tensors"`
	}
	type partition struct {
		Name     string `json:"name"`
		Shared   int    `json:"shared"`
		Personal int    `json:"personal"`
	}
	out := struct {
		Name       string      `json:"name"`
		Lookback   int         `json:"lookback"`
		Inputs     int         `json:"inputs"`
		Outputs    int         `json:"outputs"`
		Parameters int         `json:"parameters"`
		Layers     []layer     `json:"layers"`
		Partitions []partition `json:"partitions"`
	}{
		Name: m.Name(), Lookback: m.Net().Lookback(), Inputs: m.Net().Inputs(),
		Outputs: m.Net().Outputs(), Parameters: m.Net().Weights(),
	}
	for _, l := range m.Net().Layers() {
		row := layer{Name: l.Name, Parameters: l.Len()}
		for _, t := range l.Tensors {
			row.Tensors = append(row.Tensors, tensor{t.Name, t.Shape})
		}
		out.Layers = append(out.Layers, row)
	}
	for _, name := range forecast.Partitions() {
		p, err := m.Partition(name)
		if err != nil {
			continue // skip partitions that the model does not have
		}
		out.Partitions = append(out.Partitions, partition{name, p.SharedLen(), p.PersonalLen()})
	}
	if o.asJSON {
		return cli.PrintJSON(cmd.OutOrStdout(), out)
	}
	w := cmd.OutOrStdout()
	reads := fmt.Sprintf("windows of %s by %s", cli.Count(out.Lookback, "step"), cli.Count(out.Inputs, "input"))
	if paper.Rows {
		reads = "rows of " + cli.Count(out.Inputs, "feature")
	}
	fmt.Fprintf(w, "%s: %d parameters, %s, %s\n\n", out.Name, out.Parameters, reads, cli.Count(out.Outputs, "output"))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "LAYER\tPARAMETERS\tTENSORS")
	for _, l := range out.Layers {
		fmt.Fprintf(t, "%s\t%d\t", l.Name, l.Parameters)
		for i, x := range l.Tensors {
			if i > 0 {
				fmt.Fprint(t, ", ")
			}
			fmt.Fprintf(t, "%s %v", x.Name, x.Shape)
		}
		fmt.Fprintln(t)
	}
	fmt.Fprintln(t, "\nPARTITION\tSHARED\tPERSONAL")
	for _, p := range out.Partitions {
		fmt.Fprintf(t, "%s\t%d\t%d\n", p.Name, p.Shared, p.Personal)
	}
	return t.Flush()
}

func newModelExport() *cobra.Command {
	var to, client string
	cmd := &cobra.Command{
		Use:   "export RUN",
		Short: "Write the trained models of a run as ONNX",
		Long: `Write the trained models of a run as ONNX for other runtimes. The command writes
one client's model to a file, or all clients' models to a folder. A model
consists of the shared layers, the client's personal layers and the client's
scaling. It reads the tensor "inputs", with a row for each example, and returns
the tensor "forecast", with a row for each step and the quantiles in kW. The
metadata of the model contains the names of the inputs and the quantiles.

'loadstar forecast --inputs' writes inputs in this format. An exported model
returns uncorrected forecasts, whereas 'loadstar forecast' corrects them by
earlier errors.`,
		Example: "  loadstar model export runs/day-ahead --onnx models\n" +
			"  loadstar model export runs/day-ahead --client b103 --onnx b103.onnx",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if to == "" {
				return cli.Usagef("nothing to write: use --onnx with a folder, or with a file and --client")
			}
			k, err := kernel.Default()
			if err != nil {
				return err
			}
			n, err := outlook.ExportONNX(args[0], client, to, k)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", to, cli.Count(n, "model"))
			return err
		},
	}
	cmd.Flags().StringVar(&to, "onnx", "", "`FOLDER` for the models of all clients, or the file for one model")
	cmd.Flags().StringVar(&client, "client", "", "export only this client")
	return cmd
}
