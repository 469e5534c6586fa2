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

// Import is a folder of files in somebody else's form, looked through and ready to
// be converted.
type Import struct {
	// About says where the data comes from.
	About string
	// Generated says that no meter measured it.
	Generated bool
	Zone      string
	Interval  time.Duration
	// Meters is how many there are at most.
	Meters int
	// Weather may be empty.
	Weather series.Weather
	// LabelNames and StaticNames name what is known about a meter, in words and
	// in numbers.
	LabelNames  []string
	StaticNames []string

	notes []string
	each  func(f func(m series.Meter, labels []string) error) error
}

// Each calls f for one meter after the other, with its labels.
func (i *Import) Each(f func(m series.Meter, labels []string) error) error { return i.each(f) }

// Notes says what was left out and what is odd, after Each has been through the
// files.
func (i *Import) Notes() []string { return i.notes }

func (i *Import) note(format string, args ...any) {
	i.notes = append(i.notes, fmt.Sprintf(format, args...))
}

// folder returns the files below a folder that end in one of the given ways, in
// order. Hidden ones are left out.
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
		err = fmt.Errorf("%s holds no file that ends in %s", dir, strings.Join(endings, " or "))
	}
	return paths, err
}

// offsetName writes seconds east of Greenwich as UTC-08:00.
func offsetName(seconds int) string {
	sign := '+'
	if seconds < 0 {
		sign, seconds = '-', -seconds
	}
	return fmt.Sprintf("UTC%c%02d:%02d", sign, seconds/3600, seconds/60%60)
}
