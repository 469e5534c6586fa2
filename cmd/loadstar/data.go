package main

import "github.com/spf13/cobra"

func newData() *cobra.Command {
	cmd := &cobra.Command{Use: "data", Short: "Fetch, describe, show, check, prepare, generate and import data"}
	cmd.AddCommand(newDataFetch(), newDataInit(), newDataShow(), newDataCheck(), newDataPrepare(), newDataGenerate(), newDataImport(), newDataWeather())
	return cmd
}
