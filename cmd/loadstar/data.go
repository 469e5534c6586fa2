package main

import (
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"loadstar/series"
	"loadstar/series/read"
)

func newData() *cobra.Command {
	cmd := &cobra.Command{Use: "data", Short: "Load data: describe, check, prepare, generate and import it"}
	cmd.AddCommand(newDataInit(), newDataCheck(), newDataPrepare(), newDataGenerate(), newDataImport())
	return cmd
}

// preparedExt is the ending of prepared files.
const preparedExt = ".prepared"

// rootUsage explains --root, which every command that reads a dataset takes.
const rootUsage = "folder of shared data, for descriptions that say so (default $" + read.RootEnv + ")"

// openDataset opens a dataset: a folder with a description, a description, or a
// prepared file.
func openDataset(path, root string) (*series.Dataset, io.Closer, error) {
	if filepath.Ext(path) == preparedExt {
		return series.OpenPrepared(path)
	}
	desc, err := read.Load(path)
	if err != nil {
		return nil, nil, err
	}
	d, err := read.Open(desc, root)
	if err != nil {
		return nil, nil, err
	}
	return d, io.NopCloser(nil), nil
}

// generatedMark stands wherever something is printed from generated data.
func generatedMark(generated bool) string {
	if generated {
		return " (GENERATED data: no meter measured it)"
	}
	return ""
}
