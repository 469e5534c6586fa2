package cli

import (
	"io"
	"path/filepath"

	"loadstar/series"
	"loadstar/series/read"
)

// PreparedExt is the extension of prepared files.
const PreparedExt = ".prepared"

// These are the help texts of --data and --root, which many commands have.
const (
	DatasetUsage = "dataset: a dataset.yaml, a folder with one, or a prepared file"
	RootUsage    = "data folder, for a dataset.yaml with rooted: true (default $" + read.RootEnv + ")"
)

// OpenDataset opens a dataset. Path is a dataset.yaml, a folder that contains one, or a
// prepared file.
func OpenDataset(path, root string) (*series.Dataset, io.Closer, error) {
	if filepath.Ext(path) == PreparedExt {
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

// GeneratedMark returns a label for output that is based on synthetic data, or "" for other
// data.
func GeneratedMark(generated bool) string {
	if generated {
		return " (SYNTHETIC data, not measurements)"
	}
	return ""
}
