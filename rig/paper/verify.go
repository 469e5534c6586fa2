package paper

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"loadstar/internal/disk"
	"loadstar/lab/experiment"
)

// ErrDiffers means that a file differs from what is computed from the results.
var ErrDiffers = errors.New("files differ from what is computed from ours.tsv; write them with --verify --write")

// Verify computes every verdict and every generated section from ours.tsv and published.tsv. If
// write is true, it writes them into claims.yaml and README.md. Otherwise, it returns any
// differences, with an error that is ErrDiffers.
func (p *Paper) Verify(write bool) (difference string, err error) {
	results, err := p.Results()
	if err != nil {
		return "", err
	}
	claims, err := p.judge(results)
	if err != nil {
		return "", err
	}
	published, err := p.published()
	if err != nil {
		return "", err
	}
	sections := &sections{paper: p, results: results, claims: claims, published: published}
	summary, err := os.ReadFile(filepath.Join(p.dir, "summary.md"))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // a paper without a summary
	}
	if err != nil {
		return "", err
	}
	sections.summary = string(summary)
	for _, file := range []struct {
		name     string
		generate func([]byte) ([]byte, error)
	}{
		{"claims.yaml", func(text []byte) ([]byte, error) { return withVerdicts(text, claims) }},
		{"README.md", sections.fill},
	} {
		one, err := update(filepath.Join(p.dir, file.name), p.Name+"/"+file.name, write, file.generate)
		if err != nil {
			return "", err
		}
		difference += one
	}
	if difference != "" {
		err = ErrDiffers
	}
	return difference, err
}

// update replaces a file with the output of generate if write is true, and otherwise
// returns the difference.
func update(path, name string, write bool, generate func([]byte) ([]byte, error)) (string, error) {
	before, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	after, err := generate(before)
	switch {
	case err != nil:
		return "", fmt.Errorf("%s: %w", name, err)
	case bytes.Equal(before, after):
		return "", nil
	case !write:
		return difference(name, string(before), string(after)), nil
	}
	return "", disk.Write(path, func(f *os.File) error {
		_, err := f.Write(after)
		return err
	})
}

// difference lists the first lines in which two texts differ. Common lines at the beginning
// and at the end are omitted.
func difference(name, before, after string) string {
	const most = 12
	a, b := strings.Split(before, "\n"), strings.Split(after, "\n")
	line := 1
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
		line++
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%s, from line %d:\n", name, line)
	show := func(mark string, lines []string) {
		for i, l := range lines {
			if i == most {
				fmt.Fprintf(&out, "%s (%d more lines)\n", mark, len(lines)-most)
				break
			}
			fmt.Fprintf(&out, "%s %s\n", mark, l)
		}
	}
	show("-", a)
	show("+", b)
	return out.String()
}

// Results reads the saved results of the paper.
func (p *Paper) Results() ([]experiment.Result, error) {
	path := filepath.Join(p.dir, "ours.tsv")
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	results, err := experiment.ReadTSV(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return results, nil
}

// Save writes results to ours.tsv, and updates the verdicts and sections that follow from them.
// Results of parts that were not run stay in the file as long as the experiment has these
// parts.
func (p *Paper) Save(results []experiment.Result) error {
	before, err := p.Results()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := WriteResults(p.dir, p.merge(before, results)); err != nil {
		return err
	}
	_, err = p.Verify(true)
	return err
}

// merge returns the results of each part, in the order of the experiment, and the costs of all.
func (p *Paper) merge(before, after []experiment.Result) []experiment.Result {
	has := func(rows []experiment.Result, part string) bool {
		return slices.ContainsFunc(rows, func(r experiment.Result) bool { return r.Part == part })
	}
	var all []experiment.Result
	var old []string // the parts that were not run
	for _, name := range p.Spec.Names() {
		from := after
		if !has(after, name) && has(before, name) {
			from = before
			old = append(old, name)
		}
		all = append(all, slices.DeleteFunc(slices.Clone(from), func(r experiment.Result) bool { return r.Part != name })...)
	}
	for _, r := range before { // a row without a method is the cost of several parts
		if r.Part == experiment.Meta && len(old) > 0 && (r.Method == "" || slices.Contains(old, r.Method)) {
			all = append(all, r)
		}
	}
	return append(all, slices.DeleteFunc(slices.Clone(after), func(r experiment.Result) bool { return r.Part != experiment.Meta })...)
}
