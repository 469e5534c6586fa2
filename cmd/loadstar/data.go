package main

import "github.com/spf13/cobra"

func newData() *cobra.Command {
	cmd := &cobra.Command{Use: "data", Short: "Describe, check, prepare, generate and import load data"}
	cmd.AddCommand(newDataInit(), newDataCheck(), newDataCorrelate(), newDataPrepare(), newDataGenerate(), newDataImport())
	return cmd
}
