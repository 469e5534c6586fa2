package main

import (
	"fmt"
	"io"
	"strings"
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
	return &cobra.Command{
		Use:   "list",
		Short: "List the models",
		RunE: func(cmd *cobra.Command, _ []string) error {
			t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(t, "MODEL\tPARAMETERS\tARCHITECTURE")
			for _, s := range forecast.Models() {
				m, err := forecast.New(s.Name, forecast.Shape{})
				if err != nil {
					return err
				}
				fmt.Fprintf(t, "%s\t%d\t%s\n", s.Name, m.Net().Weights(), s.About)
			}
			return t.Flush()
		},
	}
}

func newModelShow() *cobra.Command {
	return &cobra.Command{
		Use:   "show NAME",
		Short: "Show a model's layers and partitions",
		Long: `Show a model's layers, and the number of shared and personal parameters in each
named partition. The model has the shape from its paper. The model dense reads
rows of features instead of windows. It has the features of a forecast one step
ahead with weather.`,
		Example: "  loadstar model show bose2023",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := forecast.New(args[0], forecast.Shape{})
			if err != nil {
				return cli.Usage(err) // the name is an argument
			}
			return printModel(cmd.OutOrStdout(), m)
		},
	}
}

func printModel(w io.Writer, m *forecast.Model) error {
	net := m.Net()
	reads := fmt.Sprintf("windows of %s by %s", cli.Count(net.Lookback(), "step"), cli.Count(net.Inputs(), "input"))
	if paper, _ := forecast.DefaultsOf(m.Name()); paper.Rows {
		reads = "rows of " + cli.Count(net.Inputs(), "feature")
	}
	fmt.Fprintf(w, "%s: %d parameters, %s, %s\n\n", m.Name(), net.Weights(), reads, cli.Count(net.Outputs(), "output"))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "LAYER\tPARAMETERS\tTENSORS")
	for _, l := range net.Layers() {
		var tensors []string
		for _, x := range l.Tensors {
			tensors = append(tensors, fmt.Sprintf("%s %v", x.Name, x.Shape))
		}
		fmt.Fprintf(t, "%s\t%d\t%s\n", l.Name, l.Len(), strings.Join(tensors, ", "))
	}
	fmt.Fprintln(t, "\nPARTITION\tSHARED\tPERSONAL")
	for _, name := range forecast.Partitions() {
		if p, err := m.Partition(name); err == nil { // skip partitions that the model does not have
			fmt.Fprintf(t, "%s\t%d\t%d\n", name, p.SharedLen(), p.PersonalLen())
		}
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
