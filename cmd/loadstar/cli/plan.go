package cli

import (
	"fmt"
	"os"

	"loadstar/fed"
	"loadstar/fed/recipe"
)

// ReadPlan reads a plan. If data is not empty or rounds is not 0, it replaces the plan's
// own setting.
func ReadPlan(path, data string, rounds int) (*fed.Plan, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	p, err := recipe.Read(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if data != "" {
		p.Data = data
	}
	if rounds > 0 {
		p.Rounds = rounds
	}
	return p, nil
}
