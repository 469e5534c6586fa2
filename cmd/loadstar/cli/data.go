package cli

import (
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"loadstar/internal/config"
	"loadstar/series"
	"loadstar/series/read"
)

// PreparedExt is the extension of prepared files.
const PreparedExt = ".prepared"

// The help texts of --data and --root, which many commands have.
const (
	DatasetUsage = "dataset: a dataset.yaml, a folder with one, or a prepared file"
	RootUsage    = "data folder, for a dataset.yaml with rooted: true (default $" + read.RootEnv + ")"
)

// NoData returns the error of a command that needs --data.
func NoData() error {
	return Usagef("no data given: try --data datasets/sample (8 real buildings), --data FOLDER for your own (loadstar data init), or loadstar data generate")
}

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

// OpenPlausible opens a dataset without its impossible readings, for training or forecasting.
// It writes the names of meters with such readings to err.
func OpenPlausible(err io.Writer, path, root string) (*series.Dataset, io.Closer, error) {
	d, closer, failed := OpenDataset(path, root)
	if failed != nil {
		return nil, nil, failed
	}
	d, found, failed := d.Plausible()
	if failed != nil {
		closer.Close()
		return nil, nil, failed
	}
	if len(found) > 0 {
		n := 0
		for _, of := range found {
			n += of
		}
		names := slices.Sorted(maps.Keys(found))
		who := strings.Join(names[:min(len(names), 3)], ", ")
		if len(names) > 3 {
			who += fmt.Sprintf(" and %d more", len(names)-3)
		}
		fmt.Fprintf(err, "%s impossible and not used: %s; to see them: loadstar data check %s\n", areCount(n, "reading"), who, path)
	}
	return d, closer, nil
}

func areCount(n int, noun string) string {
	if n == 1 {
		return Count(n, noun) + " is"
	}
	return Count(n, noun) + " are"
}

// FindMeter returns the index of the meter with the given name, or an error that lists the
// meters. It makes no suggestion for a very short name, because many names would be
// similar.
func FindMeter(d *series.Dataset, name string) (int, error) {
	if d.Len() == 0 {
		return 0, fmt.Errorf("%s has no meters", d.Name)
	}
	const most = 10_000 // maximum number of names that are compared for a suggestion
	var names []string
	for i := range d.Len() {
		id := d.Meter(i).ID
		if id == name {
			return i, nil
		}
		if len(names) < most {
			names = append(names, id)
		}
	}
	hint := config.Suggest(name, names)
	if len(name) < 3 || !strings.HasPrefix(hint, "did you mean ") {
		hint = fmt.Sprintf("it has %s, such as %s", Count(d.Len(), "meter"), names[0])
	}
	return 0, fmt.Errorf("%s has no meter %s; %s", d.Name, name, hint)
}
