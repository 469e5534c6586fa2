package read

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"loadstar/series"
)

// Import is a folder of files in a foreign format. The folder is indexed, and Each reads
// and converts its meters.
type Import struct {
	// About describes the origin of the data.
	About    string
	Zone     string
	Interval time.Duration
	// Meters is an upper bound on the number of meters.
	Meters int
	// LabelNames name the properties of a meter.
	LabelNames []string

	notes []string
	each  func(f func(m series.Meter, labels []string) error) error
}

// Each calls f for every meter, with its labels. It stops at the first error of f.
func (i *Import) Each(f func(m series.Meter, labels []string) error) error { return i.each(f) }

// Notes lists the data that was left out and the data that looks wrong. It is complete
// after Each has returned.
func (i *Import) Notes() []string { return i.notes }

func (i *Import) note(format string, args ...any) {
	i.notes = append(i.notes, fmt.Sprintf(format, args...))
}

// folder returns the files in a folder and its subfolders whose names end with one of the
// endings, sorted by path. Hidden files are left out.
func folder(dir string, endings ...string) ([]string, error) {
	var paths []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if hidden := strings.HasPrefix(d.Name(), ".") && path != dir; hidden && d.IsDir() {
			return filepath.SkipDir
		} else if hidden || d.IsDir() {
			return nil
		}
		name := strings.ToLower(d.Name())
		if slices.ContainsFunc(endings, func(e string) bool { return strings.HasSuffix(name, e) }) {
			paths = append(paths, path)
		}
		return nil
	})
	if err == nil && len(paths) == 0 {
		err = fmt.Errorf("%s contains no file that ends in %s", dir, strings.Join(endings, " or "))
	}
	return paths, err
}

// offsetName formats a UTC offset in seconds, for example as UTC-08:00.
func offsetName(seconds int) string {
	sign := '+'
	if seconds < 0 {
		sign, seconds = '-', -seconds
	}
	return fmt.Sprintf("UTC%c%02d:%02d", sign, seconds/3600, seconds/60%60)
}
