// Package plans contains the example plans that come with the program.
package plans

import (
	"cmp"
	"embed"
	"slices"
	"strings"
)

//go:embed *.yaml
var files embed.FS

// Plan is an example.
type Plan struct {
	Name  string // name of its file, without the extension
	About string // the comment at the beginning of its file
	Text  string
}

// first lists the plans that people need first.
var first = []string{"day-ahead", "hour-ahead", "two-days-ahead"}

// All returns all examples, starting with those that beginners need, and then the others by
// name.
func All() []Plan {
	entries, err := files.ReadDir(".")
	if err != nil {
		panic(err) // the files are in the program
	}
	var all []Plan
	for _, e := range entries {
		text, err := files.ReadFile(e.Name())
		if err != nil {
			panic(err)
		}
		p := Plan{Name: strings.TrimSuffix(e.Name(), ".yaml"), Text: string(text)}
		var about []string
		for line := range strings.Lines(p.Text) {
			words, ok := strings.CutPrefix(line, "#")
			if !ok {
				break
			}
			about = append(about, strings.TrimSpace(words))
		}
		p.About = strings.Join(about, " ")
		all = append(all, p)
	}
	rank := func(p Plan) int {
		if i := slices.Index(first, p.Name); i >= 0 {
			return i
		}
		return len(first)
	}
	slices.SortStableFunc(all, func(a, b Plan) int { return cmp.Compare(rank(a), rank(b)) })
	return all
}
