package cli

import (
	"fmt"
	"io"
	"os"
	"time"

	"loadstar/fed"
	"loadstar/fed/recipe"
)

// ReadPlan reads a plan. If rounds is not 0, it replaces the plan's own number of rounds.
func ReadPlan(path string, rounds int) (*fed.Plan, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	p, err := recipe.Read(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if rounds > 0 {
		p.Rounds = rounds
	}
	return p, nil
}

// ResolvePlan resolves a plan with the interval of its data. It warns if the plan counts steps
// and the number looks like hours.
func ResolvePlan(notice io.Writer, p *fed.Plan, step time.Duration) (*fed.Plan, error) {
	if w := recipe.CountsSteps(p, step); w != "" {
		fmt.Fprintf(notice, "warning: %s\n", w)
	}
	return recipe.Resolve(p, step)
}
