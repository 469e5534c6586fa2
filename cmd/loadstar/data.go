package main

import (
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"loadstar/series"
	"loadstar/series/read"
)

func newData() *cobra.Command {
	cmd := &cobra.Command{Use: "data", Short: "Describe, check, prepare, generate and import load data"}
	cmd.AddCommand(newDataInit(), newDataCheck(), newDataCorrelate(), newDataPrepare(), newDataGenerate(), newDataImport())
	return cmd
}

// preparedExt is the extension of prepared files.
const preparedExt = ".prepared"

// These are the help texts of --data and --root, which many commands have.
const (
	datasetUsage = "dataset: a dataset.yaml, a folder with one, or a prepared file"
	rootUsage    = "data folder, for a dataset.yaml with rooted: true (default $" + read.RootEnv + ")"
)

// openDataset opens a dataset. Path is a dataset.yaml, a folder that contains one, or a
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

// generatedMark returns a label for output that is based on synthetic data, or "" for other
// data.
func generatedMark(generated bool) string {
	if generated {
		return " (SYNTHETIC data, not measurements)"
	}
	return ""
}
